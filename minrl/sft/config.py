"""The settings of supervised fine-tuning, expert iteration and the filter, with units and checks."""

# mypy: disable-error-code="assignment"
# A setting BY_SIZE is None until the run starts.

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from minrl.config import CountBySize, TrainerConfig
from minrl.dataflow import require
from minrl.utils.settings import Count, LocalPath, Natural, Positive, Settings, ShareBelowOne, between, settings_of
from minrl.utils.task_names import task_key, weights_of


@dataclass(init=False)
class RewardConfig(Settings):
    """The task and how its rewards are computed."""

    task: str = "countdown"
    """A task's name, or path/to/file.py:name. Empty: none, if the command works without one."""
    data_path: LocalPath = ""
    """Local file in place of the task's dataset. Empty: what the task names or generates."""
    reward_deadline_s: Positive = 30.0
    """Time limit of one reward in a worker, in seconds. After two timeouts the reward is the task's lowest."""
    reward_workers: Natural = 0
    """Processes that compute rewards. 0: one per core that this process may use."""

    @property
    def task_names(self) -> tuple[str, ...]:
        """The task, whose options are flags."""
        return (self.task,)

    def check(self) -> None:
        """Refuse several tasks."""
        require_one_task(self.task)


def require_one_task(task: str) -> None:
    """Refuse several tasks."""
    require(len(weights_of(task)) < 2, f"train.py alone takes several tasks in one run, got {task}")


Epochs = Positive

JUDGE = between(TrainerConfig, "judge_model", "judge_key_variable")
ALGORITHM = between(TrainerConfig, "algorithm", "max_temperature")
ROLLOUT = frozenset(["prompts_per_step", "group_size", "temperature", "max_unscorable_frac", "opponent", "overlap"])
ELSEWHERE = frozenset(["preflight", "preflight_only"])


@dataclass(init=False)
class FineTuningConfig(TrainerConfig):
    """What fine-tuning shares with `TrainerConfig`. A setting of the same name means the same."""

    not_taken: ClassVar[frozenset[str]] = ALGORITHM | ROLLOUT | ELSEWHERE | JUDGE

    def check(self) -> None:
        """Refuse several tasks, and what `TrainerConfig` refuses."""
        require_one_task(self.task)
        _ = self.trainer

    @property
    def translated(self) -> dict[str, Any]:
        """The settings that `TrainerConfig` calls by other names, by those names."""
        raise NotImplementedError

    @property
    def trainer(self) -> TrainerConfig:
        """The config from which the run is assembled."""
        shared = settings_of(TrainerConfig).keys() & settings_of(type(self)).keys()
        return TrainerConfig(**{**{name: getattr(self, name) for name in shared}, **self.translated})


@dataclass(init=False)
class SftConfig(FineTuningConfig):
    """Fine-tune a language model on rows of prompt and response.

    python -m minrl sft --data rows.jsonl --model-id Qwen/Qwen3-0.6B --learning-rate 1e-5
    python -m minrl sft --data rows.jsonl --model-id Qwen/Qwen3-0.6B --lora-rank 16
    python -m minrl sft --data rows.jsonl --task countdown --max-examples 128
    python -m minrl sft --data rows.jsonl --task gsm8k --prompt-column question --response-column answer
    python -m minrl sft --resume latest
    """

    program = "sft"
    extends = ("steps", "epochs")
    often: ClassVar[tuple[str, ...]] = (
        "data",
        "model_id",
        "task",
        "epochs",
        "learning_rate",
        "batch_size",
        "max_examples",
        "seed",
        "resume",
    )

    data: LocalPath = ""
    """File of rows (JSONL, a JSON list, CSV) with a prompt (text or chat messages) and a response (text)."""
    prompt_column: str = "prompt"
    """Column of the prompt. Rows with `messages` that end with the assistant's need neither column."""
    response_column: str = "response"
    """Column of the response."""
    loss_on: Literal["last", "assistant"] = "last"
    """The answers of a conversation that are learned: the last, or each of the assistant's (whose message may say
    `weight: 0`)."""
    prompt_format: Literal["auto", "chat", "text"] = "auto"
    """How a text prompt is formatted. chat: as a user's message, through the chat template. text: as it is.
    auto: like the task's own prompts; without a task, chat if the tokenizer has a template."""
    max_examples: Natural = 0
    """Number of distinct rows to train on, chosen by the seed; a larger number adds rows to them. 0: all."""
    max_row_tokens: Natural = 0
    """Rows of more tokens, prompt and response together, are left out and counted. 0: the model's context length."""
    held_out_share: ShareBelowOne = 0.05
    """Share of the file's prompts that are held out to measure their loss. 0: none."""
    eval_data: LocalPath = ""
    """File of rows whose loss is measured, instead of a share of --data."""
    steps: Natural = 0
    """Optimizer steps. 0: as many as the epochs take."""
    epochs: Epochs = 3.0
    """Passes over the rows if `steps` is 0; the last batch may be smaller."""
    batch_size: CountBySize = None
    """Rows of each optimizer step, over all processes. None: by the model's size."""
    task: str = ""
    """A task that is evaluated: a name, or path/to/file.py:name. Empty: none."""
    resume: str = ""
    """Continue a run: `latest`, a run's folder or a checkpoint. Only --steps, --epochs, --stop-at and --patience may
    change. `auto`: continue the run of --run-name, or begin it."""

    @property
    def what(self) -> str:
        """What a run's name begins with: the rows' file, such as `correct-sft`, as a folder's name can hold it."""
        name = re.sub(r"[^\w.+=-]+", "-", Path(self.data).stem).strip("-.") or "rows"
        return f"{name[:60]}-sft"

    @property
    def translated(self) -> dict[str, Any]:
        """Without a task nothing is sampled, and no other engine is started."""
        engine = self.engine if self.task else "torch"
        return {"steps": max(1, self.steps), "prompts_per_step": self.batch_size, "group_size": 8, "engine": engine}


