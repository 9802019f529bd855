"""NYT Connections: sixteen words, four hidden groups of four.

    MAPLE OAK ELM PINE BASS TROUT PIKE SOLE JAB HOOK CROSS UPPERCUT HEEL LACE TONGUE EYELET
    ->    <group>maple, oak, elm, pine</group> <group>bass, trout, pike, sole</group>
          <group>jab, hook, cross, uppercut</group> <group>heel, lace, tongue, eyelet</group>

(SOLE is also a part of a shoe, and PIKE, HOOK and TONGUE mislead likewise.) The puzzle's identity decides the order in
which the words are shown, since in the data the groups follow one another.

The reward is solved groups / 4, plus `near_weight` times the share of groups with three of four right, which is paid
only for four groups that hold each of the sixteen words once. Two groups cannot both have three words of one true
group, so a random whole answer earns a tenth of it (4 * 48 / 1820 of its groups are near). Fewer groups earn what is
solved among them, so leaving one out never pays. A repeated word, a word that was not given, a group of other than four
words or a fifth group is paid 0.
"""

import random
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from minrl.dataflow import Example, Message, Reward, require
from minrl.tasks.answers import plain_characters
from minrl.tasks.data import Row, Source, dataset_of, identity, load_each
from minrl.tasks.task import (
    Dataset,
    DeferredDataset,
    HeldOut,
    TaskOptions,
    chat,
    in_hash_order,
    is_held_out,
)
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import Bound, Natural

SOURCE = Source("tm21cy/NYT-Connections")
"""Its groups are under `answers`, each with `words`. `groups`, also inside a `solution`, and `members` are read too."""

INSTRUCTIONS = (
    "The sixteen words below form four groups of four that have something in common. Each word belongs to one group. "
    "Think first, then give the four groups, each as <group>word, word, word, word</group>."
)
EXAMPLE_WORDS = "PIKE HEEL OAK JAB EYELET PINE BASS HOOK LACE TROUT MAPLE CROSS TONGUE ELM UPPERCUT SOLE"
EXAMPLE_ANSWER = (
    "<group>MAPLE, OAK, ELM, PINE</group>\n<group>BASS, TROUT, PIKE, SOLE</group>\n"
    "<group>JAB, HOOK, CROSS, UPPERCUT</group>\n<group>HEEL, LACE, TONGUE, EYELET</group>"
)
EXAMPLE: list[Message] = [
    {"role": "user", "content": "\n".join(EXAMPLE_WORDS.split())},
    {"role": "assistant", "content": EXAMPLE_ANSWER},
]
GROUPS = SIZE = 4
MAX_GROUP_CHARACTERS = 1000
_BETWEEN = re.compile(r"(?:[\s,;.*_`'\"()\[\]-]|\d[.)]|\band\b|&)*")
"""What may stand between the words of a group."""
_GROUP = re.compile(r"<group>([^<]*)</group>")

Group = list[str]


@dataclass(frozen=True, kw_only=True)
class ConnectionsOptions(TaskOptions):
    """How the puzzles are made, rewarded and split."""

    prefix = "connections."
    near_weight: Annotated[float, Bound(least=0, most=0.5)] = 0.1
    """Paid for the share of groups with three of four right, in whole answers only. Solved groups have weight 1."""
    example: bool = False
    """Show another puzzle and its answer before the one that is asked."""
    held_out_share: HeldOut = 0.2
    """Share of the puzzles that is never trained on."""
    combinations: Natural = 0
    """So many puzzles of four random groups replace the rows that have a `solution`; no group of a held-out puzzle is
    trained on. 0: the rows as they are."""


DEFAULTS = ConnectionsOptions()


def reward(completion: str, example: Example, options: ConnectionsOptions = DEFAULTS) -> Reward:
    """Solved groups / 4 and a little for three of four; see the module. At most (solved + near groups) / 4 <= 1."""
    truth = [frozenset(map(plain, group)) for group in _groups_of(example.fields)]
    answer = _parsed(completion, frozenset().union(*truth))
    whole = len(answer) == GROUPS
    solved = sum(group in truth for group in answer)
    near = sum(max(len(group & true) for true in truth) == SIZE - 1 for group in answer) if whole else 0
    parts = {"solved": solved / GROUPS, "near": near / GROUPS, "format": float(whole)}
    return Reward(parts["solved"] + options.near_weight * parts["near"], parts)


def _parsed(completion: str, words: frozenset[str]) -> list[frozenset[str]]:
    """The groups that the completion names outside its thoughts; none if one breaks the rules. Empty tags name none."""
    named = [content for content in _GROUP.findall(after_thoughts(completion)) if content.strip()]
    groups = [members_of(content, words) for content in named[: GROUPS + 1]]
    said = [word for members in groups for word in members]
    right = len(groups) <= GROUPS and all(len(members) == SIZE for members in groups) and len(said) == len({*said})
    return list(map(frozenset, groups)) if right else []


