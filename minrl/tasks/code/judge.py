"""Judges a program by tests, with the program in one sandbox and the tests in another.

The program sees only the arguments of each call and answers with data. The checker compares it on the other side of a
pipe.

    program:  def double(x): return 2 * x
    test:     assert double(3) == 6        ->    3 crosses, 6 comes back, the checker finds them equal
"""

import ast
import json
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import Call, Limits

HERE = Path(__file__).parent
PASSED, FAILED, UNIT = "__passed__", "__failed__", "__unit__"
UNITS = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.If, ast.For, ast.AsyncFor, ast.While),
    *(ast.With, ast.AsyncWith, ast.Match, ast.Try, ast.TryStar),
)
"""Statements in which asserts may run: in their body, or in a function that they call."""
CHECKER_EXTRA_S = 5.0
SHIPPED = {"candidate": ("values", "candidate"), "checker": ("values", "remote", "checker")}
"""The modules of each of the two sides."""


@dataclass(frozen=True)
class Tests:
    """What the checker runs: `before` once, then each of the `sources` with the program's `names`, some of which are
    `classes`.
    """

    before: str
    names: Sequence[str]
    sources: Sequence[str]
    num_asserts: int
    classes: Sequence[str] = ()


@dataclass(frozen=True)
class Judgement:
    """Whether the program reports that it loaded, and the numbers of the asserts that passed."""

    loaded: bool
    passed: frozenset[int]


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
        caught = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [_report(FAILED, number)])
        return ast.Try([_unit([node])], [caught], [_report(PASSED, number)], [])


def _report(function: str, *numbers: int) -> ast.stmt:
    return ast.Expr(_call_of(function, numbers))


def _unit(body: list[ast.stmt], *numbers: int) -> ast.stmt:
    return ast.With([ast.withitem(_call_of(UNIT, numbers))], body)


def _call_of(function: str, numbers: Iterable[int]) -> ast.expr:
    return ast.Call(ast.Name(function, ast.Load()), [ast.Constant(number) for number in numbers], [])


def names_used(source: str) -> set[str]:
    """The names that a piece of Python reads."""
    names = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def names_defined(source: str) -> set[str]:
    """The functions, classes and variables that a program defines at its top. Imported names are not its own."""
    return {name for statement in ast.parse(source).body for name in _bound(statement)}


def classes_defined(source: str) -> set[str]:
    """The classes at the top of a program whose instances are objects of their own, not numbers, tuples or the like."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and all(ast.unparse(base) in ("object", *found) for base in node.bases):
            found.add(node.name)
    return found


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
    statements = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = [{(alias.asname or alias.name).partition(".")[0] for alias in node.names} for node in statements]
    kept = (node for node, names in zip(statements, bound, strict=True) if names & (used | {"*"}))
    return "\n".join(map(ast.unparse, kept))


def judge(program: str, tests: Tests, limits: Limits) -> Judgement:
    """Run the tests on the program. Raises SandboxError if the sandbox failed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        candidate_call = _call("candidate", {"program.py": program.encode(errors="replace")}, limits, ours)
        candidate = sandbox.start(candidate_call)
        try:
            message = {"passed": PASSED, "failed": FAILED, "unit": UNIT, **asdict(tests)}
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
    """A call that runs one of the two sides, with the modules it needs."""
    shipped = {f"minrl/tasks/code/{name}.py": (HERE / f"{name}.py").read_bytes() for name in SHIPPED[module]}
    start = f"import sys; sys.path.insert(0, ''); from minrl.tasks.code.{module} import main; main()"
    command = [*sandbox.python(), "-c", start]
    packages = {f"{package}/__init__.py": b"" for package in ("minrl", "minrl/tasks", "minrl/tasks/code")}
    return Call(command, {**files, **shipped, **packages}, limits, channel=channel.fileno())
