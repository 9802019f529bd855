"""Which one-line changes of the core do its tests not notice?

    python benchmarks/mutants.py                         every module of the core: an hour
    python benchmarks/mutants.py losses batch --jobs 2   two modules, two processes
    python benchmarks/mutants.py --sample 40 --seed 1    40 mutants drawn of each module

A mutant is a module with one comparison, sign, operator, constant, `not`, condition, unused call or returned value
changed. Docstrings, annotations, decorators and assertions are left alone. The tests named after the module and the
examples in its docstrings run until one fails: the mutant is noticed. Tests that take longer than
30 seconds and ten times what they take without a change count as failed, and the mutant is printed. Printed is, for
each module, how many mutants are noticed, and each that is not, as

    function: before -> after  (file:line)

torch and transformers are imported once. Each mutant is a fork, in a copy of the repository with one file changed:
the processes that a test starts see the change too.
"""

import argparse
import ast
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent

OWN_TESTS = """advantages batch dataflow evaluation models/scoring optimizer rollout sampling update
    models/attention rewards/episode rewards/workers run/preflight run/stopping
    tracking/diagnostics tracking/session tracking/timers"""
TESTS = {module: [f"tests/test_{Path(module).name}.py"] for module in OWN_TESTS.split()} | {
    "engines/decoders": ["tests/test_decoder.py", "tests/test_engine.py"],
    "engines/torch_engine": ["tests/test_engine.py", "tests/test_opponent.py"],
    "engines/vllm_server": ["tests/test_vllm_server.py"],
    "engines/vllm_sync": ["tests/test_vllm_sync.py"],
    "models/logprobs": ["tests/test_scoring.py"],
    "algorithms": ["tests/test_algorithms.py", "tests/test_mixture.py"],
    "losses": ["tests/test_losses.py", "tests/test_algorithms.py"],
    "models/chat": ["tests/test_policy.py"],
    "policy": ["tests/test_policy.py", "tests/test_activations.py", "tests/test_lora.py"],
    "run/checkpoint": ["tests/test_checkpoint.py", "tests/test_best.py"],
    "run/folder": ["tests/test_run_folder.py", "tests/test_best.py", "tests/test_evaluate_runs.py"],
    "run/setup": ["tests/test_policy.py", "tests/test_train_loop.py"],
    "run/run": ["tests/test_run_folder.py", "tests/test_wrong_uses.py"],
    "tracking/writers": ["tests/test_metrics.py"],
    "tracking/metrics": ["tests/test_rollout_metrics.py"],
    "trainer": ["tests/test_train_loop.py"],
    "evaluate/statistics": ["tests/test_evaluation.py"],
}
"""The modules of the core, each with its tests."""

PRELOADED = """torch torch.testing torch.utils.tensorboard transformers.models.qwen3.modeling_qwen3 accelerate datasets
    peft pytest jaxtyping beartype.door yaml rich.progress loguru"""

SWAPS = """Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In,
    And Or, Or And, Add Sub, Sub Add, Mult Div, Div Mult, FloorDiv Div, Mod Mult, Pow Mult, BitAnd BitOr, BitOr BitAnd
"""
SWAPPED = {before: others for before, *others in map(str.split, SWAPS.split(","))}
"""What stands in an operator's place."""

LEFT_ALONE = {"annotation", "returns", "decorator_list", "bases"}


@dataclass(frozen=True)
class Mutant:
    """A module's source with one change."""

    module: str
    line: int
    change: str
    source: str

    def __str__(self) -> str:
        return f"{self.change}  (minrl/{self.module}.py:{self.line})"


def changed_constants(value: object) -> list:
    """What stands in a constant's place."""
    if isinstance(value, bool):
        return [not value]
    if not isinstance(value, int | float):
        return []
    return [type(value)(1)] if value == 0 else [value + 1, -value, *[type(value)(0)] * (value == 1)]


def changed(node: ast.AST) -> list[ast.AST]:
    """What stands in a node's place, whatever is around it."""
    match node:
        case ast.Constant(value=value):
            return [ast.Constant(other) for other in changed_constants(value)]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.Expr(value=ast.Call()):
            return [ast.Pass()]
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign():
            fields = dict(ast.iter_fields(node))
            return [
                type(node)(**{**fields, "op": getattr(ast, op)()}) for op in SWAPPED.get(type(node.op).__name__, [])
            ]
        case ast.Compare(left=left, ops=ops, comparators=others):
            return [
                ast.Compare(left, [*ops[:place], getattr(ast, op)(), *ops[place + 1 :]], others)
                for place, before in enumerate(ops)
                for op in SWAPPED[type(before).__name__]
            ]
    return []


def replacements(node: ast.AST, parent: ast.AST, field: str) -> list[ast.AST]:
    """What stands in a node's place."""
    others = changed(node)
    if isinstance(parent, ast.UnaryOp) and isinstance(node, ast.Constant):  # the sign's loss is a mutant of its own
        others = [other for other in others if other.value != -node.value]
    if field == "ifs" or (field == "test" and isinstance(parent, ast.If | ast.IfExp)):
        others += [ast.Constant(True), ast.Constant(False)]
    if isinstance(parent, ast.Return) and ast.unparse(node) != "None":
        others.append(ast.Constant(None))
    return others


