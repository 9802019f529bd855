"""Episodes by hand: token ids, masks, turn bounds, rewards of each role, and seeds."""

from collections import Counter
from dataclasses import replace

import pytest
from together import together

from minrl.dataflow import SOLO, Completion, Example, Job, Reward, Turn, TurnReward
from minrl.engines.torch_engine import TorchEngine
from minrl.rollout import Plan, completion_seed, rollout
from minrl.tasks import Task
from minrl.tasks.task import split

EXAMPLES = split([Example(str(n), "numbers 1 2", {"answer": n}) for n in range(20)], 0.5)


class Scripted(TorchEngine):
    """An engine that returns given texts, and remembers its requests."""

    def __init__(self, policy, *texts, room=None):
        super().__init__(policy)
        self.ids, self.room, self.calls = [policy.tokenizer(text)["input_ids"] for text in texts], room, []

    @property
    def context_length(self):
        return self.room or super().context_length

    def generate(self, requests, sampling, **_):
        self.calls.append(list(requests))
        said = [self.ids.pop(0) for _ in requests]
        ends = ["stop" if ids[-1] in sampling.stop_ids else "length" for ids in said]
        return [
            Completion(ids, [-0.5 * (n + 1) for n in range(len(ids))], end) for ids, end in zip(said, ends, strict=True)
        ]


@pytest.fixture
def play(policy, workers):
    """Plays an episode, or else a single turn, with an engine or with these texts."""

    def play(episode, *texts, engine=None, examples=1, task=None, **changes):
        values = {"group_size": 1, "max_tokens": 8, "temperature": 1.0, "seed": 0, "purpose": "test", "step": 1}
        task = task or Task(EXAMPLES, lambda text, example: Reward(0.0), episode=episode, cheap=True)
        examples = EXAMPLES.train[:examples] if isinstance(examples, int) else examples
        engine = engine or Scripted(policy, *texts)
        return rollout(policy, engine, workers, task, examples, Plan(**{**values, **changes}))

    return play


@pytest.fixture
def ids_of(policy):
    return lambda text: policy.tokenizer(text)["input_ids"]


def test_a_single_turn_is_the_prompt_and_the_completion(play, ids_of):
    reward = lambda text, example: Reward(float(len(text.split())), {"words": 3.0}, maximum=8.0)  # noqa: E731
    sampled = play(None, "7 + 5 <end>", "2 3", task=Task(EXAMPLES, reward, cheap=True), group_size=2)
    one, cut_off = sampled.rollouts
    assert sampled.failures == []
    assert one.ids == ids_of("numbers 1 2 7 + 5 <end>")
    assert one.loss_mask == [False] * 3 + [True] * 4  # the end token is trained too
    assert one.rollout_logprobs == [0.0] * 3 + [-0.5, -1.0, -1.5, -2.0]
    assert one.turns == [(3, 7)] and one.prompt_length == 3
    assert one.text == "7 + 5" and one.reward == Reward(3.0, {"words": 3.0}, maximum=8.0)
    assert (one.role, one.finish_reason, one.example_id) == (SOLO, "stop", EXAMPLES.train[0].id)
    assert (cut_off.finish_reason, cut_off.truncated, one.truncated) == ("length", True, False)


def guess(example, rng):
    """Three guesses; each is answered by a chat message."""
    said = []
    for text in ("numbers 1", "no {}", "no"):
        said.append((yield Turn("guesser", [{"role": "user", "content": text.format(*said)}])))
    return {"guesser": Reward(float(said == ["2", "3 4", "5"]))}


