"""Models behind a server: a real one on this machine that is slow, busy, broken, and at last right."""

import hashlib

import pytest

from tests.chat_server import ChatServer, answer
from tests.evaluated import files_of, rows_of, run, said_by, summary_of

FLAGS = "--samples 3 --max-tokens 5 --quiet --reward-workers 1 --api-retries 0 --no-charts".split()  # noqa: SIM905
BROKEN = (500, {}, '{"error": {"message": "out of order"}}')
pytestmark = pytest.mark.usefixtures("own_programs")


def says(body):
    """What the model answers: a function of what it was shown and of the seed."""
    seen = str([message["content"] for message in body["messages"]]) + str(body["seed"] * (body["temperature"] > 0))
    return answer(" ".join("1" * (1 + hashlib.sha256(seen.encode()).digest()[0] % 5)))


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("SERVER_KEY", "sk-secret-of-the-test")
    server = ChatServer(says)
    yield server
    server.close()


@pytest.fixture
def tasks(evaluated_place):
    return [f"{evaluated_place}/evaluated_tasks.py:{name}" for name in ("even", "talk")]


def test_single_turns_and_conversations_are_played_and_scored(server, tasks, tmp_path):
    command = ["--models", f"openai:m@{server.url}", "--tasks", *tasks, "--output", tmp_path / "out"]
    assert run(*command, flags=[*FLAGS, "--api-key-variable", "SERVER_KEY"]) == 0
    rows = rows_of(tmp_path / "out")
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sk-secret-of-the-test"}
    talks, even = ([row for row in rows if row["task"] == task] for task in ("talk", "even"))
    second = [body["messages"] for body in server.asked if len(body["messages"]) == 3]
    assert len(second) == len(talks) == len(server.asked) - len(rows)
    assert {tuple(m["role"] for m in messages) for messages in second} == {("user", "assistant", "user")}
    assert {(body["temperature"], body["max_tokens"]) for body in server.asked} == {(0.0, 5), (1.0, 5)}
    sampled = [row for row in even if row["mode"] == "sampled"]
    solved = sum(len(said_by(row).split()) % 2 == 0 for row in sampled)
    figures = {result["task"]: result["pass@1"] for result in summary_of(tmp_path / "out")["results"]}
    assert figures["even"] == pytest.approx(solved / len(sampled))
    seeds = {body["seed"] for body in server.asked if body["temperature"] == 1.0}
    assert len(seeds) > len(sampled)  # the two tasks number their examples alike, turns and samples differ
    assert (even[0]["roles"]["policy"]["tokens"], talks[0]["roles"]["asked"]["tokens"]) == (3, 6)  # of both turns
    assert any(second[0][1]["content"] + "numbers 2" in said_by(row, "asked") for row in talks)


def test_failures_are_error_rows_that_are_asked_again_and_no_answers(server, tasks, tmp_path):
    command = ["--models", f"openai:m@{server.url}", "--task", tasks[1], "--examples", "2", "--output"]
    calls = []

    def failing(body):
        calls.append(body)
        return BROKEN if len(calls) % 3 == 0 else says(body)

    server.reply = failing
    assert run(*command, tmp_path / "out", flags=FLAGS) == 1
    errors, (result,) = [r for r in rows_of(tmp_path / "out") if "error" in r], summary_of(tmp_path / "out")["results"]
    assert errors and all("status 500: out of order" in row["error"] and "roles" not in row for row in errors)
    assert (result["missing"], result["n"]) == (len(errors), 6 - sum(row["mode"] == "sampled" for row in errors))
    server.reply, before = says, len(server.asked)
    assert run(*command, tmp_path / "out", flags=FLAGS) == 0
    assert len(server.asked) - before == 2 * len(errors)  # two turns
    assert run(*command, tmp_path / "whole", flags=FLAGS) == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_what_a_server_refuses_is_not_solved_and_not_asked_again(server, tasks, tmp_path):
    filtered = (400, {}, '{"error": {"code": "content_filter", "message": "not this"}}')
    too_long = (400, {}, '{"error": {"message": "This model\'s maximum context length is 8 tokens"}}')
    refused = {"numbers 3": filtered, "numbers 5": too_long}
    server.reply = lambda body: refused.get(body["messages"][0]["content"]) or says(body)
    command = ["--models", f"openai:m@{server.url}", "--task", tasks[0], "--output", tmp_path / "out"]
    assert run(*command, flags=FLAGS) == 0
    (result,) = summary_of(tmp_path / "out")["results"]
    sampled = [row["roles"] for row in rows_of(tmp_path / "out") if row["mode"] == "sampled"]
    kinds = [roles[""]["unscorable"].partition(":")[0] for roles in sampled if "" in roles]
    assert set(kinds) == {"content_filter", "context_length"} and (result["n"], result["missing"]) == (len(sampled), 0)
    assert result["unscorable_frac"] == pytest.approx(len(kinds) / len(sampled))
    before = len(server.asked)
    assert run(*command, flags=FLAGS) == 0 and len(server.asked) == before
