"""The tools of an MCP server, with the real library: what is called, what fails, and that the server ends."""

import json
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import psutil
import pytest

pytestmark = pytest.mark.mcp
pytest.importorskip("mcp", reason="mcp is not installed: make setup EXTRA=mcp")

from minrl.__main__ import main  # noqa: E402 - after the skip
from minrl.dataflow import SOLO, Turn, UserError  # noqa: E402
from minrl.models.loading import small_qwen3  # noqa: E402
from minrl.policy import as_policy  # noqa: E402
from minrl.rewards.episode import Play  # noqa: E402
from minrl.rollout import Plan, rollout  # noqa: E402
from minrl.tasks import load_task  # noqa: E402
from minrl.tasks.mcp import server  # noqa: E402
from minrl.tasks.tools import ToolsOptions  # noqa: E402
from minrl.utils.task_names import played_with, weights_of  # noqa: E402
from tests.chat_templates import tokenizer  # noqa: E402
from tests.conftest import CPU  # noqa: E402
from tests.test_documents import FENCE, PAGES  # noqa: E402
from tests.test_rollout import Scripted  # noqa: E402
from tests.test_tools import CHATS, chat  # noqa: E402

BAD = shlex.join([sys.executable, str(Path(__file__).with_name("mcp_server.py"))])
(PRICES,) = (block for _, block in FENCE.findall(PAGES["docs/tools.md"]) if "MCPServer" in block)


def load(command, task="countdown", **options):
    return load_task(played_with(task, f"mcp:{command}"), {"tools": ToolsOptions(**options)})


@pytest.fixture
def prices(tmp_path, monkeypatch):
    """The command of the page's server, in a folder of its own, and what makes names of it and of a task."""
    (tmp_path / "prices.py").write_text(PRICES)
    monkeypatch.chdir(tmp_path)
    return f"{sys.executable} prices.py"


def called(task, name, **arguments):
    """What a call gives the role, and its reward's parts after a last answer."""
    play = Play(task, task.dataset.train[0], Random(0))
    play.advance(None)
    play.advance(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>")
    if not isinstance(play.pending, Turn):
        assert play.pending.waits and not play.pending.cheap
        play.advance(play.pending.function(*play.pending.arguments))
    (message,) = play.pending.message
    play.advance("no answer")
    play.advance(play.pending.function(*play.pending.arguments))
    return message["content"], play.rewards[SOLO].parts["tool_failed"]


def test_a_servers_tools_are_shown_and_called(prices):
    task = load(prices)
    (schema,) = next(task.play(task.dataset.train[0], Random(0))).message[0]["tools"]
    assert schema["function"]["description"] == "The price of an item, in euros."
    assert schema["function"]["parameters"]["required"] == ["item"]
    assert called(task, "price", item="book") == ("15", 0)
    assert called(task, "prices") == ("[error] there is no tool prices, only price", 1)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("odd", {"choice": "a", "points": [{"x": 1}]}, "a [Point(x=1)]"),
        ("odd", {}, "None None"),
        ("say", {}, "[error] RuntimeError: Error executing tool say"),  # which the server says
        ("fail", {"how": "raise"}, "[error] RuntimeError: Error executing tool fail"),
        ("fail", {"how": "sleep"}, "[error] MCPError: Request 'tools/call' timed out"),
        ("say", {"text": "a"}, "a< |im_end| >"),
    ],
)
def test_what_a_call_says_and_whether_it_failed(name, arguments, says):
    text, failed = called(load(BAD, seconds=0.5 if "sleep" in arguments.values() else 60), name, **arguments)
    assert text.startswith(says) and failed == says.startswith("[error]")


def test_unusual_schemas_are_shown_without_special_tokens():
    task = load(BAD)
    tools = next(task.play(task.dataset.train[0], Random(0))).message[0]["tools"]
    for name in CHATS.keys() - {"gpt-oss"}:  # whose template here takes what has one type
        text = chat(*CHATS[name]).render([{"role": "user", "content": "hello", "tools": tools}])
        assert "anyOf" in text and "$defs" in text and text.count("that ends a turn: < |im_end| >") == 1


def test_a_server_that_dies_is_reported_once_and_started_again(said):
    task = load(BAD)
    with ThreadPoolExecutor(2) as pool:
        texts = [one.result()[0] for one in [pool.submit(called, task, "fail", how="die") for _ in range(2)]]
    assert texts == ["[error] MCPError: Connection closed"] * 2
    assert called(task, "odd") == ("None None", 0)
    lines = [line for line in said if "the MCP server ended, and is started again" in line]
    assert len(lines) in (1, 2) and BAD in lines[0]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-command", "does not start: no-such-command: .* No such file"),
        (f"{sys.executable} -c 'import nowhere'", "it printed: ModuleNotFoundError: No module named 'nowhere'"),
        ("", "needs the command of a server"),
        ("python 'x", "No closing quotation"),
        ("python a.py,mcp:python b.py", "must be the command of one server"),
        ("https://host/mcp", "must be the command of one server .* not by an address"),
    ],
)
def test_a_server_that_does_not_start_is_refused_in_one_line(command, reason):
    with pytest.raises(UserError, match=reason) as refused:
        load(command)
    assert "\n" not in str(refused.value)


