"""The rollouts of one step, compact: each text is stored once.

Of a large step a part is shown: whole examples, chosen by a hash of their identity, so that all steps show the same.
"""

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from minrl.models.messages import text_of
from minrl.types import UserError, require

Line = Mapping[str, Any]

MILLI, MICRO, WEIGHT = 1e3, 1e6, 1e4
"""Scales of log-probabilities, gaps and importance weights before they are rounded."""
LARGEST = 10**8

ROLLOUT_SCHEMA = 2
"""Version of a line in rollouts/step_*.jsonl.gz. 2: the text of each token, the turns of the whole episode."""


def read_lines(path: Path) -> list[Line]:
    """The rollouts in a run's file. `UserError` if it cannot be read, or was written by another version."""
    try:
        with gzip.open(path, "rt") as file:
            lines = [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path.name} cannot be read: {error}") from error
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
        "asked": texts[((_asked(line), False),)],
        "pieces": [pieces[tokens[index], index in special] for index in sampled],
        "surprise": _fixed(-engine, MILLI),
        "gap": None if policy is None else _fixed(np.array(policy) - engine, MICRO),
        "weight": None if weights is None else _fixed(np.array(weights), WEIGHT),
        "moved": None if moved is None else _fixed(np.array(moved), MICRO),
    }


def _asked(line: Line) -> str:
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
