"""A run in TensorBoard: scalars, histograms, samples, settings, and a page of charts (tab CUSTOM SCALARS).

A resumed run purges the events after its checkpoint. Settings stand in a file of their own, written anew by each start,
since a fork has others than the run whose events it copied.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.custom_scalar.layout_pb2 import (
    Category,
    Chart,
    Layout,
    MarginChartContent,
    MultilineChartContent,
)
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG, PLUGIN_NAME
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from minrl.tracking.tags import FIRST, HELD_OUT, charts

EVENTS, SETTINGS = "events.out.tfevents.*", "events.out.tfevents.0.settings"

LEADING = 5
"""The columns that the tab HPARAMS opens with."""


class TensorBoard:
    """One run. `cut_after` is the step after which events are purged (-1: all, None: nothing); `earlier` are the lines
    of metrics.jsonl up to it.
    """

    def __init__(
        self,
        folder: Path,
        tasks: Sequence[str],
        settings: Mapping[str, Any],
        earlier: Iterable[Mapping[str, Any]],
        cut_after: int | None,
    ) -> None:
        for old in folder.glob(EVENTS) if cut_after == -1 else ():
            old.unlink()
        header = SummaryWriter(str(folder), filename_suffix=".new")
        for summary in _settings(settings, ["reward/mean", *(f"eval/{task}/pass@1" for task in tasks)]):
            header._get_file_writer().add_summary(summary, 0)
        header.close()
        # TensorBoard reads the files in the order of their names, and follows only the last.
        next(folder.glob(f"{EVENTS}.new")).rename(folder / SETTINGS)
        # A restart purges only what follows an earlier start: a new run says that it starts at step 0.
        self._writer = SummaryWriter(str(folder), purge_step=0 if cut_after is None else cut_after + 1)
        self._tasks = tasks
        self._tags, self._shown = set[str](), Layout()
        self._show_charts(max(0, cut_after or 0), {tag for line in earlier for tag in line})

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's scalars, on disk at once."""
        self._show_charts(step, metrics)
        for tag, value in metrics.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def text(self, step: int, tag: str, markdown: str) -> None:
        """Write Markdown (tab TEXT)."""
        self._writer.add_text(tag, markdown, step)

    def histogram(self, step: int, tag: str, values: np.ndarray) -> None:
        """Write the distribution of values (tab HISTOGRAMS)."""
        if len(values):
            self._writer.add_histogram(tag, values, step, bins=64)

    def close(self, step: int, finished: bool) -> None:
        """Close the file."""
        self._writer.close()

    def _show_charts(self, step: int, tags: Iterable[str]) -> None:
        """Write the page anew where a chart has its first data: TensorBoard shows the latest."""
        if self._tags.issuperset(tags):
            return
        self._tags.update(tags)
        shown = page(self._tags, self._tasks)
        if shown != self._shown:
            self._shown = shown
            metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME))
            tensor = TensorProto(dtype="DT_STRING", string_val=[shown.SerializeToString()])
            summary = Summary(value=[Summary.Value(tag=CONFIG_SUMMARY_TAG, tensor=tensor, metadata=metadata)])
            self._writer._get_file_writer().add_summary(summary, step)


def page(tags: set[str], tasks: Sequence[str]) -> Layout:
    """The charts that show one of the tags. Of runs of several tasks, TensorBoard puts the charts together."""
    rows = {
        title: [Chart(title=name, multiline=MultilineChartContent(tag=patterns)) for name, patterns in row.items()]
        for title, row in charts(tags).items()
    }
    intervals = [_interval(task) for task in tasks if f"eval/{task}/pass@1" in tags]
    rows = {FIRST: rows.pop(FIRST, []), HELD_OUT: intervals, **rows}
    return Layout(category=[Category(title=t, chart=row, closed=t != FIRST) for t, row in rows.items() if row])


def _interval(task: str) -> Chart:
    tag = f"eval/{task}/pass@1"
    series = MarginChartContent.Series(value=tag, lower=f"{tag}_low", upper=f"{tag}_high")
    return Chart(title=f"{task}: held-out pass@1, 95 % interval", margin=MarginChartContent(series=[series]))


def _settings(settings: Mapping[str, Any], results: Sequence[str]) -> list[Summary]:
    """The settings for the tab HPARAMS, in alphabetical order; the first of them are marked as those that differ, which
    the tab shows before the others.
    """
    plain = {name: one if type(one) in (int, float) else str(one) for name, one in settings.items()}
    experiment, started, _ = hparams(plain, dict.fromkeys(results, 0.0))
    content = experiment.value[0].metadata.plugin_data
    data = HParamsPluginData.FromString(content.content)
    for info in data.experiment.hparam_infos:
        info.differs = info.name in list(plain)[:LEADING]
    content.content = data.SerializeToString()
    return [experiment, started]


def write_pictures(folder: Path, pictures: Sequence[Path]) -> None:
    """Write PNG files as TensorBoard images under their names. Earlier event files in the folder are removed."""
    for old in folder.glob(EVENTS):
        old.unlink()
    writer = SummaryWriter(str(folder))
    for path in pictures:
        data = path.read_bytes()
        width, height = struct.unpack(">II", data[16:24])  # in the header, a PNG's first chunk
        image = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=data)
        summary = Summary(value=[Summary.Value(tag=f"charts/{path.stem}", image=image)])
        writer._get_file_writer().add_summary(summary, 0, path.stat().st_mtime)
    writer.close()
