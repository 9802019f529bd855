r"""GSM8K: grade-school arithmetic in words (Cobbe et al. 2021, arXiv:2110.14168).

    A crate holds 12 jars and each jar 1.5 litres. How many litres do 3 crates hold?
    ->    One crate holds 12 * 1.5 = 18 litres, so 3 crates hold 3 * 18 = 54. #### 54

The answer is the number on the `####` line or in `\boxed{}`, outside thoughts. Exact numbers are compared, without
thousands commas, currency, units and percent signs: `50 %` is 50, `1/2` is 0.5. Two different marked numbers are no
answer, nor are words that make another number of it, though the official `#### (\-?[0-9\.\,]+)` reads 5 in `5 million`
and 18 in `18 or 19` and in `18 dozen`, which is paid here if the problem asks for dozens.
"""

import functools
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from minrl.dataflow import Example, Reward, UserError, require
from minrl.models.thoughts import after_thoughts
from minrl.tasks.answers import CHANGES, boxed, plain_characters, unwrapped
from minrl.tasks.data import Row, Source, answer_text, dataset_of, identity
from minrl.tasks.task import Task, TaskDefinition, chat, check_held_out_share, weighted

SOURCE = Source("openai/gsm8k", ("question", "answer"), {"train": "train", "held_out": "test"}, "main")
INSTRUCTIONS = {
    "hashes": "Solve the problem step by step. Then give the answer, a number alone, on a last line: #### number",
    "boxed": r"Solve the problem step by step. Then give the answer, a number alone, in \boxed{}.",
}
MAX_NUMBER_CHARACTERS = 100
"""Longer ones are no answers: Python refuses to read integers of more than 4300 digits."""
_AMOUNT = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)\s*(?:[$€£¥₹]|(?:US\$|USD|EUR|GBP|Rs\.?)(?![A-Za-z]))?\s*(?P<inner>-?)"
    rf"(?P<amount>{_AMOUNT})(?:[eE](?P<exponent>[-+]?[0-9]{{1,2}}))?(?:\s*/\s*(?P<divisor>{_AMOUNT}))?\s*(?P<unit>.*)",
    re.DOTALL,
)
_UNIT = re.compile(r"[%°$€£¥₹¢]?\s*(?:(?:/\s*)?[^\W\d_²³]+(?:[ ./-]+[^\W\d_²³]+)*\.?(?:[²³]|\^[23])?)?\s*(?:\(\D*\))?")
_LATEX = [
    (r"\\(?:(?:display|text)style|[lL]arge|bf|therefore)(?![A-Za-z])|</?[a-z]+>", ""),
    (r"\\(?:text|mbox|textbf|textrm|mathrm|mathbf|boldsymbol|bm|boxed|color\{[a-z]+\})\s*\{([^{}]*)\}", r"\1"),
    (r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}|\\[dt]?frac([0-9])([0-9])(?![0-9])", r"\1\3/\2\4"),
    (r"(?<=[0-9])(?:\{,\}|\\[,!]|[\u00a0\u2009\u202f])(?=[0-9]{3}(?![0-9]))", ","),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\([$%])", r"\1"),
    (r"\\[,;:! ]|\\q?quad(?![A-Za-z])|(?<=[0-9}])~|\\+$", " "),
]
_LABEL = re.compile(r"(?i)^(?:(?:the )?(?:final )?(?:answer|result|total|答案)(?: is)?(?:\s*[:=])?|=(?!=))\s*")
_MARKED = re.compile(r"(?i)####+[ \t]*:?(?:[ \t*]*(?:(?:final )?answer)?[ \t]*:?[ \t*]*\n\s*)?(?!#)([^\n]*)")
"""A number may stand in the line behind a mark that is alone or a heading."""


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
        require(self.correct_weight + self.lenient_weight > 0, "gsm8k must pay for a right answer")

    @property
    def weights(self) -> dict[str, float]:
        """The parts that are paid."""
        return {"correct": self.correct_weight, "format": self.format_weight, "lenient": self.lenient_weight}


DEFAULTS = GSM8KOptions()


