"""Any value of an example as text that is the same in every process.

Texts are equal exactly if the values are: they have no addresses, no set order and no abbreviation.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def stable_text(value: Any, **options: Any) -> str:  # noqa: ANN401 - whatever a task keeps, and what json.dumps takes
    """The value as JSON.

    >>> stable_text({(1, 2): {"b", "a"}, "path": range(2)})
    '{"(1, 2)": ["a", "b"], "path": "range(0, 2)"}'
    """
    return json.dumps(_plain(value), **options)


def digest_of(values: Iterable[Any]) -> str:
    """A hash of the values in order."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(stable_text(value).encode() + b"\n")
    return digest.hexdigest()[:16]


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a task keeps in an example
    """The value in JSON's types."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {_key(key): _plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=json.dumps)
    # The repr of a long array or tensor is abbreviated.
    if hasattr(value, "tolist") and not isinstance(value, type):
        return _plain(value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__"):
        return [type(value).__qualname__, _plain(vars(value))]
    return _ADDRESS.sub("", repr(value))


def _key(key: Any) -> Any:  # noqa: ANN401 - whatever a task keeps in an example
    """The key, or its text if JSON accepts no such keys."""
    return key if key is None or isinstance(key, str | int | float) else _ADDRESS.sub("", str(key))
