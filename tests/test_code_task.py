"""The task `code`: what programs are paid, hostile ones first; how values cross; rows, splits, modes."""

import itertools
import json
import math
import operator
from collections import Counter, deque, namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks import code, load_task
from minrl.tasks.code import CodeOptions, extract_program, reward_for_running, reward_for_tests
from minrl.tasks.code_judge import from_json, to_json
from minrl.tasks.data import identity
from tests.hostile.cases import SMALLEST

OPTIONS = CodeOptions(timeout_s=60.0, memory_mib=256)
ENDLESS = CodeOptions(timeout_s=0.3, memory_mib=256)
"""For programs that wait to be stopped."""


def mbpp(reference, *tests, setup="", number=600):
    return {"task_id": number, "text": "?", "code": reference, "test_setup_code": setup, "test_list": list(tests)}


def paid(program, row=SMALLEST, options=OPTIONS):
    return reward_for_tests(f"```python\n{program}\n```", Example("", "", row), options)


def test_a_program_that_passes_everything_is_paid_in_full():
    reward = paid(SMALLEST["code"])
    assert reward.solved
    assert reward.parts == {"tests": 1.0, "all": 1.0, "loads": 1.0}


def test_each_hidden_assert_counts_and_the_shown_one_only_for_the_whole():
    assert paid("def smallest(a, b): return a").value == 0.5  # 1, not 3, -1: one of the two hidden ones
    shown_fails = "def smallest(a, b): return min(a, b) if (a, b) != (1, 2) else 7"
    assert paid(shown_fails).value == pytest.approx(2 / 3)  # both hidden ones, and not the shown one
    assert paid("def smallest(a, b): return 1").value == 0.0  # the shown one alone


def test_a_program_that_ends_well_after_its_definitions_has_loaded():
    assert paid(f"{SMALLEST['code']}\nexit()").solved


BEYOND = {
    "a method of a variable": ("class A:\n    def f(self): return 1", "a = A()\nassert a.f() == 1"),
    "a constant of a class": ("class A: pass", "assert A.x == 1"),
    "a kind": ("class A: pass\ndef f(): return A()", "assert isinstance(f(), A)"),
    "an exception": ("class A(Exception): pass\ndef f(): raise A", "try:\n    f()\nexcept A:\n    pass\nassert f"),
    "a function that is given": ("def f(g): return g(1)", "assert f(lambda x: x) == 1"),
    "a function that is returned": ("def f(): return len", "assert f()('a') == 1"),
}


def test_rows_whose_tests_need_more_than_data_are_left_out_and_counted(tmp_path, said):
    wrong = [mbpp(code, *[test] * 2, number=number) for number, (code, test) in enumerate(BEYOND.values())]
    path = rows_file(tmp_path, *wrong, *numbered_rows(range(100, 240)))
    dataset = load_task("code", data_path=path).dataset
    assert len(dataset.train) + len(dataset.held_out) == 140
    assert f"{len(BEYOND)} of 146 rows left out: row 1: its tests call a method of a" in said[0]


HUMANEVAL = {
    "task_id": "HumanEval/900",
    "prompt": 'import math\n\ndef near(a, b):\n    return abs(a - b) < 1e-6\n\n\ndef half(x):\n    """Half of x."""\n',
    "entry_point": "half",
    "canonical_solution": "    return x / 2\n",
    "test": """
METADATA = {}

def check(candidate):
    assert True, "no test"
    assert candidate(4) == 2
    for x in range(5):
        assert near(candidate(x), x / 2)
    assert math.isclose(candidate(3), 1.5), "three"
""",
}


def test_rows_like_humanevals_take_the_rest_of_a_program_or_all_of_it():
    example = Example("", "", HUMANEVAL)
    for completion in (
        HUMANEVAL["canonical_solution"],
        f"```python\n{HUMANEVAL['prompt']}{HUMANEVAL['canonical_solution']}```",
        "Here:\n```python\ndef half(x):\n    return x * 0.5\n```",
        f"```python\nfrom __future__ import annotations\n{HUMANEVAL['prompt']}{HUMANEVAL['canonical_solution']}```",
    ):
        assert reward_for_tests(completion, example, OPTIONS).solved


def test_asserts_of_a_check_function_count_one_by_one_and_in_loops_each_time():
    # right for 4, not for 1 in the loop, not for 3
    assert paid("def half(x): return x // 2", HUMANEVAL).value == pytest.approx(1 / 3)
    for worthless in (
        "    pass",
        "def near(a, b): return True\ndef half(x): return 0.1",
        "del half",
    ):
        assert paid(worthless, HUMANEVAL).value == 0.0


