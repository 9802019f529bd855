"""Connections: which rows are puzzles, and how they are shown. `answers.py` has what is paid."""

from itertools import chain

import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks import load_task
from minrl.tasks.connections import ConnectionsOptions, reward
from tests.runs import write_rows

GROUPS = [
    ["MAPLE", "OAK", "ELM", "PINE"],
    ["BASS", "TROUT", "PIKE", "SOLE"],
    ["JAB", "HOOK", "RIGHT CROSS", "20,000"],
    ["HEEL", "LACE", "TONGUE", "Eyelet"],
]


def written(groups):
    return "\n".join(f"<group>{', '.join(group)}</group>" for group in groups)


def puzzle(number):
    """A row whose words carry a number."""
    groups = [[f"{word} {number}" for word in group] for group in GROUPS]
    return {
        "id": number,
        "words": list(chain(*groups)),
        "groups": [{"group": "?", "members": group} for group in groups],
    }


def loaded(path, rows, **options):
    path = str(write_rows(path, *rows))
    return load_task("connections", {"connections": ConnectionsOptions(data_path=path, **options)}).dataset


def test_words_are_shown_in_an_order_that_tells_nothing_of_the_groups(tmp_path):
    rows = [puzzle(number) for number in range(40)]
    turned = [{**row, "words": row["words"][::-1], "groups": row["groups"][::-1]} for row in rows[::-1]]
    first, other = loaded(tmp_path / "a.jsonl", rows).train, loaded(tmp_path / "b.jsonl", turned).train
    assert [example.prompt for example in first] == [example.prompt for example in other]
    together = 0
    for example in first:
        shown, groups = example.prompt[1]["content"].split("\n"), [set(group["members"]) for group in example["groups"]]
        together += sum(set(shown[i : i + 4]) in groups for i in (0, 4, 8, 12))
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
    dataset = loaded(tmp_path / "rows.jsonl", map(FORMS[form], map(puzzle, range(10))))
    examples = [*dataset.train, *dataset.held_out]
    assert len(examples) == 10
    assert all(reward(written(g["members"] for g in example["groups"]), example).solved for example in examples)


def test_another_puzzle_is_shown_with_its_answer_if_asked_for(tmp_path):
    shown = loaded(tmp_path / "rows.jsonl", map(puzzle, range(10)), example=True).train[0].prompt
    words, answer = shown[1]["content"].split("\n"), shown[2]["content"]
    groups = [{"members": line[7:-8].split(", ")} for line in answer.split("\n")]
    assert len(shown) == 4 and sorted(words) == sorted(chain(*(group["members"] for group in groups)))
    assert reward(answer, Example("", "", {"groups": groups})).solved


def puzzles(path, rows, **options):
    """The training and the held-out puzzles, each as its groups."""
    dataset = loaded(path, rows, held_out_share=0.3, **options)
    return [
        {frozenset(frozenset(group["members"]) for group in example["groups"]) for example in side}
        for side in (dataset.train, dataset.held_out)
    ]


def test_puzzles_combine_groups_of_generated_rows_some_of_which_are_held_out(tmp_path):
    path, published = tmp_path / "rows.jsonl", list(map(puzzle, range(20, 40)))
    generated = [FORMS["generated"](puzzle(number)) for number in range(20)]
    rows, whole = (set.union(*puzzles(path, part)) for part in (published, generated))
    trained, held_out = puzzles(path, [*generated, *published], combinations=50)
    made = [trained - rows, held_out - rows]
    assert list(map(len, made)) == [35, 15] and len(rows & trained) + len(rows & held_out) == 20
    used, held = ({group for groups in side for group in groups} for side in made)
    assert used | held <= {group for groups in whole for group in groups} and not used & held
    assert not whole & (made[0] | made[1])  # by chance: 20 of 80 choose 4
    assert {len(frozenset.union(*groups)) for side in made for groups in side} == {16}
    with pytest.raises(UserError, match=r"connections.combinations: \d+ groups on one side .* make \d+ puzzles"):
        puzzles(path, generated[:2], combinations=100)


def test_a_row_that_is_no_puzzle_is_refused(tmp_path):
    row = {"groups": [{"members": group} for group in GROUPS[:3]]}
    said = r"row 19: .*4 groups of 4 different words, got 12 in groups of \[4, 4, 4\]"
    with pytest.raises(UserError, match=said):
        loaded(tmp_path / "rows.jsonl", [*map(puzzle, range(18)), row]).sizes()
