"""Standard streams that are closed."""

import os
import sys

import pytest
from rich.console import Console

from minrl.system.streams import Forgiving, forgive_closed_streams


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_was_closed_before_the_start_goes_nowhere(monkeypatch, name):
    for each in ("stdout", "stderr"):
        monkeypatch.setattr(sys, each, getattr(sys, each))
    monkeypatch.setattr(sys, name, None)
    forgive_closed_streams()
    stream = getattr(sys, name)
    stream.write("unseen\n")
    stream.flush()
    assert os.get_inheritable(stream.fileno())  # a worker's own stream is not closed either
    assert os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    stream.close()


def test_a_pipe_whose_reader_ended_takes_what_is_written():
    reader, writer = os.pipe()
    os.close(reader)
    with Forgiving(os.fdopen(writer, "w")) as stream:
        Console(file=stream).print("as `train.py | head` does")
        stream.write("more")
        stream.flush()
        assert os.path.samestat(os.fstat(writer), os.stat(os.devnull))
