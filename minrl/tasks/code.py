"""Python programs, judged by tests in a sandbox: MBPP, full or sanitized, and rows in the shape of HumanEval.

    Write a python function to find the minimum of two numbers.      ->    ```python
    It must pass this test: assert minimum(1,2) == 1                        def minimum(a, b):
                                                                                return a if a < b else b
                                                                            ```

The program is the last block fenced with ```python, else the last fenced block, else all of the text outside the
thoughts. The prompt shows the first test, because the name cannot be known otherwise. The score is the share of the
other tests that pass, and 1 only if the first passes too. HumanEval's prompt is the head of the program: it shows no
test, and each statement of its `check` counts that does more than define. The program runs in one sandbox and the tests
in another (`code_judge.py`).
"""

import ast
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from minrl.dataflow import Example, Reward, UserError, require
from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import Call, Limits
from minrl.tasks import code_judge
from minrl.tasks.answers import fenced_blocks
from minrl.tasks.data import Row, Source, identity, load_each
from minrl.tasks.task import Dataset, DeferredDataset, HeldOut, TaskOptions, chat, filled, prompt_file, split, weighted
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import Bound, PathOrName, Positive

MBPP = Source(
    "google-research-datasets/mbpp",
    ("task_id", "text", "code", "test_setup_code", "test_list"),
    {"train": "train", "held_out": "test", "validation": "validation", "prompt": "prompt"},
)
HUMANEVAL = Source("openai/openai_humaneval", ("task_id", "prompt", "entry_point", "test"), {"held_out": "test"})
MBPP_HELD_OUT = set(map(str, range(11, 511)))
"""The task ids that MBPP's authors test on (arXiv 2108.07732, section 2.1)."""
MBPP_PROBE = {
    "11": "66e2a75428bcccc4", "200": "7d1606ae38adc786", "400": "e3950d3fd72cfdca", "600": "fc1f5a5291a87cb1",
    "800": "bff8e72cc42a788a",
}  # fmt: skip
"""Identities of some texts, spread over the ids: rows are MBPP's if one agrees, and their authors define the split."""

INSTRUCTIONS = "Write Python. Think first if you like, then give the whole program in one ```python block."
CHECKER_EXTRA_S = 5.0
START = (
    "import builtins, runpy, sys; vars(builtins).update(exit=sys.exit, quit=sys.exit); "
    "sys.argv[0] = 'program.py'; runpy.run_path('program.py', run_name='__main__')"
)
"""Runs a program as a script that has `exit` and `quit`, which the interpreter lacks without its `site`."""


@dataclass(frozen=True, kw_only=True)
class CodeOptions(TaskOptions):
    """Which problems, what is rewarded, and what a program may use."""

    prefix = "code."
    dataset: str = MBPP.hub_name
    """The hub's dataset: openai/openai_humaneval, or one with the columns of MBPP."""
    prompt: PathOrName = "block"
    """block: chat messages that ask for one marked block. Or a file whose text has {problem}."""
    tests_weight: Positive = 1.0
    """Weight of the share of tests that pass."""
    all_weight: Annotated[float, Bound(least=0)] = 0.0
    """Weight of passing them all."""
    timeout_s: Positive = 10.0
    """Seconds of processor time that a program has for all tests of a row; by the clock it has twice as many."""
    memory_mib: Annotated[int, Bound(least=64)] = 1024
    """Memory that a program may use."""
    held_out_share: HeldOut = 0.2
    """Share of the problems that is never trained on. Of MBPP these are 11 to 510, of HumanEval all."""

    @property
    def limits(self) -> Limits:
        """What one program may use."""
        return Limits(wall_s=2 * self.timeout_s, cpu_s=self.timeout_s, memory_mib=self.memory_mib)


