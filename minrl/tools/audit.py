"""Attack a task's reward before anyone trains on it.

The reward is given texts that earn nothing by construction, in the workers that a run has, and right answers. A text is
paid unduly if it gets more than half of the way from what nonsense gets to what a right answer gets, or to the maximum
where none is known. A family has a fault if that happens for more than a quarter of its examples: a single one may have
an answer that nobody thought of. A failure of the reward is a fault wherever it happens, and every right answer must be
paid in full.
"""

import copy
import functools
import io
import math
import pickle
import random
import shutil
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from minrl.rewards.episode import Play
from minrl.rewards.workers import NO_SECOND_RUN, Failure, Workers
from minrl.sft.config import RewardConfig
from minrl.tasks import Task, load_task
from minrl.tasks.checked import MISTAKE, as_reward
from minrl.tasks.custom import ForeignReward, HeldOutOptions, NotForThisRow
from minrl.tasks.grader import Grader, Reason
from minrl.tools.attacks import FAMILIES, NONSENSE, Answers, Attack, attacks, shown
from minrl.types import Example, Job, Mistake, Turn, require
from minrl.utils.cli import Command
from minrl.utils.files import write_json
from minrl.utils.settings import Count, Grouped, Seed, meant
from minrl.utils.task_names import task_key
from minrl.utils.text import one_line, printable

FORMS = ("{}", "<answer> {} </answer>", "\\boxed{{{}}}", "#### {}", "<think> </think> <answer> {} </answer>")
"""In which the fields of an example are tried as its answer."""
AGAIN, AGAIN_FAMILIES = 16, ("gold", "nonsense", "empty", "other", "format")
"""Texts that are paid again, and their families, in this order for each example."""
FALLS_ON = 0.25
"""Share of the examples up to which texts may be paid."""
MOST_TURNS, SHOWN, WIDTH = 1000, 30, 100
"""Turns after which an episode is endless, characters of a text in the table, columns of the table."""


@dataclass(frozen=True, kw_only=True, init=False)
class AuditConfig(Grouped):
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
    reward: RewardConfig = RewardConfig()

    @property
    def task_names(self) -> tuple[str, ...]:
        """The task whose reward is attacked."""
        return (self.reward.task,)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.leave_out:
            message = f"leave_out: no family {name!r}{meant(name, FAMILIES)}; choose of {', '.join(FAMILIES)}"
            require(name in FAMILIES, message)


def main(command: Command[AuditConfig]) -> int:
    """Audit the reward, print the table, and write the findings."""
    config, options = command.config, command.options
    key = task_key(config.reward.task)
    if isinstance(options.get(key), HeldOutOptions):  # nothing is trained here: all rows may be attacked
        options = {**options, key: replace(options[key], held_out_share=1.0)}  # type: ignore[type-var]
    task = load_task(config.reward.task, options, config.reward.data_path)
    several = bool(config.gold_column and task.episode)
    require(not several, "--gold-column: a task of several turns has no single right text")
    for note in task.notes():  # before the workers start: they have the walls that it finds
        sys.stderr.write(f"{config.reward.task}: {note}\n")
    findings, answers = audit(task, config)
    faults = [one.family for one in findings if one.verdict == "fault"]
    counts = [sum(one.verdict == name for one in findings) for name in ("ok", "not tried")]
    sys.stdout.writelines(f"{line}\n" for line in table(findings))
    sys.stdout.write(
        f"\n{printable(key)}: {len(faults)} fault{'s' * (len(faults) != 1)}, {counts[0]} ok, {counts[1]} not tried; "
        f"right answers: {answers.source or 'none'}\n"
    )
    if config.output:
        Path(config.output).parent.mkdir(parents=True, exist_ok=True)
        rows = [{**asdict(one), "given": one.given[:2000]} for one in findings]
        made = {"task": config.reward.task, "data_path": config.reward.data_path, "seed": config.seed}
        write_json(Path(config.output), {**made, "answers": answers.source, "faults": faults, "findings": rows})
    return int(bool(faults))


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


