"""What `minrl.load` samples from a run is what the run sampled: its template, its limit, its stop strings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import minrl
from minrl.dataflow import Request, UserError
from minrl.engines import Sampling
from minrl.rollout import completion_seed, heard_by


@pytest.fixture
def recorded(run):
    """Changes what the run's config.json says."""

    def change(settings, **facts):
        path = Path("runs/run/config.json")
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | facts | {"config": record["config"] | settings}))

    return change


def test_completions_are_those_of_the_runs_last_weights_by_seed(run):
    policy, asked = minrl.load("run"), "numbers 3 7"
    found = policy.generate([asked, "numbers 5"], n=3, temperature=0.7, seed=5)
    ids, inner = policy.policy.encode_prompt(asked), policy.policy
    requests = [Request(ids, completion_seed(5, 0, sample), 4) for sample in range(3)]  # the run's --max-tokens is 4
    whole = policy.engine.generate(requests, Sampling(0.7, inner.stop_ids, inner.stop_strings))
    assert found[0] == [heard_by(inner, ids, one.ids) for one in whole] and len(found[1]) == 3
    greedy = policy.generate([asked], n=2, temperature=0)[0]
    assert greedy[0] == greedy[1] and greedy != minrl.load("model").generate([asked], n=2, temperature=0)[0]
    assert max(len(text.split()) for text in policy.generate([asked], n=20, max_tokens=2)[0]) <= 2


def test_stop_strings_and_the_form_of_the_prompts_are_the_runs(recorded):
    chat = [{"role": "system", "content": "numbers 5"}, {"role": "user", "content": "numbers 7"}]
    recorded({"stop_strings": ["7"]}, prompt=chat)
    policy = minrl.load("run")
    texts = policy.generate(["numbers 7"], n=20)[0]
    assert any("7" in text for text in texts) and not any(text.partition("7")[2].strip() for text in texts)
    assert texts == policy.generate([chat], n=20)[0] != replace(policy, example="").generate(["numbers 7"], n=20)[0]


def test_a_run_of_a_task_that_only_its_program_had_is_loaded(recorded):
    recorded({"task": "gone", "tasks": {"gone": {"max_tokens": 3}}})
    assert minrl.load("run").config.max_tokens == 3


def test_wrong_uses_are_refused_in_one_line(run):
    policy = minrl.load("run")
    for given, message in (("numbers 7", "a list of prompts"), ([""], "has 0 tokens"), (["7 " * 40000], "takes 1 to")):
        with pytest.raises(UserError, match=message):
            policy.generate(given)
    with pytest.raises(UserError, match=r"cannot load model .runn.: no such folder"):
        minrl.load("runn")
