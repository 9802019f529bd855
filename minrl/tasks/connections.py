"""NYT Connections: sixteen words, four hidden groups of four.

    MAPLE OAK ELM PINE BASS TROUT PIKE SOLE JAB HOOK CROSS UPPERCUT HEEL LACE TONGUE EYELET
    ->    <group>maple, oak, elm, pine</group> <group>bass, trout, pike, sole</group>
          <group>jab, hook, cross, uppercut</group> <group>heel, lace, tongue, eyelet</group>

(SOLE is also a part of a shoe, and PIKE, HOOK and TONGUE mislead likewise.) The puzzle's identity decides the order in
which the words are shown, since in the data the groups follow one another.

The reward is solved groups / 4, plus `near_weight` times the share of groups with three of four right. The second part
is paid only for whole answers: four groups that hold each of the sixteen words once. Two groups cannot both have three
words of one true group, so it is at most near_weight if nothing is solved, and a random whole answer earns a tenth of
that (4 * 48 / 1820 of its groups are near). Fewer groups earn what is solved among them, so leaving one out never pays.
A repeated word, a word that was not given, a group of other than four words or a fifth group is paid 0.
"""

import functools
import random
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from minrl.dataflow import Example, Reward, UserError, require
from minrl.models.thoughts import after_thoughts
from minrl.tasks.answers import plain_characters
from minrl.tasks.data import Row, Source, dataset_of, identity
from minrl.tasks.task import Task, TaskDefinition, chat, check_held_out_share

SOURCE = Source("tm21cy/NYT-Connections")
"""Its groups are under `answers`, each with `words`. `groups`, each with `members`, are read as well, and the form of
public archives: `answers` with `members`, and no `words` beside them.
"""