def extract_program(completion: str, place: int = -1) -> str:
    """The program in a completion: the last of several, or the one at a `place`.

    >>> extract_program("First ```x```.\\n```python\\nprint(1)\\n```\\nor\\n```python\\nprint(2)\\n```\\nDone.")
    'print(2)\\n'
    >>> extract_program("Here:\\n```python\\nprint(1)\\n```\\nIt prints:\\n```\\n1\\n```", 0)
    'print(1)\\n'
    """
    answer = after_thoughts(completion)
    blocks = fenced_blocks(answer)
    python = [block for block in blocks if block[0] in ("python", "py", "python3")]
    return (python or blocks or [("", answer)])[place][1]


def reward(completion: str, example: Example, options: CodeOptions) -> Reward:
    """The share of the hidden tests that pass. A shown test that fails counts too, so 1 means that all pass."""
    program, tests = extract_program(completion), tests_of(example.fields)
    if is_humaneval(example.fields):
        program = f"{example['prompt']}\n{program}"
    verdict = judge(program, tests, options.limits)
    passed, shown = tests.counted & set(verdict.get("passed", ())), tests.counted & {tests.shown}
    share = len(passed - shown) / len(tests.counted - (passed & shown))
    parts = {"tests": share, "all": float(share == 1), "loads": float(verdict.get("loaded", False))}
    return weighted(parts, {"tests": options.tests_weight, "all": options.all_weight})


def is_humaneval(row: Row) -> bool:
    """Whether a row has the shape of HumanEval's; else it has that of MBPP's."""
    return "entry_point" in row


@dataclass(frozen=True)
class Tests:
    """What the tests' process runs: `before` once, then the statements, with the program's functions `names`. They may
    make objects of `classes`, which are the reference's. `counted` are the numbers of those that test the program.
    """

    before: str
    names: Sequence[str]
    classes: Sequence[str]
    statements: Sequence[str]
    counted: frozenset[int]
    shown: int = -1


def tests_of(row: Row) -> Tests:
    """The row's tests. The reference says which names are the program's: one that defines `abs` changes no test.
    Raises SyntaxError or ValueError for tests that are no Python.
    """
    if is_humaneval(row):
        body = _body_of_check(row["test"], row["entry_point"])
        counted = frozenset(number for number, node in enumerate(body) if _tests(node))
        return Tests(row["prompt"], [row["entry_point"]], (), [ast.unparse(node) for node in body], counted)
    row = full_columns(row)
    trees = [ast.parse(source) for source in (row["test_setup_code"], *row["test_list"])]
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    reference = ast.parse(row["code"]).body
    imports = [node for node in reference if isinstance(node, ast.Import | ast.ImportFrom)]
    classes = [node for node in reference if isinstance(node, ast.ClassDef) and node.name in used]
    before = [*map(ast.unparse, [*imports, *classes]), row["test_setup_code"]]
    names = [node.name for node in reference if isinstance(node, ast.FunctionDef) and node.name in used]
    counted = frozenset(range(len(row["test_list"])))
    return Tests("\n".join(before), names, [node.name for node in classes], row["test_list"], counted, shown=0)


def _tests(node: ast.stmt) -> bool:
    """Whether a statement tests the program: it does more than define, and more than `assert True`."""
    defines = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assign)
    return not defines and any(isinstance(part, ast.Name) for part in ast.walk(node))


def _body_of_check(test: str, entry_point: str) -> list[ast.stmt]:
    """HumanEval's `check(candidate)` as statements, of which one that fails does not stop the next."""
    body = ast.parse(test).body
    for place, check in enumerate(body):
        if isinstance(check, ast.FunctionDef) and check.name == "check" and check.args.args:
            named = ast.parse(f"{check.args.args[0].arg} = {entry_point}").body
            return [*body[:place], *named, *check.body, *body[place + 1 :]]
    raise ValueError("they do not define check(candidate)")


