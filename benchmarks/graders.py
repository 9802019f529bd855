r"""Is `--task math` paid as it should be: equal and unequal rewrites of references, restated problems, math-verify?

    python benchmarks/graders.py --data-path math500.json --cases grading_cases.jsonl

Without `--data-path` (a JSON list of rows with problem and answer) the references are those of tests/answer_golds.py.

- equal, unequal: each reference in the ways of tests/answer_rewrites.py. At least 98.5 % of the equal ones and at most
  0.5 % of the unequal ones should be paid.
- restated: each expression of a problem that has the reference's value, such as `\binom{17}{9}` for 24310, in the ways
  of `RESTATED`, which leave the work undone. At most 4 % should be paid.
- cases: rows with gold and pred. math should agree with math-verify's own verdict on 99 % of those that are an answer,
  or have one in a box, and name no other value.
"""

import argparse
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from harness import ROOT, doing

from minrl.tasks.grader import OutOfTime, bounded
from minrl.tasks.math import MathOptions, reward
from minrl.tasks.math_answers import answers_agree, expressions, hedges, math_verify, normal, same_text
from minrl.types import Example

sys.path.insert(0, str(ROOT / "tests"))
from answer_golds import GOLDS
from answer_rewrites import EQUAL, UNEQUAL, pairs

OPTIONS = MathOptions(timeout_s=5.0)
UNITS = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}|[\s^(){}]")
Rewrite = Callable[[str], str]
Case = tuple[str, str, str, str]
"""Kind, problem, reference, answer."""

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


RESTATED: Mapping[str, Rewrite] = {
    "as it is": lambda expression: expression,
    **{template: inserted(template) for template in re.split(r" \| |\n", TEMPLATES)},
    "dfrac": spelled(r"\\frac", r"\\dfrac"),
    "slash": spelled(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)/(\2)"),
    "negative power": spelled(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)(\2)^{-1}"),
    "power of a half": spelled(r"\\sqrt\{([^{}]*)\}", r"(\1)^{1/2}"),
    "plain root": spelled(r"\\sqrt\{([^{}]*)\}", r" sqrt(\1)"),
    "sign of a root": spelled(r"\\sqrt\{([^{}]*)\}", r"√(\1)"),
    "other binomial": spelled(r"\\d?binom\{(\w+)\}\{(\w+)\}", r"\\binom{\1}{\1-\2}"),
    "factorials": spelled(r"\\d?binom\{(\w+)\}\{(\w+)\}", r"\\frac{\1!}{\2!(\1-\2)!}"),
    "choose": spelled(r"\\d?binom\{(\w+)\}\{(\w+)\}", r"{\1 \\choose \2}"),
    "times": spelled(r"\\cdot", r"\\times "),
    "brackets": spelled(r"([0-9]+)", r"(\1)"),
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
    "number as a root": on_numbers(lambda n: rf"\sqrt{{{n * n}}}"),
    "fraction doubled": spelled(r"\\d?frac\{([0-9]+)\}\{([0-9]+)\}", r"\\frac{2\\cdot \1}{2\\cdot \2}"),
}


def paid(answer: str, gold: str, problem: str) -> bool:
    """Whether the reward pays the answer; a text without a box is put in one."""
    completion = answer if r"\boxed" in answer else rf"\boxed{{{answer}}}"
    return reward(completion, Example("", "", {"problem": problem, "answer": gold}), OPTIONS).parts["answer"] == 1


def rewritten(rows: list[tuple[str, str]], kinds: Mapping) -> Iterator[Case]:
    """The references of all rows in all ways."""
    for problem, gold in rows:
        yield from ((kind, problem, gold, answer) for kind, _, answer in pairs(kinds, [gold]))


def restated(rows: list[tuple[str, str]]) -> Iterator[Case]:
    """The expressions of the problems that have the reference's value, in all ways; plain numbers may be answers."""
    for problem, gold in rows:
        for expression in expressions(problem):
            if same_text(gold, expression) or re.fullmatch(r"[-+]?[0-9.,]+", UNITS.sub("", expression)):
                continue
            if agree(gold, expression):
                made = {kind: rewrite(expression) for kind, rewrite in RESTATED.items()}
                yield from ((kind, problem, gold, answer) for kind, answer in made.items() if answer != expression)


