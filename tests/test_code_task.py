"""The task `code`: what programs are paid by tests, which values cross, which rows count and which are held out."""

import json
import math
from collections import Counter, OrderedDict, namedtuple
from itertools import pairwise

import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks import code, load_task
from minrl.tasks.code import CodeOptions, extract_program
from minrl.tasks.code_judge import packed, unpacked
from minrl.tasks.data import identity
from tests.hostile.cases import SMALLEST, SWALLOWED, humaneval

OPTIONS = CodeOptions(timeout_s=60.0, memory_mib=256)


def paid(program, row=SMALLEST, options=OPTIONS):
    return code.reward(f"```python\n{program}\n```", Example("", "", row), options)


def test_a_program_that_passes_everything_is_paid_in_full():
    reward = paid(SMALLEST["code"])
    assert reward.solved and paid(f"{SMALLEST['code']}\nexit()").solved
    assert reward.parts == {"tests": 1.0, "all": 1.0, "loads": 1.0}


def test_each_hidden_assert_counts_and_the_shown_one_only_for_the_whole():
    assert paid("def smallest(a, b): return a").value == 0.5  # 1, not 3, -1: one of the two hidden ones
    shown_fails = "def smallest(a, b): return min(a, b) if (a, b) != (1, 2) else 7"
    assert paid(shown_fails).value == pytest.approx(2 / 3)  # both hidden ones, and not the shown one
    assert paid("def smallest(a, b): return 1").value == 0.0  # the shown one alone


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
    ):
        assert code.reward(completion, example, OPTIONS).solved


def test_statements_of_a_check_function_that_test_count_one_by_one():
    # right for 4, not for 1 in the loop, not for 3
    assert paid("def half(x): return x // 2", HUMANEVAL).value == pytest.approx(1 / 3)
    for worthless in (
        "    pass",
        "def near(a, b): return True\ndef half(x): return 0.1",
        "del half",
    ):
        assert paid(worthless, HUMANEVAL).value == 0.0


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


@pytest.mark.parametrize("data", [[], ["passed", 0], ["dict", [1]], ["set", ["list"]], ["object", "A", {}], {"a": 1}])
def test_malformed_values_are_refused(data):
    with pytest.raises((ValueError, TypeError)):
        unpacked(data)


def rows_file(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_mbpps_problems_11_to_510_are_held_out_in_any_part_of_it(tmp_path, monkeypatch):
    assert all(int(a) + 100 < int(b) for a, b in pairwise(code.MBPP_PROBE))  # so that a part has one of them
    rows = [{**SMALLEST, "task_id": n, "text": f"Problem {n}."} for n in (1, 10, 11, 300, 510, 511, 800, 974)]
    monkeypatch.setattr(code, "MBPP_PROBE", {"800": identity(rows[6]["text"])})
    dataset = load_task("code", data_path=rows_file(tmp_path, *rows)).dataset
    assert [example.id for example in dataset.train] == ["1", "10", "511", "800", "974"]
    assert [example.id for example in dataset.held_out] == ["11", "300", "510"]


def test_humaneval_is_held_out_and_other_rows_of_its_shape_by_their_share(tmp_path):
    rows = [{**HUMANEVAL, "task_id": f"{{}}/{n}", "prompt": f"# {n}\n{HUMANEVAL['prompt']}"} for n in range(60)]

    def sides(name, **options):
        path = rows_file(tmp_path, *({**row, "task_id": row["task_id"].format(name)} for row in rows))
        dataset = load_task("code", {"code": CodeOptions(**options)}, path).dataset
        return len(dataset.train), len(dataset.held_out)

    assert sides("HumanEval") == sides("Mine", held_out_share=1) == (0, 60)
    assert 3 <= sides("Mine")[1] <= 25  # of 60 with a share of 0.2: mean 12, standard deviation 3.1


def test_sanitized_rows_are_those_of_mbpp(tmp_path):
    keys = {"source_file": "x", "test_imports": ["import math"], "prompt": "Root."}
    row = {**keys, "task_id": 600, "code": "def root(x): return math.sqrt(x)"}
    row["test_list"] = ["assert root(4) == 2", "assert root(9) == math.sqrt(9)"]
    others = [{**row, "task_id": number, "prompt": f"Root {number}."} for number in range(40)]
    dataset = load_task("code", data_path=rows_file(tmp_path, *others)).dataset
    assert len(dataset.train) + len(dataset.held_out) == 40
    assert "Root" in dataset.train[0].prompt[-1]["content"]
    assert paid("import math\n" + row["code"], row).solved and paid("def root(x): return 3", row).value == 0.5


def test_a_file_is_the_prompt_and_has_the_question_in_its_place(tmp_path):
    (tmp_path / "plain.prompt").write_text("Q: {problem}\nA:\n")
    options = CodeOptions(prompt=str(tmp_path / "plain.prompt"), held_out_share=1.0)
    row = {**SMALLEST, "text": "Find the smaller one."}
    (example,) = load_task("code", {"code": options}, rows_file(tmp_path, row)).dataset.held_out
    assert example.prompt.startswith("Q: Find the smaller one.\n\nIt must pass this test:")
    assert example.prompt.endswith("```\nA:") and "smallest(1, 2) == 1" in example.prompt
    assert "smallest(5, 3)" not in example.prompt and "return" not in example.prompt  # the hidden ones, the reference


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**SMALLEST, "test_list": ["assert smallest(1, 2) =="]}, "tests that are no Python"),
        ({**SMALLEST, "test_list": ["assert smallest(1, 2) == 1"]}, "needs another test than"),
        ({**SMALLEST, "test_list": ["assert other(1) == 1"] * 3}, "of what its reference defines"),
        (humaneval(SWALLOWED["try"]), "in `try` or `with`"),
        (humaneval("assert half(lambda: 2) == 1"), "gives the program a function"),
    ],
)
def test_rows_that_cannot_be_scored_are_refused_in_one_line(tmp_path, row, message):
    with pytest.raises(UserError, match=message) as error:
        _ = load_task("code", data_path=rows_file(tmp_path, row)).dataset.train
    assert "\n" not in str(error.value)
