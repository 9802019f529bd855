"""Keys stay in the environment: no setting, URL, record or message has one, and each goes to its own host alone."""

import json
import sys

import pytest
from loguru import logger

from minrl.dataflow import UserError
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import find_models
from minrl.rewards.chat_client import ChatClient, checked_url, is_openai, key_for
from minrl.run.records import provenance
from minrl.utils.cli import parse, run_main
from minrl.utils.console import Screen
from minrl.utils.text import without_keys
from tests.chat_server import ChatServer, answer, in_turn
from tests.parsed import sized

ASKED = {"temperature": None, "max_tokens": 1}


@pytest.mark.parametrize("secret", ["sk-proj-Abc123Def456Ghi789Jkl", "the key is secret-123456", ""])
def test_what_is_no_name_of_a_variable_is_refused_without_a_repetition(secret):
    for made in (
        lambda: sized(judge_model="m", judge_key_variable=secret),
        lambda: parse(EvaluateConfig, ["--models", "openai:m", "--api-key-variable", secret]),
    ):
        with pytest.raises(UserError, match="names the environment variable that holds the key") as error:
            made()
        assert not secret or secret not in str(error.value)


URLS = ["me:s3cretpart@host/v1", "https://host/v1?api_key=s3cretpart", "https://host/v1#s3cretpart"]
URLS += ["http://host:port/v1", "http://[host/v1", "http://", "http://api.openai.com/v1"]


def test_a_url_that_has_a_key_or_cannot_be_asked_is_refused_without_the_key():
    for url in URLS:
        for made in (
            lambda url=url: checked_url(url),
            lambda url=url: sized(judge_model="m", judge_base_url=url),
            lambda url=url: find_models([f"openai:m@{url}"]),
        ):
            with pytest.raises(UserError, match=r"base URL must|must hold no|by https alone") as error:
                made()
            assert "cretpart" not in str(error.value)


HOSTS = {
    "https://api.openai.com/v1": True,
    "https://eu.api.openai.com/v1": True,
    "https://api.openai.com.evil.example/v1": False,
    "http://127.0.0.1:8000/v1": False,
}


@pytest.mark.parametrize("url", HOSTS)
def test_the_default_variable_is_read_for_its_own_host_alone(url, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-alone")
    monkeypatch.setenv("OTHER_KEY", "of another")
    monkeypatch.delenv("NO_KEY", raising=False)
    assert is_openai(url) == HOSTS[url]
    assert key_for(url, "OPENAI_API_KEY") == ("sk-of-openai-alone" if HOSTS[url] else "")
    assert key_for(url, "OTHER_KEY") == "of another"
    with pytest.raises(UserError, match="environment variable"):
        key_for(url, "NO_KEY")


def test_neither_key_nor_account_of_openai_reaches_another_server(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, f"sk-secret-{name}")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Account: sk-secret-custom\nauthorization: Bearer sk-secret-other")
    monkeypatch.setenv("OTHER_KEY", "the server's own")
    heard = []
    server = ChatServer(in_turn(answer("4")))

    class Hearing(server.server.RequestHandlerClass):
        def do_POST(self):
            heard.append(str(self.headers))
            super().do_POST()

    server.server.RequestHandlerClass = Hearing
    try:
        for variable in ("OPENAI_API_KEY", "OTHER_KEY"):
            client = ChatClient("m", server.url, key_variable=variable)
            client.complete([{"role": "user", "content": "?"}], **ASKED)
            client.close()
    finally:
        server.close()
    assert "sk-secret" not in "".join(heard)
    assert [one.count("the server's own") for one in heard] == [0, 1]


TEXTS = {
    "cannot reach https://me:pa%24s@hub.example:8443/x": "cannot reach https://hub.example:8443/x",
    "key of the environment: environment-secret-1": "key of the environment: ***",
    "a@b.c and x@y, 50 % of http://h/a@b": "a@b.c and x@y, 50 % of http://h/a@b",
    "short and /usr/lib/a/file": "short and /usr/lib/a/file",
}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
def test_texts_are_shown_without_keys(text, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "environment-secret-1")
    monkeypatch.setenv("SSH_KEY", "/usr/lib/a/file")  # a path is no key
    monkeypatch.setenv("PROXY_PASSWORD", "short")
    assert without_keys(text) == TEXTS[text]


def test_neither_terminal_nor_log_nor_record_holds_a_key(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HF_TOKEN", "environment-secret-2")
    leaky = "https://me:hidden-password@host/ environment-secret-2"

    def crash(_arguments):
        raise RuntimeError(leaky)

    with Screen(quiet=False) as screen:
        screen.log_to(tmp_path / "log.txt")
        logger.warning(leaky)
    with pytest.raises(RuntimeError) as ended:
        run_main(crash)
    sys.excepthook(RuntimeError, ended.value, None)
    monkeypatch.setattr(sys, "argv", ["train.py", "--run-name", leaky])
    shown = [capsys.readouterr().err, (tmp_path / "log.txt").read_text(), json.dumps(provenance()["command"])]
    for text in shown:
        assert "host/ ***" in text
        assert not any(secret in text for secret in ("hidden-password", "environment-secret"))
    assert "crash" in shown[0] and "Traceback" in shown[0]
