"""HTTP to servers of vLLM: what is asked, what counts as an answer, and when a server counts as lost.

Variables that name a proxy, a certificate or a key are not read: servers are near, and nothing between them and this
process has any business there.
"""

import asyncio
import math
import resource
import socket
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

import httpx2

from minrl.engines.vllm_server.worker import DESCRIBE
from minrl.types import Completion, UserError
from minrl.utils.keys import without_keys

T = TypeVar("T")

IN_FLIGHT = 256
"""Requests that a process has in flight at a server: as many as vLLM samples at a time if nothing else is said."""

CONNECT_S = 10.0
"""Longest time that a connection takes to a server that is there."""

KEEPALIVE = [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}.items()
    if hasattr(socket, name)
]
"""A machine that is gone without a word is noticed after half a minute, where the system can look for it."""

LONGEST_REASON = 300
"""Characters of what a server says that an error repeats."""

SAMPLE = {
    **{"n": 1, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "return_token_ids": True},
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
}
"""What every request says, so that no default of a server's counts."""


class Lost(Exception):
    """A server that does not answer, or not in time: what it was asked can be asked of another one."""


class Broken(Lost):
    """A server that answers that something in it failed."""


class Refused(UserError):
    """A server that answers, but not as one that samples for a run."""


def most_connections() -> int | None:
    """Half of the files that this process may open; None if there is no limit. Further requests wait."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if files == resource.RLIM_INFINITY else max(1, files // 2)


class Connection:
    """Connections to servers, to be used in one event loop. `silence_s` is the longest wait for an answer; 0: any."""

    def __init__(self, silence_s: float) -> None:
        transport = httpx2.AsyncHTTPTransport(
            limits=httpx2.Limits(max_connections=most_connections()),
            socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *KEEPALIVE],
            trust_env=False,
        )
        timeout = httpx2.Timeout(silence_s or None, connect=CONNECT_S, pool=None)
        self._http = httpx2.AsyncClient(transport=transport, timeout=timeout, trust_env=False)
        self._silence_s = silence_s
        self._places: dict[str, asyncio.Semaphore] = {}

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def ask(self, url: str, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
        """A server's answer. None if it is empty. Raises `Lost` or `Refused` without one."""
        try:
            response = await self._http.post(url + path, json=body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Lost(f"no connection ({str(error) or 'in time'})") from error
        except httpx2.TimeoutException as error:
            raise Lost(f"no answer within {self._silence_s:g} s (--engine-timeout-s)") from error
        except httpx2.TransportError as error:
            raise Lost(f"the connection ended ({str(error) or type(error).__name__})") from error
        status = response.status_code
        if status >= 500:
            raise Broken(f"status {status}: {shortened(response.text)}")
        if status != 200:
            raise Refused(f"{url}{path} refuses with status {status}: {shortened(response.text)}")
        try:
            return response.json() if response.content else None
        except ValueError as error:
            raise Refused(f"{url}{path} answers what is no JSON: {shortened(response.text)}") from error

    async def call(self, url: str, method: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
        """What a method of the server's workers returns, one for each."""
        answer = await self.ask(url, "/collective_rpc", {"method": method, "args": arguments})
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list) or not results:
            raise Refused(f"{url} answers {method} with {shortened(str(answer))}")
        return results

    async def describe(self, url: str) -> list[dict[str, Any]]:
        """What each of the server's workers says of itself."""
        results = await self.call(url, DESCRIBE)
        if not all(isinstance(one, dict) and isinstance(one.get("token"), str) for one in results):
            raise Refused(f"{url} answers {DESCRIBE} with {shortened(str(results))}")
        return results

    async def complete(self, url: str, ids: Sequence[int], settings: Mapping[str, Any]) -> "Sampled":
        """A completion of a prompt."""
        body = {**SAMPLE, **settings, "prompt": list(ids)}
        async with self._places.setdefault(url, asyncio.Semaphore(IN_FLIGHT)):
            answer = await self.ask(url, "/v1/completions", body)
        return Sampled(url, answer, len(ids), settings["max_tokens"])

    async def score(self, url: str, ids: Sequence[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first."""
        body = {**SAMPLE, "prompt": list(ids), "temperature": 0.0, "max_tokens": 1}
        answer = await self.ask(url, "/v1/completions", {**body, "prompt_logprobs": 0})
        try:
            entries = answer["choices"][0]["prompt_logprobs"][1:]
            return [float(entry[str(token)]["logprob"]) for entry, token in zip(entries, ids[1:], strict=True)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Refused(f"{url} gives no log-probabilities of a prompt: {shortened(str(answer))}") from error


class Sampled:
    """A server's answer to a request for a completion, checked: whole, finite, and of the length that was asked for."""

    def __init__(self, url: str, answer: Any, prompt: int, max_tokens: int) -> None:  # noqa: ANN401 - JSON
        try:
            choice, usage = answer["choices"][0], answer["usage"]
            ids, logprobs, reason = choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]
            whole = all(type(token) is int for token in ids) and all(map(math.isfinite, logprobs))
            asked, self.cached = usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise Refused(f"{url} answers what is no completion: {shortened(str(answer))}") from error
        if reason == "abort":  # which is what vLLM answers to requests that it drops on SIGTERM
            raise Lost("it is being stopped")
        problem = (
            "tokens or log-probabilities that are no finite numbers"
            if not whole
            else f"{len(logprobs)} log-probabilities of {len(ids)} tokens"
            if len(logprobs) != len(ids)
            else f"{len(ids)} tokens where 1 to {max_tokens} were asked for"
            if not 1 <= len(ids) <= max_tokens
            else f"{asked} prompt tokens where it was sent {prompt}"
            if asked != prompt
            else f"{len(ids)} tokens as cut off, where {max_tokens} were asked for"
            if reason == "length" and len(ids) < max_tokens
            else f"{reason!r} in place of stop or length as the end"
            if reason not in ("stop", "length")
            else ""
        )
        if problem:
            raise Refused(f"{url} answers with {problem}")
        self.completion = Completion(ids, [float(logprob) for logprob in logprobs], reason)


async def all_of(waiting: Sequence[Awaitable[T]]) -> list[T]:
    """The results of all. The first error ends the others."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def shortened(text: str) -> str:
    """What a server said, on one line, without keys."""
    return without_keys(" ".join(text.split()))[:LONGEST_REASON]
