"""Models behind a server: a real one on this machine that is slow, busy, broken, and at last right."""

import hashlib
import sys

import pytest

from minrl.dataflow import Example, UserError
from minrl.evaluate.models import NamedModel
from minrl.evaluate.play import Cell, require_whole
from tests import evaluated
from tests.chat_server import ChatServer, answer
from tests.evaluated import files_of, rows_of, run, summary_of

FLAGS = "--samples 3 --max-tokens 5 --quiet --reward-workers 1 --api-retries 0 --no-charts".split()  # noqa: SIM905
BROKEN = (500, {}, '{"error": {"message": "out of order"}}')


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
def tasks(tmp_path):
    (tmp_path / "served_tasks.py").write_text(evaluated.TASKS)
    return [f"{tmp_path}/served_tasks.py:{name}" for name in ("even", "talk")]


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Each test's folder has a file of that name."""
    before = list(sys.path)
    yield
    sys.modules.pop("served_tasks", None)
    sys.path[:] = before


def said_by(row, role="policy"):
    return row["roles"][role]["completion"]


def scores_of(folder):
    return {(r["label"], r["task"]): r.get("pass@1") for r in summary_of(folder)["results"]}


def test_single_turns_and_conversations_are_played_and_scored(server, tasks, tmp_path):
    command = ["--models", f"openai:m@{server.url}", "--tasks", *tasks, "--output", tmp_path / "out"]
    assert run(*command, flags=[*FLAGS, "--api-key-variable", "SERVER_KEY"]) == 0
    rows = rows_of(tmp_path / "out")
    assert len({(r["task"], r["mode"], r["number"], r["sample"]) for r in rows}) == len(rows)
    turns = sum(2 if row["task"] == "talk" else 1 for row in rows)
    assert len(server.asked) == turns and set(server.keys) == {"Bearer sk-secret-of-the-test"}
    second = [body["messages"] for body in server.asked if len(body["messages"]) == 3]
    assert len(second) == sum(row["task"] == "talk" for row in rows)
    assert {tuple(m["role"] for m in messages) for messages in second} == {("user", "assistant", "user")}
    assert {body["temperature"] for body in server.asked} == {0.0, 1.0}
    assert {body["max_tokens"] for body in server.asked} == {5}
    seeds = [body["seed"] for body in server.asked if body["temperature"] == 1.0]
    even = [r for r in rows if (r["task"], r["mode"]) == ("even", "sampled")]
    solved = sum(len(said_by(r).split()) % 2 == 0 for r in even)
    assert scores_of(tmp_path / "out")["m", "even"] == pytest.approx(solved / len(even))
    assert len(set(seeds)) > len(even)  # the two tasks number their examples alike, turns and samples differ
    assert even[0]["roles"]["policy"]["tokens"] == 3 and even[0]["roles"]["policy"]["finish_reason"] == "stop"
    (talk,) = [r for r in rows if (r["task"], r["mode"], r["number"]) == ("talk", "greedy", 0)]
    told = second[0][1]
    assert talk["roles"]["asked"]["tokens"] == 6  # of both turns, whose texts stand with the message between them
    assert any(told["content"] + "numbers 2" in said_by(r, "asked") for r in rows if r["task"] == "talk")


