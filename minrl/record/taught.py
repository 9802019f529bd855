"""What a step taught: how far its update moved the log-probability of each token, of its own rollouts and of others.

S sampled tokens of the step's rollouts, then those of the followed held-out examples, which no update trains on.
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from minrl.batch import make_batch
from minrl.config import TrainerConfig
from minrl.draw import tracked_plan
from minrl.policy import Policy
from minrl.rollout import rollout
from minrl.run.parts import Parts
from minrl.types import Rollout
from minrl.update import Update, current_logprobs


def follow(parts: Parts, rollouts: Sequence[Rollout], temperature: float) -> "Taught":
    """Sample the held-out examples that are followed through the run, and score them before the step's update."""
    plan = tracked_plan(parts.task, parts.config)
    followed = rollout(parts.policy, parts.engine, parts.workers, parts.task, *plan).rollouts
    return Taught(parts.policy, parts.config, temperature, rollouts, followed)


class Taught:
    """The step's N rollouts and the `followed` ones, made before the update, which `measure` follows. All processes
    take part in both.

    `moved` (S,): how far the update moved each token, in nats; NaN where it did not score the rollout.
    """

    def __init__(
        self,
        policy: Policy,
        config: TrainerConfig,
        temperature: float,
        rollouts: Sequence[Rollout],
        followed: Sequence[Rollout],
    ) -> None:
        self.followed, self.moved, self.curves = followed, torch.zeros(0), dict[str, float]()
        self._rollouts, self._settings = rollouts, config.algorithm
        self._score = partial(_logprobs, policy, config, temperature)
        self._others_before = self._score(followed)

    def measure(self, update: Update, advantages: Float[Tensor, " N"]) -> None:
        """Score all of them once more: one forward pass."""
        own = make_batch(self._rollouts, advantages)
        before = torch.cat([update.logprobs.double(), self._others_before])
        self.moved, count = self._score([*self._rollouts, *self.followed]) - before, len(own.rollout_of)
        gaps = update.logprobs.double() - own.rollout_logprobs
        worth = advantages[own.rollout_of]
        if self._settings.has_teacher and update.preference is not None:
            worth = worth + self._settings.teacher_weight * update.preference
        self.curves = curves(self.moved[:count], worth, self.moved[count:], gaps)


def _logprobs(policy: Policy, config: TrainerConfig, temperature: float, rollouts: Sequence[Rollout]) -> Tensor:
    batch = make_batch(rollouts, torch.zeros(len(rollouts)))
    return current_logprobs(policy, batch, config, temperature)


def curves(
    moved: Float[Tensor, " S"], advantages: Float[Tensor, " S"], others: Float[Tensor, " M"], gaps: Float[Tensor, " S"]
) -> dict[str, float]:
    """Scalars by tag, without those that nothing says.

    `agreement` is the share of the tokens with an advantage, of those that moved, that moved the way it points.
    `agreement_by_chance` is that share if direction and advantage were independent, as where noise moves the tokens.
    `alignment` is the sum of movement times advantage over the sum of its sizes, from -1 to 1: what an update raises.
    Tokens that good and bad completions share hardly move, and weigh little in it.
    `spill_over` is the mean movement of other prompts' tokens over that of the trained ones, and `engine_lag` the mean
    distance of engine and policy over the same: near 0 in sync, about 1 if the engine is one update behind.
    """
    trained = (advantages != 0) & ~moved.isnan()
    moved, signs, gaps = moved[trained], advantages[trained].sign(), gaps[trained]
    size = float(moved.abs().mean()) if len(moved) else 0.0
    if not size:  # no step was taken, or nothing had an advantage
        return {}
    directions, gained = moved.sign(), moved * advantages[trained]
    signs, directions = signs[directions != 0], directions[directions != 0]
    up, good = float((directions > 0).double().mean()), float((signs > 0).double().mean())
    found = {
        "taught/agreement": float((directions == signs).double().mean()),
        "taught/agreement_by_chance": up * good + (1 - up) * (1 - good),
        "taught/alignment": float(gained.sum() / gained.abs().sum()),
        "taught/change_mean": size,
        "taught/engine_lag": float(gaps.abs().mean()) / size,
    }
    return found | ({"taught/spill_over": float(others.abs().mean()) / size} if len(others) else {})
