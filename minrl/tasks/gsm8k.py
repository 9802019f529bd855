r"""GSM8K: grade-school arithmetic in words (Cobbe et al. 2021, arXiv:2110.14168).

    A crate holds 12 jars and each jar 1.5 litres. How many litres do 3 crates hold?
    ->    One crate holds 12 * 1.5 = 18 litres, so 3 crates hold 3 * 18 = 54. #### 54

The answer is the number on the `####` line or in `\boxed{}`, outside thoughts such as `<think> ... </think>`. Exact
numbers are compared, in the digits of any script, without thousands commas, currency, units and percent signs (problems
about shares ask "what percent"): `50 %` is 50, `1/2` is 0.5. Two different marked numbers count as no answer.

Where graders differ, the table says what counts. "Official" is the expression `#### (\-?[0-9\.\,]+)` of
openai/grade-school-math (strict in lm-evaluation-harness). "Hendrycks" is the normalisation of the MATH dataset
(arXiv:2103.03874), which drops a left side of at most two characters before `=`.

| marked | number | reason |
| --- | --- | --- |
| `#### 18/day`, `#### 18 per day` | 18 | a unit; official |
| `#### 18 (eighteen)`, `#### 18 (in all)` | 18 | a remark without digits or another number; official |
| `#### 5 million`, `#### 18k`, `#### 18 dozen`, `#### 18 (dozen)` | none | a multiplier; official reads 5, 18 |
| `#### 18 times`, `#### 18 times a week` | 18 | a unit; official |
| `#### 18 times ten`, `#### 18 or nineteen` | none | an operator, a number in words; official reads 18 |
| `#### 18 (or 19)`, `#### 18 (nineteen)` | none | two numbers; official reads 18 |
| `#### 18 quarters` | 18 | coins; official |
| `#### 18 pi` | none | a factor; official reads 18 |
| `#### ~18`, `#### about 18` | none | not exact; none in official too |
| `\boxed{x=18}`, `\boxed{x = 18}` | 18 | Hendrycks |
| `#### = 18`, `#### [18]`, `#### USD 18` | 18 | nothing but the number is said; none in official |
| `#### x = 18` | none | none in official too |
"""

import functools
import re
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from minrl.models.thoughts import after_thoughts
from minrl.tasks.boxed import boxed
from minrl.tasks.changing import CHANGES, ONES, TENS, spoken
from minrl.tasks.characters import plain_characters, unwrapped
from minrl.tasks.rows import Row, Source, answer_text, dataset_of, identity
from minrl.tasks.task import Task, TaskDefinition, chat, check_held_out_share, weighted
from minrl.types import Example, Reward, UserError, require

SOURCE = Source("openai/gsm8k", ("question", "answer"), {"train": "train", "held_out": "test"}, "main")

INSTRUCTIONS = {
    "hashes": "Solve the problem step by step. Then give the answer, a number alone, on a last line: #### number",
    "boxed": r"Solve the problem step by step. Then give the answer, a number alone, in \boxed{}.",
}
MAX_NUMBER_CHARACTERS = 100
"""Longer ones are no answers: Python refuses to read integers of more than 4300 digits."""

MOST_MARKED = 1000
"""More different texts that are marked are no answer: each takes time to read."""

