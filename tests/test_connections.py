"""Connections: how words are listed, and which rows are puzzles. `answers.py` has what is paid."""

import json
from itertools import chain

import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks import load_task
from minrl.tasks.connections import ConnectionsOptions, members_of, reward

GROUPS = [
    ["MAPLE", "OAK", "ELM", "PINE"],
    ["BASS", "TROUT", "PIKE", "SOLE"],
    ["JAB", "HOOK", "RIGHT CROSS", "20,000"],
    ["HEEL", "LACE", "TONGUE", "Eyelet"],
]


def written(groups):
    return "\n".join(f"<group>{', '.join(group)}</group>" for group in groups)


@pytest.mark.parametrize(
    ("content", "members"),
    [
        *((text, "abcd") for text in ("a; b; c; d", "a\nb\nc\nd", "a,\nb,\nc,\nd\n", "[a, b, c, d]", "a, b, c, and d")),
        *((text, "abcd") for text in ("- a\n- b\n- c\n- d", "1. a\n2. b\n3. c\n4. d", "a b c d")),
        ("a, b, c, p and q", ["a", "b", "c", "p and q"]),  # a word as it is
        *(
            (text, [])
            for text in ("a, b, c, x", "a, b, c, d and others", "topic: a, b, c, d", f"a, b, c, d{' ' * 1000}")
        ),
        *((text, text.split(", ")) for text in ("a, b, c", "a, b, c, d, p and q")),  # the caller counts
    ],
)
def test_the_words_of_a_group_may_be_listed_in_several_ways(content, members):
    assert members_of(content, frozenset(["a", "b", "c", "d", "p and q"])) == list(members)


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


def loaded(path, **options):
    return load_task("connections", {"connections": ConnectionsOptions(data_path=path, **options)}).dataset


def test_words_are_shown_in_an_order_of_the_puzzles_own(tmp_path):
    rows = [puzzle(number) for number in range(40)]
    turned = [{**row, "words": row["words"][::-1], "groups": row["groups"][::-1]} for row in rows[::-1]]
    first, other = loaded(write(tmp_path / "a.jsonl", rows)), loaded(write(tmp_path / "b.jsonl", turned))
    assert [e.prompt for e in first.train] == [e.prompt for e in other.train]
    together = 0
    for example in first.train:
        shown, groups = example.prompt[1]["content"].split("\n"), [group["members"] for group in example["groups"]]
        assert sorted(shown) == sorted(chain(*groups))
        together += sum(set(shown[i : i + 4]) in map(set, groups) for i in (0, 4, 8, 12))
    assert together <= 2  # chance: 4 * 4 / 1820 for each puzzle


FORMS = {
    "groups": lambda row: row,
    "answers": lambda row: {"answers": [{"words": group["members"]} for group in row["groups"]]},
    "archives": lambda row: {"id": row["id"], "date": "2024-01-01", "answers": row["groups"]},
    "generated": lambda row: {
        "words": row["words"],
        "solution": {"groups": [{"reason": "?", "words": group["members"]} for group in row["groups"]]},
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_the_true_groups_of_every_row_are_paid_in_full_in_each_form_of_the_data(form, tmp_path):
    dataset = loaded(write(tmp_path / "rows.jsonl", map(FORMS[form], map(puzzle, range(10)))))
    examples = [*dataset.train, *dataset.held_out]
    assert len(examples) == 10
    assert all(reward(written(g["members"] for g in example["groups"]), example).solved for example in examples)


def test_another_puzzle_is_shown_with_its_answer_if_asked_for(tmp_path):
    path = write(tmp_path / "rows.jsonl", map(puzzle, range(10)))
    plain, shown = (loaded(path, example=example).train[0].prompt for example in (False, True))
    assert [plain[0], plain[-1]] == [shown[0], shown[-1]] and len(plain) == 2
    words, answer = shown[1]["content"].split("\n"), shown[2]["content"]
    groups = [
        {"members": group.split(", ")} for group in answer.removeprefix("<group>")[:-8].split("</group>\n<group>")
    ]
    assert sorted(words) == sorted(chain(*(group["members"] for group in groups)))
    assert reward(answer, Example("", "", {"groups": groups})).solved


def puzzles(path, **options):
    """The training and the held-out puzzles, each as its groups."""
    dataset = loaded(path, held_out_share=0.3, **options)
    return [
        {frozenset(frozenset(group["members"]) for group in example["groups"]) for example in side}
        for side in (dataset.train, dataset.held_out)
    ]


def test_puzzles_combine_groups_of_generated_rows_some_of_which_are_held_out(tmp_path):
    generated, published = (
        [FORMS["generated"](puzzle(number)) for number in range(20)],
        list(map(puzzle, range(20, 40))),
    )
    trained, held_out = puzzles(write(tmp_path / "rows.jsonl", [*generated, *published]), combinations=50)
    rows = set.union(*puzzles(write(tmp_path / "published.jsonl", published)))
    made = [trained - rows, held_out - rows]
    assert list(map(len, made)) == [35, 15] and len(rows & trained) + len(rows & held_out) == 20
    whole = set.union(*puzzles(write(tmp_path / "generated.jsonl", generated)))
    used, held = ({group for groups in side for group in groups} for side in made)
    assert used | held <= {group for groups in whole for group in groups} and not used & held
    assert not whole & (made[0] | made[1])  # by chance: 20 of 80 choose 4
    assert {len(frozenset.union(*groups)) for side in made for groups in side} == {16}
    turned = puzzles(write(tmp_path / "turned.jsonl", [*published, *generated[::-1]]), combinations=50)
    assert turned == [trained, held_out]


def test_more_puzzles_than_the_groups_make_are_refused(tmp_path):
    path = write(tmp_path / "rows.jsonl", [FORMS["generated"](puzzle(number)) for number in range(2)])
    with pytest.raises(UserError, match=r"connections.combinations: \d+ groups on one side .* make \d+ puzzles"):
        puzzles(path, combinations=100)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (GROUPS[:3], r"4 groups of 4 different words, got 12 in groups of \[4, 4, 4\]"),
        (None, "TypeError"),
    ],
)
def test_a_row_that_is_no_puzzle_is_refused(tmp_path, groups, said):
    row = {"groups": groups and [{"members": group} for group in groups]}
    path = write(tmp_path / "rows.jsonl", [*map(puzzle, range(18)), row])
    with pytest.raises(UserError, match=f"row 19: .*{said}"):
        loaded(path).sizes()
