"""Strict JSON: null in place of NaN and infinities."""

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: Any, **options: Any) -> str:  # noqa: ANN401 - any JSON value, and what json.dumps takes
    """The value as JSON.

    >>> json_text({"loss": float("nan"), "steps": [1, float("inf")]})
    '{"loss": null, "steps": [1, null]}'
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:  # a number is not finite
        return json.dumps(plain(value), allow_nan=False, **options)


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The value with None for each number that is not finite."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