@pytest.mark.slow
def test_failures_are_error_rows_that_are_asked_again_and_no_answers(server, tasks, tmp_path):
    whole = ["--models", f"openai:m@{server.url}", "--tasks", *tasks, "--output"]
    assert run(*whole, tmp_path / "whole", flags=FLAGS) == 0
    calls = []

    def failing(body):
        calls.append(body)
        return BROKEN if len(calls) % 3 == 0 else says(body)

    server.reply = failing
    assert run(*whole, tmp_path / "out", flags=FLAGS) == 1
    rows, summary = rows_of(tmp_path / "out"), summary_of(tmp_path / "out")
    errors = [row for row in rows if "error" in row]
    assert errors and all("status 500: out of order" in row["error"] and "roles" not in row for row in errors)
    assert not summary["complete"] and sum(r["missing"] for r in summary["results"]) == len(errors)
    answered = [r for r in rows if (r["task"], r["mode"]) == ("even", "sampled") and "error" not in r]
    solved = sum(len(said_by(r).split()) % 2 == 0 for r in answered)
    assert scores_of(tmp_path / "out")["m", "even"] == pytest.approx(solved / len(answered))  # of what was answered
    server.reply = says
    before = len(server.asked)
    assert run(*whole, tmp_path / "out", flags=FLAGS) == 0
    assert len(server.asked) - before == sum(2 if row["task"] == "talk" else 1 for row in errors)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_what_a_server_refuses_is_not_solved_and_not_asked_again(server, tasks, tmp_path):
    filtered = (400, {}, '{"error": {"code": "content_filter", "message": "not this"}}')
    too_long = (400, {}, '{"error": {"message": "This model\'s maximum context length is 8 tokens"}}')

    def reply(body):
        number = int(body["messages"][0]["content"].split()[1])
        return filtered if number == 3 else too_long if number == 5 else says(body)

    server.reply = reply
    command = ["--models", f"openai:m@{server.url}", "--task", tasks[0], "--output", tmp_path / "out"]
    assert run(*command, flags=FLAGS) == 0
    rows, (result,) = rows_of(tmp_path / "out"), summary_of(tmp_path / "out")["results"]
    sampled = [row for row in rows if row["mode"] == "sampled"]
    kinds = [row["roles"][""]["unscorable"].partition(":")[0] for row in sampled if "" in row["roles"]]
    refused = len(kinds)
    assert set(kinds) == {"content_filter", "context_length"} and 0 < refused < len(sampled)
    solved = sum(len(said_by(row).split()) % 2 == 0 for row in sampled if "" not in row["roles"])
    assert (result["n"], result["missing"]) == (len(sampled), 0)
    assert result["pass@1"] == pytest.approx(solved / len(sampled))
    assert result["unscorable_frac"] == pytest.approx(refused / len(sampled))
    before, files = len(server.asked), files_of(tmp_path / "out")
    assert run(*command, flags=FLAGS) == 0
    assert len(server.asked) == before and files_of(tmp_path / "out") == files


def test_a_prompt_that_begins_the_answer_is_refused():
    """A server would close that message, and the model would begin another."""
    asked, begun = [{"role": "user", "content": "?"}], {"role": "assistant", "content": "<think>"}
    examples = [Example("1", asked, {}), Example("2", [*asked, begun], {})]
    with pytest.raises(UserError, match="the prompts of mine begin the answer, which no server continues"):
        require_whole(Cell(NamedModel("m", "m"), "mine", None, examples, {}, {}, {}))


def test_a_judge_that_fails_is_asked_again_and_the_model_is_not(server, tasks, tmp_path):
    down, asked = [True], []

    def reply(body):
        if body["model"] == "j":
            broken = down[0] and "numbers 3" in body["messages"][-1]["content"]
            return BROKEN if broken else answer("Score: 10")
        asked.append(body)
        return says(body)

    server.reply = reply
    server.models = ["m", "j"]
    command = ["--models", f"openai:m@{server.url}", "--task", tasks[0], "--output", tmp_path / "out"]
    command += ["--judge-model", "j", "--judge-base-url", server.url, "--judge-retries", "0", "--judge-cache", ""]
    assert run(*command, flags=FLAGS) == 1
    (result,), before = summary_of(tmp_path / "out")["results"], len(asked)
    assert (result["unscored"], result["missing"]) == (4, 0)  # three samples and the greedy one
    down[0] = False
    assert run(*command, flags=FLAGS) == 0
    assert len(asked) == before and summary_of(tmp_path / "out")["complete"]
