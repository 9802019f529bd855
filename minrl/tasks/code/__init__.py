"""Python programs, judged by tests in a sandbox: MBPP, and rows in the shape of HumanEval.

    Write a python function to find the minimum of two numbers.      ->    ```python
    It must pass this test: assert minimum(1,2) == 1                        def minimum(a, b):
                                                                                return a if a < b else b
                                                                            ```

The program is the last block fenced with ```python, else the last fenced block, else all of the text outside the
thoughts.
The prompt shows the first assert, because the name cannot be known otherwise. The score is the share of the other
asserts that pass, and 1 only if the first passes too. HumanEval's prompt is the head of the program: it shows no
assert, and the program is head plus completion. `--code.mode execute` needs no tests: 1 for a program that runs and
prints something, 0.5 for one that runs, -0.5 for none or a syntax error, -1 for one that fails or takes too long.
"""

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from loguru import logger

from minrl.models.thoughts import after_thoughts
from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import Limits
from minrl.tasks.code.judge import Tests, classes_defined, imports, judge, names_defined, names_used, numbered
from minrl.tasks.rows import Row, Source, identity, load_each
from minrl.tasks.task import Dataset, DeferredDataset, Task, TaskDefinition, chat, split, weighted
from minrl.types import Example, Reward, UserError, require

MBPP = Source(
    "google-research-datasets/mbpp",
    ("task_id", "text", "code", "test_setup_code", "test_list"),
    {"train": "train", "held_out": "test", "validation": "validation", "prompt": "prompt"},
)
HUMANEVAL = Source("openai/openai_humaneval", ("task_id", "prompt", "entry_point", "test"), {"held_out": "test"})
MBPP_HELD_OUT = range(11, 511)
"""The task ids that MBPP's authors test on (arXiv 2108.07732, section 2.1)."""
MBPP_PROBE = {
    11: "66e2a75428bcccc4", 12: "e6e4d613a155b26c", 13: "4bc0f3b80a2c1703", 14: "44f60de727404f93",
    15: "6b0e3967b7137f04", 16: "031f627f0a40e223", 17: "c1971c263bca8577", 18: "46f190653aabec54",
    19: "f3eb8d101b43c320", 20: "f999caa6ab6f5ada",
}  # fmt: skip
"""The identities of the texts of some task ids: rows of MBPP's shape are MBPP's if one agrees."""

INSTRUCTIONS = "Write Python. Think first if you like, then give the whole program in one ```python block."
FENCE = re.compile(r"^( {0,3}+)(```|~~~)[ \t]*+([\w+-]*+)[^\n]*+\n(.*?)(?:^(?:\1)?\2|\Z)", re.DOTALL | re.MULTILINE)
START = (
    "(lambda python, system: (vars(python).update(exit=system.exit, quit=system.exit), "
    "system.argv.__setitem__(0, 'program.py')))(__import__('builtins'), __import__('sys')); "
    "__file__ = __import__('os').path.abspath('program.py'); "
    "exec(compile(open('program.py', 'rb').read(), 'program.py', 'exec', dont_inherit=True))"
)
"""Runs a program as a script that has `exit` and `quit`, which the interpreter lacks without its `site`. It binds no
name that a script does not have."""


@dataclass(frozen=True, kw_only=True)
class CodeOptions:
    """Which problems, what is paid, and what a program may use."""

    dataset: str = MBPP.hub_name
    """The hub's dataset: openai/openai_humaneval, or one with the columns of MBPP."""
    mode: Literal["tests", "execute"] = "tests"
    """Whether a program is judged by the row's tests, or by whether it runs."""
    tests_weight: float = 1.0
    """Weight of the share of tests that pass."""
    all_weight: float = 0.0
    """Weight of passing them all."""
    timeout_s: float = 10.0
    """Seconds of processor time that a program has for all tests of a row; by the clock it has twice as many, so that
    a busy machine does not decide what a program earns."""
    memory_mib: int = 1024
    """Memory that a program may use."""
    held_out_share: float = 0.2
    """Share of the problems that is never trained on. MBPP's own held-out ones are 11 to 510."""

    def __post_init__(self) -> None:
        require(self.tests_weight > 0, f"code.tests_weight must be above 0, got {self.tests_weight}")
        require(self.all_weight >= 0, f"code.all_weight must be at least 0, got {self.all_weight}")
        require(self.timeout_s > 0, f"code.timeout_s must be above 0, got {self.timeout_s}")
        require(self.memory_mib >= 64, f"code.memory_mib must be at least 64, got {self.memory_mib}")
        require(0 < self.held_out_share < 1, f"code.held_out_share must be in (0, 1), got {self.held_out_share}")

    @property
    def limits(self) -> Limits:
        """What one program may use."""
        return Limits(wall_s=2 * self.timeout_s, cpu_s=self.timeout_s, memory_mib=self.memory_mib)


