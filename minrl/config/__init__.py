"""The settings of a run, with units and bounds.

`TrainerConfig` is frozen, made of small frozen groups, and refuses what cannot work when it is made. Flags are
flat: `--learning-rate`, `--group-size`. A task's own options live with the task (`--countdown.max-number`).
"""

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from minrl.config.bounds import (
    Bound,
    Bounded,
    Calls,
    Count,
    Natural,
    Seconds,
    Seed,
    above,
    at_least,
    from_zero,
    meant,
    share,
    share_below_one,
)
from minrl.config.learning import AlgorithmConfig, LoraConfig, OptimizerConfig, SamplingConfig
from minrl.config.tasks import (
    TaskTerms,
    absolute_paths,
    by_task,
    data_by_task,
    limits_by_task,
    scales_by_task,
    split_tool,
    task_key,
    title_of,
    weights_of,
)
from minrl.config.tasks import (
    option_keys as option_keys,
)
from minrl.config.texts import PATH, PATH_OR_NAME, text_or_file
from minrl.system.keys import checked_url, require_variable
from minrl.types import UserError, require

PATH_BY_TASK = {"path": "by task"}
"""Marks a setting that names files of single tasks, such as `math:a.jsonl,code:b.jsonl`."""

LEAST_TEMPERATURE = 1e-3
"""Logits divided by less are beyond float32."""

FOLDER_NAME = re.compile(r"[A-Za-z0-9][\w.+=-]{,199}", re.ASCII)
"""A run's name, which stands in paths, addresses and commands without quotes."""

TAKEN = re.compile(r"(latest|auto|report)$|base-|step_")
"""Names that mean something else in --resume, in the folder of runs or in that of checkpoints."""

T = TypeVar("T")


def with_absolute_paths(config: T) -> T:
    """A config, or a task's options, with absolute paths in the settings that are marked as paths."""
    changed: dict[str, Any] = {}
    for one in fields(config):  # type: ignore[arg-type]
        value = getattr(config, one.name)
        if is_dataclass(value):
            changed[one.name] = with_absolute_paths(value)
        elif value and one.metadata == PATH_BY_TASK:
            changed[one.name] = absolute_paths(value)
        elif value and (one.metadata == PATH or (one.metadata == PATH_OR_NAME and Path(value).exists())):
            changed[one.name] = os.path.abspath(value)
    return replace(config, **changed) if changed else config  # type: ignore[type-var]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Bounded):
    """Which model is trained."""

    model_id: str = field(default="", metadata=PATH_OR_NAME)
    """Hub name or folder of a transformers model, or a GGUF file (the gguf extra). Empty: the small base model that
    MinRL makes itself."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products. Weights that are trained are float32 in any case; those frozen under adapters stay
    in bfloat16 where the checkpoint is. auto: bfloat16 on CUDA, float32 on a CPU."""
    chat_template: str = ""
    """Chat template in place of the model's own: a jinja file, or chatml, llama3, gemma or plain (question and answer,
    for a base model). Empty: the model's own."""
    chat_template_options: str = ""
    """JSON object handed to the chat template, such as {"enable_thinking": false}. Empty: none."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy trains. auto: CUDA where there is a card."""
    threads: Annotated[int, Bound("0 (one per core) or more, at most 1024", lambda count: 0 <= count <= 1024)] = 0
    """CPU threads of torch. 0: one per core that this process may use."""
    sharding: Literal["none", "full", "hybrid"] = "none"
    """How several processes hold the trained weights: each a whole copy (none); each a part of every weight, gradient
    and moment (full); or parts over the processes of a machine, repeated on every machine (hybrid)."""
    activation_checkpointing: Literal["auto", "always", "never"] = "auto"
    """Keep only each layer's input for the backward pass, and compute the rest again. auto: where it would not fit the
    free memory; the gradient is the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            isinstance(self.template_options, dict),
            f"chat_template_options must be a JSON object, got {self.chat_template_options!r}",
        )
        taken = sorted(OWN_OPTIONS & self.template_options.keys())
        require(not taken, f"chat_template_options must not name {', '.join(taken)}: MinRL gives the template its own")
        if self.chat_template not in ("", *CHAT_TEMPLATES) and not FROM_FILE.match(self.chat_template):
            object.__setattr__(self, "chat_template", _template_in_file(self.chat_template))

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


CHAT_TEMPLATES = ("chatml", "llama3", "gemma", "plain")
"""The templates of `minrl.model.templates`."""

FROM = "{# from "
"""Begins a template of a file. config.json holds the text too, so that a run keeps it when the file is edited."""

FROM_FILE = re.compile(re.escape(FROM) + r"(.+) #\}\n")
"""The first line of a template of a file."""

LARGEST_TEMPLATE = 2**20
"""Bytes of a file; those of well-known models have at most some ten thousand."""

OWN_OPTIONS = {
    *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "messages", "return_dict"),
    "tokenize",
}
"""What the chat template is given in any case."""


def _template_in_file(path: str) -> str:
    """The text of a chat template's file, with a comment that names the file in front."""
    try:
        file = Path(path)
        if file.stat().st_size > LARGEST_TEMPLATE or not (file.is_file() or file.is_dir()):  # a pipe may never end
            raise OSError(errno.EINVAL, "no file of at most 1 MiB")
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise UserError(
            f"chat_template must be a file or one of {', '.join(CHAT_TEMPLATES)}, got {path[:200]!r}: {reason}"
            f"{meant(path, CHAT_TEMPLATES)}"
        ) from error
    require("{" in text, f"the chat template in {path} writes no message: it has no jinja in it")
    return f"{FROM}{os.path.abspath(path)} #}}\n{text}"


