"""Which one-line changes of the core do its tests not notice?

    python benchmarks/mutants.py                         every module of the core: an hour
    python benchmarks/mutants.py losses batch            two modules
    python benchmarks/mutants.py --sample 40 --seed 1    40 mutants drawn of each module

A mutant is a module with one comparison, sign, operator, constant, `not`, condition, unused call or returned value
changed; docstrings, annotations, decorators and assertions are left alone. The module's tests and the examples in its
docstrings run until one fails or takes too long: the mutant is noticed. Printed is each that is not, as

    function: before -> after  (file:line)

Each mutant is a fork, in a copy of the repository with one file changed: the processes that a test starts see it too.
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
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

OWN_TESTS = """advantages batch dataflow evaluation models/scoring optimizer update
    models/attention rewards/episode rewards/workers run/preflight run/stopping
    tracking/diagnostics tracking/session tracking/timers"""
TESTS = {module: [f"tests/test_{Path(module).name}.py"] for module in OWN_TESTS.split()} | {
    "engines/decoders": ["tests/test_decoder.py", "tests/test_engine.py"],
    "engines/torch_engine": ["tests/test_engine.py", "tests/test_opponent.py"],
    "engines/vllm_server": ["tests/test_vllm_server.py"],
    "engines/vllm_sync": ["tests/test_vllm_sync.py"],
    "models/logprobs": ["tests/test_scoring.py"],
    "algorithms": ["tests/test_algorithms.py", "tests/test_mixture.py", "tests/test_turn_credit.py"],
    "losses": ["tests/test_losses.py", "tests/test_algorithms.py"],
    "models/chat": ["tests/test_policy.py", "tests/test_chat.py"],
    "policy": ["tests/test_policy.py", "tests/test_activations.py", "tests/test_lora.py"],
    "rollout": ["tests/test_rollout.py", "tests/test_overlap.py"],
    "run/checkpoint": [f"tests/test_{name}.py" for name in ("checkpoint", "best", "sampled_ahead", "lora")],
    "run/folder": ["tests/test_run_folder.py", "tests/test_best.py", "tests/test_evaluate_runs.py"],
    "run/setup": ["tests/test_policy.py", "tests/test_train_loop.py"],
    "run/run": ["tests/test_run_folder.py", "tests/test_wrong_uses.py"],
    "sampling": ["tests/test_sampling.py", "tests/test_mixture.py"],
    "tracking/writers": ["tests/test_metrics.py"],
    "tracking/metrics": ["tests/test_rollout_metrics.py"],
    "trainer": ["tests/test_train_loop.py"],
    "evaluate/statistics": ["tests/test_evaluation.py"],
}
"""The modules of the core, each with its tests."""

MARKS = "not (gpu or vllm or slow or real or browser)"

PRELOADED = """torch torch.testing torch.utils.tensorboard transformers.models.qwen3.modeling_qwen3 accelerate datasets
    peft pytest jaxtyping beartype.door yaml rich.progress loguru"""

SWAPS = """Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In,
    And Or, Or And, Add Sub, Sub Add, Mult Div, Div Mult, FloorDiv Div, Mod Mult, Pow Mult, BitAnd BitOr, BitOr BitAnd
"""
SWAPPED = {before: others for before, *others in map(str.split, SWAPS.split(","))}
"""What stands in an operator's place."""

LEFT_ALONE = {"annotation", "returns", "decorator_list", "bases"}


class Mutant(NamedTuple):
    """A module's source with one change."""

    module: str
    change: str
    source: str


