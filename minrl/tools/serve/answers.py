"""Answers in OpenAI's forms, whole or in parts, of chats and of completions of texts."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any

from minrl.tools.serve.asking import Asked
from minrl.tools.serve.choices import Begun, Said, Token


@dataclass(frozen=True)
class Counts:
    """Tokens of an answer."""

    prompt: int
    completion: int

    def usage(self) -> dict[str, int]:
        """As JSON."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


class Answer:
    """The form of the answer to one request."""

    def __init__(self, asked: Asked, model: str, begun: Begun) -> None:
        self._asked, self._prompt_tokens = asked, begun.prompt_tokens
        kind = "chatcmpl" if asked.chat else "cmpl"
        self._head = {"id": f"{kind}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, parts: Sequence[Said]) -> dict[str, Any]:
        """The answer of all parts, in the order of the choices."""
        chat = self._asked.chat
        of_choice = [[part for part in parts if part.index == index] for index in range(self._asked.choices)]
        choices = [self._choice(reduce(_joined, own), whole=True) for own in of_choice]
        counts = Counts(self._prompt_tokens, sum(len(part.tokens) for part in parts))
        kind = "chat.completion" if chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": counts.usage()}

    def begin(self) -> list[dict[str, Any]]:
        """The parts before any text: who speaks in each choice of a chat."""
        if not self._asked.chat:
            return []
        delta = {"role": "assistant", "content": ""}
        bare = {"delta": delta, "logprobs": None, "finish_reason": None}
        return [self._part([{"index": index, **bare}]) for index in range(self._asked.choices)]

    def part(self, said: Said) -> dict[str, Any]:
        """A part of a stream."""
        return self._part([self._choice(said, whole=False)])

    def counted(self, completion_tokens: int) -> dict[str, Any]:
        """The last part of a stream that is to say what it took."""
        return {**self._part([]), "usage": Counts(self._prompt_tokens, completion_tokens).usage()}

    def _part(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._asked.chat else "text_completion"
        usage = {"usage": None} if self._asked.include_usage else {}
        return {**self._head, "object": kind, "choices": choices, **usage}

    def _choice(self, said: Said, whole: bool) -> dict[str, Any]:
        end = {"finish_reason": said.finish_reason or None}
        logprobs = _logprobs(said, self._asked.chat) if self._asked.logprobs and said.tokens else None
        if not self._asked.chat:
            return {"index": said.index, "text": said.text, "logprobs": logprobs, **end}
        if not whole:
            delta = {"content": said.text} if said.text else {}
            return {"index": said.index, "delta": delta, "logprobs": logprobs, **end}
        message = {"role": "assistant", "content": said.text, "refusal": None}
        return {"index": said.index, "message": message, "logprobs": logprobs, **end}


def _joined(before: Said, after: Said) -> Said:
    """Two parts of a choice as one."""
    tokens = [*before.tokens, *after.tokens]
    return Said(before.index, before.text + after.text, tokens, before.offset, after.finish_reason)


def _logprobs(said: Said, chat: bool) -> dict[str, Any]:
    """The log-probabilities of the sampled tokens, the end token's too. No other token's are known."""
    if chat:
        return {"content": [_entry(token) for token in said.tokens], "refusal": None}
    offsets = accumulate((len(token.text) for token in said.tokens), initial=said.offset)
    return {
        "tokens": [token.text for token in said.tokens],
        "token_logprobs": [token.logprob for token in said.tokens],
        "top_logprobs": None,
        "text_offset": list(offsets)[:-1],
    }


def _entry(token: Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode()), "top_logprobs": []}
