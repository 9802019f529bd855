"""Ragged rollouts -> flat streams, by hand."""

import random

import pytest
import torch

from minrl.batch import make_batch, micro_batches, pack, share_of_tokens, split_groups
from minrl.types import Reward


@pytest.fixture
def two(make_rollout):
    """The example of `Stream`: one prompt, two completions of 2 and 3 tokens."""
    return [make_rollout([11, 12], [21, 2]), make_rollout([11, 12], [31, 32, 2])]


def test_the_stream_of_two_completions_is_the_one_in_the_docstring(two):
    stream = pack(two, [0, 1])
    assert stream.input_ids.tolist() == [11, 12, 21, 31, 32]
    assert stream.positions.tolist() == [0, 1, 2, 2, 3]
    assert stream.scored.tolist() == [1, 2, 1, 3, 4]
    assert stream.labels.tolist() == [21, 2, 31, 32, 2]
    assert stream.token_index.tolist() == [0, 1, 2, 3, 4]
    assert stream.prefix_of.tolist() == [0, 0]
    assert stream.prefix_lengths.tolist() == [2]
    # The last sampled token is a label only: suffixes are one shorter than completions.
    assert stream.suffix_lengths.tolist() == [1, 2]


def test_where_the_prompts_and_suffixes_of_a_stream_are(make_rollout):
    # Prompts [11, 12] and [13]; suffixes [21], [31, 32] and, of a completion of one token, none.
    rollouts = [make_rollout([11, 12], [21, 2]), make_rollout([13], [2]), make_rollout([11, 12], [31, 32, 2])]
    stream = pack(rollouts, [0, 2, 1])
    assert stream.input_ids.tolist() == [11, 12, 21, 31, 32, 13]
    assert stream.prefix_index.tolist() == [[0, 1], [5, 0]]
    assert stream.suffix_index.tolist() == [[2, 0], [3, 4], [0, 0]]
    assert stream.prefix_of.tolist() == [0, 0, 1]
    assert stream.runs() == ([[0, 1], [5]], [[2], [3, 4], []], [[2, 3, 4], []])
    # Two rows of two for the prompts, and for each of the three suffixes a prompt of two and a row of two.
    assert stream.padded_tokens == 2 * 2 + 3 * (2 + 2)
    assert pack(rollouts, [1]).suffix_index.tolist() == [[0]]  # at least a column


def test_a_stream_moves_to_a_device_as_a_whole(two):
    stream = pack(two, [0, 1])
    moved = stream.to(torch.device("meta"))
    columns = dict(vars(moved))
    assert columns.pop("host") is stream and moved.to(torch.device("meta")).host is stream
    assert {name: (True, column.shape) for name, column in vars(stream).items() if name != "host"} == {
        name: (column.is_meta, column.shape) for name, column in columns.items()
    }


def test_only_sampled_tokens_of_several_turns_are_labels(make_rollout):
    # Two sampled turns (21, 2) and (31, 2) with 15, 16 given between them.
    rollout = make_rollout(
        [11, 12],
        [],
        ids=[11, 12, 21, 2, 15, 16, 31, 2],
        loss_mask=[False, False, True, True, False, False, True, True],
        rollout_logprobs=[0.0, 0.0, -1.0, -2.0, 0.0, 0.0, -3.0, -4.0],
        turns=[(2, 4), (6, 8)],
    )
    stream = pack([rollout], [0])
    assert stream.input_ids.tolist() == [11, 12, 21, 2, 15, 16, 31]
    assert stream.labels.tolist() == [21, 2, 31, 2]
    assert stream.scored.tolist() == [1, 2, 5, 6]


def test_tokens_keep_their_number_in_whatever_order_they_are_packed(make_rollout):
    rollouts = [make_rollout([1], [5, 6]), make_rollout([2], [7]), make_rollout([1], [8, 9, 2])]
    # Numbered 0 1 | 2 | 3 4 5 over the step.
    assert pack(rollouts, [2, 1]).token_index.tolist() == [3, 4, 5, 2]
    assert pack(rollouts, [2, 1]).labels.tolist() == [8, 9, 2, 7]


