"""A policy behind OpenAI's API and in the terminal: clients get what the engine samples, or a refusal."""

import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice

import httpx2
import pytest

import minrl.run.setup  # noqa: F401 - the programs that are forked need it
from minrl.dataflow import Completion, Request
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate.models import run_of
from minrl.tools import serve
from minrl.tools.config import ServeConfig
from minrl.tools.serve import ApiRequest
from minrl.utils.cli import parse
from tests import evaluated
from tests.forked import Forked

QUESTION = [{"role": "user", "content": "numbers 3 7 5"}]
CHAT, TEXT = {"messages": QUESTION}, {"prompt": "numbers 3"}


def client_of(url):
    import openai  # which takes a second

    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)


@contextmanager
def serving(policy, engine, max_tokens=24, stop_strings=(), temperature=1.0):
    """The endpoint as the program has it, but with threads that end; yields its port and client."""
    sampler, ended = serve.Sampler(policy, engine, max_tokens, stop_strings), []
    listener, server = socket.create_server((serve.HOST, 0)), serve.http_server(sampler, "tiny", temperature)
    port = listener.getsockname()[1]

    def sample():
        while not ended:
            sampler.step()

    threads = [threading.Thread(target=sample), threading.Thread(target=server.run, args=([listener],))]
    for thread in threads:
        thread.daemon = True
        thread.start()
    with client_of(f"http://127.0.0.1:{port}/v1") as client:
        try:
            yield port, client
        finally:
            ended.append(True)
            sampler.submit(serve.Job(ApiRequest(prompt=QUESTION, max_tokens=1), lambda event: None))
            server.should_exit = True
            for thread in threads:
                thread.join(60)


@pytest.fixture
def endpoint(policy, engine):
    with serving(policy, engine) as served:
        yield served


def sampled(engine, prompt, seed, max_tokens, temperature=1.0):
    """What the engine itself samples in one call."""
    policy = engine.policy
    request = Request(policy.encode_prompt(prompt), seed, max_tokens)
    return engine.generate([request], Sampling(temperature, policy.stop_ids))[0]


def test_an_answer_is_what_the_engine_samples(endpoint, engine, policy):
    client = endpoint[1]
    for seed in (1, 2):
        answer = client.chat.completions.create(model="tiny", messages=QUESTION, seed=seed, max_completion_tokens=9)
        own, (choice,) = sampled(engine, QUESTION, seed, 9), answer.choices
        assert choice.message.content == policy.decode(own.ids) and choice.message.role == "assistant"
        assert choice.finish_reason == own.finish_reason
        counts = answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens
        shown, said = len(policy.encode_prompt(QUESTION)), len(own.ids)
        assert counts == (shown, said, shown + said)
    greedy = policy.decode(sampled(engine, "numbers 3", 0, 7, 0.0).ids)
    assert client.completions.create(model="tiny", **TEXT, temperature=0, max_tokens=7).choices[0].text == greedy
    with serving(policy, engine, temperature=0.0) as (_, other):  # the server's
        assert other.completions.create(model="tiny", **TEXT, max_tokens=7).choices[0].text == greedy


def test_a_stream_has_the_parts_of_the_whole(endpoint):
    create, asked = endpoint[1].chat.completions.create, {"model": "tiny", "seed": 11, "n": 3, "max_tokens": 20, **CHAT}
    whole = create(**asked)
    parts = list(create(**asked, stream=True, stream_options={"include_usage": True}))
    assert parts[-1].choices == [] and parts[-1].usage == whole.usage
    assert len({choice.message.content for choice in whole.choices}) == 3  # seeds of their own
    for choice in whole.choices:
        own = [part.choices[0] for part in parts[:-1] if part.choices[0].index == choice.index]
        assert "".join(one.delta.content for one in own) == choice.message.content
        assert [one.finish_reason for one in own] == [None] * (len(own) - 1) + [choice.finish_reason]


def test_requests_at_once_get_the_same_answers_as_alone(endpoint):
    def ask(number):
        own = {"prompt": f"numbers {number}", "seed": number, "temperature": number % 2, "max_tokens": 4 + 3 * number}
        return endpoint[1].completions.create(model="tiny", **own).choices[0].text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(1, 9))) == [*map(ask, range(1, 9))]


class Repeating(TorchEngine):
    """Says the same again and again, until it is stopped."""

    def __init__(self, policy, text):
        super().__init__(policy)
        self.said = policy.encode_text(text)

    def generate(self, requests, sampling, heard=None):
        for index, request in enumerate(requests):
            all(heard(index, token, -1.0) for token in islice(cycle(self.said), request.max_tokens))
        return [Completion([], [], "stop")] * len(requests)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_the_text_before_it(policy, stream):
    asked = {"model": "tiny", **TEXT, "max_tokens": 20, "stream": stream}
    for said, stop, of_the_run, expected in (
        ("3 + 5 7 5", {"stop": ["5 5", "7 5"]}, (), "3 + 5 "),
        ("3 + 5", {}, ("+",), "3 "),
    ):
        with serving(policy, Repeating(policy, said), stop_strings=of_the_run) as (_, client):
            answer = client.completions.create(**asked, **stop)
            parts = list(answer) if stream else [answer]
            assert "".join(part.choices[0].text for part in parts) == expected
            assert parts[-1].choices[0].finish_reason == "stop"
            assert stream or answer.usage.completion_tokens == (5 if stop else 2)  # up to the token that completed it