def extract_program(completion: str) -> str:
    """The program in a completion.

    >>> extract_program("First ```x```.\\n```python\\nprint(1)\\n```\\nor\\n```python\\nprint(2)\\n```\\nDone.")
    'print(2)\\n'
    """
    answer = after_thoughts(completion)
    found = FENCE.findall(answer)
    blocks = [(language, re.sub(f"(?m)^ {{0,{len(indent)}}}", "", text)) for indent, _, language, text in found]
    python = [block for block in blocks if block[0].lower() in ("python", "py", "python3")]
    return str([("", answer), *blocks, *python][-1][1])


def reward_for_tests(completion: str, example: Example, options: CodeOptions) -> Reward:
    """The share of the hidden asserts that pass. Shown asserts that fail count too, so 1 means that all pass."""
    program = extract_program(completion)
    if is_humaneval(example.fields):
        program = completed(example["prompt"], program)
    tests, shown = tests_of(example.fields)
    judgement = judge(program, tests, options.limits)
    passed_shown = sum(number < shown for number in judgement.passed)
    share = (len(judgement.passed) - passed_shown) / (tests.num_asserts - passed_shown)
    parts = {"tests": share, "all": float(share == 1), "loads": float(judgement.loaded)}
    return weighted(parts, {"tests": options.tests_weight, "all": options.all_weight})


