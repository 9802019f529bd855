"""The settings of a run, with units and bounds.

`TrainerConfig` is frozen and made of small frozen groups. What cannot work is refused when it is made. Settings are
flat on the command line (`--group-size 4`), and may be so in Python; a task's own options live with the task.

>>> TrainerConfig(task="hanoi", group_size=4).rollout.group_size
4
>>> TrainerConfig(group_size=0)
Traceback (most recent call last):
    ...
minrl.dataflow.UserError: group_size must be at least 1, got 0
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from minrl.dataflow import UserError, require
from minrl.utils.keys import checked_url, require_variable
from minrl.utils.settings import (
    ROWS,
    Bound,
    Calls,
    Count,
    CountOrOff,
    Grouped,
    Natural,
    Positive,
    PositiveOrOff,
    Seed,
    Settings,
    Share,
    ShareBelowOne,
    meant,
    settings_of,
)
from minrl.utils.task_names import (
    TaskTerms,
    by_task,
    data_by_task,
    entries_of,
    limits_by_task,
    split_tool,
    task_key,
    title_of,
    weights_of,
)

T = TypeVar("T")

TaskOptions = Mapping[str, Any]
"""The options dataclass of each task, by `task_key`."""

PATH, PATH_OR_NAME, PATH_BY_TASK = {"path": "always"}, {"path": "where it exists"}, {"path": "by task"}
"""Metadata of settings whose paths config.json holds absolute; the last is of the form `math:a.jsonl,code:b.jsonl`."""

CHAT_TEMPLATES = ("chatml", "llama3", "gemma", "plain")
"""The templates of `minrl.models.chat_templates`."""

FROM = "{# from "
FROM_FILE = re.compile(re.escape(FROM) + r"(.+) #\}\n")
"""The first line of a template of a file: config.json holds the text, and a run keeps it when the file is edited."""

ALGORITHM_NAMES = (
    *("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "dual_clip", "rloo", "maxrl", "gpg", "reinforce_pp"),
    *("reinforce", "reinforce_no_baseline", "spiral", "distill"),
)
"""The rows of `minrl.algorithms.ALGORITHMS`, by name: its module imports torch, and the command line does not."""

Temperature = Annotated[float, Bound(least=1e-3)]  # logits divided by less are beyond float32

RUN_NAME = re.compile(r"(?!(latest|auto|report)$|base-|step_)[A-Za-z0-9][\w.+=-]{,199}", re.ASCII)
"""A run's name: it stands in paths and commands without quotes, and some names mean something else there."""

PROMPT, ANSWER, COMPLETION = "{prompt}", "{answer}", "{completion}"
"""What a teacher's or a judge's prompt shows."""

ENDS = ("stop_at", "patience")
"""The settings by which a run ends before its last step."""


def _file_text(message: str, path: str, hint: str = "") -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"{message}, got {path[:80]!r}: {reason}{hint}") from error


class Group(Settings):
    """A group of settings."""

    def _read_text(self, name: str, shown: str) -> None:
        """Replace a file's name in the setting by the file's text, which must have `shown` in it."""
        given = getattr(self, name)
        if given and shown not in given:
            text = _file_text(f"{name} must be a text with {shown} in it, or a file with one", given)
            require(shown in text, f"the {name} in {given} never shows the {shown.strip('{}')}: write {shown} in it")
            object.__setattr__(self, name, text)

    def _require_use(self, names: Iterable[str], used: bool, by: str) -> None:
        """Refuse values that nothing reads."""
        for name in names:
            unused = not used and getattr(self, name) != getattr(type(self), name)
            require(not unused, f"{name} is read only with {by}: give that too, or leave it out")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Group):
    """Which model is trained."""

    model_id: str = field(default="", metadata=PATH_OR_NAME)
    """Hub name, folder or GGUF file of a model. Empty: the small base model that MinRL makes itself."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products; trained weights are float32. auto: bfloat16 on CUDA, float32 on a CPU."""
    chat_template: str = ""
    """Jinja file, or chatml, llama3, gemma or plain (question and answer). Empty: the model's own chat template."""
    chat_template_options: str = ""
    """JSON object passed to the chat template, such as {"enable_thinking": false}. Empty: none."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy trains. auto: CUDA if there is a GPU."""
    threads: Annotated[int, Bound(least=1, most=1024, zero="one per core")] = 0
    """CPU threads of torch. 0: one per core that this process may use."""
    sharding: Literal["none", "full", "hybrid"] = "none"
    """full: weights, gradients and moments are split over all processes. hybrid: within each machine."""
    activation_checkpointing: Literal["auto", "always", "never"] = "auto"
    """Recompute activations in the backward pass. auto: if they do not fit the free memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given, path = self.chat_template_options, self.chat_template
        require(isinstance(self.template_options, dict), f"chat_template_options must be a JSON object, got {given!r}")
        if path not in ("", *CHAT_TEMPLATES) and not FROM_FILE.match(path):
            known = f"chat_template must be a file or one of {', '.join(CHAT_TEMPLATES)}"
            text = _file_text(known, path, meant(path, CHAT_TEMPLATES))
            require("{" in text, f"the chat template in {path} writes no message: it has no jinja in it")
            object.__setattr__(self, "chat_template", f"{FROM}{os.path.abspath(path)} #}}\n{text}")

    @property
    def template_name(self) -> str:
        """The name of a template, or its file with a hash of the text."""
        first, _, text = self.chat_template.partition(" #}\n")
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"{first.removeprefix(FROM)} (sha256 {digest})" if text else first

    @property
    def template_options(self) -> Any:  # noqa: ANN401 - whatever the JSON says
        """The chat template's options; None if they are not JSON."""
        try:
            return json.loads(self.chat_template_options or "{}")
        except json.JSONDecodeError:
            return None