def test_three_turns_are_one_growing_sequence(play, ids_of):
    # The second completion is cut off (no <end>): the template closes it with the <end> it lacks. The others end with
    # theirs, which is not repeated.
    (one,) = play(guess, "2 <end>", "3 4", "5 <end>").rollouts
    pieces = ["<user> numbers 1 <assistant>", "2 <end>", "<user> no 2 <assistant>", "3 4"]
    pieces = [*map(ids_of, pieces), ids_of("<end> <user> no <assistant>"), ids_of("5 <end>")]
    assert one.ids == [token for piece in pieces for token in piece]
    # 4 given, 2 sampled, 4 given, 2 sampled, 4 given, 2 sampled.
    assert one.loss_mask == [number % 2 == 1 for number, piece in enumerate(pieces) for _ in piece]
    assert one.rollout_logprobs == ([0.0] * 4 + [-0.5, -1.0]) * 3
    assert one.turns == [(4, 6), (10, 12), (16, 18)] and one.prompt_length == 4
    assert (one.reward, one.finish_reason) == (Reward(1.0), "length")  # a turn was cut off


def test_a_turn_is_appended_to_what_was_sampled_and_never_rendered_again(play, policy, ids_of):
    # An unknown token decodes to text that would be tokenized differently if it were rendered again.
    engine = Scripted(policy, *["2 <end>"] * 4, *["3 4 <end>"] * 4, *["5 <end>"] * 4)
    engine.ids[0].insert(1, policy.tokenizer.unk_token_id)
    one, *_ = play(guess, engine=engine, examples=2, group_size=2).rollouts
    assert [len(call) for call in engine.calls] == [4, 4, 4]  # all episodes wait for one call per round
    for call in engine.calls:  # each request continues exactly the ids before it
        assert one.ids[: len(call[0].ids)] == call[0].ids
    assert policy.tokenizer.unk_token_id in one.ids


def duel(example, rng):
    """Two players in turn; a referee's job decides; plain strings are fed as they are."""
    opening = yield Turn("white", "numbers 1")
    reply = yield Turn("black", f"target {opening}")
    last = yield Turn("white", f"yes {reply}")
    winner = yield Job(max, (int(reply), int(last)))
    return {"white": Reward(float(winner == int(last))), "black": Reward(float(winner == int(reply)))}


def test_two_players_have_a_sequence_and_a_reward_each(play, ids_of):
    white, black = play(duel, "3 <end>", "8 <end>", "5 <end>").rollouts
    assert (white.role, black.role) == ("white", "black")
    assert white.ids == ids_of("numbers 1 3 <end> yes 8 5 <end>") and white.turns == [(2, 4), (6, 8)]
    assert white.loss_mask == [False, False, True, True] * 2
    assert black.ids == ids_of("target 3 8 <end>") and black.loss_mask == [False, False, True, True]
    assert (white.reward, black.reward) == (Reward(0.0), Reward(1.0))  # 8 beats 5
    played = [(turn.role, turn.finish_reason, turn.text) for turn in white.episode]
    assert played == [(role, "stop", None) for role in ("white", "black", "white")]
    assert black.episode == white.episode and (white.slot, white.sample) == (black.slot, black.sample)
    assert [turn.seed for turn in white.episode][:2] == [white.seed, black.seed]


def test_a_group_is_an_example_and_a_role_and_every_turn_has_a_seed_of_its_own(play, policy):
    def played():
        engine = Scripted(policy, *["3 <end>"] * 8, *["8 <end>"] * 8, *["5 <end>"] * 8)
        return play(duel, engine=engine, examples=2, group_size=4), [one.seed for call in engine.calls for one in call]

    found, seeds = played()
    keys = [(one.example_id, one.role, one.group) for one in found.rollouts]
    assert [*Counter(keys).values()] == [4] * 4 and sorted({group for _, _, group in keys}) == [0, 1, 2, 3]
    assert len(seeds) == len(set(seeds)) == 24  # 2 slots x 4 samples x (2 turns of white + 1 of black)
    assert played()[1] == seeds


def test_a_seed_depends_on_its_whole_path_and_fits_a_signed_integer():
    path = (0, "train", 1, 2, 3, "policy", 4)
    changed = [(9, *path[1:]), *[(*path[:n], "other", *path[n + 1 :]) for n in range(1, len(path))]]
    seeds = {completion_seed(*p) for p in [path, *changed, path]}
    assert len(seeds) == 1 + len(changed) and min(seeds) >= 0 and 2**62 < max(seeds) < 2**63


