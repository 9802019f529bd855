"""A run in TensorBoard: scalars, histograms, settings (tab HPARAMS), and a page of charts (tab CUSTOM SCALARS).

A resumed run purges the events after its checkpoint.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

EVENTS = "events.out.tfevents.*"

CHARTS = {
    "Held-out score, reward, length, gap": {
        "held-out pass@1": [r"^eval/.*/pass@1$"],
        "reward": ["^reward/mean$"],
        "length over the limit; truncated": ["^rollout/limit_frac$", "^rollout/truncated_frac$"],
        "gap and KL, nats": ["^engine/logprob_gap_mean$", "^engine/kl$", "^policy/ref_kl$"],
    },
    "Groups": {
        "solved rollouts": ["^reward/solved_frac$"],
        "solved groups": ["^reward/solve_.*_group_frac$"],
        "parts of the reward; roles": ["^reward/part/.*$", "^reward/role/.*$"],
        "each task": ["^task/.*/reward/mean$"],
    },
    "Policy": {
        "entropy, nats": ["^policy/entropy$", "^rollout/entropy$"],
        "gradient norm": ["^policy/grad_norm$"],
        "clipped tokens": ["^policy/clip_(low|high)_frac$"],
        "movement and advantage": ["^update/a.*$"],
    },
    "Cost": {"seconds": ["^time/.*$"], "tokens per second": ["^speed/.*$"], "memory, GiB": ["^memory/.*$"]},
}
"""Row, chart, patterns of its tags. Every tag has a chart of its own in the tab TIME SERIES."""

INTERVALS = "Held-out score of each task with its 95 % interval"


class TensorBoard:
    """One run. `cut_after` is the step after which events are purged (-1: all, None: nothing)."""

    def __init__(self, folder: Path, tasks: Sequence[str], settings: Mapping[str, Any], cut_after: int | None) -> None:
        for old in folder.glob(EVENTS) if cut_after == -1 else ():
            old.unlink()
        # A restart purges only what follows an earlier start: a new run says that it starts at step 0.
        self._writer = SummaryWriter(str(folder), purge_step=0 if cut_after is None else cut_after + 1)
        scores = [f"eval/{task}/pass@1" for task in tasks]
        if cut_after in (None, -1):  # TensorBoard shows the settings of the first start
            plain = {name: one if type(one) in (int, float) else str(one) for name, one in settings.items()}
            for summary in hparams(plain, dict.fromkeys(["reward/mean", *scores], 0.0))[:2]:
                self._writer._get_file_writer().add_summary(summary, 0)
        layout = {row: {chart: ["Multiline", tags] for chart, tags in charts.items()} for row, charts in CHARTS.items()}
        layout[INTERVALS] = {score: ["Margin", [score, f"{score}_low", f"{score}_high"]] for score in scores}
        self._writer.add_custom_scalars(layout)

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's scalars, on disk at once."""
        for tag, value in metrics.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def histogram(self, step: int, tag: str, values: np.ndarray) -> None:
        """Write the distribution of values (tab HISTOGRAMS)."""
        if len(values):
            self._writer.add_histogram(tag, values, step, bins=64)

    def close(self, step: int, finished: bool) -> None:
        """Close the file."""
        self._writer.close()


def write_pictures(folder: Path, pictures: Sequence[Path]) -> None:
    """Write PNG files as TensorBoard images under their names. Earlier event files in the folder are removed."""
    for old in folder.glob(EVENTS):
        old.unlink()
    from PIL import Image

    writer = SummaryWriter(str(folder))
    for path in pictures:
        writer.add_image(f"charts/{path.stem}", np.asarray(Image.open(path).convert("RGB")), dataformats="HWC")
    writer.close()
