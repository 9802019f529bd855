"""Attack a task's reward before anyone trains on it.

The reward is given texts that earn nothing by construction, in the workers that a run has, and right answers. A wrong
text succeeds if its reward is above (low + high) / 2: low is that of nonsense, or of a wrong answer if that is less;
high is that of the right answer, or the maximum if none is known. A family has a fault if its texts succeed for more
than a quarter of the examples: a single one may have an answer that nobody thought of. A failure of the reward is a
fault wherever it happens, and every right answer must get the full reward.
"""

import copy
import functools
import io
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from minrl.dataflow import Example, Job, Mistake, require
from minrl.rewards.workers import NO_SECOND_RUN, Failure, Workers
from minrl.sft.config import RewardConfig
from minrl.tasks import Task, load_task
from minrl.tasks.checked import as_reward, rewards_of
from minrl.tasks.conventions import NotForThisRow, TrlOrVerlReward
from minrl.tasks.definition import RowOptions
from minrl.tasks.grader import Grader, Reason
from minrl.tools.attacks import FAMILIES, NONSENSE, Answers, Attack, attacks
from minrl.utils.cli import Command
from minrl.utils.console import Table, print_tables
from minrl.utils.files import write_json
from minrl.utils.settings import Count, Seed, meant
from minrl.utils.task_names import task_key
from minrl.utils.text import end_of

FORMS = ("{}", "<answer> {} </answer>", "\\boxed{{{}}}", "#### {}", "<think> </think> <answer> {} </answer>")
"""In which the fields of an example are tried as its answer."""
REPEATED, REPEATED_FAMILIES = 16, ("gold", "nonsense", "empty", "other", "format")
"""Texts that are scored again, and their families, in this order for each example."""
LARGEST_SHARE = 0.25
"""Share of the examples for which wrong texts may succeed."""
SHOWN = 30
"""Characters of a text in the table."""


@dataclass(init=False)
class AuditConfig(RewardConfig):
    """Attack a task's reward before anyone trains on it. Ends with status 1 if it rewards wrong texts, or breaks.

    python -m minrl audit --task mine.py:name
    python -m minrl audit --task gsm8k --data-path rows.jsonl --output audit.json
    python -m minrl audit --task mine.py:accuracy --data-path rows.jsonl --gold-column answer
    """

    often = ("task", "data_path", "gold_column", "leave_out", "output")

    examples: Count = 6
    """Examples that are attacked, chosen by the seed."""
    seed: Seed = 0
    """Seed of the choice of examples and of the demonstrations that are tried."""
    gold_column: str = ""
    """Field with a correct completion. Empty: what the task says, or what is found."""
    leave_out: tuple[str, ...] = ()
    """Families of attacks that are not reported, such as `format` for a reward of the form alone."""
    output: str = ""
    """JSON file of the findings. Empty: none is written."""

    @property
    def task_names(self) -> tuple[str, ...]:
        """The task whose reward is attacked."""
        return (self.task,)

    def check(self) -> None:
        """Refuse families that are not there."""
        super().check()
        for name in self.leave_out:
            message = f"leave_out: no family {name!r}{meant(name, FAMILIES)}; choose of {', '.join(FAMILIES)}"
            require(name in FAMILIES, message)


@dataclass(frozen=True)
class Finding:
    """A row of the table. `given` and `reward` are of the first fault, else of the text with the largest reward; `do`
    says what to do, or why nothing was tried. `succeeded` is the number of wrong texts that did, or of failures.
    """

    family: str
    verdict: Literal["ok", "fault", "not tried"]
    given: str = ""
    reward: str = ""
    do: str = ""
    tried: int = 0
    succeeded: int = 0


def main(command: Command[AuditConfig]) -> int:
    """Audit the reward, print the table, and write the findings."""
    config, options = command.config, command.options
    key = task_key(config.task)
    if isinstance(options.get(key), RowOptions):  # nothing is trained here: all rows may be attacked
        options = {**options, key: replace(options[key], held_out_share=1.0)}  # type: ignore[type-var]
    task = load_task(config.task, options, config.data_path)
    require(task.reward is not None, f"{key} is played over several turns: no single text of it can be scored")
    reads_tokens = isinstance(task.reward, TrlOrVerlReward) and task.reward.reads_tokens
    require(not reads_tokens, f"{key} reads completion_ids, which the audit's texts do not have")
    for note in task.notes():  # before the workers start: they have the walls that it finds
        sys.stderr.write(f"{config.task}: {note}\n")
    findings, answers = audit(task, config)
    faults = [one.family for one in findings if one.verdict == "fault"]
    counts = [sum(one.verdict == name for one in findings) for name in ("ok", "not tried")]
    said = f"{len(faults)} fault{'s' * (len(faults) != 1)}, {counts[0]} ok, {counts[1]} not tried"
    print_tables([table(key, findings, f"{key}: {said}; right answers: {answers.source or 'none'}")])
    if config.output:
        rows = [{**asdict(one), "given": one.given[:2000]} for one in findings]
        made = {"task": config.task, "data_path": config.data_path, "seed": config.seed}
        write_json(Path(config.output), {**made, "answers": answers.source, "faults": faults, "findings": rows})
    return int(bool(faults))


