"""What the tests of evaluate.py share: two tiny models, tasks in a file, and a way to run the program."""

import shutil
from pathlib import Path

from minrl.__main__ import main
from minrl.dataflow import TrainState
from minrl.models.loading import word_tokenizer
from minrl.run.checkpoint import save_state
from minrl.utils.cli import to_dict
from minrl.utils.files import read_json, read_jsonl, write_json
from tests.parsed import sized

TASKS = '''
"""Say an even number of words; or roll a die, say a word, and be asked again."""

from dataclasses import dataclass
from minrl.tasks import TaskDefinition, TaskOptions
from minrl.tasks.task import split
from minrl.dataflow import Example, Job, Reward, Turn


@dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    count: int = 12
    """Examples."""
    broken: bool = False
    """Whether the reward raises for some."""
    held_out_share: float = 0.5
    """Share that is not trained on."""


def reward(completion, example):
    said = completion.split()
    if example["broken"] and len(said) % 4 == 0:
        raise RuntimeError("cannot judge " + str(len(said)))
    return Reward(float(len(said) % 2 == 0), {"words": float(len(said)), "short": float(len(said) < 4)})


def dialogue(example, rng):
    die = rng.randint(1, 6)
    first = yield Turn("asked", f"numbers {die}")
    second = yield Turn("asked", "numbers 2")
    judged = yield Job(reward, (first + " " + second, example), cheap=True)
    return {"asked": Reward(float((len(first.split()) + die) % 2 == 0), judged.parts)}


def failing(example, rng):
    if example["broken"] or rng.random() < 0.5:
        raise RuntimeError("no board")
    said = yield Turn("asked", example.prompt)
    return {"asked": Reward(float(len(said.split()) % 2 == 0), {"words": float(len(said.split()))})}


def examples(options):
    for n in range(options.count):
        fields, category = {"broken": options.broken}, {"odd": str(n % 2)}
        yield Example(f"e{n}", f"numbers {n % 9 + 1}", fields, category)


def dataset(options):
    return split(examples(options), options.held_out_share)


even = TaskDefinition(dataset, reward, Options, lambda options: {"cheap": not options.broken})
fails = TaskDefinition(dataset, None, Options, lambda options: {"episode": failing})
talk = TaskDefinition(dataset, None, Options, lambda options: {"episode": dialogue})
'''

SUMS = """
from minrl import task

QUESTIONS = [{"question": f"What is the sum of the first {n} odd positive integers?", "n": n} for n in range(20)]

@task(data=QUESTIONS, prompt="question", held_out=0.5)
def sums(completion, row):
    return float(completion.strip() == str(row["n"] ** 2))
"""

FLAGS = ["--samples", "4", "--max-tokens", "5", "--device", "cpu", "--threads", "1", "--batch-size", "16"]
FLAGS += ["--quiet", "--reward-workers", "1", "--no-charts"]  # pictures take most of the time


def tokenizer():
    """Of the two models."""
    return word_tokenizer(["numbers", *map(str, range(10))])


def run(*arguments, flags=FLAGS):
    """The program's exit status."""
    return main(["evaluate", *map(str, arguments), *flags])


def rows_of(folder):
    return read_jsonl(Path(folder) / "completions.jsonl")


def summary_of(folder):
    return read_json(Path(folder) / "summary.json")


def said_by(row, role="policy"):
    return row["roles"][role]["completion"]


def files_of(folder):
    """What an interrupted evaluation must have in common with one that was not."""
    files = {name: (Path(folder) / name).read_bytes() for name in ("summary.csv", "summary.md")}
    return {**files, **{tuple(row.values())[:6]: row for row in rows_of(folder)}}


def save_run(place: Path, name: str, weights: str, task: str, **changes) -> Path:
    """A run as train.py leaves it in `runs` and `checkpoints`, with one checkpoint, which is the model."""
    options = changes.pop("options", {})
    config = sized(task=task, checkpoints_dir=str(place / "checkpoints"), **changes)
    folder, kept = place / "runs" / name, place / "checkpoints" / name
    shutil.copytree(weights, kept / "step_000001")
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {"minrl_run": name, "config": to_dict(config, options)})
    save_state(TrainState(), kept / "step_000001", folder)
    return kept
