"""What the workers of a server do besides sampling: vLLM's `--worker-extension-cls`, called through /collective_rpc.

It runs in the server's processes. Its answers are JSON.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from minrl.engines.vllm import versions as vllm_versions

DESCRIBE, RELOAD, MARK, DIFFERING = "minrl_describe", "minrl_reload", "minrl_mark", "minrl_differing"
"""The names under which the trainer calls the methods below."""


class Synced:
    """Methods and attributes that vLLM adds to its worker class, which has none of these names."""

    minrl_token = ""
    """Which sync the weights are of; empty in a server that has just started."""

    def minrl_describe(self: Any) -> dict[str, Any]:
        """What is served, and how."""
        import vllm
        from vllm import envs

        model, parallel = self.vllm_config.model_config, self.vllm_config.parallel_config
        transfer = getattr(self.vllm_config, "weight_transfer_config", None)
        return {
            "version": vllm.__version__,
            "device": self.device.type,
            "dtype": str(model.dtype).removeprefix("torch."),
            "context_length": model.max_model_len,
            "logprobs_mode": str(model.logprobs_mode),
            "generation_config": model.generation_config,
            "quantization": model.quantization or "",
            "speculative": self.vllm_config.speculative_config is not None,
            "batch_invariant": bool(getattr(envs, "VLLM_BATCH_INVARIANT", False)),
            "tensor_parallel": parallel.tensor_parallel_size,
            "replicas": parallel.data_parallel_size,
            "transfer": str(transfer.backend) if transfer else "",
            "architectures": list(model.architectures),
            "shape": {k: v for k, v in model.hf_config.to_dict().items() if isinstance(v, int | float | str | bool)},
            "token": self.minrl_token,
        }

    def minrl_reload(self: Any, folder: str, token: str, biased: bool) -> None:
        """Load the weights in a folder, which are those of a sync. The output head has a bias where it is `biased`."""
        from vllm.config import set_current_vllm_config

        self.minrl_token = ""
        weights = Saved(Path(folder))
        if self.device.type == "cpu":
            with set_current_vllm_config(self.vllm_config), torch.no_grad():
                config = self.vllm_config.model_config
                vllm_versions.load_packed(self.model_runner.get_model(), config, weights.items(), biased)
        else:
            self.reload_weights(weights_iterator=iter(weights.items()))
        self.minrl_token = token

    def minrl_mark(self: Any, token: str) -> None:
        """The weights are those of a sync, which handed them over by vLLM's weight transfer."""
        self.minrl_token = token

    def minrl_differing(self: Any, folder: str, version: int, transposed: list[str]) -> dict[str, Any]:
        """Which of the tensors in a folder the model does not compute with, and how many were compared."""
        from minrl.engines.vllm.verify import differing, find_held  # later: they import transformers

        weights = Saved(Path(folder))
        held = find_held(self.model_runner.get_model(), weights, transposed)
        with torch.no_grad():
            wrong = differing(held, weights, self.vllm_config.model_config.dtype, version)
        return {"wrong": wrong, "compared": len(held)}


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
