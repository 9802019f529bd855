"""Standard streams that are closed."""

import os
import sys

import pytest

from minrl.system.streams import forgive_closed_streams


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
