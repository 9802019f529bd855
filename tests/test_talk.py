"""A chat in the terminal: what is shown, what is remembered, and how it ends."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from minrl.tools.serve import talk
from minrl.tools.serve.config import ServeConfig
from minrl.tools.serve.sampler import Sampler
from minrl.types import UserError
from tests import evaluated
from tests.forked import Forked
from tests.test_serve import Endless, sampled


@pytest.fixture
def say(policy, engine, monkeypatch, capsys):
    """Talks with these lines as standard input; yields standard output and error."""

    def said(*lines, engine=engine, example=None, **settings):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        config = ServeConfig(checkpoint="tiny", chat=True, **settings)
        assert talk.talk(Sampler(policy, engine, 9), config, example) == 0
        return capsys.readouterr()

    return said


def asked(*turns):
    """A conversation in which the user speaks first."""
    roles = ("user", "assistant") * len(turns)
    return [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]


def test_a_conversation_is_remembered_until_it_is_reset(say, engine, policy):
    def answer(seed, *turns):
        return policy.decode(sampled(engine, asked(*turns), seed, 9).ids)

    first = answer(4, "numbers 3")
    second = answer(5, "numbers 3", first, "numbers 5")
    third = answer(6, "numbers 5")
    out, err = say("numbers 3", "", "numbers 5", "/reset", "numbers 5", seed=4)
    assert (out, err) == (f"{first}\n{second}\n{third}\n", "")
    assert second != third  # or the test shows nothing


def test_a_line_is_the_whole_prompt_where_the_tasks_prompts_are_texts(say, engine, policy):
    policy.tokenizer.chat_template = None  # none is needed

    def answer(seed):
        return policy.decode(sampled(engine, "numbers 3", seed, 9).ids)

    out, err = say("numbers 3", "numbers 3", seed=4, example="numbers 5")
    assert (out, err) == (f"{answer(4)}\n{answer(5)}\n", "")
    with pytest.raises(UserError, match="--system is for chats"):
        say("numbers 3", system="be brief", example="numbers 5")


def test_the_system_message_comes_first(policy, engine, monkeypatch):
    shown = []
    monkeypatch.setattr(policy, "encode_prompt", lambda prompt: shown.append(prompt) or [5, 6])
    config = ServeConfig(checkpoint="tiny", chat=True, system="be brief")
    conversation = talk.Conversation(Sampler(policy, engine, 3), config)
    conversation.answer("numbers 3", lambda text: None)
    conversation.reset()
    conversation.answer("numbers 5", lambda text: None)
    assert [[message["content"] for message in prompt] for prompt in shown] == [
        ["be brief", "numbers 3"],
        ["be brief", "numbers 5"],
    ]


def test_quit_ends_it_and_other_commands_are_named(say):
    out, err = say("/help", "/quit", "numbers 3")
    assert out == "" and err.startswith("there is no /help: /reset forgets")


def test_a_message_that_the_model_cannot_read_is_refused_and_forgotten(say):
    out, err = say("hello", "numbers 3", "numbers " * 2000, temperature=0.0)
    assert len(out.splitlines()) == 1
    first, second = err.splitlines()
    assert first.startswith("error: ") and "'hello'" in first
    assert "tokens, prompt and completion together" in second and second.endswith("(/reset begins again)")


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(say, policy):
    class Stopped(Endless):
        """Presses the keys in its second answer."""

        rounds = 0

        def generate(self, requests, sampling, heard=None):
            def then_stop(index, token, logprob):
                self.rounds += 1
                if self.rounds == 3:
                    signal.raise_signal(signal.SIGINT)
                return heard(index, token, logprob)

            super().generate(requests, sampling, then_stop)

    before = signal.getsignal(signal.SIGINT)
    out, err = say("numbers 3", "numbers 5", engine=Stopped(policy, "7"))
    assert signal.getsignal(signal.SIGINT) == before and err == ""
    assert len(out.splitlines()) == 2  # the first was stopped, the second has its nine tokens
    assert out.splitlines()[1].split() == ["7"] * 9


def test_a_model_without_a_chat_template_is_refused_at_once(say, policy):
    policy.tokenizer.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        say("numbers 3")


def test_input_that_is_no_text_is_refused(policy, engine, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    with pytest.raises(UserError, match="standard input is not utf-8"):
        talk.talk(Sampler(policy, engine, 3), ServeConfig(checkpoint="tiny", chat=True))


def test_what_the_model_says_commands_no_terminal(policy, engine, monkeypatch):
    monkeypatch.setattr(policy, "decode", lambda ids: "\x1b[2J")
    shown = []
    monkeypatch.setattr(sys.stdout, "write", shown.append)
    conversation = talk.Conversation(Sampler(policy, engine, 3), ServeConfig(checkpoint="tiny", chat=True))
    talk._answer(conversation, "numbers 3", terminal=True)
    assert "".join(shown) == "\\x1b[2J\n"


def test_a_terminal_has_a_prompt_and_ctrl_d_ends_it(tmp_path):
    model = evaluated.save_models(tmp_path)[0]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "minrl", "serve", model, "--chat", "--max-tokens", "3", "--device", "cpu"]
    environment = {**os.environ, "TERM": "dumb"}
    program = Forked(
        [*command, "--threads", "1", "--quiet"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment
    )
    os.close(theirs)
    seen = b""

    def until(pattern):
        nonlocal seen
        deadline = time.monotonic() + 60
        while not re.search(pattern, seen):
            assert time.monotonic() < deadline, seen
            seen += os.read(ours, 1024)
        seen = b""

    until(rb"> $")
    os.write(ours, b"numbers 3\n")
    until(rb"numbers 3\r\n[^>]*\r\n> $")
    os.write(ours, b"\x04")
    assert program.wait(60) == 0
    assert b"Ctrl-C stops an answer" in program.stderr.read()
    program.stderr.close()
    os.close(ours)
