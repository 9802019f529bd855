"""Attack a task's reward before anyone trains on it.

The reward is given texts that earn nothing by construction, in the workers that a run has, and right answers. A text is
paid unduly if it gets more than half of the way from what nonsense (or a wrong answer) gets to what a right answer
gets, or to the maximum where none is known. A family has a fault if that happens for more than a quarter of its
examples: a single one may have an answer that nobody thought of. A failure of the reward is a fault wherever it
happens, and every right answer must be paid in full.
"""

import copy
import functools
import io
import math
import random
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from minrl.dataflow import Example, Job, Mistake, finite, require
from minrl.rewards.workers import NO_SECOND_RUN, Failure, Workers
from minrl.sft.config import RewardConfig
from minrl.tasks import Task, load_task
from minrl.tasks.checked import as_reward
from minrl.tasks.custom import NotForThisRow, RowOptions, TrlOrVerlReward
from minrl.tasks.grader import Grader, Reason
from minrl.tools.attacks import FAMILIES, NONSENSE, Answers, Attack, attacks
from minrl.utils.cli import Command
from minrl.utils.files import write_json
from minrl.utils.settings import Count, Seed, meant
from minrl.utils.task_names import task_key
from minrl.utils.text import one_line, printable

FORMS = ("{}", "<answer> {} </answer>", "\\boxed{{{}}}", "#### {}", "<think> </think> <answer> {} </answer>")
"""In which the fields of an example are tried as its answer."""
AGAIN, AGAIN_FAMILIES = 16, ("gold", "nonsense", "empty", "other", "format")
"""Texts that are paid again, and their families, in this order for each example."""
WITH_WRONG_ANSWERS = ("candidates", "place", "longer")
"""Families that say nothing about an example for which another example's answer is right as well."""
MAY_FAIL = ("long", "scripts")
"""Families of texts that are there to make the reward fail."""
FALLS_ON = 0.25
"""Share of the examples up to which texts may be paid."""
SHOWN, WIDTH = 30, 100
"""Characters of a text in the table, columns of the table."""


@dataclass(init=False)
class AuditConfig(RewardConfig):
    """Attack a task's reward before anyone trains on it. Ends with status 1 where it pays or breaks wrongly.

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
    """Field of the examples that is a completion which solves them. Empty: what the task says, or what is found."""
    leave_out: tuple[str, ...] = ()
    """Families of attacks that are not reported, such as `format` for a reward that is to pay for the form alone."""
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
    """A row of the table. `given` and `paid` are of the first fault, else of the text that was paid most; `do` is the
    fix, or why nothing was tried.
    """

    family: str
    verdict: Literal["ok", "fault", "not tried"]
    given: str = ""
    paid: str = ""
    do: str = ""
    tried: int = 0
    fell: int = 0


def main(command: Command[AuditConfig]) -> int:
    """Audit the reward, print the table, and write the findings."""
    config, options = command.config, command.options
    key = task_key(config.task)
    if isinstance(options.get(key), RowOptions):  # nothing is trained here: all rows may be attacked
        options = {**options, key: replace(options[key], held_out_share=1.0)}  # type: ignore[type-var]
    task = load_task(config.task, options, config.data_path)
    require(task.reward is not None, f"{key} is played over several turns: no single text of it can be paid")
    reads_tokens = isinstance(task.reward, TrlOrVerlReward) and task.reward.reads_tokens
    require(not reads_tokens, f"{key} reads completion_ids, which the audit's texts do not have")
    for note in task.notes():  # before the workers start: they have the walls that it finds
        sys.stderr.write(f"{config.task}: {note}\n")
    findings, answers = audit(task, config)
    faults = [one.family for one in findings if one.verdict == "fault"]
    counts = [sum(one.verdict == name for one in findings) for name in ("ok", "not tried")]
    sys.stdout.writelines(f"{line}\n" for line in table(findings))
    sys.stdout.write(
        f"\n{printable(key)}: {len(faults)} fault{'s' * (len(faults) != 1)}, {counts[0]} ok, {counts[1]} not tried; "
        f"right answers: {answers.source or 'none'}\n"
    )
    if config.output:
        rows = [{**asdict(one), "given": one.given[:2000]} for one in findings]
        made = {"task": config.task, "data_path": config.data_path, "seed": config.seed}
        write_json(Path(config.output), {**made, "answers": answers.source, "faults": faults, "findings": rows})
    return int(bool(faults))


def table(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each family, with a further one for what to do."""
    yield f"{'family':<11} {'verdict':<9} {'tried':>5}  {'given':<{SHOWN}}  paid"
    for one in findings:
        verdict = one.verdict.upper() if one.verdict == "fault" else one.verdict
        text = repr(one.given) if one.paid else ""
        text = text if len(text) <= SHOWN else f"{text[: SHOWN - 12]} ... {text[-7:]}"
        line = f"{one.family:<11} {verdict:<9} {one.tried:>5}  {text:<{SHOWN}}  {one_line(one.paid)}"
        note = f"{FAMILIES[one.family].tries}: {one.do}" if one.verdict == "fault" else one.do
        yield from textwrap.wrap(line.rstrip(), WIDTH, subsequent_indent=" " * 12)
        yield from textwrap.wrap(note, WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 12)


