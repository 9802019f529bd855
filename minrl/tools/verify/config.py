"""The settings of `minrl verify`."""

from dataclasses import dataclass

from minrl.utils.settings import Natural, Settings


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
