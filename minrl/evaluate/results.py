"""The results of an episode's jobs, as a row of completions stores them.

A replay gets the stored results: a program that runs again may return something else, and the episode would continue
differently. Values are JSON's; other types are marked. A dataclass is restored only by the class of its name, which the
task has loaded.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from minrl.utils.text import digest_of

KIND = "__kind__"
"""Marks a dictionary that stands for a value of another type than JSON's."""


class UnknownKindError(TypeError):
    """A value that a row cannot store."""


def packed(results: Sequence[Any], programs: Mapping[str, str]) -> dict[str, Any] | None:
    """The results and a digest of the programs that computed them; None where a result cannot be stored."""
    try:
        return {"programs": digest_of([programs]), "results": [_packed(result) for result in results]}
    except UnknownKindError:
        return None


def of_other_programs(stored: Mapping[str, Any] | None, programs: Mapping[str, str]) -> bool:
    """Whether a row has results of other programs."""
    return stored is not None and stored["programs"] != digest_of([programs])


def unpacked(stored: Mapping[str, Any] | None, programs: Mapping[str, str]) -> list[Any]:
    """The results in a row; none if they are of other programs, which are run again."""
    if stored is None or of_other_programs(stored, programs):
        return []
    return [_unpacked(result) for result in stored["results"]]


def _packed(value: Any) -> Any:  # noqa: ANN401 - whatever a job returned
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is float:
        return {KIND: "float", "value": repr(value)}
    if type(value) is list:
        return [_packed(held) for held in value]
    if type(value) in (tuple, set, frozenset):
        return {KIND: type(value).__name__, "value": [_packed(held) for held in value]}
    if type(value) is dict and all(type(key) is str for key in value) and KIND not in value:
        return {name: _packed(held) for name, held in value.items()}
    name, module = type(value).__qualname__, sys.modules.get(type(value).__module__)
    if dataclasses.is_dataclass(value) and getattr(module, name, None) is type(value):
        held = {field.name: _packed(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {KIND: f"{type(value).__module__}:{name}", "value": held}
    raise UnknownKindError(f"a row keeps no {type(value).__name__}")


KINDS = {"float": float, "tuple": tuple, "set": set, "frozenset": frozenset}


def _unpacked(stored: Any) -> Any:  # noqa: ANN401 - whatever a job returned
    if isinstance(stored, list):
        return [_unpacked(held) for held in stored]
    if not isinstance(stored, dict):
        return stored
    if KIND not in stored:
        return {name: _unpacked(held) for name, held in stored.items()}
    value, kind = _unpacked(stored["value"]), stored[KIND]
    if kind in KINDS:
        return KINDS[kind](value)
    module, _, name = kind.partition(":")
    made: Any = getattr(sys.modules.get(module), name, None)
    if not isinstance(made, type) or not dataclasses.is_dataclass(made):
        raise UnknownKindError(f"a row keeps a {kind}, which the task does not know")
    return made(**value)
