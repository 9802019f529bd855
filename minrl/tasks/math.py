r"""Competition mathematics with answers in LaTeX: MATH (Hendrycks et al. 2021, arXiv:2103.03874), MATH-500, and any
other data with a problem and an answer.

    The roots of $x^2 - 3x + 1$ are $a$ and $b$. What is $\frac{1}{a} + \frac{1}{b}$?
    ->    <think> (a + b) / (a b) = 3 / 1 </think> <answer> 3 </answer>      or      ... so it is \boxed{3}

Answers are compared by `answers_agree` (math_answers.py) in a worker process. One that takes more processor time than
`timeout_s` is wrong and shows as the part `timeout`; one that takes more memory than minrl/tasks/grader.py allows is
paid nothing.
"""

import functools
import importlib.util
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from minrl.dataflow import Example, Reward, UserError, require
from minrl.models.thoughts import after_thoughts, turn
from minrl.tasks.answers import boxes_together
from minrl.tasks.data import Row, Source, answer_text, dataset_of, identity, is_answer
from minrl.tasks.grader import OutOfTime, bounded
from minrl.tasks.math_answers import answers_agree, expressions, math_verify, restates, same_text, symbols
from minrl.tasks.task import Task, TaskDefinition, chat, check_held_out_share, weighted

R1_ZERO = (
    "The user asks a question and the assistant solves it. The assistant first thinks and then gives the answer: the "
    "thoughts stand inside <think> </think>, the answer alone inside <answer> </answer>, as in <think> thoughts "
    "</think> <answer> answer </answer>.\nUser: {problem}\nAssistant: <think>"
)
BOXED = r"Reason step by step, and put the final answer in \boxed{}."
MAX_ANSWER_CHARACTERS = 4000
"""Longer answers are wrong without a comparison, unless the reference is nearly as long."""


