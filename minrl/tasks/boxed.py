r"""What stands in LaTeX boxes: `so \boxed{\frac{1}{2}} it is` -> `\frac{1}{2}`."""

import re

_BRACES = re.compile(
    r"\\boxed\s*(?:\{|(?P<number>(?>-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?))(?![\w^/(]|,[0-9]|\\[A-Za-z]))|\\.|[{}]",
    re.DOTALL,
)


def boxed(text: str) -> list[str]:
    r"""The contents of the closed `\boxed{...}`, in order, outermost boxes only. One pass, whatever is nested. A number
    needs no braces.

    >>> boxed(r"first \boxed{1}, then \boxed{ \{2, \frac{3}{4}\} } and \boxed 5, \boxed{6")
    ['1', '\\{2, \\frac{3}{4}\\}', '5']
    """
    found: list[tuple[int, int]] = []
    opened: list[tuple[int, bool]] = []
    for match in _BRACES.finditer(text):
        token = match.group()
        if match["number"]:
            found.append(match.span("number"))
        elif token.endswith("{") and token != r"\{":
            opened.append((match.end(), token != "{"))
        elif token == "}" and opened:
            start, is_box = opened.pop()
            if is_box:
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, match.start()))
    return [text[start:end].strip() for start, end in found]
