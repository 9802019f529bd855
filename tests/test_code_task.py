"""The task `code`: what programs are paid, hostile ones first; how values cross; rows, splits, modes."""

import json
import math
import operator
import subprocess
import sys
from collections import Counter, OrderedDict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from time import process_time
from zoneinfo import ZoneInfo

import pytest

from minrl.sandbox import calls as sandbox
from minrl.tasks import code, load_task
from minrl.tasks.code import CodeOptions, extract_program, reward_for_running, reward_for_tests
from minrl.tasks.code.judge import numbered
from minrl.tasks.code.values import Malformed, from_json, to_json
from minrl.tasks.rows import identity
from minrl.types import Example, UserError
from tests.forked import Forked

OPTIONS = CodeOptions(timeout_s=60.0, memory_mib=256)
STRICT = CodeOptions(timeout_s=1.0, memory_mib=256)
ENDLESS = CodeOptions(timeout_s=0.3, memory_mib=256)  # for what ends by itself on no machine
"""For programs that may wait to be stopped. One that passes passes with more time, too."""


def mbpp(reference, *tests, setup="", number=600):
    return {"task_id": number, "text": "?", "code": reference, "test_setup_code": setup, "test_list": list(tests)}


SMALLEST = mbpp(
    "def smallest(a, b):\n    return a if a < b else b",
    "assert smallest(1, 2) == 1",
    "assert smallest(5, 3) == 3",
    "assert smallest(-1, -1) == -1",
)


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


@pytest.mark.parametrize("end", ["exit()", "quit(0)", "import sys; sys.exit()"])
def test_a_program_that_ends_well_after_its_definitions_has_loaded(end):
    assert paid(f"{SMALLEST['code']}\n{end}").solved


THIEF = """
import gc, glob, os, re, sys
found = {}
def look(text):
    for a, b, c in re.findall(r"smallest\\((-?\\d+), (-?\\d+)\\) == (-?\\d+)", text): found[int(a), int(b)] = int(c)
def smallest(a, b):
    frame = sys._getframe()
    while frame:
        look(repr(frame.f_locals) + repr(frame.f_globals)[:100000] + repr(frame.f_code.co_consts))
        frame = frame.f_back
    for thing in gc.get_objects():
        if isinstance(thing, (str, list, dict)):
            try: look(repr(thing)[:100000])
            except Exception: pass
    paths = glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/fd/*")
    paths += glob.glob("**/*", recursive=True) + glob.glob("/tmp/*/*")[:2000] + glob.glob("/proc/[0-9]*/mem")
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            look(os.read(descriptor, 1 << 20).decode(errors="replace"))
            os.close(descriptor)
        except OSError: pass
    return found.get((a, b))
"""

