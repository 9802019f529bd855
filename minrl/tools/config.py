"""Every setting of `minrl serve` and `minrl verify`, with its unit and its check."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from minrl.config import TrainerConfig
from minrl.dataflow import require
from minrl.evaluate.config import API
from minrl.utils.settings import Bound, Count, Natural, Settings, between

TEMPERATURE = Bound(least=0, most=2.0)


@dataclass(init=False)
class ServeConfig(TrainerConfig):
    """Serve a model through an OpenAI-compatible endpoint on this machine, or chat with it in the terminal.

    python -m minrl serve countdown-grpo-seed0
    python -m minrl serve countdown-grpo-seed0 --port 8001
    python -m minrl serve Qwen/Qwen3-0.6B --chat
    """

    often: ClassVar[tuple[str, ...]] = ("checkpoint", "chat", "port", "max_tokens", "temperature", "system")

    first = "checkpoint"

    not_taken: ClassVar[frozenset[str]] = (
        frozenset(TrainerConfig.__dataclass_fields__)
        - between(TrainerConfig, "dtype", "activation_checkpointing")
        - {"runs_dir", "stop_strings", "temperature", "max_tokens", "quiet"}
    )
    aliases: ClassVar[Mapping[str, str]] = {"model": "checkpoint"}

    checkpoint: str = ""
    """What is served: a run, a checkpoint, a local or hub model, as evaluate.py takes them. The flag itself may be left
    out in front."""
    chat: bool = False
    """Chat here in the terminal in place of serving."""
    port: Annotated[int, Bound(least=0, most=65535)] = 8000
    """Port of 127.0.0.1. 0: any free one."""
    max_tokens: Count = 1024
    """Longest completion in tokens where a request sets none. A run: its own."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end each completion, in addition to the model's end tokens and a request's `stop`. A run: its own."""
    system: str = ""
    """System message of --chat. Empty: that of the prompts that a run was trained on, if they have one."""
    temperature: Annotated[float, TEMPERATURE] = 1.0
    """Temperature where a request sets none, and of --chat."""
    quiet: bool = False
    """No progress bar while the model is loaded, and only warnings on the screen."""

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        self._check_models()
        require(bool(self.checkpoint), "name what is served: a run, a checkpoint, a local or hub model")
        remote = self.checkpoint.startswith(API)
        require(not remote, f"{self.checkpoint} is served already: name a run, a checkpoint, a local or hub model")
        require(self.chat or not self.system, "--system is for --chat: requests bring their own messages")


@dataclass(init=False)
class VerifyConfig(Settings):
    """Repeat a step of a run from the checkpoint before it, and compare. The run comes first, by folder or by name.

    python -m minrl verify countdown-grpo-seed0 --step 120
    """

    first = "run"
    often = ("run", "step")

    run: str = ""
    """The run. The flag itself may be left out."""
    runs_dir: str = "runs"
    """Where runs are that are named without a folder."""
    step: Natural = 0
    """The step. 0: the last one."""