def members_of(content: str, words: frozenset[str]) -> list[str]:
    """The words of a list, in which nothing but what separates words stands beside them; none of any other text.

    >>> members_of("A, 20,000, B, and c", frozenset({"a", "b", "c", "20,000", "20"}))
    ['a', '20,000', 'b', 'c']
    """
    if len(content) > MAX_GROUP_CHARACTERS:
        return []
    text = plain(content)
    longest_first = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    any_word = re.compile(rf"(?<!\w)(?:{longest_first})(?!\w)")
    return any_word.findall(text) if _BETWEEN.fullmatch(any_word.sub("", text)) else []


def plain(word: str) -> str:
    """A word without case, emphasis and doubled white space, and with one of the characters that look alike.

    >>> plain("**L\u2019e\u0301t\u00e9**"), plain("L'\u00c9T\u00c9")
    ("l'\u00e9t\u00e9", "l'\u00e9t\u00e9")
    """
    return " ".join(unicodedata.normalize("NFKC", plain_characters(word)).casefold().replace("*", " ").split())


def _groups_of(row: Row) -> list[Group]:
    """The words of each group of a row. Raises KeyError if it has none."""
    row = row.get("solution", row)
    groups = row["groups" if "groups" in row else "answers"]
    return [list(map(str, group["members" if "members" in group else "words"])) for group in groups]


def _example(groups: Sequence[Group], options: ConnectionsOptions) -> Example:
    """The puzzle of four groups of four different words."""
    words = sorted((word for group in groups for word in group), key=plain)
    distinct, sizes = sorted({*map(plain, words)}), [len(group) for group in groups]
    right = sizes == [SIZE] * GROUPS and len(distinct) == SIZE * GROUPS
    require(right, f"a puzzle has 4 groups of 4 different words, got {len(distinct)} in groups of {sizes}")
    name = identity(" | ".join(distinct))
    random.Random(name).shuffle(words)
    instructions, puzzle = chat(INSTRUCTIONS, "\n".join(words))
    prompt = [instructions, *(EXAMPLE if options.example else []), puzzle]
    return Example(name, prompt, {"groups": [{"members": group} for group in groups]})


def dataset(options: ConnectionsOptions) -> Dataset:
    """The puzzles of the dataset, or of a local copy."""
    if options.combinations:
        return DeferredDataset(lambda: _combined(options))
    return dataset_of(SOURCE, options.data_path, lambda row: _example(_groups_of(row), options), options.held_out_share)


def _combined(options: ConnectionsOptions) -> Dataset:
    """The rows without a `solution`, and combinations of the groups of the others. The groups are split first."""

    def read(row: Row) -> tuple[bool, Example]:
        return "solution" in row, _example(_groups_of(row), options)

    rows = load_each(SOURCE, options.data_path, read)["all"]
    given = {example.id: example for generated, example in rows if not generated}.values()
    groups = [group for generated, example in rows if generated for group in _groups_of(example.fields)]
    pool = {identity(" | ".join(sorted(map(plain, group)))): group for group in groups}
    share, sides = options.held_out_share, list[list[Example]]()
    for held_out in (False, True):
        count = round(options.combinations * (share if held_out else 1 - share))
        own = [pool[name] for name in sorted(pool) if is_held_out(name, share) == held_out]
        kept = [example for example in given if is_held_out(example.id, share) == held_out]
        sides.append(in_hash_order([*kept, *_puzzles(own, count, options)]))
    return Dataset(sides[0], sides[1])


def _puzzles(groups: Sequence[Group], count: int, options: ConnectionsOptions) -> Iterator[Example]:
    """So many puzzles of four random groups without a word in common, each puzzle once."""
    rng, made = random.Random(count), set[str]()
    for _ in range(100 * count if len(groups) >= GROUPS else 0):
        chosen = rng.sample(groups, GROUPS)
        if len({plain(word) for group in chosen for word in group}) == SIZE * GROUPS:
            example = _example(chosen, options)
            if example.id not in made:
                made.add(example.id)
                yield example
        if len(made) == count:
            return
    require(
        count == 0,
        f"connections.combinations: {len(groups)} groups on one side of the split make {len(made)} puzzles, not "
        f"{count}: give more rows, or ask for fewer",
    )


def more(_: ConnectionsOptions) -> dict[str, Any]:
    """What else the task has."""
    return {"cheap": True, "solution": _solution}


def _solution(example: Example) -> str:
    """The groups of a puzzle, as the prompt asks for them."""
    return " ".join(f"<group>{', '.join(group)}</group>" for group in _groups_of(example.fields))
