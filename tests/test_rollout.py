"""Episodes by hand: token ids, masks, turn bounds, rewards of each role; seeds and the order of the data."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from together import together

from minrl.config import RolloutConfig, TrainerConfig
from minrl.engines.torch_engine import TorchEngine
from minrl.rollout import EPISODE, Plan, completion_seed, rollout
from minrl.sampling import draw_examples, tracked_plan, training_plan
from minrl.tasks import Task
from minrl.tasks.task import split
from minrl.types import SOLO, Completion, Example, Job, Reward, TrainState, Turn
from tests.rewards import cannot_judge_2

EXAMPLES = split([Example(str(n), "numbers 1 2", {"answer": n}) for n in range(20)], 0.5)


class Scripted(TorchEngine):
    """An engine that returns what it is told, and remembers what it was asked."""

    def __init__(self, policy, *texts):
        super().__init__(policy)
        self.room = None
        self.ids = [policy.tokenizer(text)["input_ids"] for text in texts]
        self.calls, self.samplings = [], []

    @property
    def context_length(self):
        return self.room or super().context_length

    def generate(self, requests, sampling, **_):
        self.calls.append(list(requests))
        self.samplings.append(sampling)
        answers = [self.ids.pop(0) for _ in requests]
        end = max(sampling.stop_ids)
        reasons = ["stop" if ids[-1] == end else "length" for ids in answers]
        return [
            Completion(ids, [-0.5 * (n + 1) for n in range(len(ids))], reason)
            for ids, reason in zip(answers, reasons, strict=True)
        ]


def plan(**changes):
    values = {"group_size": 1, "max_tokens": 8, "temperature": 1.0, "seed": 0, "purpose": "test", "step": 1}
    return Plan(**{**values, **changes})


def play(policy, workers, episode, engine, examples=None, reward=None, **changes):
    task = Task(EXAMPLES, reward or (lambda text, example: Reward(0.0)), episode=episode, cheap=True)
    return rollout(policy, engine, workers, task, examples or EXAMPLES.train[:1], plan(**changes))


def ids_of(policy, text):
    return policy.tokenizer(text)["input_ids"]


def test_a_single_turn_is_the_prompt_and_the_completion(policy, workers):
    engine = Scripted(policy, "7 + 5 <end>")
    reward = lambda text, example: Reward(float(len(text.split())), {"words": 3.0}, maximum=8.0)  # noqa: E731
    task = Task(EXAMPLES, reward, cheap=True)
    sampled = rollout(policy, engine, workers, task, EXAMPLES.train[:1], plan())
    (one,) = sampled.rollouts
    assert sampled.failures == []
    assert one.ids == ids_of(policy, "numbers 1 2 7 + 5 <end>")
    assert one.loss_mask == [False] * 3 + [True] * 4  # the end token is trained too
    assert one.rollout_logprobs == [0.0] * 3 + [-0.5, -1.0, -1.5, -2.0]
    assert one.turns == [(3, 7)] and one.prompt_length == 3
    assert one.text == "7 + 5" and one.reward == Reward(3.0, {"words": 3.0}, maximum=8.0)
    assert (one.role, one.finish_reason, one.example_id) == (SOLO, "stop", EXAMPLES.train[0].id)


def test_a_stop_string_that_is_a_token_ends_a_completion_and_is_kept(policy, workers):
    task = Task(EXAMPLES, lambda text, example: Reward(0.0), cheap=True)
    (user,) = ids_of(policy, "<user>")  # a special token: what rewards read does not show it

    def sampled(*stop_strings):
        asked = plan(group_size=40, max_tokens=30, stop_strings=stop_strings)
        return rollout(policy, TorchEngine(policy), workers, task, EXAMPLES.train[:1], asked).rollouts

    ended = []
    for free, stopped in zip(sampled(), sampled("<user>", "7 7 7 7 7"), strict=True):
        if user in free.ids:
            ended.append(stopped)
            assert stopped.ids == free.ids[: free.ids.index(user) + 1]
            assert stopped.finish_reason == "stop" and stopped.loss_mask[-1]
        else:
            assert stopped.ids == free.ids
    assert ended


def test_chat_messages_go_through_the_template(policy, workers):
    example = Example("x", [{"role": "system", "content": "2"}, {"role": "user", "content": "numbers 3"}], {})
    task = Task(EXAMPLES, lambda text, example: Reward(1.0), cheap=True)
    (one,) = rollout(policy, Scripted(policy, "4 <end>"), workers, task, [example], plan()).rollouts
    assert one.ids == ids_of(policy, "<user> numbers 3 <assistant> 4 <end>")


def guess(example, rng):
    """Three guesses; each is answered by a chat message."""
    first = yield Turn("guesser", [{"role": "user", "content": "numbers 1"}])
    second = yield Turn("guesser", [{"role": "user", "content": f"no {first}"}])
    third = yield Turn("guesser", [{"role": "user", "content": "no"}])
    return {"guesser": Reward(1.0 if (first, second, third) == ("2", "3 4", "5") else 0.0)}


def test_three_turns_are_one_growing_sequence(policy, workers):
    # The second completion is cut off (no <end>): the template closes it with the <end> it lacks. The others end with
    # theirs, which is not repeated.
    engine = Scripted(policy, "2 <end>", "3 4", "5 <end>")
    (one,) = play(policy, workers, guess, engine).rollouts
    pieces = [
        ("<user> numbers 1 <assistant>", False),
        ("2 <end>", True),
        ("<user> no 2 <assistant>", False),
        ("3 4", True),
        ("<end> <user> no <assistant>", False),
        ("5 <end>", True),
    ]
    expected = [(token, sampled) for text, sampled in pieces for token in ids_of(policy, text)]
    assert one.ids == [token for token, _ in expected]
    assert one.loss_mask == [sampled for _, sampled in expected]
    # 4 given, 2 sampled, 4 given, 2 sampled, 4 given, 2 sampled.
    assert one.turns == [(4, 6), (10, 12), (16, 18)]
    assert one.prompt_length == 4
    assert one.rollout_logprobs == [0.0] * 4 + [-0.5, -1.0] + [0.0] * 4 + [-0.5, -1.0] + [0.0] * 4 + [-0.5, -1.0]
    assert one.reward == Reward(1.0)
    assert one.finish_reason == "length"  # a turn was cut off


def test_a_turn_is_appended_to_what_was_sampled_and_never_rendered_again(policy, workers):
    # "9 <unk> 9" decodes to text that would be tokenised differently if it were rendered again.
    engine = Scripted(policy, "2 <end>", "3 4 <end>", "5 <end>")
    engine.ids[0] = [ids_of(policy, "2")[0], policy.tokenizer.unk_token_id, *ids_of(policy, "<end>")]
    (one,) = play(policy, workers, guess, engine).rollouts
    for call in engine.calls:  # each request continues exactly the ids before it
        (request,) = call
        assert one.ids[: len(request.ids)] == request.ids
    assert policy.tokenizer.unk_token_id in one.ids


def duel(example, rng):
    """Two players in turn; a referee's job decides; plain strings are fed as they are."""
    opening = yield Turn("white", "numbers 1")
    reply = yield Turn("black", f"target {opening}")
    last = yield Turn("white", f"yes {reply}")
    winner = yield Job(max, (int(reply), int(last)))
    return {"white": Reward(float(winner == int(last))), "black": Reward(float(winner == int(reply)))}


