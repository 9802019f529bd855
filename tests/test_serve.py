"""A policy behind an OpenAI-compatible endpoint: the official client is told what the engine samples, or why not."""

import http.client
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
from minrl.engines.vllm import versions as vllm_versions
from minrl.tools.serve import sampler as sampling
from minrl.tools.serve.asking import MOST_STOPS, Asked
from minrl.tools.serve.choices import Job
from minrl.tools.serve.config import ServeConfig
from minrl.tools.serve.sampler import Sampler
from minrl.tools.serve.server import MOST_BYTES, ApiServer
from minrl.tools.serve.trained import as_trained, prompt_of
from minrl.types import Completion, Request, UserError
from minrl.utils.cli import parse
from tests import evaluated
from tests.forked import Forked

REASON = vllm_versions.refusal("cpu", vllm_versions.installed_build())
QUESTION = [{"role": "user", "content": "numbers 3 7 5"}]


@contextmanager
def serving(policy, engine, max_tokens=24, stop_strings=()):
    """An endpoint, as the program has it, but with threads that end."""
    sampler, api, ended = Sampler(policy, engine, max_tokens, stop_strings), ApiServer("tiny", 0), []
    api.sampler = sampler

    def serve():
        while not ended:
            sampler.step()

    threads = [threading.Thread(target=serve), threading.Thread(target=api.http.serve_forever, args=(0.01,))]
    for thread in threads:
        thread.start()
    yield api
    ended.append(True)
    last = Job(Asked(chat=True, prompts=[QUESTION]), lambda event: None)
    last.cancelled = True
    sampler.submit(last)
    api.http.shutdown()
    for thread in threads:
        thread.join()
    sampler.close()
    api.close()


@pytest.fixture
def api(policy, engine):
    with serving(policy, engine) as api:
        yield api


