"""Python programs, judged by tests in a sandbox: MBPP, full or sanitized, and rows in the shape of HumanEval.

    Write a python function to find the minimum of two numbers.      ->    ```python
    It must pass this test: assert minimum(1,2) == 1                        def minimum(a, b):
                                                                                return a if a < b else b
                                                                            ```

The program is the last block fenced with ```python, else the last fenced block, else all of the text outside the
thoughts.
The prompt shows the first assert, because the name cannot be known otherwise. The score is the share of the other
asserts that pass, and 1 only if the first passes too. HumanEval's prompt is the head of the program: it shows no
assert, and the program is head plus completion. The program runs in one sandbox and the tests in another
(`code_judge.py`): rows whose tests use the program's objects for more than to make, pass on and compare them cannot be
scored; they are counted and left out. `--code.mode execute` needs no tests: 1 for a program that runs and
prints something, 0.5 for one that runs, -0.5 for none or a syntax error, -1 for one that fails or takes too long.
"""

import ast
import functools
import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from loguru import logger

from minrl.models.thoughts import after_thoughts
from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import Call, Limits
from minrl.tasks import code_judge
from minrl.tasks.data import Row, Source, identity, load_each
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
FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)
CHECKER_EXTRA_S = 5.0
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
    'from __future__ import annotations\nimport re\n\nx = 1'
    """
    return "\n".join([*FUTURE.findall(program), head, FUTURE.sub("", program)])


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


@dataclass(frozen=True)
class Tests:
    """What the tests' process runs: `before` once, then each of the `sources` with the program's `names`, some of which
    are `classes`.
    """

    before: str
    names: Sequence[str]
    sources: Sequence[str]
    num_asserts: int
    classes: Sequence[str] = ()


@dataclass(frozen=True)
class Judgement:
    """Whether the program loaded, and the numbers of the asserts that passed."""

    loaded: bool
    passed: frozenset[int]


def tests_of(row: Row) -> tuple[Tests, int]:
    """The row's tests, and how many of their asserts the prompt shows.

    The reference solution decides which names are the program's: one that defines `abs` or `math` must not change how
    a test compares.
    """
    if is_humaneval(row):
        sources, numbers = numbered([f"{row['test']}\ncheck({row['entry_point']})"])
        return Tests(row["prompt"], [row["entry_point"]], sources, len(numbers[0])), 0
    row = full_columns(row)
    reference = ast.parse(row["code"]).body
    sources, numbers = numbered([row["test_setup_code"], *row["test_list"]])
    used = {node.id for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    defined = {name: is_class for statement in reference for name, is_class in _definitions(statement)}
    imports = [node for node in reference if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = [{(alias.asname or alias.name).partition(".")[0] for alias in node.names} for node in imports]
    before = "\n".join(ast.unparse(node) for node, names in zip(imports, bound, strict=True) if names & (used | {"*"}))
    names = sorted(used & defined.keys())
    classes = [name for name in names if defined[name]]
    return Tests(before, names, sources, sum(map(len, numbers)), classes), len(numbers[0]) + len(numbers[1])


def _definitions(statement: ast.stmt) -> Iterator[tuple[str, bool]]:
    """The names that a statement at the top of a program defines, and whether they are classes."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, False
        case ast.ClassDef(name=name):
            yield name, True
        case ast.Assign(targets, value):
            is_class = isinstance(value, ast.Call) and ast.unparse(value.func).endswith(("namedtuple", "NamedTuple"))
            names = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            yield from ((node.id, is_class) for node in names)
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, False


def beyond_data(tests: Tests) -> str:
    """Why tests need more of the program than plain data; empty if they do not.

    >>> beyond_data(Tests("", ["f", "A"], ["a = A(1)", "assert a.f() == f(A(2))"], 1, ["A"]))
    'call a method of a (A)'
    """
    nodes = [node for source in tests.sources for node in ast.walk(ast.parse(source))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    made = {ast.unparse(call) for call in calls if ast.unparse(call.func) in tests.classes}
    kinds = {text: text for text in made} | {
        ast.unparse(target): ast.unparse(node.value)
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in made
        for target in node.targets
    }
    called = {id(call.func) for call in calls}
    for node in nodes:
        match node:
            case ast.Name(name) if name in tests.classes and id(node) not in called:
                return f"use the class {name} for more than to make objects"
            case ast.Call(func=ast.Attribute(value=value)) if (text := ast.unparse(value)) in kinds:
                return f"call a method of {text} ({kinds[text].partition('(')[0]})"
            case ast.Call(func=ast.Call(func=ast.Name(name))) if name in tests.names:
                return f"call what {name} returns"
            case ast.Call(func=ast.Name(name), args=args) if name in tests.names:
                if any(isinstance(argument, ast.Lambda) for argument in args):
                    return f"give {name} a function"
    return ""


PASSED, FAILED, UNIT = "__passed__", "__failed__", "__unit__"
UNITS = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.If, ast.For, ast.AsyncFor, ast.While),
    *(ast.With, ast.AsyncWith, ast.Match, ast.Try, ast.TryStar),
)
"""Statements in which asserts may run: in their body, or in a function that they call."""