def _random_rollouts(make_rollout, count=40, seed=0):
    rng = random.Random(seed)
    prompts = [[rng.randrange(50) for _ in range(rng.randint(1, 6))] for _ in range(6)]
    rollouts = []
    for _ in range(count):
        group = rng.randrange(6)
        sampled = [rng.randrange(50) for _ in range(rng.randint(1, 9))]
        rollouts.append(make_rollout(prompts[group], sampled, group=group))
    return rollouts


def test_ragged_to_packed_to_ragged_loses_nothing(make_rollout):
    rollouts = _random_rollouts(make_rollout)
    stream = pack(rollouts, range(len(rollouts)))
    ragged = []
    for row, rollout in enumerate(rollouts):
        prefix = stream.prefix_of[row]
        prompt = stream.input_ids[stream.prefix_index[prefix, : stream.prefix_lengths[prefix]]]
        own = stream.input_ids[stream.suffix_index[row, : stream.suffix_lengths[row]]]
        ragged.append([*prompt.tolist(), *own.tolist(), rollout.ids[-1]])
    assert ragged == [rollout.ids for rollout in rollouts]
    labels = torch.empty_like(stream.labels)
    labels[stream.token_index] = stream.labels
    assert labels.tolist() == [token for rollout in rollouts for token in rollout.ids[rollout.prompt_length :]]


@pytest.mark.parametrize("budget", [1, 7, 20, 60, 10_000])
def test_micro_batches_keep_the_budget_and_lose_nothing(make_rollout, budget):
    rollouts = _random_rollouts(make_rollout)
    chosen = [index for index in range(len(rollouts)) if index % 3]
    parts = micro_batches(rollouts, chosen, budget)
    assert sorted(index for part in parts for index in part) == chosen
    for part in parts:
        assert len(part) == 1 or len(pack(rollouts, part).input_ids) <= budget


def test_micro_batches_of_one_prompt_count_it_once(make_rollout):
    # A prompt of 4 and suffixes of 2 - 1 = 1 token: 4 + 8 * 1 = 12 tokens fit a budget of 12 in one batch.
    group = [make_rollout([1, 2, 3, 4], [9, 2]) for _ in range(8)]
    assert micro_batches(group, range(8), 12) == [list(range(8))]
    assert [len(part) for part in micro_batches(group, range(8), 11)] == [7, 1]


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_minibatches_are_whole_groups_as_even_as_they_can_be(make_rollout, parts):
    rollouts = [make_rollout([1], [2], group=group) for group in (3, 3, 8, 8, 8, 1, 4, 4, 6, 3)]
    shares = split_groups(rollouts, parts)
    assert sorted(index for share in shares for index in share) == list(range(10))
    groups = [{rollouts[index].group for index in share} for share in shares]
    assert sum(map(len, groups)) == 5  # five groups, none in two shares
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_processes_share_tokens_evenly_and_in_order(make_rollout):
    # Lengths 2, 8, 2, 4, 4 with middles at 1, 6, 11, 14, 18 of 20 tokens.
    rollouts = [make_rollout([1], [2] * (length - 1)) for length in (2, 8, 2, 4, 4)]
    shares = lambda indices, count: [share_of_tokens(rollouts, indices, rank, count) for rank in range(count)]  # noqa: E731
    assert shares(range(5), 1) == [[0, 1, 2, 3, 4]]
    assert shares(range(5), 2) == [[0, 1], [2, 3, 4]]
    assert shares(range(5), 4) == [[0], [1], [2, 3], [4]]
    assert shares([4], 3) == [[], [4], []]
    assert shares([], 2) == [[], []]


def test_a_batch_numbers_sampled_tokens_and_keeps_unscorable_apart(make_rollout):
    rollouts = [
        make_rollout([1, 2], [3, 4], rollout_logprobs=[0.0, 0.0, -0.5, -0.25], reward=Reward(0.5)),
        make_rollout([1], [5], rollout_logprobs=[0.0, -2.0], reward=None),
    ]
    batch = make_batch(rollouts, torch.tensor([1.0, 0.0]))
    assert batch.rollout_of.tolist() == [0, 0, 1]
    assert batch.rollout_logprobs.tolist() == [-0.5, -0.25, -2.0]
    assert batch.scorable.tolist() == [True, False]
    assert batch.completion_lengths.tolist() == [2, 1]
