"""The settings of a run: edit the defaults here, or give flags (`--group-size 4`), or a YAML file (`--config`).

What holds, in this order: a flag, then --config, then what stands in this file, then the table of sizes for what is
None here (`minrl/run/sizes.py`). A task's own options stand with the task.

>>> config = TrainerConfig(task="hanoi", group_size=4)
>>> config.group_size = 0
Traceback (most recent call last):
    ...
minrl.dataflow.UserError: group_size must be at least 1, got 0
"""

# mypy: disable-error-code="assignment"
# A setting BY_SIZE is None until the run starts; whoever reads it later finds a number.

import ast
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import minrl
from minrl.dataflow import require
from minrl.rewards.chat_client import checked_url, require_variable
from minrl.utils.other_names import ALIASES, HINTS
from minrl.utils.settings import (
    BY_SIZE,
    Bound,
    Calls,
    Count,
    LocalPath,
    Natural,
    NotNegative,
    PathOrName,
    Positive,
    Seed,
    Settings,
    Share,
    ShareBelowOne,
    between,
    flag_of,
    meant,
)
from minrl.utils.task_names import entries_of, played_with, split_tool, task_key, weights_of

OptionsByTask = Mapping[str, Any]
"""The options dataclass of each task, by `task_key`."""

CHAT_TEMPLATES = ("chatml", "plain")
"""The templates of `minrl.models.chat_templates`."""

RUN_NAME = re.compile(r"(?!(latest|auto|report)$|base-|step_)[A-Za-z0-9][\w.+=-]{,199}", re.ASCII)
"""A run's name: it stands in paths and commands without quotes, and some names mean something else there."""

PROMPT, ANSWER, COMPLETION = "{prompt}", "{answer}", "{completion}"
"""What a teacher's or a judge's prompt shows."""

ENDS = ("stop_at", "patience")
"""The settings by which a run ends before its last step."""

Temperature = Annotated[float, Bound(least=1e-3)]  # logits divided by less are beyond float32
CountBySize = Annotated[int, Bound(least=1), BY_SIZE]
NaturalBySize = Annotated[int, Bound(least=0), BY_SIZE]
RateBySize = Annotated[float, Bound(least=0), BY_SIZE]


def algorithm_names() -> list[str]:
    """The rows of `minrl.algorithms.ALGORITHMS`: of its source where it is not imported yet, since it imports torch."""
    if rows := getattr(sys.modules.get("minrl.algorithms"), "ALGORITHMS", None):
        return list(rows)
    source = ast.parse(Path(minrl.__file__).with_name("algorithms.py").read_text(encoding="utf-8"))
    (table,) = (
        one for one in source.body if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == "ALGORITHMS"
    )
    assert isinstance(table.value, ast.Dict)
    return [str(row.value) for row in table.value.keys if isinstance(row, ast.Constant)]


