"""Rollouts by `vllm serve` processes on other cards or machines: tokens in, tokens out, a seed for each request.

Every process of a run asks all servers. At a sync the main process hands the weights to each of them and checks it;
the others learn what came of it. What a server sampled counts if its weights are, before and after, those of the sync.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from minrl.config import EngineConfig
from minrl.engines import Ended, PromptReuse, Sampling, require_room
from minrl.engines.vllm.checkpoint import Checkpoint
from minrl.engines.vllm.sampling import sampling_settings
from minrl.engines.vllm.verify import (
    PROBE_TOKENS,
    Compared,
    SyncError,
    policy_logprobs,
    require_synced,
    spread_ids,
    transposed_names,
)
from minrl.engines.vllm.watchdog import Watchdog
from minrl.engines.vllm_server.address import private_urls
from minrl.engines.vllm_server.client import Connection, Lost, Sampled, all_of
from minrl.engines.vllm_server.handover import HandOver
from minrl.engines.vllm_server.servers import Servers
from minrl.engines.vllm_server.transfer import Shapes, Tensors, sent_shapes
from minrl.engines.vllm_server.wanted import wanted_of
from minrl.engines.vllm_server.weights import WeightsFolder
from minrl.models.lora import MergedWeights
from minrl.policy import Policy
from minrl.types import Completion, Request, UserError
from minrl.utils.progress import activity
from minrl.utils.timers import timed

T = TypeVar("T")

Asked = Mapping[int, tuple[Request, Mapping[str, Any]]]
"""Requests and their settings, by index."""
Done = dict[int, Completion]

TOLD_EVERY_S = 0.1
"""How often somebody who listens hears of what has ended. A server is asked for its weights as often."""


class ServerEngine:
    """Samples with servers of vLLM. Their numbers are not the policy's own: other kernels, other rounding."""

    needs_correction, cores = True, 0

    def __init__(self, config: EngineConfig, policy: Policy, going_on: Callable[[], str] = lambda: "") -> None:
        self.config, self.policy = config, policy
        self.version: int | None = None
        self.context_length = min(config.engine_context_length or policy.context_length, policy.context_length)
        self._checkpoint = Checkpoint(policy.model)
        self._servers = Servers(private_urls(config.urls), policy.processes.rank)
        self._weights = WeightsFolder(config.engine_weights_dir)
        wanted = wanted_of(config, policy, self.context_length)
        self._handover = HandOver(wanted, self._servers, config.engine_timeout_s)
        self._watchdog = Watchdog(config.engine_timeout_s, going_on)
        self._token, self._syncs, self._shapes = "", 0, Shapes()
        self._probe = spread_ids(policy)
        self._reuse, self._checked = PromptReuse(), dict[str, float]()
        policy.processes.on_main(self._write_shape)
        self.sync(policy)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, ended: Ended | None = None
    ) -> list[Completion]:
        """One completion for each request, in order. What a lost server was asked is asked of another one, but for the
        completions of which `ended` has heard.
        """
        if not requests:
            return []
        if self.version != self.policy.version:
            raise SyncError(
                f"the servers have the weights of update {self.version} and the policy is at {self.policy.version}: "
                "call sync(policy) after each update"
            )
        require_room(requests, self.context_length)
        asked = {index: (request, sampling_settings(request, sampling)) for index, request in enumerate(requests)}
        done: Done = {}
        with activity("sampling", len(requests)) as report, asyncio.Runner() as runner:
            news = self._sample(asked, done, TOLD_EVERY_S if ended is not None else None)
            told = 0
            while runner.run(_goes_on(news)):  # between two runs, so that who listens may run a loop too
                report(len(done))
                if ended is not None:
                    ended(list(done.items())[told:])
                told = len(done)
        completions = [done[index] for index in range(len(requests))]
        ids = requests[0].ids + completions[0].ids
        self._probe = ids[-PROBE_TOKENS:] if len(ids) > 1 else self._probe
        return completions

    @timed("sync")
    def sync(self, policy: Policy) -> None:
        """Hand the policy's weights to the servers and check them, in all processes at the same time. Raises
        `SyncError` in all of them if the check fails. Servers that came back are taken again.
        """
        if policy.model is not self.policy.model:
            self._checkpoint = Checkpoint(policy.model)
        self.policy, self._token = policy, ""
        processes = policy.processes
        every = self.config.sync_check_every
        checked = bool(every) and self._syncs % every == 0
        shared = processes.gather([(self._probe, self._servers.lost)])  # nobody samples any more
        self._tell({url: why for _, lost in shared for url, why in lost.items()})
        self._servers.lost, probe = {}, shared[0][0]
        weights = MergedWeights(policy.model, self._checkpoint.tensors())
        folder, token = self._hand_over(partial(self._checkpoint.as_saved, weights))
        if checked:
            expected = policy_logprobs(policy, probe)
            self._checked = processes.on_main(lambda: self._check(expected, probe, folder, list(weights)))
        self._servers.lost = processes.on_main(self._end)
        self._token, self.version, self._syncs = token, policy.version, self._syncs + 1

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first."""

        async def ask() -> list[float]:
            async with Connection(self.config.engine_timeout_s) as connection:
                return await connection.score(self._servers.left()[0], ids)

        return asyncio.run(ask())

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
            self._handover.close()
            self._weights.close()

    async def _sample(self, asked: Asked, done: Done, every_s: float | None) -> AsyncIterator[None]:
        """Add what all servers sample at the same time to `done`. What a lost one still has to sample is spread over
        those that are left. Yields whenever a server is through or lost, and every so many seconds.
        """
        self._servers.begin()
        requests = [request for request, _ in asked.values()]
        async with Connection(self.config.engine_timeout_s) as connection:
            parts: dict[asyncio.Task[None], tuple[str, list[int]]] = {}

            def begin(indices: Sequence[int]) -> None:
                for url, part in self._servers.spread(requests, indices).items():
                    own = {index: asked[index] for index in part}
                    parts[asyncio.create_task(self._part(connection, url, own, done, every_s))] = url, part

            begin(range(len(requests)))
            try:
                while parts:
                    ended, _ = await asyncio.wait(parts, timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
                    for task in ended:
                        url, part = parts.pop(task)
                        try:
                            task.result()
                        except Lost as error:
                            self._servers.lost[url] = str(error)
                            self._tell(self._servers.lost)
                            begin([index for index in part if index not in done])
                    yield
            finally:
                for task in parts:
                    task.cancel()

    async def _part(self, connection: Connection, url: str, asked: Asked, done: Done, every_s: float | None) -> None:
        """Add what a server samples to `done`: it has the weights of the sync before and after."""
        arrived: dict[int, Sampled] = {}

        async def complete(index: int) -> None:
            request, settings = asked[index]
            arrived[index] = await connection.complete(url, request.ids, settings)

        await self._require_token(connection, url)
        sampling = asyncio.ensure_future(all_of([complete(index) for index in asked]))
        try:
            while not sampling.done() or arrived:
                await asyncio.wait([sampling], timeout=every_s)
                if sampling.done():
                    sampling.result()
                new = list(arrived)
                if new:
                    await self._require_token(connection, url)
                for index in new:
                    one, length = arrived.pop(index), len(asked[index][0].ids)
                    done[index] = one.completion
                    if one.cached is not None:
                        self._reuse.add(length, length - one.cached)
        finally:
            sampling.cancel()

    async def _require_token(self, connection: Connection, url: str) -> None:
        """Raise unless all workers of a server have the weights of the last sync: `Lost` if it has started anew."""
        tokens = {found["token"] for found in await connection.describe(url)}
        if tokens == {""}:
            raise Lost("it has started anew, without the policy's weights")
        if tokens != {self._token}:
            raise UserError(f"{url} was given other weights in the meantime: give each run servers of its own")

    def _hand_over(self, tensors: Tensors) -> tuple[str, str]:
        """The folder with the weights, if some server reads it, and the token of the sync, when all servers have them.
        All processes make each pass over the tensors; the main one writes and sends.
        """
        processes, handover, dtype = self.policy.processes, self._handover, self.policy.processes.dtype

        def reach() -> tuple[list[str], bool]:
            handover.reach(self._syncs == 0)
            return handover.by_card, len(handover.by_card) < len(handover.found)

        by_card, by_folder = processes.on_main(reach)
        folder: str | Exception = ""
        if by_folder and processes.main:
            folder = caught(lambda: self._weights.write(tensors(), self.policy.version, dtype))
        elif by_folder:
            pass_over(tensors)
        if by_card and not self._shapes:
            self._shapes = sent_shapes(tensors, dtype)
        problem = None
        for url in by_card:
            with self._watchdog:  # a card that is gone is waited for without a time limit
                if processes.main:
                    problem = caught(partial(handover.send, url, self._shapes, tensors, dtype)) or problem
                else:
                    pass_over(tensors)
        return processes.on_main(lambda: self._load(problem or folder))

    def _write_shape(self) -> None:
        self._weights.open()
        self._weights.write_shape(self.policy, self._checkpoint.shape)

    def _load(self, folder: str | Exception) -> tuple[str, str]:
        """The same, in the main process, where the folder could be written and all was sent."""
        if isinstance(folder, Exception):
            raise folder
        token = f"update {self.policy.version} {uuid.uuid4().hex}"
        head = self.policy.model.get_output_embeddings()
        self._handover.load(folder, token, getattr(head, "bias", None) is not None)
        return folder, token

    def _check(
        self, expected: torch.Tensor, probe: Sequence[int], folder: str, names: Sequence[str]
    ) -> dict[str, float]:
        """Raise unless every server has the weights and log-probabilities of the policy; what the check found."""
        policy, transposed = self.policy, sorted(transposed_names(self.policy.model))
        compared: dict[str, Compared] = self._handover.check(expected, probe, folder, policy.version, transposed)
        for url, found in compared.items():
            version = self._handover.found[url]["version"]
            engine = f"vLLM {version} at {url}" if self._syncs == 0 else f"the server at {url}"
            require_synced(policy, found, names, self._syncs == 0, engine)
        return {
            "engine/sync_gap_max": max((float(found.gaps.max()) for found in compared.values()), default=0.0),
            "engine/sync_checked_tensors": float(max((found.tensors for found in compared.values()), default=0)),
        }

    def _end(self) -> dict[str, str]:
        """The servers that are lost after a hand-over."""
        self._weights.remove()
        self._tell(self._servers.lost)
        self._servers.left()
        return self._servers.lost

    def _tell(self, lost: Mapping[str, str]) -> None:
        if self.policy.processes.main:
            self._servers.tell(lost)


async def _goes_on(news: AsyncIterator[None]) -> bool:
    """Whether there is something new, or there may be."""
    async for _ in news:
        return True
    return False


def pass_over(tensors: Tensors) -> None:
    """Take part in making each of the tensors."""
    for _ in tensors():
        pass


def caught(work: Callable[[], T]) -> Any:  # noqa: ANN401 - T or Exception
    """What `work` returns or raises."""
    try:
        return work()
    except Exception as error:
        return error
