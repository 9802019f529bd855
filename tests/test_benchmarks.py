"""Benchmarks say what they do for as long as they do it, and take no more of the machine than they need."""

import ast
import socket
import sys
import time
from pathlib import Path

import harness
import pytest
import torch
from counted import bytes_sent, counted
from curves import Point, reached
from shapes import Work
from table import BENCHMARKS, asked

FOLDER = Path(__file__).parent.parent / "benchmarks"
SHARED = ("card", "counted", "harness", "shapes")
NO_THREAD = ("mutants", "table")
"""One forks, where another thread may hold a lock, and says it itself; one starts the others, which do."""
SAYING = {"doing", "compare", "Sides"}
"""What says it: the function, and what calls it before every part."""


def test_what_goes_on_is_said_again_and_again_until_something_else_does(capfd):
    voice, said = harness.Voice(every_s=0.01), ""
    for what in ("first", "second"):
        voice.doing(what)
        deadline, said = time.monotonic() + 60, ""
        while said.count(f"] {what}\n") < 3 and time.monotonic() < deadline:
            said += capfd.readouterr().err
        assert said.count(f"] {what}\n") >= 3
    voice.end()
    assert "first" not in said[said.index("second") :]
    assert harness.SAY_EVERY_S < 30


@pytest.mark.parametrize(
    "path", [p for p in sorted(FOLDER.glob("*.py")) if p.stem not in SHARED + NO_THREAD], ids=lambda path: path.stem
)
def test_every_benchmark_says_what_it_does(path):
    called = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert SAYING & {function.id for function in called if isinstance(function, ast.Name)}


def test_vllm_is_given_the_memory_of_the_rows_and_no_share_of_the_machine():
    # 64 rows of 32 + 64 tokens take a block of 128 tokens each, and one stays empty. A token is a key and a value in
    # each of 4 layers, of 4 heads x 32 dimensions of 4 bytes: 4,096 bytes.
    assert Work(size="5M").cache_bytes() == 65 * 128 * 4096
    assert Work(size="5M", max_tokens=97).cache_bytes() == (64 * 2 + 1) * 128 * 4096  # 129 tokens take a second block
    assert Work(size="1M", dtype="bfloat16").cache_bytes() == 65 * 128 * (2 * 2 * 2 * 32 * 2)
    calls = [node for node in ast.walk(ast.parse((FOLDER / "rollout.py").read_text())) if isinstance(node, ast.Call)]
    (engine,) = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "LLM")
    assert "kv_cache_memory_bytes" in {keyword.arg for keyword in engine.keywords}


def test_the_peak_is_of_all_that_is_allocated_at_a_time():
    """Two tensors of 4,000 bytes, of which one is freed before a third of 8,000 comes."""

    def run():
        kept, freed = torch.empty(1000), torch.empty(1000)
        del freed
        return kept, torch.empty(2000)

    assert counted(run).peak == 4000 + 8000


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts what a connection has sent")
def test_the_kernel_counts_what_is_sent():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sending:
        receiving, _ = server.accept()
        before = bytes_sent()
        sending.sendall(bytes(1234))
        assert len(receiving.recv(1234, socket.MSG_WAITALL)) == 1234
        receiving.sendall(bytes(66))
        assert len(sending.recv(66, socket.MSG_WAITALL)) == 66
        assert bytes_sent() - before == 1300  # both ends are of this process
        receiving.close()


def test_a_goal_is_reached_on_the_line_between_two_evaluations():
    points = [Point(0, 0.0, 0.0, 0.4), Point(10, 2.0, 8.0, 0.6), Point(20, 4.0, 20.0, 0.9), Point(30, 6.0, 30.0, 0.8)]
    assert reached(points, 0.7) == pytest.approx((10 + 10 / 3, 2 + 2 / 3, 8 + 12 / 3, 0.7))
    assert reached(points, 0.4) == points[0]
    assert reached(points, 0.95) is None


def test_the_table_runs_what_is_named_and_without_a_name_everything(capsys):
    assert asked([]) == list(BENCHMARKS)
    assert asked(["update", "step"]) == ["update", "step"]
    with pytest.raises(SystemExit):
        asked(["updates"])
    assert "there is no benchmark 'updates': choose from step, update" in capsys.readouterr().err
