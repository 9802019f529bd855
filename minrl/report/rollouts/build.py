"""A run's folder -> `rollouts.html`: template, style, script and data in one file that needs no network.

The data of each step is compressed separately, and the browser unpacks it when the step is shown. A page that is made
again reuses its packed steps, so that an update during a run packs the new ones only.
"""

import base64
import gzip
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from loguru import logger

from minrl.report.rollouts.chunk import about, choose, encode, read_lines
from minrl.run.folder import RunFolder
from minrl.types import UserError
from minrl.utils.cli import typed
from minrl.utils.files import write_text
from minrl.utils.settings import Bound, Bounded
from minrl.utils.text import html_text, json_text

PAGE = "rollouts.html"
FORMAT = 2
"""Version of the data in the page. Steps that another version packed are packed again."""
TEMPLATES = Path(__file__).parent / "page"
SCRIPTS = ("data.js", "scale.js", "text.js", "conversation.js", "groups.js", "compare.js", "detail.js",
           "steps.js", "keys.js", "main.js")  # fmt: skip
DAMAGED = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""What a file of rollouts raises whose values are missing or of another kind. It costs its step, not the page."""

_STEP = re.compile(r'<script type="text/plain" class="step" data-step="(\d+)" data-source="([^"]*)"'
                   r' data-about="([^"]*)">([^<]*)</script>')  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Limits(Bounded):
    """Limits that let the page of a run of any size open at once. The page says what was left out."""

    tokens_per_step: Annotated[int, Bound(least=1, zero="all")] = 150_000
    """Sampled tokens of training rollouts for each step: whole examples up to here. 0: all."""
    max_steps: Annotated[int, Bound(least=1, zero="all")] = 64
    """Steps on the page: every second is left out, and again, until they are so few; the last stays. 0: all."""


@dataclass(frozen=True)
class PackedStep:
    """One step of the page: `source` identifies the file it was made from; `about` and `data` are packed."""

    step: int
    source: str
    about: str
    data: str


def make_page(folder: Path, output: Path | None = None, limits: Limits = Limits()) -> Path:
    """Write the page of the run in `folder`, by default into that folder; returns its path."""
    run = run_facts(folder)
    output = output or folder / PAGE
    files = RunFolder(folder).rollouts
    steps, packed = thinned(sorted(files), limits.max_steps), packed_steps(output)
    kept = [packed_step(step, files[step], packed.get(step), limits) for step in steps]
    write_text(output, _page({**run, "steps_written": len(files), "steps_shown": len(kept)}, kept))
    return output


def refresh_page(folder: Path) -> None:
    """Make the page again during a run, once there are rollouts. A failure is reported only: the run continues, and
    `minrl rollouts` makes the page at any time.
    """
    if not RunFolder(folder).rollouts and not (folder / PAGE).exists():
        return
    try:
        make_page(folder)
    except Exception as error:
        again = f"{typed('rollouts')} {shlex.quote(str(folder))}"
        logger.opt(exception=True).warning(f"{PAGE} could not be made ({error}); {again}")


def thinned(steps: Sequence[int], limit: int) -> list[int]:
    """At most `limit` steps, with the first and the last. A step that is left out stays out as the run continues.

    >>> thinned([10, 20, 30, 40, 50, 60], 4)
    [10, 30, 50, 60]
    """
    last, stride = list(steps[-1:]), 1
    while limit and len(kept := [*steps[:-1:stride], *last]) > limit and stride < len(steps):
        stride *= 2
    return kept if limit else list(steps)


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


def run_facts(folder: Path) -> dict[str, Any]:
    """The page's facts about the run."""
    run = RunFolder(folder).checked()
    names = ("task", "algorithm", "model_id", "seed", "group_size", "temperature", "rollouts_every", "steps")
    about = {"name": run.record["minrl_run"], "commit": run.record.get("commit")}
    return {**about, **{name: run.config.get(name) for name in names}}


def _page(run: Mapping[str, Any], steps: Sequence[PackedStep]) -> str:
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    parts = [(TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = '(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"
    data = "\n".join(
        f'<script type="text/plain" class="step" data-step="{one.step}" data-source="{one.source}" '
        f'data-about="{one.about}">{one.data}</script>'
        for one in steps
    )
    values = {
        "policy": f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)}",
        "title": html_text(f"{run['name']}: rollouts"),
        "style": style,
        "run": _pack(run),
        "steps": data,
        "script": script,
    }
    template = (TEMPLATES / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _allowed(text: str) -> str:
    """The source expression that allows this text and no other (Content Security Policy 3)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