def client_of(api):
    return openai.OpenAI(base_url=api.url, api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def client(api):
    with client_of(api) as client:
        yield client


def sampled(engine, prompt, seed, max_tokens, temperature=1.0):
    """What the engine itself samples in one call."""
    policy = engine.policy
    request = Request(policy.encode_prompt(prompt), seed, max_tokens)
    return engine.generate([request], Sampling(temperature, policy.stop_ids))[0]


def tokens_of(policy, completion):
    return [policy.decode_all([token]) for token in completion.ids]


def test_an_answer_is_what_the_engine_samples(client, engine, policy):
    for seed in range(1, 5):
        answer = client.chat.completions.create(
            model="tiny", messages=QUESTION, seed=seed, max_completion_tokens=9, logprobs=True
        )
        own, (choice,) = sampled(engine, QUESTION, seed, 9), answer.choices
        assert choice.message.content == policy.decode(own.ids)
        assert [entry.token for entry in choice.logprobs.content] == tokens_of(policy, own)
        assert [entry.logprob for entry in choice.logprobs.content] == pytest.approx(own.logprobs, abs=1e-5)
        assert choice.finish_reason == own.finish_reason
        assert answer.usage.prompt_tokens == len(policy.encode_prompt(QUESTION))
        assert answer.usage.completion_tokens == len(own.ids)
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    greedy = client.completions.create(model="tiny", prompt="numbers 3", temperature=0, max_tokens=7)
    assert greedy.choices[0].text == policy.decode(sampled(engine, "numbers 3", 0, 7, 0.0).ids)


def test_a_text_without_a_limit_has_16_tokens_and_a_chat_those_of_the_server(client, policy):
    chat = client.chat.completions.create(model="tiny", messages=QUESTION, seed=3, stop=[])
    text = client.completions.create(model="tiny", prompt=policy.encode_prompt("numbers 3"), seed=3)
    assert chat.usage.completion_tokens <= 24 and text.usage.completion_tokens <= 16
    assert chat.choices[0].finish_reason == "stop" or chat.usage.completion_tokens == 24
    assert text.choices[0].finish_reason == "stop" or text.usage.completion_tokens == 16


@pytest.mark.parametrize("most", [1, 3, 256])
def test_rounds_change_no_token(policy, engine, monkeypatch, most):
    monkeypatch.setattr(sampling, "_request", shortened(sampling._request, most))
    with serving(policy, engine) as api, client_of(api) as client:
        for seed in range(1, 4):
            answer = client.completions.create(model="tiny", prompt="numbers 3 7", seed=seed, max_tokens=12)
            assert answer.choices[0].text == policy.decode(sampled(engine, "numbers 3 7", seed, 12).ids)


def shortened(request, most):
    """`_request` with rounds of at most so many tokens."""
    return lambda choice, longest: request(choice, min(most, longest))


@pytest.mark.parametrize("chat", [True, False])
def test_a_stream_has_the_parts_of_the_whole(client, chat):
    create = client.chat.completions.create if chat else client.completions.create
    asked = {"messages": QUESTION, "logprobs": True} if chat else {"prompt": "numbers 3 7", "logprobs": 0}
    asked |= {"model": "tiny", "seed": 11, "n": 3, "max_tokens": 20}
    whole = create(**asked)
    parts = list(create(**asked, stream=True, stream_options={"include_usage": True}))
    assert parts[-1].choices == [] and parts[-1].usage == whole.usage
    assert all(part.usage is None for part in parts[:-1])
    assert len({part.id for part in parts}) == 1
    for choice in whole.choices:
        own = [part.choices[0] for part in parts[:-1] if part.choices[0].index == choice.index]
        said = [one.delta.content or "" if chat else one.text for one in own]
        assert "".join(said) == (choice.message.content if chat else choice.text)
        assert [one.finish_reason for one in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        told = [one.logprobs for one in own if one.logprobs]
        if chat:
            assert own[0].delta.role == "assistant"
            assert [entry.token for one in told for entry in one.content] == [
                entry.token for entry in choice.logprobs.content
            ]
        else:
            assert [token for one in told for token in one.tokens] == choice.logprobs.tokens
            assert [place for one in told for place in one.text_offset] == choice.logprobs.text_offset


def test_parts_of_a_stream_come_before_its_end(policy):
    with serving(policy, Endless(policy, "7 ")) as api, client_of(api) as client:
        stream = client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=1000, stream=True)
        texts = [part.choices[0].delta.content for part in (next(stream) for _ in range(4))]
        assert texts[0] == "" and "".join(texts).split() and set("".join(texts).split()) == {"7"}
        stream.close()


def test_requests_at_once_get_the_same_answers_as_alone(client):
    asked = [
        {"prompt": f"numbers {number}", "seed": number, "temperature": number % 2, "max_tokens": 4 + 3 * number}
        for number in range(1, 9)
    ]
    alone = [client.completions.create(model="tiny", **one).choices[0].text for one in asked]
    together = [None] * len(asked)

    def ask(place):
        together[place] = client.completions.create(model="tiny", **asked[place]).choices[0].text

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    several = client.completions.create(model="tiny", prompt=["numbers 1", "numbers 2"], n=2, seed=5, max_tokens=8)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in several.choices}) > 2


def test_without_a_seed_answers_differ(client):
    answers = [client.completions.create(model="tiny", prompt="numbers 3").choices[0].text for _ in range(3)]
    assert len(set(answers)) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_the_text_before_it(policy, stream):
    said = "3 + 5 7 5"
    with serving(policy, Endless(policy, said)) as api, client_of(api) as client:
        asked = {"model": "tiny", "prompt": "numbers 3", "stop": ["5 5", "7 5"], "max_tokens": 100, "stream": stream}
        answer = client.completions.create(**asked)
        if stream:
            parts = list(answer)
            text, reason = "".join(part.choices[0].text for part in parts), parts[-1].choices[0].finish_reason
        else:
            text, reason = answer.choices[0].text, answer.choices[0].finish_reason
            assert answer.usage.completion_tokens == 5  # up to the token that completed it
        assert (text, reason) == ("3 + 5 ", "stop")


def test_the_stop_strings_of_the_run_end_every_answer(policy):
    with serving(policy, Endless(policy, "3 + 5"), stop_strings=("+",)) as api, client_of(api) as client:
        assert client.completions.create(model="tiny", prompt="numbers 3").choices[0].text == "3 "


