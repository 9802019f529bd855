"""Activations are computed again where memory is short, and nothing else changes."""

import pytest
import torch

from minrl.batch import pack
from minrl.models import cpu
from minrl.models.scoring import LARGEST_SHARE, kept_bytes, score


@pytest.fixture
def stream(make_rollout):
    return pack([make_rollout([11, 12, 13], [7] * length) for length in (9, 30, 4)], range(3))


def gradients(policy, stream, recompute):
    policy.model.zero_grad()
    logprobs, entropy = score(policy.model, stream, 0.7, recompute)
    (logprobs.sum() + 0.3 * entropy.sum()).backward()
    return logprobs, [weight.grad.clone() for weight in policy.model.parameters()]


def test_recomputed_activations_give_the_same_gradient_bit_for_bit(policy, stream):
    kept, again = gradients(policy, stream, False), gradients(policy, stream, True)
    torch.testing.assert_close(again, kept, atol=0, rtol=0)
    sizes = [kept_bytes(lambda: score(policy.model, stream, 0.7, recompute)) for recompute in (True, False)]  # noqa: B023
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(("prompt", "lengths"), [(30, (40, 61, 80)), (280, (20, 60, 90)), (1, (600,))])
def test_activation_bytes_are_those_of_short_and_long_rows(prompt, lengths, policy, make_rollout):
    group = pack([make_rollout([5] * prompt, [7] * length) for length in lengths], range(len(lengths)))
    weights = sum(weight.nbytes for weight in policy.model.parameters())  # linear layers save theirs
    kept = kept_bytes(lambda: score(policy.model, group, 1.0)) - weights
    assert 0.95 * kept < policy.activation_bytes(group) < 1.2 * kept


@pytest.mark.parametrize(("choice", "free", "passes"), [("auto", 1.01, 2), ("auto", 0.99, 3), ("always", 99, 3)])
def test_memory_decides_unless_the_user_does(choice, free, passes, policy, stream, monkeypatch):
    """`free`: in units of what the stream's activations need."""
    needed = policy.activation_bytes(stream) / LARGEST_SHARE
    monkeypatch.setattr(policy, "free_memory", lambda: free * needed)
    monkeypatch.setattr(policy, "activation_checkpointing", choice)
    calls = []
    policy.model.get_decoder().layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    policy.score(stream, 1.0)[0].sum().backward()
    with torch.no_grad():
        policy.score(stream, 1.0)  # nothing is kept for a backward pass: nothing to decide
    assert len(calls) == passes


def test_free_memory_is_within_every_limit_of_the_groups_of_a_process_and_shared(policy, tmp_path, monkeypatch):
    stat = "inactive_file 700\nactive_file 300\n"
    for name, limit in (("limited", "5000"), ("unlimited", "max")):
        (tmp_path / name).mkdir()
        for file, text in (("max", limit), ("current", "3000"), ("stat", stat)):
            (tmp_path / name / f"memory.{file}").write_text(text)
    monkeypatch.setattr(policy.processes, "local_count", 4)
    monkeypatch.setattr(cpu, "control_groups", lambda: [tmp_path / name for name in ("limited", "unlimited", "none")])
    assert policy.free_memory() == (5000 - 3000 + 700) // 4
