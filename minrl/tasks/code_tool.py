"""Products and remainders that nobody computes in the head, and Python to compute them with.

    37 * 58 % 89 =    ->    <tool_call> print ( 37 * 58 % 89 ) </tool_call>    ->    10    ->    <answer> 10 </answer>

The demonstrations for the embedded base model mostly guess. Three of ten call Python, and every second of these answers
with what it printed. What is left to learn is to call, and to believe what comes back.

The split goes by the numbers, in whatever order they are multiplied.
"""

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from minrl.dataflow import Example, Prompt, Reward, require
from minrl.tasks.answers import plain_characters, unwrapped
from minrl.tasks.python_tool import CLOSE, OPEN, WORDS, PythonOptions, tool_message, with_instructions, with_python
from minrl.tasks.task import Task, TaskDefinition, chat, extract_answer, split
from minrl.utils.settings import Bound, Count

INSTRUCTIONS = (
    "Compute the value. All numbers are integers, * multiplies, and % is the remainder of the product before it. Give "
    "the integer alone inside <answer> </answer>."
)
MAX_ANSWER_CHARACTERS = 100
LARGEST_WORD = 999
"""Up to here each number is a word of the embedded base model."""

INTEGER = re.compile(r"[+-]?[0-9]{1,99}")


@dataclass(frozen=True, kw_only=True)
class CodeToolOptions(PythonOptions):
    """Which problems are posed, and how much Python may be used."""

    prefix = "code_tool."
    max_number: Annotated[int, Bound(least=9, most=10**18)] = 99
    """The numbers are drawn from 2 to this one. The embedded base model knows those up to 999."""
    factors: Annotated[int, Bound(least=2, most=20)] = 2
    """How many numbers are multiplied."""
    problems: Count = 2000
    """How many problems are drawn, before repeated ones are left out."""
    held_out_share: Annotated[float, Bound(least=0.01, most=0.99)] = 0.2
    """Share of the problems that is never trained on."""


def reward(completion: str, example: Example) -> Reward:
    """1 for the integer, else 0.

    >>> [reward(said, Example("", "", {"answer": 10})).value for said in ("<answer> 10 </answer>", "It is 10")]
    [1.0, 0.0]
    """
    answer = extract_answer(completion) or ""
    said = unwrapped(plain_characters(answer)) if len(answer) <= MAX_ANSWER_CHARACTERS else ""
    is_integer = INTEGER.fullmatch(said) is not None
    correct = float(is_integer and int(said) == example["answer"])
    return Reward(correct, {"correct": correct, "format": float(is_integer)})


def make(options: CodeToolOptions, data_path: str) -> Task:
    """Problems of so many factors and a modulus."""
    require(not data_path, f"code_tool makes its own problems and takes no --data-path, got {data_path!r}")

    def demonstrations(example: Example, rng: random.Random) -> Sequence[tuple[Prompt, str]]:
        asked, guess = with_instructions(example.prompt, options), rng.randrange(example["modulus"])
        if rng.random() >= 0.3:
            return [(asked, f"<answer> {guess} </answer>")]
        answer = rng.choice((example["answer"], guess))
        call = f"{OPEN} print ( {example['expression']} ) {CLOSE}"
        return [(asked, call), (tool_message(asked, str(example["answer"])), f"<answer> {answer} </answer>")]

    task = with_python(Task(split(_examples(options), options.held_out_share), reward, cheap=True), options)
    if options.max_number > LARGEST_WORD:
        return task
    words = ("*", "%", "=", "<answer>", "</answer>", *WORDS, *map(str, range(options.max_number + 1)))
    return replace(task, demonstrations=demonstrations, vocabulary=words)


def _examples(options: CodeToolOptions) -> Iterator[Example]:
    most, seen = options.max_number, set[str]()
    for number in range(options.problems):
        rng = random.Random(f"code_tool/{number}")
        factors = [rng.randint(2, most) for _ in range(options.factors)]
        modulus = rng.randint(most // 2 + 1, most)
        identity = f"{'*'.join(map(str, sorted(factors)))}%{modulus}"
        if identity in seen:
            continue
        seen.add(identity)
        expression = f"{' * '.join(map(str, factors))} % {modulus}"
        fields = {"expression": expression, "modulus": modulus, "answer": math.prod(factors) % modulus}
        yield Example(identity, chat(INSTRUCTIONS, f"{expression} ="), fields)


TASK = TaskDefinition(CodeToolOptions, make)