def judge(program: str, tests: Tests, limits: Limits) -> Mapping[str, Any]:
    """Run the tests on the program. Raises SandboxError if the sandbox failed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        candidate = sandbox.start(_call("serve", {"program.py": program.encode(errors="replace")}, limits, ours))
        try:
            patient = replace(limits, wall_s=limits.wall_s + CHECKER_EXTRA_S)
            message = json.dumps({**asdict(tests), "counted": None}).encode()
            checker = sandbox.start(replace(_call("check", {}, patient, theirs), stdin=message))
            ours.close()
            theirs.close()
            outcome = checker.result()
            verdict: Mapping[str, Any] = json.loads(outcome.stdout) if outcome.status == "ok" else {"lost": True}
            if verdict["lost"]:
                candidate.result()  # whether it was the sandbox that failed
        finally:
            candidate.cancel()
    return verdict


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


def more(_: CodeOptions) -> dict[str, Any]:
    """What is shown at the start of a run, and the references."""
    return {"notes": notes, "solution": solution}


def notes() -> tuple[str, str]:
    """How programs are run on this machine."""
    return sandbox.describe(), sandbox.describe_python()


def solution(example: Example) -> str | None:
    """The row's reference program, of HumanEval's rows the body that completes the head; None where it has none."""
    program = example.fields.get("canonical_solution" if is_humaneval(example.fields) else "code")
    return f"```python\n{program}\n```" if program else None


def dataset(options: CodeOptions) -> Dataset:
    """The problems. MBPP's and HumanEval's authors define what is held out."""
    source = HUMANEVAL if options.dataset == HUMANEVAL.hub_name else replace(MBPP, hub_name=options.dataset)
    if options.data_path:  # a file's columns tell its kind
        source = replace(source, columns=("task_id",))
    prompt = "" if options.prompt == "block" else prompt_file("code.prompt", options.prompt, ("block",))
    read = partial(_example, prompt)

    def load() -> Dataset:
        examples = {one.id: one for part in load_each(source, options.data_path, read).values() for one in part}
        is_mbpp = any(MBPP_PROBE.get(one.id) == _text(one) for one in examples.values())
        held_out = [one for one in examples.values() if (is_mbpp and one.id in MBPP_HELD_OUT) or _is_humanevals(one)]
        if not held_out:
            return split(examples.values(), options.held_out_share, by=_text)
        texts = set(map(_text, held_out))
        return Dataset([one for one in examples.values() if _text(one) not in texts], held_out, _text)

    return DeferredDataset(load)


def _is_humanevals(example: Example) -> bool:
    """Whether the row is one of HumanEval, all of which are a test set."""
    return is_humaneval(example.fields) and example.id.startswith("HumanEval/")


def _text(example: Example) -> str:
    """The identity of a problem, whatever the id of its row."""
    return identity(str(example.fields["prompt" if is_humaneval(example.fields) else "text"]))


def _example(prompt: str, row: Row) -> Example:
    """The example of a row, in a prompt's text if there is one. Refuses one that no completion could be scored on."""
    row = full_columns(row)
    missing = [name for name in (HUMANEVAL if is_humaneval(row) else MBPP).columns if name not in row]
    require(not missing, f"lacks {', '.join(missing)}: give rows with the columns of MBPP or HumanEval")
    try:
        tests = tests_of(row)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"has tests that are no Python: {error}") from error
    require(len(tests.counted - {tests.shown}) > 0, "needs another test than the shown one")
    require(bool(tests.names), "needs tests of what its reference defines")
    require(not any(map(_hides, tests.statements)), "has an assert in `try` or `with`, or gives the program a function")
    if is_humaneval(row):
        question = f"Complete this program:\n\n```python\n{row['prompt'].rstrip()}\n```"
    else:
        question = f"{row['text']}\n\nIt must pass this test:\n\n```python\n{row['test_list'][0].strip()}\n```"
    return Example(str(row["task_id"]), filled(prompt, question) if prompt else chat(INSTRUCTIONS, question), row)


def _hides(statement: str) -> bool:
    """Whether a test may hide that the program failed, or gives it what is no data."""
    nodes = list(ast.walk(ast.parse(statement)))
    tries = [node for node in nodes if isinstance(node, ast.Try | ast.TryStar | ast.With)]
    given = [one for node in nodes if isinstance(node, ast.Call) for one in node.args if isinstance(one, ast.Lambda)]
    return bool(given) or any(isinstance(one, ast.Assert) for node in tries for one in ast.walk(node))
