"""The settings of the loss, the optimizer, adapters and sampling: part of `TrainerConfig`."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from minrl.config.bounds import Bound, Bounded, Count, Natural, above, from_zero, share_below_one
from minrl.config.texts import PATH_OR_NAME, text_or_file
from minrl.types import require

PROMPT, ANSWER = "{prompt}", "{answer}"
"""Where a teacher's prompt shows the task's own, and what is known of a right answer."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Bounded):
    """How rewards, and a teacher, become a gradient."""

    algorithm: str = field(default="grpo", metadata={"rows": "minrl.algorithms.ALGORITHMS"})
    """A row of ALGORITHMS."""
    clip_low: Annotated[float, share_below_one("in (0, 1), or 0 (the algorithm's own)")] = 0.0
    """The ratio of a token with negative advantage stops counting below 1 - clip_low. 0: the algorithm's own."""
    clip_high: Annotated[float, Bound("above 0, or 0 (the algorithm's own)", lambda clip: clip >= 0)] = 0.0
    """The ratio of a token with positive advantage stops counting above 1 + clip_high. 0: the algorithm's own."""
    clip_dual: Annotated[float, Bound("above 1, or 0 (the algorithm's own)", lambda clip: clip == 0 or clip > 1)] = 0.0
    """The ratio of a token with negative advantage stops counting above clip_dual. 0: the algorithm's own."""
    passes_per_step: Count = 1
    """How often each step's rollouts are trained on. Rows of ALGORITHMS whose surrogate has no ratio take one pass."""
    minibatches_per_pass: Count = 1
    """Optimizer steps per pass; the rollouts are split by whole groups. Without a ratio the later ones of a pass are
    off-policy by the steps before them, which nothing corrects."""
    importance_cap: Annotated[float, Bound("0 (off) or at least 1", lambda cap: cap == 0 or cap >= 1)] = 2.0
    """Upper bound of the weight that corrects for an engine whose numbers are not the policy's. 0: off."""
    importance_level: Literal["auto", "token", "sequence", "geometric"] = "auto"
    """That weight is of each token, of the whole sequence, or the geometric mean over it. auto: as the algorithm's
    ratio."""
    importance_mode: Literal["truncate", "mask"] = "truncate"
    """What exceeds the cap is set to the cap, or to 0."""
    kl_coef: Annotated[float, from_zero("off")] = 0.0
    """Weight of the KL divergence from the policy to the model the run started from, which is kept frozen. 0: off."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How that divergence is estimated from the sampled tokens (minrl.divergence)."""
    kl_gradient: Literal["exact", "naive"] = "exact"
    """exact: the gradient of the divergence. naive: that of the estimator, as many trainers have it: with k3 it is
    another divergence's."""
    entropy_coef: Annotated[float, from_zero("off")] = 0.0
    """Weight of the bonus for entropy, exact over the vocabulary. 0: off."""
    drop_equal_groups: bool = False
    """Leave groups whose rewards are all equal out of the normaliser, so that they do not dilute the others."""
    overlong: Literal["keep", "penalize", "mask"] = "keep"
    """Completions near or at max_tokens: as they are; with a penalty on the reward; or truncated ones weigh 0, their
    reward staying in the baseline."""
    overlong_buffer: int = 0
    """With overlong penalize: the penalty grows from 0 to 1 over the last so many tokens before max_tokens."""
    length_penalty: Annotated[float, share_below_one("0 (off) or above and below 1")] = 0.0
    """Share of the highest reward that a solved completion loses by its length beside the group's other solved ones:
    half of it at their mean, nearly none where it is far shorter, nearly all where it is far longer. Others lose
    nothing. 0: off."""
    length_target: Annotated[int, from_zero("off")] = 0
    """Tokens that a completion, over all of its turns, should have. 0: off."""
    length_target_weight: Annotated[float, Bound("above 0 and below 1", lambda weight: 0 < weight < 1)] = 0.5
    """With length_target: share of the highest reward that a completion of no length, or of a boundless one, would
    lose. Half as long as the target, or twice, loses half of it."""
    teacher_id: str = field(default="", metadata=PATH_OR_NAME)
    """Model to learn from: each sampled token is worth log teacher - log policy, added to the advantage or alone
    (--algorithm distill). A checkpoint, a run, a folder or a hub name, with the policy's tokens. Empty: none."""
    teacher_prompt: str = ""
    """A text, or a file with one, that the teacher reads in place of the prompt; {prompt} and {answer} are filled in.
    Without a teacher_id the policy itself is the teacher. Empty: the prompt."""
    teacher_weight: Annotated[float, above(0)] = 1.0
    """What a nat of log teacher - log policy is worth, in units of the advantage."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.overlong == "penalize") == (self.overlong_buffer > 0),
            f"overlong penalize and overlong_buffer go together, got {self.overlong} and {self.overlong_buffer}",
        )
        require(
            not (self.length_penalty and self.length_target),
            f"length_penalty {self.length_penalty:g} wants the shortest completions and length_target "
            f"{self.length_target} a given length: leave one out",
        )
        require(
            self.length_target > 0 or self.length_target_weight == AlgorithmConfig.length_target_weight,
            "length_target_weight is read only with a target: give --length-target too, or leave it out",
        )
        require(
            (self.kl_estimator, self.kl_gradient) != ("k1", "naive"),
            "the naive gradient of k1 is 0 on average: choose kl_gradient exact, or another kl_estimator",
        )
        require(
            self.has_teacher or self.teacher_weight == AlgorithmConfig.teacher_weight,
            "teacher_weight is read only with a teacher: give --teacher-id or --teacher-prompt too, or leave it out",
        )
        if self.teacher_prompt:  # config.json holds the text, not the file's name
            object.__setattr__(self, "teacher_prompt", text_or_file("teacher_prompt", self.teacher_prompt, PROMPT))

    @property
    def has_teacher(self) -> bool:
        """Whether tokens are compared with a teacher's."""
        return bool(self.teacher_id or self.teacher_prompt)

    @property
    def prices_length(self) -> bool:
        """Whether a completion's reward depends on its length."""
        return bool(self.overlong_buffer or self.length_penalty or self.length_target)

    def require_lengths(self, shortest: int) -> None:
        """Refuse lengths that completions of at most `shortest` tokens cannot have."""
        buffer, target = self.overlong_buffer, self.length_target
        require(buffer < shortest, f"overlong_buffer ({buffer}) must be below max_tokens ({shortest})")
        require(target <= shortest, f"length_target ({target}) must be at most max_tokens ({shortest})")

    @property
    def regularized(self) -> bool:
        """Whether a rollout has a gradient even if its advantage is 0."""
        return self.kl_coef > 0 or self.entropy_coef > 0 or self.has_teacher


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Bounded):
    """AdamW and how much fits into memory at once."""

    optimizer: Literal["adamw", "adamw8bit"] = "adamw"
    """adamw: torch's, fused. adamw8bit: moments in 8 bits, a quarter of the memory, by bitsandbytes."""
    learning_rate: Annotated[float, from_zero()] = 3e-4
    """AdamW's learning rate after the warmup, its peak. Not given: by the size of a --model-id, in fine-tuning another,
    and about ten times as much for adapters (minrl.run.defaults)."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls from its peak to a tenth at the last of `steps`; constant: not at all."""
    warmup_steps: Natural = 5
    """Steps over which the learning rate rises linearly from 0."""
    weight_decay: Annotated[float, from_zero()] = 0.0
    """AdamW's decoupled weight decay, on matrices only."""
    adam_beta1: Annotated[float, share_below_one()] = 0.9
    """Decay of AdamW's first moment."""
    adam_beta2: Annotated[float, share_below_one()] = 0.95
    """Decay of AdamW's second moment."""
    max_grad_norm: Annotated[float, from_zero("off")] = 1.0
    """The gradient is scaled down to this L2 norm. 0: never."""
    max_skipped_steps: Count = 5
    """The run stops after this many optimizer steps in a row whose gradient is not finite. Such a step is not taken."""
    micro_batch_tokens: Count = 8192
    """Tokens in one forward pass: memory only, the gradient does not depend on it."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Bounded):
    """Adapters of low rank in place of training all weights (minrl.model.lora). They take about ten times the rate.

    >>> LoraConfig(lora_rank=8, lora_target_modules="q_proj, v_proj").target_names
    ['q_proj', 'v_proj']
    """

    lora_rank: Annotated[int, from_zero("off")] = 0
    """Rank of the adapters. 0: none, all weights are trained."""
    lora_alpha: Count = 32
    """The product of an adapter's two matrices is scaled by lora_alpha / lora_rank."""
    lora_target_modules: str = "all-linear"
    """The layers that have adapters: all-linear (but the output head), or the ends of their names, separated by commas
    (q_proj,v_proj), or a regular expression for whole names."""
    lora_checkpoint: Literal["merged", "adapter"] = "merged"
    """merged: checkpoints are whole models, with the adapters beside them to go on from. adapter: only the adapters and
    where their base model is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in vars(self).items():
            require(
                self.lora_rank > 0 or value == getattr(LoraConfig, name),
                f"{name} is read only with adapters: give --lora-rank too, or leave it out",
            )
        require(bool(self.lora_target_modules.strip(", ")), "lora_target_modules must name at least one layer")
        try:
            re.compile(self.lora_target_modules)
        except re.error as error:
            require(False, f"lora_target_modules {self.lora_target_modules!r} is no regular expression: {error}")

    @property
    def target_names(self) -> list[str]:
        """The names in `lora_target_modules`; none if it is a regular expression."""
        names = [name.strip() for name in self.lora_target_modules.split(",")]
        return names if all(re.fullmatch(r"[\w.]*\w", name) for name in names) else []


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Bounded):
    """What the next step samples, given what the last ones showed. Everything is off by default."""

    refill_rounds: Annotated[int, from_zero("off")] = 0
    """Rounds in which groups whose rewards are all equal are replaced by groups of other examples. 0: none."""
    curriculum: bool = False
    """Draw examples by observed solve rate: those solved half of the time, or never tried, first."""
    target_reward_std: Annotated[float, from_zero("off")] = 0.0
    """The temperature rises or falls, by at most a tenth in each step, until the mean standard deviation of rewards
    inside groups is this value. 0: it is fixed."""
    min_temperature: float = 0.5
    """Lowest temperature where it is adapted."""
    max_temperature: float = 1.5
    """Highest temperature where it is adapted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.min_temperature <= self.max_temperature,
            f"0 < min_temperature <= max_temperature must hold, got {self.min_temperature} and {self.max_temperature}",
        )