def test_two_players_have_a_sequence_and_a_reward_each(policy, workers):
    sampled = play(policy, workers, duel, Scripted(policy, "3 <end>", "8 <end>", "5 <end>"))
    white, black = sampled.rollouts
    assert (white.role, black.role) == ("white", "black")
    assert white.ids == ids_of(policy, "numbers 1 3 <end> yes 8 5 <end>")
    assert white.loss_mask == [bool(int(c)) for c in "00110011"]
    assert white.turns == [(2, 4), (6, 8)]
    assert black.ids == ids_of(policy, "target 3 8 <end>")
    assert black.loss_mask == [bool(int(c)) for c in "0011"]
    assert (white.reward, black.reward) == (Reward(0.0), Reward(1.0))  # 8 beats 5
    assert white.group != black.group  # a group is an example and a role
    assert [(turn.role, turn.finish_reason, turn.text) for turn in white.episode] == [
        ("white", "stop", None), ("black", "stop", None), ("white", "stop", None),
    ]  # fmt: skip
    assert black.episode == white.episode and (white.slot, white.sample) == (black.slot, black.sample)
    assert white.episode[0].seed == white.seed and white.episode[1].seed == black.seed
    assert len({turn.seed for turn in white.episode}) == 3


def against(message, frozen):
    """The policy, and what it plays against: frozen in the turns that say so."""

    def episode(example, rng):
        first = yield Turn("me", "numbers 1")
        for is_frozen in frozen:
            yield Turn("other", message, frozen=is_frozen)
        last = yield Turn("me", f"yes {first}")
        return {"me": Reward(float(last))}

    return Task(EXAMPLES, None, episode=episode, cheap=True, frozen_opponent=True)