WORTHLESS = {
    "nothing": "",
    "pass": "def smallest(a, b): pass",
    "another name": "def largest(a, b): return min(a, b)",
    "a value instead of a function": "smallest = 1",
    "not python": "def smallest(a, b) return min(a, b)",
    "fails as it loads": "def smallest(a, b): return min(a, b)\nraise ValueError",
    "exits as it loads": "def smallest(a, b): return min(a, b)\nimport sys; sys.exit(1)",
    "os._exit(0) before the tests": "import os; os._exit(0)",
    "os._exit(0) in the first call": "import os\ndef smallest(a, b): os._exit(0)",
    "raises AssertionError": "def smallest(a, b): raise AssertionError",
    "raises StopIteration": "def smallest(a, b): raise StopIteration",
    "raises SystemExit": "def smallest(a, b): raise SystemExit(0)",
    "raises KeyboardInterrupt": "def smallest(a, b): raise KeyboardInterrupt",
    "raises an exception of its own": "class E(BaseException): pass\ndef smallest(a, b): raise E",
    "an infinite loop": "def smallest(a, b):\n    while True: pass",
    "sleeps": "import time\ndef smallest(a, b): time.sleep(60)",
    "recurses": "def smallest(a, b): return smallest(a, b)",
    "a 10 GB answer": "def smallest(a, b): return 'x' * (10 * 2**30)",
    "a 100 MB answer": "def smallest(a, b): return 'x' * (100 * 2**20)",
    "an answer nested without end": "x = []\nx.append(x)\ndef smallest(a, b): return x",
    "an answer nested deeply": "x = 1\nfor _ in range(900): x = [x]\ndef smallest(a, b): return x",
    "equal to everything": "class E:\n    def __eq__(self, other): return True\ndef smallest(a, b): return E()",
    "an integer equal to everything": """
class E(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def smallest(a, b): return E(7)
""",
    "a class equal to everything": """
class M(type):
    def __eq__(self, other): return True
class E(metaclass=M): pass
def smallest(a, b): return E
""",
    "prints a fake verdict": """
print('{"loaded": true, "lost": false, "passed": [0, 1, 2]}', flush=True)
import os
os.write(1, b'{"loaded": true, "lost": false, "passed": [0, 1, 2]}'); os._exit(0)
""",
    "sends a fake verdict": """
import json, os
for message in ["value", True], ["passed", [0, 1, 2]], {"loaded": True, "lost": False, "passed": [0, 1, 2]}:
    data = json.dumps(message).encode()
    os.write(3, len(data).to_bytes(4, "big") + data)
""",
    "answers before it is asked": """
import json, os
data = json.dumps(["value", True]).encode()
for _ in range(50): os.write(3, len(data).to_bytes(4, "big") + data)
""",
    "sends a handle to everything": """
import json, os
for data in (b'["value", ["handle", -1]]',) * 9: os.write(3, len(data).to_bytes(4, "big") + data)
""",
    "announces four gigabytes": "import os\nos.write(3, b'\\xff' * 100000)\nimport time; time.sleep(60)",
    "sends nested brackets": "import os\nd = b'[' * 1000000\nos.write(3, len(d).to_bytes(4, 'big') + d)",
    "sends garbage": "import os\nos.write(3, os.urandom(100000))",
    "closes the channel": "import os\nos.close(3)\ndef smallest(a, b): return min(a, b)",
    "redefines exceptions": "import builtins\nbuiltins.AssertionError = Exception\ndef smallest(a, b): return 0",
    "redefines exit and the rest": """
import builtins, sys, os
for name in ("exit", "quit", "print", "len", "isinstance", "bool", "type", "__import__", "compile", "exec"):
    setattr(builtins, name, lambda *a, **k: True)
sys.exit = os._exit = lambda *a: True
def smallest(a, b): return True
""",
    "redefines the test names": """
def __passed__(n): pass
__failed__ = assert_ = check = __passed__
def smallest(a, b): return __passed__
""",
    "replaces its own harness": """
import sys
from minrl.tasks.code import candidate, values
candidate.Candidate.do = lambda self, request: True
values.to_json = candidate.to_json = lambda value, handle: ["passed", 0, 1, 2]
""",
    "looks for the tests everywhere": THIEF,
    "knows what the prompt shows": "def smallest(a, b): return {(1, 2): 1}.get((a, b))",
    "kills its parent": "import os\nfor p in (os.getppid(), -1, 1):\n try: os.kill(p, 9)\n except OSError: pass",
    "fork bomb": "import os\nwhile True:\n try: os.fork()\n except OSError: pass",
    "closes every descriptor": "import os\nos.closerange(0, 256)\ndef smallest(a, b): return min(a, b)",
    "null bytes": "\0",
    "lone surrogate": "'\ud800'",
    "nested parentheses": "(" * 100_000 + ")" * 100_000,
}


QUICK = {
    "an infinite loop",
    "a 100 MB answer",
    "an answer nested without end",
    "equal to everything",
    "prints a fake verdict",
    "sends a fake verdict",
    "answers before it is asked",
    "closes the channel",
    "redefines exceptions",
    "replaces its own harness",
    "looks for the tests everywhere",
    "fork bomb",
}
"""One of each kind. The others are tried in the slow set, as each takes a sandbox of its own."""


@pytest.mark.parametrize(
    "program",
    [pytest.param(text, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name, text in WORTHLESS.items()],
)
def test_a_program_that_does_not_solve_it_is_paid_nothing(program):
    assert paid(program, options=ENDLESS if "while True" in program else STRICT).value == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["looks for the tests everywhere", "equal to everything", "sends a fake verdict"])
@pytest.mark.parametrize("level", sandbox.LEVELS)
def test_at_every_level_nothing_passes_that_should_not(level, name, monkeypatch):
    if sandbox._unavailable(level):
        pytest.skip(f"this machine does not give {level}")
    monkeypatch.setattr(sandbox, "level", lambda: level)
    assert paid(WORTHLESS[name], options=STRICT).value == 0.0
    assert paid(SMALLEST["code"]).solved


def test_the_processors_time_decides_before_the_clock_does():
    limits = CodeOptions(timeout_s=7.0).limits
    assert (limits.cpu_s, limits.wall_s) == (7.0, 14.0)


def test_printing_and_noise_cost_nothing():
    noisy = (
        "import sys\nprint('x' * 10**6, file=sys.stderr)\ndef smallest(a, b):\n print('x' * 10**6); return min(a, b)"
    )
    assert paid(noisy).solved