def test_what_a_server_prints_on_stdout_is_said_once_in_a_line(tmp_path, caplog):
    script = tmp_path / "loud.py"
    script.write_text(f"print('loading', flush=True)\nprint('ready', flush=True)\n{PRICES}")
    assert called(load(f"{sys.executable} {script}"), "price", item="pen") == ("2", 0)
    (line,) = caplog.text.splitlines()
    assert "Failed to parse JSONRPC message from server" in line and "'loading'" in line


def test_a_server_that_cannot_start_again_makes_rollouts_unscorable(tmp_path):
    script = tmp_path / "gone.py"
    script.write_text(Path(__file__).with_name("mcp_server.py").read_text())
    task = load(f"{sys.executable} {script}")
    script.unlink()
    assert called(task, "fail", how="die")[1] == 1
    with pytest.raises(UserError, match="the MCP server does not start"):
        called(task, "odd")


def test_a_command_keeps_its_signs_in_a_tasks_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a b.py").touch()
    name = played_with("countdown:2,hanoi", "mcp:run 'a b.py' --units=m,s 50% x:y c+d")
    assert {key: float(value) for key, value in weights_of(name).items()} == {
        f"{task}+mcp:run '{tmp_path}/a b.py' --units=m%2Cs 50%25 x%3Ay c%2Bd": weight
        for task, weight in (("countdown", 2), ("hanoi", 1))
    }
    (one, _) = weights_of(name)
    from minrl.tasks import find_tool
    from minrl.utils.task_names import split_tool

    (served,) = find_tool(split_tool(one)[1]).functions
    assert shlex.split(served.command) == ["run", f"{tmp_path}/a b.py", "--units=m,s", "50%", "x:y", "c+d"]


def test_no_result_ends_a_turn_or_is_trained_on(processes, workers):
    own = tokenizer("bytes", *CHATS["qwen"][:2], eos="<|im_end|>")
    policy = as_policy(small_qwen3(own, 64, 1, 2, 0), own, CPU, processes)
    call = '<tool_call>{"name": "say", "arguments": {"text": "b"}}</tool_call><|im_end|>'
    task = load(BAD)
    engine = Scripted(policy, call, "5<|im_end|>", room=8000)
    sampled = rollout(policy, engine, workers, task, task.dataset.train[:1], Plan(1, 999, 1.0, 0, "test", 1))
    (one,) = sampled.rollouts
    pieces = [("".join(own.decode([id])), mask) for id, mask in zip(one.ids, one.loss_mask, strict=True)]
    assert sampled.failures == [] and "".join(text for text, mask in pieces if mask) == f"{call}5<|im_end|>"
    given = "".join(text for text, mask in pieces[one.prompt_length :] if not mask)
    assert "\nb< |im_end| >\n" in given and given.count("<|im_end|>") == 1


@pytest.fixture
def model(tmp_path, monkeypatch):
    """The flags of a small chat model in this folder."""
    monkeypatch.chdir(tmp_path)
    own = tokenizer("bytes", None, "<|im_start|> <|im_end|>", eos="<|im_end|>")
    for part in (small_qwen3(own, 64, 1, 2, 0), own):
        part.save_pretrained("model")
    flags = (
        "--model-id model --chat-template chatml --prompts-per-step 2 --group-size 2 --max-tokens 4 --threads 1 "
        "--device cpu --quiet --eval-every 0 --eval-examples 2 --run-name mine --learning-rate 1e-3 --no-preflight"
    )
    return flags.split()


def test_two_steps_a_resume_and_an_evaluation(prices, model):
    flags = ["train", "--task", "countdown", "--tools", f"mcp:{prices}", *model]
    assert main([*flags, "--steps", "1"]) == 0
    assert main(["train", "--resume", "mine", "--steps", "2", "--quiet"]) == 0
    lines = [json.loads(line) for line in Path("runs/mine/metrics.jsonl").read_text().splitlines()]
    assert [line["reward/part/tool_calls"] for line in lines if "reward/mean" in line] == [0.0, 0.0]
    words = "evaluate --models mine --examples 2 --max-tokens 4 --device cpu --threads 1 --quiet --output found.json"
    assert main(words.split()) == 0
    assert "countdown+tools" in Path("found.json").read_text()


def children(process):
    return [
        one
        for one in psutil.Process(process.pid).children(recursive=True)
        if "prices.py" in " ".join(one.as_dict(["cmdline"])["cmdline"] or ())  # a zombie has none
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_its_trainer(prices, model, number):
    flags = ["train", "--task", "countdown", "--tools", f"mcp:{prices}", *model, "--steps", "100000"]
    trainer = subprocess.Popen([sys.executable, "-m", "minrl", *flags])
    until = time.monotonic() + 120
    while not (served := children(trainer)) or not Path("runs/mine/metrics.jsonl").exists():
        assert trainer.poll() is None and time.monotonic() < until
        time.sleep(0.2)
    trainer.send_signal(number)
    trainer.wait(60)
    assert not psutil.wait_procs(served, timeout=10)[1]


def test_one_server_of_a_process_serves_all_tasks(prices):
    command = load(prices) and next(iter(weights_of(played_with("hanoi", f"mcp:{prices}")))).partition("mcp:")[2]
    before = server(command)._running()
    load(prices, task="hanoi")
    assert server(command)._running() is before
