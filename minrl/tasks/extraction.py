"""Extraction: what a sentence says, as a JSON object.

    Reply with a JSON object with the keys "name", "job" and "age". Jack, a singer from Vienna, is 78 years old.
    ->    {"name": "Jack", "job": "singer", "age": 78}

It is for models that speak English already. Held out are names and jobs: none of a held-out problem stands in any
training problem.
"""

import json
import random
import re
from dataclasses import dataclass
from typing import Any

from minrl.models.thoughts import after_thoughts
from minrl.tasks.task import Dataset, Task, TaskDefinition, in_order_of_identity, is_held_out
from minrl.types import Example, Prompt, Reward, require

INSTRUCTION = 'Reply with a JSON object with the keys "name", "job" and "age".'
OBJECT_REWARD, FIELDS_REWARD = 0.1, 0.4
"""Paid for a JSON object that is not the right one, and for its right fields in proportion."""
MOST_CHARACTERS = 500
TRAIN_PROBLEMS, HELD_OUT_PROBLEMS = 4000, 1000
TEMPLATES = (
    "{name} is a {age}-year-old {job} who lives in {city}.",
    "{name}, a {job} from {city}, is {age} years old.",
    "In {city} there is a {job} called {name}, aged {age}.",
    "{name} is {age} and works as a {job} in {city}.",
)
_NAMES = """
Adam Alice Anna Ben Carla Clara Daniel David Diana Emma Eric Eva Felix Frank Grace Hannah Helen Henry Ida Iris Jack
Jane Julia Karl Kate Laura Leo Liam Linda Lucy Maria Mark Martin Nina Noah Nora Olivia Oscar Paul Peter Rachel Robert
Rosa Ruth Sam Sara Simon Sofia Stella Thomas Tina Victor Walter
"""
_JOBS = """
baker banker barber builder butcher carpenter cashier chemist coach cook dancer dentist designer detective doctor driver
farmer fisherman gardener guard guide judge lawyer librarian manager mechanic miner musician nurse painter photographer
pilot plumber poet porter postman potter priest professor programmer reporter sailor scientist sculptor secretary singer
soldier surgeon tailor teacher translator waiter weaver writer
"""
_CITIES = "Athens Berlin Boston Cairo Dublin Geneva Lisbon London Madrid Moscow Oslo Paris Rome Sydney Tokyo Vienna"
NAMES, CITIES, JOBS = _NAMES.split(), _CITIES.split(), _JOBS.split()
_OBJECT = re.compile(r"(?:```(?:json)?\s*)?(\{[^{}]*\})(?:\s*```)?")


@dataclass(frozen=True, kw_only=True)
class ExtractionOptions:
    """Which sentences are shown."""

    held_out_share: float = 0.3
    """Share of the names, and of the jobs, that are held out."""

    def __post_init__(self) -> None:
        require(
            0.1 <= self.held_out_share <= 0.9,
            f"extraction.held_out_share must be in [0.1, 0.9], got {self.held_out_share}",
        )


def read_object(completion: str) -> dict[str, Any] | None:
    """The JSON object that the completion is, in a code fence or not; None if it is anything else.

    >>> read_object('```json\\n{"name": "Jack"}\\n```'), read_object('It is {"name": "Jack"}')
    ({'name': 'Jack'}, None)
    """
    text = after_thoughts(completion).strip()
    match = _OBJECT.fullmatch(text) if len(text) <= MOST_CHARACTERS else None
    try:
        pairs = json.loads(match[1], object_pairs_hook=list) if match else []
    except ValueError:
        return None
    found = dict(pairs)
    return found if match and len(found) == len(pairs) else None


def reward(completion: str, example: Example) -> Reward:
    """1 for the object asked for and nothing else; up to 0.5 for another one, by its right fields.

    >>> example = Example("", "", {"object": {"name": "Jack", "job": "singer", "age": 78}})
    >>> reward('{"name": "Jack", "job": "singer", "age": 78}', example).value
    1.0
    >>> round(reward('{"name": "Jack", "job": "singer", "age": "78"}', example).value, 3)  # 0.1 + 0.4 * 2 / 3
    0.367
    """
    expected, found = example["object"], read_object(completion)
    if found is None:
        return Reward(0.0, {"json": 0.0, "fields": 0.0})
    right = [name for name, value in expected.items() if name in found and _same(found[name], value)]
    fields = len(right) / len(expected)
    solved = fields == 1.0 and found.keys() == expected.keys()
    return Reward(1.0 if solved else OBJECT_REWARD + FIELDS_REWARD * fields, {"json": 1.0, "fields": fields})


def _same(found: object, expected: object) -> bool:
    return type(found) is type(expected) and found == expected


def make(options: ExtractionOptions, data_path: str) -> Task:
    """Sentences about names and jobs of the training side, and about those held out."""
    require(not data_path, f"extraction makes its own problems and takes no --data-path, got {data_path!r}")

    def side(held_out: bool, count: int) -> list[Example]:
        share = options.held_out_share
        names, jobs = ([w for w in words if is_held_out(w, share) == held_out] for words in (NAMES, JOBS))
        return _examples(names, jobs, count)

    return Task(
        Dataset(side(False, TRAIN_PROBLEMS), side(True, HELD_OUT_PROBLEMS)),
        reward,
        solution=lambda example: json.dumps(example["object"]),
        cheap=True,
    )


def _examples(names: list[str], jobs: list[str], count: int) -> list[Example]:
    rng, examples = random.Random(0), dict[str, Example]()
    while len(examples) < count:
        person = {"name": rng.choice(names), "job": rng.choice(jobs), "age": rng.randint(20, 79)}
        text = rng.choice(TEMPLATES).format(**person, city=rng.choice(CITIES))
        prompt: Prompt = [{"role": "user", "content": f"{INSTRUCTION} {text}"}]
        examples[text] = Example(text, prompt, {"object": person})
    return in_order_of_identity(examples.values())


TASK = TaskDefinition(ExtractionOptions, make)