def test_a_test_compares_by_pythons_own_functions_and_modules():
    row = mbpp(
        "import math\ndef root(x): return math.sqrt(x)",
        "assert root(4) == 2",
        "assert abs(root(2) - 1.41421356) < 1e-6",
        "assert math.isclose(root(9), 3) and sorted([root(1), root(0)]) == [0, 1]",
    )
    assert paid(row["code"], row).solved
    cheat = """
class math:
    isclose = staticmethod(lambda *a: True)
def abs(x): return 0
def sorted(x): return [0, 1]
def root(x): return 5.0
"""
    assert paid(cheat, row).value == 0.0


def test_a_function_named_like_one_of_pythons_is_the_programs_or_nobodys():
    row = mbpp("def sum(a, b): return a + b", "assert sum(1, 2) == 3", "assert sum([4], []) == [4]")
    assert paid(row["code"], row).solved
    # Python's own would give 3 for sum([1, 2], 0); here the program defines none.
    row = mbpp("def sum(a, b): return 3", "assert sum([1, 2], 0) == 3", "assert sum([3], 0) == 3")
    assert paid("x = 1", row).value == 0.0


def test_an_exception_of_the_program_cannot_end_a_loop_of_the_tests():
    row = mbpp(
        "def double(x): return 2 * x",
        "assert double(1) == 2",
        "assert all(map(lambda pair: double(pair[0]) == pair[1], [(1, 2), (2, 4)]))",
        "assert [double(x) for x in (1, 2)] == [2, 4] and list(map(double, (3,))) == [6]",
    )
    assert paid(row["code"], row).solved
    assert paid("def double(x): raise StopIteration", row).value == 0.0
    assert paid("def double(x): raise GeneratorExit", row).value == 0.0


def test_a_test_that_wants_an_exception_gets_it():
    row = mbpp(
        "def pick(x): return [1][x]",
        "assert pick(0) == 1",
        """
try:
    pick(5)
    caught = None
except IndexError as error:
    caught = str(error)
assert caught == 'list index out of range'
""",
    )
    assert paid(row["code"], row).solved
    assert paid("def pick(x): return 1", row).value == 0.0


def test_an_exception_of_the_program_is_caught_as_what_it_derives_from():
    caught = "try:\n    f(1)\n    ok = False\nexcept ValueError:\n    ok = True\nassert ok and f"
    row = mbpp("def f(x): pass", "assert f(0) is None", caught)
    program = "class Mine({}): pass\ndef f(x):\n    if x: raise Mine"
    assert paid(program.format("ValueError"), row).solved
    assert paid(program.format("KeyError"), row).value == 0.0


def test_types_of_pythons_own_cross_by_name():
    row = mbpp(
        "def without(items, kind): return [item for item in items if not isinstance(item, kind)]",
        "assert without((4, 7.5), int) == [7.5]",
        "assert without((4, 'a'), str) == [4] and without((4, [5]), (list, dict)) == [4]",
        "assert without((1, int), float) == [1, int]",
    )
    assert paid(row["code"], row).solved
    forged = "class M(type):\n    def __eq__(self, other): return True\nclass E(metaclass=M): pass\n"
    assert paid(forged + "def without(items, kind): return [E]", row).value == 0.0


def test_classes_of_the_program_are_used_across_the_pipe():
    reference = """
class Stack:
    def __init__(self, *items): self.items, self.top = list(items), None
    def push(self, item): self.items.append(item); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, n): return self.items[n]
def depth(stack): return len(stack.items)
"""
    row = mbpp(
        reference,
        "assert depth(Stack()) == 0",
        "assert depth(s) == 2 and s.pop() == 2 and depth(s) == 1",
        "assert len(s) == 1 and list(s) == [1] and s[0] == 1",
        "s.top = 5\nassert s.top == 5 and s.push(7) is s and depth(s) == 2 and s",
        "assert list(Stack(*range(1000))) == list(range(1000))",
        setup="s = Stack()\ns.push(1)\ns.push(2)\n",
    )
    assert paid(reference, row).solved
    assert paid("def depth(s): return 2", row).value == 0.0


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
        "def half(x): pass",
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
        ("<think>\n```python\ny\n```\n</think>x = 1", "x = 1"),
        ("<think>\n```python\nnever closed\n</think>\n```python\nx\n```", "x\n"),
        ("<think>no</think>\nx = 1", "\nx = 1"),
        ("```python\na\n```\n```python\nb\n```\ndone", "b\n"),
        ("```python\na\n```\n```text\nb\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```py\na\n```", "a\n"),
        ("```python\nnever closed", "never closed"),
        ("1. Code:\n\n   ```python\n   def f():\n       return 1\n   ```\nDone.", "def f():\n    return 1\n"),
        ("~~~python\na\n~~~\ndone", "a\n"),
        ("~~~python\nnever closed", "never closed"),
        ("```python\n  ```\na\n```", "  ```\na\n"),
        ("say `x` and ```python\na```", "say `x` and ```python\na```"),
        ("", ""),
    ],
)
def test_the_program_is_the_last_python_block(completion, program):
    assert extract_program(completion) == program


