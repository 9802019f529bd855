"""Every architecture with a causal language model head is right or refused, as docs/models.json says."""

import json

import pytest
import transformers
from test_documents import ROOT, loaded

from minrl.policy import Policy
from tests.zoo import names
from tests.zoo_check import TABLE, check, row_of

POPULAR = ("gemma2", "gpt2", "granite", "llama", "phi", "phimoe", "qwen3_moe", "reformer")
"""Checked in the fast suite; all others are slow together."""

TIED = ("doge",)
"""Refused for what a tie decides, which rounding may decide otherwise on another machine: there it may be wrong."""

PAGE = loaded(ROOT / "docs" / "architectures.py")
KEPT = json.loads(TABLE.read_text())
HOW_TO_KEEP = "look at the causes, mend them, then: python -m tests.zoo_check --write {}; python docs/architectures.py"


@pytest.mark.parametrize(
    "name", [name if name in POPULAR else pytest.param(name, marks=pytest.mark.slow) for name in names()]
)
def test_an_architecture_is_right_or_refused_as_the_table_says(name):
    found, kept = row_of(check(name)), KEPT["architectures"].get(name)
    if name in TIED:
        assert found["outcome"] in ("refused", "wrong") and kept["outcome"] == "refused"
        return
    assert found == kept, HOW_TO_KEEP.format(f"{name!r}")


def test_the_table_has_the_architectures_of_this_transformers():
    kept, there = KEPT["architectures"].keys(), set(names())
    new, gone = sorted(there - kept), sorted(kept - there)
    assert not new, f"new in transformers {transformers.__version__}: " + HOW_TO_KEEP.format(" ".join(map(repr, new)))
    assert not gone, (
        f"no longer in transformers {transformers.__version__}: take {gone} out of {TABLE.name} and tests/zoo.py"
    )


def test_nothing_is_wrong_or_raises():
    assert {row["outcome"] for row in KEPT["architectures"].values()} == {"right", "refused", "not made"}


def test_the_page_is_written_from_the_table():
    assert PAGE.page() == PAGE.PAGE.read_text(), "run python docs/architectures.py"


def test_what_differs_is_found(monkeypatch):
    right = Policy.score
    monkeypatch.setattr(Policy, "score", lambda *args: tuple(value * 1.001 for value in right(*args)))
    found = check("llama")
    assert found.outcome == "wrong" and "log-probabilities differ by" in found.reason and "gradients" in found.reason