def numbered(sources: Sequence[str]) -> tuple[list[str], list[list[int]]]:
    """The tests with each assert reporting by a number of its own, and the numbers in each test.

    A failed assert does not stop the next ones. One without a name in it (`assert True`) tests no program and is not
    counted. Every other statement is a unit: one that an exception leaves fails each assert that ran in it, a function
    those that it holds too. An assert that passed before the loop around it broke off has not passed. Raises
    SyntaxError for a test that is not Python.

    >>> numbered(["assert f(1) == 1", "assert True", "assert f(2) == 2; assert f(3) == 3"])[1]
    [[0], [], [1, 2]]
    """
    numbering = _Numbering()
    changed, numbers = [], []
    for source in sources:
        before = numbering.next
        changed.append(ast.unparse(ast.fix_missing_locations(numbering.visit(ast.parse(source)))))
        numbers.append(list(range(before, numbering.next)))
    return changed, numbers


class _Numbering(ast.NodeTransformer):
    """Wraps each assert so that it reports whether it passed, and other statements as units."""

    def __init__(self) -> None:
        self.next = 0

    def visit(self, node: ast.AST) -> Any:  # noqa: ANN401 - as NodeTransformer has it
        before = self.next
        changed = super().visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and before < self.next:
            node.body = [_unit(node.body, *range(before, self.next))]
        elif isinstance(node, UNITS) and not isinstance(getattr(node, "value", None), ast.Constant):
            return _unit([changed])
        return changed

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if not any(isinstance(part, ast.Name) for part in ast.walk(node.test)):
            return node
        number, self.next = self.next, self.next + 1
        failed, passed = (ast.Expr(_call_of(function, [number])) for function in (FAILED, PASSED))
        caught = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [failed])
        return ast.Try([_unit([node])], [caught], [passed], [])


def _unit(body: list[ast.stmt], *numbers: int) -> ast.stmt:
    return ast.With([ast.withitem(_call_of(UNIT, numbers))], body)


def _call_of(function: str, numbers: Iterable[int]) -> ast.expr:
    return ast.Call(ast.Name(function, ast.Load()), [ast.Constant(number) for number in numbers], [])


def judge(program: str, tests: Tests, limits: Limits) -> Judgement:
    """Run the tests on the program. Raises SandboxError if the sandbox failed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        candidate = sandbox.start(_call("serve", {"program.py": program.encode(errors="replace")}, limits, ours))
        try:
            message = {"passed": PASSED, "failed": FAILED, "unit": UNIT, **asdict(tests)}
            patient = replace(limits, wall_s=limits.wall_s + CHECKER_EXTRA_S)
            call = replace(_call("check", {}, patient, theirs), stdin=json.dumps(message).encode())
            checker = sandbox.start(call)
            ours.close()
            theirs.close()
            outcome = checker.result()
            verdict: Mapping[str, Any] = json.loads(outcome.stdout) if outcome.status == "ok" else {"lost": True}
            if verdict["lost"]:
                candidate.result()  # whether it was the sandbox that failed
        finally:
            candidate.cancel()
    return Judgement(verdict.get("loaded", False), frozenset(verdict.get("passed", [])))


def _call(function: str, files: Mapping[str, bytes], limits: Limits, channel: socket.socket) -> Call:
    """A call that runs one of the two sides."""
    start = f"import sys; sys.path.insert(0, ''); from code_judge import {function}; {function}()"
    files = {**files, "code_judge.py": Path(code_judge.__file__).read_bytes()}
    return Call([*sandbox.python(), "-c", start], files, limits, channel=channel.fileno())


def full_columns(row: Row) -> Row:
    """A row, one of sanitized MBPP in the columns of the full one."""
    if "test_imports" not in row or "text" in row:
        return row
    return {**row, "text": row["prompt"], "test_setup_code": "\n".join(row["test_imports"])}


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
        row = full_columns(row)
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
    if problem := beyond_data(tests):
        raise UserError(f"its tests {problem}, and only data is exchanged with the program")


def _example(row: Mapping[str, Any], options: CodeOptions) -> Example:
    if is_humaneval(row):
        question = f"Complete this program:\n\n```python\n{row['prompt'].rstrip()}\n```"
    elif options.mode == "tests":
        question = f"{row['text']}\n\nIt must pass this test:\n\n```python\n{row['test_list'][0].strip()}\n```"
    else:
        question = row["text"]
    return Example(str(row["task_id"]), chat(INSTRUCTIONS, question), row)


TASK = TaskDefinition(CodeOptions, make)
