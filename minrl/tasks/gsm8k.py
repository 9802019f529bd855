r"""GSM8K: grade-school arithmetic in words (Cobbe et al. 2021, arXiv:2110.14168).

    A crate holds 12 jars and each jar 1.5 litres. How many litres do 3 crates hold?
    ->    One crate holds 12 * 1.5 = 18 litres, so 3 crates hold 3 * 18 = 54. #### 54

The answer is the first number behind `####` or in `\boxed{}`, outside thoughts, as the official `#### (\-?[0-9\.\,]+)`
reads it: `#### 54 = 18 * 3` is 54. Exact numbers are compared, without thousands commas: `1/2` is 0.5. Two marks of
different numbers are no answer, nor is a number with words that make another one of it: the official pattern reads 5 in
`5 million` and 18 in `18 or 19`.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from minrl.dataflow import Example, Prompt, Reward, UserError, require
from minrl.tasks.answers import last_boxes, plain_characters, unwrapped
from minrl.tasks.data import Row, Source, answer_text, dataset_of, identity
from minrl.tasks.task import Dataset, HeldOut, TaskOptions, chat, filled, prompt_file, weighted
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import NotNegative, PathOrName

SOURCE = Source("openai/gsm8k", ("question", "answer"), {"train": "train", "held_out": "test"}, "main")
INSTRUCTIONS = {
    "hashes": "Solve the problem step by step. Then give the answer, a number alone, on a last line: #### number",
    "boxed": r"Solve the problem step by step. Then give the answer, a number alone, in \boxed{}.",
}
_AMOUNT = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,50})(?:\.[0-9]{1,50})?|\.[0-9]{1,50}"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?) ?[$€£]? ?(?P<inner>-?)(?P<amount>{_AMOUNT})(?![.,]?[0-9]|[eE][-+]?[0-9]|[⁰-⁹¹²³])"
    r"(?: ?/ ?(?P<divisor>[1-9][0-9]{0,50}))?(?P<unit>[^=(]*)"
)
_MARKED = re.compile(r"####+[ \t*]*([^#\n]*)")
_LATEX = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\d?frac\{(\d+)\}\{(\d+)\}", r"\1/\2"),
        (r"\{,\}|(?<=\d)\\[,!](?=\d{3})", ","),
        (r"\\(?:text|mbox|mathrm|boxed)\{([^{}]*)\}", r"\1"),
        (r"\\([$%])|\\[,;: !]|~", r"\1"),
    )
]
_LABEL = re.compile(r"^(?:(?:the )?(?:final )?answer(?: is)?:?|[a-z]? ?=) *", re.IGNORECASE)
_CHANGES = re.compile(
    r"\b(?:(?:thousand|[bmtr]+illion|hundred|dozen|crore|lakh)(?:th)?s?|k|half|fold|times|or|minus|plus|squared"
    r"|negative|not|wrong|most|least)\b",
    re.IGNORECASE,
)
"""What makes another number, or none, of the one before it, as far as a bracket or an equals sign."""


@dataclass(frozen=True, kw_only=True)
class GSM8KOptions(TaskOptions):
    """How the problems are posed and paid."""

    prefix = "gsm8k."
    prompt: PathOrName = "hashes"
    """Which form of answer is asked for, hashes or boxed; both are read. Or a file whose text has {problem}."""
    correct_weight: NotNegative = 1.0
    """Weight of the marked answer being the right number."""
    format_weight: NotNegative = 0.0
    """Weight of one number alone being marked, right or wrong: without unit or currency. 0: shown, not paid."""
    lenient_weight: NotNegative = 0.0
    """Weight of the last number anywhere in the completion being right. 0: shown, not paid."""
    held_out_share: HeldOut = 0.2
    """Share of the problems that is never trained on, where the data has no split of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.correct_weight + self.lenient_weight > 0, "gsm8k must pay for a right answer")


DEFAULTS = GSM8KOptions()


def reward(completion: str, example: Example, options: GSM8KOptions = DEFAULTS) -> Reward:
    """1 if the marked answer is the number, else 0, with the default weights."""
    said, gold = plain_characters(after_thoughts(completion)), gold_number(example["answer"])
    texts = [unwrapped(text) for text in (*_MARKED.findall(said), *last_boxes(said)[-1:])]
    marked = {text: value for text in texts if (value := number(text)) is not None}
    last = re.findall(rf"(?:(?<![\w)])-)?(?:{_AMOUNT})", said)[-1:]
    parts = {
        "correct": float({*marked.values()} == {gold}),
        "format": float(len({*marked.values()}) == 1 and all(re.fullmatch(rf"-?(?:{_AMOUNT})", one) for one in marked)),
        "lenient": float(bool(last) and number(last[0]) == gold),
    }
    weights = {"correct": options.correct_weight, "format": options.format_weight, "lenient": options.lenient_weight}
    return weighted(parts, weights)


def gold_number(given: object) -> Fraction:
    """The number that ends a row's `answer`, after `####` if there is one. It may be a number itself."""
    answer = answer_text(given)
    value = number(answer.rpartition("####")[2])
    if value is None:
        raise UserError(f"`answer` must end with `#### number`, got {answer[-60:]!r}")
    return value


def number(text: str) -> Fraction | None:
    r"""The exact value of the number that a text begins with, behind currency or a label; None if there is none.

    >>> [str(number(text)) for text in ("1,234.50 km", "-$3", r"50\%", "3/4", "1,00", "12 or 13", "7 dozen", "7 = 3+4")]
    ['2469/2', '-3', '50', '3/4', 'None', 'None', 'None', '7']
    """
    text = text[:200]
    for pattern, new in _LATEX:
        text = pattern.sub(new, text)
    found = _NUMBER.match(unwrapped(_LABEL.sub("", unwrapped(text))))
    if found is None or (found["sign"] and found["inner"]) or _CHANGES.search(found["unit"]):
        return None
    value = Fraction(found["amount"].replace(",", "")) / Fraction(found["divisor"] or 1)
    return -value if "-" in found["sign"] + found["inner"] else value


def dataset(options: GSM8KOptions) -> Dataset:
    """The problems of the dataset, in its own split, or of a local copy."""
    text = "" if options.prompt in INSTRUCTIONS else prompt_file("gsm8k.prompt", options.prompt, INSTRUCTIONS)

    def example_of(row: Row) -> Example:
        question, answer = row["question"], answer_text(row["answer"])
        require(isinstance(question, str), f"`question` must be a text, got {type(question).__name__}")
        gold_number(answer)
        prompt: Prompt = filled(text, question) if text else chat(INSTRUCTIONS[options.prompt], question)
        return Example(identity(question), prompt, {"question": question, "answer": answer})

    return dataset_of(SOURCE, options.data_path, example_of, options.held_out_share)


def more(options: GSM8KOptions) -> dict[str, Any]:
    """What else the task has."""

    def solution(example: Example) -> str:
        answer = answer_text(example["answer"]).rpartition("####")[2].strip()
        return rf"\boxed{{{answer}}}" if options.prompt == "boxed" else f"#### {answer}"

    return {"cheap": True, "solution": solution}