@dataclass(frozen=True, kw_only=True)
class BaseModelConfig(Group):
    """The small base model that is made if no --model-id is given (ignored otherwise)."""

    base_hidden_size: Count = 192
    """Width of the residual stream."""
    base_layers: Count = 2
    """Decoder layers."""
    base_heads: Annotated[int, Bound(least=2)] = 4
    """Attention heads of 32 dimensions each; half as many for keys and values."""
    base_steps: Count = 700
    """Optimizer steps of the warm start (supervised fine-tuning on imperfect demonstrations)."""
    base_batch_size: Count = 80
    """Demonstrations per step of the warm start."""
    base_learning_rate: Positive = 2e-3
    """Peak learning rate of the warm start."""
    base_seed: Seed = 0
    """Seed of the base model's weights and demonstrations, independent of --seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.base_heads % 2 == 0, f"base_heads must be even, got {self.base_heads}")


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(Group):
    """What is sampled in each step."""

    task: str = "countdown"
    """The task: a name, or path/to/file.py:name. Several with weights: countdown:2,hanoi:1 (two thirds countdown)."""
    task_max_tokens: str = ""
    """max_tokens of individual tasks, such as hanoi:256,countdown:64."""
    task_reward_scale: str = ""
    """Factor on the advantages of individual tasks among several, such as hanoi:0.5. The others have 1."""
    prompts_per_step: Count = 48
    """Examples drawn in each step, over all processes. Default with --model-id: by its size."""
    group_size: Count = 8
    """Completions sampled for each example and compared with each other. Default with --model-id: by its size."""
    max_tokens: Count = 192
    """Longest completion of one turn, in tokens; longer ones are truncated. Default with --model-id: by its size."""
    temperature: Temperature = 1.0
    """Sampling temperature; log-probabilities are scored at the same one."""
    stop_strings: tuple[str, ...] = ()
    """Texts or special tokens that end a completion, in addition to the model's own end tokens."""
    reward_deadline_s: Positive = 30.0
    """Time limit of one reward in a worker, in seconds. After two timeouts the reward is the task's lowest."""
    reward_workers: Natural = 0
    """Worker processes that compute rewards, over all processes of the run. 0: one per available core."""
    max_unscorable_frac: Share = 0.5
    """The run stops when more than this share of a step's rollouts could not be rewarded."""
    opponent: str = field(default="", metadata=PATH_OR_NAME)
    """Model that plays a task's frozen roles: a checkpoint, a run, a folder or a hub name. Empty: the start model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(self.stop_strings), "stop_strings must not be empty: every text contains the empty one")
        wrong = f"task_reward_scale weighs several tasks, and the run has {self.task} alone: change --learning-rate"
        require(not self._scales or len(self.weights) > 1, wrong)

    @property
    def weights(self) -> dict[str, Fraction]:
        """The weight of each task that is trained, by `task_key`."""
        return {task_key(name): weight for name, weight in weights_of(self.task).items()}

    @property
    def _scales(self) -> dict[str, float]:
        return by_task("task_reward_scale", self.task_reward_scale, self.weights, float)

    @property
    def terms(self) -> dict[str, TaskTerms]:
        """The limit and the scale of each trained task, by `Example.task`, which is empty in a run of one."""
        limits, scales = limits_by_task(self.task_max_tokens), self._scales
        found = {key: TaskTerms(limits.get(key, self.max_tokens), scales.get(key, 1.0)) for key in self.weights}
        return {"" if len(found) == 1 else key: terms for key, terms in found.items()}

    @property
    def shortest(self) -> int:
        """The shortest limit of a trained task, in tokens."""
        return min([one.max_tokens for one in self.terms.values()], default=self.max_tokens)

    @property
    def longest(self) -> int:
        """The longest limit of a trained task, in tokens."""
        return max([one.max_tokens for one in self.terms.values()], default=self.max_tokens)


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Group):
    """How rewards, and a teacher, become a gradient."""

    algorithm: str = field(default="grpo", metadata={ROWS: ALGORITHM_NAMES})
    """Advantages and loss: a row of ALGORITHMS, or path/to/file.py:row."""
    clip_low: Annotated[float, Bound(above=0, below=1, zero="the algorithm's own")] = 0.0
    """The ratio of a token with negative advantage is clipped below 1 - clip_low. 0: the algorithm's own."""
    clip_high: Annotated[float, Bound(above=0, zero="the algorithm's own")] = 0.0
    """The ratio of a token with positive advantage is clipped above 1 + clip_high. 0: the algorithm's own."""
    clip_dual: Annotated[float, Bound(above=1, zero="the algorithm's own")] = 0.0
    """The ratio of a token with negative advantage is clipped above clip_dual. 0: the algorithm's own."""
    passes_per_step: Count = 1
    """Passes over each step's rollouts. Algorithms whose loss has no ratio take one."""
    minibatches_per_pass: Count = 1
    """Optimizer steps per pass, each on whole groups. Without a ratio the later ones are off-policy and uncorrected."""
    importance_cap: Annotated[float, Bound(least=1, zero="off")] = 2.0
    """Upper bound of the importance weight, which corrects for an engine whose log-probabilities differ. 0: off."""
    importance_level: Literal["auto", "token", "sequence", "geometric"] = "auto"
    """Importance weight of each token, of the sequence, or its geometric mean. auto: as the algorithm's ratio."""
    importance_mode: Literal["truncate", "mask"] = "truncate"
    """Weights above the cap are set to the cap (truncate) or to 0 (mask)."""
    kl_coef: PositiveOrOff = 0.0
    """Weight of the KL divergence from the policy to the model the run started from, which is kept frozen. 0: off."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the KL divergence is estimated from the sampled tokens (minrl.losses)."""
    kl_gradient: Literal["exact", "naive"] = "exact"
    """exact: the gradient of the KL divergence. naive: that of the estimator, as in many trainers (biased)."""
    entropy_coef: PositiveOrOff = 0.0
    """Weight of the bonus for entropy, exact over the vocabulary. 0: off."""
    drop_equal_groups: bool = False
    """Leave groups whose rewards are all equal out of the normaliser, so that they do not dilute the others."""
    overlong: Literal["keep", "penalize", "mask"] = "keep"
    """keep completions near max_tokens, penalize them in their reward, or mask truncated ones from the loss."""
    overlong_buffer: Natural = 0
    """With overlong penalize: the penalty grows from 0 to 1 over this many tokens before max_tokens."""
    length_penalty: Annotated[float, Bound(above=0, below=1, zero="off")] = 0.0
    """Share of the highest reward that a solved completion may lose by its length, relative to the group's other
    solved ones: half of it at their mean length. 0: off."""
    length_target: CountOrOff = 0
    """Length that a completion should have, in tokens over all of its turns. 0: off."""
    length_target_weight: Annotated[float, Bound(above=0, below=1)] = 0.5
    """Share of the highest reward that is lost far from length_target; half of it at half or twice the target."""
    teacher_id: str = field(default="", metadata=PATH_OR_NAME)
    """Model to distill: log teacher - log policy of each sampled token is added to its advantage, or replaces it
    (--algorithm distill). A checkpoint, run, folder or hub name with the policy's tokens. Empty: none."""
    teacher_prompt: str = ""
    """Text, or a file, that the teacher reads in place of the prompt, with {prompt} and {answer} filled in. The
    teacher is then the policy itself, unless teacher_id is given. Empty: the prompt."""
    teacher_weight: Positive = 1.0
    """Weight of log teacher - log policy (nats) in the advantage."""

    def __post_init__(self) -> None:
        super().__post_init__()
        both = f"overlong penalize and overlong_buffer go together, got {self.overlong} and {self.overlong_buffer}"
        require((self.overlong == "penalize") == (self.overlong_buffer > 0), both)
        two = f"length_penalty {self.length_penalty:g} and length_target {self.length_target} contradict: leave one out"
        require(not (self.length_penalty and self.length_target), two)
        zero = "the naive gradient of k1 is 0 on average: choose kl_gradient exact, or another kl_estimator"
        require((self.kl_estimator, self.kl_gradient) != ("k1", "naive"), zero)
        self._require_use(["length_target_weight"], self.length_target > 0, "--length-target")
        self._require_use(["teacher_weight"], self.has_teacher, "--teacher-id or --teacher-prompt")
        self._read_text("teacher_prompt", PROMPT)
        path, _, row = self.algorithm.rpartition(":")
        if path.endswith(".py"):
            object.__setattr__(self, "algorithm", f"{os.path.abspath(path)}:{row}")

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
class SamplingConfig(Group):
    """How earlier steps determine the next step's examples and temperature. Off by default."""

    refill_rounds: CountOrOff = 0
    """Rounds of resampling: groups whose rewards are all equal are replaced by groups of other examples. 0: none."""
    curriculum: bool = False
    """Draw examples by observed solve rate: those solved half of the time, or never tried, first."""
    target_reward_std: PositiveOrOff = 0.0
    """Adapt the temperature until the mean standard deviation of rewards within groups is this value. 0: off."""
    min_temperature: float = 0.5
    """Lower bound of the adapted temperature."""
    max_temperature: float = 1.5
    """Upper bound of the adapted temperature."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.min_temperature, self.max_temperature
        require(0 < low <= high, f"0 < min_temperature <= max_temperature must hold, got {low} and {high}")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Group):
    """AdamW, and the size of a forward pass."""

    optimizer: Literal["adamw", "adamw8bit"] = "adamw"
    """adamw: torch's, fused. adamw8bit: moments in 8 bits, a quarter of the memory, by bitsandbytes."""
    learning_rate: Annotated[float, Bound(least=0)] = 3e-4
    """Peak learning rate. Default with --model-id: by its size, and about ten times higher for adapters."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls from its peak to a tenth of it in the last step. constant: not at all."""
    warmup_steps: Natural = 5
    """Steps over which the learning rate rises linearly from 0."""
    weight_decay: Annotated[float, Bound(least=0)] = 0.0
    """AdamW's decoupled weight decay, on matrices only."""
    adam_beta1: ShareBelowOne = 0.9
    """Decay of AdamW's first moment."""
    adam_beta2: ShareBelowOne = 0.95
    """Decay of AdamW's second moment."""
    max_grad_norm: PositiveOrOff = 1.0
    """Gradients with a larger L2 norm are scaled down to it. 0: never."""
    max_skipped_steps: Count = 5
    """The run stops after this many optimizer steps in a row were skipped because a gradient was not finite."""
    micro_batch_tokens: Count = 8192
    """Tokens in one forward pass. Only memory and speed depend on it, not the gradient."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Group):
    """Low-rank adapters instead of training all weights. They need about ten times the learning rate.

    >>> LoraConfig(lora_rank=8, lora_target_modules="q_proj, v_proj").target_names
    ['q_proj', 'v_proj']
    """

    lora_rank: CountOrOff = 0
    """Rank of the adapters. 0: none, all weights are trained."""
    lora_alpha: Count = 32
    """The product of an adapter's two matrices is scaled by lora_alpha / lora_rank."""
    lora_target_modules: str = "all-linear"
    """all-linear (without the output head), ends of layer names (q_proj,v_proj), or a regular expression."""
    lora_checkpoint: Literal["merged", "adapter"] = "merged"
    """merged: checkpoints are whole models, with adapters beside them. adapter: adapters only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_use(settings_of(LoraConfig), self.lora_rank > 0, "--lora-rank")
        require(bool(self.lora_target_modules.strip(", ")), "lora_target_modules must name at least one layer")
        try:
            re.compile(self.lora_target_modules)
        except re.error as error:
            raise UserError(f"lora_target_modules is no regular expression: {error}") from None

    @property
    def target_names(self) -> list[str]:
        """The names in `lora_target_modules`; none if it is a regular expression."""
        names = [name.strip() for name in self.lora_target_modules.split(",")]
        return names if all(re.fullmatch(r"[\w.]*\w", name) for name in names) else []


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Group):
    """How the held-out score is measured: before, during and after."""

    eval_every: Annotated[int, Bound(least=1, zero="only before and after")] = 25
    """Evaluate every this many steps, in addition to before and after. 0: only before and after."""
    eval_examples: Count = 512
    """Held-out examples in each evaluation (all if the task has fewer). Default with --model-id: by its size."""
    eval_samples: Annotated[int, Bound(least=1, zero="automatic")] = 0
    """Sampled completions per held-out example. 0: 500 samples in all. Default with --model-id: by its size."""
    eval_temperature: Temperature = 1.0
    """Temperature of the sampled evaluation; greedy decoding is evaluated too."""
    eval_tasks: str = ""
    """Further tasks to evaluate at the same steps, separated by commas."""
    eval_first: bool = True
    """Evaluate before the first step."""
    stop_at: Annotated[float, Bound(above=0, below=1, zero="off")] = 0.0
    """End the run when the lower bound of held-out pass@1 reaches this value, such as 0.9. 0: off."""
    patience: CountOrOff = 0
    """End the run after this many evaluations without a better lower bound of held-out pass@1. 0: off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ENDS:
            used = not getattr(self, name) or self.eval_every > 0
            require(used, f"{name} needs evaluations during the run, and eval_every is 0: give --eval-every")

    @property
    def other_tasks(self) -> list[str]:
        """The names in `eval_tasks`."""
        return [name.strip() for name in self.eval_tasks.split(",") if name.strip()]


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Group):
    """What the run writes, and where."""

    run_name: str = ""
    """Name of the run's folders. Empty: task, algorithm, settings that differ from the defaults, and seed."""
    note: str = ""
    """What the run is for: shown in the list of runs, in reports and in TensorBoard."""
    runs_dir: str = field(default="runs", metadata=PATH)
    """Folder of the runs: metrics, rollouts, summary."""
    checkpoints_dir: str = field(default="checkpoints", metadata=PATH)
    """Folder of the checkpoints and of the cached base model."""
    save_every: Annotated[int, Bound(least=1, zero="only the last checkpoint")] = 25
    """Save a checkpoint every this many steps and at the end. 0: only at the end."""
    keep_checkpoints: Annotated[int, Bound(least=1, zero="all")] = 3
    """How many checkpoints of this run stay on disk, in addition to the best. 0: all."""
    keep_best: bool = True
    """Keep the policy of the best evaluation, by the lower bound of held-out pass@1: `RUN@best` names it."""
    rollouts_every: CountOrOff = 10
    """Write rollouts to the run's folder every this many steps. 0: never."""
    logger: Literal["tensorboard", "wandb"] = "tensorboard"
    """Where curves are written. wandb: to Weights & Biases (the wandb extra) as well as TensorBoard."""
    quiet: bool = False
    """No progress bar; only warnings and the result on the screen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        form = "a folder's name of at most 200 letters, digits and . _ - + =, a letter or digit first, and not latest, "
        form += f"auto, report, base-... or step_..., which mean something else; got {self.run_name!r}"
        require(not self.run_name or bool(RUN_NAME.fullmatch(self.run_name)), f"run_name must be {form}")
        for name in ("runs_dir", "checkpoints_dir"):
            require(bool(getattr(self, name)), f"{name} must name a folder, got '': leave it out for {name[:-4]}/")


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Group):
    """How completions are sampled."""

    engine: Literal["auto", "torch", "vllm", "vllm-server"] = "auto"
    """The sampling engine. auto: vLLM on CUDA if it is installed, else torch. vllm-server: vLLM on other machines."""
    engine_urls: str = ""
    """Servers for --engine vllm-server, separated by commas, such as http://127.0.0.1:8001 (private addresses only)."""
    engine_weights_dir: str = field(default="", metadata=PATH)
    """Folder through which the servers receive the weights; this run and its servers must see it."""
    sync_check_every: Natural = 1
    """Compare vLLM's weights and log-probabilities with the policy's every this many syncs. 0: never."""
    engine_timeout_s: Annotated[float, Bound(least=0)] = 1800.0
    """The run ends when one call of vLLM takes longer than this many seconds. 0: no limit."""
    engine_context_length: Natural = 0
    """vLLM's context length, prompt and completion together, in tokens. 0: the model's."""
    engine_cache_gib: Annotated[float, Bound(least=0)] = 0.0
    """Memory for keys and values of the torch engine, and of vLLM on a CPU, in GiB. 0: a whole batch, at most 4 GiB."""
    engine_memory_frac: Annotated[float, Bound(above=0, below=1)] = 0.45
    """Share of the GPU's memory that vLLM takes while it samples."""
    engine_tensor_parallel: Count = 1
    """Neighbouring processes of a node that hold one vLLM engine together, for a model larger than a GPU."""
    engine_sleep: Literal["kv", "all", "off"] = "kv"
    """What vLLM frees on CUDA while the policy trains: its key-value memory, everything, or nothing."""
    batch_invariant: bool = False
    """vLLM on CUDA samples the same tokens whatever else is in the batch, which makes it slower (docs/vllm.md)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        served = self.engine == "vllm-server"
        self._require_use(("engine_urls", "engine_weights_dir"), served, "--engine vllm-server")
        for name, what in (("engine_urls", "the servers"), ("engine_weights_dir", "a folder that the servers see too")):
            require(bool(getattr(self, name)) or not served, f"engine vllm-server needs {name}: name {what}")
        inside = self.engine_tensor_parallel == 1 or self.engine in ("auto", "vllm")
        require(inside, f"engine_tensor_parallel is for vLLM in the run's processes, not for engine {self.engine}")

    @property
    def urls(self) -> list[str]:
        """The URLs in `engine_urls`."""
        return [url.strip() for url in self.engine_urls.split(",") if url.strip()]


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(Group):
    """A chat model that judges completions: a further part of the task's reward."""

    judge_model: str = ""
    """Name of the judge at its endpoint. Empty: no judge."""
    judge_base_url: str = ""
    """OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1. Empty: OpenAI's own."""
    judge_weight: ShareBelowOne = 0.2
    """The judge's share of the reward; the task's own reward has the rest. 0: logged only."""
    judge_prompt: str = ""
    """A text, or a file with one, in which {prompt}, {reference} and {completion} are filled in. Empty: MinRL's own."""
    judge_temperature: float = 0.0
    """Temperature of the judge. Negative: left to the server, for models that take none."""
    judge_max_tokens: Count = 1024
    """Longest reply of the judge, in tokens; one that is cut off has no score."""
    judge_timeout_s: Positive = 60.0
    """Longest silence of the judge's server in one attempt, in seconds."""
    judge_retries: Natural = 4
    """Further attempts after a busy, failing or silent server, with growing pauses."""
    judge_concurrency: Calls = 8
    """Concurrent requests to the judge, over all processes."""
    judge_cache: str = field(default="checkpoints/judge_cache.sqlite", metadata=PATH)
    """File that caches the judge's replies. Empty: cached for this run only."""
    judge_key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key of the endpoint. The default is read for OpenAI's own host alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_use(("judge_base_url", "judge_prompt"), bool(self.judge_model), "--judge-model")
        require_variable("judge_key_variable", self.judge_key_variable)
        checked_url(self.judge_base_url)
        self._read_text("judge_prompt", COMPLETION)