def reward(completion: str, example: Example, options: GSM8KOptions = DEFAULTS) -> Reward:
    """1 if the marked answer is the number, else 0, with the default weights."""
    said = after_thoughts(completion)
    gold = gold_number(example["answer"])
    marked = marked_answers(said, str(example.fields.get("question", "")))
    values = {value for value, _ in marked}
    is_bare = all(re.fullmatch(rf"-?(?:{_AMOUNT})", text.strip(" *.")) for _, text in marked)
    last = re.findall(rf"(?:(?<![\w)])-)?(?:{_AMOUNT})", plain_characters(said))[-1:]
    parts = {
        "correct": float(values == {gold}),
        "format": float(len(values) == 1 and is_bare),
        "lenient": float(bool(last) and number(last[0]) == gold),
    }
    return weighted(parts, options.weights)


def gold_number(given: object) -> Fraction:
    """The number that ends a row's `answer`, after `####` if there is one. It may be a number itself."""
    answer = answer_text(given)
    value = number(answer.rpartition("####")[2])
    if value is None:
        raise UserError(f"`answer` must end with `#### number`, got {answer[-60:]!r}")
    return value


def marked_answers(completion: str, question: str = "") -> list[tuple[Fraction, str]]:
    """The numbers that follow `####` or stand in a box, with their text. A heading such as `#### Step 1` is none."""
    texts = [text.partition(r"\boxed")[0].strip() for text in _MARKED.findall(completion)]
    texts = [re.sub(r"^[A-Za-z]{1,2}\s*=", "", text) for text in (*texts, *boxed(completion))]
    return [(value, text) for text in dict.fromkeys(texts) if (value := number(text, question)) is not None]


def number(text: str, question: str = "") -> Fraction | None:
    r"""The exact value of a number, with or without currency, percent sign or unit; None for anything else. A unit
    such as `dozen` is one where the question asks for it.

    >>> [str(number(text)) for text in ("1,234.50 km", "-$3", r"50\%", "1e3", "3/4", "1,00", "12 or 13", "7 dozen")]
    ['2469/2', '-3', '50', '1000', '3/4', 'None', 'None', 'None']
    """
    if len(text) > MAX_NUMBER_CHARACTERS:
        return None
    for pattern, replacement in _LATEX:
        text = re.sub(pattern, replacement, text)
    text = _bare(_LABEL.sub("", _bare(plain_characters(text).rstrip("# ✅✔✓🎉\ufe0f"))))
    text = _bare(re.sub(r"^(?:\[([^][]*)\]|\{([^{}]*)\}|\(([^()]*)\))$", r"\1\2\3", text))
    found = _NUMBER.fullmatch(text)
    if found is None or (found["sign"] and found["inner"]) or not _UNIT.fullmatch(found["unit"]):
        return None
    changed = CHANGES.search(found["unit"])
    if changed and not re.search(rf"how many (?:\w+ )?{changed[0].lower().rstrip('s')}", question.lower()):
        return None
    amount, divisor = (Fraction(part.replace(",", "")) for part in (found["amount"], found["divisor"] or "1"))
    if divisor == 0:
        return None
    value = amount * Fraction(10) ** int(found["exponent"] or 0) / divisor
    return -value if "-" in found["sign"] + found["inner"] else value


def _bare(text: str) -> str:
    return unwrapped(text.lstrip(" *_`").rstrip(" .,;*_`"))


def make(options: GSM8KOptions, data_path: str) -> Task:
    """The problems of the dataset, in its own split, or of a local copy."""

    def example_of(row: Row) -> Example:
        question, answer = row["question"], answer_text(row["answer"])
        require(isinstance(question, str), f"`question` must be a text, got {type(question).__name__}")
        gold_number(answer)
        prompt = chat(INSTRUCTIONS[options.prompt], question)
        return Example(identity(question), prompt, {"question": question, "answer": answer})

    dataset = dataset_of(SOURCE, data_path, example_of, options.held_out_share)

    def solution(example: Example) -> str:
        answer = answer_text(example["answer"]).rpartition("####")[2].strip()
        return f"#### {answer}" if options.prompt == "hashes" else rf"\boxed{{{answer}}}"

    return Task(dataset, functools.partial(reward, options=options), cheap=True, solution=solution)


TASK = TaskDefinition(GSM8KOptions, make)
