"""A run's folder -> `rollouts.html`: one file, which needs no network, in which a run's rollouts are read.

The data of each step is compressed separately, and the browser unpacks it when the step is shown. A page that is made
again reuses its packed steps, so that an update during a run packs the new ones only. Of a large step a part is shown:
whole examples, chosen by a hash of their identity, so that all steps show the same.
"""

import base64
import gzip
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader
from loguru import logger

from minrl.dataflow import UserError, require
from minrl.models.chat import text_of
from minrl.run.folder import ROLLOUT_SCHEMA, RunFolder
from minrl.utils.cli import Command
from minrl.utils.files import read_packed, write_text
from minrl.utils.settings import Natural, Settings
from minrl.utils.text import json_text, printable

PAGE = "rollouts.html"
FORMAT = 2
"""Version of the data in the page. Steps that another version packed are packed again."""
TEMPLATES = Path(__file__).parent / "templates"

DAMAGED = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""What a file of rollouts raises whose values are missing or of another kind. It costs its step, not the page."""

MILLI, MICRO, WEIGHT = 1e3, 1e6, 1e4
"""Scales of log-probabilities, gaps and importance weights before they are rounded."""
LARGEST = 10**8

_STEP = re.compile(r'<script type="text/plain" class="step" data-step="(\d+)" data-source="([^"]*)"'
                   r' data-about="([^"]*)">([^<]*)</script>')  # fmt: skip

Line = Mapping[str, Any]


@dataclass(init=False)
class Limits(Settings):
    """Limits that let the page of a run of any size open at once. The page says what was left out."""

    tokens_per_step: Natural = 150_000
    """Sampled tokens of training rollouts for each step: whole examples up to here. 0: all."""
    max_steps: Natural = 64
    """Steps on the page: every second is left out, and again, until they are so few; the last stays. 0: all."""


@dataclass(init=False)
class RolloutsConfig(Limits):
    """Make the page in which a run's rollouts are read.

    python -m minrl rollouts runs/countdown-grpo-seed0
    python -m minrl rollouts countdown-grpo-seed0 --tokens-per-step 0 --max-steps 0
    """

    first = "run"

    run: str = ""
    """The run: its folder, or its name. The flag itself may be left out."""
    runs_dir: str = "runs"
    """Where runs are that are named without a folder."""
    output: str = ""
    """The file to write. Empty: rollouts.html in the run's folder."""


def main(command: Command[RolloutsConfig]) -> int:
    """Write the page and say where it is."""
    config = command.config
    require(bool(config.run), "name the run whose rollouts are to be read: minrl rollouts runs/NAME")
    folder = RunFolder.open(config.run, config.runs_dir).path
    sys.stdout.write(f"{make_page(folder, Path(config.output) if config.output else None, config)}\n")
    return 0


def make_page(folder: Path, output: Path | None = None, limits: Limits | None = None) -> Path:
    """Write the page of the run in `folder`, by default into that folder; returns its path."""
    run, output, limits = RunFolder(folder).checked(), output or folder / PAGE, limits or Limits()
    files = run.rollouts
    steps, packed = thinned(sorted(files), limits.max_steps), packed_steps(output)
    shown = [packed_step(step, files[step], packed.get(step), limits) for step in steps]
    write_text(output, _page(run, shown, len(files)))
    return output


def thinned(steps: Sequence[int], limit: int) -> list[int]:
    """At most `limit` steps, with the first and the last. A step that is left out stays out as the run continues.

    >>> thinned([10, 20, 30, 40, 50, 60], 4)
    [10, 30, 50, 60]
    """
    last, stride = list(steps[-1:]), 1
    while limit and len(kept := [*steps[:-1:stride], *last]) > limit and stride < len(steps):
        stride *= 2
    return kept if limit else list(steps)


# Steps in the page


@dataclass(frozen=True)
class PackedStep:
    """One step of the page: `source` identifies the file it was made from; `about` and `data` are packed."""

    step: int
    source: str
    about: str
    data: str


