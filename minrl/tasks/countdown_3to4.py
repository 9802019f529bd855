"""Countdown as others published it: the rows of Jiayi-Pan/Countdown-Tasks-3to4, three or four numbers and a target.

    nums [44, 19, 35] target 98    ->    44 and 35 are 79, and 19 more ... </think> <answer> 44 + 19 + 35 </answer>

`RECIPES` has the prompt and the pay of each project that trained on them. Right is, in all of them, an expression with
each number once, of + - * / and parentheses, within 1e-5 of the target. It is computed in exact fractions from its
syntax tree, where the projects call `eval`. So a decimal point and `**` are paid nothing here, and the form is paid
only around an expression of numbers that were given.

The split goes by the numbers, as in `countdown`: theirs go by rows, and all targets of one set of numbers are on one
side here.
"""

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from minrl.dataflow import Example, Reward, require
from minrl.tasks.countdown import evaluate_expression, numbers_of
from minrl.tasks.data import Row, Source, dataset_of
from minrl.tasks.task import Dataset, HeldOut, TaskOptions, extract_answer, weighted
from minrl.tasks.thoughts import CLOSED, OPENED

SOURCE = Source("Jiayi-Pan/Countdown-Tasks-3to4", ("target", "nums"))
TOLERANCE = Fraction(1, 100_000)

OPENING = "Let me solve this step by step.\n<think>"
CHATML = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{opening}"
"""The conversation as the chat template of Qwen 2.5 writes it, and the beginning of the answer: a text, since a chat
template ends where the answer begins."""

USER = (
    "Using the numbers {numbers}, create an equation that equals {target}. You can use basic arithmetic operations "
    "(+, -, *, /) and each number can only be used once. Show your work in <think> </think> tags. And return the final "
    "answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
)
NANO_USER = (
    "Using the numbers {numbers}, create an equation that equals {target}. You can use basic arithmetic operations "
    "(+, -, *, /) and each number can only be used once. Show your work in <think> </think> tags. And return the final "
    "equation and answer in <answer> </answer> tags, for example <answer>(1 + 2) / (3 * 5)</answer>."
)
MINI_USER = (
    "Using the numbers {numbers}, create an equation that equals {target}. You can use basic arithmetic operations "
    "(+, -, *, /) one or multiple times but each number can only be used once. Show your work in <think> </think> "
    "tags. And return the final equation in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>. Think "
    "step by step inside <think> tags."
)
BASE = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer.\n"
    f"User: {USER}\nAssistant: {OPENING}"
)
THINKS = "You are a helpful assistant. You first {}."
THIRD_PERSON = THINKS.format(
    "thinks about the reasoning process in the mind and then provides the user with the answer"
)
IN_THE_MIND = THINKS.format("think about the reasoning process in the mind and then provide the user with the answer")
IN_YOUR_MIND = THINKS.format("think about the reasoning process in your mind and then provide the user with the answer")

