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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from loguru import logger

from minrl.dataflow import Example, Reward, UserError
from minrl.models.thoughts import after_thoughts
from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import Call, Limits
from minrl.tasks import code_judge
from minrl.tasks.data import Row, Source, identity, load_each
from minrl.tasks.task import Dataset, DeferredDataset, Task, TaskDefinition, chat, split, weighted
from minrl.utils.settings import Bound, Positive, Settings

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
class CodeOptions(Settings):
    """Which problems, what is paid, and what a program may use."""

    prefix = "code."
    dataset: str = MBPP.hub_name
    """The hub's dataset: openai/openai_humaneval, or one with the columns of MBPP."""
    mode: Literal["tests", "execute"] = "tests"
    """Whether a program is judged by the row's tests, or by whether it runs."""
    tests_weight: Positive = 1.0
    """Weight of the share of tests that pass."""
    all_weight: Annotated[float, Bound(least=0)] = 0.0
    """Weight of passing them all."""
    timeout_s: Positive = 10.0
    """Seconds of processor time that a program has for all tests of a row; by the clock it has twice as many, so that
    a busy machine does not decide what a program earns."""
    memory_mib: Annotated[int, Bound(least=64)] = 1024
    """Memory that a program may use."""
    held_out_share: Annotated[float, Bound(above=0, below=1)] = 0.2
    """Share of the problems that is never trained on. MBPP's own held-out ones are 11 to 510."""

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
    """What the tests' process runs: `before` once, then each of the `statements` with the program's `names`, some of
    which are `classes`. With each statement come the numbers of the asserts that have not passed if it raises.
    """

    before: str
    names: Sequence[str]
    statements: Sequence[tuple[str, Sequence[int]]]
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
        statements, counts = numbered([body_of_check(row["test"], row["entry_point"])])
        return Tests(row["prompt"], [row["entry_point"]], statements, counts[0]), 0
    row = full_columns(row)
    reference = ast.parse(row["code"]).body
    sources = [row["test_setup_code"], *row["test_list"]]
    statements, counts = numbered(sources)
    used = {node.id for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    defined = {name: is_class for statement in reference for name, is_class in _definitions(statement)}
    imports = [node for node in reference if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = [{(alias.asname or alias.name).partition(".")[0] for alias in node.names} for node in imports]
    before = "\n".join(ast.unparse(node) for node, names in zip(imports, bound, strict=True) if names & (used | {"*"}))
    names = sorted(used & defined.keys())
    return Tests(before, names, statements, sum(counts), [name for name in names if defined[name]]), sum(counts[:2])


def body_of_check(test: str, entry_point: str) -> str:
    """HumanEval's `check(candidate)` as statements, of which one that fails does not stop the next.

    >>> print(body_of_check("def check(f):\\n    assert f(1) == 2", "twice"))
    f = twice
    assert f(1) == 2
    """
    module = ast.parse(test)
    for place, node in enumerate(module.body):
        if isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args:
            module.body[place : place + 1] = [*ast.parse(f"{node.args.args[0].arg} = {entry_point}").body, *node.body]
            return ast.unparse(module)
    raise ValueError("they do not define check(candidate)")


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


def unscorable(tests: Tests) -> str:
    """Why tests need more of the program than plain data, or may not show that it failed; empty if neither.

    >>> unscorable(Tests("", ["f", "A"], [("a = A(1)", []), ("assert a.f() == f(A(2))", [0])], 1, ["A"]))
    'call a method of a (A), and only data is exchanged with the program'
    """
    nodes = [node for source, _ in tests.statements for node in ast.walk(ast.parse(source))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    made = {ast.unparse(call): ast.unparse(call.func) for call in calls if ast.unparse(call.func) in tests.classes}
    assigned = [(target, node.value) for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    made |= {ast.unparse(target): made[text] for target, value in assigned if (text := ast.unparse(value)) in made}
    called = {id(call.func) for call in calls}
    reason = ""
    for node in nodes:
        match node:
            case ast.Name(name) if name in tests.classes and id(node) not in called:
                reason = f"use the class {name} for more than to make objects"
            case ast.Call(func=ast.Attribute(value=value)) if (text := ast.unparse(value)) in made:
                reason = f"call a method of {text} ({made[text]})"
            case ast.Call(func=ast.Call(func=ast.Name(name))) if name in tests.names:
                reason = f"call what {name} returns"
            case ast.Call(func=ast.Name(name), args=args) if name in tests.names:
                if any(isinstance(argument, ast.Lambda) for argument in args):
                    reason = f"give {name} a function"
            case ast.Try() | ast.TryStar() | ast.With() | ast.AsyncWith():
                if any(isinstance(one, ast.Assert) for one in ast.walk(node)):
                    return "hold an assert in `try` or `with`, which may hide that the program failed"
        if reason:
            return f"{reason}, and only data is exchanged with the program"
    return ""


REPORT = "__held__"


def numbered(sources: Sequence[str]) -> tuple[list[tuple[str, list[int]]], list[int]]:
    """The statements of the tests, in which each assert reports by a number of its own that it held, and how many
    asserts each source has. One without a name in it (`assert True`) tests no program and is not counted.

    With a statement come the asserts that fail with it: its own, and all those in functions of the tests. What passed
    before the loop or function around it broke off has not passed.
    Raises SyntaxError for a test that is not Python.

    >>> numbered(["assert f(1) == 1", "assert True", "assert f(2) == 2; assert f(3) == 3"])[1]
    [1, 0, 2]
    """
    numbering, counts, found = _Numbering(), [], []
    for source in sources:
        before = numbering.next
        for statement in ast.parse(source).body:
            first = numbering.next
            changed = numbering.visit(ast.Module([statement], []))
            found.append((ast.unparse(ast.fix_missing_locations(changed)), range(first, numbering.next)))
        counts.append(numbering.next - before)
    return [(changed, sorted({*own, *numbering.in_functions})) for changed, own in found], counts


class _Numbering(ast.NodeTransformer):
    """Makes each assert report that it held, and collects those in functions and classes."""

    def __init__(self) -> None:
        self.next = 0
        self.in_functions = set[int]()

    def visit(self, node: ast.AST) -> Any:  # noqa: ANN401 - as NodeTransformer has it
        before = self.next
        changed = super().visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.in_functions.update(range(before, self.next))
        return changed

    def visit_Assert(self, node: ast.Assert) -> ast.stmt | list[ast.stmt]:
        if not any(isinstance(part, ast.Name) for part in ast.walk(node.test)):
            return node
        number, self.next = self.next, self.next + 1
        return [node, ast.Expr(ast.Call(ast.Name(REPORT, ast.Load()), [ast.Constant(number)], []))]


def judge(program: str, tests: Tests, limits: Limits) -> Judgement:
    """Run the tests on the program. Raises SandboxError if the sandbox failed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        candidate = sandbox.start(_call("serve", {"program.py": program.encode(errors="replace")}, limits, ours))
        try:
            message = {"report": REPORT, **asdict(tests)}
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
        for source in (tests.before, *(source for source, _ in tests.statements)):
            compile(source, "tests", "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"has tests that are no Python: {error}") from error
    if tests.num_asserts <= shown or not tests.names:
        raise UserError("needs another assert than the shown one, on what its reference defines")
    if problem := unscorable(tests):
        raise UserError(f"its tests {problem}")


def _example(row: Mapping[str, Any], options: CodeOptions) -> Example:
    if is_humaneval(row):
        question = f"Complete this program:\n\n```python\n{row['prompt'].rstrip()}\n```"
    elif options.mode == "tests":
        question = f"{row['text']}\n\nIt must pass this test:\n\n```python\n{row['test_list'][0].strip()}\n```"
    else:
        question = row["text"]
    return Example(str(row["task_id"]), chat(INSTRUCTIONS, question), row)


TASK = TaskDefinition(CodeOptions, make)
