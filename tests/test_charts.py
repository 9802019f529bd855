"""Pictures: whole or not there, and one look."""

import builtins
import struct

import pytest

from minrl.report import charts


def size_of(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


def test_a_picture_is_whole_or_not_there(tmp_path):
    path = tmp_path / "deep" / "one.png"
    with charts.picture(path, 4.0, 3.0) as (_, (axes,)):
        charts.curve(axes, [0.0, 1.0, 2.0], [0.1, 0.5, 0.9], ([0.0, 0.4, 0.8], [0.2, 0.6, 1.0]), label="a")
    assert size_of(path) == (4 * charts.DPI, 3 * charts.DPI)
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), charts.picture(path):
        1 / 0  # noqa: B018
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == ["one.png"]


def test_no_two_lines_look_the_same():
    assert len({tuple(charts.line_style(index).values()) for index in range(32)}) == 32


def test_labels_break_between_words_and_lose_nothing():
    label = "checkpoints/countdown-grpo-seed0/step_000150"
    assert charts.wrapped(label).replace("\n", "") == label
    assert max(map(len, charts.wrapped(label).split("\n"))) <= 20


def test_matplotlib_is_imported_by_the_first_picture_only(monkeypatch):
    usual = builtins.__import__

    def refuse(name, *args, **kwargs):
        assert not name.startswith("matplotlib")
        return usual(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert charts.color(9) == charts.PALETTE[1]
