"""Every setting of `minrl serve`, with its unit and its check."""

from dataclasses import dataclass
from typing import Annotated

from minrl.config import EngineConfig, ModelConfig
from minrl.evaluate.config import API
from minrl.tools.serve.asking import TEMPERATURE
from minrl.types import require
from minrl.utils.settings import Bound, Count, Grouped

PORT = 8000
"""Where the endpoint is unless the user says otherwise."""

TALKING = ("system", "temperature", "seed")
"""Settings of --chat, which each request brings along."""


@dataclass(frozen=True, kw_only=True, init=False)
class ServeConfig(Grouped):
    """Serve a policy as an OpenAI-compatible endpoint on this machine, or talk to it in the terminal.

    python -m minrl serve countdown-grpo-seed0
    python -m minrl serve countdown-grpo-seed0 --port 8001
    python -m minrl serve Qwen/Qwen3-0.6B --chat
    """

    often = ("checkpoint", "chat", "port", "max_tokens", "temperature", "system")

    first = "checkpoint"

    checkpoint: str = ""
    """What is served: a run, a checkpoint, a local or hub model, as evaluate.py takes them. The flag itself may be left
    out in front."""
    runs_dir: str = "runs"
    """Where runs are that are named without a folder."""
    chat: bool = False
    """Talk to it here, in the terminal, in place of serving it."""
    port: Annotated[int, Bound(least=1, most=65535, zero="any free one")] = PORT
    """Port of 127.0.0.1. 0: any free one."""
    max_tokens: Count = 1024
    """Longest answer in tokens where a request sets none. A run: its own."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end each answer, in addition to the model's own end tokens and a request's `stop`. A run: its own."""
    system: str = ""
    """System message of --chat. Empty: none."""
    temperature: Annotated[float, TEMPERATURE] = 1.0
    """Temperature of --chat."""
    seed: Annotated[int, Bound(least=1, below=2**63, zero="by chance")] = 0
    """Seed of the first answer of --chat, counted up with each answer. 0: by chance."""
    quiet: bool = False
    """No progress bar while the model is loaded, and only warnings on the screen."""
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.model.model_id, "minrl serve takes the model as its first word, not as --model-id")
        require(bool(self.checkpoint), "name what is served: a run, a checkpoint, a local or hub model")
        require(
            not self.checkpoint.startswith(API),
            f"{self.checkpoint} is served already: name a run, a checkpoint, a local or hub model",
        )
        require(not self.chat or self.port == PORT, "--chat listens on no port: leave --port or --chat out")
        for name in TALKING if not self.chat else ():
            default = type(self).__dataclass_fields__[name].default
            given = getattr(self, name) != default
            require(not given, f"--{name} is of --chat, and each request brings its own: add --chat or leave it out")
