"""The openai client against a real server on this machine that fails in every way."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from minrl.rewards.chat_client import ChatClient, ChatError, ChatRefusal
from tests.chat_server import ChatServer, answer, in_turn

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
    assert server.keys == ["Bearer sk-secret-of-the-test"]


BUSY = (429, {"Retry-After": "0.1"}, '{"error": {"message": "slow down"}}')
BROKEN = (500, {}, "<html>oops</html>")


def test_a_busy_and_a_broken_server_are_asked_again(serve):
    server, client = serve(in_turn(BROKEN, answer("4")))
    assert ask(client).text == "4" and len(server.asked) == 2
    server, client = serve(in_turn(BUSY, answer("4")))
    assert ask(client).text == "4" and len(server.asked) == 2
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
    "said",
    ["{torn", "", '{"choices": []}', '{"choices": [{"finish_reason": "stop", "message": {"content": 4}}]}'],
)
def test_garbage_is_an_error_and_no_answer(serve, said):
    _, client = serve(in_turn((200, {}, said)))
    with pytest.raises(ChatError, match=r"^m at http://127[^\n]*$"):
        ask(client)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ((400, {}, '{"error": {"code": "content_filter", "message": "filtered"}}'), "content_filter"),
        (
            (200, {}, '{"choices": [{"finish_reason": "stop", "message": {"content": null, "refusal": "no"}}]}'),
            "refusal",
        ),
        ((400, {}, '{"error": {"code": "context_length_exceeded", "message": "too long"}}'), "context_length"),
        (  # vLLM's
            (400, {}, '{"error": {"code": 400, "message": "This model\'s maximum context length is 64 tokens."}}'),
            "context_length",
        ),
        ((400, {}, '{"error": {"message": "unknown parameter: seed"}}'), None),
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


def test_nobody_there_is_said_in_one_line(serve):
    server, client = serve(in_turn(answer("4")), retries=0)
    server.close()
    with pytest.raises(ChatError, match=r"no answer \(.*\): is the server up and the base URL right\?"):
        ask(client)


def test_many_threads_are_served_at_once_but_no_more_than_allowed(serve):
    started = threading.Barrier(3)

    def reply(body):
        started.wait(timeout=60)  # passes only where three calls are in flight together
        return answer(body["messages"][0]["content"])

    server, client = serve(reply, concurrency=3)
    with ThreadPoolExecutor(12) as pool:
        texts = pool.map(
            lambda i: client.complete([{"role": "user", "content": str(i)}], temperature=None, max_tokens=1), range(12)
        )
    assert [reply.text for reply in texts] == [str(i) for i in range(12)]
    assert server.most == 3
    assert "temperature" not in server.asked[0]