@dataclass(init=False)
class ExpertIterationConfig(FineTuningConfig):
    """Repeat: sample, keep the correct completions, fine-tune on them.

    python -m minrl expert-iteration --task countdown --rounds 5
    python -m minrl expert-iteration --task gsm8k --model-id Qwen/Qwen3-0.6B
    python -m minrl expert-iteration --task hanoi --samples-per-example 16 --max-per-example 2
    python -m minrl expert-iteration --resume latest
    """

    program = "expert-iteration"
    extends = ("rounds",)
    often: ClassVar[tuple[str, ...]] = (
        *("task", "model_id", "rounds", "examples_per_round", "samples_per_example"),
        *("learning_rate", "seed", "resume"),
    )

    rounds: Count = 5
    """Rounds of sampling, filtering and fine-tuning."""
    examples_per_round: CountBySize = None
    """Training examples of each round, over all processes (all if the task has fewer). None: by the model's size."""
    sample_batch_size: Count = 48
    """Examples sampled at a time, over all processes. Only memory and speed depend on it."""
    samples_per_example: CountBySize = None
    """Completions sampled for each example. None: by the model's size."""
    max_per_example: Natural = 4
    """Largest number of different correct completions of an example in a round. 0: all."""
    epochs_per_round: Epochs = 1.0
    """Passes over the kept completions of a round; the last batch may be smaller."""
    batch_size: CountBySize = None
    """Completions of each optimizer step, over all processes. None: by the model's size."""
    resume: str = ""
    """Continue a run: `latest`, a run's folder or a checkpoint. Only --rounds, --stop-at and --patience may change.
    `auto`: continue the run of --run-name, or begin it."""
    eval_every: Natural = 1
    """Evaluate every this many rounds, in addition to before and after. 0: only before and after."""
    save_every: Natural = 1
    """Save a checkpoint every this many rounds and at the end. 0: only at the end."""
    rollouts_every: Natural = 1
    """Write rollouts to the run's folder every this many rounds. 0: never."""
    not_taken: ClassVar[frozenset[str]] = FineTuningConfig.not_taken - {"temperature", "max_unscorable_frac"} | {
        "steps"
    }

    @property
    def what(self) -> str:
        """What a run's name begins with: the task, such as `countdown-expert-iteration`."""
        return f"{task_key(self.task).replace('/', '-')}-expert-iteration"

    @property
    def translated(self) -> dict[str, Any]:
        """A round is a step."""
        return {
            "steps": self.rounds,
            "prompts_per_step": self.sample_batch_size,
            "group_size": self.samples_per_example,
        }


@dataclass(init=False)
class FilterConfig(RewardConfig):
    """Keep the rows of a file whose response is correct by a task's reward.

    python -m minrl filter --task countdown --data samples.jsonl --output correct.jsonl
    python -m minrl filter --task gsm8k --data samples.jsonl --output good.jsonl --min-reward 0.5
    """

    data: LocalPath = ""
    """JSONL file of rows with `response` (or `completion`) and the fields that the task's reward reads."""
    output: LocalPath = ""
    """Where the correct rows go, as they are and in order."""
    min_reward: float | None = None
    """Keep rows with at least this reward. None: those whose reward is at its maximum, if the task names one."""

    def check(self) -> None:
        """Refuse to write over the data."""
        super().check()
        for name in ("data", "output"):
            require(bool(getattr(self, name)), f"{name} has no default: give --{name}")
        require(
            Path(self.data).resolve() != Path(self.output).resolve(),
            f"output must be another file than data, got {self.output}",
        )