def test_a_frozen_role_is_asked_for_as_such_and_is_read_but_not_trained(policy, workers):
    engine = Scripted(policy, "3 <end>", "8 <end>", "5 <end>", "1 <end>")
    task = against("target", (True, True))
    sampled = rollout(policy, engine, workers, task, EXAMPLES.train[:1], plan())
    assert [request.frozen for (request,) in engine.calls] == [False, True, True, False]
    (one,) = sampled.rollouts
    assert (one.role, one.group, one.reward, sampled.failures) == ("me", 0, Reward(1.0), [])
    assert one.ids == ids_of(policy, "numbers 1 3 <end> yes 3 1 <end>")
    # What the policy said stands in its own ids; nobody has those of the other.
    assert [(turn.role, turn.text) for turn in one.episode] == [
        ("me", None), ("other", "8"), ("other", "5"), ("me", None),
    ]  # fmt: skip


@pytest.mark.parametrize(("turns", "allowed"), [((True, False), True), ((False, True), True), ((True,), False)])
def test_a_role_is_frozen_always_or_never_and_the_task_says_so(policy, workers, turns, allowed):
    task = replace(against("target", turns), frozen_opponent=allowed)
    engine = Scripted(policy, "3 <end>", "8 <end>")
    sampled = rollout(policy, engine, workers, task, EXAMPLES.train[:1], plan())
    assert sampled.failures == [
        "other is frozen in one turn and not in another, or the task does not say frozen_opponent=True"
    ]
    assert all(one.reward is None for one in sampled.rollouts) and sampled.rollouts


def test_a_group_is_an_example_and_a_role(policy, workers):
    texts = ["3 <end>"] * 4 + ["8 <end>"] * 4 + ["5 <end>"] * 4
    sampled = play(policy, workers, duel, Scripted(policy, *texts), EXAMPLES.train[:2], group_size=2)
    keys = [(r.example_id, r.role) for r in sampled.rollouts]
    assert Counter(keys) == {(e.id, role): 2 for e in EXAMPLES.train[:2] for role in ("white", "black")}
    assert len({(r.group, *key) for r, key in zip(sampled.rollouts, keys, strict=True)}) == 4
    assert sorted({r.group for r in sampled.rollouts}) == [0, 1, 2, 3]


def test_all_episodes_wait_for_one_engine_call_per_round(policy, workers):
    engine = Scripted(policy, *["2 <end>"] * 4, *["3 4 <end>"] * 4, *["5 <end>"] * 4)
    play(policy, workers, guess, engine, EXAMPLES.train[:2], group_size=2)
    assert [len(call) for call in engine.calls] == [4, 4, 4]


