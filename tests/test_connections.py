"""Connections: exploits first, words with commas, rows that are no puzzle."""

import json
from itertools import chain, combinations

import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks import load_task
from minrl.tasks.connections import reward

GROUPS = [
    ["MAPLE", "OAK", "ELM", "PINE"],
    ["BASS", "TROUT", "PIKE", "SOLE"],
    ["JAB", "HOOK", "RIGHT CROSS", "20,000"],
    ["HEEL", "LACE", "TONGUE", "Eyelet"],
]
PUZZLE = Example("", "", {"groups": [{"group": "?", "members": group} for group in GROUPS]})
WORDS = [word for group in GROUPS for word in group]


def written(groups):
    return "\n".join(f"<group>{', '.join(group)}</group>" for group in groups)


def swapped(groups, *pairs):
    """The groups with words changed against one another."""
    change = {**dict(pairs), **{b: a for a, b in pairs}}
    return [[change.get(word, word) for word in group] for group in groups]


NEAR = 0.1
ONE_WORD_OF_EACH = [list(words) for words in zip(*GROUPS, strict=True)]
RIGHT = written(GROUPS)
PAID = {
    "all four": (RIGHT, 1.0),
    "other white space": (RIGHT.replace(", ", " ,\n  ").replace("RIGHT CROSS", "right   cross"), 1.0),
    "drafts in the thoughts": (f"<think> {written(ONE_WORD_OF_EACH)} </think> {RIGHT}", 1.0),
    "tags mentioned before the groups": (f"I will use <group> tags, as in <group></group>. {RIGHT}", 1.0),
    # A swap leaves two groups solved and two with three of four right.
    "one pair swapped": (written(swapped(GROUPS, ("OAK", "BASS"))), 2 / 4 + NEAR * 2 / 4),
    # Two swaps between separate groups: all four are near, none is solved, which is the most that pays unsolved.
    "two pairs swapped": (written(swapped(GROUPS, ("OAK", "BASS"), ("JAB", "HEEL"))), NEAR),
    "three groups": (written(GROUPS[:3]), 3 / 4),
    "one right group alone": (written(GROUPS[:1]), 1 / 4),
    "one word of each group": (written(ONE_WORD_OF_EACH), 0.0),
    "the same right group four times": (written(GROUPS[:1] * 4), 0.0),
    "a word twice in a group": ("<group>MAPLE, OAK, ELM, ELM</group>", 0.0),
    "a word in two groups": (written([GROUPS[0], ["BASS", "TROUT", "PIKE", "OAK"]]), 0.0),
    "a foreign word": (written([*GROUPS[:3], ["HEEL", "LACE", "TONGUE", "SHOE"]]), 0.0),
    "five words": (written([[*GROUPS[0], "BASS"], *GROUPS[1:]]), 0.0),
    "five groups": (RIGHT + written(GROUPS[:1]), 0.0),
    "all 1820 groups": (written(combinations(WORDS, 4)), 0.0),
    "a group in a group": (f"<group>{RIGHT}</group>", 0.0),
    "half of a word with a comma": (RIGHT.replace("20,000", "20"), 0.0),
    "a megabyte of commas": (f"<group>{',' * 1_000_000}</group>", 0.0),
}


@pytest.mark.parametrize(("completion", "value"), PAID.values(), ids=PAID)
def test_what_is_paid(completion, value):
    paid = reward(completion, PUZZLE)
    assert paid.value == pytest.approx(value)
    assert paid.solved == (value == 1.0)


def puzzle(number):
    """A row whose words carry a number."""
    groups = [[f"{word} {number}" for word in group] for group in GROUPS]
    return {
        "id": number,
        "words": list(chain(*groups)),
        "groups": [{"group": "?", "members": group} for group in groups],
    }


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_words_are_shown_in_an_order_of_the_puzzles_own(tmp_path):
    rows = [puzzle(number) for number in range(40)]
    turned = [{**row, "words": row["words"][::-1], "groups": row["groups"][::-1]} for row in rows[::-1]]
    first = load_task("connections", None, write(tmp_path / "rows.jsonl", rows)).dataset
    other = load_task("connections", None, write(tmp_path / "turned.jsonl", turned)).dataset
    assert [e.prompt for e in first.train] == [e.prompt for e in other.train]
    assert [e.id for e in first.held_out] == [e.id for e in other.held_out]
    assert {len(first.train) + len(first.held_out)} == {40}
    together = 0
    for example in first.train:
        shown = example.prompt[1]["content"].split("\n")
        groups = [group["members"] for group in example["groups"]]
        assert sorted(shown) == sorted(chain(*groups))
        together += sum(set(shown[i : i + 4]) in map(set, groups) for i in (0, 4, 8, 12))
    assert together <= 2  # chance: 4 * 4 / 1820 for each puzzle


def test_the_true_groups_of_every_row_are_paid_in_full_in_each_form_of_the_data(tmp_path):
    rows = [puzzle(number) for number in range(10)]
    rows += [
        {"words": row["words"], "answers": [{"words": group["members"]} for group in row["groups"]]}
        for row in map(puzzle, range(10, 20))
    ]
    rows += [{"id": row["id"], "date": "2024-01-01", "answers": row["groups"]} for row in map(puzzle, range(20, 30))]
    dataset = load_task("connections", None, write(tmp_path / "rows.jsonl", rows)).dataset
    examples = [*dataset.train, *dataset.held_out]
    assert len(examples) == 30
    assert all(reward(written(g["members"] for g in example["groups"]), example).solved for example in examples)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"words": WORDS[:15]}, "16 different words in 4 groups of 4, got 15 words, 15 of them different"),
        ({"groups": [{"members": group} for group in GROUPS[:3]]}, "groups of 4, 4, 4"),
        ({"groups": None}, "a puzzle needs `groups` or `answers`"),
    ],
)
def test_a_row_that_is_no_puzzle_is_refused(tmp_path, change, said):
    row = {"words": WORDS, "groups": [{"members": group} for group in GROUPS], **change}
    with pytest.raises(UserError, match=f"row 19 of .*{said}"):
        path = write(tmp_path / "rows.jsonl", [*map(puzzle, range(18)), row])
        load_task("connections", None, path).dataset.sizes()
