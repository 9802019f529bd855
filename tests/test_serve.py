"""A policy behind OpenAI's API and in the terminal: clients get what the engine samples, or a refusal."""

import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import minrl.run.setup  # noqa: F401 - the programs that are forked need it
from minrl.dataflow import Completion, Request, UserError
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate.models import run_of
from minrl.tasks.countdown import CountdownOptions
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

    targets = (sample, ()), (server.run, ([listener],))
    threads = [threading.Thread(target=target, args=given, daemon=True) for target, given in targets]
    for thread in threads:
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


@pytest.fixture
def client(endpoint):
    return endpoint[1]


def sampled(engine, prompt, seed, max_tokens, temperature=1.0):
    """What the engine itself samples in one call."""
    policy = engine.policy
    request = Request(policy.encode_prompt(prompt), seed, max_tokens)
    return engine.generate([request], Sampling(temperature, policy.stop_ids))[0]


def test_an_answer_is_what_the_engine_samples(client, engine, policy):
    for seed in range(1, 5):
        answer = client.chat.completions.create(model="tiny", messages=QUESTION, seed=seed, max_completion_tokens=9)
        own, (choice,) = sampled(engine, QUESTION, seed, 9), answer.choices
        assert choice.message.content == policy.decode(own.ids) and choice.message.role == "assistant"
        assert choice.finish_reason == own.finish_reason
        assert answer.usage.prompt_tokens == len(policy.encode_prompt(QUESTION))
        assert answer.usage.completion_tokens == len(own.ids)
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    greedy = policy.decode(sampled(engine, "numbers 3", 0, 7, 0.0).ids)
    assert client.completions.create(model="tiny", **TEXT, temperature=0, max_tokens=7).choices[0].text == greedy
    with serving(policy, engine, temperature=0.0) as (_, other):  # the server's
        assert other.completions.create(model="tiny", **TEXT, max_tokens=7).choices[0].text == greedy


def test_a_stream_has_the_parts_of_the_whole(client):
    create, asked = client.chat.completions.create, {"model": "tiny", "seed": 11, "n": 3, "max_tokens": 20, **CHAT}
    whole = create(**asked)
    parts = list(create(**asked, stream=True, stream_options={"include_usage": True}))
    assert parts[-1].choices == [] and parts[-1].usage == whole.usage
    assert len({part.id for part in parts}) == 1
    assert len({choice.message.content for choice in whole.choices}) == 3  # seeds of their own
    for choice in whole.choices:
        own = [part.choices[0] for part in parts[:-1] if part.choices[0].index == choice.index]
        assert "".join(one.delta.content for one in own) == choice.message.content
        assert [one.finish_reason for one in own] == [None] * (len(own) - 1) + [choice.finish_reason]


def test_requests_at_once_get_the_same_answers_as_alone(client):
    asked = [
        {"prompt": f"numbers {number}", "seed": number, "temperature": number % 2, "max_tokens": 4 + 3 * number}
        for number in range(1, 9)
    ]

    def ask(one):
        return client.completions.create(model="tiny", **one).choices[0].text

    alone = list(map(ask, asked))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, asked)) == alone
    assert len({client.completions.create(model="tiny", **TEXT).choices[0].text for _ in range(4)}) > 1  # no seed


class Endless(TorchEngine):
    """Says the same again and again, until it is stopped."""

    context_length = 10**9

    def __init__(self, policy, text):
        super().__init__(policy)
        self.said = policy.encode_text(text)
        self.calls = []

    def generate(self, requests, sampling, heard=None):
        self.calls.append((len(requests), sampling.temperature))
        going, position = set(range(len(requests))), 0
        while going:
            for index in list(going):
                token = self.said[position % len(self.said)]
                if not heard(index, token, -1.0) or position + 1 == requests[index].max_tokens:
                    going.discard(index)
            position += 1
            time.sleep(0.001)
        return [Completion([], [], "stop")] * len(requests)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_the_text_before_it(policy, stream):
    asked = {"model": "tiny", **TEXT, "max_tokens": 100, "stream": stream}
    with serving(policy, Endless(policy, "3 + 5 7 5")) as (_, client):
        answer = client.completions.create(**asked, stop=["5 5", "7 5"])
        parts = list(answer) if stream else [answer]
        assert "".join(part.choices[0].text for part in parts) == "3 + 5 "
        assert parts[-1].choices[0].finish_reason == "stop"
        assert stream or answer.usage.completion_tokens == 5  # up to the token that completed it
    with serving(policy, Endless(policy, "3 + 5"), stop_strings=("+",)) as (_, client):  # the run's
        answer = client.completions.create(**asked)
        assert "".join(part.choices[0].text for part in (answer if stream else [answer])) == "3 "


def test_what_waits_when_a_batch_ends_is_the_next_one(policy):
    engine = Endless(policy, "7")
    sampler, told = serve.Sampler(policy, engine, 3), []
    for temperature in (0.5, 1.0, 0.5):
        request = ApiRequest(prompt="numbers 3", temperature=temperature, n=2)
        sampler.submit(serve.Job(request, lambda event: told.append(event)))
    sampler.step()
    assert engine.calls == [(4, 0.5), (2, 1.0)] and len(told) == 3 + 6


def says(content, **more):
    return {"messages": [{"role": "user", "content": content, **more}]}


REFUSED = [
    (CHAT | {"top_p": 0.9}, 400, "top_p 0.9 is not supported: leave it out"),
    (CHAT | {"n": 0}, 400, "n must be from 1 to 128, got 0"),
    (CHAT | {"max_tokens": 10**6}, 400, "tokens, prompt and completion together: the prompt has .* max_tokens is"),
    (CHAT | {"stop": 3}, 400, "stop must be a list, got 3"),
    ({"messages": "hello"}, 400, "messages must be a list, not empty, got"),
    (says("hello"), 400, "words that the model's tokenizer lacks .'hello'"),
    (CHAT | {"model": "gpt-4"}, 404, "the model 'gpt-4' is not served here, 'tiny' is"),
    (b"[" * 10**5, 400, "the body is not a JSON object"),
]