def agree(gold: str, answer: str) -> bool:
    """Whether the comparison alone says so, in time."""
    try:
        with bounded(3.0):
            return answers_agree(gold, answer)
    except OutOfTime:
        return False


def report(name: str, cases: Iterable[Case], expected: bool, show: int) -> None:
    """Print the share that is paid, and of each kind a few with the other verdict."""
    doing(name)
    verdicts = Counter[bool]()
    other = dict[str, list[str]]()
    for kind, problem, gold, answer in cases:
        verdict = paid(answer, gold, problem)
        verdicts[verdict] += 1
        if verdict != expected:
            other.setdefault(kind, []).append(f"{gold} <- {answer}")
    print(f"\n{name}: {verdicts[True]} of {verdicts.total()} paid, {verdicts[True] / max(1, verdicts.total()):.2%}")
    for kind, found in other.items():
        print(f"  {kind}, {len(found)}: {'  |  '.join(found[:show])}", flush=True)


def report_cases(path: Path) -> None:
    """Print how often math and math-verify agree, and where they do not."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    agreed = compared = 0
    rows = [row for row in rows if is_an_answer(str(row["pred"])) and r"\boxed" not in str(row["gold"])]
    for row in rows:
        golds = [str(gold) for gold in (row["gold"] if isinstance(row["gold"], list) else [row["gold"]])]
        pred = str(row["pred"])
        if all(hedges(normal(gold), normal(pred), gold, pred) for gold in golds):
            continue
        ours, compared = any(paid(pred, gold, "") for gold in golds), compared + 1
        theirs = any(verdict(gold, pred) for gold in golds)
        agreed += ours == theirs
        if ours != theirs:
            print(f"  paid {ours}, by math-verify {theirs}: {row['gold']} <- {pred[-100:]!r}")
    print(f"\ncases: math and math-verify agree on {agreed} of {compared}, {agreed / compared:.1%}")


def is_an_answer(pred: str) -> bool:
    """Whether it is an answer, or a completion with one in a box: prose has none for math."""
    words = re.findall("[A-Za-z]{2,}", re.sub(r"\\\w+", "", pred))
    return not re.search(r"\\\\|<(?:answer|think)", pred) and (r"\boxed" in pred or len(words) < 4)


def verdict(gold: str, pred: str) -> bool:
    """math-verify's own, of the answer as it stands, as a formula or in a box."""
    parse, verify = math_verify()
    forms = [pred, f"${pred}$", rf"$\boxed{{{pred}}}$"]
    return any(verify(parse(one), parse(form)) for one in (gold, f"${gold}$") for form in forms)


def main() -> None:
    """Print each measure, and what has the other verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data-path", type=Path, help="rows with problem and answer, in place of the tests' references"
    )
    parser.add_argument("--cases", type=Path, help="JSONL of gold and pred, to compare with math-verify")
    parser.add_argument("--measures", nargs="+", default=["reference", "equal", "unequal", "restated"])
    parser.add_argument("--show", type=int, default=3, help="answers of each kind with the other verdict")
    options = parser.parse_args()
    math_verify()
    logging.disable(logging.CRITICAL)  # math-verify warns about what it cannot read
    rows = [("", gold) for gold in GOLDS]
    if options.data_path:
        rows = [(row["problem"], str(row["answer"])) for row in json.loads(options.data_path.read_text())]
    references = [("as it is", problem, gold, gold) for problem, gold in rows]
    measures = {
        "reference": (references, True),
        "equal": (rewritten(rows, EQUAL), True),
        "unequal": (rewritten(rows, UNEQUAL), False),
        "restated": (restated(rows), False),
    }
    for name in options.measures:
        report(name, *measures[name], options.show)
    if options.cases:
        report_cases(options.cases)


if __name__ == "__main__":
    main()