class Endless(TorchEngine):
    """Says the same again and again, until it is stopped."""

    context_length = 10**9

    def __init__(self, policy, text):
        super().__init__(policy)
        self.said = policy.encode_text(text)

    def generate(self, requests, sampling, heard=None):
        going, position = set(range(len(requests))), 0
        while going:
            for index in list(going):
                spoken = len(requests[index].ids) + position
                token = self.said[(spoken - self.start(requests[index])) % len(self.said)]
                if not heard(index, token, -1.0) or position + 1 == requests[index].max_tokens:
                    going.discard(index)
            position += 1
            time.sleep(0.001)
        return [Completion([], [], "stop")] * len(requests)

    def start(self, request):
        """Where the answer began: the prompts of these tests are no longer than theirs."""
        return min(len(request.ids), self.prompt)

    prompt = 2


def waits_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_place(policy, stream):
    with serving(policy, Endless(policy, "7")) as api:
        connection = http.client.HTTPConnection("127.0.0.1", api.http.server_port)
        body = {"messages": QUESTION, "max_tokens": 10**6, "stream": stream}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        waits_until(lambda: any(choice.ids for choice in api.sampler._choices))
        connection.close()
        waits_until(lambda: not api.sampler._waiting)


def test_a_new_request_and_another_temperature_wait_for_no_endless_answer(policy, monkeypatch):
    monkeypatch.setattr(sampling, "ROUND", 10**6)  # only others end a round
    with serving(policy, Endless(policy, "7")) as api, client_of(api) as client:
        endless = client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=10**6, stream=True)
        next(endless)
        for temperature in (1.0, 0.5):
            short = client.completions.create(model="tiny", prompt="numbers 3", max_tokens=200, temperature=temperature)
            assert short.choices[0].text.split() == ["7"] * 200
        before = len(api.sampler._choices[0].ids)
        waits_until(lambda: len(api.sampler._choices[0].ids) > before)  # and the first goes on
        endless.close()


class Plain:
    """An engine of the protocol and nothing more: it tells no token before the end."""

    def __init__(self, engine):
        self._engine, self.rounds = engine, []

    @property
    def context_length(self):
        return self._engine.context_length

    def generate(self, requests, sampling):
        self.rounds.append([request.max_tokens for request in requests])
        return self._engine.generate(requests, sampling)


