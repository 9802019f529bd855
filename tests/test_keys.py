"""Keys stay in the environment: no setting, URL, record or message has one, and each goes to its own host alone."""

import json
import subprocess
import sys

import pytest
from loguru import logger

from minrl.config import JudgeConfig
from minrl.evaluate.config import ApiConfig, EvaluateConfig
from minrl.evaluate.models import find_models
from minrl.rewards import chat_client
from minrl.rewards.chat_client import ChatClient, ChatError
from minrl.run.provenance import provenance
from minrl.types import UserError
from minrl.utils.cli import parse, run_main
from minrl.utils.console import Screen
from minrl.utils.keys import BY_SHAPE, about_key, checked_url, is_loopback, is_openai, key_for, without_keys
from tests.chat_server import ChatServer, answer, in_turn
from tests.parsed import parsed

SECRETS = {
    "openai": "sk-proj-Abc123Def456Ghi789Jkl",
    "lower case": "gsk_abcdefghij0123456789klmn",
    "hugging face": "hf_abcdefghij0123456789klmnopqrstuvw",
    "aws": "AKIA0123456789ABCDEF",
    "google": "AIzaSyA0123456789abcdefghijklmno",
    "hexadecimal": "0123456789ABCDEF0123456789ABCDEF",
    "capitals": "AB12CD34EF56GH78IJ90",
    "with an underscore": "PREFIX_0123456789ABCDEF01",
    "a sentence": "the key is secret-123456",
    "empty": "",
    "a shell's": "$OPENAI_API_KEY",
    "long": "A" * 65,
}


@pytest.fixture(autouse=True)
def _nothing_said_yet():
    chat_client._say_once.cache_clear()
    yield
    chat_client._say_once.cache_clear()


@pytest.mark.parametrize("name", SECRETS)
def test_what_is_no_name_of_a_variable_is_refused_without_a_repetition(name, capsys):
    secret = SECRETS[name]
    for made in (
        lambda: JudgeConfig(judge_model="m", judge_key_variable=secret),
        lambda: ApiConfig(api_key_variable=secret),
        lambda: parse(EvaluateConfig, ["--models", "openai:m", "--api-key-variable", secret]),
        lambda: parsed(["--judge-model", "m", f"--judge-key-variable={secret}"]),
    ):
        with pytest.raises(UserError, match="names the environment variable that holds the key") as error:
            made()
        assert not secret or secret not in str(error.value)


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "MY_KEY_2", "_KEY", "K", "OPENROUTER_API_KEY"])
def test_names_of_variables_are_taken(name):
    assert JudgeConfig(judge_model="m", judge_key_variable=name).judge_key_variable == name


URLS = {
    "user": "http://me:s3cretpart@host/v1",
    "user alone": "https://s3cretpart@host/v1",
    "no scheme": "me:s3cretpart@host/v1",
    "another scheme": "ftp://me:s3cretpart@host/v1",
    "an at in the password": "http://me:s3@cretpart@host/v1",
    "query": "https://host/v1?api_key=s3cretpart",
    "fragment": "https://host/v1#s3cretpart",
    "path": "https://host/sk-s3cretpart-0123456789abcdef/v1",
}


@pytest.mark.parametrize("case", URLS)
def test_a_url_with_a_key_is_refused_without_a_repetition(case):
    for made in (
        lambda: checked_url(URLS[case]),
        lambda: JudgeConfig(judge_model="m", judge_base_url=URLS[case]),
        lambda: find_models([f"openai:m@{URLS[case]}"]),
    ):
        with pytest.raises(UserError, match=r"(base URL must|must hold no)") as error:
            made()
        assert "cretpart" not in str(error.value)


@pytest.mark.parametrize("url", ["http://[::1/v1", "http://host:port/v1", "https:///v1", "http://api.openai.com/v1"])
def test_a_url_that_cannot_be_asked_is_one_line(url):
    with pytest.raises(UserError, match=r"base URL must|by https alone"):
        checked_url(url)


HOSTS = {
    "https://api.openai.com/v1": True,
    "https://eu.api.openai.com/v1": True,
    "https://API.OPENAI.COM/v1": True,
    "https://api.openai.com.evil.example/v1": False,
    "https://evil.example/api.openai.com/v1": False,
    "https://notapi.openai.com/v1": False,
    "https://openai.com/v1": False,
    "http://127.0.0.1:8000/v1": False,
}


