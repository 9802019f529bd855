"""A run in TensorBoard: scalars, histograms, samples, hyperparameters, and a page of charts (tab CUSTOM SCALARS).

The first row of the page has the four most important charts; the collapsed rows below have the rest.
"""

import itertools
import os
import re
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.custom_scalar.layout_pb2 import (
    Category,
    Chart,
    Layout,
    MarginChartContent,
    MultilineChartContent,
)
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG, PLUGIN_NAME
from tensorboard.plugins.hparams.metadata import EXPERIMENT_TAG, SESSION_END_INFO_TAG, SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import histogram, hparams, text

HEADERS = (CONFIG_SUMMARY_TAG, EXPERIMENT_TAG, SESSION_START_INFO_TAG, SESSION_END_INFO_TAG)
"""Tags written once whenever a run begins or resumes, from its latest config."""

ROWS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "Groups": {
        "groups that no rollout, some or every rollout solved": [
            r"reward/solve_none_group_frac",
            r"reward/solve_some_group_frac",
            r"reward/solve_all_group_frac",
        ],
        "reward of each task": [r"task/.*/reward/mean"],
        "parts of the reward": [r"reward/part/.*"],
        "roles": [r"reward/role/[^/]*"],
        "unscorable share": [r"reward/unscorable_frac", r"eval/.*/unscorable_frac"],
    },
    "Completions": {
        "tokens": [r"rollout/completion_tokens_mean", r"rollout/completion_tokens_(un)?solved_mean"],
        "temperature": [r"rollout/temperature"],
    },
    "Policy": {
        "entropy, nats": [r"policy/entropy", r"rollout/entropy"],
        "gradient norm": [r"policy/grad_norm"],
        "clipped share of tokens": [r"policy/clip_(low|high)_frac"],
        "loss": [r"policy/loss", r"sft/loss", r"sft/held_out_loss"],
        "learning rate": [r"policy/learning_rate"],
        "divergence from the teacher, nats; share of tokens that it prefers": [
            r"teacher/kl",
            r"teacher/preferred_frac",
        ],
        "tokens that moved the way their advantage points": [r"taught/agreement(_by_chance)?", r"taught/alignment"],
        "spill-over, and lag of the engine, over the movement of trained tokens": [r"taught/(spill_over|engine_lag)"],
    },
    "Engine": {
        "raw importance weight": [r"engine/importance_weight_(mean|min|max)"],
        "effective sample size; capped share": [r"engine/ess", r"engine/importance_cap_frac"],
        "prompt tokens that were not computed again": [r"engine/prompt_reuse_frac"],
        "gap after a sync, nats": [r"engine/sync_gap_max"],
    },
    "Cost": {
        "seconds of each phase": [r"time/.*_s"],
        "tokens per second": [r"speed/.*"],
        "memory, GiB": [r"memory/.*_gib"],
        "resident memory and memory of the card, GB": [r"system/.*memory_gb"],
        "processor time, % of the cores": [r"system/cpu_percent"],
    },
}
"""The collapsed rows: charts by title, each with regular expressions of its tags."""

LEADING = 5
"""The columns that the tab HPARAMS opens with."""

BINS = 64
"""Bins of a histogram, as W&B draws. NumPy's "auto" imports more of NumPy within the first step that uses it."""


PREFIX, CHECKSUM = 12, 4
"""Bytes of an event file's record before and behind the event."""


