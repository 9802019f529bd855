"""A run's folder -> `rollouts.html`: one file, which needs no network, in which a run's rollouts are read.

The page holds the files of `rollouts/` and `evaluations/` as they are, and the browser unpacks a step when it is shown.
"""

import base64
import gzip
import hashlib
import json
import math
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from minrl.dataflow import require
from minrl.run.folder import RunFolder
from minrl.utils.cli import Command
from minrl.utils.files import write_text
from minrl.utils.settings import Natural, Settings
from minrl.utils.text import printable

PAGE = "rollouts.html"
TEMPLATES = Path(__file__).parent / "templates"

DAMAGED = (EOFError, LookupError, OSError, TypeError, ValueError, zlib.error)
"""What a file of rollouts raises that is cut off or holds something else."""


@dataclass(init=False)
class RolloutsConfig(Settings):
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
    tokens_per_step: Natural = 50_000
    """Sampled tokens of training rollouts for each step: the first groups up to here. 0: all."""
    max_steps: Natural = 64
    """Steps on the page, evenly spaced up to the last. 0: all."""


def main(command: Command[RolloutsConfig]) -> int:
    """Write the page and say where it is."""
    config = command.config
    require(bool(config.run), "name the run whose rollouts are to be read: minrl rollouts runs/NAME")
    sys.stdout.write(f"{write_page(RunFolder.open(config.run, config.runs_dir), config)}\n")
    return 0


def write_page(run: RunFolder, config: RolloutsConfig) -> Path:
    """Write the page of a run; returns its path."""
    rollouts, evaluations = run.rollouts, run.evaluations
    output, metrics = Path(config.output or run.path / PAGE), {line["step"]: line for line in run.metrics}
    steps = sorted({*rollouts, *evaluations})
    shown = thinned(steps, config.max_steps)
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("rollouts.css", "rollouts.js"))
    model, commit = str(run.config.get("model_id") or "own base model"), run.record.get("commit")
    facts = [run.config.get("task"), run.config.get("algorithm"), Path(model).name if model[0] == "/" else model]
    facts += [f"commit {commit[:7]}"] if commit else []
    facts += [f"{len(shown)} of {len(steps)} logged steps"] if len(shown) < len(steps) else []
    page = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True).get_template("rollouts.html")
    text = page.render(
        name=printable(run.record["minrl_run"]),
        facts=filter(None, facts),
        every=run.config.get("rollouts_every") or 0,
        policy=f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)}",
        style=style,
        script=script,
        steps=[
            {
                "step": step,
                "mean": metrics.get(step, {}).get("reward/mean"),
                "solved": metrics.get(step, {}).get("reward/solved_frac"),
                "rollouts": packed(rollouts.get(step), config.tokens_per_step),
                "evaluations": packed(evaluations.get(step), 0),
            }
            for step in shown
        ],
    )
    write_text(output, text)
    return output


def thinned(steps: Sequence[int], limit: int) -> list[int]:
    """At most `limit` steps, evenly spaced, with the last (0: all).

    >>> thinned([10, 20, 30, 40, 50, 60], 4), thinned([10, 20, 30], 1)
    ([20, 40, 60], [30])
    """
    return list(steps[:: -math.ceil(len(steps) / limit)] if limit and steps else steps[::-1])[::-1]


def packed(path: Path | None, most: int) -> str:
    """A file in base64, which needs no escaping in HTML; of its training rollouts the first groups of at most `most`
    tokens together (0: all).
    """
    if path is None:
        return ""
    content = path.read_bytes()
    try:
        kept, left_out = cut(gzip.decompress(content).splitlines(), most) if most else ([], 0)
    except DAMAGED:  # the page says it where the step is shown
        left_out = 0
    if left_out:
        content = gzip.compress(b"\n".join([*kept, json.dumps({"left_out": left_out}).encode()]), compresslevel=4)
    return base64.b64encode(content).decode("ascii")


def cut(lines: Sequence[bytes], most: int) -> tuple[list[bytes], int]:
    """The lines of held-out rollouts and of the first groups with at most `most` tokens together, at least one group;
    and how many lines are left out.
    """
    rollouts, sizes = list(map(json.loads, lines)), dict[int, int]()
    for one in rollouts:
        if one["purpose"] == "train":
            sizes[one["group"]] = sizes.get(one["group"], 0) + sum(one["loss_mask"])
    ends = dict(zip(sizes, accumulate(sizes.values()), strict=True))
    shown = {group for place, (group, end) in enumerate(ends.items()) if end <= most or place == 0}
    kept = [raw for raw, one in zip(lines, rollouts, strict=True) if one["purpose"] != "train" or one["group"] in shown]
    return kept, len(lines) - len(kept)


def _allowed(text: str) -> str:
    """The source expression that allows this text and no other (Content Security Policy 3)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
