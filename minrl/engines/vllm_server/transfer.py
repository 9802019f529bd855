"""Weights from the policy's card to a server's, by vLLM's weight transfer over NCCL: no file, nothing over the host.

For servers that were started with --weight-transfer-config '{"backend": "nccl"}'. The trainer needs vLLM too. Each
server has a group of its own with the main process, so that one that is gone takes no other with it.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from minrl.engines.vllm_server.client import Connection
from minrl.types import UserError

Tensors = Callable[[], Iterable[tuple[str, Tensor]]]
"""A fresh pass over the weights, by the names and in the shapes of a checkpoint. All processes make it together."""

Shapes = list[tuple[str, torch.dtype, tuple[int, ...]]]


def takes_cards(found: dict[str, Any], device: str) -> bool:
    """Whether a server that says this of itself gets the weights of a policy on such a device from card to card."""
    return found["transfer"] == "nccl" and found["device"] == device == "cuda"


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor as it is sent: a matrix in the precision that the servers compute in, anything else as it is."""
    return tensor.detach().to(dtype) if tensor.ndim > 1 and tensor.is_floating_point() else tensor.detach()


def sent_shapes(tensors: Tensors, dtype: torch.dtype) -> Shapes:
    """The names, precisions and shapes of what is sent."""
    return [(name, rounded(one, dtype).dtype, tuple(one.shape)) for name, one in tensors()]


class Transfer:
    """The way from the main process to one server with `workers` cards. What is sent has these `shapes`."""

    def __init__(self, url: str, workers: int, shapes: Shapes, dtype: torch.dtype, silence_s: float) -> None:
        try:
            from vllm.distributed.weight_transfer.nccl_engine import (
                NCCLTrainerInitInfo,
                NCCLTrainerWeightTransferEngine,
            )
        except ImportError as error:
            raise UserError(
                f"{url} is to get weights by NCCL, for which this process needs vLLM 0.32 on CUDA: install it, or "
                "start the server without --weight-transfer-config"
            ) from error
        client, self._source = _client(url, silence_s), _source(shapes, dtype)
        address, port = _own_address(url)
        info = NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=1 + workers, rank=0)
        self._engine = NCCLTrainerWeightTransferEngine.trainer_init(info, client=client, source=self._source)

    def send(self, tensors: Tensors) -> None:
        """Hand over the weights, in one pass."""
        self._source.tensors = tensors
        self._engine.send_weights()

    def close(self) -> None:
        """Leave the group."""
        self._engine.shutdown()


def _client(url: str, silence_s: float) -> Any:  # noqa: ANN401 - what vLLM calls a VLLMWeightSyncClient
    class Client:
        def _ask(self, path: str, body: dict[str, Any] | None = None) -> None:
            async def ask() -> None:
                async with Connection(silence_s) as connection:
                    await connection.ask(url, path, body)

            asyncio.run(ask())

        def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
            self._ask("/init_weight_transfer_engine", {"init_info": init_info})

        def start_weight_update(self) -> None:
            self._ask("/start_weight_update")

        def update_weights(self, update_info: Any) -> None:  # noqa: ANN401 - JSON
            self._ask("/update_weights", {"update_info": update_info})

        def finish_weight_update(self, weight_version: str | None = None) -> None:
            self._ask("/finish_weight_update")

    return Client()


def _source(shapes: Shapes, dtype: torch.dtype) -> Any:  # noqa: ANN401 - a WeightSource of vLLM's
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Source(WeightSource):
        tensors: Tensors

        def metadata(self) -> list[ParamMeta]:
            return [ParamMeta(*shape) for shape in shapes]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return ((name, rounded(tensor, dtype).contiguous()) for name, tensor in self.tensors())

    return Source()


def _own_address(url: str) -> tuple[str, int]:
    """The address under which a server finds this machine, and a free port there."""
    parts = urlsplit(url)
    family = socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port))  # sends nothing
        address = probe.getsockname()[0]
    with socket.socket(family, socket.SOCK_STREAM) as free:
        free.bind((address, 0))
        return address, free.getsockname()[1]