def changed(node: ast.AST) -> list[ast.AST]:
    """What stands in a node's place, whatever is around it."""
    match node:
        case ast.Constant(value=bool(value)):
            return [ast.Constant(not value)]
        case ast.Constant(value=int() | float() as value):
            one, zero = type(value)(1), type(value)(0)
            others = [one] if value == 0 else [value + 1, -value, *[zero] * (value == 1)]
            return [ast.Constant(other) for other in others]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.Expr(value=ast.Call()):
            return [ast.Pass()]
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign():
            fields = dict(ast.iter_fields(node))
            others = SWAPPED.get(type(node.op).__name__, [])
            return [type(node)(**{**fields, "op": getattr(ast, other)()}) for other in others]
        case ast.Compare(left=left, ops=ops, comparators=compared):
            return [
                ast.Compare(left, [*ops[:place], getattr(ast, other)(), *ops[place + 1 :]], compared)
                for place, before in enumerate(ops)
                for other in SWAPPED[type(before).__name__]
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


def replaced(node: ast.AST, function: str = "", line: int = 0) -> Iterator[tuple[str, int]]:
    """Replace one node after the other below this one by each of its replacements: the change and its line, while the
    tree has it.
    """
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for place, child in enumerate(children):
            asserts = isinstance(child, ast.Assert) or getattr(child, "arg", None) == "strict"  # zip(..., strict=True)
            if not isinstance(child, ast.AST) or asserts or field in LEFT_ALONE:
                continue
            at, before = getattr(child, "lineno", line), ast.unparse(child)
            for other in replacements(child, node, field):
                new = [*children[:place], other, *children[place + 1 :]] if isinstance(value, list) else other
                setattr(node, field, new)
                yield f"{function or 'module'}: {before} -> {ast.unparse(other)}", at
            setattr(node, field, value)
            yield from replaced(child, function, at)


def mutants_of(module: str) -> list[Mutant]:
    """Every mutant of a module."""
    tree = ast.parse((ROOT / f"minrl/{module}.py").read_text())
    return [
        Mutant(module, f"{change}  (minrl/{module}.py:{line})", ast.unparse(ast.fix_missing_locations(tree)))
        for change, line in replaced(tree)
    ]


def copy_repository(folder: Path) -> None:
    """Copy all files that git would commit."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, stdout=-1, check=True)
    for path in filter(Path.is_file, (ROOT / name for name in listed.stdout.decode().split("\0") if name)):
        (folder / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, folder / path.relative_to(ROOT))


def run_tests(folder: Path, module: str) -> None:
    """Run a module's tests in the copy of the repository, and end this process with their status."""
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        output = os.open(f"{folder}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["PYTHONPATH"] = str(folder)
        flags = ["-x", "--doctest-modules", "-p", "no:cacheprovider", f"--basetemp={folder}-temporary", "-m", MARKS]
        status = sys.modules["pytest"].main([f"minrl/{module}.py", *TESTS[module], *flags])
    finally:
        os._exit(status)


def is_noticed(folder: Path, mutant: Mutant, limit_s: float) -> bool:
    """Whether a test fails, or they do not end in time, in a fork."""
    (folder / f"minrl/{mutant.module}.py").write_text(mutant.source)
    child, deadline = os.fork(), time.monotonic() + limit_s
    if not child:
        run_tests(folder, mutant.module)
    pid, status = 0, 0
    while not pid and time.monotonic() < deadline:
        time.sleep(0.01)
        pid, status = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # all that the tests have started, too
    if not pid:
        os.waitpid(child, 0)
        print(f"  {mutant.change}: not done in {limit_s:.0f} s", flush=True)
    return not pid or status != 0


def test_module(folder: Path, module: str, sample: int, seed: int) -> tuple[int, int]:
    """How many mutants of a module are noticed, and how many were tested."""
    original, mutants = Mutant(module, "no change", (ROOT / f"minrl/{module}.py").read_text()), mutants_of(module)
    if 0 < sample < len(mutants):
        mutants = random.Random(seed).sample(mutants, sample)
    started = time.monotonic()
    if is_noticed(folder, original, 600):
        sys.exit(f"{module}: its tests fail without a change\n{Path(f'{folder}.txt').read_text()}")
    limit_s = 30 + 10 * (time.monotonic() - started)
    print(f"{module}: {len(mutants)} mutants, at most {limit_s:.0f} s each", flush=True)
    noticed = 0
    for mutant in mutants:
        if is_noticed(folder, mutant, limit_s):
            noticed += 1
        else:
            print(f"  {mutant.change}", flush=True)
    (folder / f"minrl/{module}.py").write_text(original.source)
    return noticed, len(mutants)


def main() -> None:
    """Test the mutants of the modules asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", choices=[*TESTS, []], default=list(TESTS), metavar="module")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each module, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"  # of two mutants in one second
    for name in PRELOADED.split():
        import_module(name)
    gc.freeze()  # a collection would write to every object, and copy its page
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy_repository(Path(place, "copy"))
        rows = {
            module: test_module(Path(place, "copy"), module, options.sample, options.seed) for module in options.modules
        }
    rows["all"] = tuple(map(sum, zip(*rows.values(), strict=True)))
    print(f"\n{'module':24}{'noticed':>10}{'of':>8}{'share':>9}")
    for module, (noticed, total) in rows.items():
        print(f"{module:24}{noticed:10}{total:8}{noticed / max(1, total):9.1%}")


if __name__ == "__main__":
    main()