def completed(head: str, program: str) -> str:
    r"""The head of a program and what follows, whose `__future__` imports come first.

    >>> completed("import re", "from __future__ import annotations\nx = 1")
    'from __future__ import annotations\nimport re\nx = 1'
    """
    if "__future__" in program:
        try:
            tree = ast.parse(program)
            first = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
            tree.body = [node for node in tree.body if node not in first]
            head, program = "\n".join([*map(ast.unparse, first), head]), ast.unparse(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass  # the rest of a function is no Python alone, and what is none at all fails when it is loaded
    return f"{head}\n{program}"


def reward_for_running(completion: str, _: Example, options: CodeOptions) -> Reward:
    """Whether the program runs: 1 with output, 0.5 without, -0.5 for none or a syntax error, -1 for any other end.

    The syntax is checked by an interpreter that does not run the program, so that it cannot fake the result.
    """
    program = extract_program(completion)
    if all(not line.strip() or line.lstrip().startswith("#") for line in program.splitlines()):
        return _ran(-0.5, "no_program")
    files = {"program.py": program.encode(errors="replace")}
    outcome = sandbox.run([*sandbox.python(), "-c", START], files, options.limits)
    if outcome.status == "ok":
        return _ran(1.0, "with_output") if outcome.stdout.strip() else _ran(0.5, "without_output")
    check = "compile(open('program.py', 'rb').read(), 'program.py', 'exec', dont_inherit=True)"
    compiled = sandbox.run([*sandbox.python(), "-c", check], files, options.limits)
    return _ran(-1.0, "failed") if compiled.status == "ok" else _ran(-0.5, "syntax_error")


def _ran(value: float, end: str) -> Reward:
    ends = ("with_output", "without_output", "no_program", "syntax_error", "failed")
    return Reward(value, {name: float(name == end) for name in ends})


def is_humaneval(row: Row) -> bool:
    """Whether a row has the shape of HumanEval's; else it has that of MBPP's."""
    return "entry_point" in row


def tests_of(row: Row) -> tuple[Tests, int]:
    """The row's tests for the judge, and how many of their asserts the prompt shows.

    The reference solution decides which names are the program's: one that defines `abs` or `math` must not change how
    a test compares.
    """
    if is_humaneval(row):
        sources, numbers = numbered([f"{row['test']}\ncheck({row['entry_point']})"])
        return Tests(row["prompt"], [row["entry_point"]], sources, len(numbers[0])), 0
    reference, setup = row["code"], row["test_setup_code"]
    sources, numbers = numbered([setup, *row["test_list"]])
    used = set().union(*map(names_used, sources))
    names = sorted(used & names_defined(reference))
    shown = len(numbers[0]) + len(numbers[1])
    classes = sorted(used & classes_defined(reference))
    return Tests(imports(reference, used), names, sources, sum(map(len, numbers)), classes), shown


def make(options: CodeOptions, data_path: str) -> Task:
    """The task. Its rows are read when they are first needed."""
    reward = reward_for_tests if options.mode == "tests" else reward_for_running
    return Task(
        DeferredDataset(lambda: _dataset(options, data_path)),
        functools.partial(reward, options=options),
        notes=lambda: (sandbox.describe(), sandbox.describe_python()),
        worst=0.0 if options.mode == "tests" else -1.0,
        solution=solution if options.mode == "tests" else None,
    )


def solution(example: Example) -> str | None:
    """The row's reference program, of HumanEval's rows the body that completes the head; None where it has none."""
    program = example.fields.get("canonical_solution" if is_humaneval(example.fields) else "code")
    return f"```python\n{program}\n```" if program else None


def _dataset(options: CodeOptions, data_path: str) -> Dataset:
    source = HUMANEVAL if options.dataset == HUMANEVAL.hub_name else replace(MBPP, hub_name=options.dataset)
    if data_path:  # a file's columns tell its kind
        source = replace(source, columns=("task_id",))

    def read(row: Row) -> Row:
        _check(row, options)
        return row

    rows = [row for part in load_each(source, data_path, read).values() for row in part]
    where = data_path or source.hub_name
    examples: dict[str, Example] = {}
    for row in rows:
        example = _example(row, options)
        if _text(examples.setdefault(example.id, example)) != _text(example):
            raise UserError(f"{where} has the task_id {example.id!r} twice, with different texts: rename one")
    if not is_mbpp(rows):
        if not is_humaneval(rows[0]):
            _say_split(where, options.held_out_share)
        return split(examples.values(), options.held_out_share, by=_text)
    held_out = [example for example in examples.values() if example.id in set(map(str, MBPP_HELD_OUT))]
    texts = set(map(_text, held_out))
    return Dataset([example for example in examples.values() if _text(example) not in texts], held_out, _text)


@functools.cache
def _say_split(where: str, share: float) -> None:
    """Log once how rows that may be a part of MBPP are split."""
    logger.info(
        f"{where} has MBPP's columns and none of its tasks 11 to 20: {share:.0%} of its problems are held out, by a "
        "hash of their texts (--code.held-out-share), whatever MBPP's authors held out"
    )


def is_mbpp(rows: Sequence[Row]) -> bool:
    """Whether the rows are MBPP's, whose authors define the split. Other rows may have its columns and ids."""
    texts = {str(row["task_id"]): str(row["text"]) for row in rows if "text" in row}
    return any(identity(texts.get(str(number), "")) == expected for number, expected in MBPP_PROBE.items())


def _text(example: Example) -> str:
    """The identity of a problem, whatever the id of its row."""
    return identity(str(example.fields["prompt" if is_humaneval(example.fields) else "text"]))


def _check(row: Row, options: CodeOptions) -> None:
    """Refuse a row that no completion could be scored on."""
    columns = HUMANEVAL.columns if is_humaneval(row) else MBPP.columns
    missing = [column for column in columns if column not in row]
    if missing:
        raise UserError(
            f"lacks {', '.join(missing)}: give rows with the columns {', '.join(MBPP.columns)} "
            f"or {', '.join(HUMANEVAL.columns)}"
        )
    if options.mode != "tests":
        return
    try:
        tests, shown = tests_of(row)
        compile(tests.before, "before", "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"has tests that are no Python: {error}") from error
    if tests.num_asserts <= shown or not tests.names:
        raise UserError("needs another assert than the shown one, on what its reference defines")


def _example(row: Mapping[str, Any], options: CodeOptions) -> Example:
    if is_humaneval(row):
        question = f"Complete this program:\n\n```python\n{row['prompt'].rstrip()}\n```"
    elif options.mode == "tests":
        question = f"{row['text']}\n\nIt must pass this test:\n\n```python\n{row['test_list'][0].strip()}\n```"
    else:
        question = row["text"]
    return Example(str(row["task_id"]), chat(INSTRUCTIONS, question), row)


TASK = TaskDefinition(CodeOptions, make)
