"""What a request asks for: a body in OpenAI's form, checked field by field.

Only what the engines do is taken. A setting that they do not have is refused unless its value changes nothing, such as
`top_p: 1`: an answer is never sampled in another way than was asked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from minrl.models.messages import is_unicode
from minrl.types import Message
from minrl.utils.settings import Bound

SMALLEST_TEMPERATURE, LARGEST_TEMPERATURE = 1e-6, 2.0
TEMPERATURE = Bound(least=SMALLEST_TEMPERATURE, most=LARGEST_TEMPERATURE, zero="greedy")
"""Of a request and of --chat. Logits that are divided by less may be no numbers any more: the engine ends for all."""

MOST_CHOICES = 128
"""Completions of one prompt."""

MOST_PROMPTS = 256
"""Prompts of one request."""

MOST_STOPS = 4

COMPLETION_TOKENS = 16
"""Longest completion where a request for completions sets none, as at OpenAI."""

Given = str | list[Message] | list[int]
"""A prompt: a text, a conversation, or token ids."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
"""Settings that nothing here has, and the values with which they change nothing."""

WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key")
"""What a client may say about itself."""

SHARED = ("model", "max_tokens", "temperature", "n", "stop", "seed", "stream", "stream_options", "logprobs")
OF_CHATS = ("messages", "max_completion_tokens")
OF_TEXTS = ("prompt",)


