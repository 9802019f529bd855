"""An episode in progress: what it waits for, what it ended with, or why it could not be ended."""

from random import Random

from minrl.dataflow import SOLO, Example, Job, Reward, Turn
from minrl.rewards.episode import Play, first_message, run_jobs
from minrl.rewards.workers import Failure
from minrl.tasks import Dataset, Task
from tests.jobs import Here

EXAMPLE = Example("3,4", "one", {"numbers": [3, 4]})


def played(episode, *answers):
    """A play of the episode, which a task called `mine` makes of its example, after these answers."""
    task = Task(Dataset([], [EXAMPLE]), None, episode=lambda example, rng: episode, name="mine")
    play = Play(task, EXAMPLE, Random(0))
    for answer in (None, *answers):
        if answer is None or play.pending is not None:
            play.advance(answer)
    return play


def test_the_first_message_is_that_of_the_first_turn_or_the_examples_prompt():
    def first(*steps):
        task = Task(Dataset([], [EXAMPLE]), None, episode=lambda example, rng: (yield from steps))
        return first_message(task, EXAMPLE)

    assert first(Turn(SOLO, "first")) == "first"
    assert first(Job(float, ("0.5",))) == first(Turn(SOLO, "other", frozen=True)) == "one"


def two_turns(closed):
    """Two turns and a job, whose results it is paid for, and a note of its end."""
    try:
        first = yield Turn(SOLO, "one")
        second = yield Job(float, ("0.5",))
        third = yield Turn(SOLO, "two")
        return {SOLO: Reward(float(first) + second + float(third))}
    finally:
        closed.append(True)


def test_a_play_waits_for_each_turn_and_job_and_ends_with_the_rewards():
    steps = [Turn(SOLO, "one"), Job(float, ("0.5",)), Turn(SOLO, "two"), None]
    for count, pending in enumerate(steps):
        play = played(two_turns([]), *["0.25", 0.5, "0.125"][:count])
        assert (play.pending, play.failure) == (pending, None)
    assert play.rewards == {SOLO: Reward(0.875)}


def test_what_the_tasks_code_raises_or_a_job_that_failed_ends_the_play_and_closes_the_episode():
    for answers, failure in (
        (["0.25", 0.5, "half"], "could not convert string to float: 'half'"),  # with its traceback
        (["0.25", Failure("the worker died")], "the worker died"),
    ):
        closed = []
        play = played(two_turns(closed), *answers)
        assert failure in play.failure and not play.lost
        assert (play.pending, play.rewards, closed) == (None, {}, [True])


def test_an_episode_in_which_nobody_took_a_turn_is_lost():
    def episode():
        yield Job(int, ("7",))
        return {SOLO: Reward(1.0)}

    play = played(episode(), 7)
    assert play.lost and play.failure.endswith("the episode ended before the policy took a turn")


def test_a_mistake_of_an_episode_is_a_line_that_names_the_task_and_the_example():
    def of_another_role():
        yield Turn(SOLO, "one")
        return {SOLO: 1.0, "black": 1.0}

    for episode, reason in (
        (of_another_role(), "the episode returned a reward for 'black', which took no turn"),
        ((one for one in ["one"]), "an episode must yield a Turn, with a string or a list of messages"),
    ):
        play = played(episode, "said")
        assert play.problem.startswith(f"mistake in task mine, example '3,4': {reason}")
        assert "\n" not in play.problem and play.pending is None


def rank(completions, examples):
    """The share of the other completions that are shorter."""
    lengths = [len(text.split()) for text in completions]
    if max(lengths) > 3:
        raise RuntimeError("too long to compare")
    return [sum(other < own for other in lengths) / max(1, len(lengths) - 1) for own in lengths]


def test_a_reward_of_a_group_waits_for_those_that_take_another_turn_and_fails_its_group_alone():
    def episode(example, rng):
        said = yield Turn(SOLO, "?")
        while said == "again":
            said = yield Turn(SOLO, "?")
        return {SOLO: (yield task.reward_job(said, example))}

    task, workers = Task(Dataset([], [EXAMPLE]), rank, episode, group=True), Here()
    plays = [Play(task, EXAMPLE, Random(0), group) for group in "aabc"]
    for one, text in zip(plays, ("1", "again", "1 2", "1 2 3 4"), strict=True):
        one.advance(None)
        one.advance(text)
    assert run_jobs(plays, workers) and not run_jobs(plays, workers)
    assert [dict(one.rewards) for one in plays] == [{}, {}, {SOLO: Reward(0.0)}, {}]
    assert "too long to compare" in plays[3].failure
    plays[1].advance("2 3")
    assert run_jobs(plays, workers)
    assert [one.rewards[SOLO].value for one in plays[:3]] == [0.0, 1.0, 0.0]
    assert [job.arguments[0] for job in workers.calls] == [["1 2"], ["1 2 3 4"], ["1", "2 3"]]
