"""Extraction: what a sentence says, as a JSON object.

    Reply with a JSON object with the keys "name", "age" and "children". Jack, a singer from Vienna, is 78
    years old and has 3 children.    ->    {"name": "Jack", "age": 78, "children": 3}

It is for models that speak English already. Held out are names: none of a held-out problem stands in any training
problem.
"""

import json
import random
import re
from dataclasses import dataclass
from typing import Annotated, Any

from minrl.dataflow import Example, Prompt, Reward
from minrl.tasks.task import Dataset, TaskOptions, in_hash_order, is_held_out
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import Bound

INSTRUCTION = 'Reply with a JSON object with the keys "name", "age" and "children".'
KEYS_REWARD, FIELDS_REWARD = 0.1, 0.4
"""Paid for an object that is not the right one: if it has all keys, and for its right fields in proportion."""
MOST_CHARACTERS = 500
TRAIN_PROBLEMS, HELD_OUT_PROBLEMS = 4000, 1000
TEMPLATES = (
    "{name} is a {age}-year-old {job} from {city} with {children} children.",
    "{name}, a {job} from {city}, is {age} years old and has {children} children.",
    "In {city} there is a {job} called {name}, aged {age}, with {children} children.",
    "{name} is {age}, works as a {job} in {city} and has {children} children.",
)
_NAMES = """
Adam Alice Amy Andrew Anna Anthony Ben Brian Carla Carol Charles Claire Daniel David Diana Donald Edward Elizabeth Emily
Emma Eric Eva Frank George Grace Hannah Harry Helen Henry Jack James Jane Jason Jennifer Jessica John Joseph Julia Karen
Kate Kevin Laura Linda Lisa Lucy Maria Mark Martin Mary Matthew Michael Michelle Nancy Nicole Oliver Oscar Patrick Paul
Peter Rachel Rebecca Richard Robert Rose Ruth Ryan Sam Sara Simon Sofia Sophie Stephen Steven Susan Thomas Tina Tom
Victor Walter William
"""
_CITIES = "Athens Berlin Boston Cairo Dublin Geneva Lisbon London Madrid Moscow Oslo Paris Rome Sydney Tokyo Vienna"
_JOBS = "baker carpenter dentist doctor driver farmer gardener lawyer nurse painter pilot singer teacher"
NAMES, CITIES, JOBS = _NAMES.split(), _CITIES.split(), _JOBS.split()
_OBJECT = re.compile(r"(?:```(?:json)?\s*)?(\{[^{}]*\})(?:\s*```)?")


@dataclass(frozen=True, kw_only=True)
class ExtractionOptions(TaskOptions):
    """Which sentences are shown."""

    prefix = "extraction."
    held_out_share: Annotated[float, Bound(least=0.1, most=0.9)] = 0.3
    """Share of the names that are held out."""


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
    """1 for the object asked for and nothing else; up to 0.5 for another one with all its keys, by its right fields.

    A key that is missing pays nothing: a name alone is short and easy, and some runs would learn nothing else.

    >>> example = Example("", "", {"object": {"name": "Jack", "age": 78, "children": 3}})
    >>> reward('{"name": "Jack", "age": 78, "children": 3}', example).value
    1.0
    >>> round(reward('{"name": "Jack", "age": "78", "children": 3}', example).value, 3)  # 0.1 + 0.4 * 2 / 3
    0.367
    >>> reward('{"name": "Jack"}', example).value
    0.0
    """
    expected, found = example["object"], read_object(completion)
    if found is None or not found.keys() >= expected.keys():
        return Reward(0.0, {"keys": 0.0, "fields": 0.0})
    fields = sum(_same(found[name], value) for name, value in expected.items()) / len(expected)
    solved = fields == 1.0 and found.keys() == expected.keys()
    return Reward(1.0 if solved else KEYS_REWARD + FIELDS_REWARD * fields, {"keys": 1.0, "fields": fields})


def _same(found: object, expected: object) -> bool:
    return type(found) is type(expected) and found == expected


def dataset(options: ExtractionOptions) -> Dataset:
    """Sentences about people with names of the training side, and about people with names held out."""
    options.require_no_data("problems")

    def side(held_out: bool, count: int) -> list[Example]:
        return _examples([name for name in NAMES if is_held_out(name, options.held_out_share) == held_out], count)

    return Dataset(side(False, TRAIN_PROBLEMS), side(True, HELD_OUT_PROBLEMS))


def more(_: ExtractionOptions) -> dict[str, Any]:
    """What else the task has."""
    return {"solution": lambda example: json.dumps(example["object"]), "cheap": True}


def _examples(names: list[str], count: int) -> list[Example]:
    rng, examples = random.Random(0), dict[str, Example]()
    while len(examples) < count:
        person = {"name": rng.choice(names), "age": rng.randint(20, 79), "children": rng.randint(2, 9)}
        text = rng.choice(TEMPLATES).format(**person, job=rng.choice(JOBS), city=rng.choice(CITIES))
        prompt: Prompt = [{"role": "user", "content": f"{INSTRUCTION} {text}"}]
        examples[text] = Example(text, prompt, {"object": person})
    return in_hash_order(examples.values())
