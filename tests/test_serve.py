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

import openai
import pytest

import minrl.run.setup  # noqa: F401 - the programs that are forked need it
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate.models import find_runs
from minrl.tools.serve import sampler as sampling
from minrl.tools.serve import serve
from minrl.tools.serve.api import ApiRequest
from minrl.tools.serve.config import ServeConfig
from minrl.types import Completion, Request, UserError
from minrl.utils.cli import parse
from tests import evaluated
from tests.forked import Forked

QUESTION = [{"role": "user", "content": "numbers 3 7 5"}]
CHAT, TEXT = {"messages": QUESTION}, {"prompt": "numbers 3"}


@contextmanager
def serving(policy, engine, max_tokens=24, stop_strings=()):
    """The endpoint as the program has it, but with threads that end; yields its sampler, port and client."""
    sampler, ended = sampling.Sampler(policy, engine, max_tokens, stop_strings), []
    listener, server = serve.listen(0), serve.http_server(sampler, "tiny")
    port = listener.getsockname()[1]

    def sample():
        while not ended:
            sampler.step()

    threads = [threading.Thread(target=sample), threading.Thread(target=server.run, args=([listener],))]
    for thread in threads:
        thread.start()
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield sampler, port, client
    ended.append(True)
    last = sampling.Job(ApiRequest(prompt=QUESTION, max_tokens=1), lambda event: None)
    sampler.submit(last)
    server.should_exit = True
    for thread in threads:
        thread.join()


@pytest.fixture
def endpoint(policy, engine):
    with serving(policy, engine) as served:
        yield served


@pytest.fixture
def client(endpoint):
    return endpoint[2]


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
    greedy = client.completions.create(model="tiny", prompt="numbers 3", temperature=0, max_tokens=7)
    assert greedy.choices[0].text == policy.decode(sampled(engine, "numbers 3", 0, 7, 0.0).ids)


def test_a_text_without_a_limit_has_16_tokens_and_a_chat_those_of_the_server(policy):
    with serving(policy, Endless(policy, "7")) as (_, _, client):
        chat = client.chat.completions.create(model="tiny", messages=QUESTION)
        text = client.completions.create(model="tiny", prompt="numbers 3")
    assert (chat.usage.completion_tokens, text.usage.completion_tokens) == (24, 16)
    assert chat.choices[0].finish_reason == text.choices[0].finish_reason == "length"


@pytest.mark.parametrize("most", [1, 3])
def test_rounds_change_no_token(policy, engine, monkeypatch, most):
    rest = sampling.Choice.rest

    def shortened(choice):
        request = rest(choice)
        return Request(request.ids, request.seed, min(most, request.max_tokens))

    monkeypatch.setattr(sampling.Choice, "rest", shortened)
    with serving(policy, engine) as (_, _, client):
        for seed in range(1, 4):
            answer = client.completions.create(model="tiny", prompt="numbers 3 7", seed=seed, max_tokens=12)
            assert answer.choices[0].text == policy.decode(sampled(engine, "numbers 3 7", seed, 12).ids)


