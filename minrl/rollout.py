"""From examples to rewarded rollouts: single-turn, multi-turn, several roles.

An episode is a generator (`minrl.dataflow.Episode`). All episodes of a call advance together: each round is one engine
call with a request of every episode that waits for a completion. Rewards of completions that have ended are computed
while others are still sampled. Each process plays a block of the examples; the seed of a completion depends on the
example's number in the whole call, not on the number of processes.

The ids of a role's sequence only grow: a turn is appended to what was sampled, never rendered again.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

from minrl.dataflow import Completion, Example, Job, LostEpisode, PlayedTurn, Prompt, Request, Rollout, Turn
from minrl.engines import Engine, Sampling
from minrl.engines.torch_engine import EngineWithOpponent
from minrl.evaluate.statistics import lost_roles
from minrl.policy import Policy
from minrl.rewards.episode import Play, run_jobs
from minrl.rewards.workers import Workers
from minrl.tasks.task import Sampled, Task
from minrl.tasks.thoughts import LONGEST_MARK, heard, opened_by

EPISODE = "episode"
"""Takes the place of the role in the seed of an episode's own `rng`."""


@dataclass(frozen=True)
class Plan:
    """The sampling parameters of a call of `rollout`, and the parts of its seeds.

    `purpose` separates the seeds of training, evaluation and probes; `first_slot` is the number of the first example,
    `first_sample` that of the first episode of each.
    """

    group_size: int
    max_tokens: int
    temperature: float
    seed: int
    purpose: str
    step: int
    first_slot: int = 0
    stop_strings: tuple[str, ...] = ()
    first_sample: int = 0


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of a call, in order of example, sample and role. `failures` has a message per episode whose rewards
    are wrong or missing, `reasons` why each episode failed (None: it did not), `lost` those without a rollout.
    """

    rollouts: list[Rollout]
    failures: list[str]
    reasons: list[str | None] = field(default_factory=list)
    lost: list[LostEpisode] = field(default_factory=list)

    @property
    def outcomes(self) -> list[Rollout | LostEpisode]:
        """The rollouts, and a lost episode for each of its roles."""
        found: list[Rollout | LostEpisode] = [*self.rollouts]
        for task in dict.fromkeys(one.task for one in self.lost):
            lost = [one for one in self.lost if one.task == task]
            played = [(one.example_id, one.role) for one in self.rollouts if one.task == task]
            roles = lost_roles(played, [one.example_id for one in lost])
            found += [replace(one, role=role) for one in lost for role in roles[one.example_id]]
        return found


def rollout(
    policy: Policy, engine: Engine, workers: Workers, task: Task, examples: Sequence[Example], plan: Plan
) -> Rollouts:
    """Play `group_size` episodes of each example. Each process plays a share of the examples and gets all rollouts.
    Groups are numbered by (example, role) in order.
    """
    share = policy.processes.share(len(examples))
    own = replace(plan, first_slot=plan.first_slot + share.start)
    return joined(policy.processes.gather([_play(policy, engine, workers, task, examples[share], own)]))


def joined(parts: Sequence[Rollouts]) -> Rollouts:
    """The parts in order, with groups renumbered."""
    first_group = 0
    for part in parts:
        for one in part.rollouts:
            one.group += first_group
        first_group = 1 + max((one.group for one in part.rollouts), default=first_group - 1)
    return Rollouts(**{f.name: [one for part in parts for one in getattr(part, f.name)] for f in fields(Rollouts)})


def _play(
    policy: Policy, engine: Engine, workers: Workers, task: Task, examples: Sequence[Example], plan: Plan
) -> Rollouts:
    """This process's share of a call of `rollout`."""
    episodes = [
        _Episode(policy, task.members[example.task], example, slot, sample, plan, engine)
        for slot, example in enumerate(examples, plan.first_slot)
        for sample in range(plan.first_sample, plan.first_sample + plan.group_size)
    ]
    stops = plan.stop_strings + task.stop_strings
    stop_ids = policy.stop_ids | policy.stop_tokens(stops)
    sampling = Sampling(plan.temperature, stop_ids, stops + policy.stop_strings, policy.version)
    free = max(0, policy.processes.cores - engine.cores) if engine.cores else workers.count
    workers.limit(free)
    overlap = any(one.episode is not None or (free and not one.cheap) for one in task.members.values())
    for episode in episodes:
        episode.advance(None)
    while waiting := [episode for episode in episodes if episode.pending is not None]:
        if run_jobs(waiting, workers):
            continue
        turns = [episode for episode in waiting if isinstance(episode.pending, Turn)]
        asked = [(episode, request) for episode in turns if (request := episode.request()) is not None]
        if asked:
            _sample(engine, workers, asked, sampling, overlap)
    failures = [episode.problem for episode in episodes if episode.problem is not None]
    lost = [LostEpisode(episode.example.id, task=episode.example.task) for episode in episodes if episode.lost]
    groups: dict[tuple[int, str], int] = {}
    finished = [one for episode in episodes for one in episode.finished(groups)]
    return Rollouts(finished, failures, [episode.failure for episode in episodes], lost)