@pytest.mark.parametrize("url", HOSTS)
def test_the_default_variable_is_read_for_its_own_host_alone(url, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-alone")
    monkeypatch.setenv("OTHER_KEY", "of another")
    assert is_openai(url) == HOSTS[url]
    assert key_for(url, "OPENAI_API_KEY") == ("sk-of-openai-alone" if HOSTS[url] else "")
    assert key_for(url, "OTHER_KEY") == "of another"
    said = about_key(url, key_for(url, "OPENAI_API_KEY"))
    assert ("alone and is not sent" in said) == (not HOSTS[url]) and "sk-of" not in said


def test_a_variable_that_was_named_must_hold_something(monkeypatch):
    monkeypatch.delenv("OTHER_KEY", raising=False)
    with pytest.raises(UserError, match=r"the environment variable OTHER_KEY, .* is empty or not set"):
        key_for("http://127.0.0.1:1/v1", "OTHER_KEY")


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
            client.complete([{"role": "user", "content": "?"}], temperature=None, max_tokens=1)
            client.close()
    finally:
        server.close()
    assert "sk-secret" not in "".join(heard)
    assert [one.count("the server's own") for one in heard] == [0, 1]


def test_plain_http_to_another_machine_is_said():
    for url, said in (("http://10.1.2.3:8000/v1", True), ("https://10.1.2.3/v1", False), ("http://[::1]:1/v1", False)):
        assert ("can be read on the way" in about_key(url, "key")) == said
    assert "texts and the key can" in about_key("http://host/v1", "key") and "texts can" in about_key(
        "http://host/v1", ""
    )
    assert not any(map(is_loopback, ["0.0.0.0", "127.0.0.1.example", "localhost.example", "10.0.0.1", ""]))
    lines = []
    number = logger.add(lines.append, format="{message}", level="WARNING")
    for _ in range(2):
        ChatClient("m", "http://10.1.2.3:8000/v1").close()
    logger.remove(number)
    assert len(lines) == 1 and "can be read on the way" in lines[0]


def test_a_server_that_repeats_a_key_is_not_believed(monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "own-key-of-the-server")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    echo = json.dumps({"error": {"message": "own-key-of-the-server 0123456789abcdef http://me:pw@host/"}})
    server = ChatServer(in_turn((401, {}, echo)))
    client = ChatClient("m", server.url, key_variable="OTHER_KEY", retries=0)
    with pytest.raises(ChatError) as error:
        client.complete([{"role": "user", "content": "?"}], temperature=None, max_tokens=1)
    client.close()
    server.close()
    assert "*** *** http://host/" in str(error.value)


TEXTS = {
    "cannot reach https://me:pa%24s@hub.example:8443/x": "cannot reach https://hub.example:8443/x",
    "GET http://h/v1?a=1&api_key=abc&b=2": "GET http://h/v1?a=1&api_key=***&b=2",
    "wss://token@h and ftp://u:p@h/f": "wss://h and ftp://h/f",
    "key sk-abcdefghijklmnop123 is wrong": "key *** is wrong",
    "of the environment: environment-secret-1": "of the environment: ***",
    "a@b.c and x@y, 50 % of http://h/a@b": "a@b.c and x@y, 50 % of http://h/a@b",
    "sk-learn, hf_hub_download and /usr/lib": "sk-learn, hf_hub_download and /usr/lib",
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_shown_without_keys(text, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "environment-secret-1")
    monkeypatch.setenv("SSH_KEY", "/usr/lib/a/file")  # a path is no key
    monkeypatch.setenv("PROXY_PASSWORD", "short")
    assert without_keys(text) == TEXTS[text]


@pytest.mark.parametrize("start", ["sk-", "hf_", "github_pat_", "sk-hf_"])
def test_a_text_is_searched_for_keys_once(start):
    """Matches do not overlap: where one takes a whole run of beginnings, no character is read for each of them."""
    text = start * 1000
    assert [found[0] for found in BY_SHAPE.finditer(text)] == [text]
    assert without_keys(text) == text and without_keys(f"{text}7") == "***"


def test_neither_terminal_nor_log_nor_record_holds_a_key(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HF_TOKEN", "environment-secret-2")
    leaky = "https://me:hidden-password@host/ environment-secret-2 sk-abcdefghijklmnop123"

    def fail(_arguments):
        raise UserError(leaky)

    def crash(_arguments):
        raise RuntimeError(leaky)

    with Screen(quiet=False) as screen:
        logger.warning(leaky)
        screen.log_to(tmp_path / "log.txt")
        try:
            raise RuntimeError(leaky)
        except RuntimeError:
            logger.exception("a traceback")
    with pytest.raises(SystemExit):
        run_main(fail)
    with pytest.raises(RuntimeError) as ended:
        run_main(crash)
    sys.excepthook(RuntimeError, ended.value, None)
    monkeypatch.setattr(sys, "argv", ["train.py", "--note", leaky])
    shown = [capsys.readouterr().err, (tmp_path / "log.txt").read_text(), json.dumps(provenance()["command"])]
    for text in shown:
        assert "host/ *** ***" in text
        assert not any(secret in text for secret in ("hidden-password", "environment-secret", "sk-abc"))
    assert "crash" in shown[0] and "Traceback" in shown[0]


def test_help_shows_no_value_of_the_environment(monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    with pytest.raises(SystemExit):
        parse(EvaluateConfig, ["--help-all"])
    assert "sk-of" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_refused_key_is_in_no_file(tmp_path):
    secret = SECRETS["openai"]
    for program, flag in (("train.py", "--judge-key-variable"), ("evaluate.py", "--api-key-variable")):
        command = [sys.executable, program, flag, secret, "--runs-dir", str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 2 and secret not in ended.stdout + ended.stderr
    assert not any(secret in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