def test_a_truncated_completion_is_marked(policy, workers):
    (one,) = play(policy, workers, None, Scripted(policy, "2 3 4")).rollouts
    assert one.truncated and one.finish_reason == "length"
    (one,) = play(policy, workers, None, Scripted(policy, "2 3 <end>")).rollouts
    assert not one.truncated


def test_a_completion_has_no_more_tokens_than_the_model_has_room_for(policy, workers):
    policy.model.config.max_position_embeddings = 5
    engine = Scripted(policy, "2 <end>")
    play(policy, workers, None, engine)  # a prompt of 3 tokens
    assert engine.calls[0][0].max_tokens == 2
    engine = Scripted(policy, "2 <end>")
    engine.room = 4  # an engine may have room for less than the model
    play(policy, workers, None, engine)
    assert engine.calls[0][0].max_tokens == 1


def test_an_episode_whose_first_turn_does_not_fit_is_unscorable_and_the_others_go_on(policy, workers):
    def episode(example, rng):
        yield Turn(SOLO, "numbers" + " 1" * example["answer"])
        return {SOLO: Reward(1.0)}

    policy.model.config.max_position_embeddings = 8
    examples = [Example(str(n), "", {"answer": n}) for n in (2, 7)]  # 3 tokens, and 8
    sampled = play(policy, workers, episode, Scripted(policy, "2 <end>"), examples)
    assert [(one.example_id, one.reward) for one in sampled.rollouts] == [("2", Reward(1.0))]
    assert sampled.reasons[0] is None
    assert "8 tokens come before it and the model takes 8 (example '7')" in sampled.reasons[1]


def test_an_episode_that_outgrows_the_model_is_unscorable_and_the_run_goes_on(policy, workers):
    # The prompt has 4 tokens, the first completion 2, the next message 4: ten, which leave no room for a token.
    policy.model.config.max_position_embeddings = 10
    sampled = play(policy, workers, guess, Scripted(policy, "2 <end>"))
    (one,) = sampled.rollouts
    assert one.reward is None
    assert one.ids == ids_of(policy, "<user> numbers 1 <assistant> 2 <end>") and one.turns == [(4, 6)]
    assert sampled.failures == [
        f"turn 2 of guesser has no room: 10 tokens come before it and the model takes 10 (example {one.example_id!r})"
    ]


@pytest.mark.parametrize("cheap", [True, False])
def test_a_raising_reward_makes_its_rollout_unscorable_and_keeps_the_traceback(policy, workers, cheap):
    task = Task(EXAMPLES, cannot_judge_2, cheap=cheap)
    engine = Scripted(policy, "3 <end>", "2 <end>", "4 <end>")
    sampled = rollout(policy, engine, workers, task, EXAMPLES.train[:1], plan(group_size=3))
    assert [r.reward for r in sampled.rollouts] == [Reward(1.0), None, Reward(1.0)]
    (failure,) = sampled.failures
    assert "RuntimeError: cannot judge 2" in failure and "Traceback" in failure


def test_a_role_that_is_paid_nothing_is_unscorable_and_the_others_are_not(policy, workers):
    def episode(example, rng):
        yield Turn("white", "numbers")
        yield Turn("black", "target")
        return {"white": Reward(1.0)}

    sampled = play(policy, workers, episode, Scripted(policy, "3 <end>", "4 <end>"))
    assert [r.reward for r in sampled.rollouts] == [Reward(1.0), None]
    (failure,) = sampled.failures
    assert failure.endswith("the episode returned no reward for 'black', which took a turn: it paid 'white'")


def test_a_reward_of_a_role_that_took_no_turn_is_told_of_and_takes_nothing_from_the_others(policy, workers):
    def episode(example, rng):
        yield Turn("white", "numbers")
        return {"white": Reward(0.5), "black": Reward(1.0)}

    sampled = play(policy, workers, episode, Scripted(policy, "3 <end>"))
    assert [(r.role, r.reward) for r in sampled.rollouts] == [("white", Reward(0.5))]
    (failure,) = sampled.failures
    assert failure.endswith("the episode returned a reward for 'black', which took no turn: 'white' did")
    assert sampled.reasons == [None] and sampled.lost == []


