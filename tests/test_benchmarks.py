"""What the benchmarks count is what was done."""

import ast
import socket
import sys
from dataclasses import replace
from pathlib import Path

import harness
import pytest
import torch
from processes import Case, bytes_sent, launch, peak_bytes, sent_by_each
from shapes import Work

from minrl.models.memory import Setup, Weights
from tests.three_layers import WEIGHTS

FOLDER = Path(__file__).parent.parent / "benchmarks"


def test_vllm_is_given_the_memory_of_the_rows_and_no_share_of_the_machine():
    # 64 rows of 32 + 64 tokens take a block of 128 tokens each, and one stays empty. A token is a key and a value in
    # each of 4 layers, of 4 heads x 32 dimensions of 4 bytes: 4,096 bytes.
    assert Work(size="5M").cache_bytes() == 65 * 128 * 4096
    assert Work(size="5M", max_tokens=97).cache_bytes() == (64 * 2 + 1) * 128 * 4096  # 129 tokens take a second block
    calls = [node for node in ast.walk(ast.parse((FOLDER / "rollout.py").read_text())) if isinstance(node, ast.Call)]
    (engine,) = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "LLM")
    assert "kv_cache_memory_bytes" in {keyword.arg for keyword in engine.keywords}


def test_sides_that_did_different_work_are_not_compared():
    harness.require_equal({"ours": {"tokens": 3, "gib": 1}, "theirs": {"tokens": 3}})
    with pytest.raises(AssertionError, match="differ in tokens"):
        harness.require_equal({"ours": {"tokens": 3}, "theirs": {"tokens": 4}})


def test_the_peak_is_of_all_that_is_allocated_at_a_time():
    """Two tensors of 4,000 bytes, of which one is freed before a third of 8,000 comes."""

    def run():
        kept, freed = torch.empty(1000), torch.empty(1000)
        del freed
        return kept, torch.empty(2000)

    assert peak_bytes(run) == 4000 + 8000


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


def test_the_bytes_that_four_processes_send():
    """4 x 1,888 = 7,552 bytes of weights, of which 4 x 88 are outside the layers: 14,752 are gathered for a pass."""
    whole = Setup(processes=4, sharding="none")
    assert sent_by_each(WEIGHTS, whole, 5) == 2 * 7552 * 3 / 4
    assert sent_by_each(WEIGHTS, replace(whole, sharding="full"), 5) == 5 * (14_752 + 7552) * 3 / 4


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_two_processes_hold_and_send_what_is_calculated(sharding):
    """gloo has no scattered sum, and makes one that all have: twice the bytes."""
    case = Case(2, sharding, 1, 512, "always", Work(size="1M", prompts=4, group=2, max_tokens=16))
    for rank in launch(case):
        weights, setup = Weights(**rank["weights"]), Setup(processes=2, sharding=sharding)
        summed = rank["passes"] * 4 * weights.trained / 2 if sharding == "full" else 0
        least = rank["least"] + summed
        assert least <= rank["turns"][0]["sent"] <= 1.1 * least
        assert rank["held"] == pytest.approx(12 * weights.total / setup.shards, rel=0.01)
        assert 0.7 <= rank["peak"] / rank["estimate"] <= 1.1