_WHOLE = re.compile(r"\s*(?:<think>)?[^<]*(?:<(?!/?think>|/?answer>)[^<]*)*</think>\s*<answer>[^<]*</answer>\s*")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a project asks and pays."""

    prompt: str
    """With {numbers} and {target}."""
    answer_weight: float
    format_weight: float
    whole: bool = True
    """Whether the form is thoughts, the answer and nothing else; if not, the one answer has it wherever it stands."""
    aligned: bool = False
    """Whether the numbers are written as numpy does, right-aligned and without commas."""

    def ask(self, numbers: Sequence[int], target: int) -> str:
        """The prompt of a problem."""
        shown = str(list(numbers))
        if self.aligned:
            width = max(len(str(number)) for number in numbers)
            shown = f"[{' '.join(str(number).rjust(width) for number in numbers)}]"
        return self.prompt.format(numbers=shown, target=target)


def _chatml(system: str, user: str) -> str:
    return CHATML.format(system=system, user=user, opening=OPENING)


RECIPES = {
    # github.com/Jiayi-Pan/TinyZero, examples/data_preprocess/countdown.py and verl/utils/reward_score/countdown.py
    "tinyzero": Recipe(prompt=BASE, answer_weight=0.9, format_weight=0.1, whole=False),
    "tinyzero_instruct": Recipe(
        prompt=_chatml(THIRD_PERSON, f" {USER}"), answer_weight=0.9, format_weight=0.1, whole=False
    ),
    # github.com/McGill-NLP/nano-aha-moment, nano_r1_script.py
    "nano_aha_moment": Recipe(prompt=_chatml(IN_THE_MIND, NANO_USER), answer_weight=1.0, format_weight=1.0),
    # github.com/policy-gradient/GRPO-Zero, countdown_task.py
    "grpo_zero": Recipe(prompt=_chatml(IN_YOUR_MIND, USER), answer_weight=1.0, format_weight=0.1, aligned=True),
    # github.com/philschmid/deep-learning-pytorch-huggingface, training/scripts/run_r1_grpo.py
    "mini_r1": Recipe(prompt=_chatml(THIRD_PERSON, MINI_USER), answer_weight=1.0, format_weight=1.0),
}


@dataclass(frozen=True, kw_only=True)
class Countdown3to4Options(TaskOptions):
    """How the problems are posed and rewarded."""

    prefix = "countdown_3to4."
    recipe: Literal["tinyzero", "tinyzero_instruct", "nano_aha_moment", "grpo_zero", "mini_r1"] = "tinyzero"
    """Whose prompt and pay. All but tinyzero, which is a text for base models, write the chat of Qwen 2.5."""
    held_out_share: HeldOut = 0.2
    """Share of the problems that is never trained on."""


def reward(completion: str, example: Example, recipe: Recipe) -> Reward:
    """The answer and the form, by the recipe's weights. A right answer counts as solved whatever its form, also behind
    a thought of the prompt that is never closed, as published.

    >>> example = Example("3,5,7=9", "", {"numbers": [3, 7, 5], "target": 9})
    >>> reward("7 + 5 is 12 </think> <answer> 7 + 5 - 3 </answer>", example, RECIPES["mini_r1"]).value
    1.0
    """
    said = completion if CLOSED in completion else completion.removeprefix(OPENED)
    answer, numbers = extract_answer(said) or "", Counter(example["numbers"])
    parsed = evaluate_expression(answer, exact=True)
    correct = formed = False
    if parsed is not None:
        value, used = parsed
        correct = Counter(used) == numbers and abs(value - example["target"]) < TOLERANCE
        formed = Counter(used) <= numbers and (not recipe.whole or _WHOLE.fullmatch(completion) is not None)
    parts = {"correct": float(correct), "format": float(formed)}
    weights = {"correct": recipe.answer_weight, "format": recipe.format_weight}
    return Reward(weighted(parts, weights).value, parts, full=correct)


def dataset(options: Countdown3to4Options) -> Dataset:
    """The problems of the dataset, or of a local copy, split by their numbers."""
    recipe = RECIPES[options.recipe]

    def example_of(row: Row) -> Example:
        target, numbers = _read(row["target"]), _read(row["nums"])
        require(_is_natural(target), f"`target` must be an integer from 0, got {target!r:.60}")
        require(
            isinstance(numbers, list) and len(numbers) > 1 and all(map(_is_natural, numbers)),
            f"`nums` must be a list of two integers from 0 or more, got {numbers!r:.60}",
        )
        fields, category = {"numbers": numbers, "target": target}, {"numbers": str(len(numbers))}
        identity = f"{','.join(map(str, sorted(numbers)))}={target}"
        return Example(identity, recipe.ask(numbers, target), fields, category)

    return dataset_of(SOURCE, options.data_path, example_of, options.held_out_share, numbers_of)


def rewarding(options: Countdown3to4Options) -> Callable[[str, Example], Reward]:
    """The reward of the recipe."""
    return functools.partial(reward, recipe=RECIPES[options.recipe])


def more(_: Countdown3to4Options) -> dict[str, Any]:
    """What else the task has."""
    return {"cheap": True}


def _read(value: Any) -> Any:  # noqa: ANN401 - whatever the row says
    """A value of a row; in a CSV file it is a text."""
    return json.loads(value) if isinstance(value, str) else value


def _is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