def table(title: str, findings: Sequence[Finding], result: str) -> Table:
    """A line for each family, and below what to do, and the result."""
    lines = []
    for one in findings:
        verdict = one.verdict.upper() if one.verdict == "fault" else one.verdict
        text = repr(one.given) if one.reward else ""
        text = text if len(text) <= SHOWN else f"{text[: SHOWN - 12]} ... {text[-7:]}"
        lines.append([one.family, verdict, str(one.tried), text, one.reward])
    notes = [*(f"{one.family}: {one.do}" for one in findings if one.do), f"\n{result}"]
    return Table(title, ["family", "verdict", "tried", "given", "reward"], lines, notes)


# What the reward returns, and how it fails


@dataclass(frozen=True)
class Scored:
    """A reward, or `why` there is none: by a `failure`, of the family that is called so, or by None of TRL's form."""

    value: float | None = None
    solved: bool = False
    maximum: float = 1.0
    failure: str = ""
    why: str = ""
    printed: str = ""

    def __str__(self) -> str:
        return self.why if self.value is None else f"{self.value:g}{' (full)' if self.solved else ''}"


Result = tuple[Attack, Scored]


class Scorer:
    """Scores attacks on the examples of a task, in workers. A reward that sees a group is given each text beside
    nonsense and, once there are `answers`, a right one.
    """

    def __init__(self, task: Task, examples: Sequence[Example], deadline_s: float) -> None:
        self.task, self.examples, self.deadline_s = task, examples, deadline_s
        self.answers = Answers()

    def score(self, planned: Sequence[Attack], count: int) -> list[Result]:
        """The task's reward for each, by so many workers (0: one per core)."""
        return [
            (one, scored[0]) for one, scored in zip(planned, self._score([[o] for o in planned], count), strict=True)
        ]

    def score_together(self, planned: Sequence[Attack]) -> list[Result]:
        """The rewards for the texts of each example in one call."""
        groups = [
            [one for one in planned if one.number == number] for number in dict.fromkeys(o.number for o in planned)
        ]
        scored = self._score(groups, 1)
        return [pair for own, one in zip(groups, scored, strict=True) for pair in zip(own, one, strict=False)]

    def _score(self, groups: Sequence[Sequence[Attack]], count: int) -> list[list[Scored]]:
        """The rewards for the texts of each group, and for those beside them."""
        task, jobs = self.task, []
        assert task.reward is not None
        grader = Grader(functools.partial(_attempt, task.reward, task.group), _broken, task.warm, task.seconds)
        for own in groups:
            number, texts = own[0].number, [one.text for one in own]
            if task.group:
                peers = [NONSENSE[0], *filter(None, [self.answers.texts.get(number)])]
                texts += [text for text in peers if text not in texts]
            jobs.append(Job(grader, (texts, [self.examples[number]] * len(texts)), group=task.group))
        with closing(Workers(count, self.deadline_s)) as workers:
            results = workers.run(jobs)
        return [
            one if isinstance(one, list) else [_unless_failed(one)] * len(own)
            for one, own in zip(results, groups, strict=True)
        ]


def _broken(reason: Reason) -> Scored:
    """The result of a reward whose worker was lost."""
    why = {"timeout": "no reward within the deadline", "memory": "out of memory, or too deep a recursion"}
    failure = "slow" if reason == "timeout" else "crash"
    return Scored(failure=failure, why=why.get(reason, "the process of the reward ended"))


def _attempt(reward: Callable[..., Any], group: bool, texts: list[str], examples: list[Example]) -> list[Scored]:
    """Call a reward for texts of one example, and tell apart what it does wrong. Runs in a worker."""
    printed, none = io.StringIO(), Scored(why="None")
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            own: list[Example] = list(map(copy.deepcopy, examples))
            given = rewards_of("", reward, texts, own) if group else [as_reward(reward(texts[0], own[0]))]
            scored = [Scored(one.value, one.solved, one.maximum) if one else none for one in given]
        except (MemoryError, RecursionError):
            raise  # the grader knows these
        except NotForThisRow:
            scored = [none] * len(texts)
        except Mistake as error:
            scored = [Scored(failure="returns", why=_last_line(str(error)))] * len(texts)
        except (Exception, SystemExit) as error:  # the task's own code
            scored = [Scored(failure="raises", why=_last_line(f"{type(error).__name__}: {error}"))] * len(texts)
    return [replace(one, printed=printed.getvalue().strip()[:200]) for one in scored]