# What the reward pays, and how it fails


@dataclass(frozen=True)
class Paid:
    """What was paid, or `why` there is no value: by a `failure`, of the family that is called so, or by None of TRL's
    form.
    """

    value: float | None = None
    solved: bool = False
    maximum: float = 1.0
    failure: str = ""
    why: str = ""
    printed: str = ""

    def __str__(self) -> str:
        return self.why if self.value is None else f"{self.value:g}{' (full)' if self.solved else ''}"


Result = tuple[Attack, Paid]


class Payer:
    """Pays attacks on the examples of a task, in workers."""

    def __init__(self, task: Task, examples: Sequence[Example], deadline_s: float) -> None:
        self.task, self.examples, self.deadline_s = task, examples, deadline_s

    def pay(self, planned: Sequence[Attack], count: int) -> list[Result]:
        """What the task pays for each, in so many workers (0: one per core)."""
        with closing(Workers(count, self.deadline_s)) as workers:
            assert self.task.reward is not None
            grader = Grader(functools.partial(_attempt, self.task.reward), _broken, self.task.warm, self.task.seconds)
            jobs = [Job(grader, (one.text, self.examples[one.number])) for one in planned]
            return list(zip(planned, map(_unless_failed, workers.run(jobs)), strict=True))

    def pay_together(self, planned: Sequence[Attack]) -> list[Result]:
        """What a function of TRL's form pays for all in one call."""
        assert isinstance(self.task.reward, TrlOrVerlReward)
        texts, examples = [one.text for one in planned], [self.examples[one.number] for one in planned]
        with closing(Workers(1, self.deadline_s)) as workers:
            (result,) = workers.run([Job(Grader(self.task.reward.together, _broken), (texts, examples))])
        if isinstance(result, Failure | Paid):
            return [(one, _unless_failed(result)) for one in planned]
        return list(zip(planned, map(_of_batch, result), strict=True))


def _broken(reason: Reason) -> Paid:
    """The result of a reward whose worker was lost."""
    why = {"timeout": "no reward within the deadline", "memory": "out of memory, or too deep a recursion"}
    failure = "slow" if reason == "timeout" else "crash"
    return Paid(failure=failure, why=why.get(reason, "the process of the reward ended"))


