"""Every setting of `minrl evaluate`, with its unit and its check."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Literal

from minrl.config import EngineConfig, JudgeConfig, ModelConfig, RolloutConfig
from minrl.dataflow import require
from minrl.utils.cli import ALONE
from minrl.utils.keys import require_variable
from minrl.utils.settings import Bound, Calls, Count, Grouped, Natural, Positive, Seed, Settings
from minrl.utils.task_names import by_task, data_by_task, limits_by_task, split_tool, task_key, weights_of

Stage = Literal["generate", "score"]

STAGES: tuple[Stage, ...] = ("generate", "score")
"""The stages that can be forced, in order; the report is made each time."""

DEFAULT_TASK = "countdown"

API = "openai:"
"""Begins the name of a model behind a server."""


@dataclass(frozen=True, kw_only=True)
class ApiConfig(Settings):
    """Requests to models behind an OpenAI-compatible server."""

    api_concurrency: Calls = 8
    """Concurrent requests."""
    api_retries: Natural = 4
    """Further attempts after a busy, failing or silent server, with growing pauses."""
    api_timeout_s: Positive = 120.0
    """Longest silence of the server in one attempt, in seconds."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key. The default is read for OpenAI's own host alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_variable("api_key_variable", self.api_key_variable)


@dataclass(frozen=True, kw_only=True, init=False)
class EvaluateConfig(Grouped):
    """Evaluate models on tasks, or score existing completions.

    python -m minrl evaluate --checkpoint countdown-grpo-seed0
    python -m minrl evaluate --checkpoint Qwen/Qwen3-0.6B --task gsm8k --examples 256
    python -m minrl evaluate --models BASE countdown-grpo-seed0 --tasks countdown hanoi --output evaluations/mine
    python -m minrl evaluate --models openai:MODEL@http://127.0.0.1:8000/v1 --task gsm8k
    python -m minrl evaluate --task countdown --completions mine.jsonl --output scored.jsonl
    """

    default_task = DEFAULT_TASK

    often = ("checkpoint", "models", "task", "tasks", "completions", "output", "examples", "samples", "temperature")

    models: tuple[str, ...] = ()
    """Checkpoints, folders of them, runs, local or hub models, or openai:MODEL@BASE_URL. The first is the baseline."""
    checkpoint: str = ""
    """One model: the short form of --models."""
    tasks: tuple[str, ...] = ()
    """Tasks: built-in ones, those of installed packages, or path/to/file.py:name."""
    task: str = ""
    """One task: the short form of --tasks. Several with weights, as in train.py, also have one joint score.
    Neither given: the task that the run was trained on, else countdown."""
    runs_dir: str = "runs"
    """Folder of runs that are given by name."""
    completions: str = ""
    """JSONL file with `completion` and the fields that the reward reads; no model is loaded."""
    output: str = ""
    """Folder of the evaluation, or NAME.json for its result alone. Empty: a folder of its own in evaluations/."""
    every_checkpoint: bool = False
    """Evaluate all checkpoints of a run instead of its newest: the score over the training steps."""
    data_path: str = ""
    """Local file in place of the task's dataset. Empty: what the task names or generates."""
    task_data_path: str = ""
    """Local files of individual tasks, such as math:a.jsonl,code:b.jsonl."""
    examples: Count = 512
    """Held-out examples (all if the task has fewer)."""
    samples: Annotated[int, Bound(least=1, zero="automatic")] = 0
    """Sampled completions per example. 0: as many as it takes for 500 in all."""
    temperature: Annotated[float, Bound(above=0, zero="greedy")] = 1.0
    """Temperature of the samples. 0: one greedy completion of each example alone."""
    greedy: bool = True
    """Also evaluate a greedy completion of each example."""
    pass_at: tuple[int, ...] = ()
    """The values of k for pass@k. Empty: 1, 2, 4, ... and the number of samples."""
    max_tokens: Count = 192
    """Longest completion of one turn, in tokens. Default: a run's own, or 1024 for models that MinRL did not make."""
    task_max_tokens: str = ""
    """Longest completion of individual tasks, such as hanoi:256,countdown:64. The others have max_tokens."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion, in addition to the model's own end tokens."""
    seed: Seed = 0
    """Seed of the samples."""
    batch_size: Count = 256
    """Episodes that a local model plays at a time; they are lost if the program is killed."""
    reward_deadline_s: Positive = 30.0
    """Time limit of one reward in a worker, in seconds."""
    reward_workers: Natural = 0
    """Processes that compute rewards. 0: one per core that this process may use."""
    opponent: str = ""
    """Model that plays a task's frozen roles: as --checkpoint. Empty: the evaluated model itself."""
    force: tuple[Stage, ...] = field(default=(), metadata={ALONE: STAGES[:1]})
    """Stages to repeat: generate (and score), or score. Without a value: all."""
    dry_run: bool = False
    """Check models, tasks, data and folder and list what would be done, without generating."""
    charts: bool = True
    """Draw the charts."""
    quiet: bool = False
    """No progress bar; only warnings and the result on the screen."""
    api: ApiConfig = ApiConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    judge: JudgeConfig = JudgeConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.model.model_id, "evaluate.py takes the model as --checkpoint or --models, not --model-id")
        for one, several in (("checkpoint", "models"), ("task", "tasks")):
            given = getattr(self, one) and getattr(self, several)
            require(not given, f"--{one} is the short form of --{several}: name all under --{several}")
        require(
            bool(self.model_names) != bool(self.completions),
            "name either --checkpoint or --models (what to evaluate) or --completions (a file to score), "
            f"got {'both' if self.completions else 'neither'}",
        )
        require(
            not self.model.chat_template or any(not name.startswith(API) for name in self.model_names),
            "chat_template is for models loaded here, and a server has its own: leave it out",
        )
        require(
            not (self.completions and self.data_path),
            "data_path is of no use with --completions, whose rows hold what the reward reads: leave it out",
        )
        require(self.temperature > 0 or self.samples <= 1, "temperature 0 says the same again: leave out --samples")
        for name in ("models", "tasks"):
            twice = sorted({one for one in getattr(self, name) if getattr(self, name).count(one) > 1})
            require(not twice, f"--{name} names {', '.join(twice)} more than once")
        for k in self.pass_at:
            require(k >= 1, f"pass_at must be 1 or more, got {k}")
            require(
                k <= self.samples or not self.samples, f"pass_at {k} needs at least {k} --samples, got {self.samples}"
            )
        one_task = not self.data_path or len(self.task_names) == 1
        require(
            one_task, f"data_path is one task's data, and there are {len(self.task_names)} tasks: evaluate it alone"
        )
        keys = [task_key(name) for name in self.task_names]
        limits_by_task(self.task_max_tokens, keys)
        by_task("task_data_path", self.task_data_path, keys)
        _ = self.rollout  # its own checks

    @property
    def model_names(self) -> tuple[str, ...]:
        """The models, as the user named them."""
        return self.models or ((self.checkpoint,) if self.checkpoint else ())

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks, as the user named them."""
        return self.tasks or tuple(weights_of(self.task or DEFAULT_TASK))

    @property
    def weights(self) -> dict[str, Fraction]:
        """The weights of several tasks that have one score together, by `task_key`; empty if they have none."""
        weights = {task_key(name): weight for name, weight in weights_of(self.task).items()}
        return weights if len(weights) > 1 else {}

    def data_of(self, key: str) -> str:
        """The local file of a task; empty if it has none."""
        return data_by_task(self.task_data_path).get(split_tool(key)[0], self.data_path)

    def limit_of(self, key: str) -> int:
        """The longest completion of a task, in tokens."""
        return limits_by_task(self.task_max_tokens).get(key, self.max_tokens)

    @property
    def rollout(self) -> RolloutConfig:
        """How completions are sampled and rewarded."""
        return RolloutConfig(
            max_tokens=self.max_tokens,
            stop_strings=self.stop_strings,
            reward_deadline_s=self.reward_deadline_s,
            reward_workers=self.reward_workers,
        )

    def forced(self, stage: Stage) -> bool:
        """Whether the stage is done again, because it or one before it was named."""
        return any(STAGES.index(named) <= STAGES.index(stage) for named in self.force)