def _unless_failed(result: Scored | Failure) -> Scored:
    if isinstance(result, Scored):
        return result
    return Scored(failure="slow" if result.reason == NO_SECOND_RUN else "raises", why=_last_line(result.reason))


def _last_line(text: str) -> str:
    return end_of(text)[:200]


# Right answers


def find_answers(scorer: Scorer, config: AuditConfig) -> Answers:
    """The answers in the column that the user names, else those that the task says, else those that are found: a
    demonstration or a field of the example in a usual form that gets the full reward where nonsense does not.
    """
    column, task, examples = config.gold_column, scorer.task, scorer.examples
    if column:
        texts = {number: str(example[column]) for number, example in enumerate(examples)}
        return Answers.of(texts, f"--gold-column {column}", True)
    solution = task.solution
    said = {number: text for number, one in enumerate(examples) if solution is not None and (text := solution(one))}
    if said:
        return Answers.of(said, "the task's solution", True)
    guesses = [Attack("", n, text) for n, one in enumerate(examples) for text in _guesses(task, one, config.seed)]
    full = [
        one
        for one, scored in scorer.score(guesses, config.reward_workers)
        if scored.value is not None and scored.solved
    ]
    given_away = {one.number for one in full if one.text in NONSENSE}
    found = {one.number: one.text for one in reversed(full) if one.number not in given_away}
    return Answers.of(found, "found by trying" if found else "", False)


def _guesses(task: Task, example: Example, seed: int) -> Sequence[str]:
    demonstrations = task.demonstrations or (lambda *_: None)
    said = [demonstrations(example, random.Random(f"{seed} {number} {example.id}")) for number in range(8)]
    fields = [value for value in example.fields.values() if isinstance(value, str | int | float)]
    values = [value for value in fields if 0 < len(str(value)) <= 10_000]
    texts = [*(one for one in said if isinstance(one, str)), *(form.format(one) for one in values for form in FORMS)]
    return list(dict.fromkeys([*texts, *NONSENSE[:2]]))


# The audit


def audit(task: Task, config: AuditConfig) -> tuple[list[Finding], Answers]:
    """A finding for each family that is not left out, and the right answers that were used."""
    rows = list(task.dataset.train)
    rows += list(task.dataset.held_out) if len(rows) < config.examples else []
    if column := config.gold_column:
        have = ", ".join(dict.fromkeys(name for row in rows for name in row.fields))
        rows = [row for row in rows if row.fields.get(column) is not None]
        require(bool(rows), f"--gold-column {column}: no such field; the examples have {have}")
    examples = random.Random(config.seed).sample(rows, min(config.examples, len(rows)))
    scorer = Scorer(task, examples, config.reward_deadline_s)
    first = [Attack("nonsense", number, NONSENSE[0]) for number in range(min(2, len(examples)))]
    tried = scorer.score(first, config.reward_workers)
    if all(scored.failure for _, scored in tried):  # each further text would take the deadline
        return [fault(tried[0][1].failure, tried, len(tried))], Answers()
    answers = scorer.answers = find_answers(scorer, config)
    left_out = {*config.leave_out} - {"nonsense", "gold", "other"}  # by which the others are judged
    planned = [one for one in attacks(examples, answers, config.seed) if one.family not in left_out]
    results = scorer.score(planned, config.reward_workers)
    applies = any(scored.value is not None or scored.failure for _, scored in results)
    require(applies, "the reward returns None for every text: it applies to none of these rows")
    names_maximum = not isinstance(task.reward, TrlOrVerlReward) or task.reward.names_maximum
    verdicts = Verdicts(results, answers, names_maximum)
    found = {name: verdicts.finding(name) for name in FAMILIES} | _scored_again(scorer, results)
    return [found[name] for name in FAMILIES if name not in config.leave_out], answers


def _scored_again(scorer: Scorer, results: Sequence[Result]) -> dict[str, Finding]:
    """The findings on the same texts in other processes and orders, and together."""
    own = [one for one, scored in results if one.family in REPEATED_FAMILIES and not scored.failure]
    texts = sorted(own, key=lambda one: (one.number, REPEATED_FAMILIES.index(one.family)))[:REPEATED]
    if not texts:
        return {name: _not_tried(name, "every text made the reward fail") for name in ("repeatable", "batch")}
    one_by_one = scorer.score([*texts, *texts[::-1]], 1)
    repeatable = _compared("repeatable", [*one_by_one, *scorer.score([*texts, *texts], 4)], len(texts))
    if not scorer.task.group:
        batch = _not_tried("batch", "the reward is called with one completion at a time")
    elif repeatable.verdict == "fault":
        batch = _not_tried("batch", "see repeatable")
    else:
        batch = _compared("batch", [*one_by_one, *scorer.score_together(texts)], len(texts))
        batch = replace(batch, verdict="ok")  # it may compare, which is said
    return {"repeatable": repeatable, "batch": batch}


