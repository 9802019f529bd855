"""Hostile Rust is scored, at 0, and its honest neighbour is paid."""

import tempfile
import time
from pathlib import Path

import pytest

from minrl.tasks.rust import RustOptions, RustReward, extract_code, runner
from minrl.tasks.rust.guard import refusal
from minrl.tasks.rust.quality import scores, share_in_macros
from minrl.tasks.rust.syntax import parse
from minrl.tasks.rust.tests import own_tests
from minrl.types import Example, UserError
from tests.hostile.rust import CASES, WORDS

pytest.importorskip("tree_sitter_rust", reason="needs the rust extra (tree-sitter-rust)")


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(prefix="minrl-rust-") as path:
        Path(path).chmod(0o755)
        try:
            runner.working_toolchain(Path(path))
        except UserError as refused:
            pytest.skip(str(refused))
        yield path


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}: {case.name}")
def test_a_hostile_solution_is_scored_and_earns_nothing(folder, case):
    reward = RustReward(RustOptions(**{"cache": folder, **case.options}))
    paid = reward(case.completion, Example("", "", {**case.row, "completion": case.completion}))
    assert case.least <= paid.value <= case.most, paid
    assert sum(name.startswith("refused_") for name in paid.parts) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS)
def test_reading_a_solution_takes_time_in_proportion_to_its_length(word):
    seconds = []
    for length in (12_500, 50_000):
        text = word * (length // len(word))
        start = time.process_time()
        extract_code(text)
        refusal(text, "", allow_unsafe=False)
        scores(text)
        share_in_macros(parse(text), "")
        own_tests(text, text)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 10 * max(seconds[0], 0.1)  # 4 times as long; what is quadratic takes 16 times