@pytest.mark.parametrize("chat", [True, False])
def test_a_stream_has_the_parts_of_the_whole(client, chat):
    create = client.chat.completions.create if chat else client.completions.create
    asked = {"model": "tiny", "seed": 11, "n": 3, "max_tokens": 20} | (CHAT if chat else TEXT)
    whole = create(**asked)
    parts = list(create(**asked, stream=True, stream_options={"include_usage": True}))
    assert parts[-1].choices == [] and parts[-1].usage == whole.usage
    assert len({part.id for part in parts}) == 1
    assert len({str(choice.message if chat else choice.text) for choice in whole.choices}) == 3  # seeds of their own
    for choice in whole.choices:
        own = [part.choices[0] for part in parts[:-1] if part.choices[0].index == choice.index]
        texts = [one.delta.content if chat else one.text for one in own]
        assert "".join(texts) == (choice.message.content if chat else choice.text)
        assert [one.finish_reason for one in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        assert not chat or [one.delta.role for one in own] == ["assistant"] + [None] * (len(own) - 1)


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
    calls = rows = 0

    def __init__(self, policy, text):
        super().__init__(policy)
        self.said = policy.encode_text(text)

    def generate(self, requests, sampling, heard=None):
        self.calls, self.rows = self.calls + 1, max(self.rows, len(requests))
        going, position = set(range(len(requests))), 0
        while going:
            for index in list(going):
                spoken = len(requests[index].ids) + position - 2  # the prompts of these tests have two tokens
                token = self.said[spoken % len(self.said)]
                if not heard(index, token, -1.0) or position + 1 == requests[index].max_tokens:
                    going.discard(index)
            position += 1
            time.sleep(0.001)
        return [Completion([], [], "stop")] * len(requests)


def waits_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_the_text_before_it(policy, stream):
    asked = {"model": "tiny", **TEXT, "max_tokens": 100, "stream": stream}
    with serving(policy, Endless(policy, "3 + 5 7 5")) as (_, _, client):
        answer = client.completions.create(**asked, stop=["5 5", "7 5"])
        parts = list(answer) if stream else [answer]
        assert "".join(part.choices[0].text for part in parts) == "3 + 5 "
        assert parts[-1].choices[0].finish_reason == "stop"
        assert stream or answer.usage.completion_tokens == 5  # up to the token that completed it
    with serving(policy, Endless(policy, "3 + 5"), stop_strings=("+",)) as (_, _, client):  # the run's
        answer = client.completions.create(**asked)
        assert "".join(part.choices[0].text for part in (answer if stream else [answer])) == "3 "


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_place(policy, stream):
    with serving(policy, Endless(policy, "7")) as (sampler, port, _):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        body = {**CHAT, "max_tokens": 10**6, "stream": stream}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        waits_until(lambda: any(choice.ids for choice in sampler.choices))
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        waits_until(lambda: not any(choice.open for choice in sampler.choices))


def test_new_requests_share_the_batch_and_wait_for_no_endless_answer(policy, monkeypatch):
    monkeypatch.setattr(sampling, "ROUND", 10**6)  # only others end a round
    engine = Endless(policy, "7")
    with serving(policy, engine) as (sampler, _, client):
        endless = client.completions.create(model="tiny", **TEXT, max_tokens=10**6, stream=True)
        assert next(endless).choices[0].text  # parts come before the end
        for temperature in (1.0, 0.5):
            short = client.completions.create(model="tiny", **TEXT, max_tokens=200, temperature=temperature)
            assert short.choices[0].text.split() == ["7"] * 200
        assert engine.rows == 2  # the first, of its temperature, was sampled beside it
        before = len(sampler.choices[0].ids)
        waits_until(lambda: len(sampler.choices[0].ids) > before)
        endless.close()


def parts_of(*texts):
    return [{"type": "text", "text": text} for text in texts]


def says(content, **more):
    return {"messages": [{"role": "user", "content": content, **more}]}


REFUSED = [
    (CHAT | {"top_p": 0.9}, 400, "top_p 0.9 is not supported: leave it out, or give 1"),
    (CHAT | {"tools": [{"type": "function"}]}, 400, "tools .* is not supported"),
    (CHAT | {"max_token": 5}, 400, "max_token 5 is not supported: leave it out$"),
    (CHAT | {"n": 0}, 400, "n must be from 1 to 128, got 0"),
    (CHAT | {"temperature": 1e-300}, 400, "temperature must be"),
    (CHAT | {"max_tokens": 5, "max_completion_tokens": 6}, 400, "are the same limit: give one"),
    (CHAT | {"max_tokens": 10**6}, 400, "tokens, prompt and completion together: the prompt has .* max_tokens is"),
    (CHAT | {"stop": ["a", ""]}, 400, "stop must not be empty"),
    (CHAT | {"stream_options": {"other": 1}}, 400, "stream_options must be"),
    ({}, 400, "messages must be a list, not empty, got null"),
    ({"messages": ["hello"]}, 400, r"messages\[0\] must have a role and a content of text alone"),
    (says("1", tool_calls=[1]), 400, r"messages\[0\] must have"),
    (says("\ud800"), 400, "lone half of a surrogate pair"),
    (says("hello"), 400, "words that the model's tokenizer lacks .'hello'"),
    (TEXT | {"echo": True}, 400, "echo true is not supported: leave it out, or give false"),
    (TEXT | CHAT, 400, "messages .* is not supported"),
    ({"prompt": ""}, 400, "the prompt has no tokens"),
    ({"prompt": "\ud800"}, 400, "prompt must be one Unicode text"),
    (CHAT | {"model": "gpt-4"}, 404, "the model 'gpt-4' is not served here, 'tiny' is"),
    (b"{", 400, "the body is not a JSON object"),
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
    sampler, port, client = endpoint
    for body, status, said in REFUSED:
        found, answer = post(port, body)
        error = json.loads(answer)["error"]
        assert (found, bool(re.search(said, error["message"]))) == (status, True), (body, error)
        assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert not sampler.choices  # nothing is left behind
    with pytest.raises(openai.BadRequestError, match=r"top_p 0\.5 is not supported"):
        client.chat.completions.create(model="tiny", **CHAT, top_p=0.5)
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_pages_of_other_hosts_get_no_answer(endpoint):
    one = CHAT | {"max_tokens": 1}
    assert post(endpoint[1], one, Host="evil.example")[0] == 400  # a page whose name was bound to this machine
    assert post(endpoint[1], one, Content_Type="text/plain")[0] == 415  # what a page may send unasked
    assert post(endpoint[1], one, Host="localhost:1", Content_Type="application/json; charset=utf-8")[0] == 200


def test_settings_that_change_nothing_are_taken(endpoint):
    neutral = {"top_p": 1.0, "frequency_penalty": 0, "logit_bias": {}, "user": "me", "seed": None, "stop": None}
    assert post(endpoint[1], CHAT | neutral | {"response_format": {"type": "text"}, "temperature": 1e-6})[0] == 200


def test_the_parts_of_a_text_are_read_as_the_text(endpoint, policy):
    policy.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"  # would print a list
    greedy = {"temperature": 0, "max_tokens": 4}
    whole, parts = (
        json.loads(post(endpoint[1], greedy | says(content))[1])
        for content in ("numbers 3 7 5", parts_of("numbers 3", " 7 ", "5"))
    )
    assert (whole["choices"], whole["usage"]) == (parts["choices"], parts["usage"])


# The program


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return evaluated.save_models(tmp_path_factory.mktemp("served"))[0]


def test_a_signal_ends_the_program_while_it_answers(model):
    command = [
        sys.executable,
        "-m",
        "minrl",
        "serve",
        model,
        "--port",
        "0",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--quiet",
    ]
    program = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = program.stdout.readline().decode()
    url = re.fullmatch(rf"(http://127.0.0.1:\d+/v1) serves {model} \({model}\); Ctrl-C ends it\n", said)[1]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        assert client.completions.create(model=model, prompt="numbers 3").usage.prompt_tokens == 2
        endless = {"model": model, "prompt": "numbers 3", "n": 128, "max_tokens": 1000, "stop": ["no"]}
        next(client.completions.create(**endless, stream=True))
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 128 + signal.SIGTERM
    assert program.stderr.read().splitlines()[-1] == b"interrupted"
    program.stdout.close()
    program.stderr.close()


def test_a_port_that_is_taken_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"^port {port} of 127.0.0.1 is not available .*: name another with --port"
        ):
            serve.listen(port)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name what is served"),
        (["openai:gpt@http://127.0.0.1:1/v1"], "is served already"),
        (["x", "--port", "65536"], "port must be 0 .any free one., or from 1 to 65535, got 65536"),
        (["x", "--chat", "--port", "1"], "--port is not for --chat"),
        (["x", "--temperature", "0.5"], "--temperature is not for serving: add --chat"),
        (["x", "--chat", "--temperature", "1e-42"], r"temperature must be 0 .greedy., or from 1e-06 to 2, got 1e-42"),
        (["x", "--model-id", "y"], "takes the model as its first word"),
    ],
)
def test_what_cannot_be_served_is_refused(words, said):
    with pytest.raises(UserError, match=said):
        parse(ServeConfig, words)


