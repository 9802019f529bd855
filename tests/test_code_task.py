"""The task `code`: what programs are paid by tests, which values cross, which rows count and which are held out."""

import json
import math
from collections import Counter, OrderedDict, namedtuple
from itertools import pairwise

import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks import code, load_task
from minrl.tasks.code import CodeOptions
from minrl.tasks.code_judge import packed, unpacked
from minrl.tasks.data import identity
from tests.hostile.cases import SMALLEST, humaneval
from tests.hostile.playing import share_in_a_thread
from tests.runs import write_rows

OPTIONS = CodeOptions(timeout_s=60.0, memory_mib=256)


def paid(program, row=SMALLEST, options=OPTIONS):
    return code.reward(f"```python\n{program}\n```", Example("", "", row), options)


def test_each_hidden_assert_counts_and_the_shown_one_only_for_the_whole():
    whole = paid(f"{SMALLEST['code']}\nexit()")
    assert whole.solved and whole.parts == {"tests": 1.0, "all": 1.0, "loads": 1.0}
    assert paid("def smallest(a, b): return a").value == 0.5  # 1, not 3, -1: one of the two hidden ones
    shown_fails = "def smallest(a, b): return min(a, b) if (a, b) != (1, 2) else 7"
    assert paid(shown_fails).value == pytest.approx(2 / 3)  # both hidden ones, and not the shown one
    assert paid("def smallest(a, b): return 1").value == 0.0  # the shown one alone


CHECK = "for x in range(5):\n    assert near(half(x), x / 2)\nassert half(4) == 2\nassert math.isclose(half(3), 1.5)"
HUMANEVAL = {
    **humaneval(CHECK),
    "prompt": 'import math\n\ndef near(a, b):\n    return abs(a - b) < 1e-6\n\n\ndef half(x):\n    """Half of x."""\n',
}


def test_rows_like_humanevals_take_the_rest_of_a_program_or_all_of_it():
    example = Example("", "", HUMANEVAL)
    for completion in (HUMANEVAL["canonical_solution"], "Here:\n```python\ndef half(x):\n    return x * 0.5\n```"):
        assert code.reward(completion, example, OPTIONS).solved


def test_statements_of_a_check_function_that_test_count_one_by_one():
    # right for 4, not for 1 in the loop, not for 3
    assert share_in_a_thread("def half(x): return x // 2", HUMANEVAL) == pytest.approx(1 / 3)
    assert share_in_a_thread("def near(a, b): return True\ndef half(x): return 0.1", HUMANEVAL) == 0.0


Point = namedtuple("Point", "x y")
PLAIN = [
    None, True, 0, -1, 10**4000, 1.5, -0.0, math.inf, 2j, complex(math.inf, 0), "a", "\ud800", "\u2028",
    [], [1, [2]], (1,), {1: "a", (1, 2): [3]}, {"a"}, frozenset({(1,)}), {"list": ["object", 3]}, ["type", "int"], int,
]  # fmt: skip


def crossed(value):
    return unpacked(json.loads(json.dumps(packed(value))))


def test_plain_values_cross_unchanged_and_their_subclasses_as_what_they_are():
    for value in PLAIN:
        assert crossed(value) == value and type(crossed(value)) is type(value), value
    for value, plain in ((Point(1, 2), (1, 2)), (Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(a=1), {"a": 1})):
        assert crossed(value) == plain and type(crossed(value)) is type(plain)
    assert math.isnan(crossed(math.nan))
    for value in (object(), len, Point, range(3), b"a", type("E", (int,), {"__eq__": lambda *_: True})(1)):
        with pytest.raises(TypeError, match="cannot cross"):
            packed(value)


def loaded(tmp_path, *rows, **options):
    path = str(write_rows(tmp_path / "rows.jsonl", *rows))
    return load_task("code", {"code": CodeOptions(**options)}, path).dataset


def test_mbpps_problems_11_to_510_are_held_out_in_any_part_of_it(tmp_path, monkeypatch):
    assert all(int(a) + 100 < int(b) for a, b in pairwise(code.MBPP_PROBE))  # so that a part has one of them
    rows = [{**SMALLEST, "task_id": n, "text": f"Problem {n}."} for n in (1, 10, 11, 300, 510, 511, 800, 974)]
    monkeypatch.setattr(code, "MBPP_PROBE", {"800": identity(rows[6]["text"])})
    dataset = loaded(tmp_path, *rows)
    assert [example.id for example in dataset.train] == ["1", "10", "511", "800", "974"]
    assert [example.id for example in dataset.held_out] == ["11", "300", "510"]


def test_humaneval_is_held_out_and_other_rows_of_its_shape_by_their_share(tmp_path):
    for name, least, most in (("HumanEval", 60, 60), ("Mine", 3, 25)):  # 0.2 of 60: mean 12, standard deviation 3.1
        rows = [{**HUMANEVAL, "task_id": f"{name}/{n}", "prompt": f"# {n}\n{HUMANEVAL['prompt']}"} for n in range(60)]
        train, held_out = loaded(tmp_path, *rows).sizes()
        assert least <= held_out <= most and train + held_out == 60


def test_sanitized_rows_are_those_of_mbpp_and_a_prompt_shows_the_first_test_alone(tmp_path):
    row = {"source_file": "x", "test_imports": ["import math"], "prompt": "Root.", "task_id": 600}
    row |= {"code": "def root(x): return math.sqrt(x)", "test_list": ["assert root(4) == 2", "assert root(9) == 3"]}
    (tmp_path / "plain.prompt").write_text("Q: {problem}\nA:\n")
    (example,) = loaded(tmp_path, row, prompt=str(tmp_path / "plain.prompt"), held_out_share=1.0).held_out
    assert example.prompt == "Q: Root.\n\nIt must pass this test:\n\n```python\nassert root(4) == 2\n```\nA:"
    assert share_in_a_thread(f"import math\n{row['code']}", row) == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**SMALLEST, "test_list": ["assert smallest(1, 2) == 1"]}, "needs another test than"),
        (humaneval("try:\n    assert half(2) == 1\nexcept Exception:\n    pass"), "in `try` or `with`"),
        (humaneval("assert half(lambda: 2) == 1"), "gives the program a function"),
    ],
)
def test_rows_that_cannot_be_scored_are_refused_in_one_line(tmp_path, row, message):
    with pytest.raises(UserError, match=message) as error:
        _ = loaded(tmp_path, row).train
    assert "\n" not in str(error.value)