def some_begin(example, rng):
    """Fails before its first turn, but for example 0, whose second player it fails before."""
    if example.id != "first":
        raise RuntimeError("no board")
    yield Turn("white", "numbers")
    yield Turn("black", "numbers")
    return {"white": Reward(1.0), "black": Reward(0.0)}


def test_episodes_that_fail_before_their_first_turn_count_for_each_role_they_would_have_had(policy, workers):
    examples = [Example(name, "numbers 1 2", {}) for name in ("first", "second")]
    sampled = play(policy, workers, some_begin, Scripted(policy, *["3 <end>"] * 4), examples, group_size=2)
    assert [one.example_id for one in sampled.lost] == ["second"] * 2
    assert len(sampled.failures) == 2 and all("no board" in failure for failure in sampled.failures)
    # Both roles of both episodes: four rollouts that were played, four that were not.
    assert Counter((one.example_id, one.role, one.reward is None) for one in sampled.outcomes) == {
        ("first", "white", False): 2,
        ("first", "black", False): 2,
        ("second", "white", True): 2,
        ("second", "black", True): 2,
    }


def test_an_episode_in_which_the_policy_takes_no_turn_is_lost(policy, workers):
    def episode(example, rng):
        return {}
        yield

    sampled = play(policy, workers, episode, Scripted(policy))
    assert sampled.rollouts == [] and sampled.failures[0].endswith("the episode ended before the policy took a turn")
    (lost,) = sampled.outcomes
    assert (lost.role, lost.reward) == (SOLO, None)


def test_seeds_differ_over_slot_sample_role_and_turn_and_repeat_for_equal_paths(policy, workers):
    def requests():
        engine = Scripted(policy, *["3 <end>"] * 8, *["8 <end>"] * 8, *["5 <end>"] * 8)
        play(policy, workers, duel, engine, EXAMPLES.train[:2], group_size=4)
        return [request.seed for call in engine.calls for request in call]

    seeds = requests()
    assert len(seeds) == len(set(seeds)) == 24  # 2 slots x 4 samples x (2 turns of white + 1 of black)
    assert requests() == seeds
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_depends_on_everything_it_is_made_of():
    path = (0, "train", 1, 2, 3, "policy", 4)
    changed = [(9, *path[1:]), *[(*path[:n], "other", *path[n + 1 :]) for n in range(1, len(path))]]
    assert len({completion_seed(*p) for p in [path, *changed]}) == 1 + len(changed)
    assert completion_seed(*path) == completion_seed(*path)
    seeds = {completion_seed(0, "train", 1, slot) for slot in range(10_000)}
    assert len(seeds) == 10_000
    assert 2**62 < max(seeds) < 2**63  # 63 bits: what a signed integer holds


def test_an_episodes_rng_is_its_own_and_seeded(policy, workers):
    drawn = []

    def episode(example, rng):
        drawn.append(rng.random())
        yield Turn(SOLO, "numbers")
        return {SOLO: Reward(0.0)}

    for _ in range(2):
        random.seed()
        play(policy, workers, episode, Scripted(policy, *["3 <end>"] * 4), EXAMPLES.train[:2], group_size=2)
    assert drawn[:4] == drawn[4:]
    assert len(set(drawn)) == 4
    paths = [(0, "test", 1, slot, sample, EPISODE, 0) for slot in range(2) for sample in range(2)]
    assert drawn[:4] == [random.Random(completion_seed(*path)).random() for path in paths]