def test_a_run_is_served_with_what_it_was_trained_with(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluated.save_run(tmp_path, "mine", model, "countdown", rollout={"max_tokens": 7, "stop_strings": (";",)})
    for name in ("mine", "checkpoints/mine/step_000001"):
        ((run,), _) = find_runs([name])
        config = serve.as_trained(parse(ServeConfig, [name]), run)
        assert (config.checkpoint, config.max_tokens, config.stop_strings) == (name, 7, (";",))
    assert serve.as_trained(parse(ServeConfig, ["mine", "--max-tokens", "9"]), run).max_tokens == 9


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (("config.json", "adapter_config.json"), "vllm serve {} --served-model-name mine"),  # merged
        (("adapter_config.json",), "vllm serve base --enable-lora --lora-modules mine={}"),
    ],
)
def test_the_command_of_vllm_serves_models_and_adapters(tmp_path, files, command):
    for name in files:
        (tmp_path / name).write_text('{"base_model_name_or_path": "base"}')
    assert serve.vllm_command(str(tmp_path), "mine") == command.format(tmp_path)


# The terminal


@pytest.fixture
def say(policy, engine, monkeypatch, capsys):
    """Chats with these lines as standard input; returns standard output and error."""

    def said(*lines, engine=engine, example=None, **settings):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        config = ServeConfig(checkpoint="tiny", chat=True, **settings)
        assert serve.chat(sampling.Sampler(policy, engine, 9), config, example) == 0
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
    out, err = say("numbers 3", "", "numbers 5", "/reset", "numbers 5", seed=4)
    assert (out, err) == (f"{first}\n{second}\n{third}\n", "")
    assert second != third  # or the test shows nothing


