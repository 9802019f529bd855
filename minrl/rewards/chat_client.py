"""Chat models behind an OpenAI-compatible endpoint: OpenAI's, vLLM's, llama.cpp's, Ollama's.

The `openai` client sends requests and retries with backoff. This file adds one line for each kind of failure and a
limit on concurrent calls. A failure is raised, never returned as an answer.

The key comes from an environment variable. It is in no setting and no URL, and is removed from the server's messages.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import urlsplit

from minrl.dataflow import Message, UserError, require
from minrl.utils.files import installed
from minrl.utils.text import without_keys

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_HOST = "api.openai.com"

KEY_VARIABLE = "OPENAI_API_KEY"
"""The variable that is read where none is named. Its key is for OpenAI's own hosts alone."""

LONGEST_REASON = 300
"""Characters of a server's message that an error repeats."""

CONTENT_FILTER, REFUSAL, CONTEXT_LENGTH = "content_filter", "refusal", "context_length"

FILTERED = re.compile(r"content_filter|content_policy_violation|content management policy")
TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|(context (length|size|window)|maximum model length)"
)
"""How servers say that they will always refuse a request: codes of OpenAI and Azure, words of vLLM and llama.cpp."""

REFUSING = (400, 403, 413, 422)
"""The HTTP statuses of such refusals."""

HINTS = {
    401: " (is the key in the environment the right one?)",
    404: " (does the base URL end as the server wants, often in /v1, and does it know the model?)",
}
"""What may fix a failure, by HTTP status."""


def require_variable(flag: str, name: str) -> None:
    """Refuse what is no name of an environment variable, without repeating it: it may be the key itself."""
    named = re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", name) is not None
    require(named, f"{flag} names the environment variable that holds the key, such as {KEY_VARIABLE}, not the key")


def checked_url(base_url: str) -> str:
    """The endpoint's URL, by default OpenAI's. Raises `UserError` if it cannot be an endpoint or contains a key.

    >>> checked_url(""), checked_url("http://127.0.0.1:8000/v1/")
    ('https://api.openai.com/v1', 'http://127.0.0.1:8000/v1')
    """
    example = "such as http://127.0.0.1:8000/v1"
    own = not any(mark in base_url for mark in "@?#")
    require(own, f"a base URL must hold no key and no user, {example}: put the key into the environment")
    usable = re.fullmatch(r"https?://(\[[\da-f:.]+\]|[^/:\s\[]+)(:\d+)?(/\S*)?", base_url or OPENAI_URL) is not None
    require(usable, f"a base URL must begin with http:// or https:// and a host, {example}, got {base_url!r}")
    secure = base_url.startswith("https:") or not is_openai(base_url)
    require(secure, f"{OPENAI_HOST} is asked by https alone, got {base_url!r}")
    return (base_url or OPENAI_URL).rstrip("/")


def is_openai(url: str) -> bool:
    """Whether the URL is of OpenAI's own hosts, of which regions have some.

    >>> is_openai("https://eu.api.openai.com/v1"), is_openai("https://api.openai.com.evil.org/v1")
    (True, False)
    """
    return f".{urlsplit(url).hostname or ''}".endswith(f".{OPENAI_HOST}")


class ChatError(UserError):
    """The endpoint gave no answer. The message is one line: where, why, what to do."""


def no_answer(reason: str) -> bool:
    """Whether the last line of a traceback is a `ChatError`: another run may get an answer."""
    return reason.startswith(f"{ChatError.__module__}.{ChatError.__name__}: ")


