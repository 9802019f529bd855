"""What the attacks found: one finding for each family.

A text is paid unduly if it gets more than half of the way from what nonsense is paid to what a right answer is paid, or
to the maximum where none is known. A family has a fault if that happens for more than a quarter of the examples that it
was tried on: a single one may have an answer that nobody thought of. A failure of the reward is a fault wherever it
happens. The right answers must all be paid in full.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from minrl.tools.audit.answers import Answers
from minrl.tools.audit.attacks import Attack
from minrl.tools.audit.families import FAMILIES
from minrl.tools.audit.pay import Kind, Paid

Verdict = Literal["ok", "fault", "not tried"]
Result = tuple[Attack, Paid]

OWN_FAILURES = ("long", "scripts")
"""Families that are there to make a reward fail: their failures are their own finding."""

OF_KIND: Mapping[Kind, str] = {kind: kind for kind in ("raises", "slow", "crash", "example", "nan", "types")}
"""The family in which a failure is reported."""

FALLS_ON = 0.25
"""Share of the examples up to which texts may be paid."""

NO_ANSWERS = "no right answer is known: name a field with --gold-column, or give the task a `solution`"
UNDECLARED = "its answers were found by trying, and others may be right as well: declare them as for `gold`"
WHY_NOTHING = {
    "empty": "the right answers are blank",
    "whitespace": "the right answers are blank",
    "prompt": "the prompts hold the answers: a copy may be right",
    "format": "the right answers are blank",
    "candidates": "needs three examples whose answers differ and have one line each",
    "place": "needs another example whose answer differs",
    "other": "needs another example whose answer differs",
}


@dataclass(frozen=True)
class Finding:
    """A row of the table. `given` and `paid` are of the first fault, else of the first text; `do` is how to mend it, or
    why it was not tried.
    """

    family: str
    verdict: Verdict
    given: str = ""
    paid: str = ""
    do: str = ""
    tried: int = 0
    fell: int = 0


class Judge:
    """Judges results by what nonsense and right answers are paid for the same example.

    Without `names_maximum`, as in TRL's form, a right answer must be paid more than nonsense, and no text more than it.
    """

    def __init__(self, results: Sequence[Result], answers: Answers, names_maximum: bool = True) -> None:
        self.results, self.answers, self._names_maximum = results, answers, names_maximum
        self._nothing, self._gold = dict[int, float](), dict[int, Paid]()
        for attack, paid in results:
            if attack.family == "nonsense" and paid.kind == "paid":
                known = self._nothing.get(attack.number, paid.value)
                self._nothing[attack.number] = min(known, paid.value)
            if attack.family == "gold" and paid.kind == "paid":
                self._gold[attack.number] = paid
        self._taken = {(a.number, a.others[0]) for a, paid in results if a.family == "other" and self.unduly(a, paid)}

    def unduly(self, attack: Attack, paid: Paid) -> bool:
        """Whether a text that is not right is paid as if it were."""
        if paid.kind != "paid" or attack.may_be_paid:
            return False
        nothing, gold = self._nothing.get(attack.number, min(0.0, paid.value)), self._gold.get(attack.number)
        if gold is not None and gold.value > nothing:
            return paid.value > nothing + (gold.value - nothing) / 2
        return paid.solved or (paid.value > nothing and paid.value > nothing + (paid.maximum - nothing) / 2)

    def family(self, name: str) -> Finding:
        """The finding of a family of texts."""
        found = [(attack, paid) for attack, paid in self.results if attack.family == name]
        if not found:
            why = NO_ANSWERS if FAMILIES[name].of_answers and not self.answers.texts else WHY_NOTHING[name]
            return Finding(name, "not tried", do=why)
        if all(paid.kind == "frozen" for _, paid in found):
            return Finding(name, "not tried", do="it is played against a model that is not here")
        if name in OWN_FAILURES and (failed := [one for one in found if one[1].failed]):
            return fault(name, failed, len(found))
        if all(paid.failed for _, paid in found):
            return Finding(name, "not tried", do="the reward failed for each of these texts: see below")
        if name == "gold":
            return self._of_gold(found)
        if name == "other" and not self.answers.declared:
            return Finding(name, "not tried", do=UNDECLARED)
        fallen = [trial[0] for trial in self._trials(found) if all(self.unduly(*one) for one in trial)]
        examples = {attack.number for attack, _ in found}
        if len({attack.number for attack, _ in fallen}) > FALLS_ON * len(examples):
            return fault(name, fallen, len(found))
        return well(name, found, len(fallen))

    def _of_gold(self, found: Sequence[Result]) -> Finding:
        short = [(attack, paid) for attack, paid in found if paid.kind != "none" and not self._in_full(attack, paid)]
        return fault("gold", short, len(found)) if short else well("gold", found, 0)

    def _in_full(self, attack: Attack, paid: Paid) -> bool:
        if self._names_maximum:
            return paid.solved
        others = (one.value for text, one in self.results if text.number == attack.number and one.kind == "paid")
        nothing = self._nothing.get(attack.number, -math.inf)
        return paid.kind == "paid" and nothing < paid.value >= max(others)

    def _trials(self, found: Sequence[Result]) -> Iterator[list[Result]]:
        """The results that belong together, without those that hold another right answer."""
        trials: dict[object, list[Result]] = defaultdict(list)
        for place, (attack, paid) in enumerate(found):
            taken = attack.family != "other" and any((attack.number, other) in self._taken for other in attack.others)
            if not taken:
                trials[(attack.number, attack.trial) if attack.trial else place].append((attack, paid))
        yield from trials.values()

    def failures(self, name: str) -> Finding:
        """The finding of a family of failures, over all texts that are not there to make a reward fail."""
        looked = [(attack, paid) for attack, paid in self.results if attack.family not in OWN_FAILURES]
        if name == "prints":
            failed = [(attack, paid) for attack, paid in looked if paid.printed]
        else:
            failed = [(attack, paid) for attack, paid in looked if OF_KIND.get(paid.kind) == name]
        return fault(name, failed, len(looked)) if failed else Finding(name, "ok", tried=len(looked))


def fault(name: str, fallen: Sequence[Result], tried: int) -> Finding:
    """A finding that begins with the shortest of the texts that the reward falls for."""
    attack, paid = min(fallen, key=lambda one: (one[0].text is None, len(one[0].text or "")))
    said = f"printed: {paid.printed}" if name == "prints" else said_of(paid)
    return Finding(name, "fault", given(attack), said, FAMILIES[name].mend, tried, len(fallen))


def well(name: str, found: Sequence[Result], fell: int) -> Finding:
    """A finding without a fault: the text that was paid most."""
    attack, paid = max(found, key=lambda one: (one[1].kind == "paid", one[1].value))
    return Finding(name, "ok", given(attack), said_of(paid), tried=len(found), fell=fell)


def given(attack: Attack) -> str:
    """The text, or what stands for a copy of the prompt."""
    return "(what the policy is shown)" if attack.text is None else attack.text


def said_of(paid: Paid) -> str:
    """What was paid, in words."""
    if paid.kind == "none":
        return "None"
    return paid.reason if paid.kind != "paid" else f"{paid.value:g}{' (full)' if paid.solved else ''}"