@pytest.mark.parametrize(("total", "prompts"), [(12, 4), (12, 5), (7, 3), (5, 12)])
def test_each_epoch_shows_every_example_once(total, prompts):
    examples = [Example(str(n), "", {}) for n in range(total)]
    state, drawn = TrainState(), []
    while len(drawn) < 3 * total:
        drawn += [example.id for example in draw_examples(examples, prompts, 1, state)]
    epochs = [drawn[start : start + total] for start in range(0, 3 * total, total)]
    assert all(sorted(epoch) == sorted(e.id for e in examples) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3  # each in an order of its own
    assert state.examples_drawn == len(drawn)


def test_the_order_is_a_function_of_seed_and_epoch_alone():
    examples = [Example(str(n), "", {}) for n in range(30)]

    def draw(seed, drawn):
        return [e.id for e in draw_examples(examples, 6, seed, TrainState(examples_drawn=drawn))]

    state = TrainState()
    steps = [[e.id for e in draw_examples(examples, 6, 3, state)] for _ in range(12)]
    random.seed(0)
    assert [draw(3, 6 * step) for step in range(12)] == steps  # a resumed run neither repeats nor skips
    assert draw(4, 0) != draw(3, 0)


def test_the_tracked_examples_are_held_out_and_greedy_and_the_same_at_every_step():
    task = Task(EXAMPLES, lambda text, example: Reward(0.0))
    settings = RolloutConfig(max_tokens=5, group_size=3, temperature=0.7, stop_strings=("stop",))
    examples, first = tracked_plan(task, TrainerConfig(seed=9, rollout=settings))
    assert examples == list(EXAMPLES.held_out[:4])
    assert first == Plan(1, 5, 0.0, 9, "tracked", 0, stop_strings=("stop",))


def test_training_samples_by_the_settings_and_every_step_and_draw_has_seeds_of_its_own():
    settings = RolloutConfig(max_tokens=5, group_size=3, temperature=0.7, stop_strings=("stop",))
    config, state = TrainerConfig(seed=9, rollout=settings), TrainState(step=2)
    assert training_plan(config, state) == Plan(3, 5, 0.7, 9, "train", 2, first_slot=0, stop_strings=("stop",))
    assert training_plan(config, state, drawn=4) == replace(training_plan(config, state), first_slot=4)


def odd_ones_fail(example, rng):
    """Two turns and two roles; the episodes of odd examples never begin."""
    if int(example.id) % 2:
        raise RuntimeError(f"no {example.id}")
    for role in ("white", "black"):
        said = yield Turn(role, example.prompt)
    return {"white": Reward(rng.random()), "black": Reward(float(len(said) % 2))}


@pytest.mark.parametrize("count", [2, 5, 7])
def test_several_processes_play_what_one_would(make_policy, workers, count):
    examples = [Example(str(n), f"numbers {n}", {}) for n in (0, 2, 1, 3, 4)]

    def sampled(policy):
        engine = Counting(policy)
        found = play(policy, workers, odd_ones_fail, engine, examples, group_size=2, first_slot=10)
        assert (engine.last == 0) == (policy.processes.count > 1)  # others may go on with an engine that it shares
        return found, engine.asked

    alone, asked = sampled(make_policy())
    assert [r.group for r in alone.rollouts] == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5]
    assert (asked, len(alone.failures), len(alone.reasons)) == (12, 4, 10)
    results = together(count, lambda member: replace(make_policy(), processes=member), sampled)
    for found, _ in results:
        for actual, expected in zip(found.rollouts, alone.rollouts, strict=True):
            assert actual.rollout_logprobs == pytest.approx(expected.rollout_logprobs, abs=1e-5)
            assert replace(actual, rollout_logprobs=[]) == replace(expected, rollout_logprobs=[])
        assert [one and one.splitlines()[-1] for one in found.reasons] == [
            one and one.splitlines()[-1] for one in alone.reasons
        ]
        assert len(found.failures) == 4
    assert sum(asked for _, asked in results) == 12  # each episode once
    assert (0 in [asked for _, asked in results]) == (count > 2)  # some have nothing, or nothing that began


class Counting(TorchEngine):
    """Counts what it is asked for."""

    asked = last = 0

    def generate(self, requests, sampling, **named):
        self.asked, self.last = self.asked + len(requests), len(requests)
        return super().generate(requests, sampling, **named)
