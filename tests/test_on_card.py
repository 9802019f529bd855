"""What tests/gpu would do on a GPU, tried without one."""

import re
from pathlib import Path

import pytest
import torch
from gpu import STAGES, run_stage

from minrl.engines.vllm_server import served_by, server_command
from tests.gpu import on_card
from tests.parsed import sized


def test_a_server_that_has_died_is_not_waited_for_and_its_last_words_are_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(on_card, "SERVER_S", 60.0)
    command = 'X=1 python -c \'import os; raise SystemExit("gone " + os.environ["X"])\''
    with pytest.raises(SystemExit, match=r"ended with 1, .*\ngone 1"), on_card.served(command, 9, tmp_path / "log"):
        pass


def test_a_server_is_started_by_this_interpreter_and_ended(tmp_path, policy, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(type(policy), "device", property(lambda self: torch.device("cuda")))
    config = sized(engine="vllm-server", engine_urls="http://127.0.0.1:8001", engine_weights_dir=str(tmp_path))
    command = server_command(served_by(config, policy), policy, "http://127.0.0.1:8001")
    assert re.match(r"VLLM_SERVER_DEV_MODE=1 VLLM_USE_FLASHINFER_SAMPLER=0 python -m vllm\.", command)
    words = "import socket; s = socket.create_server((str(), 0)); print(s.getsockname()[1], flush=True); s.accept()"
    words += "; s.accept()"
    monkeypatch.setattr(on_card, "listens", lambda port: (tmp_path / "log").read_text() != "")
    with on_card.served(f'python -c "{words}"', 0, tmp_path / "log"):
        port = int((tmp_path / "log").read_text())
        assert on_card.socket.create_connection(("127.0.0.1", port))
    with pytest.raises(OSError):
        on_card.socket.create_connection(("127.0.0.1", port))


def test_freed_blocks_that_torch_keeps_do_not_count_as_used(monkeypatch):
    """After `improve` they are 1.2 GiB of a healthy card."""
    blocks = {"weights": 3, "freed": 2}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: blocks.pop("freed", None))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: ((80 - sum(blocks.values())) * 2**30, 80 * 2**30))
    assert on_card.used_gib() == 3


def test_the_stages_fit_fifteen_minutes_and_one_that_hangs_does_not_hold_up_the_next(tmp_path):
    assert sum(limit for limit, _ in STAGES.values()) < 900
    log = tmp_path / "log"
    outcome, _, seconds = run_stage(("-c", "import time; time.sleep(60)"), 0.5, log)
    assert outcome == "not done in 0.5 s" and seconds < 10
    assert run_stage(("-c", "print('first'); print('{}')"), 30, log)[:2] == ("done", "{}")
    outcome, said, _ = run_stage(("-c", "raise SystemExit('no such kernel')"), 30, log)
    assert (outcome, said) == ("failed with status 1", "no such kernel") and "first" in log.read_text()
    for _, words in STAGES.values():
        assert not words[1].endswith(".py") and (words[1] != "pytest" or Path(on_card.ROOT, words[2]).exists())