class ChatRefusal(ChatError):
    """The endpoint will always refuse the request: `kind` is content_filter, refusal or context_length."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class ChatReply:
    """The answer to a call. The server sets `finish_reason` (`stop`, `length`, `content_filter`) and `tokens`, the
    length of the answer; None if it does not say it.
    """

    text: str
    finish_reason: str
    tokens: int | None = None


class ChatClient:
    """A model at an endpoint. Threads may share it; at most `concurrency` calls are in flight.

    `timeout_s` limits the server's silence in one attempt.
    """

    def __init__(
        self,
        model: str,
        base_url: str = "",
        *,
        timeout_s: float = 60.0,
        concurrency: int = 8,
        retries: int = 4,
        key_variable: str = KEY_VARIABLE,
    ) -> None:
        self.model, self.base_url = model, checked_url(base_url)
        self._key, self._openai = key_for(self.base_url, key_variable), _openai()
        self._client = self._openai.OpenAI(
            api_key=self._key or "none",
            base_url=self.base_url,
            timeout=timeout_s,
            max_retries=retries,
            default_headers=_own_headers(self._openai, self.base_url, self._key),
        )
        self._free = BoundedSemaphore(concurrency)

    def complete(
        self, messages: Sequence[Message], *, temperature: float | None, max_tokens: int, seed: int | None = None
    ) -> ChatReply:
        """The answer. Raises `ChatError` without a text, and `ChatRefusal` if a retry would fail too.

        Some models take no temperature (None omits it).
        """
        longest = "max_completion_tokens" if is_openai(self.base_url) else "max_tokens"
        optional = {"temperature": temperature, "seed": seed}
        asked: dict[str, Any] = {"model": self.model, "messages": [dict(one) for one in messages], longest: max_tokens}
        asked |= {name: value for name, value in optional.items() if value is not None}
        with self._free, self._one_line():
            response = self._client.chat.completions.create(**asked)
        try:  # the openai client checks no types
            message, reason = response.choices[0].message, response.choices[0].finish_reason
            text, refusal = message.content, message.refusal
        except (AttributeError, TypeError, IndexError):
            said = response if isinstance(response, str) else getattr(response, "error", None) or response
            raise self._error(f"an answer that is no chat completion: {said!r}") from None
        if text is None and reason == "length":  # a model with separate reasoning was truncated before its text
            text = ""
        if not isinstance(text, str) or not isinstance(reason, str):
            kind = CONTENT_FILTER if reason == CONTENT_FILTER else REFUSAL if refusal else None
            raise self._error(f"no text (finish_reason {reason!r}, refusal {refusal!r})", kind)
        return ChatReply(text, reason, getattr(response.usage, "completion_tokens", None))

    def served_models(self) -> list[str]:
        """The names of the models that the server lists. Raises `ChatError` without an answer."""
        with self._one_line():
            return [str(getattr(model, "id", model)) for model in self._client.models.list().data]

    def close(self) -> None:
        """Close the connections. A call that is in flight fails at its next attempt."""
        self._client.close()

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """Turn the client's exceptions into one line each."""
        openai = self._openai
        try:
            yield
        except openai.APIStatusError as error:
            said = f"status {error.status_code}: {_error_text(error)}{HINTS.get(error.status_code, '')}"
            raise self._error(said, _kind(error)) from None
        except openai.APIConnectionError as error:  # a timeout is one
            said = f"no answer ({error.__cause__ or error}): is the server up and the base URL right?"
            raise self._error(said) from None
        except (openai.APIError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise self._error(f"an answer that is no chat completion: {error}") from None

    def _error(self, reason: str, refused: str | None = None) -> ChatError:
        """The error for a reason; `refused` is the kind of a final refusal."""
        reason = " ".join(reason.split())
        if self._key:
            reason = reason.replace(self._key, "***")
        message = f"{self.model} at {self.base_url}: {without_keys(reason)[:LONGEST_REASON]}"
        return ChatRefusal(message, refused) if refused else ChatError(message)


def _own_headers(openai: Any, url: str, key: str) -> dict[str, Any]:  # noqa: ANN401 - the library
    """The headers that keep OpenAI's from other hosts: the client takes account, project and more from variables."""
    if is_openai(url):
        return {}
    lines = ["OpenAI-Organization:", "OpenAI-Project:", *os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n")]
    names = [line.partition(":")[0].strip() for line in lines if ":" in line]
    return {**{name: openai.Omit() for name in names}, "Authorization": f"Bearer {key or 'none'}"}


def _openai() -> Any:  # noqa: ANN401 - the library
    with installed("judge", "openai"):
        import openai  # here: it is an extra, and its import takes a second
    return openai


def _kind(error: Any) -> str | None:  # noqa: ANN401 - openai.APIStatusError
    """The kind of a final refusal; None if a retry or another call may succeed."""
    if error.status_code not in REFUSING:
        return None
    said = f"{error.code} {error.type} {_error_text(error)}"
    if FILTERED.search(said):
        return CONTENT_FILTER
    return CONTEXT_LENGTH if TOO_LONG.search(said) else None


def _error_text(error: Any) -> str:  # noqa: ANN401 - openai.APIStatusError
    message = error.body.get("message") if isinstance(error.body, dict) else error.body
    return str(message) if message else str(error.message)


def key_for(url: str, variable: str) -> str:
    """The key that the server may have; empty for servers other than OpenAI's, which may need none."""
    key = os.environ.get(variable, "").strip()
    if variable == KEY_VARIABLE and not is_openai(url):
        return ""
    if not key and is_openai(url):
        raise UserError(f"{OPENAI_HOST} needs a key: put it into the environment variable {variable}")
    require(bool(key), f"the environment variable {variable}, which is to hold the key of {url}, is empty or not set")
    return key
