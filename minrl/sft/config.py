"""The settings of supervised fine-tuning, expert iteration and the filter, with units and checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from minrl.config import (
    PATH,
    BaseModelConfig,
    EngineConfig,
    EvaluationConfig,
    LoggingConfig,
    LoraConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    TrainerConfig,
)
from minrl.dataflow import require
from minrl.utils.files import same_file
from minrl.utils.settings import Bound, Count, Grouped, Natural, Positive, Settings, ShareBelowOne
from minrl.utils.task_names import task_key, weights_of

LONGEST_FILE = 80
"""Most bytes of a file's name in the name of a run."""


@dataclass(frozen=True, kw_only=True)
class RewardConfig(Settings):
    """The task and how its rewards are computed."""

    task: str = "countdown"
    """A task's name, or path/to/file.py:name. Empty: none, if the command works without one."""
    data_path: str = field(default="", metadata=PATH)
    """Local file in place of the task's dataset. Empty: what the task names or generates."""
    reward_deadline_s: Positive = 30.0
    """Time limit of one reward in a worker, in seconds. After two timeouts the reward is the task's lowest."""
    reward_workers: Natural = 0
    """Processes that compute rewards. 0: one per core that this process may use."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(weights_of(self.task)) < 2, f"train.py alone takes several tasks in one run, got {self.task}")


Epochs = Positive


@dataclass(frozen=True, kw_only=True, init=False)
class FineTuningConfig(Grouped):
    """What fine-tuning shares with `TrainerConfig`. A setting of the same name means the same."""

    model: ModelConfig = ModelConfig()
    base: BaseModelConfig = BaseModelConfig()
    reward: RewardConfig = RewardConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig = LoraConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    logging: LoggingConfig = LoggingConfig()
    engine: EngineConfig = EngineConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.trainer  # its own checks

    @property
    def translated(self) -> dict[str, Any]:
        """The settings that `TrainerConfig` and its `RolloutConfig` call by other names, by those names."""
        raise NotImplementedError

    @property
    def trainer(self) -> TrainerConfig:
        """The config from which the run is assembled."""
        values = {**vars(self), **vars(self.reward), **self.translated}
        values["rollout"] = RolloutConfig(**_settings_of(RolloutConfig, values))
        return TrainerConfig(**_settings_of(TrainerConfig, values))

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks that are sampled and evaluated."""
        return self.trainer.task_names