REFUSED = [
    (CHAT | {"top_p": 0.9}, 400, "top_p 0.9 is not supported: leave it out"),
    (CHAT | {"max_tokens": 10**6}, 400, "tokens, prompt and completion together: the prompt has .* max_tokens is"),
    ({"messages": "hello"}, 400, "messages must be a list, not empty, got"),
    (CHAT | {"model": "gpt-4"}, 404, "the model 'gpt-4' is not served here, 'tiny' is"),
    (b"[" * 10**5, 400, "the body is not a JSON object"),
]


def post(port, body, **headers):
    """The status and the body of the answer."""
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): one for name, one in headers.items()}}
    data, url = body if isinstance(body, bytes) else json.dumps(body), f"http://127.0.0.1:{port}/v1/chat/completions"
    answer = httpx2.post(url, content=data, headers=headers, timeout=60, trust_env=False)
    return answer.status_code, answer.content


def test_what_is_not_supported_is_refused_by_name_in_openais_form(endpoint):
    port, client = endpoint
    for body, status, said in REFUSED:
        found, answer = post(port, body)
        error = json.loads(answer)["error"]
        assert (found, bool(re.search(said, error["message"]))) == (status, True), (body, error)
        assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert [model.id for model in client.models.list()] == ["tiny"]
    neutral = {"top_p": 1, "user": "me", "logprobs": False, "frequency_penalty": 0}
    assert client.chat.completions.create(model="tiny", **CHAT, **neutral, max_tokens=1).usage.completion_tokens == 1


def test_pages_of_other_hosts_get_no_answer(endpoint):
    one = CHAT | {"max_tokens": 1}
    assert post(endpoint[0], one, Host="evil.example")[0] == 400  # a page whose name was bound to this machine
    assert post(endpoint[0], one, Content_Type="text/plain")[0] == 415  # what a page may send unasked
    assert post(endpoint[0], one, Host="localhost:1", Content_Type="application/json; charset=utf-8")[0] == 200


@pytest.fixture
def model(evaluated_place):
    return str(evaluated_place / "model0")


def test_a_signal_ends_the_program_while_it_answers(model):
    flags = ["--port", "0", "--device", "cpu", "--threads", "1", "--quiet"]
    command = [sys.executable, "-m", "minrl", "serve", model, *flags]
    with Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        said = program.stdout.readline()
        url = re.fullmatch(rf"(http://127.0.0.1:\d+/v1) serves {model} \({model}\); Ctrl-C ends it\n", said)[1]
        with client_of(url) as client:
            endless = {"model": model, "prompt": "numbers 3", "n": 128, "max_tokens": 1000, "stop": ["no"]}
            next(client.completions.create(**endless, stream=True))
            program.send_signal(signal.SIGTERM)
            assert program.wait(60) == 128 + signal.SIGTERM
        assert program.stderr.read().splitlines()[-1] == "interrupted"


def test_a_run_is_served_with_what_it_was_trained_with(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluated.save_run(tmp_path, "mine", model, "countdown", max_tokens=7, stop_strings=(";",))
    for name in ("mine", "checkpoints/mine/step_000001"):
        run = run_of(name)
        config = serve.as_trained(parse(ServeConfig, [name]), run)
        assert (config.checkpoint, config.max_tokens, config.stop_strings) == (name, 7, (";",))
    assert serve.as_trained(parse(ServeConfig, ["mine", "--max-tokens", "9"]), run).max_tokens == 9


def test_a_conversation_is_remembered_until_it_is_reset(policy, engine, monkeypatch, capsys):
    def answer(seed, *turns):
        messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)]
        return policy.decode(sampled(engine, messages, seed, 9).ids)

    monkeypatch.setattr(sys, "stdin", io.StringIO("numbers 3\n\nnumbers 5\n/reset\nnumbers 5\n"))
    seeds = iter(range(4, 99))
    monkeypatch.setattr(serve.secrets, "randbits", lambda bits: next(seeds))
    first = answer(4, "numbers 3")
    expected = [first, answer(5, "numbers 3", first, "numbers 5"), answer(6, "numbers 5")]
    assert serve.chat(serve.Sampler(policy, engine, 9), ServeConfig(checkpoint="tiny", chat=True), None) == 0
    assert capsys.readouterr() == ("".join(f"{one}\n" for one in expected), "")
    assert expected[1] != expected[2]  # or the test shows nothing
