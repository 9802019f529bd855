r"""Is math paid for writing the problem's own expressions otherwise, and are right answers still paid?

    python benchmarks/rewrites.py math500.json

Idle: each expression of a problem that has the reference's value, `\binom{17}{9}` for 24310, is rewritten in each of
the ways of `IDLE`, which leave the work undone; at most 4 % are to be paid. Honest: each reference is written in each
of the ways of `HONEST`; whatever is paid without the problem is to be paid with it. Lists what is not so.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from harness import doing

from minrl.tasks.grader import OutOfTime, bounded
from minrl.tasks.math import MathOptions, reward
from minrl.tasks.math_answers import answers_agree, expressions, math_verify, same_text
from minrl.types import Example

NO_NUMBER = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}|[\s^(){}]")
Rewrite = Callable[[str], str]
OPTIONS = {prompt: MathOptions(prompt=prompt, timeout_s=5.0) for prompt in ("boxed", "r1_zero")}
FORMS = {"boxed": r"\boxed{{{}}}", "r1_zero": "so </think> <answer> {} </answer>"}
"""How an answer alone is written for each prompt."""

TEMPLATES = r"""0+E | E+0 | E-0 | 0-(-(E)) | 1\cdot E | 1 \times (E) | E\cdot 1 | (E)1 | 1(E) | \frac{E}{1} | (E)/1
(E)^1 | (E)^{1} | {E} | (E) | [E] | \{E\} | \left(E\right) | +E | -(-(E)) | --E | (E)+1-1 | 2+(E)-2 | E+x-x | (E)+0x
(E)x^0 | (E)\cdot 2^0 | E \cdot i^4 | \frac{2(E)}{2} | 2\cdot\frac{E}{2} | \frac{E}{2}+\frac{E}{2}
\frac{1}{2}(E)+\frac{1}{2}(E) | 0.5(E)+0.5(E) | \frac{3(E)-(E)}{2} | 2(E)-(E) | \frac{1}{\frac{1}{E}}
((E)^{-1})^{-1} | \frac{(E)^2}{E} | \sqrt{(E)^2} | (\sqrt{E})^2 | \sqrt{E}\sqrt{E} | \sqrt[3]{(E)^3} | |E|
((E)^2)^{1/2} | e^{\ln(E)} | \ln(e^{E}) | \log_{10} 10^{E} | 2^{\log_2(E)} | \log_2 2^{E} | \exp(\ln(E))
\sin(\arcsin(E)) | \tan(\arctan(E)) | \cos(\arccos(E)) | \sum_{k=1}^{1} E | \sum_{k=0}^{0} (E)
\prod_{k=1}^{1} (E) | \int_0^1 (E) \, dt | \int_0^{E} dt | \int_{0}^{E} 1 \, dt | \frac{d}{dt}(E)t
\lim_{t\to 0} (E) | \lim_{t \to 0} (E+t) | \max(E, E) | \min(E, E) | \max(E) | \lfloor E \rfloor
\lceil E \rceil | \gcd(E, 0) | \operatorname{Re}(E) | \overline{\overline{E}}
\det\begin{pmatrix} E \end{pmatrix} | \binom{E}{1} | \binom{E}{0}(E) | (E)\cdot 0!
(E)\cdot\sin^2 t+(E)\cdot\cos^2 t | (E)(\sin^2 t + \cos^2 t) | \frac{(E)!}{((E)-1)!} | x = E | E = E | y = E = E
\boxed{E} | $E$ | \(E\) | \[E\] | E. | E, | \text{E} | \mathrm{E} | \mbox{E} | \displaystyle E | E \text{ units}
\text{the value } E | E \approx E | \text{simplified: } E | E \quad | \, E \, | ~E | \left. E \right.
(E)\% \cdot 100 | 100(E)\% | E \text{ or } E | E^{\circ}"""


def spelled(old: str, new: str) -> Rewrite:
    """Every place of a pattern written otherwise."""
    return lambda expression: re.sub(old, new, expression)


def inserted(template: str) -> Rewrite:
    """The expression in the place of E."""
    return lambda expression: re.sub(r"(?<![A-Za-z\\])E(?![A-Za-z])", lambda _: expression, template)


def on_numbers(change: Callable[[int], str]) -> Rewrite:
    """The first integer written otherwise."""
    return lambda expression: re.sub(r"(?<![0-9.])[0-9]+(?![0-9.])", lambda m: change(int(m[0])), expression, count=1)


def swapped(sign: str) -> Rewrite:
    """The terms or factors in the other order, where there are two."""

    def swap(expression: str) -> str:
        depth = 0
        for place, character in enumerate(expression):
            depth += (character in "({[") - (character in ")}]")
            if depth == 0 and place and expression.startswith(sign, place):
                one, other = expression[:place].strip(), expression[place + len(sign) :].strip()
                lead = "" if other.startswith(("-", "+")) else " "
                return f"{other}{sign}{lead}{one}" if sign == "+" else f"{other} {sign} {one}"
        return expression

    return swap


IDLE: Mapping[str, Rewrite] = {
    "as it is": lambda expression: expression,
    **{template: inserted(template) for template in re.split(r" \| |\n", TEMPLATES)},
    "dfrac": spelled(r"\\frac", r"\\dfrac"),
    "slash": spelled(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)/(\2)"),
    "negative power": spelled(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)(\2)^{-1}"),
    "over": spelled(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"{\1 \\over \2}"),
    "power of a half": spelled(r"\\sqrt\{([^{}]*)\}", r"(\1)^{1/2}"),
    "power of 0.5": spelled(r"\\sqrt\{([^{}]*)\}", r"(\1)^{0.5}"),
    "root named 2": spelled(r"\\sqrt\{", r"\\sqrt[2]{"),
    "plain root": spelled(r"\\sqrt\{([^{}]*)\}", r" sqrt(\1)"),
    "sign of a root": spelled(r"\\sqrt\{([^{}]*)\}", r"√(\1)"),
    "0 in a root": spelled(r"\\sqrt\{", r"\\sqrt{0+"),
    "1 in a root": spelled(r"\\sqrt\{", r"\\sqrt{1\\cdot "),
    "other binomial": spelled(r"\\d?binom\{(\w+)\}\{(\w+)\}", r"\\binom{\1}{\1-\2}"),
    "factorials": spelled(r"\\d?binom\{(\w+)\}\{(\w+)\}", r"\\frac{\1!}{\2!(\1-\2)!}"),
    "choose": spelled(r"\\d?binom\{(\w+)\}\{(\w+)\}", r"{\1 \\choose \2}"),
    "times": spelled(r"\\cdot", r"\\times "),
    "star": spelled(r"\\cdot|\\times", "*"),
    "no sign of a product": spelled(r"\\cdot|\\times", ""),
    "double star": spelled(r"\^", "**"),
    "braces": spelled(r"([0-9]+)", r"{\1}"),
    "brackets": spelled(r"([0-9]+)", r"(\1)"),
    "spaces": spelled(r"(?<=[-+=)}])", " "),
    "thin spaces": spelled(r"(?<=[-+=)}])", r"\\,"),
    "left and right": spelled(r"(?<!\\left)\(([^()]*)(?<!\\right)\)", r"\\left(\1\\right)"),
    "square brackets": spelled(r"\(([^()]*)\)", r"[\1]"),
    "terms swapped": swapped("+"),
    "factors swapped": swapped(r"\cdot"),
    "powers unrolled": spelled(r"\(([^()]*)\)\^\{?2\}?", r"(\1)(\1)"),
    "powers as roots": spelled(r"\(([^()]*)\)\^\{?2\}?", r"\\sqrt{(\1)^4}"),
    "number.0": on_numbers(lambda n: f"{n}.0"),
    "number/1": on_numbers(lambda n: rf"\frac{{{n}}}{{1}}"),
    "number as a sum": on_numbers(lambda n: f"({n - 1}+1)"),
    "number as a product": on_numbers(
        lambda n: rf"(2\cdot {n // 2})" if n % 2 == 0 else rf"(3 \cdot \frac{{{n}}}{{3}})"
    ),
    "number as a half": on_numbers(lambda n: rf"\frac{{{2 * n}}}{{2}}"),
    "number to the 1st": on_numbers(lambda n: f"{n}^1"),
    "number as a root": on_numbers(lambda n: rf"\sqrt{{{n * n}}}"),
    "fraction doubled": spelled(r"\\d?frac\{([0-9]+)\}\{([0-9]+)\}", r"\\frac{2\\cdot \1}{2\\cdot \2}"),
    "fraction of decimals": spelled(r"\\d?frac\{([0-9]+)\}\{([0-9]+)\}", r"\\frac{\1.0}{\2.0}"),
}
HONEST: Mapping[str, Rewrite] = {
    "as it is": lambda gold: gold,
    "dollars": lambda gold: f"${gold}$",
    "a full stop": lambda gold: f"{gold}.",
    "brackets": lambda gold: f"({gold})",
    "a name": lambda gold: f"x = {gold}",
    "dfrac": spelled(r"\\frac", r"\\dfrac"),
    "slash": spelled(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)/(\2)"),
    "bare slash": spelled(r"\\d?frac\{([0-9]+)\}\{([0-9]+)\}", r"\1/\2"),
    "plain root": spelled(r"\\sqrt\{([^{}]*)\}", r" sqrt(\1)"),
    "spaces": spelled(r"(?<=[-+=)}])", " "),
    "thin spaces": spelled(r"(?<=[-+=)},])", r"\\,"),
    "left and right": spelled(r"(?<!\\left)\(([^()]*)(?<!\\right)\)", r"\\left(\1\\right)"),
    "explicit product": spelled(r"(?<=[0-9])(?=\\sqrt|\\pi|[a-z])", r" \\cdot "),
    "terms swapped": swapped("+"),
    "decimal": lambda gold: decimal(gold),
    "thousands": spelled(r"^([0-9]+)([0-9]{3})$", r"\1,\2"),
    "degrees": spelled(r"^([0-9]+)$", r"\1^\\circ"),
    "units": lambda gold: rf"{gold} \text{{ units}}",
    "power of a half": spelled(r"\\sqrt\{([0-9]+)\}", r"\1^{1/2}"),
}


def decimal(gold: str) -> str:
    """A fraction that ends as a decimal, such as 1/4."""
    found = re.fullmatch(r"\\d?frac\{([0-9]+)\}\{([0-9]+)\}", gold)
    if not found or 10**6 % int(found[2]):
        return gold
    return str(int(found[1]) / int(found[2]))


def paid(answer: str, gold: str, problem: str, prompt: Literal["boxed", "r1_zero"] = "boxed") -> bool:
    """Whether the reward pays the answer."""
    example = Example("", "", {"problem": problem, "answer": gold})
    return reward(FORMS[prompt].format(answer), example, OPTIONS[prompt]).parts["answer"] == 1


def agree(gold: str, answer: str, seconds: float = 60.0) -> bool:
    """Whether the comparison alone says so, in time."""
    try:
        with bounded(seconds):
            return answers_agree(gold, answer)
    except OutOfTime:
        return False


def main() -> None:
    """Print what is paid unduly, what is refused, and both counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a JSON list of rows with problem and answer")
    rows = json.loads(parser.parse_args().data.read_text())
    math_verify()
    idle, unduly, honest, refused = 0, Counter[str](), 0, Counter[str]()
    for number, row in enumerate(rows):
        doing(f"problem {number + 1} of {len(rows)}")
        problem, gold = row["problem"], str(row["answer"])
        for expression in filter(lambda one: agree(gold, one, 3.0), expressions(problem)):
            if same_text(gold, expression) or re.fullmatch(r"[-+]?[0-9.,]+", NO_NUMBER.sub("", expression)):
                continue  # the reference itself, or a number, which may be what is asked for
            for name, rewrite in IDLE.items():
                answer = rewrite(expression)
                if name == "as it is" or answer != expression:
                    idle += 1
                    if paid(answer, gold, problem):
                        unduly[name] += 1
                        print(f"idle, paid | {number} | {gold} | {expression} | {answer}")
        for name, rewrite in HONEST.items():
            answer = rewrite(gold)
            if (name == "as it is" or answer != gold) and paid(answer, gold, ""):
                honest += 1
                if not paid(answer, gold, problem):
                    refused[name] += 1
                    print(f"right, refused | {number} | {gold} | {answer} | {problem[:100]!r}")
    print(f"\nidle rewrites paid: {unduly.total()} of {idle}; by way: {dict(unduly.most_common())}")
    print(f"right answers refused: {refused.total()} of {honest}; by way: {dict(refused.most_common())}")


if __name__ == "__main__":
    main()