@dataclass(init=False)
class TrainerConfig(Settings):
    """Make a language model better at a task.

    python -m minrl train                                          the default task, on any machine
    python -m minrl train --task hanoi --steps 200 --hanoi.max-disks 3
    python -m minrl train --model-id Qwen/Qwen3-0.6B --task gsm8k  a model of the hub or of a local folder
    python -m minrl train --task path/to/sevens.py:sevens          a task of your own
    python -m minrl train --resume latest                          continue where it stopped
    """

    # The run

    steps: Count = 150
    """Training steps: rollout, update, sync."""
    seed: Seed = 0
    """Seed of the data order and of every sampled completion."""
    resume: str = ""
    """Continue a run: `latest`, a run's folder or a checkpoint. Only --steps, --stop-at, --patience,
    --push-to-hub and the places of servers may change. `auto`: continue the run of --run-name, or begin it."""
    preflight: bool = True
    """Check the settings and a few samples before step 1, and report problems."""
    preflight_only: bool = False
    """Stop after the preflight."""

    # What is sampled in each step

    task: str = "countdown"
    """The task: a name, or path/to/file.py:name. Several with weights: countdown:2,hanoi:1 (two thirds countdown)."""
    tools: str = ""
    """Functions that the model may call: path/to/file.py:calculator, several by commas, or those of an MCP server:
    mcp:COMMAND. They join the task's name."""
    data_path: LocalPath = ""
    """Local file in place of the task's dataset. Empty: what the task names or generates."""
    prompts_per_step: CountBySize = None
    """Examples drawn in each step, over all processes. None: by the model's size."""
    group_size: CountBySize = None
    """Completions sampled for each example and compared with each other. None: by the model's size."""
    max_tokens: CountBySize = None
    """Longest completion of one turn, in tokens; longer ones are truncated. None: by the model's size."""
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
    opponent: PathOrName = ""
    """Model that plays a task's frozen roles: a checkpoint, a run, a folder or a hub name. Empty: the start model."""
    opponent_temperature: NotNegative = 0.0
    """Sampling temperature of the frozen roles. 0: the policy's."""
    opponent_max_tokens: Natural = 0
    """Longest completion of one turn of the frozen roles, in tokens. 0: the policy's."""

    # The algorithm: how rewards, and a teacher, become a gradient

    algorithm: str = "grpo"
    """Advantages and loss: a row of ALGORITHMS, or path/to/file.py:row."""
    clip_low: Annotated[float, Bound(least=0, below=1)] = 0.0
    """The ratio of a token with negative advantage is clipped below 1 - clip_low. 0: the algorithm's own."""
    clip_high: NotNegative = 0.0
    """The ratio of a token with positive advantage is clipped above 1 + clip_high. 0: the algorithm's own."""
    clip_dual: NotNegative = 0.0
    """The ratio of a token with negative advantage is clipped above clip_dual. 0: the algorithm's own."""
    passes_per_step: Count = 1
    """Passes over each step's rollouts. Algorithms whose loss has no ratio take one."""
    minibatches_per_pass: Count = 1
    """Optimizer steps per pass, each on whole groups. Without a ratio the later ones are off-policy and uncorrected."""
    importance_cap: NotNegative = 2.0
    """Upper bound of the importance weight, which corrects for an engine whose log-probabilities differ. 0: off."""
    importance_floor: ShareBelowOne = 0.0
    """Lower bound of the importance weight: IcePop is 0.5, with importance_cap 5 and importance_mode mask. 0: none."""
    importance_level: Literal["auto", "token", "sequence", "geometric"] = "auto"
    """Importance weight of each token, of the sequence, or its geometric mean. auto: as the algorithm's ratio."""
    importance_mode: Literal["truncate", "mask"] = "truncate"
    """Weights outside the bounds are set to the nearer one (truncate) or to 0 (mask)."""
    off_policy_mask: NotNegative = 0.0
    """Completions of negative advantage leave the policy's loss if the policy gives them less probability than the
    engine did, by more than this in nats per token, such as 0.5. 0: off."""
    reward_parts: str = ""
    """Parts of the reward, with weights, that --algorithm gdpo compares one by one: answer,format:0.5. Empty: none."""
    turn_credit: Literal["episode", "turn"] = "episode"
    """What the turns of an episode are trained on: its reward, the same for all (episode), or each on what it and later
    turns earn, compared at the same turn of the group (turn)."""
    kl_coef: NotNegative = 0.0
    """Weight of the KL divergence from the policy to the model the run started from, which is kept frozen. 0: off."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the KL divergence is estimated from the sampled tokens (minrl.losses)."""
    kl_gradient: Literal["exact", "naive"] = "exact"
    """exact: the gradient of the KL divergence. naive: that of the estimator, as in many trainers (biased)."""
    entropy_coef: NotNegative = 0.0
    """Weight of the bonus for entropy, exact over the vocabulary. 0: off."""
    mask_truncated: bool = False
    """Leave truncated completions out of the loss; their rewards stay in the group's mean."""
    overlong_buffer: Natural = 0
    """A penalty on the reward grows from 0 to 1 over this many tokens before max_tokens. 0: off."""
    length_penalty: ShareBelowOne = 0.0
    """Share of the highest reward that a solved completion may lose by its length, relative to the group's other
    solved ones: half of it at their mean length. 0: off."""
    length_target: Natural = 0
    """Length that a completion should have, in tokens over all of its turns. 0: off."""
    teacher_id: PathOrName = ""
    """Model to distill: log teacher - log policy of each sampled token is added to its advantage, or replaces it
    (--algorithm distill). A checkpoint, run, folder or hub name with the policy's tokens. Empty: none."""
    teacher_prompt: str = ""
    """Text that the teacher reads in place of the prompt, with {prompt} and {answer} filled in. The teacher is then
    the policy itself, unless teacher_id is given. Empty: the prompt."""
    teacher_weight: Positive = 1.0
    """Weight of log teacher - log policy (nats) in the advantage."""

    # How earlier steps determine the next step's examples and temperature

    refill_rounds: Natural = 0
    """Rounds of resampling: groups whose rewards are all equal are replaced by groups of other examples. 0: none."""
    curriculum: bool = False
    """Draw examples by observed solve rate: those solved half of the time, or never tried, first."""
    sampler: str = ""
    """Function that chooses each step's examples: path/to/file.py:name (docs/algorithms.md). Empty: all in turn."""
    target_reward_std: NotNegative = 0.0
    """Adapt the temperature until the mean standard deviation of rewards within groups is this value. 0: off."""
    min_temperature: Positive = 0.5
    """Lower bound of the adapted temperature."""
    max_temperature: Positive = 1.5
    """Upper bound of the adapted temperature."""

    # The optimizer: AdamW, and the size of a forward pass

    learning_rate: RateBySize = None
    """Peak learning rate. None: by the model's size, and about ten times higher for adapters."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls from its peak to its end in the last step. constant: not at all."""
    final_learning_rate_frac: Share = 0.1
    """Learning rate of the last step of a falling schedule, as a share of the peak."""
    warmup_steps: Natural = 5
    """Steps over which the learning rate rises linearly from 0."""
    optimizer: Literal["adamw", "adamw8bit"] = "adamw"
    """adamw: torch's, fused. adamw8bit: moments in 8 bits, a quarter of the memory, by bitsandbytes."""
    weight_decay: NotNegative = 0.0
    """AdamW's decoupled weight decay, on matrices only."""
    adam_beta1: ShareBelowOne = 0.9
    """Decay of AdamW's first moment."""
    adam_beta2: ShareBelowOne = 0.95
    """Decay of AdamW's second moment."""
    max_grad_norm: NotNegative = 1.0
    """Gradients with a larger L2 norm are scaled down to it. 0: never."""
    micro_batch_tokens: Count = 8192
    """Tokens in one forward pass. Only memory and speed depend on it, not the gradient."""

    # Low-rank adapters instead of training all weights

    lora_rank: Natural = 0
    """Rank of the adapters. 0: none, all weights are trained."""
    lora_alpha: Count = 32
    """The product of an adapter's two matrices is scaled by lora_alpha / lora_rank."""
    lora_target_modules: str = "all-linear"
    """all-linear (without the output head), ends of layer names (q_proj,v_proj), or a regular expression."""
    lora_checkpoint: Literal["merged", "adapter"] = "merged"
    """merged: checkpoints are whole models, with adapters beside them. adapter: adapters only."""
    lora_serve: Literal["merged", "adapter"] = "merged"
    """What vLLM samples with. merged: whole weights after each update. adapter: the base model, loaded once, and
    adapters, which are small to move and take longer to sample with."""

    # The model

    model_id: PathOrName = ""
    """Hub name, folder or GGUF file of a model. Empty: the small base model that MinRL makes itself."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products; weights are float32. auto: bfloat16 on GPUs from Ampere on, else float32."""
    chat_template: PathOrName = ""
    """Jinja file, or chatml or plain (question and answer). Empty: the model's own chat template."""
    chat_template_options: str = ""
    """JSON object passed to the chat template, such as {"enable_thinking": false}. Empty: none."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy trains. auto: CUDA if there is a GPU."""
    threads: Annotated[int, Bound(least=0, most=1024)] = 0
    """CPU threads of torch. 0: one per core that this process may use."""
    sharding: Literal["none", "full", "hybrid"] = "none"
    """full: weights, gradients and moments are split over all processes. hybrid: within each machine."""
    compile: bool = False
    """Compile the layers of the update with torch.compile, attention left out. Never run on a GPU so far."""
    activation_checkpointing: Literal["auto", "always", "never"] = "auto"
    """Recompute activations in the backward pass. auto: if they do not fit the free memory."""

    # The small base model that is made if no model_id is given

    base_hidden_size: Count = 192
    """Width of the residual stream."""
    base_layers: Count = 2
    """Decoder layers."""
    base_heads: Annotated[int, Bound(least=2)] = 4
    """Attention heads of 32 dimensions each; half as many for keys and values."""
    base_steps: Count = 700
    """Optimizer steps of the warm start (supervised fine-tuning on imperfect demonstrations)."""

    # The engine: how completions are sampled

    engine: Literal["auto", "torch", "vllm", "vllm-server"] = "auto"
    """The sampling engine. auto: vLLM on CUDA if it is installed, else torch. vllm-server: vLLM on other machines."""
    engine_urls: str = ""
    """Servers for --engine vllm-server, separated by commas, such as http://127.0.0.1:8001."""
    engine_weights_dir: LocalPath = ""
    """Folder through which the servers receive the weights; this run and its servers must see it."""
    sync_check_every: Natural = 1
    """Compare vLLM's weights and log-probabilities with the policy's every this many syncs. 0: never."""
    engine_timeout_s: NotNegative = 1800.0
    """The run ends when one call of vLLM takes longer than this many seconds. 0: no limit."""
    engine_context_length: Natural = 0
    """vLLM's context length, prompt and completion together, in tokens. 0: the model's."""
    engine_cache_gib: NotNegative = 0.0
    """Memory for keys and values of the torch engine, and of vLLM on a CPU, in GiB. 0: a whole batch, at most 4 GiB."""
    engine_memory_frac: Annotated[float, Bound(above=0, below=1)] = 0.45
    """Share of the GPU's memory that vLLM takes while it samples."""
    engine_sleep: bool = True
    """Whether vLLM on CUDA frees its key-value memory while the policy trains."""
    overlap: bool = False
    """Sample the next step's completions while a step is updated: with --engine vllm-server, and with weights that are
    one step older than those that are trained, which importance weights correct for."""

    # The held-out score: before, during and after

    eval_every: Natural = 25
    """Evaluate every this many steps, in addition to before and after. 0: only before and after."""
    eval_examples: CountBySize = None
    """Held-out examples in each evaluation (all if the task has fewer). None: by the model's size."""
    eval_samples: NaturalBySize = None
    """Sampled completions per held-out example. 0: 500 samples in all. None: by the model's size."""
    eval_temperature: Temperature = 1.0
    """Temperature of the sampled evaluation; greedy decoding is evaluated too."""
    eval_tasks: str = ""
    """Further tasks to evaluate at the same steps, separated by commas."""
    eval_first: bool = True
    """Evaluate before the first step."""
    stop_at: ShareBelowOne = 0.0
    """End the run when the lower bound of held-out pass@1 reaches this value, such as 0.9. 0: off."""
    patience: Natural = 0
    """End the run after this many evaluations without a better lower bound of held-out pass@1. 0: off."""

    # A chat model that judges completions: a further part of the task's reward

    judge_model: str = ""
    """Name of the judge at its endpoint. Empty: no judge."""
    judge_base_url: str = ""
    """OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1. Empty: OpenAI's own."""
    judge_weight: Annotated[float, Bound(least=0)] = 0.2
    """The judge's share of the reward; the task's own reward has the rest. 0: logged only."""
    judge_adds: bool = False
    """Add judge_weight times the judge's score, from 0 to 1, to the task's reward, which is no share then."""
    judge_criteria: str = ""
    """Criteria by commas, such as quality,correctness,idiom: the judge ends with a JSON object of a number from 0 to 10
    for each, and its score is their mean. Empty: it ends with one score."""
    judge_prompt: str = ""
    """Text in which {prompt}, {reference} and {completion} are filled in. Empty: MinRL's own."""
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
    judge_cache: LocalPath = "checkpoints/judge_cache.sqlite"
    """File that caches the judge's replies. Empty: cached for this run only."""
    judge_key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key of the endpoint. The default is read for OpenAI's own host alone."""

    # What the run writes, and where

    run_name: str = ""
    """Name of the run's folders. Empty: task, algorithm and seed."""
    runs_dir: LocalPath = "runs"
    """Folder of the runs: metrics, rollouts, summary."""
    checkpoints_dir: LocalPath = "checkpoints"
    """Folder of the checkpoints and of the cached base model."""
    save_every: Natural = 25
    """Save a checkpoint every this many steps and at the end. 0: only at the end."""
    keep_checkpoints: Natural = 3
    """How many checkpoints of this run stay on disk, in addition to the best. 0: all."""
    keep_best: bool = True
    """Keep the policy of the best evaluation, by the lower bound of held-out pass@1: `RUN@best` names it."""
    save_moments: Literal["all", "last"] = "all"
    """Whose optimizer state stays on disk: that of all checkpoints but a best one that only its score keeps (all), or
    of the two newest (last). A run resumes, and verify repeats, only from a checkpoint that has it."""
    rollouts_every: Natural = 10
    """Write rollouts to the run's folder every this many steps, and in the first and the last. 0: never."""
    push_to_hub: str = ""
    """Repository of the Hugging Face hub, user/name, to which the best or else the last checkpoint is pushed at the end
    of the run. A new one is public, as with transformers and TRL, unless its organization says otherwise. Empty: none.
    """
    logger: Literal["tensorboard", "wandb", "trackio"] = "tensorboard"
    """Where curves and samples are shown. wandb, trackio: Weights & Biases or trackio (the extra of that name) as well
    as TensorBoard."""
    quiet: bool = False
    """No progress bar; only warnings and the result on the screen."""

    program: ClassVar[str] = "train"
    """The command that makes the run."""
    extends: ClassVar[tuple[str, ...]] = ("steps",)
    """The settings of the run's end, which a resume may change."""
    often: ClassVar[tuple[str, ...]] = (
        *("task", "model_id", "algorithm", "steps", "learning_rate", "prompts_per_step", "group_size", "max_tokens"),
        *("lora_rank", "eval_every", "engine", "run_name", "seed", "resume"),
    )
    aliases: ClassVar[Mapping[str, str]] = ALIASES
    hints: ClassVar[Mapping[str, str]] = HINTS

    def check(self) -> None:
        """Refuse settings that contradict each other: when the config is made, and when a run starts."""
        rows, asked = algorithm_names(), self.algorithm
        known = asked in rows or ".py:" in asked
        also = "; a file of yours is named with its row, path/to/file.py:row" if asked.endswith(".py") else ""
        also = also or "; grpo has PPO's clipped loss, and no row has a critic" * (asked == "ppo")
        require(known, f"no algorithm {asked!r}: choose one of {', '.join(rows)}{also or meant(asked, rows)}")
        function = not self.sampler or ".py:" in self.sampler
        require(function, f"sampler must name a function of a file, path/to/file.py:name, got {self.sampler!r}")
        require(not (self.sampler and self.curriculum), "sampler and curriculum both choose examples: leave one out")
        for name in ("algorithm", "sampler"):
            path, _, row = getattr(self, name).rpartition(":")
            if path.endswith(".py"):
                self.__dict__[name] = f"{os.path.abspath(path)}:{row}"
        self._join_tools()
        *_, last = ["", *self.task_weights]
        for name, fix in (
            ("data_path", f"give each its own, such as {flag_of(last)}.data-path"),
            ("target_reward_std", "leave it out"),
            ("teacher_prompt", "leave it out"),
        ):
            one = not getattr(self, name) or len(self.task_weights) < 2
            require(one, f"{name} is of one task, and {self.task} are several: {fix}")
        require(all(self.stop_strings), "stop_strings must not be empty: every text contains the empty one")
        self._check_algorithm()
        self._check_models()
        for name in ENDS:
            used = not getattr(self, name) or (self.eval_every > 0 and bool(self.task))
            require(used, f"{name} looks at the held-out score of a task during the run: give --task and --eval-every")
        name = self.run_name
        require(
            not name or bool(RUN_NAME.fullmatch(name)),
            f"run_name must be a folder's name of letters, digits and . _ - + =, not latest, auto, report, base-... or "
            f"step_..., got {name!r}",
        )
        for name in ("runs_dir", "checkpoints_dir"):
            require(bool(getattr(self, name)), f"{name} must name a folder, got '': leave it out for {name[:-4]}/")

    def _join_tools(self) -> None:
        """Make the tools a part of the task's name, by which every command finds them."""
        if self.tools:
            self.__dict__.update(task=played_with(self.task, self.tools), tools="")

    def _check_algorithm(self) -> None:
        require(self.clip_dual == 0 or self.clip_dual > 1, f"clip_dual must be 0 or above 1, got {self.clip_dual}")
        cap = self.importance_cap
        require(cap == 0 or cap >= 1, f"importance_cap must be 0 (off) or at least 1, got {cap}")
        self._require_use(["importance_floor"], cap > 0, "--importance-cap")
        minibatches, prompts = self.minibatches_per_pass, self.prompts_per_step
        several = f"minibatches_per_pass ({minibatches}) must not exceed prompts_per_step ({prompts}), of whole groups"
        require(prompts is None or minibatches <= prompts, several)
        two = f"length_penalty {self.length_penalty:g} and length_target {self.length_target} contradict: leave one out"
        require(not (self.length_penalty and self.length_target), two)
        zero = "the naive gradient of k1 is 0 on average: choose kl_gradient exact, or another kl_estimator"
        require((self.kl_estimator, self.kl_gradient) != ("k1", "naive"), zero)
        low, high = self.min_temperature, self.max_temperature
        require(low <= high, f"min_temperature must be at most max_temperature, got {low} and {high}")
        self._require_use(["teacher_weight"], self.has_teacher, "--teacher-id or --teacher-prompt")
        shown = not self.teacher_prompt or PROMPT in self.teacher_prompt
        require(shown, f"teacher_prompt must have {PROMPT} in it, got {self.teacher_prompt[:80]!r}")

    def _check_models(self) -> None:
        options = self.chat_template_options
        require(
            isinstance(self.template_options, dict), f"chat_template_options must be a JSON object, got {options!r}"
        )
        template = self.chat_template
        require(
            template in ("", *CHAT_TEMPLATES) or "." in template or "/" in template,  # a resumed run needs no file
            f"chat_template must be a file or one of {', '.join(CHAT_TEMPLATES)}, got {template!r}"
            + meant(template, CHAT_TEMPLATES),
        )
        whole = f"--optimizer {self.optimizer} takes whole weights only: use adamw with --sharding {self.sharding}"
        require(self.sharding == "none" or self.optimizer == "adamw", whole)
        require(not self.compile or self.sharding == "none", "compile is for whole weights: leave it or sharding out")
        lora = ["lora_alpha", "lora_target_modules", "lora_checkpoint", "lora_serve"]
        self._require_use(lora, self.lora_rank > 0, "--lora-rank")
        require(bool(self.lora_target_modules.strip(", ")), "lora_target_modules must name at least one layer")
        require(self.base_heads % 2 == 0, f"base_heads must be even, got {self.base_heads}")
        served = self.engine == "vllm-server"
        self._require_use(["engine_urls", "engine_weights_dir", "overlap"], served, "--engine vllm-server")
        for name, what in (("engine_urls", "the servers"), ("engine_weights_dir", "a folder that the servers see too")):
            require(bool(getattr(self, name)) or not served, f"engine vllm-server needs {name}: name {what}")
        uncorrected = "overlap trains on what older weights sampled, and importance_cap 0 corrects for nothing"
        require(not self.overlap or self.importance_cap > 0, f"{uncorrected}: leave one out")
        early = "overlap samples a step before the rewards are known that target_reward_std adapts the temperature to"
        require(not (self.overlap and self.target_reward_std), f"{early}: leave one out")
        judged = ["judge_base_url", "judge_prompt", "judge_adds", "judge_criteria"]
        self._require_use(judged, bool(self.judge_model), "--judge-model")
        share = f"judge_weight is a share below 1, got {self.judge_weight:g}: set judge_adds for one that is added"
        require(self.judge_adds or self.judge_weight < 1, share)
        require_variable("judge_key_variable", self.judge_key_variable)
        checked_url(self.judge_base_url)
        shown = not self.judge_prompt or COMPLETION in self.judge_prompt
        require(shown, f"judge_prompt must have {COMPLETION} in it, got {self.judge_prompt[:80]!r}")

    def _require_use(self, names: Iterable[str], used: bool, by: str) -> None:
        """Refuse values that nothing reads."""
        for name in names:
            unused = not (used or self.resume) and getattr(self, name) != getattr(type(self), name)
            require(not unused, f"{name} is read only with {by}: give that too, or leave it out")

    @property
    def trainer(self) -> "TrainerConfig":
        """The config from which a run is assembled: this one. Configs of other programs translate theirs."""
        return self

    @property
    def task_names(self) -> tuple[str, ...]:
        """The trained tasks, if there are any, and the other evaluated tasks."""
        return (*weights_of(self.task), *self.other_tasks)

    @property
    def other_tasks(self) -> list[str]:
        """The names in `eval_tasks`."""
        return entries_of(self.eval_tasks)

    @property
    def task_weights(self) -> dict[str, Fraction]:
        """The weight of each task that is trained, by `task_key`."""
        return {task_key(name): weight for name, weight in weights_of(self.task).items()}

    def data_of(self, key: str) -> str:
        """The local file of a task without one of its own; empty if it has none."""
        return self.data_path if split_tool(key)[0] in {split_tool(name)[0] for name in self.task_weights} else ""

    @property
    def has_teacher(self) -> bool:
        """Whether tokens are compared with a teacher's."""
        return bool(self.teacher_id or self.teacher_prompt)

    @property
    def regularized(self) -> bool:
        """Whether a rollout has a gradient even if its advantage is 0."""
        return self.kl_coef > 0 or self.entropy_coef > 0 or self.has_teacher

    @property
    def target_names(self) -> list[str]:
        """The names in `lora_target_modules`; none if it is a regular expression.

        >>> TrainerConfig(lora_rank=8, lora_target_modules="q_proj, v_proj").target_names
        ['q_proj', 'v_proj']
        """
        names = [name.strip() for name in self.lora_target_modules.split(",")]
        return names if all(re.fullmatch(r"[\w.]*\w", name) for name in names) else []

    @property
    def template_options(self) -> Any:  # noqa: ANN401 - whatever the JSON says
        """The chat template's options; None if they are not JSON."""
        try:
            return json.loads(self.chat_template_options or "{}")
        except json.JSONDecodeError:
            return None

    @property
    def urls(self) -> list[str]:
        """The URLs in `engine_urls`."""
        return [url.strip() for url in self.engine_urls.split(",") if url.strip()]

    @property
    def what(self) -> str:
        """What a run's name begins with: task and algorithm, such as `countdown-grpo`."""
        task = re.sub(r"[^\w.+=-]+", "-", task_key(self.task), flags=re.ASCII)
        return f"{task}-{self.algorithm.rpartition(':')[2]}"


HOUSEKEEPING = between(TrainerConfig, "run_name", "quiet") | {"resume", "preflight", "preflight_only", "judge_cache"}
"""Settings of files and of the screen, which do not affect what is learned."""