def packed_steps(page: Path) -> dict[int, PackedStep]:
    """The packed steps of a page."""
    if not page.exists():
        return {}
    found = _STEP.findall(page.read_text(encoding="utf-8", errors="replace"))
    return {int(step): PackedStep(int(step), source, about, data) for step, source, about, data in found}


def packed_step(step: int, path: Path, before: PackedStep | None, limits: Limits) -> PackedStep:
    """A step of a file, packed again only if the file or the limits changed."""
    stat = path.stat()
    source = f"{FORMAT} {limits.tokens_per_step} {stat.st_size} {stat.st_mtime_ns}"
    if before is not None and before.source == source:
        return before
    try:
        lines = read_lines(path)
        shown = choose(lines, limits.tokens_per_step) if limits.tokens_per_step else lines
        return PackedStep(step, source, _pack(about(lines, shown)), _pack(encode(shown)))
    except DAMAGED as error:
        problem = str(error) if isinstance(error, UserError) else f"{path.name} is damaged: {error!r}"
        logger.warning(f"step {step} is missing from {PAGE}: {problem}")
        return PackedStep(step, source, _pack({"problem": problem, "shown": 0, "total": 0}), "")


def _pack(values: Mapping[str, Any]) -> str:
    """Values as compressed JSON in base64, which needs no escaping in HTML."""
    text = json_text(values, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), compresslevel=4, mtime=0)).decode("ascii")


def _page(run: RunFolder, steps: Sequence[PackedStep], written: int) -> str:
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("rollouts.css", "rollouts.js"))
    config, commit = run.config, run.record.get("commit")
    facts = [
        config.get("task"),
        config.get("algorithm"),
        _model(config.get("model_id") or "own base model"),
        f"commit {commit[:7]}" if commit else None,
        f"{len(steps)} of {written} logged steps" if len(steps) < written else None,
    ]
    template = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True).get_template("rollouts.html")
    return template.render(
        name=printable(run.record["minrl_run"]),
        facts=filter(None, facts),
        every=config.get("rollouts_every") or 0,
        policy=f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)}",
        style=style,
        script=script,
        steps=steps,
    )


def _model(name: str) -> str:
    """A hub's name whole, and of a path its end."""
    return Path(name).name if name.startswith("/") else name


def _allowed(text: str) -> str:
    """The source expression that allows this text and no other (Content Security Policy 3)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# The rollouts of a step, compact: each text is stored once


def read_lines(path: Path) -> list[Line]:
    """The rollouts in a run's file. `UserError` if it cannot be read, or was written by another version."""
    lines = read_packed(path)
    for schema in (line.get("schema") for line in lines):
        known = schema == ROLLOUT_SCHEMA
        require(known, f"{path.name} has rollouts of schema {schema}; this page reads {ROLLOUT_SCHEMA}")
    return lines


def choose(lines: Sequence[Line], max_tokens: int) -> list[Line]:
    """All held-out rollouts, and as many whole training examples as have `max_tokens` sampled tokens together."""
    trained, lengths = [line for line in lines if line["purpose"] == "train"], dict[int, int]()
    for line in trained:
        lengths[line["slot"]] = lengths.get(line["slot"], 0) + sum(line["loss_mask"])
    chosen, tokens = set[int](), 0
    for _, slot in sorted({(_hash(line["example_id"]), line["slot"]) for line in trained}):
        tokens += lengths[slot]
        if chosen and tokens > max_tokens:
            break
        chosen.add(slot)
    return [line for line in lines if line["purpose"] != "train" or line["slot"] in chosen]


def about(lines: Sequence[Line], shown: Sequence[Line]) -> dict[str, Any]:
    """The step's figures, shown before its rollouts are unpacked. An unscorable rollout counts as not solved."""
    trained = [line for line in lines if line["purpose"] == "train"] or lines
    scored = [line for line in trained if line["reward"] is not None]
    return {
        "shown": len(shown),
        "total": len(lines),
        "mean": fmean(line["reward"] for line in scored) if scored else None,
        "solved": sum(bool(line["solved"]) for line in scored) / len(trained) if scored else None,
    }