def test_a_line_is_the_whole_prompt_where_the_tasks_prompts_are_texts(say, engine, policy):
    policy.tokenizer.chat_template = None  # none is needed
    first, second = (policy.decode(sampled(engine, "numbers 3", seed, 9).ids) for seed in (4, 5))
    assert say("numbers 3", "numbers 3", seed=4, example="numbers 5") == (f"{first}\n{second}\n", "")
    with pytest.raises(UserError, match="--system is for chats"):
        say("numbers 3", system="be brief", example="numbers 5")
    with pytest.raises(UserError, match="no chat template"):
        say("numbers 3")


def test_input_that_is_not_utf_8_is_one_line(say, monkeypatch):
    monkeypatch.setattr(io, "StringIO", lambda text: io.TextIOWrapper(io.BytesIO(b"numbers \xff\n"), "utf-8"))
    with pytest.raises(UserError, match=r"^standard input must be UTF-8 text: .* 0xff"):
        say("numbers 3")


def test_the_system_message_comes_first(say, policy, monkeypatch):
    shown = []
    monkeypatch.setattr(policy, "encode_prompt", lambda prompt: shown.append(prompt) or [5, 6])
    say("numbers 3", "/reset", "numbers 5", system="be brief")
    assert [[message["content"] for message in prompt] for prompt in shown] == [
        ["be brief", "numbers 3"],
        ["be brief", "numbers 5"],
    ]


def test_a_message_that_the_model_cannot_read_is_refused_and_forgotten(say):
    out, err = say("hello", "numbers 3", "numbers " * 2000, temperature=0.0)
    first, second = err.splitlines()
    assert len(out.splitlines()) == 1
    assert "'hello'" in first and "tokens, prompt and completion together" in second and "(/reset" in second


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(say, policy):
    class Stopped(Endless):
        """Presses the keys in its first answer."""

        count = 0

        def generate(self, requests, sampling, heard=None):
            def then_stop(index, token, logprob):
                self.count += 1
                if self.count == 3:
                    signal.raise_signal(signal.SIGINT)
                return heard(index, token, logprob)

            super().generate(requests, sampling, then_stop)

    out, err = say("numbers 3", "numbers 5", engine=Stopped(policy, "7"), example="numbers 3")
    first, second = out.splitlines()
    assert err == "" and len(first.split()) < 9 and second.split() == ["7"] * 9


def test_what_the_model_says_commands_no_terminal(policy, engine, monkeypatch, capsys):
    monkeypatch.setattr(policy, "decode", lambda ids: "\x1b[2J")
    sampler = sampling.Sampler(policy, engine, 3)
    assert serve._said(sampler, ApiRequest(prompt=QUESTION), terminal=True) == "\x1b[2J"
    assert capsys.readouterr().out == "\\x1b[2J\n"