def table(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each family, with a further one for what to do."""
    width = min(WIDTH, max(80, shutil.get_terminal_size((WIDTH, 24)).columns))

    def wrapped(text: str, head: str) -> list[str]:
        return textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * len(head)) or [head.rstrip()]

    yield f"{'family':<11} {'verdict':<9} {'tried':>5}  {'given':<{SHOWN}}  paid"
    for one in findings:
        head = f"{one.family:<11} {one.verdict.upper() if one.verdict == 'fault' else one.verdict:<9} "
        if one.verdict == "not tried":
            yield from wrapped(one.do, head)
            continue
        text = one_line(one.given.replace("\n", "\\n")) if one.given.strip() else repr(one.given)[1:-1]
        text = text if len(text) <= SHOWN - 2 else f"{text[: SHOWN - 14]} ... {text[-7:]}"
        quoted = f'"{text}"' if one.given or one.paid else ""
        yield from wrapped(one_line(one.paid), f"{head}{one.tried:>5}  {quoted:<{SHOWN}}  ")
        if one.verdict == "fault":
            yield from wrapped(f"{FAMILIES[one.family].tries}: {one.do}", " " * 12)


# What the reward pays, and how it fails


@dataclass(frozen=True)
class Paid:
    """What was paid. `failure`: the family of what the task's code did wrong. `skipped`: why nothing was paid, None of
    TRL's form or an opponent that is not here.
    """

    value: float = 0.0
    solved: bool = False
    maximum: float = 1.0
    failure: str = ""
    skipped: str = ""
    reason: str = ""
    printed: str = ""

    @property
    def is_paid(self) -> bool:
        """Whether the text has a value."""
        return not (self.failure or self.skipped)

    @property
    def outcome(self) -> tuple[str, str, float]:
        """What two calls must agree in."""
        return self.failure, self.skipped, self.value

    def __str__(self) -> str:
        return self.reason or self.skipped or f"{self.value:g}{' (full)' if self.solved else ''}"


Result = tuple[Attack, Paid]


def pay(task: Task, asked: Sequence[tuple[Example, str | None]], workers: Workers) -> list[Paid]:
    """What the task pays for each text. None stands for a copy of what the policy is shown, turn by turn."""
    if task.episode is not None:
        return _played(task, asked, workers)
    assert task.reward is not None
    grader = Grader(functools.partial(_attempt, task.reward), _broken, task.warm, task.seconds)
    here = task.cheap and not _picklable(grader)  # a run calls it here too
    texts = [(shown(example.prompt) if text is None else text, example) for example, text in asked]
    return [_unless_failed(result) for result in workers.run([Job(grader, each, cheap=here) for each in texts])]


def _pay_together(task: Task, asked: Sequence[tuple[Example, str]], workers: Workers) -> list[Paid]:
    """What a function of TRL's form pays for the texts in one call."""
    assert isinstance(task.reward, ForeignReward)
    texts, examples = [text for _, text in asked], [example for example, _ in asked]
    (result,) = workers.run([Job(Grader(task.reward.together, _broken), (texts, examples))])
    if isinstance(result, Failure | Paid):
        return [_unless_failed(result)] * len(asked)
    return [Paid(skipped="None") if one is None else Paid(float(one)) for one in result]


def _broken(reason: Reason) -> Paid:
    """The result of a reward whose worker was lost."""
    why = {"timeout": "no reward within the deadline", "memory": "out of memory, or too deep a recursion"}
    failure = "slow" if reason == "timeout" else "crash"
    return Paid(failure=failure, reason=why.get(reason, "the process of the reward ended"))


def _attempt(reward: Callable[[str, Example], Any], completion: str, example: Example) -> Paid:
    """Call a reward, and tell apart what it does wrong. Runs in a worker."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        paid = _called(reward, completion, copy.deepcopy(example))
    return replace(paid, printed=printed.getvalue().strip()[:200])


def _called(reward: Callable[[str, Example], Any], completion: str, example: Example) -> Paid:
    try:
        given = reward(completion, example)
        paid = as_reward(given)
    except (MemoryError, RecursionError):
        raise  # the grader knows these
    except NotForThisRow:
        return Paid(skipped="None")
    except Mistake as error:
        return Paid(failure="returns", reason=one_line(str(error))[:200])
    except (Exception, SystemExit) as error:  # the task's own code
        return Paid(failure="raises", reason=one_line(f"{type(error).__name__}: {error}")[:200])
    return Paid(paid.value, paid.solved, paid.maximum)


def _unless_failed(result: Paid | Failure) -> Paid:
    if isinstance(result, Paid):
        return result
    failure = "slow" if result.reason == NO_SECOND_RUN else "raises"
    return Paid(failure=failure, reason=one_line(result.reason.strip().splitlines()[-1])[:200])


def _picklable(grader: Grader) -> bool:
    try:
        return bool(pickle.dumps(grader))
    except Exception:  # a task's objects may raise anything
        return False


def _played(task: Task, asked: Sequence[tuple[Example, str | None]], workers: Workers) -> list[Paid]:
    """Play all episodes together, with the same text in every turn: each round runs the jobs that are due."""
    plays = [Play(task, example, random.Random(0)) for example, _ in asked]
    ends: dict[int, Paid] = {}
    due: dict[int, Any] = dict.fromkeys(range(len(plays)))
    for _ in range(MOST_TURNS):
        jobs, answers = dict[int, Job](), dict[int, str]()
        for number, value in due.items():
            plays[number].advance(value)
            pending, text = plays[number].pending, asked[number][1]
            if isinstance(pending, Turn) and pending.frozen:
                ends[number] = Paid(skipped="it is played against a model that is not here")
                plays[number].fail(ends[number].skipped)
            elif isinstance(pending, Job):
                jobs[number] = pending
            elif isinstance(pending, Turn):
                answers[number] = shown(pending.message) if text is None else text
        due = answers | dict(zip(jobs, workers.run(list(jobs.values())), strict=True))
        if not due:
            break
    ends |= {number: Paid(failure="slow", reason=f"no end after {MOST_TURNS} turns") for number in due}
    return [ends.get(n) or _end(play) for n, play in enumerate(plays)]


def _end(play: Play) -> Paid:
    """What a finished episode paid. Where several roles played, the least: what one wins, another may lose."""
    if play.problem is not None:
        failure = "returns" if play.problem.startswith(MISTAKE) else "raises"
        return Paid(failure=failure, reason=one_line(play.problem.strip().splitlines()[-1])[:200])
    least = min(play.rewards.values(), key=lambda reward: reward.value)
    return Paid(least.value, least.solved, least.maximum)


# Right answers


def find_answers(task: Task, examples: Sequence[Example], config: AuditConfig, workers: Workers) -> Answers:
    """The answers in the column that the user names, else those that the task says, else those that are found: a
    demonstration or a field of the example in a usual form that is paid in full where nonsense is not.
    """
    column = config.gold_column
    for example in examples if column else ():
        have = ", ".join(example.fields)
        require(column in example.fields, f"--gold-column {column}: no such field; the examples have {have}")
    if column:
        texts = {number: str(example[column]) for number, example in enumerate(examples)}
        return Answers.of(texts, f"--gold-column {column}", True)
    if task.episode is not None:
        return Answers()
    for name, says in (("solution", task.solution), ("shortest_answer", task.shortest_answer)):
        said = {number: text for number, one in enumerate(examples) if says is not None and (text := says(one))}
        if said:
            return Answers.of(said, f"the task's {name}", True)
    tried = [(number, text) for number, one in enumerate(examples) for text in _guesses(task, one, config.seed)]
    paid = pay(task, [(examples[number], text) for number, text in tried], workers)
    full = [pair for pair, one in zip(tried, paid, strict=True) if one.is_paid and one.solved]
    given_away = {number for number, text in full if text in NONSENSE}
    found = {number: text for number, text in reversed(full) if number not in given_away}
    return Answers.of(found, "found by trying" if found else "", False)


def _guesses(task: Task, example: Example, seed: int) -> Sequence[str]:
    demonstrations = task.demonstrations or (lambda *_: None)
    said = [demonstrations(example, random.Random(f"{seed} {number} {example.id}")) for number in range(8)]
    values = [
        one for one in example.fields.values() if isinstance(one, str | int | float) and 0 < len(str(one)) <= 10_000
    ]
    texts = [*(one for one in said if isinstance(one, str)), *(form.format(one) for one in values for form in FORMS)]
    return list(dict.fromkeys([*texts, *NONSENSE]))


# The audit


def audit(task: Task, config: AuditConfig) -> tuple[list[Finding], Answers]:
    """A finding for each family that is not left out, and the right answers that were used."""
    examples, deadline_s = chosen(task, config), config.reward.reward_deadline_s
    with closing(Workers(config.reward.reward_workers, deadline_s)) as workers:
        first = [Attack(NONSENSE[0], family="nonsense", number=number) for number in range(min(2, len(examples)))]
        tried = _paid(task, examples, first, workers)
        if all(paid.failure for _, paid in tried):
            why = "the reward fails for ordinary text: fix that first"
            found = {name: Finding(name, "not tried", do=why) for name in FAMILIES}
            found[tried[0][1].failure] = fault(tried[0][1].failure, tried, len(tried))
            return [found[name] for name in FAMILIES if name not in config.leave_out], Answers()
        answers = find_answers(task, examples, config, workers)
        left_out = {*config.leave_out} - {"nonsense", "gold", "other"}  # by which the others are judged
        planned = [one for one in attacks(examples, answers, config.seed) if one.family not in left_out]
        judge = Judge(_paid(task, examples, planned, workers), answers, not isinstance(task.reward, ForeignReward))
    findings = {name: judge.finding(name) for name in FAMILIES if name not in config.leave_out}
    repeated = sorted(
        (one for one, paid in judge.results if one.family in AGAIN_FAMILIES and not paid.failure),
        key=lambda one: (one.number, AGAIN_FAMILIES.index(one.family)),
    )[:AGAIN]
    findings |= {one.family: one for one in _again(task, examples, repeated, deadline_s) if one.family in findings}
    if task.episode is not None and "prints" in findings:
        why = "an episode is played in the program's own process, which shows what it prints"
        findings["prints"] = Finding("prints", "not tried", do=why)
    return list(findings.values()), answers


def chosen(task: Task, config: AuditConfig) -> list[Example]:
    """Examples of the training split, of the held-out one too where there are too few."""
    found = list(task.dataset.train)
    found += list(task.dataset.held_out) if len(found) < config.examples else []
    return random.Random(config.seed).sample(found, min(config.examples, len(found)))


def _paid(task: Task, examples: Sequence[Example], planned: Sequence[Attack], workers: Workers) -> list[Result]:
    asked = [(examples[attack.number], attack.text) for attack in planned]
    return list(zip(planned, pay(task, asked, workers), strict=True))


def _again(task: Task, examples: Sequence[Example], texts: Sequence[Attack], deadline_s: float) -> Iterator[Finding]:
    """The same texts in other processes and orders, and together."""

    def run(planned: Sequence[Attack], count: int) -> list[Paid]:
        with closing(Workers(count, deadline_s)) as own:
            return [paid for _, paid in _paid(task, examples, planned, own)]

    def compared(name: str, how: str, one: Sequence[Paid], other: Sequence[Paid]) -> Finding:
        differ = [(a, b, text) for a, b, text in zip(one, other, texts, strict=False) if a.outcome != b.outcome]
        if not differ:
            return Finding(name, "ok", tried=len(texts))
        (before, after, text), *_ = differ
        return Finding(
            name, "fault", text.text or "", f"{before}, {how} {after}", FAMILIES[name].fix, len(texts), len(differ)
        )

    if not texts:
        why = "no text was paid that could be paid again"
        yield from (Finding(name, "not tried", do=why) for name in ("repeatable", "batch"))
        return
    twice = [*texts, *texts]
    first = run(twice, 1)
    ways = {
        "again": lambda: first[len(texts) :],
        "in another process": lambda: run(texts, 1),
        "in another order": lambda: run(texts[::-1], 1)[::-1],
        "in four processes at once": lambda: run(twice, 4),
    }
    for how, way in ways.items():
        finding = compared("repeatable", how, first, way())
        if finding.verdict == "fault":
            break
    yield finding
    batches = isinstance(task.reward, ForeignReward) and task.reward.takes_batches
    if not batches or finding.verdict == "fault":
        why = "see repeatable" if finding.verdict == "fault" else "the reward is called with one completion at a time"
        yield Finding("batch", "not tried", do=why)
        return
    names = examples[texts[0].number].fields.keys()
    texts = [text for text in texts if examples[text.number].fields.keys() == names]
    with closing(Workers(1, deadline_s)) as own:
        together = _pay_together(task, [(examples[one.number], one.text or "") for one in texts], own)
    yield compared("batch", "among others", run(texts, 1), together)


def fault(name: str, fallen: Sequence[Result], tried: int) -> Finding:
    """A finding that begins with the shortest of the texts that the reward falls for."""
    attack, paid = min(fallen, key=lambda one: (one[0].text is None, len(one[0].text or "")))
    said = f"printed: {paid.printed}" if name == "prints" else str(paid)
    return Finding(name, "fault", _given(attack), said, FAMILIES[name].fix, tried, len(fallen))


def _given(attack: Attack) -> str:
    return "(what the policy is shown)" if attack.text is None else attack.text


class Judge:
    """Judges results by what nonsense and right answers are paid for the same example.

    Without `names_maximum`, as in TRL's form, a right answer must be paid more than nonsense, and no text more than it.
    """

    def __init__(self, results: Sequence[Result], answers: Answers, names_maximum: bool = True) -> None:
        self.results, self._answers, self._names_maximum = results, answers, names_maximum
        self._gold = {one.number: paid for one, paid in results if one.family == "gold" and paid.is_paid}
        self._nothing, self._most = dict[int, float](), dict[int, float]()
        for attack, paid in results:
            if paid.is_paid:
                self._most[attack.number] = max(paid.value, self._most.get(attack.number, paid.value))
            if paid.is_paid and attack.family == "nonsense":
                self._nothing[attack.number] = min(paid.value, self._nothing.get(attack.number, paid.value))
        self._taken = {(a.number, a.others[0]) for a, paid in results if a.family == "other" and self._unduly(a, paid)}

    def _unduly(self, attack: Attack, paid: Paid) -> bool:
        """Whether a text that is not right is paid as if it were."""
        if not paid.is_paid or attack.may_be_paid:
            return False
        nothing, gold = self._nothing.get(attack.number, min(0.0, paid.value)), self._gold.get(attack.number)
        most = gold.value if gold is not None and gold.value > nothing else paid.maximum
        return (gold is None and paid.solved) or paid.value > nothing + max(0.0, most - nothing) / 2

    def _in_full(self, attack: Attack, paid: Paid) -> bool:
        if self._names_maximum or not paid.is_paid:
            return paid.solved or bool(paid.skipped)
        return self._nothing.get(attack.number, -math.inf) < paid.value >= self._most[attack.number]

    def finding(self, name: str) -> Finding:
        """The finding of a family."""
        family = FAMILIES[name]
        if family.texts is None:
            own = [
                (a, paid) for a, paid in self.results if a.family not in ("long", "scripts")
            ]  # there to make it fail
            failed = [(a, paid) for a, paid in own if (paid.printed if name == "prints" else paid.failure == name)]
            return fault(name, failed, len(own)) if failed else Finding(name, "ok", tried=len(own))
        found = [(attack, paid) for attack, paid in self.results if attack.family == name]
        failed = [(attack, paid) for attack, paid in found if paid.failure]
        why = ""
        if family.of_answers and not self._answers.texts:
            why = "no right answer is known: name a field with --gold-column, or give the task a `solution`"
        elif not found:
            why = "its answers have no such texts, or these may be right"
        elif name in ("other", "near") and not self._answers.declared:
            why = "its answers were found by trying, and others may be right as well: declare them as for `gold`"
        elif all(paid.skipped or paid.failure for _, paid in found) and not (failed and name in ("long", "scripts")):
            why = str(found[0][1])
        if why:
            return Finding(name, "not tried", do=why)
        fallen = [trial[0] for trial in self._trials(found) if all(self._unduly(*one) for one in trial)]
        enough = len({attack.number for attack, _ in fallen}) > FALLS_ON * len({attack.number for attack, _ in found})
        if name == "gold":
            fallen = [(attack, paid) for attack, paid in found if not self._in_full(attack, paid)]
            enough = bool(fallen)
        if name in ("long", "scripts") and failed:
            fallen, enough = failed, True
        if enough:
            return fault(name, fallen, len(found))
        attack, paid = max(found, key=lambda one: (one[1].is_paid, one[1].value))
        return Finding(name, "ok", _given(attack), str(paid), tried=len(found), fell=len(fallen))

    def _trials(self, found: Sequence[Result]) -> Iterator[list[Result]]:
        """The results that belong together, without those that hold another right answer."""
        trials: Mapping[object, list[Result]] = defaultdict(list)
        for place, (attack, paid) in enumerate(found):
            taken = attack.family != "other" and any((attack.number, other) in self._taken for other in attack.others)
            if not taken:
                trials[(attack.number, attack.trial) if attack.trial else place].append((attack, paid))
        yield from trials.values()