@dataclass(frozen=True, kw_only=True)
class BaseModelConfig(Bounded):
    """The small base model that is made where no --model-id is given (ignored otherwise)."""

    base_hidden_size: Count = 192
    """Width of the residual stream."""
    base_layers: Count = 2
    """Decoder layers."""
    base_heads: Annotated[int, Bound("even and at least 2", lambda heads: heads >= 2 and heads % 2 == 0)] = 4
    """Attention heads of 32 dimensions each; half as many for keys and values."""
    base_steps: Count = 700
    """Optimizer steps of the warm start (supervised fine-tuning on imperfect demonstrations)."""
    base_batch_size: Count = 80
    """Demonstrations per step of the warm start."""
    base_learning_rate: Annotated[float, above(0)] = 2e-3
    """Peak learning rate of the warm start."""
    base_seed: Seed = 0
    """Seed of the base model's weights and demonstrations, apart from the run's own seed."""


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(Bounded):
    """What is sampled in each step."""

    task: str = "countdown"
    """The task to learn: a built-in one, an installed package's, or path/to/file.py:name. Several with their weights:
    countdown:2,hanoi:1 takes two thirds of the groups from countdown."""
    task_max_tokens: str = ""
    """Longest completion of single tasks, such as hanoi:256,countdown:64. The others have max_tokens."""
    task_reward_scale: str = ""
    """Scale of the rewards of single tasks among several, such as hanoi:0.5: their advantages are multiplied by it. The
    others have 1."""
    prompts_per_step: Count = 48
    """Examples drawn in each step, over all processes. Not given: by the size of a --model-id."""
    group_size: Count = 8
    """Completions sampled for each example and compared with each other. Not given: by the size of a --model-id."""
    max_tokens: Count = 192
    """Longest completion of one turn, in tokens. Longer ones are cut off and counted as truncated. Not given: by the
    size of a --model-id."""
    temperature: Annotated[float, at_least(LEAST_TEMPERATURE, "to sample")] = 1.0
    """Sampling temperature; log-probabilities are scored at the same one."""
    stop_strings: tuple[str, ...] = ()
    """Texts or special tokens that end a completion, beside the model's own end tokens."""
    reward_deadline_s: Seconds = 30.0
    """Longest time that one reward may take in a worker, in seconds; beyond it, twice, the task's worst is paid."""
    reward_workers: Natural = 0
    """Worker processes that compute rewards, over all processes of the run. 0: one per core that may be used."""
    max_unscorable_frac: Annotated[float, share()] = 0.5
    """The run stops when more than this share of a step's rollouts could not be rewarded."""
    opponent: str = field(default="", metadata=PATH_OR_NAME)
    """Model that plays a task's frozen roles: a checkpoint, a run, a folder or a hub name. Empty: the start model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(self.stop_strings), "stop_strings must not be empty: every text contains the empty one")
        scaled = scales_by_task(self.task_reward_scale, list(self.weights))
        require(
            not scaled or len(self.weights) > 1,
            f"task_reward_scale weighs several tasks against each other, and the run has {self.task} alone: leave it "
            "out, or change --learning-rate",
        )

    @property
    def weights(self) -> dict[str, Fraction]:
        """The weight of each task that is trained, by `task_key`."""
        return {task_key(name): weight for name, weight in weights_of(self.task).items()}

    @property
    def terms(self) -> dict[str, TaskTerms]:
        """The limit and the scale of each trained task, by `Example.task`, which is empty in a run of one."""
        keys = list(self.weights)
        limits, scales = limits_by_task(self.task_max_tokens), scales_by_task(self.task_reward_scale, keys)
        return {
            key if len(keys) > 1 else "": TaskTerms(limits.get(key, self.max_tokens), scales.get(key, 1.0))
            for key in keys
        }

    @property
    def shortest(self) -> int:
        """The shortest limit of a trained task, in tokens."""
        return min([one.max_tokens for one in self.terms.values()], default=self.max_tokens)

    @property
    def longest(self) -> int:
        """The longest limit of a trained task, in tokens."""
        return max([one.max_tokens for one in self.terms.values()], default=self.max_tokens)


ENDS = ("stop_at", "patience")
"""The settings by which a run ends before its last step."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Bounded):
    """How the held-out score is measured: before, during and after."""

    eval_every: Annotated[int, from_zero("only before and after")] = 25
    """Evaluate after every so many steps, beside before and after. 0: only before and after."""
    eval_examples: Count = 512
    """Held-out examples in each evaluation (all where the task has fewer). Not given: by the size of a --model-id."""
    eval_samples: Annotated[int, from_zero("automatic")] = 0
    """Sampled completions per held-out example. 0: as many as it takes for 500 samples. Not given: by the size of a
    --model-id."""
    eval_temperature: Annotated[float, at_least(LEAST_TEMPERATURE)] = 1.0
    """Temperature of the sampled evaluation; a greedy one runs beside it."""
    eval_tasks: str = ""
    """Other tasks to evaluate at the same moments, separated by commas."""
    eval_first: bool = True
    """Evaluate before the first step."""
    stop_at: Annotated[float, share_below_one("0 (off) or above and below 1")] = 0.0
    """End the run when the lower bound of held-out pass@1 has reached this share, such as 0.9. 0: off."""
    patience: Annotated[int, from_zero("off")] = 0
    """End the run after so many evaluations without a better lower bound than the best before them. 0: off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ENDS:
            require(
                not getattr(self, name) or self.eval_every > 0,
                f"{name} looks at the evaluations during a run, and eval_every 0 makes none: give --eval-every",
            )

    @property
    def other_tasks(self) -> list[str]:
        """The names in `eval_tasks`."""
        return [name.strip() for name in self.eval_tasks.split(",") if name.strip()]


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Bounded):
    """Where the run leaves its traces."""

    run_name: str = ""
    """Name of the run's folders. Empty: task, algorithm, what is not at its default, and seed, with a number where that
    is taken."""
    note: str = ""
    """What the run is for: shown with it in the list of runs, in reports and in TensorBoard."""
    runs_dir: str = field(default="runs", metadata=PATH)
    """Folder of the runs: metrics, rollouts, summary."""
    checkpoints_dir: str = field(default="checkpoints", metadata=PATH)
    """Folder of the checkpoints and of the cached base model."""
    save_every: Annotated[int, from_zero("only the last checkpoint")] = 25
    """Save a checkpoint after every so many steps, beside the last one. 0: only the last."""
    keep_checkpoints: Annotated[int, from_zero("keeps all")] = 3
    """How many checkpoints of this run stay on disk, beside the best. 0: all."""
    save_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of a checkpoint's model.safetensors. bfloat16: weights are rounded for the programs that load them, and
    optimizer.safetensors also holds them in float32, from which the run resumes."""
    keep_best: bool = True
    """Save the policy after each evaluation that is the best so far, by the lower bound of held-out pass@1, and keep it
    until there is a better one: `RUN@best` names it."""
    rollouts_every: Annotated[int, from_zero("off")] = 10
    """Write the rollouts of every so many steps to the run's folder. 0: never."""
    logger: Literal["tensorboard", "wandb"] = "tensorboard"
    """Where curves are looked at. wandb: in Weights & Biases (the wandb extra) beside TensorBoard."""
    quiet: bool = False
    """No progress bar; only warnings and the result on the screen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.run_name or (bool(FOLDER_NAME.fullmatch(self.run_name)) and not TAKEN.match(self.run_name)),
            f"run_name must be a folder's name of at most 200 letters, digits and . _ - + =, a letter or digit first, "
            f"and not latest, auto, report, base-... or step_..., which mean something else; got {self.run_name!r}",
        )
        is_text = self.note.encode(errors="ignore").decode() == self.note  # bytes of another encoding are kept apart
        require(is_text, f"note must be a text in UTF-8, got {self.note!a}")
        for name in ("runs_dir", "checkpoints_dir"):
            require(bool(getattr(self, name)), f"{name} must name a folder, got '': leave it out for {name[:-4]}/")


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Bounded):
    """Who samples."""

    engine: Literal["auto", "torch", "vllm", "vllm-server"] = "auto"
    """auto: vLLM where there is a CUDA card and vLLM is installed, else the embedded engine (torch). vllm-server:
    servers of vLLM on other cards or machines."""
    engine_urls: str = ""
    """Servers that sample for --engine vllm-server, separated by commas, such as http://127.0.0.1:8001. Only loopback
    and private addresses are taken."""
    engine_weights_dir: str = field(default="", metadata=PATH)
    """Folder that this run and its servers see, by which weights are handed over."""
    sync_check_every: Natural = 1
    """Compare vLLM's weights and log-probabilities with the policy's after every so many syncs. 0: never."""
    engine_timeout_s: Annotated[float, from_zero()] = 1800.0
    """The run ends when one call of vLLM takes longer than this many seconds. 0: it may hang for ever."""
    engine_context_length: Natural = 0
    """Longest prompt and completion together that vLLM takes, in tokens. 0: as long as the model's."""
    engine_cache_gib: Annotated[float, from_zero()] = 0.0
    """Memory for keys and values, of vLLM on a CPU and of the embedded engine anywhere, in GiB; the latter samples in
    turns what does not fit at once. 0: room for a whole batch, at most 4 GiB."""
    engine_memory_frac: Annotated[float, Bound("above 0 and below 1", lambda share: 0 < share < 1)] = 0.45
    """Share of the CUDA card's memory that vLLM takes while it samples."""
    engine_tensor_parallel: Count = 1
    """Neighbouring processes of a node that hold one vLLM engine together, for a model larger than a card."""
    engine_sleep: Literal["kv", "all", "off"] = "kv"
    """What vLLM gives back on CUDA while the policy trains: its key-value memory, everything, or nothing."""
    batch_invariant: bool = False
    """vLLM on CUDA samples the same tokens whatever else is in the batch, which makes it slower (docs/vllm.md)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        served = self.engine == "vllm-server"
        for name, given, what in (
            ("engine_urls", bool(self.urls), "the servers"),
            ("engine_weights_dir", bool(self.engine_weights_dir), "a folder that they see too"),
        ):
            require(given or not served, f"engine vllm-server needs {name}: name {what}")
            require(served or not given, f"{name} is of no use without engine vllm-server: leave it out")
        parallel = self.engine_tensor_parallel > 1
        require(
            not parallel or self.engine in ("auto", "vllm"),
            f"engine_tensor_parallel is for vLLM in the processes of the run, not for engine {self.engine}: leave it "
            "out, or give it to the servers",
        )

    @property
    def urls(self) -> list[str]:
        """The URLs in `engine_urls`."""
        return [url.strip() for url in self.engine_urls.split(",") if url.strip()]


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(Bounded):
    """A chat model that judges completions: one more part of the reward of the trained or evaluated task."""

    judge_model: str = ""
    """Name of the judge at its endpoint. Empty: no judge."""
    judge_base_url: str = ""
    """OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1. Empty: OpenAI's own."""
    judge_weight: Annotated[float, share_below_one("in [0, 1), so that the task's own reward counts")] = 0.2
    """The judge's share of the reward; the task's own reward has the rest. 0: shown, not paid."""
    judge_prompt: str = ""
    """A text, or a file with one, in which {prompt}, {reference} and {completion} are filled in. Empty: MinRL's own."""
    judge_temperature: Annotated[float, Bound("finite", math.isfinite)] = 0.0
    """Temperature of the judge. Negative: left to the server, for models that take none."""
    judge_max_tokens: Count = 1024
    """Longest reply of the judge, in tokens; one that is cut off has no score."""
    judge_timeout_s: Seconds = 60.0
    """Longest silence of the judge's server in one attempt, in seconds."""
    judge_retries: Natural = 4
    """Further attempts after a busy, failing or silent server, with growing pauses."""
    judge_concurrency: Calls = 8
    """Judgements that are asked for at the same time, over all processes."""
    judge_cache: str = field(default="checkpoints/judge_cache.jsonl", metadata=PATH)
    """File that keeps the judge's replies, so that nothing is asked twice. Empty: kept for this run only."""
    judge_key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key of the endpoint. The default is read for OpenAI's own host alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            bool(self.judge_model) or not (self.judge_base_url or self.judge_prompt),
            "judge_base_url and judge_prompt are of no use without judge_model: name the judge",
        )
        require_variable("judge_key_variable", self.judge_key_variable)
        checked_url(self.judge_base_url)
        if self.judge_prompt:  # config.json holds the text, not the file's name
            object.__setattr__(self, "judge_prompt", text_or_file("judge_prompt", self.judge_prompt, COMPLETION))