class EventFile:
    """A new event file, written synchronously. In TensorBoard's writer a thread writes, and nothing catches its errors,
    such as a full disk.
    """

    _numbers = itertools.count()

    def __init__(self, folder: Path, suffix: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = f"{socket.gethostname()}.{os.getpid()}.{next(self._numbers):06d}"  # TensorBoard sorts the names
        path = folder / f"events.out.tfevents.{int(time.time()):010d}.{number}{suffix}"
        self._file = path.open("wb")
        self._records = RecordWriter(self._file)
        self.add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, event: Event) -> None:
        """Append an event."""
        self._records.write(event.SerializeToString())

    def copy(self, record: bytes) -> None:
        """Append an event of another file, with its length and checksums."""
        self._file.write(record)

    def flush(self) -> None:
        """Write what is buffered."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


def page(tasks: Sequence[str]) -> Layout:
    """The rows of charts, with the held-out score of these tasks, each in a chart that it names: TensorBoard puts the
    pages of all runs together, and shows a chart that two of them have once.
    """
    first = [
        _lines("reward, and share of rollouts solved", [r"reward/mean", r"reward/solved_frac"]),
        *map(_held_out, tasks),
        _lines("length as a share of the limit, and share truncated", [r"rollout/(limit|truncated)_frac"]),
        _lines("gap of engine and policy, and KL, nats", [r"engine/logprob_gap_mean", r"engine/kl", r"policy/ref_kl"]),
    ]
    rows = [Category(title="Reward, held-out score, length, gap", chart=first)]
    for title, charts in ROWS.items():
        rows.append(Category(title=title, chart=[_lines(name, tags) for name, tags in charts.items()], closed=True))
    return Layout(category=rows)


def _held_out(task: str) -> Chart:
    tag = f"eval/{task}/pass@1"
    interval = MarginChartContent.Series(value=tag, lower=f"{tag}_low", upper=f"{tag}_high")
    return Chart(title=f"{task}: held-out pass@1, 95 % interval", margin=MarginChartContent(series=[interval]))


def _lines(title: str, tags: Sequence[str]) -> Chart:
    return Chart(title=title, multiline=MultilineChartContent(tag=[f"^{tag}$" for tag in tags]))


class TensorBoardLog:
    """The event files of one run. Without `settings`, its hyperparameters, there is no tab HPARAMS.

    `earlier` steps, which other boards need, are in the event files already.
    """

    def __init__(
        self,
        folder: Path,
        tasks: Sequence[str],
        settings: Mapping[str, object] | None,
        earlier: Sequence[Mapping[str, Any]],
    ) -> None:
        self._file, self._whole, self._shown, self._tags = EventFile(folder), page(tasks), Layout(), set[str]()
        self._show_charts(0, {tag for line in earlier for tag in line})
        numbers = (int, float)  # but not bool
        shown = {name: one if type(one) in numbers else str(one) for name, one in (settings or {}).items()}
        results = dict.fromkeys(["reward/mean", *(f"eval/{task}/pass@1" for task in tasks)], 0.0)
        self._begun, self._ended = bool(settings), Summary()
        if settings:
            experiment, begun, self._ended = hparams(shown, results)
            self._add(_leading(experiment), 0)
            self._add(begun, 0)

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's scalars in one event."""
        self._show_charts(step, metrics.keys())
        self._add(Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]), step)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write Markdown (tab TEXT)."""
        self._add(text(tag, markdown), step)

    def histogram(self, tag: str, values: np.ndarray, step: int) -> None:
        """Write the distribution of values (tab HISTOGRAMS)."""
        self._add(histogram(tag, values, BINS), step)

    def flush(self) -> None:
        """Do nothing: each event is flushed as it is written, and a viewer sees it at once."""

    def close(self, finished: bool) -> None:
        """Close the file. A finished run is marked so in the tab HPARAMS."""
        if finished and self._begun:
            self._add(self._ended, 0)
        self._file.close()

    def _show_charts(self, step: int, tags: Iterable[str]) -> None:
        """Write the page anew where a chart has its first data: TensorBoard shows the latest."""
        if not self._tags.issuperset(tags):
            self._tags.update(tags)
            shown = with_data(self._whole, self._tags)
            if shown != self._shown:
                self._shown = shown
                self._add(_page_summary(shown), step)

    def _add(self, summary: Summary, step: int) -> None:
        self._file.add(Event(wall_time=time.time(), step=step, summary=summary))
        self._file.flush()


def _leading(experiment: Summary) -> Summary:
    """The experiment with its first hyperparameters marked as those that differ, which the tab shows before the others;
    both in alphabetical order.
    """
    (value,) = experiment.value
    content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
    for info in content.experiment.hparam_infos[:LEADING]:
        info.differs = True
    value.metadata.plugin_data.content = content.SerializeToString()
    return experiment


def with_data(whole: Layout, tags: Collection[str]) -> Layout:
    """The page without charts, and rows of charts, that none of the tags belongs to: their frames would be empty."""
    rows = []
    for row in whole.category:
        charts = [
            chart
            for chart in row.chart
            if any(re.search(pattern, tag) for pattern in chart.multiline.tag for tag in tags)
            or any(series.value in tags for series in chart.margin.series)
        ]
        if charts:
            rows.append(Category(title=row.title, chart=charts, closed=row.closed))
    return Layout(category=rows)


def _page_summary(layout: Layout) -> Summary:
    """The page in the plugin's format."""
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME))
    tensor = TensorProto(dtype="DT_STRING", string_val=[layout.SerializeToString()])
    return Summary(value=[Summary.Value(tag=CONFIG_SUMMARY_TAG, tensor=tensor, metadata=metadata)])


def cut_events(folder: Path, step: int) -> None:
    """Replace the event files by one with their events up to the step, without the headers, which are written again.

    An event may be in two files: a resume was killed between copying it and removing the first file.
    """
    old = sorted(folder.glob("events.out.tfevents.*"))
    seen, kept = set(), EventFile(folder, suffix=".resumed")
    for record, event in (one for path in old for one in _records(path.read_bytes())):
        names = any(tag.encode() in record for tag in HEADERS)  # which is faster than to look at each tag
        header = names and any(value.tag in HEADERS for value in event.summary.value)
        if event.step <= step and record not in seen and not event.HasField("file_version") and not header:
            kept.copy(record)
            seen.add(record)
    kept.close()
    for path in old:
        path.unlink()


def _records(data: bytes) -> Iterator[tuple[bytes, Event]]:
    """The records of an event file and their events, up to the first that is torn or damaged: the length of an event in
    8 bytes, its checksum in 4, the event, and its checksum in 4. The last is not computed: that takes Python seconds.
    """
    start = 0
    while len(prefix := data[start : start + PREFIX]) == PREFIX:
        length, checksum = struct.unpack("<QI", prefix)
        end = start + PREFIX + length + CHECKSUM
        if end > len(data) or checksum != masked_crc32c(prefix[:8]):
            return
        try:
            yield data[start:end], Event.FromString(data[start + PREFIX : end - CHECKSUM])
        except DecodeError:
            return
        start = end


def write_pictures(folder: Path, pictures: Sequence[Path]) -> None:
    """Write PNG files as TensorBoard images under their names. Earlier event files in the folder are removed."""
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    file = EventFile(folder)
    for path in pictures:
        data = path.read_bytes()
        width, height = struct.unpack(">II", data[16:24])  # in the header, a PNG's first chunk
        image = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=data)
        value = Summary.Value(tag=f"charts/{path.stem}", image=image)
        file.add(Event(step=0, wall_time=path.stat().st_mtime, summary=Summary(value=[value])))
    file.close()
