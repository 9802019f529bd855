"""Architectures with a causal language model head are right or refused, as docs/models.json says of all of them."""

import json

import pytest
import transformers
from test_documents import ROOT, loaded

from minrl.policy import Policy
from tests.zoo import names
from tests.zoo_check import TABLE, check, row_of

POPULAR = ("gemma2", "gpt2", "llama", "qwen3_moe")
FURTHER = """
    bert bloom deepseek_v3 falcon_h1 gemma3 gemma4_text glm4_moe gpt_oss granitemoehybrid lfm2 llama4_text mamba mixtral
    mistral3 olmo2 openai-gpt phi3 phimoe qwen2_5_vl qwen3_5 rwkv smollm3
"""
"""One for each way to compute or to refuse; `python -m tests.zoo_check` checks all."""

PAGE = loaded(ROOT / "docs" / "architectures.py")
KEPT = json.loads(TABLE.read_text())
HOW_TO_KEEP = "look at the causes, fix them, then: python -m tests.zoo_check --write {}; python docs/architectures.py"


@pytest.mark.parametrize("name", [*POPULAR, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER.split())])
def test_an_architecture_is_right_or_refused_as_the_table_says(name):
    assert row_of(check(name)) == KEPT["architectures"][name], HOW_TO_KEEP.format(f"{name!r}")


def test_the_table_has_the_architectures_of_this_transformers_and_none_is_wrong():
    kept, there = KEPT["architectures"].keys(), set(names())
    assert kept == there, f"transformers {transformers.__version__}: " + HOW_TO_KEEP.format(" ".join(there - kept))
    assert {row["outcome"] for row in KEPT["architectures"].values()} == {"right", "refused", "not made"}


def test_the_page_is_written_from_the_table():
    assert PAGE.page() == PAGE.PAGE.read_text(), "run python docs/architectures.py"


def test_what_differs_is_found(monkeypatch):
    right = Policy.score
    monkeypatch.setattr(Policy, "score", lambda *args: tuple(value * 1.001 for value in right(*args)))
    found = check("llama")
    assert found.outcome == "wrong" and "log-probabilities differ by" in found.reason and "gradients" in found.reason
