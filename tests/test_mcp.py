"""The tools of an MCP server, with the real library: what is called, what fails, and that the server ends."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from random import Random

import psutil
import pytest

pytestmark = pytest.mark.mcp
pytest.importorskip("mcp", reason="mcp is not installed: make setup EXTRA=mcp")

from minrl.__main__ import main  # noqa: E402 - after the skip
from minrl.dataflow import SOLO, Turn, UserError  # noqa: E402
from minrl.models.loading import small_qwen3  # noqa: E402
from minrl.rewards.episode import Play  # noqa: E402
from minrl.tasks import find_tool, load_task  # noqa: E402
from minrl.tasks.tools import ToolsOptions  # noqa: E402
from minrl.utils.task_names import played_with, split_tool, weights_of  # noqa: E402
from tests.chat_templates import tokenizer  # noqa: E402
from tests.runs import until  # noqa: E402

BAD = shlex.join([sys.executable, str(Path(__file__).with_name("mcp_server.py"))])
PRICES = '''from mcp.server.mcpserver import MCPServer
server = MCPServer("prices")

@server.tool()
def price(item: str) -> int:
    """The price of an item, in euros."""
    return {"pen": 2, "book": 15, "lamp": 40}[item]

server.run()
'''


def load(command, task="countdown", **options):
    return load_task(played_with(task, f"mcp:{command}"), {"tools": ToolsOptions(**options)})


@pytest.fixture
def prices(tmp_path, monkeypatch):
    """The command of a server, in a folder of its own."""
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
        ("fail", {"how": "raise"}, "[error] RuntimeError: Error executing tool fail"),
        ("fail", {"how": "sleep"}, "[error] MCPError: Request 'tools/call' timed out"),
        ("say", {"text": "a"}, "a< |im_end| >"),
    ],
)
def test_what_a_call_says_and_whether_it_failed(name, arguments, says):
    text, failed = called(load(BAD, seconds=0.5 if "sleep" in arguments.values() else 60), name, **arguments)
    assert text.startswith(says) and failed == says.startswith("[error]")


def test_a_server_that_dies_is_reported_and_started_again(said):
    task = load(BAD)
    assert called(task, "fail", how="die") == ("[error] MCPError: Connection closed", 1)
    assert called(task, "say", text="a") == ("a< |im_end| >", 0)
    (line,) = (line for line in said if "the MCP server ended, and is started again" in line)
    assert BAD in line


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-command", "does not start: no-such-command: .* No such file"),
        (f"{sys.executable} -c 'import nowhere'", "it printed: ModuleNotFoundError: No module named 'nowhere'"),
        ("", "needs the command of a server"),
        ("https://host/mcp", "must be the command of one server .* not by an address"),
    ],
)
def test_a_server_that_does_not_start_is_refused_in_one_line(command, reason):
    with pytest.raises(UserError, match=reason) as refused:
        load(command)
    assert "\n" not in str(refused.value)


def test_a_command_keeps_its_signs_in_a_tasks_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a b.py").touch()
    name = played_with("countdown:2,hanoi", "mcp:run 'a b.py' --units=m,s 50% x:y c+d")
    first, second = weights_of(name)
    assert (first.partition("+")[0], second.partition("+")[0]) == ("countdown", "hanoi")
    (served,) = find_tool(split_tool(first)[1]).functions
    assert shlex.split(served.command) == ["run", f"{tmp_path}/a b.py", "--units=m,s", "50%", "x:y", "c+d"]


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


@pytest.mark.slow
def test_the_server_ends_with_its_trainer(prices, model):
    flags = ["train", "--task", "countdown", "--tools", f"mcp:{prices}", *model, "--steps", "100000"]
    trainer = subprocess.Popen([sys.executable, "-m", "minrl", *flags])
    until(Path("runs/mine/metrics.jsonl").exists, trainer)
    served = psutil.Process(trainer.pid).children(recursive=True)
    assert any("prices.py" in " ".join(one.cmdline()) for one in served)
    trainer.kill()
    trainer.wait(60)
    assert not psutil.wait_procs(served, timeout=10)[1]