@pytest.mark.parametrize("text", ["```" + "a" * 100_000, "```" + " " * 100_000, "```\n" * 50_000, "\n```" * 50_000])
def test_fences_are_found_in_linear_time(text):
    started = process_time()
    extract_program(text)
    assert process_time() - started < 2  # minutes, if each end of the language's name were tried


Point = namedtuple("Point", "x y")
PLAIN = [
    None, True, 0, -1, 10**400, 1.5, -0.0, math.inf, 1e300, 2j, complex(math.inf, 0), "a", "\ud800", "\u2028", b"\xff",
    [], [1, [2]], (1,), {1: "a", (1, 2): [3]}, {"a"}, frozenset({(1,)}), {"list": ["handle", 3]}, ["handle", 0],
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_cross_unchanged(value):
    data = json.loads(json.dumps(to_json(value, pytest.fail), allow_nan=False))
    back = from_json(data, pytest.fail)
    assert back == value and type(back) is type(value) and repr(back) == repr(value)


def test_what_is_equal_to_a_plain_value_crosses_as_one_and_nothing_else_does():
    for value, plain in (
        (Point(1, 2), (1, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (bytearray(b"a"), b"a"),
        ({"a": 1}.keys(), {"a"}),
        (range(1, 10**400, 2), range(1, 10**400, 2)),
        (Fraction(-1, 3), Fraction(-1, 3)),
        (Decimal("1.50"), Decimal("1.5")),
        (deque([1, (2,)], maxlen=5), deque([1, (2,)])),
        (date(2020, 2, 29), date(2020, 2, 29)),
        (time(1, 2, 3, 4), time(1, 2, 3, 4)),
        (datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=2))), datetime(2019, 12, 31, 22, tzinfo=UTC)),
        (timedelta(-1, 2, 3), timedelta(-1, 2, 3)),
        ([len, math.sqrt, operator.add, KeyError], [len, math.sqrt, operator.add, KeyError]),
    ):
        back = from_json(json.loads(json.dumps(to_json(value, pytest.fail))), pytest.fail)
        assert back == plain and type(back) is type(plain)
    for value in (
        object(),
        iter([]),
        type("E", (int,), {"__eq__": lambda self, other: True})(1),
        type("Fraction", (Fraction,), {"__eq__": lambda self, other: True})(1),
        datetime(2020, 1, 1, tzinfo=ZoneInfo("UTC")),
        print,
        object,
    ):
        assert to_json(value, lambda _: 7) == ["handle", 7]
    assert math.isnan(from_json(to_json(math.nan, pytest.fail), pytest.fail))


@pytest.mark.parametrize(
    "data",
    [
        [], ["passed", 0], ["int", 5], ["int", "zz"], ["float", "7"], ["complex", "1"], ["dict", 1], ["dict", [1]],
        ["set", ["list"]], ["dict", [["list"], 1]], ["handle", "0"], ["handle"], {"a": 1}, ["eval"],
        ["built", "range"], ["built", "range", 1, 2, 0], ["built", "range", "a", 1, 1],
        ["named", "object"], ["named", 1], ["bytes", "q"],
        ["range"], ["built", "Fraction", 1, 0], ["built", "Fraction", 0.5, 1], ["built", "date", ["bytes", "07e40101"]],
        ["built", "Decimal", ["float", "nan"]], ["built", "deque", ["handle", 1], None],
        ["error", 1, "E"], ["built", "E"],
    ],
    ids=repr,
)  # fmt: skip
def test_malformed_values_are_refused(data):
    with pytest.raises((Malformed, ValueError, TypeError)):
        from_json(data, lambda number: number)


