"""What the trained tokens of a step looked like: sums and extremes over streams, optimizer steps and processes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

EXTREMES = {"max": max, "min": min}
"""How fields whose names end so are combined; all others are sums."""


@dataclass
class TokenTotals:
    """Sums over the tokens of a step, and extremes of them (`_max`, `_min`), for the curves."""

    tokens: int = 0
    loss: float = 0.0
    entropy: float = 0.0
    ref_kl: float = 0.0
    clip_low: float = 0.0
    clip_high: float = 0.0
    ratio_max: float = 0.0
    gap: float = 0.0
    gap_max: float = 0.0
    kl: float = 0.0
    raw_weight: float = 0.0
    raw_weight_min: float = math.inf
    raw_weight_max: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0
    capped: float = 0.0
    computed_tokens: int = 0

    @classmethod
    def over(cls, shares: "Sequence[TokenTotals]") -> "TokenTotals":
        """The totals of several processes as one.

        >>> shares = [TokenTotals(tokens=2, gap=1.5, gap_max=0.5), TokenTotals(tokens=1, gap=0.5, gap_max=1.0)]
        >>> both = TokenTotals.over(shares)
        >>> both.tokens, both.gap, both.gap_max, both.raw_weight_min
        (3, 2.0, 1.0, inf)
        """
        combine = {f.name: EXTREMES.get(f.name.rpartition("_")[2], sum) for f in fields(cls)}
        return cls(**{name: how([getattr(share, name) for share in shares]) for name, how in combine.items()})

    def metrics(self) -> dict[str, float]:
        """Means and extremes over the tokens, by tag; none where no token was trained on."""
        if not self.tokens:
            return {}
        return {
            "policy/entropy": self.entropy / self.tokens,
            "policy/clip_low_frac": self.clip_low / self.tokens,
            "policy/clip_high_frac": self.clip_high / self.tokens,
            "policy/ratio_max": self.ratio_max,
            "engine/logprob_gap_mean": self.gap / self.tokens,
            "engine/logprob_gap_max": self.gap_max,
            "engine/kl": self.kl / self.tokens,
            "engine/importance_weight_mean": self.raw_weight / self.tokens,
            "engine/importance_weight_min": self.raw_weight_min,
            "engine/importance_weight_max": self.raw_weight_max,
        }

    def corrections(self) -> dict[str, float]:
        """What correcting the engine did, by tag; nothing where no token was trained on."""
        if not self.tokens:
            return {}
        return {
            "engine/importance_cap_frac": self.capped / self.tokens,
            "engine/ess": self.weight**2 / max(self.tokens * self.weight_squared, 1e-30),
        }