def _attempt(reward: Callable[[str, Example], Any], completion: str, example: Example) -> Paid:
    """Call a reward, and tell apart what it does wrong. Runs in a worker."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            given = as_reward(reward(completion, copy.deepcopy(example)))
            paid = Paid(given.value, given.solved, given.maximum)
        except (MemoryError, RecursionError):
            raise  # the grader knows these
        except NotForThisRow:
            paid = Paid(why="None")
        except Mistake as error:
            paid = Paid(failure="returns", why=_last_line(str(error)))
        except (Exception, SystemExit) as error:  # the task's own code
            paid = Paid(failure="raises", why=_last_line(f"{type(error).__name__}: {error}"))
    return replace(paid, printed=printed.getvalue().strip()[:200])


def _of_batch(value: Any) -> Paid:  # noqa: ANN401 - a task's code may return anything
    try:
        return Paid(why="None") if value is None else Paid(finite("a reward", value))
    except Mistake as error:
        return Paid(failure="returns", why=_last_line(str(error)))


def _unless_failed(result: Paid | Failure) -> Paid:
    if isinstance(result, Paid):
        return result
    return Paid(failure="slow" if result.reason == NO_SECOND_RUN else "raises", why=_last_line(result.reason))


def _last_line(text: str) -> str:
    return one_line(text.strip().splitlines()[-1])[:200]


# Right answers


def find_answers(payer: Payer, config: AuditConfig) -> Answers:
    """The answers in the column that the user names, else those that the task says, else those that are found: a
    demonstration or a field of the example in a usual form that is paid in full where nonsense is not.
    """
    column, task, examples = config.gold_column, payer.task, payer.examples
    if column:
        texts = {number: str(example[column]) for number, example in enumerate(examples)}
        return Answers.of(texts, f"--gold-column {column}", True)
    for name, says in (("solution", task.solution), ("shortest_answer", task.shortest_answer)):
        said = {number: text for number, one in enumerate(examples) if says is not None and (text := says(one))}
        if said:
            return Answers.of(said, f"the task's {name}", True)
    guesses = [Attack("", n, text) for n, one in enumerate(examples) for text in _guesses(task, one, config.seed)]
    paid = payer.pay(guesses, config.reward_workers)
    full = [one for one, paid in paid if paid.value is not None and paid.solved]
    given_away = {one.number for one in full if one.text in NONSENSE}
    found = {one.number: one.text for one in reversed(full) if one.number not in given_away}
    return Answers.of(found, "found by trying" if found else "", False)


def _guesses(task: Task, example: Example, seed: int) -> Sequence[str]:
    demonstrations = task.demonstrations or (lambda *_: None)
    said = [demonstrations(example, random.Random(f"{seed} {number} {example.id}")) for number in range(8)]
    fields = [value for value in example.fields.values() if isinstance(value, str | int | float)]
    values = [value for value in fields if 0 < len(str(value)) <= 10_000]
    texts = [*(one for one in said if isinstance(one, str)), *(form.format(one) for one in values for form in FORMS)]
    return list(dict.fromkeys([*texts, *NONSENSE]))


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
    payer = Payer(task, examples, config.reward_deadline_s)
    first = [Attack("nonsense", number, NONSENSE[0]) for number in range(min(2, len(examples)))]
    tried = payer.pay(first, config.reward_workers)
    if all(paid.failure for _, paid in tried):  # each further text would take the deadline
        return [fault(tried[0][1].failure, tried, len(tried))], Answers()
    answers = find_answers(payer, config)
    left_out = {*config.leave_out} - {"nonsense", "gold", "other"}  # by which the others are judged
    planned = [one for one in attacks(examples, answers, config.seed) if one.family not in left_out]
    results = payer.pay(planned, config.reward_workers)
    unpaid = all(paid.value is None and not paid.failure for _, paid in results)
    require(not unpaid, "the reward returns None for every text: it applies to none of these rows")
    judge = Judge(results, answers, not isinstance(task.reward, TrlOrVerlReward))
    found = {name: judge.finding(name) for name in FAMILIES} | _paid_again(payer, results)
    return [found[name] for name in FAMILIES if name not in config.leave_out], answers


def _paid_again(payer: Payer, results: Sequence[Result]) -> dict[str, Finding]:
    """The findings on the same texts in other processes and orders, and together."""
    own = [one for one, paid in results if one.family in AGAIN_FAMILIES and not paid.failure]
    texts = sorted(own, key=lambda one: (one.number, AGAIN_FAMILIES.index(one.family)))[:AGAIN]
    if not texts:
        why = "no text was paid that could be paid again"
        return {name: Finding(name, "not tried", do=why) for name in ("repeatable", "batch")}
    one_by_one = payer.pay([*texts, *texts[::-1]], 1)
    found = {"repeatable": _compared("repeatable", [*one_by_one, *payer.pay([*texts, *texts], 4)], len(texts))}
    if not (isinstance(payer.task.reward, TrlOrVerlReward) and payer.task.reward.takes_batches):
        found["batch"] = Finding("batch", "not tried", do="the reward is called with one completion at a time")
    elif found["repeatable"].verdict == "fault":
        found["batch"] = Finding("batch", "not tried", do="see repeatable")
    else:
        columns = payer.examples[texts[0].number].fields.keys()
        alike = [one for one in texts if payer.examples[one.number].fields.keys() == columns]
        found["batch"] = _compared("batch", [*one_by_one, *payer.pay_together(alike)], len(alike))
    return found


def _compared(name: str, results: Sequence[Result], tried: int) -> Finding:
    """Whether equal texts were paid alike."""
    first = dict(reversed(results))
    differ = [
        (one, paid) for one, paid in results if (first[one].failure, first[one].value) != (paid.failure, paid.value)
    ]
    if not differ:
        return Finding(name, "ok", tried=tried)
    (one, after), *_ = differ
    return Finding(name, "fault", one.text, f"{first[one]}, then {after}", FAMILIES[name].fix, tried, len(differ))


def fault(name: str, fallen: Sequence[Result], tried: int) -> Finding:
    """A finding that begins with the shortest of the texts that the reward falls for."""
    attack, paid = min(fallen, key=lambda one: len(one[0].text))
    said = f"printed: {paid.printed}" if name == "prints" else str(paid)
    return Finding(name, "fault", attack.text, said, FAMILIES[name].fix, tried, len(fallen))


class Judge:
    """Judges results by what nonsense and right answers are paid for the same example.

    Without `names_maximum`, as in TRL's form, a right answer must be paid more than nonsense, and no text more than it.
    """

    def __init__(self, results: Sequence[Result], answers: Answers, names_maximum: bool = True) -> None:
        self.results, self._answers, self._names_maximum = results, answers, names_maximum
        self._paid = defaultdict[tuple[int, str], list[float]](list)
        """What was paid for an example, by family; under no name all."""
        for one, paid in results:
            for family in (one.family, "") if paid.value is not None else ():
                self._paid[one.number, family].append(paid.value or 0.0)
        self._several = {one.number for one, paid in results if one.family == "other" and self._unduly(one, paid)}

    def _unduly(self, attack: Attack, paid: Paid) -> bool:
        """Whether a text that is not right is paid as if it were."""
        if paid.value is None:
            return False
        nothing, gold = min(self._nothing(attack), paid.value), self._paid[attack.number, "gold"]
        answer_pays = bool(gold) and gold[0] > nothing
        most = gold[0] if answer_pays else paid.maximum
        return (not answer_pays and paid.solved) or paid.value > nothing + max(0.0, most - nothing) / 2

    def _in_full(self, attack: Attack, paid: Paid) -> bool:
        if paid.value is None:
            return not paid.failure
        if self._names_maximum:
            return paid.solved
        return self._nothing(attack) < paid.value == max(self._paid[attack.number, ""])

    def _nothing(self, attack: Attack) -> float:
        """What nonsense is paid, or a wrong answer if that is less and no penalty."""
        wrong = max(0.0, min(self._paid[attack.number, "other"], default=math.inf))
        return min([*(self._paid[attack.number, "nonsense"] or [0.0]), wrong])

    def finding(self, name: str) -> Finding:
        """The finding of a family."""
        family = FAMILIES[name]
        if family.texts is None:
            own = [(one, paid) for one, paid in self.results if one.family not in MAY_FAIL]
            failed = [(one, paid) for one, paid in own if (paid.printed if name == "prints" else paid.failure == name)]
            return fault(name, failed, len(own)) if failed else Finding(name, "ok", tried=len(own))
        found = [(one, paid) for one, paid in self.results if one.family == name]
        failed = [(one, paid) for one, paid in found if paid.failure]
        if name in MAY_FAIL and failed:
            return fault(name, failed, len(found))
        if why := self._why_not_tried(name, found):
            return Finding(name, "not tried", do=why)
        judged = [one for one in found if name not in WITH_WRONG_ANSWERS or one[0].number not in self._several]
        fallen = [one for one in judged if (not self._in_full(*one) if name == "gold" else self._unduly(*one))]
        most = 0 if name == "gold" else FALLS_ON * len({attack.number for attack, _ in found})
        if len({attack.number for attack, _ in fallen}) > most:
            return fault(name, fallen, len(found))
        attack, paid = max(found, key=lambda one: -math.inf if one[1].value is None else one[1].value)
        return Finding(name, "ok", attack.text, str(paid), tried=len(found), fell=len(fallen))

    def _why_not_tried(self, name: str, found: Sequence[Result]) -> str:
        """Why the texts of a family say nothing; empty where they do."""
        if FAMILIES[name].of_answers and not self._answers.texts:
            return "no right answer is known: name a field with --gold-column, or give the task a `solution`"
        if not found:
            return "its answers have no such texts, or these may be right"
        if name in ("other", "near") and not self._answers.declared:
            return "its answers were found by trying, and others may be right as well: declare them as for `gold`"
        return str(found[0][1]) if all(paid.value is None for _, paid in found) else ""