COMPLETION = "{completion}"
"""Where a judge's prompt shows the completion."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig(Bounded):
    """Make a language model better at a task.

    python train.py                                          the default task, on any machine
    python train.py --task hanoi --steps 200 --hanoi.max-disks 3
    python train.py --model-id Qwen/Qwen3-0.6B --task gsm8k  a model of the hub or of a local folder
    python train.py --task path/to/sevens.py:sevens          a task of one's own
    python train.py --resume latest                          go on where it stopped
    """

    often = ("task", "model_id", "algorithm", "steps", "learning_rate", "group_size", "max_tokens", "seed", "resume")

    steps: Count = 150
    """Turns of the loop: rollout, update, sync."""
    seed: Seed = 0
    """Seed of the data order and of every sampled completion."""
    resume: str = ""
    """Continue a run: `latest`, a run's folder or a checkpoint. Its stored config is used; only --steps, --stop-at and
    --patience may change. `auto`: continue the run of --run-name, or begin it."""
    preflight: bool = True
    """Before step 1, sample a little and say what would go wrong."""
    preflight_only: bool = False
    """Stop after the preflight."""
    data_path: str = field(default="", metadata=PATH)
    """Local file in place of the task's dataset. Empty: what the task names or generates."""
    task_data_path: str = field(default="", metadata=PATH_BY_TASK)
    """Local files of single tasks, trained or evaluated, such as math:a.jsonl,code:b.jsonl."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Which model is trained."""
    base: BaseModelConfig = field(default_factory=BaseModelConfig)
    """The base model that is made where none is given."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """What is sampled in each step."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """How rewards, and a teacher, become a gradient."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """What the next step samples, given what the last ones showed."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """AdamW and micro-batches."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Adapters in place of all weights."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """The held-out score."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """Files and screen."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Who samples."""
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    """A chat model that judges the trained task's completions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for group in vars(self).values():
            for name, value in vars(group).items() if hasattr(group, "__dict__") else ():
                require(not isinstance(value, float) or math.isfinite(value), f"{name} must be finite, got {value}")
        require(
            self.algorithm.minibatches_per_pass <= self.rollout.prompts_per_step,
            f"minibatches_per_pass ({self.algorithm.minibatches_per_pass}) must not exceed prompts_per_step "
            f"({self.rollout.prompts_per_step}): minibatches are whole groups",
        )
        require(
            not self.algorithm.length_penalty or self.rollout.group_size > 1,
            "length_penalty compares the solved completions of a group: group_size must be at least 2, "
            f"got {self.rollout.group_size}; or give --length-target",
        )
        require(
            self.model.sharding == "none" or self.optimizer.optimizer == "adamw",
            f"--optimizer {self.optimizer.optimizer} takes whole weights only: use adamw with --sharding "
            f"{self.model.sharding}, whose moments are divided by the number of processes",
        )
        keys = [task_key(name) for name in self.task_names]
        limits_by_task(self.rollout.task_max_tokens, keys)
        by_task("task_data_path", self.task_data_path, keys)
        require(
            not self.data_path or len(self.rollout.weights) < 2,
            f"data_path is one task's data, and {self.rollout.task} are several: say --task-data-path "
            f"{keys[-1] if keys else 'TASK'}:FILE",
        )
        require(
            not self.sampling.target_reward_std or len(self.rollout.weights) < 2,
            "target_reward_std adapts one temperature to the rewards of one task: leave it out with several",
        )
        require(
            not self.algorithm.teacher_prompt or len(self.rollout.weights) < 2,
            f"teacher_prompt is written for one task, and {self.rollout.task} are several: leave it out, or train one",
        )
        for name in ENDS:
            require(
                bool(self.rollout.task) or not getattr(self.evaluation, name),
                f"{name} looks at the held-out score of a task, and there is none: name the --task",
            )
        require(
            not (self.preflight_only and not self.preflight),
            "preflight_only contradicts no-preflight: drop one of the two",
        )
        require(
            bool(self.model.model_id or self.resume or not self.model.chat_template),  # a resume says what it refuses
            "chat_template is for a --model-id: the base model that MinRL makes reads its own template's words alone",
        )

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
        return f"{title_of(self.rollout.task)}-{self.algorithm.algorithm}"


TaskOptions = Mapping[str, Any]
"""The options dataclass of each task, by `task_key`."""
