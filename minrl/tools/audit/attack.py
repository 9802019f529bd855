"""The audit of a task: its answers, the attacks, and the same texts again in other processes, orders and company."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from minrl.rewards.workers import Workers
from minrl.tasks import Task
from minrl.tasks.columns import ColumnReward
from minrl.tools.audit.answers import NONSENSE, Answers, find_answers
from minrl.tools.audit.attacks import Attack, attacks
from minrl.tools.audit.config import AuditConfig
from minrl.tools.audit.families import FAMILIES
from minrl.tools.audit.findings import OF_KIND, Finding, Judge, Result, fault, given, said_of
from minrl.tools.audit.pay import Paid, pay, pay_together
from minrl.types import Example

FIRST = 2
"""Examples on which nonsense is tried before all else: where the reward fails for it, nothing else says anything."""

AGAIN = 16
"""Texts that are paid again."""

AT_ONCE = 4
"""Processes that pay at the same time."""

AGAIN_FAMILIES = ("gold", "nonsense", "empty", "other", "format")
"""Families of the texts that are paid again, in this order for each example."""

MEASURES = ("nonsense", "gold", "other")
"""Families by which the others are judged: they are paid even if they are left out of the findings."""

OF_TEXTS = tuple(list(FAMILIES)[: list(FAMILIES).index("twice")])
OF_FAILURES = (*OF_KIND.values(), "prints")


def audit(task: Task, config: AuditConfig) -> tuple[list[Finding], Answers]:
    """A finding for each family that is not left out, and the right answers that were used."""
    examples = chosen(task, config)
    deadline_s = config.reward.reward_deadline_s
    with closing(Workers(config.reward.reward_workers, deadline_s)) as workers:
        first = [Attack("nonsense", number, NONSENSE[0]) for number in range(min(FIRST, len(examples)))]
        tried = _paid(task, examples, first, workers)
        if all(paid.failed for _, paid in tried):
            return _of_the_first(tried, config), Answers()
        answers = find_answers(task, examples, config.gold_column, config.seed, workers)
        left_out = {*config.leave_out} - {*MEASURES}
        planned = [one for one in attacks(examples, answers, config.seed) if one.family not in left_out]
        results = _paid(task, examples, planned, workers)
        judge = Judge(results, answers, names_maximum=not isinstance(task.reward, ColumnReward))
        findings = {name: judge.family(name) for name in OF_TEXTS if name not in config.leave_out}
        findings |= {name: judge.failures(name) for name in OF_FAILURES}
        findings |= {one.family: one for one in _again(task, examples, results, workers, deadline_s)}
    if task.episode is not None:
        findings |= _of_episodes(findings)
    return [findings[name] for name in FAMILIES if name not in config.leave_out], answers


def chosen(task: Task, config: AuditConfig) -> list[Example]:
    """Examples of the training split, of the held-out one where there are too few."""
    train, held_out = list(task.dataset.train), list(task.dataset.held_out)
    found = train if len(train) >= config.examples else [*train, *held_out]
    return random.Random(config.seed).sample(found, min(config.examples, len(found)))


def _paid(task: Task, examples: Sequence[Example], planned: Sequence[Attack], workers: Workers) -> list[Result]:
    asked = [(examples[attack.number], attack.text) for attack in planned]
    return list(zip(planned, pay(task, asked, workers), strict=True))


def _of_the_first(tried: Sequence[Result], config: AuditConfig) -> list[Finding]:
    """The findings where the reward fails for ordinary text."""
    found = {OF_KIND[tried[0][1].kind]: fault(OF_KIND[tried[0][1].kind], tried, len(tried))}
    why = "the reward fails for ordinary text: mend that first"
    return [found.get(name, Finding(name, "not tried", do=why)) for name in FAMILIES if name not in config.leave_out]


def _of_episodes(findings: dict[str, Finding]) -> dict[str, Finding]:
    """What one text for all turns cannot show of a task of several turns."""
    whys = {
        name: "a game of several turns has no single right text" for name, one in FAMILIES.items() if one.of_answers
    }
    whys["prints"] = "an episode is played in the program's own process, which shows what it prints"
    return {name: Finding(name, "not tried", do=why) for name, why in whys.items() if name in findings}


def _again(
    task: Task, examples: Sequence[Example], results: Sequence[Result], workers: Workers, deadline_s: float
) -> Iterator[Finding]:
    """The same texts in a second process, in another order and again, in several processes at once, and together."""
    order = {name: place for place, name in enumerate(AGAIN_FAMILIES)}
    usable = [a for a, paid in results if a.family in order and paid.kind in ("paid", "none")]
    texts = sorted(usable, key=lambda one: (one.number, order[one.family]))[:AGAIN]
    if not texts:
        why = "no text was paid that could be paid again"
        yield from (Finding(name, "not tried", do=why) for name in ("twice", "order", "parallel", "batch"))
        return

    def run(planned: Sequence[Attack], count: int) -> list[Paid]:
        with closing(Workers(count, deadline_s)) as own:
            return [paid for _, paid in _paid(task, examples, planned, own)]

    one, other = run([*texts, *texts], 1), run([*texts, *texts], 1)
    yield (twice := compared("twice", [*texts, *texts], one, other))
    repeated = compared("order", texts, one[: len(texts)], one[len(texts) :])
    turned = compared("order", texts, one[: len(texts)], run(texts[::-1], 1)[::-1])
    ordered = _after(twice, "order", lambda: repeated if repeated.verdict == "fault" else turned)
    yield ordered
    yield _after(
        ordered, "parallel", lambda: compared("parallel", [*texts, *texts], one, run([*texts, *texts], AT_ONCE))
    )
    if not isinstance(task.reward, ColumnReward):
        yield Finding("batch", "not tried", do="the reward is called with one completion at a time")
        return
    names = examples[texts[0].number].fields.keys()
    alike = [place for place, text in enumerate(texts) if examples[text.number].fields.keys() == names]
    chosen_texts, alone = [texts[place] for place in alike], [one[place] for place in alike]
    asked = [(examples[text.number], text.text or "") for text in chosen_texts]
    yield _after(ordered, "batch", lambda: compared("batch", chosen_texts, alone, pay_together(task, asked, workers)))


def _after(before: Finding, name: str, compare: Callable[[], Finding]) -> Finding:
    """The comparison, unless an earlier one already differs."""
    if before.verdict == "ok":
        return compare()
    return Finding(name, "not tried", do=f"it differs without that: see {before.family}")


def compared(name: str, texts: Sequence[Attack], one: Sequence[Paid], other: Sequence[Paid]) -> Finding:
    """Whether the same texts were paid the same."""
    differ = [place for place in range(len(texts)) if one[place].same != other[place].same]
    if not differ:
        return Finding(name, "ok", tried=len(texts))
    place = differ[0]
    said = f"{said_of(one[place])}, then {said_of(other[place])}"
    return Finding(name, "fault", given(texts[place]), said, FAMILIES[name].mend, len(texts), len(differ))
