"""Judges a program by tests, with the program in one sandbox and the tests in another.

The verdict is formed where the program has no say: it sees the arguments of each call and nothing else, it answers with
data, and the comparison happens on the other side of a pipe.

    program:  def double(x): return 2 * x
    test:     assert double(3) == 6        ->    3 crosses, 6 comes back, the checker finds them equal
"""

import ast
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import Call, Limits

HERE = Path(__file__).parent
PASSED, FAILED = "__passed__", "__failed__"
CHECKER_EXTRA_S = 5.0


@dataclass(frozen=True)
class Tests:
    """What the checker runs: `before` once, with the program's `names` at hand after it, then each of the `sources`."""

    before: str
    names: Sequence[str]
    sources: Sequence[str]
    num_asserts: int


@dataclass(frozen=True)
class Judgement:
    """Whether the program says that it loaded, and the numbers of the asserts that passed."""

    loaded: bool
    passed: frozenset[int]


def numbered(sources: Sequence[str]) -> tuple[list[str], list[list[int]]]:
    """The tests with each assert reporting by a number of its own, and the numbers in each test.

    An assert that fails does not stop those after it. One without a name in it (`assert True`) says nothing of any
    program and is not counted. SyntaxError where a test is no Python.

    >>> numbered(["assert f(1) == 1", "assert True", "assert f(2) == 2; assert f(3) == 3"])[1]
    [[0], [], [1, 2]]
    """
    numbering = _Numbering()
    changed, numbers = [], []
    for source in sources:
        before = numbering.next
        tree = ast.fix_missing_locations(numbering.visit(ast.parse(source)))
        changed.append(ast.unparse(tree))
        numbers.append(list(range(before, numbering.next)))
    return changed, numbers


class _Numbering(ast.NodeTransformer):
    """Wraps each assert so that it reports whether it passed."""

    def __init__(self) -> None:
        self.next = 0

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if not any(isinstance(part, ast.Name) for part in ast.walk(node.test)):
            return node
        number, self.next = self.next, self.next + 1
        caught = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [_report(FAILED, number)])
        return ast.Try([node], [caught], [_report(PASSED, number)], [])


def _report(function: str, number: int) -> ast.stmt:
    return ast.Expr(ast.Call(ast.Name(function, ast.Load()), [ast.Constant(number)], []))


def names_used(source: str) -> set[str]:
    """The names that a piece of Python reads."""
    tree = ast.parse(source)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def names_defined(source: str) -> set[str]:
    """What a program defines at its top: functions, classes, variables. What it imports is not its own."""
    return {name for statement in ast.parse(source).body for name in _bound(statement)}


def _bound(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def imports(source: str, used: set[str]) -> str:
    """The import statements at the top of a program that bind a name which is used.

    >>> imports("import re, sys as system\\nfrom math import *", {"system"})
    'import re, sys as system\\nfrom math import *'
    """
    kept = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            bound = {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
            if bound & (used | {"*"}):
                kept.append(ast.unparse(statement))
    return "\n".join(kept)


def judge(program: str, tests: Tests, limits: Limits) -> Judgement:
    """Run the tests on the program. SandboxError where nothing can be said of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        candidate_call = _call("candidate", {"program.py": program.encode(errors="replace")}, limits, ours)
        candidate = sandbox.start(candidate_call)
        try:
            message = {
                "passed": PASSED,
                "failed": FAILED,
                "before": tests.before,
                "names": list(tests.names),
                "sources": list(tests.sources),
            }
            patient = replace(limits, wall_s=limits.wall_s + CHECKER_EXTRA_S)
            checker_call = _call("checker", {}, patient, theirs)
            checker = sandbox.start(replace(checker_call, stdin=json.dumps(message).encode()))
            ours.close()
            theirs.close()
            outcome = checker.result()
            verdict: Mapping[str, object] = json.loads(outcome.stdout) if outcome.status == "ok" else {"lost": True}
            if verdict["lost"]:
                candidate.result()  # whether it was the sandbox that failed
        finally:
            candidate.cancel()
    passed = verdict.get("passed", [])
    assert isinstance(passed, list)
    return Judgement(verdict.get("loaded") is True, frozenset(passed))


def _call(module: str, files: Mapping[str, bytes], limits: Limits, channel: socket.socket) -> Call:
    """A call that runs one of the two sides, whose modules go with it."""
    shipped = {f"minrl/tasks/code/{name}.py": (HERE / f"{name}.py").read_bytes() for name in ("values", module)}
    start = f"import sys; sys.path.insert(0, ''); from minrl.tasks.code.{module} import main; main()"
    command = [*sandbox.python(), "-c", start]
    packages = {f"{package}/__init__.py": b"" for package in ("minrl", "minrl/tasks", "minrl/tasks/code")}
    return Call(command, {**files, **shipped, **packages}, limits, channel=channel.fileno())
