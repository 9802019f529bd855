"""The client of chat endpoints, against a real server on this machine that fails in every way. Keys stay in the
environment: no setting, URL, record or message has one, and each goes to its own host alone.
"""

import json
import sys
import threading
from contextlib import closing

import pytest
from loguru import logger

from minrl.dataflow import UserError
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import find_models
from minrl.rewards.chat_client import ChatClient, ChatError, ChatRefusal, checked_url, key_for
from minrl.run.records import provenance
from minrl.utils.cli import parse, run_main
from minrl.utils.console import Screen
from tests.chat_server import ChatServer, answer, in_turn
from tests.parsed import sized

MESSAGES = [{"role": "user", "content": "2 + 2?"}]


@pytest.fixture
def serve(monkeypatch):
    """A server that answers as told, and a client for it."""
    monkeypatch.setenv("TEST_API_KEY", "sk-secret-of-the-test")
    opened = []

    def start(reply, **settings):
        server = ChatServer(reply)
        usual = {"timeout_s": 30.0, "retries": 2, "key_variable": "TEST_API_KEY"}
        client = ChatClient("m", server.url, **{**usual, **settings})
        opened.extend([client, server])
        return server, client

    yield start
    for one in opened:
        one.close()


def ask(client, **changes):
    return client.complete(MESSAGES, **{"temperature": 0.0, "max_tokens": 9, **changes})


def test_an_answer_comes_with_its_reason_to_stop_and_its_tokens(serve):
    server, client = serve(in_turn(answer("4")))
    reply = ask(client, seed=5)
    assert (reply.text, reply.finish_reason, reply.tokens) == ("4", "stop", 3)
    assert server.asked == [{"model": "m", "messages": MESSAGES, "max_tokens": 9, "temperature": 0.0, "seed": 5}]
    assert server.headers[0]["Authorization"] == "Bearer sk-secret-of-the-test"


BUSY = (429, {"Retry-After": "0.01"}, '{"error": {"message": "slow down"}}')
BROKEN = (500, {}, "<html>oops</html>")


def test_a_busy_and_a_broken_server_are_asked_again(serve):
    server, client = serve(in_turn(BUSY, BROKEN, answer("4")))
    assert ask(client).text == "4" and len(server.asked) == 3
    server, client = serve(in_turn(BUSY), retries=1)
    with pytest.raises(ChatError, match=r"^m at http://127[^\n]*: status 429: slow down$"):
        ask(client)
    assert len(server.asked) == 2


def test_a_refused_key_is_not_asked_for_again_and_is_not_repeated(serve):
    said = '{"error": {"message": "wrong key sk-secret-of-the-test,\\n see the page"}}'
    server, client = serve(in_turn((401, {}, said)))
    with pytest.raises(ChatError) as error:
        ask(client)
    assert "status 401: wrong key ***, see the page" in str(error.value) and len(server.asked) == 1


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ((400, {}, '{"error": {"code": "content_filter", "message": "filtered"}}'), "content_filter"),
        (  # vLLM's
            (400, {}, '{"error": {"code": 400, "message": "This model\'s maximum context length is 64 tokens."}}'),
            "context_length",
        ),
        ((500, {}, '{"error": {"message": "the content_filter is down"}}'), None),
    ],
)
def test_what_a_server_refuses_for_good_is_told_from_what_failed(serve, said, kind):
    _, client = serve(in_turn(said), retries=0)
    with pytest.raises(ChatError) as error:
        ask(client)
    assert getattr(error.value, "kind", None) == kind and isinstance(error.value, ChatRefusal) == (kind is not None)


def test_a_silent_server_is_said_in_one_line(serve):
    silence = threading.Event()
    _, client = serve(lambda body: silence.wait(60) and answer("4"), timeout_s=0.2, retries=0)
    with pytest.raises(ChatError, match=r"^m at http://127[^\n]*: no answer \([^\n]*timed out\): is the server up"):
        ask(client)
    silence.set()


def test_a_key_in_place_of_the_name_of_its_variable_is_refused_without_a_repetition():
    secret = "sk-proj-Abc123Def456Ghi789Jkl"
    for made in (
        lambda: sized(judge_model="m", judge_key_variable=secret),
        lambda: parse(EvaluateConfig, ["--models", "openai:m", "--api-key-variable", secret]),
    ):
        with pytest.raises(UserError, match="names the environment variable that holds the key") as error:
            made()
        assert secret not in str(error.value)


URLS = ["me:s3cretpart@host/v1", "https://host/v1?api_key=s3cretpart", "http://api.openai.com/v1"]


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
    "https://eu.api.openai.com/v1": True,
    "https://api.openai.com.evil.example/v1": False,
    "http://127.0.0.1:8000/v1": False,
}


@pytest.mark.parametrize("url", HOSTS)
def test_the_default_variable_is_read_for_its_own_host_alone(url, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-alone")
    assert key_for(url, "OPENAI_API_KEY") == ("sk-of-openai-alone" if HOSTS[url] else "")
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(UserError, match="environment variable"):
        key_for(url, "NO_KEY")


def test_neither_key_nor_account_of_openai_reaches_another_server(serve, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, f"sk-secret-{name}")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Account: sk-secret-custom\nauthorization: Bearer sk-secret-other")
    monkeypatch.setenv("OTHER_KEY", "the server's own")
    server, client = serve(in_turn(answer("4")), key_variable="OPENAI_API_KEY")
    ask(client)
    with closing(ChatClient("m", server.url, key_variable="OTHER_KEY")) as other:
        ask(other)
    heard = [str(headers) for headers in server.headers]
    assert "sk-secret" not in "".join(heard)
    assert [one.count("the server's own") for one in heard] == [0, 1]


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
