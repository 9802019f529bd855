"""Activations are computed again where memory is short, and nothing else changes."""

from contextlib import nullcontext

import pytest
import torch

from minrl.batch import pack
from minrl.dataflow import UserError
from minrl.models import cpu
from minrl.models.scoring import LARGEST_SHARE, kept_bytes, recomputed, score


@pytest.fixture
def stream(make_rollout):
    rollouts = [make_rollout([11, 12, 13], [7] * length, group=0) for length in (9, 30, 4)]
    return pack(rollouts, range(3))


def gradients(policy, stream, recompute):
    policy.model.zero_grad()
    logprobs, entropy = score(policy.model, stream, 0.7, recompute)
    (logprobs.sum() + 0.3 * entropy.sum()).backward()
    return logprobs, [weight.grad.clone() for weight in policy.model.parameters()]


def test_recomputed_activations_give_the_same_gradient_bit_for_bit(policy, stream):
    kept, again = gradients(policy, stream, False), gradients(policy, stream, True)
    torch.testing.assert_close(again, kept, atol=0, rtol=0)
    assert kept_bytes(lambda: score(policy.model, stream, 0.7, True)) < kept_bytes(
        lambda: score(policy.model, stream, 0.7)
    )


def test_a_model_without_layers_is_refused_in_one_line():
    refused = pytest.raises(UserError, match="Linear has no list of layers: choose --activation-checkpointing never")
    with refused, recomputed(torch.nn.Linear(2, 2), nullcontext):
        pass


def weight_bytes(policy):
    """What linear layers save for the gradient of their input; the weights of norms are few."""
    return sum(weight.nbytes for weight in policy.model.parameters())


@pytest.mark.parametrize(("prompt", "lengths"), [(30, (40, 61, 80)), (1, (100,)), (280, (20, 60, 90)), (1, (600,))])
def test_activation_bytes_are_those_of_short_and_long_rows(prompt, lengths, policy, make_rollout):
    group = pack([make_rollout([5] * prompt, [7] * length) for length in lengths], range(len(lengths)))
    kept = kept_bytes(lambda: score(policy.model, group, 1.0)) - weight_bytes(policy)
    assert 0.95 * kept < policy.activation_bytes(group) < 1.2 * kept


@pytest.mark.parametrize(
    ("choice", "free", "expected"),
    [("auto", 1.01, False), ("auto", 0.99, True), ("always", 99, True)],
)
def test_memory_decides_unless_the_user_does(choice, free, expected, policy, stream, monkeypatch):
    """`free`: in units of what the stream's activations need."""
    needed = policy.activation_bytes(stream) / LARGEST_SHARE
    monkeypatch.setattr(policy, "free_memory", lambda: free * needed)
    monkeypatch.setattr(policy, "activation_checkpointing", choice)
    calls = []
    handle = policy.model.get_decoder().layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    logprobs, _ = policy.score(stream, 1.0)
    logprobs.sum().backward()
    with torch.no_grad():
        policy.score(stream, 1.0)  # nothing is kept for a backward pass: nothing to decide
    handle.remove()
    assert len(calls) == (3 if expected else 2)


def test_processes_share_what_is_free(policy, monkeypatch):
    monkeypatch.setattr("minrl.policy.free_bytes", lambda device: 1000)
    assert policy.free_memory() == 1000
    monkeypatch.setattr(policy.processes, "local_count", 4)
    assert policy.free_memory() == 250


def test_the_smallest_limit_of_the_groups_of_a_process_counts(monkeypatch):
    limits = {"job": 500, "all": 900, "root": None}
    monkeypatch.setattr(cpu, "control_groups", lambda: list(limits))
    monkeypatch.setattr(cpu, "_below_the_limit", limits.get)
    assert cpu.free_bytes() == 500


@pytest.mark.parametrize(("limit", "expected"), [("max", None), ("5000", 5000 - 3000 + 700)])
def test_a_container_has_no_more_than_its_limit(limit, expected, tmp_path):
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 2000\ninactive_file 700\nactive_file 300\n")
    assert cpu._below_the_limit(tmp_path) == expected
    assert cpu._below_the_limit(tmp_path / "no group") is None


@pytest.mark.parametrize(("limit", "expected"), [(5000, 5000 - 3000 + 700), (2**63 - 4096, 2**63 - 4096 - 3000 + 700)])
def test_a_container_of_version_1_has_a_limit_too(limit, expected, tmp_path):
    (tmp_path / "memory").mkdir()
    stat = "inactive_file 300\nhierarchical_memory_limit 1\ntotal_inactive_file 700"
    for name, text in (("memory.limit_in_bytes", limit), ("memory.usage_in_bytes", 3000), ("memory.stat", stat)):
        (tmp_path / "memory" / name).write_text(f"{text}\n")
    assert cpu._below_the_limit(tmp_path) == expected  # without a limit more than any machine has
