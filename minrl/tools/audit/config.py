"""The settings of the audit."""

from dataclasses import dataclass

from minrl.sft.config import RewardConfig
from minrl.tools.audit.families import FAMILIES
from minrl.types import require
from minrl.utils.settings import Count, Grouped, Seed, meant


@dataclass(frozen=True, kw_only=True, init=False)
class AuditConfig(Grouped):
    """Attack a task's reward before anyone trains on it. Ends with status 1 where it pays or breaks wrongly.

    python -m minrl audit --task mine.py:name
    python -m minrl audit --task gsm8k --data-path rows.jsonl --output audit.json
    python -m minrl audit --task mine.py:accuracy --data-path rows.jsonl --gold-column answer
    """

    often = ("task", "data_path", "gold_column", "leave_out", "output")

    examples: Count = 6
    """Examples that are attacked, chosen by the seed."""
    seed: Seed = 0
    """Seed of the choice of examples and of the demonstrations that are tried."""
    gold_column: str = ""
    """Field of the examples that is a completion which solves them. Empty: what the task says, or what is found."""
    leave_out: tuple[str, ...] = ()
    """Families of attacks that are not tried, such as `format` for a reward that is to pay for the form alone."""
    output: str = ""
    """JSON file of the findings. Empty: none is written."""
    reward: RewardConfig = RewardConfig()

    @property
    def task_names(self) -> tuple[str, ...]:
        """The task whose reward is attacked."""
        return (self.reward.task,)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.leave_out:
            require(
                name in FAMILIES,
                f"leave_out: no family {name!r}{meant(name, FAMILIES)} choose of {', '.join(FAMILIES)}",
            )
