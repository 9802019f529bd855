"""Ragged rollouts -> flat streams, by hand."""

import random

import pytest
import torch

from minrl.batch import make_batch, micro_batches, pack, share_of_tokens, split_groups


def test_the_stream_of_two_completions_is_the_one_in_the_docstring(make_rollout):
    stream = pack([make_rollout([11, 12], [21, 2]), make_rollout([11, 12], [31, 32, 2])], [0, 1])
    columns = {name: column.tolist() for name, column in vars(stream).items() if name != "segments"}
    assert columns == {
        "input_ids": [11, 12, 21, 31, 32],
        "positions": [0, 1, 2, 2, 3],
        "scored": [1, 2, 1, 3, 4],
        "labels": [21, 2, 31, 32, 2],
        "token_index": [0, 1, 2, 3, 4],
    }
    # The last sampled token is a label only: suffixes are one shorter than completions.
    assert [one.keys().tolist() for one in stream.segments] == [[0, 1], [0, 1, 2], [0, 1, 3, 4]]
    moved = stream.to(torch.device("meta"))
    assert moved.segments == stream.segments and all(getattr(moved, name).is_meta for name in columns)
    assert [getattr(moved, name).shape for name in columns] == [getattr(stream, name).shape for name in columns]


def test_where_the_prompts_and_suffixes_of_a_stream_are(make_rollout):
    # Prompts [11, 12] and [13]; suffixes [31, 32], [21] and, of a completion of one token, none. The step's tokens are
    # numbered 0 1 | 2 | 3 4 5, in whatever order they are packed.
    rollouts = [make_rollout([11, 12], [21, 2]), make_rollout([13], [2]), make_rollout([11, 12], [31, 32, 2])]
    stream = pack(rollouts, [2, 0, 1])
    assert stream.input_ids.tolist() == [11, 12, 31, 32, 21, 13]
    assert stream.labels.tolist() == [31, 32, 2, 21, 2, 2] and stream.token_index.tolist() == [3, 4, 5, 0, 1, 2]
    assert stream.segments == ((0, 2, 0, 0), (2, 2, 0, 2), (4, 1, 0, 2), (5, 1, 0, 0), (6, 0, 5, 1))


def test_only_sampled_tokens_of_several_turns_are_labels_and_have_an_advantage(make_rollout):
    # Two sampled turns (21, 2) and (31, 2) with 15, 16 given between them.
    ids, mask = [11, 12, 21, 2, 15, 16, 31, 2], [False, False, True, True, False, False, True, True]
    logprobs = [0.0, 0.0, -0.5, -0.25, 0.0, 0.0, -2.0, -1.0]
    rollout = make_rollout([11, 12], [], ids=ids, loss_mask=mask, rollout_logprobs=logprobs, turns=[(2, 4), (6, 8)])
    stream = pack([rollout], [0])
    assert stream.input_ids.tolist() == [11, 12, 21, 2, 15, 16, 31]
    assert stream.labels.tolist() == [21, 2, 31, 2]
    assert stream.scored.tolist() == [1, 2, 5, 6]
    rollouts = [make_rollout([11], [2], reward=None), rollout]
    batch = make_batch(rollouts, torch.tensor([[0.0, 0.0], [1.0, 2.0]]))  # one for each turn
    assert batch.advantages.tolist() == [0, 1, 1, 2, 2] and batch.rollout_of.tolist() == [0, 1, 1, 1, 1]
    assert batch.have_advantage.tolist() == batch.scorable.tolist() == [False, True]
    assert batch.rollout_logprobs.tolist() == [-1, -0.5, -0.25, -2, -1]


@pytest.fixture
def random_rollouts(make_rollout):
    rng = random.Random(0)
    prompts = [rng.choices(range(50), k=rng.randint(1, 6)) for _ in range(6)]
    groups = rng.choices(range(6), k=40)
    return [make_rollout(prompts[g], rng.choices(range(50), k=rng.randint(1, 9)), group=g) for g in groups]


def test_ragged_to_packed_to_ragged_loses_nothing(random_rollouts):
    stream = pack(random_rollouts, range(len(random_rollouts)))
    suffixes = [one for one in stream.segments if one.prompt_length]
    ragged = [stream.input_ids[suffix.keys()].tolist() for suffix in suffixes]
    assert ragged == [rollout.ids[:-1] for rollout in random_rollouts]
    labels = torch.empty_like(stream.labels)
    labels[stream.token_index] = stream.labels
    assert labels.tolist() == [token for rollout in random_rollouts for token in rollout.ids[rollout.prompt_length :]]


@pytest.mark.parametrize("budget", [1, 20])
def test_micro_batches_keep_the_budget_and_lose_nothing(random_rollouts, budget):
    chosen = [index for index in range(len(random_rollouts)) if index % 3]
    parts = micro_batches(random_rollouts, chosen, budget)
    assert sorted(index for part in parts for index in part) == chosen
    for part in parts:
        assert len(part) == 1 or len(pack(random_rollouts, part).input_ids) <= budget


def test_micro_batches_of_one_prompt_count_it_once(make_rollout):
    # A prompt of 4 and suffixes of 2 - 1 = 1 token: 4 + 8 * 1 = 12 tokens fit a budget of 12 in one batch.
    group = [make_rollout([1, 2, 3, 4], [9, 2]) for _ in range(8)]
    assert micro_batches(group, range(8), 12) == [list(range(8))]
    assert [len(part) for part in micro_batches(group, range(8), 11)] == [7, 1]


@pytest.mark.parametrize("parts", [2, 3])
def test_minibatches_are_whole_groups_as_even_as_they_can_be(make_rollout, parts):
    rollouts = [make_rollout([1], [2], group=group) for group in (3, 3, 8, 8, 8, 1, 4, 4, 6, 3)]
    shares = split_groups(rollouts, parts)
    assert sorted(index for share in shares for index in share) == list(range(10))
    groups = [{rollouts[index].group for index in share} for share in shares]
    assert sum(map(len, groups)) == 5  # five groups, none in two shares
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


@pytest.mark.parametrize(
    ("indices", "shares"),
    [
        (range(5), [[0, 1], [2, 3, 4]]),
        (range(5), [[0], [1], [2, 3], [4]]),
        ([4], [[], [4], []]),
        ([], [[], []]),
    ],
)
def test_processes_share_tokens_evenly_and_in_order(make_rollout, indices, shares):
    # Lengths 2, 8, 2, 4, 4 with middles at 1, 6, 11, 14, 18 of 20 tokens.
    rollouts = [make_rollout([1], [2] * (length - 1)) for length in (2, 8, 2, 4, 4)]
    assert [share_of_tokens(rollouts, indices, rank, len(shares)) for rank in range(len(shares))] == shares