def test_weights_compose_the_parts():
    half = paid("def smallest(a, b): return a", options=CodeOptions(tests_weight=1.0, all_weight=3.0))
    assert half.value == 0.125  # (1 x 0.5 + 3 x 0) / 4


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("x = 1", "x = 1"),
        ("<think>\n```python\nnever closed\n</think>\n```python\nx\n```", "x\n"),
        ("```python\na\n```\n```python\nb\n```\ndone", "b\n"),
        ("```python\na\n```\n```text\nb\n```", "a\n"),
        ("```python\nnever closed", "never closed"),
        ("1. Code:\n\n   ```python\n   def f():\n       return 1\n   ```\nDone.", "def f():\n    return 1\n"),
        ("~~~python\na\n~~~\ndone", "a\n"),
        ("```python\n  ```\na\n```", "  ```\na\n"),
        ("say `x` and ```python\na```", "say `x` and ```python\na```"),
    ],
)
def test_the_program_is_the_last_python_block(completion, program):
    assert extract_program(completion) == program


Point = namedtuple("Point", "x y")
PLAIN = [
    None, True, 0, -1, 10**400, 1.5, -0.0, math.inf, 1e300, 2j, complex(math.inf, 0), "a", "\ud800", "\u2028", b"\xff",
    [], [1, [2]], (1,), {1: "a", (1, 2): [3]}, {"a"}, frozenset({(1,)}), {"list": ["object", 3]}, ["named", "int"],
]  # fmt: skip


def test_plain_values_cross_unchanged():
    for value in PLAIN:
        data = json.loads(json.dumps(to_json(value, pytest.fail)))
        back = from_json(data, pytest.fail)
        assert back == value and type(back) is type(value) and repr(back) == repr(value)


def test_what_is_equal_to_a_plain_value_crosses_as_one_and_nothing_else_does():
    for value, plain in (
        (Point(1, 2), (1, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (range(1, 10**400, 2), range(1, 10**400, 2)),
        (Fraction(-1, 3), Fraction(-1, 3)),
        (Decimal("1.50"), Decimal("1.5")),
        (deque([1, (2,)], maxlen=5), deque([1, (2,)])),
        (date(2020, 2, 29), date(2020, 2, 29)),
        (datetime(2020, 1, 1, 2, 3, 4, 5), datetime(2020, 1, 1, 2, 3, 4, 5)),
        (timedelta(-1, 2, 3), timedelta(-1, 2, 3)),
        ([len, math.sqrt, operator.add, KeyError], [len, math.sqrt, operator.add, KeyError]),
    ):
        back = from_json(json.loads(json.dumps(to_json(value, pytest.fail))), pytest.fail)
        assert back == plain and type(back) is type(plain)
    for value in (
        object(),
        type("E", (int,), {"__eq__": lambda self, other: True})(1),
        type("Fraction", (Fraction,), {"__eq__": lambda self, other: True})(1),
        print,
        object,
    ):
        assert to_json(value, lambda _: 7) == 7
    for value in (itertools.count(), datetime(2020, 1, 1, tzinfo=UTC)):
        with pytest.raises(TypeError, match="cannot cross"):
            to_json(value, pytest.fail)
    assert list(from_json(to_json(map(abs, [-1]), pytest.fail), pytest.fail)) == [1]
    assert math.isnan(from_json(to_json(math.nan, pytest.fail), pytest.fail))


@pytest.mark.parametrize(
    "data",
    [
        [], ["passed", 0], ["int", "zz"], ["float", "7"], ["dict", [1]], ["set", ["list"]], ["object", 1, {}, None],
        {"a": 1}, ["eval"], ["built", "range", 1, 2, 0], ["named", "object"], ["built", "Fraction", 1, 0],
        ["built", "E"], ["bytes", 10**9],
    ],
    ids=repr,
)  # fmt: skip
def test_malformed_values_are_refused(data):
    with pytest.raises((ValueError, TypeError, ArithmeticError)):
        from_json(data, lambda *_: 7)


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("print(1)", 1.0),
        ("x = 1", 0.5),
        ("This is no program.", -0.5),
        ("# nothing\n\n", -0.5),
        ("print(1); raise ValueError", -1.0),
        ("raise SyntaxError", -1.0),
        ("print(1); exit()", 1.0),
        ("print(1); exit(2)", -1.0),
        ("print(1, flush=True)\nwhile True: pass", -1.0),
    ],
)
def test_without_tests_a_program_is_paid_for_running(program, value):
    options = ENDLESS if "while" in program else OPTIONS
    reward = reward_for_running(f"```python\n{program}\n```", Example("", "", {}), options)
    assert reward.value == value and sum(reward.parts.values()) == 1
    assert reward.solved == (value == 1)