def _sample(
    engine: Engine, workers: Workers, asked: Sequence[tuple["_Episode", Request]], sampling: Sampling, overlap: bool
) -> None:
    """Each episode receives its completion: with `overlap` as soon as it has ended, and what it yields next begins."""
    remaining = dict(enumerate(episode for episode, _ in asked))
    begun: list[_Episode] = []

    def begin(episode: _Episode) -> None:
        if isinstance(episode.pending, Job) and not episode.pending.group:
            episode.future = workers.submit(episode.pending)
            begun.append(episode)

    def on_end(completions: Sequence[tuple[int, Completion]]) -> None:
        for index, completion in completions:
            episode = remaining.pop(index)
            episode.receive(completion)
            begin(episode)
        for episode in [one for one in begun if one.future is not None and one.future.done()]:
            assert episode.future is not None
            begun.remove(episode)
            episode.advance(episode.future.result())
            begin(episode)

    requests = [request for _, request in asked]
    try:
        completions = engine.generate(requests, sampling, on_end=on_end if overlap else None)
    except BaseException:
        workers.give_up([episode.future for episode in begun if episode.future is not None])
        raise
    for index, episode in remaining.items():
        episode.receive(completions[index])


def completion_seed(run_seed: int, *path: int | str) -> int:
    """A 63-bit seed from the run's seed and the path of a completion."""
    text = "/".join(map(str, (run_seed, *path)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def heard_by(reader: Policy, shown: list[int], ids: list[int]) -> str:
    """What a completion says behind what was shown, for readers: with the mark of a thought that this opened."""
    return heard(reader.decode_all(shown[-LONGEST_MARK:]), reader.decode(ids))


@dataclass
class _Sequence:
    """One role's sequence while it grows. `seed` and `message` are those of its first turn."""

    seed: int
    frozen: bool
    message: Prompt
    ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)
    finish_reason: str = "stop"

    def append(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Add given ids, or sampled ones with their log-probabilities."""
        self.ids += ids
        self.loss_mask += [logprobs is not None] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)


class _Episode(Play):
    """One episode in progress and the sequences of its roles."""

    def __init__(
        self, policy: Policy, task: Task, example: Example, slot: int, sample: int, plan: Plan, engine: Engine
    ) -> None:
        self.policy, self.example, self.slot, self.sample, self.plan = policy, example, slot, sample, plan
        self.engine = engine
        self.may_freeze, self.limit = task.frozen_opponent, task.max_tokens or plan.max_tokens
        self.sequences: dict[str, _Sequence] = {}
        self.played: list[PlayedTurn] = []
        super().__init__(task, example, random.Random(self._seed(EPISODE, 0)), slot)

    def request(self) -> Request | None:
        """The next request to the engine; None if the context has no room for another turn."""
        assert isinstance(self.pending, Turn)
        turn = self.pending
        sequence = self.sequences.setdefault(turn.role, _Sequence(self._seed(turn.role, 0), turn.frozen, turn.message))
        if turn.frozen != sequence.frozen or (turn.frozen and not self.may_freeze):
            self.fail(
                f"{turn.role} is frozen in one turn and not in another, or the task does not say frozen_opponent=True"
            )
            return None
        reader, context_length, limit = self._player(turn.frozen)
        if sequence.turns:
            start, end = sequence.turns[-1]
            shown = reader.encode_next_turn(turn.message, sequence.ids[start:end])
        else:
            shown = reader.encode_prompt(turn.message)
        if not (sequence.ids or shown):
            self.fail(f"the first message of {turn.role} has no tokens (example {self.example.id!r})")
            return None
        room = context_length - len(sequence.ids) - len(shown)
        if room < 1 and turn.optional and sequence.turns:
            sequence.finish_reason, self.pending = "length", None  # nobody takes this turn
            self.advance("")
            return None
        if room < 1:
            before = len(sequence.ids) + len(shown)
            self.fail(
                f"turn {len(sequence.turns) + 1} of {turn.role} has no room: {before} tokens come before it and the "
                f"model takes {context_length} (example {self.example.id!r})"
            )
            return None
        sequence.append(shown, None)
        seed = self._seed(turn.role, len(sequence.turns))
        return Request(list(sequence.ids), seed, min(limit, room), turn.frozen)

    def _player(self, frozen: bool) -> tuple[Policy, int, int]:
        """Who encodes and decodes a turn, the tokens that its model takes, and the most of the turn."""
        own = self.policy, self.engine.context_length, self.limit
        if not (frozen and isinstance(self.engine, EngineWithOpponent)):
            return own
        opponent, limit = self.engine.opponent, self.engine.max_tokens or self.limit
        return (opponent.policy, opponent.context_length, limit) if self.engine.by_text else (*own[:2], limit)

    def receive(self, completion: Completion) -> None:
        """Append a sampled completion and send its text to the episode."""
        assert isinstance(self.pending, Turn)
        turn, sequence = self.pending, self.sequences[self.pending.role]
        reader, *_ = self._player(turn.frozen)
        text, seed = reader.decode(completion.ids), self._seed(turn.role, len(sequence.turns))
        opened = opened_by(reader.decode_all(sequence.ids[-LONGEST_MARK:]))
        kept = text if sequence.frozen else None
        self.played.append(PlayedTurn(turn.role, seed, completion.finish_reason, kept, turn.shown_by))
        sequence.turns.append((len(sequence.ids), len(sequence.ids) + len(completion.ids)))
        sequence.append(completion.ids, completion.logprobs)
        if completion.finish_reason == "length":
            sequence.finish_reason = "length"
        said = Sampled.of(text, completion.ids, self.plan.step, opened)
        said.truncated = completion.finish_reason == "length"
        said.message = reader.read_response(sequence.message, sequence.ids[: sequence.turns[-1][0]], completion.ids)
        self.advance(said)

    def finished(self, groups: dict[tuple[int, str], int]) -> list[Rollout]:
        """The rollouts of the policy's roles. `groups` are the numbers of the groups so far, by slot and role."""
        return [
            Rollout(
                ids=sequence.ids,
                loss_mask=sequence.loss_mask,
                rollout_logprobs=sequence.logprobs,
                turns=sequence.turns,
                prompt_length=sequence.turns[0][0],
                example_id=self.example.id,
                group=groups.setdefault((self.slot, role), len(groups)),
                sample=self.sample,
                role=role,
                max_tokens=self.limit,
                seed=sequence.seed,
                weight_version=self.policy.version,
                finish_reason=sequence.finish_reason,
                reward=self.rewards.get(role),
                text=self.policy.decode(sequence.ids[sequence.turns[0][0] :]),
                slot=self.slot,
                episode=self.played,
                task=self.example.task,
                message=sequence.message,
                turn_rewards=[earned.get(turn, 0.0) for turn in range(len(sequence.turns))] if earned else [],
            )
            for role, sequence in self.sequences.items()
            if sequence.turns and not sequence.frozen
            for earned in [self.turn_rewards.get(role, {})]
        ]

    def _seed(self, role: str, turn: int) -> int:
        plan = self.plan
        return completion_seed(plan.seed, plan.purpose, plan.step, self.slot, self.sample, role, turn)
