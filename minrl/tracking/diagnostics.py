"""Diagnostics of an update: how far it moved the log-probability of each sampled token, in nats.

S sampled tokens of the step's rollouts, M of the tracked ones: held-out examples, which no update trains on. In steps
whose rollouts are written, the tracked examples are sampled and scored before the step, and all are scored once more
after its update, in one forward pass.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from minrl.batch import make_batch
from minrl.config import TrainerConfig
from minrl.dataflow import Rollout
from minrl.policy import Policy
from minrl.rollout import rollout
from minrl.run.setup import Parts
from minrl.sampling import tracked_plan
from minrl.update import Update, current_logprobs


class UpdateDiagnostics:
    """The movement of the tokens in one step: made before it, measured after its update, by all processes."""

    def __init__(
        self, policy: Policy, config: TrainerConfig, temperature: float, tracked: Sequence[Rollout] = ()
    ) -> None:
        self._policy, self._config, self._temperature, self.tracked = policy, config, temperature, tracked
        self._before = self._score(tracked)

    @classmethod
    def of_next_step(cls, parts: Parts) -> "UpdateDiagnostics":
        """Sample the tracked examples with the weights that the next step trains."""
        plan = tracked_plan(parts.task, parts.config)
        tracked = rollout(parts.policy, parts.engine, parts.workers, parts.task, *plan).rollouts
        return cls(parts.policy, parts.config, parts.state.temperature or parts.config.temperature, tracked)

    def measure(
        self, rollouts: Sequence[Rollout], advantages: Float[Tensor, "N ..."], update: Update
    ) -> tuple[Float[Tensor, " SM"], dict[str, float]]:
        """How far each token moved (NaN where the update did not score its rollout), and the curves of that."""
        own, settings = make_batch(rollouts, advantages), self._config
        before = torch.cat([update.logprobs.double(), self._before])
        moved, count = self._score([*rollouts, *self.tracked]) - before, len(own.rollout_of)
        of_tokens = own.advantages
        if settings.has_teacher and update.preference is not None:
            of_tokens = of_tokens + settings.teacher_weight * update.preference
        gaps = update.logprobs.double() - own.rollout_logprobs
        return moved, curves(moved[:count], of_tokens, moved[count:], gaps)

    def _score(self, rollouts: Sequence[Rollout]) -> Tensor:
        batch = make_batch(rollouts, torch.zeros(len(rollouts)))
        return current_logprobs(self._policy, batch, self._config, self._temperature)


def curves(
    moved: Float[Tensor, " S"], advantages: Float[Tensor, " S"], others: Float[Tensor, " M"], gaps: Float[Tensor, " S"]
) -> dict[str, float]:
    """Scalars by tag; empty if no step was taken or nothing had an advantage.

    With m the movement and a the advantage of the trained tokens: `alignment` is sum(m a) / sum|m a|, which an update
    raises; tokens that good and bad completions share hardly move, and weigh little in it. `agreement_by_chance` is the
    `agreement` of independent signs, as where noise moves the tokens. `engine_lag` is mean|gap| / mean|m|: near 0 in
    sync, about 1 if the engine is one update behind.
    """
    trained = (advantages != 0) & ~moved.isnan()
    moved, advantages, gaps = moved[trained], advantages[trained], gaps[trained]
    size = float(moved.abs().mean()) if len(moved) else 0.0
    if not size:
        return {}
    directions, signs = moved.sign()[moved != 0], advantages.sign()[moved != 0]
    up, good = float((directions > 0).double().mean()), float((signs > 0).double().mean())
    found = {
        "update/agreement": float((directions == signs).double().mean()),
        "update/agreement_by_chance": up * good + (1 - up) * (1 - good),
        "update/alignment": float((moved * advantages).sum() / (moved * advantages).abs().sum()),
        "update/change_mean": size,
        "update/engine_lag": float(gaps.abs().mean()) / size,
    }
    return found | ({"update/spill_over": float(others.abs().mean()) / size} if len(others) else {})