_AMOUNT = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_PLAIN = re.compile(rf"-?(?:{_AMOUNT})")
_CURRENCY = r"(?:[$€£¥₹]|(?:USD|EUR|GBP|INR|CAD|AUD|Rs\.?)(?![A-Za-z])|US\$)"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*{_CURRENCY}?\s*(?P<inner>-?)(?P<amount>{_AMOUNT})(?:[eE](?P<exponent>[-+]?[0-9]{{1,2}}))?"
    rf"(?:\s*/\s*(?P<divisor>{_AMOUNT}))?(?P<rest>.*)",
    re.DOTALL,
)
_REMARK = re.compile(r"\(([^()0-9]*)\)")
_SPELLED = re.compile(rf"(?:{ONES}|{TENS})(?:[ -](?:{ONES}|{TENS}|hundred|thousand|million|and))*", re.IGNORECASE)
"""A number in words."""
_LEFT_SIDE = re.compile(r"^[A-Za-z]{1,2}\s*=")
_UNIT = re.compile(r"\s*[%°$€£¥₹¢]?\s*(?:/(?=[^\W\d_]))?(?P<words>[^%°$€£¥₹¢²³^]*)(?:[²³]|\^[23])?")
_NO_UNIT = re.compile(
    r"\b(?:k|mn|mln|bn|(?-i:[MB])|pairs?"
    r"|mil|mille|mille?ones?|tausend|million(?:en|er)|mio|mrd"
    r"|\u0442\u044b\u0441\w*|\u043c\u043b\u043d|\u043c\u0438\u043b\u043b\u0438\w*"  # thousand and million in Russian
    r"|pi|ppm|fold|couples?|or|oder|times(?= )(?! (?:a|an|per|as|each|every|more)\b))\b"
    r"|[\u03c0\u4e07\u842c\u4ebf\u5104\u5146\u767e\u5341]|\u5343(?![\u514b\u7c73\u74e6])",  # Chinese; kilogram stays
    re.IGNORECASE,
)
"""Words that change the number before them, or are another one, beside `CHANGES`."""
_STYLE = re.compile(
    r"\\(?:display|text)style(?![A-Za-z])|\\(?:[lL]arge|LARGE|[hH]uge|bf|rm|therefore)(?![A-Za-z])|</?(?:b|strong|em|i|u|answer)>"
    r"|\\(?:text)?color\s*\{[A-Za-z]+\}"
)
"""What is said of how a number looks, and tags around it."""
_LATEX = [
    (
        re.compile(r"\\(?:text|mbox|textbf|textrm|textit|mathrm|mathbf|boldsymbol|bm|boxed|underline)\s*\{([^{}]*)\}"),
        r"\1",
    ),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?"), "\u00b0"),
]
_LATEX += [(re.compile(r"\\[dt]?frac\s*([0-9])\s*([0-9])(?![0-9])"), r"\1/\2")]
_LATEX += [(re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2")]
_LATEX += [(re.compile(r"\\([$%])"), r"\1"), (re.compile(r"\$$"), ""), (re.compile(r"\{,\}"), ",")]
_SPACES = [(re.compile(r"\\(?:[,!;:]|\s)|\\+\s*$"), ""), (re.compile(r"\\q?quad(?![A-Za-z])|(?<=[0-9}])\\?~"), " ")]
_ENCLOSED = re.compile(r"\s*(?:=(?!=)\s*)?(?:\[([^\[\]]*)\]|\{([^{}]*)\}|\(([^()]*)\)|([^=].*))", re.DOTALL)
_SATISFIED = re.compile("[\\s\u2705\u2714\u2611\u2713\U0001f389\U0001f44d\U0001f3af\ufe0f]+$")
"""Check marks and the like behind an answer. A cross says that it is wrong."""
_GROUPED = re.compile(r"(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
"""No-break and thin spaces between groups of digits, as in French."""
_LABEL = re.compile(
    r"^(?:(?:the )?(?:final )?(?:answer|result)(?: is:?|:| =|(?= [$0-9]))|(?:\u6700\u7ec8)?\u7b54\u6848(?:\u662f|:)"
    r"|(?:antwort|r[e\u00e9]ponse|respuesta|resposta|risposta|\u043e\u0442\u0432\u0435\u0442) ?:)\s*",
    re.IGNORECASE,
)
_MARKED = re.compile(
    r"####+[ \t]*(?:\**[ \t]*(?:(?:final )?answer)?[ \t]*:?[ \t]*\**[ \t]*\n\s*|:[ \t]+(?=[$\\*0-9-]))?(?!#)([^\n]*)",
    re.IGNORECASE,
)
"""A number may stand in the line behind a mark that is alone or a heading."""
_ANY_NUMBER = re.compile(r"(?:(?<![\w)])[-\u2212])?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)")


@dataclass(frozen=True, kw_only=True)
class GSM8KOptions:
    """How the problems are posed and paid."""

    prompt: Literal["hashes", "boxed"] = "hashes"
    """Which form of answer is asked for; both are read."""
    correct_weight: float = 1.0
    """Weight of the marked answer being the right number."""
    format_weight: float = 0.0
    """Weight of one number alone being marked, right or wrong: without unit or currency. 0: shown, not paid."""
    lenient_weight: float = 0.0
    """Weight of the last number anywhere in the completion being right. 0: shown, not paid."""
    held_out_share: float = 0.2
    """Share of the problems that is never trained on, where the data has no split of its own."""

    def __post_init__(self) -> None:
        check_held_out_share("gsm8k", self.held_out_share)
        for name, weight in self.weights.items():
            require(weight >= 0, f"gsm8k.{name}_weight must be 0 or more, got {weight}")
        require(
            self.correct_weight + self.lenient_weight > 0, "gsm8k must pay for a right answer: raise correct_weight"
        )

    @property
    def weights(self) -> dict[str, float]:
        """The parts that are paid."""
        return {"correct": self.correct_weight, "format": self.format_weight, "lenient": self.lenient_weight}


DEFAULTS = GSM8KOptions()


def reward(completion: str, example: Example, options: GSM8KOptions = DEFAULTS) -> Reward:
    """1 if the marked answer is the number, else 0, with the default weights.

    >>> reward("18 * 3 = 54 #### 54 litres", Example("", "", {"answer": "#### 54"})).parts
    {'correct': 1.0, 'format': 0.0, 'lenient': 1.0}
    """
    said = after_thoughts(completion)
    gold, marked = gold_number(example["answer"]), marked_answers(said)
    values = {value for value, _ in marked}
    parts = {
        "correct": float(values == {gold}),
        "format": float(len(values) == 1 and all(_PLAIN.fullmatch(text) for _, text in marked)),
        "lenient": float(_last_number(said) == gold),
    }
    return weighted(parts, options.weights)


def gold_number(given: object) -> Fraction:
    """The number that ends a row's `answer`, after `####` if there is one. It may be a number itself."""
    answer = answer_text(given)
    value = number(answer.rpartition("####")[2])
    if value is None:
        raise UserError(f"`answer` must end with `#### number`, got {answer[-60:]!r}")
    return value


def marked_answers(completion: str) -> list[tuple[Fraction, str]]:
    """The numbers that follow `####` or stand in a box, with their text. A heading such as `#### Step 1` is none."""
    texts = [text.partition(r"\boxed")[0].strip() for text in _MARKED.findall(completion)]
    texts = list(dict.fromkeys([*texts, *(_LEFT_SIDE.sub("", text) for text in boxed(completion))]))
    if len(texts) > MOST_MARKED:
        return []
    return [(value, text) for text in texts if (value := number(text)) is not None]


def number(text: str) -> Fraction | None:
    r"""The exact value of a number, with or without currency, percent sign or unit; None for anything else.

    >>> [str(number(text)) for text in ("1,234.50 km", "-$3", r"50\%", "1e3", "3/4", "1,00", "12 or 13", "x = 5")]
    ['2469/2', '-3', '50', '1000', '3/4', 'None', 'None', 'None']
    """
    if len(text) > MAX_NUMBER_CHARACTERS:
        return None
    text = _SATISFIED.sub("", plain_characters(_GROUPED.sub("", _STYLE.sub("", text)))).rstrip(" #")
    for pattern, replacement in _SPACES:
        text = pattern.sub(replacement, text)
    text = _bare(_LABEL.sub("", _bare(text)))
    if enclosed := _ENCLOSED.fullmatch(text):
        text = _bare(next(part for part in enclosed.groups() if part is not None))
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    match = _NUMBER.fullmatch(_LABEL.sub("", text.strip()).replace("\u2212", "-").strip())
    if match is None or (match["sign"] and match["inner"]):
        return None
    amount, divisor = (Fraction(part.replace(",", "")) for part in (match["amount"], match["divisor"] or "1"))
    if divisor == 0 or not _is_unit(match["rest"].strip(), amount):
        return None
    value = amount * Fraction(10) ** int(match["exponent"] or 0) / divisor
    return -value if "-" in match["sign"] + match["inner"] else value


def _bare(text: str) -> str:
    return unwrapped(text.lstrip(" *_`").rstrip(" .,;*_`"))


def _is_unit(text: str, value: Fraction) -> bool:
    """Whether a text behind a number is empty, a sign such as %, or words: `miles per hour`, `cm^2`; not `million`,
    `plus two`. The number itself may stand there again in words.
    """
    remark = _REMARK.search(text)
    said = spoken(remark[1].lower()) if remark and _SPELLED.fullmatch(remark[1].strip()) else None
    if remark and _changes(remark[1]) and said != value:
        return False
    text = _REMARK.sub("", text, count=1).strip()
    match = _UNIT.fullmatch(text)
    words = match["words"].strip() if match else ""
    if match is None or (_changes(words) and words.lower() not in ("quarter", "quarters")):
        return False
    return text in "%°$€£¥₹¢" or all(word.rstrip(".").isalpha() for word in re.split(r"[ /-]", words))


def _changes(words: str) -> bool:
    return bool(_NO_UNIT.search(words) or CHANGES.search(words))


def _last_number(completion: str) -> Fraction | None:
    last = deque(_ANY_NUMBER.finditer(plain_characters(completion)), maxlen=1)
    return number(last[0].group().rstrip(",")) if last else None


def make(options: GSM8KOptions, data_path: str) -> Task:
    """The problems of the dataset, in its own split, or of a local copy."""

    def example_of(row: Row) -> Example:
        question, answer = row["question"], answer_text(row["answer"])
        require(isinstance(question, str), f"`question` must be a text, got {type(question).__name__}")
        gold_number(answer)
        return Example(identity(question), chat(INSTRUCTIONS[options.prompt], question), {"answer": answer})

    dataset = dataset_of(SOURCE, data_path, example_of, options.held_out_share)

    def solution(example: Example) -> str:
        answer = answer_text(example["answer"]).rpartition("####")[2].strip()
        return f"#### {answer}" if options.prompt == "hashes" else rf"\boxed{{{answer}}}"

    return Task(dataset, functools.partial(reward, options=options), cheap=True, solution=solution)


TASK = TaskDefinition(GSM8KOptions, make)