def test_an_engine_that_tells_nothing_is_asked_in_rounds_of_one_length(policy, engine, monkeypatch):
    monkeypatch.setattr(sampling, "FIXED_ROUND", 5)
    plain = Plain(engine)
    with serving(policy, plain) as api, client_of(api) as client:
        for seed in range(1, 5):
            parts = list(
                client.completions.create(model="tiny", prompt="numbers 3", seed=seed, max_tokens=12, stream=True)
            )
            own = sampled(engine, "numbers 3", seed, 12)
            assert "".join(part.choices[0].text for part in parts) == policy.decode(own.ids)
            assert plain.rounds == [[5], [5], [2]][: -(-len(own.ids) // 5)]
            plain.rounds.clear()


def parts_of(*texts):
    """The content of a message in parts."""
    return [{"type": "text", "text": text} for text in texts]


CHAT = {"messages": QUESTION}
TEXT = {"prompt": "numbers 3"}
BAD = [
    (CHAT | {"top_p": 0.9}, "top_p 0.9 is not supported: leave it out, or give 1"),
    (CHAT | {"frequency_penalty": 1}, "frequency_penalty 1 is not supported"),
    (CHAT | {"tools": [{"type": "function"}]}, "tools .* is not supported"),
    (CHAT | {"response_format": {"type": "json_object"}}, "response_format .* is not supported"),
    (CHAT | {"logprobs": True, "top_logprobs": 2}, "top_logprobs 2 is not supported"),
    (CHAT | {"surprise": 1}, "unknown setting 'surprise'"),
    (CHAT | {"temperature": 2.5}, "temperature must be a number from 0.0 to 2.0, got 2.5"),
    (CHAT | {"temperature": float("nan")}, "temperature must be a number .* got NaN"),
    (CHAT | {"temperature": True}, "temperature must be a number"),
    (CHAT | {"n": 0}, "n must be a whole number from 1 to 128, got 0"),
    (CHAT | {"n": 1.5}, "n must be a whole number"),
    (CHAT | {"seed": "7"}, "seed must be a whole number"),
    (CHAT | {"max_tokens": 0}, "max_tokens must be a whole number from 1"),
    (CHAT | {"max_tokens": 4, "max_completion_tokens": 5}, "are the same limit"),
    (
        CHAT | {"max_tokens": 4000},
        r"the model takes \d+ tokens, prompt and completion together: the prompt has \d+ and",
    ),
    (CHAT | {"stop": ["a"] * (MOST_STOPS + 1)}, "stop must be a text or up to 4"),
    (CHAT | {"stop": ""}, "stop must be a text or up to 4, none empty"),
    (CHAT | {"stream": 1}, "stream must be true or false, got 1"),
    (CHAT | {"stream_options": {"include_usage": True}}, "stream_options are for streams"),
    (CHAT | {"stream": True, "stream_options": {"x": 1}}, "stream_options .* is not supported"),
    ({}, "messages must be a list, not empty, got null"),
    ({"messages": []}, "messages must be a list, not empty"),
    ({"messages": ["hello"]}, r"messages\[0\] must be an object"),
    ({"messages": [{"role": "user"}]}, r"messages\[0\].content must be a text or parts of text, got null"),
    ({"messages": [{"role": 1, "content": "x"}]}, r"messages\[0\].role must be a text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        r"messages\[0\].content must be a text or parts of text",
    ),
    (
        {"messages": [*QUESTION, {"role": "assistant", "content": "1", "tool_calls": [1]}]},
        "tool_calls.* is not supported",
    ),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "lone half of a surrogate pair"),
    ({"messages": [{"role": "user", "content": parts_of("numbers", "\ud800")}]}, "lone half of a surrogate pair"),
    (
        {"messages": [{"role": "user", "content": [*parts_of("numbers"), {"type": "input_audio"}]}]},
        r"messages\[0\].content must be a text or parts of text",
    ),
    ({"messages": [{"role": "user", "content": "hello"}]}, "stand for words that the model's tokenizer lacks .'hello'"),
    ({"prompt": ""}, "a prompt has no tokens"),
    ({"prompt": []}, "prompt must be a text or a list of token ids"),
    ({"prompt": [[1], "x", 3]}, "prompt must be a text or a list of token ids"),
    ({"prompt": [-1]}, r"token ids are from 0 to \d+"),
    ({"prompt": "\ud800"}, "lone half of a surrogate pair"),
    (TEXT | {"echo": True}, "echo true is not supported: leave it out, or give false"),
    (TEXT | {"logprobs": 3}, "logprobs 3: the engines report the sampled token alone"),
    (TEXT | {"best_of": 2}, "best_of 2 is not supported"),
    (TEXT | {"messages": QUESTION}, "unknown setting 'messages'"),
]


def post(api, body, path=None, **headers):
    """The status and the JSON that a body is answered with."""
    kind = "completions" if isinstance(body, dict) and "prompt" in body else "chat/completions"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", api.http.server_port, timeout=60)
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): one for name, one in headers.items()}}
    connection.request("POST", path or f"/v1/{kind}", data, headers)
    answer = connection.getresponse()
    told = answer.status, json.loads(answer.read())
    connection.close()
    return told


def test_what_the_engine_does_not_do_is_refused_in_openais_form(api):
    for body, said in BAD:
        status, answer = post(api, body)
        assert status == 400, body
        assert re.search(said, answer["error"]["message"]), (body, answer)
        assert answer["error"].keys() == {"message", "type", "param", "code"}
        assert answer["error"]["type"] == "invalid_request_error"
    assert not api.sampler._waiting  # nothing is left behind


def test_settings_that_change_nothing_are_taken(api):
    neutral = {"top_p": 1.0, "frequency_penalty": 0, "logit_bias": {}, "user": "me", "seed": None, "stop": None}
    status, answer = post(api, CHAT | neutral | {"response_format": {"type": "text"}, "max_tokens": 2})
    assert status == 200 and answer["object"] == "chat.completion"


