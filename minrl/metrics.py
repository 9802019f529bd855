"""Where numbers go: TensorBoard, metrics.jsonl, metrics.csv, rollouts and the summary, all in the run's folder.

A step is one line of metrics.jsonl with every scalar that TensorBoard gets. After a resume, what was written beyond
the checkpoint is cut away, so each step stands once.
"""

import csv
import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter

from minrl.types import Reward, Rollout

TAGS = (
    "reward/mean",
    "reward/std",
    "reward/solved_frac",
    "reward/unscorable_frac",
    "reward/zero_spread_group_frac",
    "rollout/completion_tokens_mean",
    "rollout/completion_tokens_max",
    "rollout/truncated_frac",
    "rollout/entropy",
    "rollout/temperature",
    "rollout/prompt_tokens_mean",
    "policy/loss",
    "policy/entropy",
    "policy/grad_norm",
    "policy/clip_low_frac",
    "policy/clip_high_frac",
    "policy/ratio_max",
    "policy/learning_rate",
    "policy/ref_kl",
    "policy/optimizer_steps",
    "policy/trained_token_frac",
    "engine/logprob_gap_mean",
    "engine/logprob_gap_max",
    "engine/kl",
    "engine/importance_cap_frac",
    "engine/ess",
    "update/computed_tokens",
    "sft/loss",
    "sft/entropy",
    "sft/tokens",
    "sft/epoch",
    "sft/optimizer_steps",
    "sft/held_out_loss",
    "sft/held_out_entropy",
    "expert/kept",
    "expert/kept_frac",
    "expert/solved_examples",
    "time/rollout_s",
    "time/update_s",
    "time/sync_s",
    "time/eval_s",
    "time/step_s",
    "speed/tokens_per_s",
    "speed/rollout_tokens_per_s",
    "memory/peak_gib",
    "memory/rollout_gib",
    "memory/update_gib",
    "memory/sync_gib",
    "memory/eval_gib",
)
"""Every fixed tag."""

OPEN_PREFIXES = ("reward/part/", "reward/role/", "eval/", "baseline/")
"""Prefixes under which names come from tasks."""

ROLLOUT_SCHEMA = 2
"""Version of a line in rollouts/step_*.jsonl.gz. 2: the text of each token, the turns of the whole episode."""


