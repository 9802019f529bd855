"""Every setting of `minrl evaluate`, with its unit and its check."""

# mypy: disable-error-code="assignment"
# A setting by the model's size is None until the evaluation starts.

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from minrl.config import CountBySize, NaturalBySize, OptionsByTask, TrainerConfig
from minrl.dataflow import require
from minrl.rewards.chat_client import require_variable
from minrl.utils.settings import Calls, Count, Natural, NotNegative, Positive, between
from minrl.utils.task_names import option_keys, task_key, weights_of

API = "openai:"
"""Begins the name of a model behind a server."""

TAKEN = (
    between(TrainerConfig, "dtype", "threads")
    | between(TrainerConfig, "engine", "engine_sleep")
    | between(TrainerConfig, "judge_model", "judge_key_variable")
    | {"data_path", "max_tokens", "temperature", "stop_strings", "reward_deadline_s", "reward_workers"}
    | {"opponent", "opponent_temperature", "opponent_max_tokens", "runs_dir", "seed", "quiet"}
)
"""The settings of `TrainerConfig` that an evaluation has too."""


@dataclass(init=False)
class EvaluateConfig(TrainerConfig):
    """Evaluate models on tasks, or score existing completions.

    python -m minrl evaluate --checkpoint countdown-grpo-seed0
    python -m minrl evaluate --checkpoint Qwen/Qwen3-0.6B --task gsm8k --examples 256
    python -m minrl evaluate --models BASE countdown-grpo-seed0 --tasks countdown hanoi --output evaluations/mine
    python -m minrl evaluate --models openai:MODEL@http://127.0.0.1:8000/v1 --task gsm8k
    python -m minrl evaluate --config configs/baseline_math.yaml
    python -m minrl evaluate --task countdown --completions mine.jsonl --output scored.jsonl
    """

    default_task = "countdown"
    often = ("models", "tasks", "completions", "output", "examples", "samples", "temperature", "max_tokens")
    not_taken = frozenset(TrainerConfig.__dataclass_fields__) - TAKEN
    collected = ("models", "tasks")
    aliases: ClassVar = {"checkpoint": "models", "model": "models", "model_id": "models", "task": "tasks"}

    models: tuple[str, ...] = ()
    """Checkpoints, folders of them, runs, local or hub models, or openai:MODEL@BASE_URL. The first is the baseline."""
    tasks: tuple[str, ...] = ()
    """Tasks: built-in ones, those of installed packages, or path/to/file.py:name. Empty: the tasks that the run was
    trained on, else countdown."""
    completions: str = ""
    """JSONL file with `completion` and the fields that the reward reads; no model is loaded."""
    output: str = ""
    """Folder of the evaluation, or NAME.json for its result alone. Empty: evaluations/ and the names of the tasks."""
    every_checkpoint: bool = False
    """Evaluate all checkpoints of a run instead of its newest: the score over the training steps."""
    examples: CountBySize = None
    """Held-out examples (all if the task has fewer). None: by the model's size."""
    samples: NaturalBySize = None
    """Sampled completions per example. 0: as many as it takes for 500 in all. None: by the model's size."""
    temperature: NotNegative = 1.0
    """Temperature of the samples. 0: one greedy completion of each example alone. Default: a run's eval_temperature."""
    greedy: bool = True
    """Also evaluate a greedy completion of each example."""
    score: bool = True
    """Compute rewards. --no-score: write completions of single turns without them, such as on a machine that lacks what
    the reward needs; the command without it scores them, and plays nothing."""
    batch_size: Count = 256
    """Episodes that a local model plays at a time; they are lost if the program is killed."""
    charts: bool = True
    """Draw the charts."""
    api_concurrency: Calls = 8
    """Concurrent requests to a server."""
    api_retries: Natural = 4
    """Further attempts after a busy, failing or silent server, with growing pauses."""
    api_timeout_s: Positive = 120.0
    """Longest silence of the server in one attempt, in seconds."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key. The default is read for OpenAI's own host alone."""

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        self._check_models()
        require_variable("api_key_variable", self.api_key_variable)
        require(
            bool(self.models) != bool(self.completions),
            "name either --checkpoint or --models (what to evaluate) or --completions (a file to score), "
            f"got {'both' if self.completions else 'neither'}",
        )
        again = self.temperature == 0 and (self.samples or 0) > 1
        require(not again, "temperature 0 says the same again: leave out --samples")

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks, as the user named them."""
        return tuple(dict.fromkeys(name for one in self.tasks or [self.default_task] for name in weights_of(one)))

    @property
    def folder(self) -> Path:
        """The folder of the evaluation: what another command adds to it is named by what its rows are made from."""
        named = "+".join(map(task_key, self.task_names)).replace("/", "-")
        return Path("evaluations") / named if not self.output or self.output.endswith(".json") else Path(self.output)


def with_data(options: OptionsByTask, tasks: Sequence[str], data_path: str) -> OptionsByTask:
    """The options with the local file of the one task among them."""
    if not data_path or not tasks:
        return options
    key, *_ = option_keys(tasks[0])
    several = f"data_path is one task's data, and there are {len(tasks)} tasks: give --{key}.data-path"
    require(len(tasks) == 1, several)
    require(hasattr(options[key], "data_path"), f"{tasks[0]} takes no data_path, got {data_path}")
    return {**options, key: replace(options[key], data_path=data_path)}
