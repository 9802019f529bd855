"""What the main process of a run asks of every server at a sync: is it the right one, the weights, the check."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from loguru import logger

from minrl.engines.vllm.verify import Compared
from minrl.engines.vllm_server.client import Broken, Connection, Lost, Refused, all_of
from minrl.engines.vllm_server.servers import Servers
from minrl.engines.vllm_server.transfer import Shapes, Tensors, Transfer, takes_cards
from minrl.engines.vllm_server.wanted import Wanted
from minrl.engines.vllm_server.worker import DIFFERING, MARK, RELOAD
from minrl.types import UserError

START_S = 600.0
"""How long a run waits at its start for servers that are not there yet."""

PAUSE_S = 1.0
"""Between two looks for a server that is not there yet."""

RESET = "/reset_prefix_cache?reset_running_requests=true"
"""What still runs then was given up by whoever asked for it."""


class HandOver:
    """One sync after the other. `lose` is told of each server that does not answer, and why."""

    def __init__(self, wanted: Wanted, servers: Servers, silence_s: float) -> None:
        self.wanted, self.servers, self.silence_s = wanted, servers, silence_s
        self.found: dict[str, dict[str, Any]] = {}
        self._transfers: dict[str, Transfer] = {}

    def reach(self, first: bool) -> None:
        """Look what each server serves. At the first sync of a run all must be there, and are waited for."""

        async def look(connection: Connection, url: str) -> dict[str, Any]:
            if first:
                return await self._awaited(connection, url)
            try:
                return await self._described(connection, url)
            except UserError as error:  # it came back as another one
                raise Lost(str(error)) from error

        self.found = self._each(self.servers.urls, look, must=first)

    @property
    def by_card(self) -> list[str]:
        """The servers that get the weights from card to card; the others read a folder."""
        return [url for url, found in self.found.items() if takes_cards(found, self.wanted.device)]

    def send(self, url: str, shapes: Shapes, tensors: Tensors, dtype: torch.dtype) -> None:
        """Send a server the weights from card to card. One that has started anew is met anew. The whole pass over the
        tensors is made in any case: other processes take part in it.
        """
        found, remaining = self.found[url], iter(tensors())
        try:
            if url not in self._transfers or not found["token"]:
                self._transfers[url] = Transfer(url, found["tensor_parallel"], shapes, dtype, self.silence_s)
            self._transfers[url].send(lambda: remaining)
        except Lost as error:
            self.servers.lost[url] = str(error)
            del self.found[url]
            self._transfers.pop(url, None)
        finally:
            for _ in remaining:
                pass

    def load(self, folder: str, token: str, biased: bool) -> None:
        """Let each server that was found have the weights, from a folder where they were not sent, under the token of
        the sync, and forget the keys and values of others.
        """
        sent = self.by_card

        async def load(connection: Connection, url: str) -> None:
            what = (MARK, token) if url in sent else (RELOAD, folder, token, biased)
            await connection.call(url, *what)
            answer = await connection.ask(url, RESET)
            if isinstance(answer, dict) and not answer.get("success", True):
                raise Refused(f"{url} did not empty its prefix cache")

        self._keep(self._each(list(self.found), load))

    def check(
        self, expected: torch.Tensor, probe: Sequence[int], folder: str, version: int, transposed: Sequence[str]
    ) -> dict[str, Compared]:
        """What a check of each server found. Tensors are compared where a server has whole ones in files."""

        async def compare(connection: Connection, url: str) -> Compared:
            scored = await connection.score(url, probe)
            gaps = (torch.tensor(scored[-len(expected) :]) - expected).abs()
            if url in self.by_card or self.found[url]["tensor_parallel"] > 1:
                return Compared(gaps, [], 0)
            (said, *_) = await connection.call(url, DIFFERING, folder, version, list(transposed))
            if not isinstance(said, dict) or not isinstance(said.get("wrong"), list):
                raise Refused(f"{url} answers {DIFFERING} with {said!r}")
            return Compared(gaps, said["wrong"], said["compared"])

        compared = self._each(list(self.found), compare)
        self._keep(compared)
        return compared

    def close(self) -> None:
        """Leave the groups of cards."""
        for transfer in self._transfers.values():
            transfer.close()

    def _keep(self, answered: Mapping[str, Any]) -> None:
        self.found = {url: self.found[url] for url in answered}

    def _each(self, urls: Sequence[str], work: Callable[[Connection, str], Any], must: bool = False) -> dict[str, Any]:
        """What `work` returns for each server that answers. The others are lost, or an error where all `must`."""

        async def guarded(connection: Connection, url: str) -> Any:  # noqa: ANN401
            try:
                return await work(connection, url)
            except Lost as error:
                if must:
                    raise UserError(f"{url}: {error}") from error
                self.servers.lost[url] = str(error)
                return error

        async def everywhere() -> list[Any]:
            async with Connection(self.silence_s) as connection:
                return await all_of([guarded(connection, url) for url in urls])

        results = zip(urls, asyncio.run(everywhere()), strict=True)
        return {url: result for url, result in results if not isinstance(result, Lost)}

    async def _described(self, connection: Connection, url: str) -> dict[str, Any]:
        """What a server says of itself, if it is the right one."""
        try:
            (found, *_) = await connection.describe(url)
        except (Refused, Broken) as error:
            command = self.wanted.command(url)
            raise UserError(f"{url} is no server of this run ({error}): start it with: {command}") from error
        self.wanted.require(url, found)
        return found

    async def _awaited(self, connection: Connection, url: str) -> dict[str, Any]:
        """The same, of a server that may still be starting."""
        end, said = time.monotonic() + START_S, False
        while True:
            try:
                return await self._described(connection, url)
            except Lost as error:
                if time.monotonic() > end:
                    command = self.wanted.command(url)
                    raise UserError(f"{url}: {error}, for {START_S:g} s; start it with: {command}") from error
                if not said:
                    logger.info(f"waiting for {url} ({error}); it is started with: {self.wanted.command(url)}")
                said = True
            await asyncio.sleep(PAUSE_S)