@dataclass(frozen=True, kw_only=True)
class MathOptions:
    """Which problems are posed, how, and how they are paid."""

    dataset: str = "DigitalLearningGmbH/MATH-lighteval"
    """Hub name of a dataset with the columns problem and answer (or solution, which ends in a box)."""
    configuration: str = ""
    """Configuration of that dataset. Empty: its default."""
    train_split: str = "train"
    """Its split to train on. Empty: none, for data that is for evaluation only, such as HuggingFaceH4/MATH-500."""
    test_split: str = "test"
    """Its held-out split."""
    prompt: Literal["boxed", "r1_zero"] = "boxed"
    """boxed: chat messages that ask for a box. r1_zero: a text that ends in <think>, for models without chat format."""
    answer_weight: float = 0.9
    """Weight of the answer being right."""
    format_weight: float = 0.1
    """Weight of the form that the prompt asks for."""
    timeout_s: float = 2.0
    """Seconds of processor time to compare an answer with the reference; then it is wrong."""
    held_out_share: float = 0.2
    """Share of the problems that is never trained on, for a local file without splits. 1: evaluation only."""

    def __post_init__(self) -> None:
        check_held_out_share("math", self.held_out_share)
        require(self.timeout_s > 0, f"math.timeout_s must be more than 0, got {self.timeout_s}")
        require(bool(self.test_split), "math.test_split must name the held-out split, such as test")
        require(self.answer_weight > 0, f"math.answer_weight must be more than 0, got {self.answer_weight}")
        require(self.format_weight >= 0, f"math.format_weight must be 0 or more, got {self.format_weight}")

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the parts that are paid."""
        return {"answer": self.answer_weight, "format": self.format_weight}

    @property
    def source(self) -> Source:
        """The dataset of the rows."""
        splits = {"train": self.train_split} if self.train_split else {}
        splits["held_out"] = self.test_split
        return Source(self.dataset, ("problem",), splits, self.configuration or None)


DEFAULTS = MathOptions()


def reward(completion: str, example: Example, options: MathOptions = DEFAULTS) -> Reward:
    """The form and the answer, by their weights. An answer is read from the right form only."""
    answer, golds = ANSWERS[options.prompt](completion), gold_answers(example.fields)
    problem = str(example.fields.get("problem") or "").strip()
    verdicts = [is_right(answer, gold, problem, options.timeout_s) for gold in golds] if answer else []
    late = True not in verdicts and None in verdicts
    parts = {"answer": float(True in verdicts), "format": float(answer is not None), "timeout": float(late)}
    return weighted(parts, options.weights)


def is_right(answer: str, gold: str, problem: str, timeout_s: float) -> bool | None:
    """Whether the answer agrees with the reference and does not only restate the problem; None if it takes too long."""
    if len(answer) > max(MAX_ANSWER_CHARACTERS, 2 * len(gold)):
        return False
    if same_text(gold, answer):
        return True
    require_math_verify()
    math_verify()  # imported before the clock runs
    return judged(answer.replace(problem, " ") if problem else answer, gold, problem, timeout_s)


@functools.lru_cache(maxsize=4096)
def judged(answer: str, gold: str, problem: str, timeout_s: float) -> bool | None:
    """The verdict of `is_right`: a group of completions often has the same answer."""
    try:
        with bounded(timeout_s):
            right = answers_agree(gold, answer, problem)
    except OutOfTime:
        return None
    return right and not (problem and restates(answer, gold, stated(problem, gold, timeout_s)))


def boxed_answer(completion: str) -> str | None:
    """What the last box after the thoughts holds, with the boxes that are listed with it."""
    contents = boxes_together(after_thoughts(completion))
    return ", ".join(contents) if contents else None


def r1_zero_answer(completion: str) -> str | None:
    """The answer of a completion that is thoughts and answer and nothing else. The prompt may have opened the thoughts.

    >>> r1_zero_answer("1 + 1 </think> <answer> 2 </answer>")
    '2'
    >>> r1_zero_answer("</think> <answer> 2 </answer> or 3") is None
    True
    """
    thoughts, closed, rest = completion.strip().removeprefix("<think>").partition("</think>")
    found = re.fullmatch(r"<answer>((?:(?!think>|</?answer>).)*)</answer>", turn(rest).strip(), re.DOTALL)
    if not closed or not found or re.search("<think>|</?answer>", thoughts):
        return None
    return boxed_answer(found[1]) or found[1].strip()


ANSWERS = {"boxed": boxed_answer, "r1_zero": r1_zero_answer}


@functools.lru_cache(maxsize=4096)
def stated(problem: str, gold: str, timeout_s: float) -> tuple[str, ...]:
    """The problem's expressions that have the reference's value, as far as the time limit allows to tell."""
    found: list[str] = []
    with suppress(OutOfTime, MemoryError), bounded(timeout_s):
        found += (one for one in expressions(problem) if symbols(one).total() > 1 and answers_agree(gold, one))
    return tuple(found)


def gold_answers(row: Row) -> list[str]:
    """The references, any of which is right: `answer`, a text or a list, or what the last boxes of `solution` hold."""
    answer = row.get("answer")
    if isinstance(answer, list | tuple):
        require(all(map(is_answer, answer)), "`answer` is a list of more than texts and numbers")
        answers = list(map(str, answer))
        require(bool(answers) and all(map(str.strip, answers)), "`answer` is an empty list or has an empty answer")
        return answers
    if (answer is not None and str(answer).strip()) or not row.get("solution"):
        return [answer_text(row["answer"])]
    contents = boxes_together(str(row["solution"]))
    require(bool(contents), "a row without `answer` needs a `solution` with its answer in \\boxed{}")
    return [", ".join(contents)]


@functools.cache
def warm() -> None:
    """Load the library and let it read once, which takes a second or more. A worker asks for it with every job."""
    require_math_verify()
    answers_agree("x+1", "1+x")


def require_math_verify() -> None:
    """Refuse to start without the library that compares answers."""
    require(
        importlib.util.find_spec("math_verify") is not None,
        "the math task needs the math-verify library: pip install math-verify, or install MinRL with its math extra",
    )


def make(options: MathOptions, data_path: str) -> Task:
    """The problems of the dataset, in its own split, or of a local copy."""

    def example_of(row: Row) -> Example:
        require_math_verify()
        problem = row["problem"]
        require(isinstance(problem, str), f"`problem` must be a text, got {type(problem).__name__}")
        if row.get("answer") is None and row.get("solution") is None:
            raise UserError(f"lacks answer and solution, one of which is needed (it has {', '.join(row)})")
        answers = gold_answers(row)
        require(all(map(str.strip, answers)), "`answer` is empty")
        prompt = chat(BOXED, problem) if options.prompt == "boxed" else R1_ZERO.format(problem=problem)
        level = str(row.get("level") or "").removeprefix("Level ")
        category = {"subject": str(row.get("subject") or row.get("type") or ""), "level": level}
        shown = {name: value for name, value in category.items() if value}
        fields = {"problem": problem, "answer": answers if len(answers) > 1 else answers[0]}
        return Example(identity(problem), prompt, fields, shown)

    dataset = dataset_of(options.source, data_path, example_of, options.held_out_share)

    def solution(example: Example) -> str:
        answer = gold_answers(example.fields)[0]
        return rf"\boxed{{{answer}}}" if options.prompt == "boxed" else f"</think> <answer> {answer} </answer>"

    return Task(dataset, functools.partial(reward, options=options), warm=warm, solution=solution)


TASK = TaskDefinition(MathOptions, make)