def post(port, body, **headers):
    """The status and the body of the answer."""
    kind = "completions" if isinstance(body, dict) and "prompt" in body else "chat/completions"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): one for name, one in headers.items()}}
    connection.request("POST", f"/v1/{kind}", data, headers)
    answer = connection.getresponse()
    told = answer.status, answer.read()
    connection.close()
    return told


def test_what_is_not_supported_is_refused_by_name_in_openais_form(endpoint):
    import openai

    port, client = endpoint
    for body, status, said in REFUSED:
        found, answer = post(port, body)
        error = json.loads(answer)["error"]
        assert (found, bool(re.search(said, error["message"]))) == (status, True), (body, error)
        assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match=r"top_p 0\.5 is not supported"):
        client.chat.completions.create(model="tiny", **CHAT, top_p=0.5)
    assert [model.id for model in client.models.list()] == ["tiny"]
    neutral = {"top_p": 1, "user": "me", "logprobs": False, "frequency_penalty": 0}
    assert client.chat.completions.create(model="tiny", **CHAT, **neutral, max_tokens=1).usage.completion_tokens == 1


def test_pages_of_other_hosts_get_no_answer(endpoint):
    one = CHAT | {"max_tokens": 1}
    assert post(endpoint[0], one, Host="evil.example")[0] == 400  # a page whose name was bound to this machine
    assert post(endpoint[0], one, Content_Type="text/plain")[0] == 415  # what a page may send unasked
    assert post(endpoint[0], one, Host="localhost:1", Content_Type="application/json; charset=utf-8")[0] == 200


# The program


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return evaluated.save_models(tmp_path_factory.mktemp("served"))[0]


def test_a_signal_ends_the_program_while_it_answers(model):
    flags = ["--port", "0", "--device", "cpu", "--threads", "1", "--quiet"]
    command = [sys.executable, "-m", "minrl", "serve", model, *flags]
    program = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = program.stdout.readline().decode()
    url = re.fullmatch(rf"(http://127.0.0.1:\d+/v1) serves {model} \({model}\); Ctrl-C ends it\n", said)[1]
    with client_of(url) as client:
        assert client.completions.create(model=model, prompt="numbers 3").usage.prompt_tokens == 2
        endless = {"model": model, "prompt": "numbers 3", "n": 128, "max_tokens": 1000, "stop": ["no"]}
        next(client.completions.create(**endless, stream=True))
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 128 + signal.SIGTERM
    assert program.stderr.read().splitlines()[-1] == b"interrupted"
    program.stdout.close()
    program.stderr.close()


def test_a_run_is_served_with_what_it_was_trained_with(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluated.save_run(tmp_path, "mine", model, "countdown", max_tokens=7, stop_strings=(";",))
    for name in ("mine", "checkpoints/mine/step_000001"):
        run = run_of(name)
        config = serve.as_trained(parse(ServeConfig, [name]), run)
        assert (config.checkpoint, config.max_tokens, config.stop_strings) == (name, 7, (";",))
    assert serve.as_trained(parse(ServeConfig, ["mine", "--max-tokens", "9"]), run).max_tokens == 9
    evaluated.save_run(tmp_path, "own", model, "countdown", options={"countdown": CountdownOptions(max_tokens=5)})
    record = json.loads(Path("runs/own/config.json").read_text())
    Path("runs/own/config.json").write_text(json.dumps({**record, "task_stop_strings": ["</call>"]}))
    config = serve.as_trained(parse(ServeConfig, ["own"]), run_of("own"))
    assert (config.max_tokens, config.stop_strings) == (5, ("</call>",))  # the task's own


# The terminal


@pytest.fixture
def say(policy, engine, monkeypatch, capsys):
    """Chats with these lines as standard input, with the seeds 4, 5, ...; returns standard output and error."""

    def said(*lines, example=None, **settings):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        seeds = iter(range(4, 99))
        monkeypatch.setattr(serve.secrets, "randbits", lambda bits: next(seeds))
        config = ServeConfig(checkpoint="tiny", chat=True, **settings)
        assert serve.chat(serve.Sampler(policy, engine, 9), config, example) == 0
        return capsys.readouterr()

    return said


def conversation(*turns):
    roles = ("user", "assistant") * len(turns)
    return [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]


def test_a_conversation_is_remembered_until_it_is_reset(say, engine, policy):
    def answer(seed, *turns):
        return policy.decode(sampled(engine, conversation(*turns), seed, 9).ids)

    first = answer(4, "numbers 3")
    second, third = answer(5, "numbers 3", first, "numbers 5"), answer(6, "numbers 5")
    out, err = say("numbers 3", "", "numbers 5", "/reset", "numbers 5")
    assert (out, err) == (f"{first}\n{second}\n{third}\n", "")
    assert second != third  # or the test shows nothing


def test_a_line_is_the_whole_prompt_where_the_tasks_prompts_are_texts(say, engine, policy):
    policy.tokenizer.chat_template = None  # none is needed
    first, second = (policy.decode(sampled(engine, "numbers 3", seed, 9).ids) for seed in (4, 5))
    assert say("numbers 3", "numbers 3", example="numbers 5") == (f"{first}\n{second}\n", "")
    with pytest.raises(UserError, match="--system is for chats"):
        say("numbers 3", system="be brief", example="numbers 5")
    assert "no chat template" in say("numbers 3").err