def _compared(name: str, results: Sequence[Result], tried: int) -> Finding:
    """Whether equal texts had equal rewards."""
    first = dict(reversed(results))
    differ = [
        (one, replace(after, why=f"{first[one]}, then {after}", value=None))
        for one, after in results
        if (first[one].failure, first[one].value) != (after.failure, after.value)
    ]
    return fault(name, differ, tried) if differ else Finding(name, "ok", tried=tried)


def _not_tried(name: str, why: str) -> Finding:
    return Finding(name, "not tried", do=why)


def fault(name: str, results: Sequence[Result], tried: int) -> Finding:
    """A finding that begins with the shortest of the texts that show the fault."""
    attack, scored = min(results, key=lambda one: len(one[0].text))
    said = f"printed: {scored.printed}" if name == "prints" else str(scored)
    return Finding(name, "fault", attack.text, said, FAMILIES[name].about, tried, len(results))


class Verdicts:
    """The findings on results, by what nonsense and right answers get for the same example.

    Without `names_maximum`, as in TRL's form, a right answer must get more than nonsense, and no text more than it.
    """

    def __init__(self, results: Sequence[Result], answers: Answers, names_maximum: bool = True) -> None:
        self.results, self._answers, self._names_maximum = results, answers, names_maximum
        self._rewards = defaultdict[tuple[int, str], list[float]](list)
        """Of an example, by family; under no name all."""
        for one, scored in results:
            for family in (one.family, "") if scored.value is not None else ():
                self._rewards[one.number, family].append(scored.value or 0.0)
        self._several = {one.number for one, scored in results if one.family == "other" and self._succeeds(one, scored)}

    def _succeeds(self, attack: Attack, scored: Scored) -> bool:
        """Whether a wrong text is rewarded as if it were right."""
        if scored.value is None:
            return False
        low, gold = min(self._low(attack), scored.value), self._rewards[attack.number, "gold"]
        answer_gets_more = bool(gold) and gold[0] > low
        high = gold[0] if answer_gets_more else scored.maximum
        return (not answer_gets_more and scored.solved) or scored.value > low + max(0.0, high - low) / 2

    def _in_full(self, attack: Attack, scored: Scored) -> bool:
        if scored.value is None:
            return not scored.failure
        if self._names_maximum:
            return scored.solved
        return self._low(attack) < scored.value == max(self._rewards[attack.number, ""])

    def _low(self, attack: Attack) -> float:
        """The reward of nonsense, or of a wrong answer if that is less and no penalty."""
        wrong = max(0.0, min(self._rewards[attack.number, "other"], default=math.inf))
        return min([*(self._rewards[attack.number, "nonsense"] or [0.0]), wrong])

    def finding(self, name: str) -> Finding:
        """The finding of a family."""
        family = FAMILIES[name]
        if family.texts is None:
            own = [(one, scored) for one, scored in self.results if not FAMILIES[one.family].may_fail]
            failed = [
                (one, scored) for one, scored in own if (scored.printed if name == "prints" else scored.failure == name)
            ]
            return fault(name, failed, len(own)) if failed else Finding(name, "ok", tried=len(own))
        found = [(one, scored) for one, scored in self.results if one.family == name]
        failed = [(one, scored) for one, scored in found if scored.failure]
        if family.may_fail and failed:
            return fault(name, failed, len(found))
        if why := self._why_not_tried(name, found):
            return _not_tried(name, why)
        tried = [one for one in found if not (family.only_right and one[0].number in self._several)]
        wrong = [one for one in tried if (not self._in_full(*one) if name == "gold" else self._succeeds(*one))]
        most = 0 if name == "gold" else LARGEST_SHARE * len({attack.number for attack, _ in found})
        if len({attack.number for attack, _ in wrong}) > most:
            return fault(name, wrong, len(found))
        attack, scored = max(found, key=lambda one: -math.inf if one[1].value is None else one[1].value)
        return Finding(name, "ok", attack.text, str(scored), tried=len(found), succeeded=len(wrong))

    def _why_not_tried(self, name: str, found: Sequence[Result]) -> str:
        """Why the texts of a family say nothing; empty where they do."""
        if FAMILIES[name].of_answers and not self._answers.texts:
            return "no right answer is known: name a field with --gold-column, or give the task a `solution`"
        if not found:
            return "its answers have no such texts, or these may be right"
        if name in ("other", "near") and not self._answers.declared:
            return "its answers were found by trying, and others may be right as well: declare them as for `gold`"
        return str(found[0][1]) if all(scored.value is None for _, scored in found) else ""