@dataclass(frozen=True, kw_only=True, init=False)
class TrainerConfig(Grouped):
    """Make a language model better at a task.

    python -m minrl train                                          the default task, on any machine
    python -m minrl train --task hanoi --steps 200 --hanoi.max-disks 3
    python -m minrl train --model-id Qwen/Qwen3-0.6B --task gsm8k  a model of the hub or of a local folder
    python -m minrl train --task path/to/sevens.py:sevens          a task of your own
    python -m minrl train --resume latest                          continue where it stopped
    """

    often = (
        *("task", "model_id", "algorithm", "steps", "learning_rate", "prompts_per_step", "group_size", "max_tokens"),
        *("lora_rank", "eval_every", "engine", "run_name", "seed", "resume"),
    )

    steps: Count = 150
    """Training steps: rollout, update, sync."""
    seed: Seed = 0
    """Seed of the data order and of every sampled completion."""
    resume: str = ""
    """Continue a run: `latest`, a run's folder or a checkpoint; only --steps, --stop-at and --patience may change.
    `auto`: continue the run of --run-name, or begin it."""
    preflight: bool = True
    """Check the settings and a few samples before step 1, and report problems."""
    preflight_only: bool = False
    """Stop after the preflight."""
    data_path: str = field(default="", metadata=PATH)
    """Local file in place of the task's dataset. Empty: what the task names or generates."""
    task_data_path: str = field(default="", metadata=PATH_BY_TASK)
    """Local files of individual tasks, trained or evaluated, such as math:a.jsonl,code:b.jsonl."""
    model: ModelConfig = ModelConfig()
    base: BaseModelConfig = BaseModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    sampling: SamplingConfig = SamplingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig = LoraConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    logging: LoggingConfig = LoggingConfig()
    engine: EngineConfig = EngineConfig()
    judge: JudgeConfig = JudgeConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        algorithm, rollout, task = self.algorithm, self.rollout, self.rollout.task
        keys = [task_key(name) for name in self.task_names]
        limits_by_task(rollout.task_max_tokens, keys)
        by_task("task_data_path", self.task_data_path, keys)
        minibatches, prompts = algorithm.minibatches_per_pass, rollout.prompts_per_step
        several = f"minibatches_per_pass ({minibatches}) must not exceed prompts_per_step ({prompts}), of whole groups"
        require(minibatches <= prompts, several)
        alone = rollout.group_size == 1 and algorithm.length_penalty > 0
        require(not alone, "length_penalty compares the completions of a group: group_size must be at least 2, got 1")
        kind, sharding = self.optimizer.optimizer, self.model.sharding
        whole = f"--optimizer {kind} takes whole weights only: use adamw with --sharding {sharding}"
        require(sharding == "none" or kind == "adamw", whole)
        for name, given, fix in (
            ("data_path", self.data_path, f"give --task-data-path {keys[-1] if keys else 'TASK'}:FILE"),
            ("target_reward_std", self.sampling.target_reward_std, "leave it out"),
            ("teacher_prompt", algorithm.teacher_prompt, "leave it out, or train one"),
        ):
            require(not given or len(rollout.weights) < 2, f"{name} is of one task, and {task} are several: {fix}")
        for name in ENDS:
            untested = f"{name} looks at the held-out score of a task, and there is none: name the --task"
            require(bool(task) or not getattr(self.evaluation, name), untested)
        contradiction = self.preflight_only and not self.preflight
        require(not contradiction, "preflight_only contradicts no-preflight: drop one of the two")
        own = "chat_template is for a --model-id: the base model that MinRL makes reads its own template alone"
        require(bool(self.model.model_id or self.resume or not self.model.chat_template), own)

    @property
    def trainer(self) -> "TrainerConfig":
        """The config from which a run is assembled: this one. Configs of other programs translate theirs."""
        return self

    @property
    def task_names(self) -> tuple[str, ...]:
        """The trained tasks, if there are any, and the other evaluated tasks."""
        return (*weights_of(self.rollout.task), *self.evaluation.other_tasks)

    def data_of(self, key: str) -> str:
        """The local file of a task; empty if it has none."""
        own, _ = split_tool(key)
        alone = self.data_path if own in {split_tool(name)[0] for name in self.rollout.weights} else ""
        return data_by_task(self.task_data_path).get(own, alone)

    def limit_of(self, key: str) -> int:
        """The longest completion of a trained or evaluated task, in tokens."""
        return limits_by_task(self.rollout.task_max_tokens).get(key, self.rollout.max_tokens)

    @property
    def what(self) -> str:
        """What a run's name begins with: task and algorithm, such as `countdown-grpo`."""
        return f"{title_of(self.rollout.task)}-{self.algorithm.algorithm.rpartition(':')[2]}"


def with_absolute_paths(config: T) -> T:
    """A config, or a task's options, with absolute paths in the settings that are marked as paths."""
    changed: dict[str, Any] = {}
    for one in fields(config):  # type: ignore[arg-type]
        value, marked = getattr(config, one.name), one.metadata
        if is_dataclass(value):
            changed[one.name] = with_absolute_paths(value)
        elif value and marked == PATH_BY_TASK:
            pairs = [entry.partition(":") for entry in entries_of(value)]
            changed[one.name] = ",".join(f"{key.strip()}:{os.path.abspath(path.strip())}" for key, _, path in pairs)
        elif value and (marked == PATH or (marked == PATH_OR_NAME and Path(value).exists())):
            changed[one.name] = os.path.abspath(value)
    return replace(config, **changed) if changed else config  # type: ignore[type-var]