def test_the_parts_of_a_text_are_read_as_the_text(api, policy):
    policy.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"  # would print a list
    greedy, (message,) = {"temperature": 0, "max_tokens": 4}, QUESTION
    whole, parts = (
        post(api, greedy | {"messages": [{"role": "system", "content": empty}, {**message, "content": content}]})
        for empty, content in (("", "numbers 3 7 5"), ([], parts_of("numbers 3", " 7 ", "5")))
    )
    assert whole[0] == parts[0] == 200, parts
    assert (whole[1]["choices"], whole[1]["usage"]) == (parts[1]["choices"], parts[1]["usage"])


@pytest.mark.parametrize(
    ("body", "path", "headers", "status", "said"),
    [
        (b"{", None, {}, 400, "the body is not JSON"),
        (b"\xff", None, {}, 400, "the body is not JSON"),
        (b"[" * 10**5, None, {}, 400, "nested too deeply"),
        (b'{"n": ' + b"9" * 5000 + b"}", None, {}, 400, "the body is not JSON"),
        (b"[]", None, {}, 400, "the body must be a JSON object, got []"),
        (b" " * (MOST_BYTES + 1), None, {}, 413, f"a body has at most {MOST_BYTES} bytes"),
        (b"{}", None, {"Content_Length": "-1"}, 411, "Content-Length"),
        (b"{}", None, {"Content_Length": "9" * 5000}, 413, "a body has at most"),
        (b"{}", "/v1/embeddings", {}, 404, "there is no '/v1/embeddings' here"),
        (CHAT, None, {"Content_Type": "text/plain"}, 415, "application/json"),  # what a page may send unasked
        (CHAT, None, {"Host": "evil.example"}, 403, "ask as localhost"),
        (CHAT | {"model": "gpt-4"}, None, {}, 404, "the model 'gpt-4' is not served here, 'tiny' is"),
    ],
)
def test_what_is_no_request_is_refused(api, body, path, headers, status, said):
    found, answer = post(api, body, path, **headers)
    assert (found, said in answer["error"]["message"]) == (status, True), answer


def test_a_temperature_that_leaves_no_numbers_ends_nothing_for_others(api):
    status, told = post(api, {"messages": QUESTION, "temperature": 1e-300})
    assert status == 400 and "temperature" in told["error"]["message"]
    for temperature in (0, 1e-6):
        assert post(api, {"messages": QUESTION, "temperature": temperature, "max_tokens": 2})[0] == 200


def test_too_many_requests_are_to_come_again(policy, monkeypatch):
    monkeypatch.setattr(sampling, "MOST_WAITING", 2)
    with serving(policy, Endless(policy, "7")) as api, client_of(api) as client:
        asked = {"model": "tiny", "messages": QUESTION, "max_tokens": 10**6}
        stream = client.chat.completions.create(**asked, n=2, stream=True)
        next(stream)
        with pytest.raises(openai.RateLimitError, match="2 completions are waiting"):
            client.chat.completions.create(**asked)
        stream.close()
        waits_until(lambda: not api.sampler._waiting)


def test_the_model_is_listed_and_others_are_not_there(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "minrl"
    with pytest.raises(openai.NotFoundError, match="there is no"):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.completions.create(model="other", prompt="numbers 3")


def test_one_connection_takes_several_requests(api):
    connection, sockets = http.client.HTTPConnection("127.0.0.1", api.http.server_port, timeout=60), set()
    for body in ({"prompt": "numbers 3"}, {"prompt": 5}, {"prompt": "numbers 3"}):
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        sockets.add(connection.sock)
        answer = connection.getresponse()
        answer.read()
    assert answer.status == 200 and len(sockets) == 1
    connection.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    return evaluated.save_models(folder)[0]


def started(*words, **streams):
    """The program in a process of its own."""
    command = [sys.executable, "-m", "minrl", "serve", *words, "--device", "cpu", "--threads", "1", "--quiet"]
    return Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **streams)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_and_tells_who_still_waits(model, number):
    program = started(model, "--port", "0")
    said = program.stdout.readline()
    url = re.fullmatch(rf"(http://127.0.0.1:\d+/v1) serves {model} \({model}\); Ctrl-C ends it\n", said)[1]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        answer = client.completions.create(model=model, prompt="numbers 3", seed=1)
        assert answer.usage.prompt_tokens == 2
        with pytest.raises(openai.APIError, match="the server is ending"):
            # As many as there are, so that the signal comes before the last is sampled; the seeds differ.
            for part in client.completions.create(
                model=model, prompt="numbers 3", n=128, max_tokens=1000, stop=["no"], stream=True
            ):
                if number is not None:
                    program.send_signal(number)
                    number = None
                assert part.object == "text_completion"
    assert program.wait(60) in (130, 143)
    assert program.stderr.read().splitlines()[-1] == "interrupted"
    program.stdout.close()
    program.stderr.close()