def _settings_of(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of those settings that the class has."""
    return {one.name: values[one.name] for one in fields(cls) if one.name in values}  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, init=False)
class SftConfig(FineTuningConfig):
    """Fine-tune a language model on rows of prompt and response.

    python -m minrl sft --data rows.jsonl --model-id Qwen/Qwen3-0.6B --learning-rate 1e-5
    python -m minrl sft --data rows.jsonl --model-id Qwen/Qwen3-0.6B --lora-rank 16
    python -m minrl sft --data rows.jsonl --task countdown --max-examples 128
    python -m minrl sft --data rows.jsonl --task gsm8k --prompt-column question --response-column answer
    python -m minrl sft --resume latest
    """

    often = ("data", "model_id", "task", "epochs", "learning_rate", "batch_size", "max_examples", "seed", "resume")

    data: str = field(default="", metadata=PATH)
    """File of rows (JSONL, a JSON list, CSV) with a prompt (text or chat messages) and a response (text)."""
    prompt_column: str = "prompt"
    """Column of the prompt. Rows with `messages` that end with the assistant's need neither column."""
    response_column: str = "response"
    """Column of the response."""
    prompt_format: Literal["auto", "chat", "text"] = "auto"
    """How a text prompt is formatted. chat: as a user's message, through the chat template. text: as it is.
    auto: like the task's own prompts; without a task, chat if the tokenizer has a template."""
    max_examples: Natural = 0
    """Number of distinct rows to train on, chosen by the seed; a larger number adds rows to them. 0: all."""
    max_row_tokens: Natural = 0
    """Rows of more tokens, prompt and response together, are left out and counted. 0: the model's context length."""
    held_out_share: ShareBelowOne = 0.05
    """Share of the file's prompts that are held out to measure their loss. 0: none."""
    eval_data: str = field(default="", metadata=PATH)
    """File of rows whose loss is measured, instead of a share of --data."""
    steps: Natural = 0
    """Optimizer steps. 0: as many as the epochs take."""
    epochs: Epochs = 3.0
    """Passes over the rows if `steps` is 0; the last batch may be smaller."""
    batch_size: Count = 32
    """Rows of each optimizer step, over all processes. Default with --model-id: by its size."""
    max_tokens: int = 192
    """Longest completion in the evaluation of the task, in tokens. Default with --model-id: by its size."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion in the evaluation, in addition to the model's own end tokens."""
    seed: int = 0
    """Seed of the choice of rows, of their order and of every sampled completion."""
    resume: str = ""
    """Continue a run: `latest`, a run's folder or a checkpoint. Only --steps, --epochs, --stop-at and --patience may
    change. `auto`: continue the run of --run-name, or begin it."""
    reward: RewardConfig = RewardConfig(task="")

    @property
    def what(self) -> str:
        """What a run's name begins with: the rows' file, such as `correct-sft`, as a folder's name can hold it."""
        name = re.sub(r"[^\w.+=-]+", "-", Path(self.data).stem).strip("-.") or "rows"
        return f"{name.encode()[:LONGEST_FILE].decode(errors='ignore')}-sft"

    @property
    def translated(self) -> dict[str, Any]:
        """Without a task nothing is sampled, and no other engine is started."""
        engine = self.engine if self.reward.task else EngineConfig(engine="torch")
        return {"steps": max(1, self.steps), "prompts_per_step": self.batch_size, "engine": engine}


@dataclass(frozen=True, kw_only=True, init=False)
class ExpertIterationConfig(FineTuningConfig):
    """Repeat: sample, keep the correct completions, fine-tune on them.

    python -m minrl expert-iteration --task countdown --rounds 5
    python -m minrl expert-iteration --task gsm8k --model-id Qwen/Qwen3-0.6B
    python -m minrl expert-iteration --task hanoi --samples-per-example 16 --max-per-example 2
    python -m minrl expert-iteration --task countdown --restart-each-round --epochs-per-round 2
    python -m minrl expert-iteration --resume latest
    """

    often = (
        *("task", "model_id", "rounds", "examples_per_round", "samples_per_example"),
        *("learning_rate", "seed", "resume"),
    )

    rounds: Count = 5
    """Rounds of sampling, filtering and fine-tuning."""
    examples_per_round: Count = 480
    """Training examples of each round, over all processes (all if the task has fewer). Default with --model-id: by
    its size."""
    sample_batch_size: Count = 48
    """Examples sampled at a time, over all processes. Only memory and speed depend on it."""
    samples_per_example: Count = 8
    """Completions sampled for each example. Default with --model-id: by its size."""
    max_per_example: Annotated[int, Bound(least=1, zero="all")] = 4
    """Largest number of different correct completions of an example in a round. 0: all."""
    restart_each_round: bool = False
    """Fine-tune the model that the run started from in every round, not the policy of the round before."""
    epochs_per_round: Epochs = 1.0
    """Passes over the kept completions of a round; the last batch may be smaller."""
    batch_size: Count = 32
    """Completions of each optimizer step, over all processes. Default with --model-id: by its size."""
    max_tokens: int = 192
    """Longest completion of one turn, in tokens. Default with --model-id: by its size."""
    temperature: float = 1.0
    """Sampling temperature. The loss is that of temperature 1."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion, in addition to the model's own end tokens."""
    max_unscorable_frac: float = 0.5
    """The run stops when more than this share of a round's completions could not be rewarded."""
    seed: int = 0
    """Seed of the order of examples and completions and of every sampled completion."""
    resume: str = ""
    """Continue a run: `latest`, a run's folder or a checkpoint. Only --rounds, --stop-at and --patience may change.
    `auto`: continue the run of --run-name, or begin it."""
    evaluation: EvaluationConfig = EvaluationConfig(eval_every=1)
    logging: LoggingConfig = LoggingConfig(save_every=1, rollouts_every=1)

    @property
    def what(self) -> str:
        """What a run's name begins with: the task, such as `countdown-expert-iteration`."""
        return f"{task_key(self.reward.task).replace('/', '-')}-expert-iteration"

    @property
    def translated(self) -> dict[str, Any]:
        """A round is a step."""
        return {
            "steps": self.rounds,
            "prompts_per_step": self.sample_batch_size,
            "group_size": self.samples_per_example,
        }


@dataclass(frozen=True, kw_only=True, init=False)
class FilterConfig(Grouped):
    """Keep the rows of a file whose response is correct by a task's reward.

    python -m minrl filter --task countdown --data samples.jsonl --output correct.jsonl
    python -m minrl filter --task gsm8k --data samples.jsonl --output good.jsonl --min-reward 0.5
    """

    data: str
    """JSONL file of rows with `response` (or `completion`) and the fields that the task's reward reads."""
    output: str
    """Where the correct rows go, as they are and in order."""
    min_reward: float | None = None
    """Keep rows with at least this reward. None: those whose reward is at its maximum."""
    reward: RewardConfig = RewardConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not same_file(Path(self.data), Path(self.output)),
            f"output must be another file than data, got {self.output}",
        )