def test_an_assert_without_a_name_is_no_test():
    assert numbered(["assert True", "assert 1 == 1, 'x'", "assert f(1)"])[1] == [[], [], [0]]


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("print(1)", 1.0),
        ("x = 1", 0.5),
        ("print()", 0.5),
        ("x = (", -0.5),
        ("This is no program.", -0.5),
        ("", -0.5),
        ("# nothing\n\n", -0.5),
        ("\0", -0.5),
        ("(" * 100_000, -0.5),
        ("print(1); raise ValueError", -1.0),
        ("print(1); import sys; sys.exit(3)", -1.0),
        ("raise SyntaxError", -1.0),
        ("import os; print(1); os.kill(os.getpid(), 9)", -1.0),
        ("print(1); exit()", 1.0),
        ("def main(): print(1)\nif __name__ == '__main__': quit(main())", 1.0),
        ("print(1); exit(2)", -1.0),
        ("print(sys, os)", -1.0),
        ("print(1, flush=True)\nwhile True: pass", -1.0),
        ("while True: print('x' * 1000)", -1.0),
        ("input()", -1.0),
    ],
)
def test_without_tests_a_program_is_paid_for_running(program, value):
    options = ENDLESS if "while" in program else OPTIONS
    reward = reward_for_running(f"```python\n{program}\n```", Example("", "", {}), options)
    assert reward.value == value
    assert sum(reward.parts.values()) == 1
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


def test_a_part_of_mbpp_or_an_edited_one_has_its_split_too(tmp_path):
    """Problem 17 is MBPP's, problem 11 is edited, and the others of 11 to 20 are lacking."""
    rows = numbered_rows([1, 11, 17, 300, 974])
    rows[2]["text"] = "Write a function to find the perimeter of a square."
    dataset = load_task("code", data_path=rows_file(tmp_path, *rows)).dataset
    assert [example.id for example in dataset.train] == ["1", "974"]
    assert [example.id for example in dataset.held_out] == ["11", "17", "300"]


@pytest.mark.parametrize("ids", [range(1, 200), range(1000, 1199), [f"mine-{n}" for n in range(199)]])
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


def test_rows_like_humanevals_are_split_by_identity_and_shown_whole(tmp_path):
    prompts = [HUMANEVAL["prompt"].replace("Half of x", f"Half of x, number {n}") for n in range(50)]
    rows = [{**HUMANEVAL, "task_id": f"HumanEval/{n}", "prompt": prompt} for n, prompt in enumerate(prompts)]
    path = rows_file(tmp_path, *rows)
    task = load_task("code", data_path=path)
    assert 2 <= len(task.dataset.held_out) <= 20 and len(task.dataset.train) + len(task.dataset.held_out) == 50
    assert "Half of x" in task.dataset.train[0].prompt[1]["content"]
    assert "isclose" not in task.dataset.train[0].prompt[1]["content"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"task_id": 1, "text": "?"}, "row 1 of .*: lacks code, test_setup_code, test_list"),
        ({"task_id": 1, "entry_point": "f"}, "lacks prompt, test"),
        ({"text": "?"}, "lacks task_id"),
        ({**SMALLEST, "test_list": ["assert smallest(1, 2) =="]}, "tests that are no Python"),
        ({**SMALLEST, "test_list": ["assert smallest(1, 2) == 1"]}, "needs another assert"),
        ({**SMALLEST, "test_list": ["assert other(1) == 1"] * 3}, "on what its reference defines"),
    ],
)
def test_rows_that_cannot_be_scored_are_refused_in_one_line(tmp_path, row, message):
    with pytest.raises(UserError, match=message) as error:
        _ = load_task("code", data_path=rows_file(tmp_path, row)).dataset.train
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "wrong", [{"tests_weight": 0.0}, {"timeout_s": 0.0}, {"memory_mib": 1}, {"held_out_share": 1.0}]
)
def test_options_that_cannot_work_are_refused(wrong):
    with pytest.raises(UserError, match=f"code.{next(iter(wrong))}"):
        CodeOptions(**wrong)


def test_completions_of_others_are_scored_and_the_level_is_said(tmp_path):
    source, output = tmp_path / "completions.jsonl", tmp_path / "scored.jsonl"
    rows = [{**SMALLEST, "completion": text} for text in (SMALLEST["code"], "def smallest(a, b): return a", "?")]
    rows += [{**HUMANEVAL, "completion": HUMANEVAL["canonical_solution"]}, {"completion": "x"}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "evaluate.py", "--task", "code", "--completions", str(source), "--output", str(output)]
    with Forked(command, cwd=sandbox.ROOT, stderr=subprocess.PIPE, text=True) as running:
        said = running.communicate()[1]
    assert running.returncode == 0, said
    assert sandbox.LEVELS[sandbox.level()] in said
    scored = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["reward"] for row in scored] == [1.0, 0.5, 0.0, 1.0, None]
    assert "lacks" in scored[4]["error"]