def test_a_port_that_is_taken_is_one_line_before_the_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"^port {port} of 127.0.0.1 cannot be had .*: name another with --port"):
            ApiServer("tiny", port)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name what is served"),
        (["openai:gpt@http://127.0.0.1:1/v1"], "is served already"),
        (["x", "--port", "65536"], "port must be 0 .any free one., or from 1 to 65535, got 65536"),
        (["x", "--chat", "--port", "1"], "--chat listens on no port"),
        (["x", "--temperature", "0.5"], "--temperature is of --chat"),
        (["x", "--chat", "--temperature", "1e-42"], r"temperature must be 0 .greedy., or from 1e-06 to 2, got 1e-42"),
        (["x", "--chat", "--temperature", "2.5"], r"temperature must be 0 .greedy., or from 1e-06 to 2, got 2.5"),
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
        config = as_trained(parse(ServeConfig, [name]))
        assert (config.checkpoint, config.max_tokens, config.stop_strings) == (name, 7, (";",))
    assert as_trained(parse(ServeConfig, ["mine", "--max-tokens", "9"])).max_tokens == 9
    assert as_trained(parse(ServeConfig, [model])) == ServeConfig(checkpoint=model)
    mine, step, other = (ServeConfig(checkpoint=name) for name in ("mine", "checkpoints/mine/step_000001", model))
    assert prompt_of(other) is prompt_of(mine) is None
    config = tmp_path / "runs/mine/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "prompt": "numbers 3"}))
    assert prompt_of(mine) == prompt_of(step) == "numbers 3"


@pytest.mark.vllm
@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_vllm_is_served_by_the_same_endpoint(processes):
    from minrl.config import EngineConfig
    from minrl.engines.choice import make_engine
    from tests.test_vllm_engine import shaped_policy

    policy = shaped_policy("qwen3-tied", processes)
    engine = make_engine(EngineConfig(engine="vllm"), policy, sampling.MOST_ROWS)
    sampler, api = Sampler(policy, engine, 24), ApiServer("tiny", 0)
    api.sampler = sampler
    http_thread = threading.Thread(target=api.http.serve_forever, args=(0.01,))
    http_thread.start()

    def ask():
        with client_of(api) as client:
            asked = {"model": "tiny", "prompt": "w1 w2 w3", "max_tokens": 40, "logprobs": 0}
            greedy = client.completions.create(**asked, temperature=0).choices[0]
            whole = client.completions.create(**asked, seed=5).choices[0]
            return greedy, whole, list(client.completions.create(**asked, seed=5, stream=True))

    try:
        with ThreadPoolExecutor() as pool:
            answers = pool.submit(ask)
            while not answers.done():  # the engine belongs to the main thread, as in the program
                if sampler._choices or not sampler._new.empty():
                    sampler.step()
                time.sleep(0.01)
        greedy, whole, parts = answers.result()
        own = sampled(TorchEngine(policy), "w1 w2 w3", 0, 40, 0.0)
        assert greedy.logprobs.tokens == tokens_of(policy, own)
        assert greedy.logprobs.token_logprobs == pytest.approx(own.logprobs, abs=1e-4)
        assert "".join(part.choices[0].text for part in parts) == whole.text
        assert [token for part in parts for token in part.choices[0].logprobs.tokens] == whole.logprobs.tokens
    finally:
        api.http.shutdown()
        http_thread.join()
        api.close()
        engine.close()