def sites(node: ast.AST, around: tuple[ast.AST, ...] = (), function: str = "") -> Iterator[tuple]:
    """Every node that may be replaced: what it is in, outermost first, field and place there, itself, its function."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    for field, value in ast.iter_fields(node):
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            asserts = isinstance(child, ast.Assert) or getattr(child, "arg", None) == "strict"  # zip(..., strict=True)
            if isinstance(child, ast.AST) and not asserts and field not in LEFT_ALONE:
                yield (*around, node), field, place, child, function
                yield from sites(child, (*around, node), function)


def put(parent: ast.AST, field: str, place: int, node: ast.AST) -> None:
    """Set one field of a node, or one place of a field that is a list."""
    if isinstance(getattr(parent, field), list):
        getattr(parent, field)[place] = node
    else:
        setattr(parent, field, node)


def mutants_of(module: str) -> list[Mutant]:
    """Every mutant of a module."""
    tree, found = ast.parse((ROOT / f"minrl/{module}.py").read_text()), []
    for around, field, place, node, function in sites(tree):
        line = next(outer.lineno for outer in (node, *reversed(around)) if hasattr(outer, "lineno"))
        before = ast.unparse(node)
        for other in replacements(node, around[-1], field):
            put(around[-1], field, place, other)
            change = f"{function or 'module'}: {before} -> {ast.unparse(other)}"
            found.append(Mutant(module, line, change, ast.unparse(ast.fix_missing_locations(tree))))
        put(around[-1], field, place, node)
    return found


class Copy:
    """A copy of the repository in which one file at a time is changed, and the process that tests it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.child, self.writes, self.seconds = folder, 0, 0, 0.0
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, stdout=-1, check=True)
        for path in filter(Path.is_file, (ROOT / name for name in listed.stdout.decode().split("\0") if name)):
            (folder / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / path.relative_to(ROOT))

    def write(self, module: str, source: str) -> None:
        """Put a module's source in place, with a time of its own: no mutant is taken for another's bytecode."""
        path = self.folder / f"minrl/{module}.py"
        path.write_text(source)
        self.writes += 1
        os.utime(path, (self.writes, self.writes))

    def start(self, mutant: Mutant) -> None:
        """Test a mutant in a fork."""
        self.write(mutant.module, mutant.source)
        self.mutant, self.started = mutant, time.monotonic()
        self.child = os.fork()
        if self.child:
            return
        status = 1
        try:
            os.setsid()
            os.chdir(self.folder)
            output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ["PYTHONPATH"] = str(self.folder)
            sys.path[:] = [
                entry for entry in sys.path if not Path(entry).is_relative_to(ROOT) or "site-packages" in entry
            ]
            flags = ["-x", "--doctest-modules", "-p", "no:cacheprovider", f"--basetemp={self.folder}/temporary"]
            status = sys.modules["pytest"].main([f"minrl/{mutant.module}.py", *TESTS[mutant.module], *flags])
        finally:
            os._exit(status)

    def failed(self, limit_s: float) -> bool | None:
        """Whether a test failed; None while they run."""
        self.seconds = time.monotonic() - self.started
        pid, status = os.waitpid(self.child, os.WNOHANG)
        if not pid and self.seconds < limit_s:
            return None
        print(end="" if pid else f"  {self.mutant}: not done in {limit_s:.0f} s\n", flush=True)
        with suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)
        if not pid:
            os.waitpid(self.child, 0)
        self.child = 0
        return not pid or status != 0


def unnoticed(copies: list[Copy], mutants: list[Mutant], limit_s: float) -> list[Mutant]:
    """Test the mutants, and return those that passed."""
    waiting, passed = mutants[::-1], []
    while waiting or any(copy.child for copy in copies):
        for copy in copies:
            if copy.child and (failed := copy.failed(limit_s)) is not None:
                passed += [] if failed else [copy.mutant]
                print(end="" if failed else f"  {copy.mutant}\n", flush=True)
            if not copy.child and waiting:
                copy.start(waiting.pop())
        time.sleep(0.01)
    return passed


def test_module(module: str, copies: list[Copy], options: argparse.Namespace) -> tuple[int, int]:
    """How many mutants of a module are noticed, and how many were tested."""
    original = Mutant(module, 0, "no change", (ROOT / f"minrl/{module}.py").read_text())
    mutants = mutants_of(module)
    if 0 < options.sample < len(mutants):
        mutants = random.Random(options.seed).sample(mutants, options.sample)
    copies[0].start(original)
    while (failed := copies[0].failed(600)) is None:
        time.sleep(0.01)
    if failed:
        sys.exit(f"{module}: its tests fail without a change\n{(copies[0].folder / 'output.txt').read_text()}")
    limit_s = 30 + 10 * copies[0].seconds
    print(f"{module}: {len(mutants)} mutants, at most {limit_s:.0f} s each", flush=True)
    passed = unnoticed(copies, mutants, limit_s)
    for copy in copies:
        copy.write(module, original.source)
    return len(mutants) - len(passed), len(mutants)


def main() -> None:
    """Test the mutants of the modules asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", choices=[*TESTS, []], default=list(TESTS), metavar="module")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each module, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time, one thread each")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    for name in PRELOADED.split():
        import_module(name)
    gc.freeze()  # a collection would write to every object, and copy its page
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Copy(Path(folder, str(job))) for job in range(options.jobs)]
        rows = {module: test_module(module, copies, options) for module in options.modules}
    rows["all"] = tuple(map(sum, zip(*rows.values(), strict=True)))
    print(f"\n{'module':24}{'noticed':>10}{'of':>8}{'share':>9}")
    for module, (noticed, total) in rows.items():
        print(f"{module:24}{noticed:10}{total:8}{noticed / max(1, total):9.1%}")


if __name__ == "__main__":
    main()