def against_a_frozen_one(example, rng):
    first = yield Turn("me", "numbers 1")
    for _ in range(2):
        yield Turn("other", "target", frozen=True)
    last = yield Turn("me", f"yes {first}")
    return {"me": Reward(float(last))}


def test_a_frozen_role_is_sampled_as_such_and_is_read_but_not_trained(play, policy, ids_of):
    engine = Scripted(policy, "3 <end>", "8 <end>", "5 <end>", "1 <end>")
    task = Task(EXAMPLES, None, episode=against_a_frozen_one, cheap=True, frozen_opponent=True)
    sampled = play(None, engine=engine, task=task)
    assert [request.frozen for (request,) in engine.calls] == [False, True, True, False]
    (one,) = sampled.rollouts
    assert (one.role, one.group, one.reward, sampled.failures) == ("me", 0, Reward(1.0), [])
    assert one.ids == ids_of("numbers 1 3 <end> yes 3 1 <end>")
    # What the policy said stands in its own ids; nobody has those of the other.
    assert [turn.text for turn in one.episode] == [None, "8", "5", None]


@pytest.mark.parametrize(("model", "room", "expected"), [(5, None, 2), (5, 4, 1)])
def test_a_completion_has_no_more_tokens_than_there_is_room_for(play, policy, model, room, expected):
    policy.model.config.max_position_embeddings = model
    engine = Scripted(policy, "2 <end>", room=room)  # an engine may have room for less than the model
    play(None, engine=engine)  # a prompt of 3 tokens
    assert engine.calls[0][0].max_tokens == expected


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [("numbers" + " 1" * 7, "8 tokens come before it and the model takes 8"), (" ", "has no tokens")],
)
def test_an_episode_whose_first_turn_does_not_fit_is_unscorable_and_the_others_go_on(play, policy, prompt, reason):
    policy.model.config.max_position_embeddings = 8
    sampled = play(None, "2 <end>", examples=[Example("fits", "numbers 1 1", {}), Example("odd", prompt, {})])
    assert [(one.example_id, one.reward) for one in sampled.rollouts] == [("fits", Reward(0.0))]
    assert sampled.reasons[0] is None and f"{reason} (example 'odd')" in sampled.reasons[1]


@pytest.mark.parametrize("optional", [False, True])
def test_a_later_turn_without_room_fails_unless_it_is_optional(play, policy, ids_of, optional):
    def episode(example, rng):
        said = yield Turn(SOLO, "numbers 1")
        return {SOLO: Reward(float(said == "2" and (yield Turn(SOLO, "no 2", optional=optional)) == ""))}

    # The prompt has 2 tokens, the first completion 2, the next message 2: six, which leave no room for a token.
    policy.model.config.max_position_embeddings = 6
    sampled = play(episode, "2 <end>")
    (one,) = sampled.rollouts
    assert (one.ids, one.turns) == (ids_of("numbers 1 2 <end>"), [(2, 4)])
    assert (one.reward, one.truncated) == ((Reward(1.0), True) if optional else (None, False))
    assert len(sampled.failures) == (not optional)
    assert all(f"turn 2 of {SOLO} has no room: 6 tokens come" in failure for failure in sampled.failures)


def test_a_role_without_a_reward_takes_nothing_from_the_others(play):
    def episode(example, rng):
        for role in ("white", "black"):
            yield Turn(role, "numbers")
        return {"white": Reward(0.5)}

    sampled = play(episode, "3 <end>", "4 <end>")
    assert [(one.role, one.reward) for one in sampled.rollouts] == [("white", Reward(0.5)), ("black", None)]
    assert len(sampled.failures) == 1 and "no reward for 'black'" in sampled.failures[0] and sampled.lost == []