def rows_file(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def numbered_rows(ids, text="Problem {}."):
    return [{**SMALLEST, "task_id": number, "text": text.format(number)} for number in ids]


def test_mbpps_problems_11_to_510_are_held_out(tmp_path, monkeypatch):
    rows = numbered_rows([1, 10, *range(11, 21), 300, 510, 511, 974])
    monkeypatch.setattr(code, "MBPP_PROBE", {row["task_id"]: identity(row["text"]) for row in rows[2:12]})
    dataset = load_task("code", data_path=rows_file(tmp_path, *rows)).dataset
    assert [example.id for example in dataset.train] == ["1", "10", "511", "974"]
    assert [example.id for example in dataset.held_out] == [*map(str, range(11, 21)), "300", "510"]


def test_sanitized_rows_are_those_of_mbpp(tmp_path):
    keys = {"source_file": "x", "test_imports": ["import math"], "prompt": "Root."}
    row = {**keys, "task_id": 600, "code": "def root(x): return math.sqrt(x)"}
    row["test_list"] = ["assert root(4) == 2", "assert root(9) == math.sqrt(9)"]
    others = [{**row, "task_id": number, "prompt": f"Root {number}."} for number in range(40)]
    dataset = load_task("code", data_path=rows_file(tmp_path, *others)).dataset
    assert len(dataset.train) + len(dataset.held_out) == 40
    assert "Root" in dataset.train[0].prompt[-1]["content"]
    assert paid("import math\n" + row["code"], row).solved and paid("def root(x): return 3", row).value == 0.5


@pytest.mark.parametrize("ids", [range(1, 200), [f"mine-{n}" for n in range(199)]])
def test_other_rows_of_mbpps_shape_are_split_by_their_texts_and_that_is_said(tmp_path, ids, said):
    # With a share of 0.2 the number held out of 199 has mean 40 and standard deviation 5.7.
    dataset = load_task("code", data_path=rows_file(tmp_path, *numbered_rows(ids))).dataset
    assert 15 < len(dataset.held_out) < 65 and len(dataset.train) + len(dataset.held_out) == 199
    (line,) = said
    assert "none of its tasks 11 to 20: 20% of its problems are held out, by a hash of their texts" in line


def test_one_text_under_several_ids_is_on_one_side(tmp_path):
    rows = [row for text in map("Text {}.".format, range(30)) for row in numbered_rows(range(2), text)]
    rows = [{**row, "task_id": number, "text": f" {row['text']}"[number % 2 :]} for number, row in enumerate(rows)]
    dataset = load_task("code", data_path=rows_file(tmp_path, *rows)).dataset
    sides = [{example["text"].strip() for example in side} for side in (dataset.train, dataset.held_out)]
    assert not sides[0] & sides[1] and all(sides)
    assert len(dataset.train) == 2 * len(sides[0]) and len(dataset.held_out) == 2 * len(sides[1])


def test_an_id_with_two_texts_is_refused_and_a_row_that_comes_twice_counts_once(tmp_path):
    rows = numbered_rows(range(40))
    dataset = load_task("code", data_path=rows_file(tmp_path, *rows, rows[3])).dataset
    assert len(dataset.train) + len(dataset.held_out) == 40
    with pytest.raises(UserError, match=r"has the task_id '3' twice, with different texts"):
        load_task("code", data_path=rows_file(tmp_path, *rows, {**rows[3], "text": "Another."})).dataset.sizes()


def test_the_prompt_shows_the_first_assert_and_no_other(tmp_path):
    path = rows_file(tmp_path, *numbered_rows(range(40)))
    prompt = json.dumps(load_task("code", data_path=path).dataset.train[0].prompt)
    assert "smallest(1, 2) == 1" in prompt
    assert "smallest(5, 3)" not in prompt and "return" not in prompt


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"task_id": 1, "text": "?"}, "row 1 of .*: lacks code, test_setup_code, test_list"),
        ({**SMALLEST, "test_list": ["assert smallest(1, 2) =="]}, "tests that are no Python"),
        ({**SMALLEST, "test_list": ["assert smallest(1, 2) == 1"]}, "needs another assert"),
        ({**SMALLEST, "test_list": ["assert other(1) == 1"] * 3}, "on what its reference defines"),
    ],
)
def test_rows_that_cannot_be_scored_are_refused_in_one_line(tmp_path, row, message):
    with pytest.raises(UserError, match=message) as error:
        _ = load_task("code", data_path=rows_file(tmp_path, row)).dataset.train
    assert "\n" not in str(error.value)
