"""Benchmarks say what they do for as long as they do it, and take no more of the machine than they need."""

import ast
import time
from pathlib import Path

import harness
import pytest
from shapes import Work

FOLDER = Path(__file__).parent.parent / "benchmarks"
SHARED = ("harness", "shapes")
NO_THREAD = ("mutants", "table")
"""One forks, where another thread may hold a lock, and says it itself; one starts the others, which do."""
SAYING = {"doing", "compare", "Sides"}
"""What says it: the function, and what calls it before every part."""


def test_what_goes_on_is_said_again_and_again_until_something_else_does(capfd):
    voice, said = harness.Voice(every_s=0.01), ""
    for what in ("first", "second"):
        voice.doing(what)
        deadline, said = time.monotonic() + 60, ""
        while said.count(f"] {what}\n") < 3 and time.monotonic() < deadline:
            said += capfd.readouterr().err
        assert said.count(f"] {what}\n") >= 3
    voice.end()
    assert "first" not in said[said.index("second") :]
    assert harness.SAY_EVERY_S < 30


@pytest.mark.parametrize(
    "path", [p for p in sorted(FOLDER.glob("*.py")) if p.stem not in SHARED + NO_THREAD], ids=lambda path: path.stem
)
def test_every_benchmark_says_what_it_does(path):
    called = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert SAYING & {function.id for function in called if isinstance(function, ast.Name)}


def test_vllm_is_given_the_memory_of_the_rows_and_no_share_of_the_machine():
    # 64 rows of 32 + 64 tokens take a block of 128 tokens each, and one stays empty. A token is a key and a value in
    # each of 4 layers, of 4 heads x 32 dimensions of 4 bytes: 4,096 bytes.
    assert Work(size="5M").cache_bytes() == 65 * 128 * 4096
    assert Work(size="5M", max_tokens=97).cache_bytes() == (64 * 2 + 1) * 128 * 4096  # 129 tokens take a second block
    assert Work(size="1M", dtype="bfloat16").cache_bytes() == 65 * 128 * (2 * 2 * 2 * 32 * 2)
    calls = [node for node in ast.walk(ast.parse((FOLDER / "rollout.py").read_text())) if isinstance(node, ast.Call)]
    (engine,) = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "LLM")
    assert "kv_cache_memory_bytes" in {keyword.arg for keyword in engine.keywords}