def some_begin(example, rng):
    """Fails before its first turn, but for the first example."""
    if example.id != "first":
        raise RuntimeError("no board")
    yield Turn("white", "numbers")
    yield Turn("black", "numbers")
    return {"white": Reward(1.0), "black": Reward(0.0)}


def test_episodes_that_fail_before_their_first_turn_count_for_each_role_they_would_have_had(play):
    examples = [Example(name, "numbers 1 2", {}) for name in ("first", "second")]
    sampled = play(some_begin, *["3 <end>"] * 4, examples=examples, group_size=2)
    assert [one.example_id for one in sampled.lost] == ["second"] * 2
    assert ["no board" in failure for failure in sampled.failures] == [True] * 2
    # Both roles of both episodes: four rollouts that were played, four that were not.
    assert Counter((one.example_id, one.role, one.reward is None) for one in sampled.outcomes) == {
        (example, role, example == "second"): 2 for example in ("first", "second") for role in ("white", "black")
    }
    sampled = play(some_begin, examples=examples[1:])
    assert sampled.rollouts == [] and [(one.role, one.reward) for one in sampled.outcomes] == [(SOLO, None)]


def odd_ones_fail(example, rng):
    """Two turns and two roles; the episodes of odd examples never begin."""
    if int(example.id) % 2:
        raise RuntimeError(f"no {example.id}")
    for role in ("white", "black"):
        said = yield Turn(role, example.prompt)
    return {"white": Reward(rng.random()), "black": Reward(float(len(said) % 2))}


def test_several_processes_play_what_one_would(make_policy, workers):
    examples = [Example(str(n), f"numbers {n}", {}) for n in (0, 2, 1, 3, 4)]
    task = Task(EXAMPLES, None, episode=odd_ones_fail, cheap=True)

    def sampled(policy):
        plan = Plan(2, 8, 1.0, 0, "test", 1, first_slot=10)
        return rollout(policy, TorchEngine(policy), workers, task, examples, plan)

    alone = sampled(make_policy())
    assert [r.group for r in alone.rollouts] == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5]
    assert (len(alone.failures), len(alone.reasons)) == (4, 10)
    # Of seven some have nothing to play, or nothing that begins.
    for found in together(7, lambda member: replace(make_policy(), processes=member), sampled):
        for actual, expected in zip(found.rollouts, alone.rollouts, strict=True):
            assert actual.rollout_logprobs == pytest.approx(expected.rollout_logprobs, abs=1e-5)
            assert replace(actual, rollout_logprobs=[]) == replace(expected, rollout_logprobs=[])
        assert [one is None for one in found.reasons] == [one is None for one in alone.reasons]
        assert len(found.failures) == 4


def rewarded(example, rng):
    """Two turns of one role and one of another, whose rewards come at once, late, twice and as 0."""
    first = yield Turn("a", "numbers 1")
    yield TurnReward("a", 0.25)
    yield Turn("b", f"target {first}")
    yield TurnReward("a", 0.5)  # still of its first turn
    yield Turn("a", "yes")
    yield TurnReward("a", -0.125)
    yield TurnReward("b", 0.0)
    return {"a": Reward(1.0, {"right": 1.0}), "b": 0.5}


def test_the_rewards_of_turns_are_a_part_of_the_roles_reward_and_say_nothing_of_solved(play):
    one, other = play(rewarded, "3 <end>", "8 <end>", "5 <end>").rollouts
    assert (one.turn_rewards, other.turn_rewards) == ([0.75, -0.125], [0.0])
    assert one.reward == Reward(1.625, {"right": 1.0}, maximum=1.625, full=True)
    assert other.reward == Reward(0.5, full=False)


def test_a_reward_of_a_turn_that_nobody_took_is_a_mistake(play):
    def episode(example, rng):
        yield Turn("a", "numbers 1")
        yield TurnReward("b", 1.0)

    sampled = play(episode, "3 <end>")
    assert "the episode rewarded a turn of 'b', which took none: 'a' did" in sampled.failures[0]
    assert sampled.rollouts[0].reward is None
