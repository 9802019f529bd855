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
from dataclasses import dataclass
from typing import Annotated, Any

from minrl.dataflow import Example, Reward, require
from minrl.tasks.answers import last_boxes
from minrl.tasks.data import Row, Source, answer_text, dataset_of, identity
from minrl.tasks.grader import OutOfTime, bounded
from minrl.tasks.math_answers import answers_agree
from minrl.tasks.task import Dataset, HeldOut, TaskOptions, chat, filled, prompt_file, weighted
from minrl.tasks.thoughts import after_thoughts, turn
from minrl.utils.settings import Bound, PathOrName, Positive

BOXED = r"Reason step by step, and put the final answer in \boxed{}."
TEXTS = {
    "r1_zero": (
        "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The "
        "Assistant first thinks about the reasoning process in the mind and then provides the User with the answer. "
        "The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> "
        "tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.\n"
        "User: {problem}\nAssistant: <think>"
    ),
    "tagged": (
        "The user asks a question and the assistant solves it. The assistant first thinks and then gives the answer: "
        "the thoughts stand inside <think> </think>, the answer alone inside <answer> </answer>, as in <think> "
        "thoughts </think> <answer> answer </answer>.\nUser: {problem}\nAssistant: <think>"
    ),
}
"""Prompts for models without a chat format. r1_zero is the template of DeepSeek-R1-Zero (arXiv:2501.12948, table 1) as
Dr. GRPO prints it (github.com/sail-sg/understand-r1-zero), word for word.
"""
MAX_ANSWER_CHARACTERS = 4000
"""Longer answers are wrong without a comparison."""


@dataclass(frozen=True, kw_only=True)
class MathOptions(TaskOptions):
    """Which problems are posed, how, and how they are paid."""

    prefix = "math."
    dataset: str = "DigitalLearningGmbH/MATH-lighteval"
    """Hub name of a dataset with the columns problem and answer (or solution, which ends in a box)."""
    configuration: str = ""
    """Configuration of that dataset. Empty: its default."""
    train_split: str = "train"
    """Its split to train on. Empty: none, for data that is for evaluation only, such as HuggingFaceH4/MATH-500."""
    test_split: str = "test"
    """Its held-out split."""
    prompt: PathOrName = "boxed"
    """boxed: chat messages that ask for a box. r1_zero: the published text that ends in <think>, for models without
    chat format; its completions end with </answer>, and only `</think> <answer>` with one space is its form. tagged: a
    text that asks for the same with other words. Or a file whose text has {problem}: like r1_zero if it has <answer>,
    else like boxed."""
    answer_weight: Positive = 0.9
    """Weight of the answer being right."""
    format_weight: Annotated[float | None, Bound(least=0)] = None
    """Weight of the form that the prompt asks for. None: 0.1, and 0 of r1_zero, as published."""
    timeout_s: Positive = 2.0
    """Seconds of processor time to compare an answer with the reference; then it is wrong."""
    held_out_share: HeldOut = 0.2
    """Share of the problems that is never trained on, for a local file without splits. 1: evaluation only."""


DEFAULTS = MathOptions()


def reward(completion: str, example: Example, options: MathOptions = DEFAULTS) -> Reward:
    """The form and the answer, by their weights. An answer is read from the right form only."""
    form, _ = form_of(options.prompt)
    answer, problem = ANSWERS[form](completion), str(example.fields.get("problem") or "").strip()
    given = answer.replace(problem, " ") if answer and problem else answer
    verdicts = [judged(given, gold, problem, options.timeout_s) for gold in gold_answers(example.fields) if given]
    late = True not in verdicts and None in verdicts
    parts = {"answer": float(True in verdicts), "format": float(answer is not None), "timeout": float(late)}
    default = 0.0 if form == "r1_zero" else 0.1
    weight = default if options.format_weight is None else options.format_weight
    return weighted(parts, {"answer": options.answer_weight, "format": weight})


@functools.lru_cache(maxsize=4096)
def judged(answer: str, gold: str, problem: str, timeout_s: float) -> bool | None:
    """Whether the answer agrees with the reference; None if it takes too long. A group often has the same answer."""
    if len(answer) > MAX_ANSWER_CHARACTERS:
        return False
    warm()  # imported before the clock runs
    try:
        with bounded(timeout_s):
            return answers_agree(gold, answer, problem)
    except OutOfTime:
        return None


def boxed_answer(completion: str) -> str | None:
    """What the last box after the thoughts holds, with the boxes that are listed with it."""
    return ", ".join(dict.fromkeys(last_boxes(after_thoughts(completion)))) or None


