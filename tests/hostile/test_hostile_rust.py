"""Hostile Rust is scored, and earns at most what `todo!()` earns; its honest neighbour is paid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minrl.tasks import rust
from minrl.tasks.rust import RustOptions, RustReward, extract_code, refusal, silences
from minrl.tasks.rust_build import draw, working_toolchain
from minrl.tasks.rust_quality import scores
from minrl.types import Example, UserError
from tests.hostile.rust import CASES, WORDS, fenced

pytest.importorskip("tree_sitter_rust", reason="needs the rust extra (tree-sitter-rust)")


@pytest.fixture(scope="module")
def cargo_works():
    try:
        working_toolchain()
    except UserError as refused:
        pytest.skip(str(refused))


@pytest.mark.slow
@pytest.mark.usefixtures("cargo_works")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}: {case.name}")
def test_a_hostile_solution_is_scored_and_earns_no_more_than_a_stub(case):
    reward = RustReward(RustOptions(**case.options))
    paid = reward(case.completion, Example("", "", {**case.row, "completion": case.completion}))
    assert case.least <= paid.value <= case.most, paid
    assert sum(name.startswith("refused_") for name in paid.parts) <= 1


def read_whole(code):
    """All that is done with a solution's source."""
    extract_code(fenced(code))
    refusal(code, "")
    scores(code)
    silences(code, "")
    draw(code, {"f"}, of_solution=True)


def calls_of(code):
    """How many functions are called to read the source."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        read_whole(code)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("word", (*WORDS, "#[test] fn t() { assert_eq!(f(1), 1); }\n"))
def test_reading_a_solution_takes_work_in_proportion_to_its_length(word):
    short, long = (calls_of(word * (length // len(word))) for length in (500, 2_000))
    assert long < 5 * short + 200  # 4 times as long; what is quadratic takes 16 times


def test_raw_strings_without_an_end_and_quotes_alone_are_not_parsed(monkeypatch):
    monkeypatch.setattr(rust, "parse", lambda _: pytest.fail("it takes seconds"))
    for opening in ('r#"', 'br##"', '"', '""', "b'\""):
        assert refusal(opening * 10_000, "") == "syntax"


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from tests.hostile.test_hostile_rust import read_whole
for word in ("#[", "'", "std::{"):
    read_whole(word * (50_000 // len(word)))
"""


@pytest.mark.slow
def test_the_longest_hostile_solutions_are_read_within_a_limit_of_processor_time():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", LIMITED], check=True, env=environment, cwd=Path(__file__).parents[2])