class ApiError(Exception):
    """A refusal, in the form in which OpenAI's clients read it."""

    def __init__(self, message: str, status: int = HTTPStatus.BAD_REQUEST, param: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    def body(self) -> dict[str, Any]:
        """The error as JSON."""
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        return {
            "error": {"message": self.message, "type": kind, "param": self.param or None, "code": self.code or None}
        }


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request. `max_tokens` 0: as long as the server allows. `seed` None: by chance."""

    chat: bool
    prompts: Sequence[Given]
    model: str = ""
    n: int = 1
    max_tokens: int = 0
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False

    @property
    def choices(self) -> int:
        """The number of completions."""
        return len(self.prompts) * self.n


def read(body: bytes, chat: bool) -> Asked:
    """The request in the body of a chat, or of completions of texts. Raises `ApiError`."""
    values = _values(body)
    known = {*SHARED, *(OF_CHATS if chat else OF_TEXTS), *NEUTRAL, *WITHOUT_EFFECT}
    for name, value in values.items():
        expect(name in known, f"unknown setting {name!r:.80}: leave it out", name, "unknown_parameter")
        neutral = NEUTRAL.get(name)
        allowed = " or ".join(json.dumps(one) for one in neutral or ())
        expect(
            neutral is None or any(value == one and _is_bool(value) == _is_bool(one) for one in neutral),
            f"{name} {_shown(value)} is not supported: leave it out, or give {allowed}",
            name,
            "unsupported_value",
        )
    stream = _switch(values, "stream")
    return Asked(
        chat=chat,
        prompts=[_messages(values.get("messages"))] if chat else _prompts(values.get("prompt")),
        model=_text(values, "model"),
        n=int(_number(values, "n", 1, 1, MOST_CHOICES, whole=True)),
        max_tokens=_limit(values, chat),
        temperature=_temperature(values),
        stop=_stops(values.get("stop")),
        seed=int(_number(values, "seed", 0, -(2**63), 2**64 - 1, whole=True)) if "seed" in values else None,
        stream=stream,
        include_usage=_include_usage(values, stream),
        logprobs=_logprobs(values, chat),
    )


def expect(condition: bool, message: str, param: str = "", code: str = "") -> None:
    """Refuse the request with this message unless the condition holds."""
    if not condition:
        raise ApiError(message, param=param[:80], code=code)


def _values(body: bytes) -> dict[str, Any]:
    """The settings of the body; null is as good as left out."""
    try:
        values = json.loads(body)
    except RecursionError as error:
        raise ApiError("the body is nested too deeply") from error
    except ValueError as error:  # no JSON, no UTF-8, a number of thousands of digits
        raise ApiError(f"the body is not JSON: {error!s:.200}") from error
    expect(isinstance(values, dict), f"the body must be a JSON object, got {_shown(values)}")
    return {name: value for name, value in values.items() if value is not None}


def _number(
    values: Mapping[str, Any], name: str, default: float, least: float, most: float, whole: bool = False
) -> float:
    value = values.get(name, default)
    fits = isinstance(value, int if whole else int | float) and not _is_bool(value) and least <= value <= most
    kind = "a whole number" if whole else "a number"
    expect(fits, f"{name} must be {kind} from {least} to {most}, got {_shown(value)}", name)
    return value


def _temperature(values: Mapping[str, Any]) -> float:
    value = _number(values, "temperature", 1.0, 0.0, LARGEST_TEMPERATURE)
    expect(TEMPERATURE.holds(value), f"temperature must be {TEMPERATURE}, got {_shown(value)}", "temperature")
    return value


def _switch(values: Mapping[str, Any], name: str) -> bool:
    value = values.get(name, False)
    expect(_is_bool(value), f"{name} must be true or false, got {_shown(value)}", name)
    return value


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name, "")
    expect(isinstance(value, str), f"{name} must be a text, got {_shown(value)}", name)
    return value


def _limit(values: Mapping[str, Any], chat: bool) -> int:
    names = ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",)
    given = {int(_number(values, name, 1, 1, 2**31, whole=True)) for name in names if name in values}
    expect(len(given) < 2, "max_tokens and max_completion_tokens are the same limit: give one", "max_tokens")
    return next(iter(given), 0 if chat else COMPLETION_TOKENS)


def _logprobs(values: Mapping[str, Any], chat: bool) -> bool:
    """Whether log-probabilities are asked for: a switch in chats, a number of further tokens otherwise."""
    if chat:
        return _switch(values, "logprobs")
    value = values.get("logprobs", False)
    others = "the engines report the sampled token alone: give 0, or leave it out"
    expect(value is False or (value == 0 and not _is_bool(value)), f"logprobs {_shown(value)}: {others}", "logprobs")
    return value is not False


def _include_usage(values: Mapping[str, Any], stream: bool) -> bool:
    options = values.get("stream_options", {})
    expect(isinstance(options, dict), f"stream_options must be an object, got {_shown(options)}", "stream_options")
    expect(stream or not options, "stream_options are for streams: give stream too", "stream_options")
    other = sorted(set(options) - {"include_usage"})
    expect(not other, f"stream_options {_shown(other)} is not supported: leave it out", "stream_options")
    return _switch(options, "include_usage")


def _stops(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    fits = isinstance(stops, list) and len(stops) <= MOST_STOPS
    fits = fits and all(isinstance(stop, str) and stop and is_unicode(stop) for stop in stops)  # type: ignore[attr-defined]
    expect(fits, f"stop must be a text or up to {MOST_STOPS}, none empty, got {_shown(value)}", "stop")
    return tuple(stops)  # type: ignore[arg-type]


def _messages(value: object) -> list[Message]:
    """A conversation: roles, and contents of text. Parts are joined here: many templates would print the list."""
    expect(
        isinstance(value, list) and bool(value), f"messages must be a list, not empty, got {_shown(value)}", "messages"
    )
    assert isinstance(value, list)
    messages: list[Message] = []
    for place, message in enumerate(value):
        where = f"messages[{place}]"
        expect(isinstance(message, dict), f"{where} must be an object, got {_shown(message)}", where)
        more = sorted(
            name for name, one in message.items() if name not in ("role", "content", "name") and one is not None
        )
        expect(not more, f"{where}: {_shown(more)} is not supported: a message has a role and a content of text", where)
        role, content = message.get("role"), message.get("content")
        expect(isinstance(role, str), f"{where}.role must be a text, got {_shown(role)}", where)
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        fits = all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
        fits = fits and all(isinstance(part.get("text"), str) for part in parts)
        expect(fits, f"{where}.content must be a text or parts of text, got {_shown(content)}", where)
        messages.append({"role": role, "content": "".join(part["text"] for part in parts)})
    return messages


def _prompts(value: object) -> list[Given]:
    """The prompts of a request for completions: a text or token ids, or a list of one or the other."""
    alone = isinstance(value, str) or (isinstance(value, list) and bool(value) and all(map(_is_id, value)))
    prompts = [value] if alone else value
    fits = isinstance(prompts, list) and 0 < len(prompts) <= MOST_PROMPTS
    fits = fits and all(isinstance(one, str) or (isinstance(one, list) and all(map(_is_id, one))) for one in prompts)  # type: ignore[attr-defined]
    said = f"prompt must be a text or a list of token ids, or up to {MOST_PROMPTS} of them"
    expect(fits, f"{said}, got {_shown(value)}", "prompt")
    assert isinstance(prompts, list)
    whole = all(is_unicode(one) for one in prompts if isinstance(one, str))
    expect(whole, "a prompt holds a lone half of a surrogate pair, which is no character: remove it", "prompt")
    return prompts


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not _is_bool(value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _shown(value: object) -> str:
    """The beginning of a value, as JSON."""
    return f"{json.dumps(value):.80}"
