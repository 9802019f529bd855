"""Servers that answer wrongly, extras that are missing, disks that refuse, signals at any moment: one line each."""

import json
import signal
import sys
from pathlib import Path

import pytest

from minrl.__main__ import main
from minrl.evaluate import stages
from minrl.rewards import completions
from minrl.run import setup
from minrl.sandbox import calls
from minrl.sft import demonstrations, filter
from minrl.tasks import reasoning_gym
from minrl.utils.cli import run_main
from tests.chat_server import ChatServer, answer
from tests.disks import files_up_to
from tests.killing import signalled_at
from tests.test_wrong_uses_folders import NAME, START, finished, place  # noqa: F401 - fixtures
from tests.wrong_uses import listing, refused  # noqa: F401 - a fixture

JUDGE = [*START, "--judge-model", "m", "--judge-retries", "0", "--judge-timeout-s", "2", "--judge-cache="]


def says(text, status=200, kind="application/json"):
    return lambda body: (status, {"Content-Type": kind}, text)


SERVERS = {
    "no key": (
        says('{"error": {"message": "who are you?"}}', 401),
        "status 401: who are you?",
        "key in the environment",
    ),
    "no model": (says('{"error": {"message": "no such model"}}', 404), "status 404: no such model", "base URL"),
    "busy": (says('{"error": {"message": "slow down"}}', 429), "status 429: slow down", "lower the concurrency"),
    "a page": (says("<html>Welcome to nginx</html>", kind="text/html"), "no chat completion"),
    "no JSON": (says("{oops"), "no chat completion"),
    "no text": (lambda body: answer(None), "no text"),
    "no score": (lambda body: answer("It is good."), "must be `Score: N`, N from 0 to 10", "It is good."),
    "a score out of range": (lambda body: answer("Score: 11"), "N from 0 to 10", "Score: 11"),
    "a cut off score": (lambda body: answer("Score: 1", finish_reason="length"), "[length]"),
    "a filter": (lambda body: answer(None, finish_reason="content_filter"), "content_filter"),
}


@pytest.mark.parametrize("case", SERVERS)
def test_a_judge_that_answers_wrongly_is_one_line(refused, place, case):  # noqa: F811
    reply, *words = SERVERS[case]
    server = ChatServer(reply)
    try:
        refused("train", [*JUDGE, "--judge-base-url", server.url], "m", *words)
    finally:
        server.close()


EXTRAS = {
    "vllm": ([*START, "--engine", "vllm"], "vllm", "vLLM, which is not installed", "--engine torch"),
    "lora": ([*START, "--lora-rank", "4"], "peft", "make setup EXTRA=lora"),
    "wandb": ([*START, "--logger", "wandb"], "wandb", "make setup EXTRA=wandb"),
    "judge": (JUDGE, "openai", "make setup EXTRA=judge"),
    "optim8bit": ([*START, "--optimizer", "adamw8bit"], "bitsandbytes", "make setup EXTRA=optim8bit"),
    "reasoning-gym": (["--task", "reasoning_gym/leg_counting", *START[2:]], "reasoning_gym", "EXTRA=reasoning-gym"),
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_that_is_missing_is_one_line(refused, place, monkeypatch, extra):  # noqa: F811
    flags, module, *words = EXTRAS[extra]
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("minrl.engines.vllm.installed_build", lambda: None)
    reasoning_gym.library.cache_clear()
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    refused("train", flags, *words)


DISKS = {
    "runs is a file": (lambda: Path("new").touch(), ["--runs-dir", "new"], "a file is where a folder should be"),
    "runs is below a file": (lambda: Path("new").touch(), ["--runs-dir", "new/deep"], "a file is where a folder"),
    "a name too long": (lambda: None, ["--runs-dir", "x" * 300], "File name too long"),
    "the cache of replies is a folder": (
        lambda: None, ["--judge-model", "m", "--judge-base-url", "http://127.0.0.1:1/v1", "--judge-cache", "runs"],
        "cannot open the cache of replies", "Is a directory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DISKS)
def test_a_disk_that_refuses_is_one_line(refused, place, case):  # noqa: F811
    prepare, flags, *words = DISKS[case]
    prepare()
    refused("train", [*START, *flags], *words)


def test_a_disk_that_is_full_is_one_line_wherever_something_is_written(refused, place):  # noqa: F811
    row = {"completion": "x" * 5000, "response": "x", "numbers": [3, 7, 5], "target": 9}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    rows = ["--task", "countdown", "--reward-workers", "1"]
    with files_up_to(4096):
        refused("filter", [*rows, "--data", "rows.jsonl", "--output", "kept", "--min-reward", "0"], "File too large")
        refused("evaluate", [*rows, "--completions", "rows.jsonl"], "rows.scored.jsonl", "File too large")
        refused("rollouts", [NAME], "rollouts.html", "File too large")


ROWS = ["--task", "countdown", "--reward-workers", "1"]
SIGNALS = {
    "while the parts are made": (setup, "make_optimizer", "train", START),
    "while rows are read": (demonstrations, "_demonstration", "sft", ["--data", "rows.jsonl", "--model-id", "model"]),
    "while rows are scored": (filter, "score_lines", "filter", [*ROWS, "--data", "rows.jsonl", "--output", "kept"]),
    "while completions are scored": (completions, "_scored", "evaluate", [*ROWS, "--completions", "rows.jsonl"]),
    "before an evaluation": (stages, "_run", "evaluate", ["--checkpoint", NAME, "--quiet"]),
}
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.mark.parametrize("number", STATUS, ids=lambda number: signal.Signals(number).name)
@pytest.mark.parametrize("case", SIGNALS)
def test_a_signal_ends_a_program_in_one_line_and_leaves_nothing_half_done(place, capfd, monkeypatch, case, number):  # noqa: F811
    module, moment, program, flags = SIGNALS[case]
    (place / "rows.jsonl").write_text('{"prompt": "1", "response": "2", "completion": "1"}\n')
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    before = listing(place)
    with signalled_at(module, moment, 1, number), pytest.raises(SystemExit) as ended:
        run_main(main, [program, *flags])
    said = capfd.readouterr().err.splitlines()
    assert ended.value.code == STATUS[number] and said[-1] == "interrupted" and "Traceback" not in "".join(said)
    assert listing(place) == before


LEVELS_THAT_FAIL = {
    "unknown": ("foo", "MINRL_SANDBOX_LEVEL must be one of"),
    "not here": ("limits", "no usable temporary folder"),
}


@pytest.mark.parametrize("case", LEVELS_THAT_FAIL)
def test_a_sandbox_that_does_not_work_is_refused_before_anything_slow(refused, place, monkeypatch, case):  # noqa: F811
    level, reason = LEVELS_THAT_FAIL[case]
    monkeypatch.setenv("MINRL_SANDBOX_LEVEL", level)
    monkeypatch.setattr(calls, "_unavailable", lambda name: reason)
    monkeypatch.setattr(setup, "prepare_policy", lambda *_: pytest.fail("the model was made"))
    refused("train", ["--task", "code_game", "--preflight-only"], "MINRL_SANDBOX_LEVEL", reason)