INSTRUCTIONS = (
    "The sixteen words below form four groups of four that have something in common. Each word belongs to one group. "
    "Think first, then give the four groups, each as <group>word, word, word, word</group>."
)
GROUPS = SIZE = 4
MAX_GROUP_CHARACTERS = 1000
_AROUND = re.compile(r"\A[\s\[({]+|[\s\])},;.]+\Z")
_TOPIC = re.compile(r"\A[^,:;\n]{1,60}:\**\s*")
"""What a list is said to be about."""
_ITEM = re.compile(r"^[ \t]*(?:[-*\u2022]|[0-9][.)])[ \t]+", re.MULTILINE)
_BETWEEN = re.compile(r"[,;]?[ \t\r]*\n\s*|;")
_AND = re.compile(r",?\s+(?:and|&)\s+(?=[^,]*\Z)", re.IGNORECASE)
_GROUP = re.compile(r"<group>(.*?)</group>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ConnectionsOptions:
    """How the puzzles are paid and split."""

    near_weight: float = 0.1
    """Paid for the share of groups with three of four right, in whole answers only. Solved groups have weight 1."""
    held_out_share: float = 0.2
    """Share of the puzzles that is never trained on."""

    def __post_init__(self) -> None:
        check_held_out_share("connections", self.held_out_share)
        require(0 <= self.near_weight <= 0.5, f"connections.near_weight must be in [0, 0.5], got {self.near_weight}")


DEFAULTS = ConnectionsOptions()


def reward(completion: str, example: Example, options: ConnectionsOptions = DEFAULTS) -> Reward:
    """Solved groups / 4 and a little for three of four; see the module. At most (solved + near groups) / 4 <= 1."""
    truth = [frozenset(map(plain, group)) for group in groups_of(example.fields)]
    answer = parse(completion, frozenset().union(*truth))
    whole = answer is not None and len(answer) == GROUPS
    solved = sum(group in truth for group in answer or ())
    near = sum(max(len(group & true) for true in truth) == SIZE - 1 for group in answer or ()) if whole else 0
    parts = {"solved": solved / GROUPS, "near": near / GROUPS, "format": float(whole)}
    return Reward(parts["solved"] + options.near_weight * parts["near"], parts)


def parse(completion: str, words: frozenset[str]) -> list[frozenset[str]] | None:
    """The groups that the completion names outside its thoughts; None if one breaks the rules. A tag that is only
    mentioned before them ("I will use <group> tags", "in <group></group>") is not part of the answer.
    """
    text = after_thoughts(completion).replace("<group></group>", "")
    text = text[max(0, text.rfind("<group>", 0, max(0, text.find("</group>")))) :]
    if not 0 < text.count("<group>") == text.count("</group>") <= GROUPS:
        return None
    groups = [members_of(content, words) or [] for content in _GROUP.findall(text)]
    if len({word for members in groups for word in members}) < SIZE * text.count("<group>"):
        return None
    return list(map(frozenset, groups))


def members_of(content: str, words: frozenset[str]) -> list[str] | None:
    """The four words of a list, though words may hold what stands between others; None if it is no such list. As it is
    read first, then without what surrounds it, with each word on its line or before a semicolon, with an `and`, and
    behind what the list is said to be about.

    >>> members_of("A, 20,000, B, c", frozenset({"a", "b", "c", "20,000", "20"}))
    ['a', '20,000', 'b', 'c']
    """
    if len(content) > MAX_GROUP_CHARACTERS:
        return None
    bare = _AROUND.sub("", content)
    listed = _BETWEEN.sub(",", _ITEM.sub("", bare))
    readings = (content, bare, listed, _AND.sub(",", listed, count=1), _BETWEEN.sub(",", _TOPIC.sub("", bare)))
    found = (_members(plain(reading).split(","), words, SIZE) for reading in dict.fromkeys(readings))
    return next(filter(None, found), None)


def _members(pieces: Sequence[str], words: frozenset[str], count: int) -> list[str] | None:
    """The pieces joined to `count` words. At most a word for each length tried, so at most 16 ** 4 steps."""
    if count == 0:
        return None if pieces else []
    for length in range(1, len(pieces) - count + 2):
        word = ",".join(pieces[:length])
        if word in words and (rest := _members(pieces[length:], words, count - 1)) is not None:
            return [word, *rest]
    return None


def plain(word: str) -> str:
    """A word without case and doubled white space, without white space, emphasis, quotation marks and full stops around
    it and its commas, and with one of the characters that look alike.

    >>> plain("**L\u2019e\u0301t\u00e9**."), plain("L'\u00c9T\u00c9"), plain("20, 000"), plain("*")
    ("l'\u00e9t\u00e9", "l'\u00e9t\u00e9", '20,000', '*')
    """
    text = unicodedata.normalize("NFKC", plain_characters(word)).casefold()
    pieces = (" ".join(piece.split()) for piece in text.split(","))
    return ",".join(piece.strip(" *_`\"'.") or piece for piece in pieces)


def groups_of(row: Row) -> list[list[str]]:
    """The members of each group of a row. Raises KeyError if it has none."""
    groups = row["groups" if "groups" in row or "answers" not in row else "answers"]
    return [list(map(str, group["members" if "members" in group else "words"])) for group in groups]


def example_of(row: Row) -> Example:
    """The example of a row, which must hold four groups of four of its sixteen words."""
    try:
        groups = groups_of(row)
        words = list(map(str, row["words"])) if "words" in row else [word for group in groups for word in group]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"a puzzle needs `groups` or `answers`, each with `members` or `words`, got {', '.join(map(str, row))}"
        ) from error
    shown = {plain(word) for word in words}
    grouped = [plain(word) for group in groups for word in group]
    if [len(group) for group in groups] != [SIZE] * GROUPS or sorted(shown) != sorted(grouped) or len(words) != 16:
        raise UserError(
            f"a puzzle has 16 different words in 4 groups of 4, got {len(words)} words, {len(shown)} of them "
            f"different, and groups of {', '.join(str(len(group)) for group in groups)}"
        )
    name = identity(" | ".join(sorted(shown)))
    words.sort(key=plain)
    random.Random(name).shuffle(words)
    prompt = chat(INSTRUCTIONS, "\n".join(words))
    return Example(name, prompt, {"groups": [{"members": group} for group in groups]})


def make(options: ConnectionsOptions, data_path: str) -> Task:
    """The puzzles of the dataset, or of a local copy."""
    dataset = dataset_of(SOURCE, data_path, example_of, options.held_out_share)
    return Task(dataset, functools.partial(reward, options=options), cheap=True, solution=solution)


def solution(example: Example) -> str:
    """The groups of a puzzle, as the prompt asks for them."""
    return " ".join(f"<group>{', '.join(group)}</group>" for group in groups_of(example.fields))


TASK = TaskDefinition(ConnectionsOptions, make)