def r1_zero_answer(completion: str) -> str | None:
    """The answer of a completion in the published form, which `r1_zero_reward_fn` of Dr. GRPO's code reads: tags with
    one space between them, and the text behind the last `<answer>`, or the box in it.

    >>> r1_zero_answer("1 + 1 </think> <answer> 2 </answer>"), r1_zero_answer("</think>\\n<answer> 2 </answer>")
    ('2', None)
    """
    if "</think> <answer>" not in completion or "</answer>" not in completion:
        return None
    answer = completion.rpartition("<answer>")[2].replace("</answer>", "")
    return (boxed_answer(answer) or "") if r"\boxed" in answer else answer.strip()


def tagged_answer(completion: str) -> str | None:
    """The answer of a completion that is thoughts and answer and nothing else. The prompt may have opened the thoughts.

    >>> tagged_answer("1 + 1 </think>\\n<answer> 2 </answer>"), tagged_answer("</think> <answer> 2 </answer> or 3")
    ('2', None)
    """
    thoughts, closed, rest = completion.strip().removeprefix("<think>").partition("</think>")
    found = re.fullmatch(r"<answer>((?:(?!think>|</?answer>).)*)</answer>", turn(rest).strip(), re.DOTALL)
    if not closed or not found or re.search("<think>|</?answer>", thoughts):
        return None
    return boxed_answer(found[1]) or found[1].strip()


ANSWERS = {"boxed": boxed_answer, "r1_zero": r1_zero_answer, "tagged": tagged_answer}


@functools.cache
def form_of(prompt: str) -> tuple[str, str]:
    """The form of the answers to a prompt, a key of ANSWERS, and its text; the text is empty for chat messages."""
    if prompt in ANSWERS:
        return prompt, TEXTS.get(prompt, "")
    text = prompt_file("math.prompt", prompt, ANSWERS)
    return "r1_zero" if "<answer>" in text else "boxed", text


def gold_answers(row: Row) -> list[str]:
    """The references, any of which is right: `answer`, a text or a list, or what the last boxes of `solution` hold."""
    answer = row.get("answer")
    if answer is None or not str(answer).strip():
        answer = boxed_answer(str(row.get("solution") or ""))
        require(answer is not None, "needs `answer`, or a `solution` with its answer in \\boxed{}")
    answers = list(map(answer_text, answer if isinstance(answer, list) else [answer]))
    require(bool(answers) and all(map(str.strip, answers)), "`answer` is an empty list or has an empty answer")
    return answers


@functools.cache
def warm() -> None:
    """Load the library and let it read once, which takes a second or more. A worker asks for it with every job."""
    answers_agree("x+1", "1+x")


def dataset(options: MathOptions) -> Dataset:
    """The problems of the dataset, in its own split, or of a local copy."""
    splits = {"train": options.train_split, "held_out": options.test_split}
    splits = {name: split for name, split in splits.items() if split}
    source = Source(options.dataset, ("problem",), splits, options.configuration or None)
    _, text = form_of(options.prompt)

    def example_of(row: Row) -> Example:
        problem, answers = row["problem"], gold_answers(row)
        require(isinstance(problem, str), f"`problem` must be a text, got {type(problem).__name__}")
        prompt = filled(text, problem) if text else chat(BOXED, problem)
        level = str(row.get("level") or "").removeprefix("Level ")
        category = {"subject": str(row.get("subject") or row.get("type") or ""), "level": level}
        fields = {"problem": problem, "answer": answers if len(answers) > 1 else answers[0]}
        return Example(identity(problem), prompt, fields, {name: value for name, value in category.items() if value})

    return dataset_of(source, options.data_path, example_of, options.held_out_share)


def more(options: MathOptions) -> dict[str, Any]:
    """The end of a completion of r1_zero, and what else the task has."""
    form, _ = form_of(options.prompt)

    def solution(example: Example) -> str:
        answer = gold_answers(example.fields)[0]
        return rf"\boxed{{{answer}}}" if form == "boxed" else f"</think> <answer> {answer} </answer>"

    def notes() -> tuple[str, ...]:
        found = importlib.util.find_spec("math_verify") is not None
        require(found, "the math task needs the math-verify library: pip install math-verify, or MinRL's extra math")
        return ()

    stop = ("</answer>",) if form == "r1_zero" else ()
    return {"warm": warm, "solution": solution, "notes": notes, "stop_strings": stop}
