"""OpenAI's forms: a request read from JSON, and its answer, whole or streamed.

A setting that the sampler does not have is refused unless its value changes nothing, such as `top_p: 1`: a completion
is never sampled in another way than the request says.
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from minrl.dataflow import Message, UserError, require
from minrl.utils.settings import Bound, Natural, Settings
from minrl.utils.text import is_unicode

TEMPERATURE = Bound(least=0, most=2.0)

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,), "top_k": (-1, 0), "min_p": (0,), "frequency_penalty": (0,), "presence_penalty": (0,),
    "repetition_penalty": (1,), "logit_bias": ({},), "logprobs": (False,), "top_logprobs": (0,), "best_of": (1,),
    "echo": (False,), "suffix": ("",), "tools": ([],), "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False), "response_format": ({"type": "text"},), "store": (False,),
}  # fmt: skip
"""Settings that are not supported, with the values that change nothing."""

SHARED = ("model", "n", "max_tokens", "temperature", "stop", "seed", "stream", "stream_options")
IGNORED = ("user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier")


class ApiError(Exception):
    """A refused request, in the form that OpenAI's clients read."""

    def __init__(self, message: str, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.message, self.status, self.code = message, status, code
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, kw_only=True)
class ApiRequest(Settings):
    """A request for `n` completions of a prompt."""

    prompt: Any
    """A text, or the messages of a chat."""
    chat: bool = True
    model: str = ""
    n: Annotated[int, Bound(least=1, most=128)] = 1
    max_tokens: Natural = 0
    temperature: Annotated[float, TEMPERATURE] = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False


def read_request(body: bytes, chat: bool) -> ApiRequest:
    """The request in the body of a chat or a completion. Raises `ApiError`."""
    try:
        given = json.loads(body)
        require(isinstance(given, dict), f"it must be an object, got {_shown(given)}")
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not a JSON object: {error!s:.200}") from error
    values = {name: value for name, value in given.items() if value is not None and name not in IGNORED}
    for name in values.keys() - {*SHARED, *(("messages", "max_completion_tokens") if chat else ("prompt",))}:
        neutral = NEUTRAL.get(name, ())
        allowed = "".join(f", or give {json.dumps(one)}" for one in neutral)
        message = f"{name:.80} {_shown(values[name])} is not supported: leave it out{allowed}"
        if values.pop(name) not in neutral:
            raise ApiError(message, code="unsupported_value" if neutral else "unknown_parameter", param=name[:80])
    try:
        return ApiRequest(**_settings(values, chat))
    except UserError as error:
        raise ApiError(str(error), param=str(error).partition(" ")[0]) from error


def _settings(values: dict[str, Any], chat: bool) -> dict[str, Any]:
    """The values as an `ApiRequest` takes them."""
    both = {"max_tokens", "max_completion_tokens"} <= values.keys()
    require(not both, "max_tokens and max_completion_tokens are the same limit: give one")
    if chat:
        values["prompt"] = _messages(values.pop("messages", None))
    else:
        whole = isinstance(values.get("prompt"), str) and is_unicode(values["prompt"])
        require(whole, f"prompt must be one Unicode text, got {_shown(values.get('prompt'))}")
    options = values.pop("stream_options", {})
    require(
        isinstance(options, dict) and options.keys() <= {"include_usage"},
        f'stream_options must be {{"include_usage": true or false}}, got {_shown(options)}',
    )
    stops = [values["stop"]] if isinstance(values.get("stop"), str) else values.get("stop", [])
    require(not isinstance(stops, list) or "" not in stops, "stop must not be empty")
    limit = values.pop("max_completion_tokens", values.get("max_tokens", 0 if chat else 16))  # 16 as at OpenAI
    return {**values, **options, "stop": stops, "max_tokens": limit, "chat": chat}


def _messages(value: Any) -> list[Message]:  # noqa: ANN401 - JSON
    """A conversation. Parts of text are joined: many templates would print the list."""
    require(isinstance(value, list) and value != [], f"messages must be a list, not empty, got {_shown(value)}")
    messages: list[Message] = []
    for place, message in enumerate(value):
        given = {name: one for name, one in message.items() if one is not None} if isinstance(message, dict) else {}
        content = given.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
        fits = given.keys() <= {"role", "content", "name"} and isinstance(given.get("role"), str)
        require(
            fits and all(isinstance(text, str) for text in texts),
            f"messages[{place}] must have a role and a content of text alone, got {_shown(message)}",
        )
        messages.append({"role": given["role"], "content": "".join(map(str, texts))})
    return messages


def _shown(value: object) -> str:
    return f"{json.dumps(value):.80}"


@dataclass(frozen=True)
class Delta:
    """What was added to a choice, with the number of sampled tokens; the last one has a finish reason."""

    index: int
    text: str
    tokens: int
    finish_reason: str | None
    first: bool


class Answer:
    """Makes the JSON of the answer to a request."""

    def __init__(self, request: ApiRequest, model: str, prompt_tokens: int) -> None:
        self.request, self.prompt_tokens = request, prompt_tokens
        self.head = {"id": f"minrl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def body(self, deltas: Sequence[Delta], usage: bool) -> dict[str, Any]:
        """The whole answer or a chunk of a stream, with the tokens counted or with these deltas."""
        chat, whole, choices = self.request.chat, not self.request.stream, []
        for index in sorted({delta.index for delta in deltas if whole or not usage}):
            own = [delta for delta in deltas if delta.index == index]
            text = "".join(delta.text for delta in own)
            content = {**({"role": "assistant"} if own[0].first else {}), "content": text}
            form = {"message" if whole else "delta": content} if chat else {"text": text}
            choices.append({"index": index, **form, "logprobs": None, "finish_reason": own[-1].finish_reason})
        kind = f"chat.completion{'' if whole else '.chunk'}" if chat else "text_completion"
        sampled = sum(delta.tokens for delta in deltas)
        counts = (self.prompt_tokens, sampled, self.prompt_tokens + sampled)
        named = dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), counts, strict=True))
        return {**self.head, "object": kind, "choices": choices, **({"usage": named} if usage else {})}