class MetricsLog:
    """The files of one run. `cut_after` removes what lies beyond a step, before anything new is written."""

    def __init__(self, folder: Path, cut_after: int | None = None) -> None:
        self.folder = folder
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        if cut_after is not None:
            cut_metrics(folder, cut_after)
            cut_events(folder, cut_after)
        self._writer = SummaryWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One step's scalars to TensorBoard and metrics.jsonl."""
        check_tags(metrics)
        for tag, value in metrics.items():
            self._writer.add_scalar(tag, value, step)
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    def text(self, tag: str, text: str, step: int) -> None:
        """Readable text in TensorBoard."""
        self._writer.add_text(tag, text, step)

    def rollouts(self, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """The rollouts of a step as compressed JSON lines, in a file that appears when it is whole."""
        path = self.folder / "rollouts" / f"step_{step:06d}.jsonl.gz"
        temporary = path.with_suffix(".tmp")
        with gzip.open(temporary, "wt", compresslevel=3) as file:
            for line in lines:
                file.write(json.dumps({"schema": ROLLOUT_SCHEMA, "step": step, **line}) + "\n")
        temporary.rename(path)

    def flush(self) -> None:
        """Everything on disk, and metrics.csv made anew."""
        self._writer.flush()
        write_csv(self.folder)

    def close(self) -> None:
        """Flush and release the files."""
        self.flush()
        self._writer.close()


def check_tags(metrics: Mapping[str, float]) -> None:
    """A tag that is on no list would be a curve that nobody documented."""
    unknown = [tag for tag in metrics if tag not in TAGS and not tag.startswith(OPEN_PREFIXES)]
    assert not unknown, f"tags that metrics.TAGS does not list: {unknown}"


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """What a step's rollouts look like, by tag. Rewards are over those that could be scored."""
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    rewards = [rollout.reward for rollout in scored if rollout.reward is not None]
    values = np.array([reward.value for reward in rewards] or [0.0])
    lengths = np.array([rollout.num_sampled for rollout in rollouts])
    surprise = sum(-sum(rollout.rollout_logprobs) for rollout in rollouts)
    metrics = {
        "reward/mean": float(values.mean()),
        "reward/std": float(values.std()),
        "reward/solved_frac": float(np.mean([float(reward.solved) for reward in rewards] or [0.0])),
        "reward/unscorable_frac": 1 - len(scored) / len(rollouts),
        "rollout/completion_tokens_mean": float(lengths.mean()),
        "rollout/completion_tokens_max": float(lengths.max()),
        "rollout/truncated_frac": float(np.mean([rollout.truncated for rollout in rollouts])),
        "rollout/entropy": float(surprise / max(1, lengths.sum())),
        "rollout/prompt_tokens_mean": float(np.mean([rollout.prompt_length for rollout in rollouts])),
    }
    metrics.update({f"reward/part/{part}": mean for part, mean in part_means(rewards).items()})
    roles = sorted({rollout.role for rollout in scored})
    for role in roles if len(roles) > 1 else ():
        of_role = [r.reward for r in scored if r.role == role and r.reward]
        metrics[f"reward/role/{role}"] = float(np.mean([reward.value for reward in of_role]))
        metrics.update({f"reward/role/{role}/{part}": mean for part, mean in part_means(of_role).items()})
    return metrics


def part_means(rewards: Sequence[Reward]) -> dict[str, float]:
    """The mean of each part over the rewards that have it, by name."""
    names = sorted({name for reward in rewards for name in reward.parts})
    return {name: float(np.mean([r.parts[name] for r in rewards if name in r.parts])) for name in names}


def rollout_line(
    rollout: Rollout, purpose: str, prompt: str, advantage: float | None, logprobs: Sequence[float] | None
) -> dict[str, Any]:
    """One rollout as a JSON object. `logprobs` are the policy's, for sampled tokens; None where not scored."""
    reward = rollout.reward
    return {
        **vars(rollout),
        "loss_mask": [int(value) for value in rollout.loss_mask],
        "rollout_logprobs": [round(value, 6) for value in rollout.rollout_logprobs],
        "episode": [vars(turn) for turn in rollout.episode],
        "purpose": purpose,
        "prompt": prompt,
        "reward": None if reward is None else reward.value,
        "solved": None if reward is None else reward.solved,
        "parts": {} if reward is None else dict(reward.parts),
        "advantage": advantage,
        "logprobs": None if logprobs is None else list(logprobs),
    }


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl: a line that was cut off while being written is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def cut_metrics(folder: Path, step: int) -> None:
    """Keep metrics up to the step, and rollouts likewise."""
    kept = [line for line in read_metrics(folder) if line["step"] <= step]
    temporary = folder / "metrics.jsonl.tmp"
    temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
    os.replace(temporary, folder / "metrics.jsonl")
    for path in (folder / "rollouts").glob("step_*"):
        if int(path.name.split("_")[1].split(".")[0]) > step:
            path.unlink()


def cut_events(folder: Path, step: int) -> None:
    """One event file with what stood in all of them up to the step.

    An event that stands in two of them was copied by a resume that was killed before it removed the first.
    """
    old = sorted(folder.glob("events.out.tfevents.*"))
    events = dict.fromkeys(data for path in old for data in RawEventFileLoader(str(path)).Load())
    writer = EventFileWriter(str(folder), filename_suffix=".resumed")
    for event in map(Event.FromString, events):
        if event.step <= step and not event.HasField("file_version"):
            writer.add_event(event)
    writer.close()
    for path in old:
        path.unlink()


def write_csv(folder: Path) -> None:
    """metrics.csv with the same numbers, one column for each tag."""
    lines = read_metrics(folder)
    columns = list(dict.fromkeys(key for line in lines for key in line))
    temporary = folder / "metrics.csv.tmp"
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(lines)
    os.replace(temporary, folder / "metrics.csv")