class _Table(dict[Any, int]):
    """Numbers keys in the order in which they first occur."""

    def __missing__(self, key: Any) -> int:  # noqa: ANN401 - texts, or lists of them
        self[key] = len(self)
        return self[key]


def encode(lines: Sequence[Line]) -> dict[str, Any]:
    """Plain values for JSON: tables of `pieces` (tokens) and `texts` (prompts), and the rollouts.

    A piece, and each run of a text, is (text, is it special). `asked` is the question of the prompt. Each sampled token
    has its piece, its surprise (minus the engine's log-probability, milli-nats), the policy's log-probability minus the
    engine's (micro-nats), its importance weight (1e-4), and how far the update moved it (micro-nats); the last three
    are null where the update did not compute the rollout.
    """
    pieces, texts = _Table(), _Table()
    rollouts = [_rollout(line, pieces, texts) for line in lines]
    return {"pieces": [list(piece) for piece in pieces], "texts": [list(text) for text in texts], "rollouts": rollouts}


def _played(turn: Mapping[str, Any]) -> list[str | None]:
    """A turn's role, seed, finish reason and text, and who wrote its message if that is known."""
    named = filter(None, [turn.get("shown_by")])  # runs of earlier versions have none
    return [turn["role"], str(turn["seed"]), turn["finish_reason"], turn["text"], *named]


def _rollout(line: Line, pieces: _Table, texts: _Table) -> dict[str, Any]:
    special, tokens, turns = set(line["special"]), line["tokens"], line["turns"]
    sampled = [index for first, last in turns for index in range(first, last)]
    engine = np.array(line["rollout_logprobs"], dtype=float)[sampled]
    policy, weights, moved = line["logprobs"], line.get("importance_weights"), line.get("moved")
    return {
        **{name: line[name] for name in ("purpose", "group", "slot", "sample", "role", "reward", "solved", "parts")},
        **{name: line[name] for name in ("advantage", "finish_reason", "weight_version", "prompt_length")},
        "example": "/".join(filter(None, [line.get("task"), line["example_id"]])),
        "seed": str(line["seed"]),  # 63 bits: more than a number of JavaScript holds
        "episode": [_played(turn) for turn in line["episode"]],
        "turns": [
            [texts[_text(tokens, special, start, first)], last - first]
            for start, (first, last) in zip([0, *(last for _, last in turns)], turns, strict=False)
        ],
        "asked": texts[((asked(line), False),)],
        "pieces": [pieces[tokens[index], index in special] for index in sampled],
        "surprise": _fixed(-engine, MILLI),
        "gap": None if policy is None else _fixed(np.array(policy) - engine, MICRO),
        "weight": None if weights is None else _fixed(np.array(weights), WEIGHT),
        "moved": None if moved is None else _fixed(np.array(moved), MICRO),
    }


def asked(line: Line) -> str:
    """The last message of the user in the prompt: what a chat template puts around it says little."""
    message = line.get("message") or line["prompt"]
    if isinstance(message, str):
        return message
    return text_of(next((one for one in reversed(message) if one["role"] == "user"), message[-1]))


def _text(tokens: Sequence[str], special: set[int], start: int, end: int) -> tuple[tuple[str, bool], ...]:
    """The tokens from start to end, ordinary ones joined."""
    marked = [index in special for index in range(start, end)]
    runs = groupby(zip(tokens[start:end], marked, strict=True), key=itemgetter(1))
    return tuple(("".join(token for token, _ in run), is_special) for is_special, run in runs)


def _fixed(values: np.ndarray, scale: float) -> list[int]:
    """Scaled values, clipped and rounded."""
    return np.rint(np.clip(values * scale, -LARGEST, LARGEST)).astype(np.int64).tolist()


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
