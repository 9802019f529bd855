"""Environments of verifiers, with the real library: its own rollouts and rubrics, sampled by the run."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

pytestmark = pytest.mark.verifiers
pytest.importorskip("verifiers", reason="verifiers is not installed: make setup EXTRA=verifiers")

from minrl.__main__ import main  # noqa: E402 - after the skip
from minrl.dataflow import SOLO, UserError  # noqa: E402
from minrl.models.loading import small_qwen3  # noqa: E402
from minrl.rewards.episode import Play  # noqa: E402
from minrl.tasks import load_task  # noqa: E402
from minrl.tasks.task import Sampled  # noqa: E402
from minrl.tasks.verifiers import VerifiersOptions  # noqa: E402
from tests.chat_templates import tokenizer  # noqa: E402
from tests.conftest import play_through  # noqa: E402
from tests.runs import Run  # noqa: E402

GUESS = """import verifiers as vf
from datasets import Dataset


def said(messages):
    return messages[-1]["content"].strip(" .")


class GuessNumber(vf.MultiTurnEnv):
    @vf.stop
    async def guessed(self, state):
        return bool(state["trajectory"]) and said(state["trajectory"][-1]["completion"]) == state["answer"]

    async def env_response(self, messages, state):
        return [{"role": "user", "content": "No. Another guess?"}]


async def found(completion, answer):
    return float(said(completion) == answer)


async def brief(completion):
    return float(all(len(message["content"]) < 20 for message in completion))


def load_environment(numbers=20):
    rows = [{"question": f"Guess a number from {n} to {n + 2}.", "answer": str(n + 1)} for n in range(numbers)]
    rubric = vf.Rubric(funcs=[found, brief], weights=[1.0, 0.2])
    return GuessNumber(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=4)
"""

SUMS = '''import verifiers as vf
from datasets import Dataset

def add(x: int, y: int) -> int:
    """The sum of two numbers.

    Args:
        x: a number
        y: another number
    """
    if x == 99:
        raise ValueError("not 99 <|im_end|>")
    return x + y

async def right(completion, answer):
    return float(completion[-1]["content"] == answer)

async def varied(completion):
    return len(completion[-1]["content"]) % 3 / 2

async def shortest(completions):
    return [float(len(one) == min(map(len, completions))) for one in completions]

class Spoiled(vf.MultiTurnEnv):
    async def env_response(self, messages, state):
        match messages[-1]["content"]:
            case "error":
                raise vf.SandboxError("it is down")
            case "bug":
                raise KeyError("bug")
        return [{"role": "user", "content": "more<|im_end|>"}]

def load_environment(kind="tools", count=10):
    rows = [{"question": f"{n} + 1 ?", "answer": str(n + 1)} for n in range(count)]
    data, funcs = Dataset.from_list(rows), [right]
    if kind == "spoiled":
        return Spoiled(dataset=data, eval_dataset=Dataset.from_list(rows[:3]), rubric=vf.Rubric(funcs=funcs))
    if kind == "group":
        return vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[right, shortest], weights=[1.0, 0.5]))
    if kind == "varied":
        return Spoiled(dataset=data, max_turns=2, rubric=vf.Rubric(funcs=[varied]))
    return vf.ToolEnv(dataset=data, tools=[add], max_turns=3, rubric=vf.Rubric(funcs=funcs))
'''


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with environments, from which they are imported."""
    for name, source in (("guess_number", GUESS), ("sums_env", SUMS)):
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def load(name="sums-env", **arguments):
    options = VerifiersOptions(arguments=json.dumps(arguments) if arguments else "", seconds=30)
    return load_task(f"verifiers:{name}", {f"verifiers/{name}": options})


def work(job):
    assert job.waits
    return job.function(*([one] for one in job.arguments))[0] if job.group else job.function(*job.arguments)


def playing(task, *said):
    """A play in which the policy says these texts, and the turns that it was shown."""
    play = Play(task, task.dataset.train[0], Random(0))
    return play, play_through(play, *map(Sampled, said), work=work)


def call(**arguments):
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"


def test_an_environment_plays_and_scores_by_itself():
    task = load("guess-number")
    play, shown = playing(task, "99", task.dataset.train[0]["answer"])
    assert shown[1].message == [{"role": "user", "content": "No. Another guess?"}]
    reward = play.rewards[SOLO]
    assert reward.value == reward.maximum == 1.2
    assert reward.parts == {"found": 1.0, "brief": 1.0, "num_turns": 2.0}


def test_tools_are_shown_called_and_told_what_was_wrong():
    task = load()
    answer = task.dataset.train[0]["answer"]
    play, shown = playing(task, f"hm {call(x=1, y=2)}{call(x=99, y=2)}", "<tool_call>{</tool_call>", answer)
    (schema,) = shown[0].message[0]["tools"]
    assert schema["function"]["name"] == "add" and task.dataset.train[0].prompt == shown[0].message
    assert shown[1].message == [
        {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "3"},
        {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": "not 99 <|im_end|>"},
    ]
    assert shown[2].message[0]["content"].startswith("Expecting value")
    assert [(one.optional, one.shown_by) for one in shown] == [(False, ""), (True, "tool"), (True, "tool")]
    reward = play.rewards[SOLO]
    assert (reward.value, reward.parts["total_tool_calls"], reward.parts["add_calls"]) == (1.0, 3.0, 2.0)


def test_a_function_of_the_group_sees_all_completions():
    task = load(kind="group")
    plays = [Play(task, task.dataset.train[0], Random(0), group=1) for _ in range(2)]
    for play, said in zip(plays, ["no", task.dataset.train[0]["answer"]], strict=True):
        play.advance(None)
        play.advance(play.pending.function(*play.pending.arguments))
        play.advance(said)
        play.advance(play.pending.function(*play.pending.arguments))
    jobs = [play.pending for play in plays]
    assert all(job.group for job in jobs)
    paid = jobs[0].function([job.arguments[0] for job in jobs])
    assert [(one.value, one.parts["shortest"], one.maximum) for one in paid] == [(0.5, 1.0, 1.5), (1.5, 1.0, 1.5)]


def test_what_an_environment_raises_makes_its_episode_unscorable():
    task = load(kind="spoiled")
    for said, failure in (("error", "SandboxError: it is down"), ("bug", "KeyError: 'bug'")):
        with pytest.raises(AssertionError, match=failure):  # the play's failure, of `play_through`
            playing(task, said)


def test_evaluation_rows_are_held_out_and_not_trained_on():
    assert load(kind="spoiled").dataset.sizes() == (7, 3)


def test_wrong_environments_are_refused_in_one_line():
    with pytest.raises(UserError, match="verifiers/nowhere cannot be loaded: Could not import 'nowhere'") as refused:
        load("nowhere")
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match=r"with the arguments .*unexpected keyword argument 'kinds'"):
        load(kinds=1)


def test_an_environment_takes_no_signals_for_itself():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    load(count=7)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


FLAGS = """--model-id model --chat-template chatml --max-tokens 4 --threads 1 --device cpu --quiet --no-preflight
    --prompts-per-step 2 --group-size 2 --eval-every 1 --eval-examples 2 --learning-rate 1e-2 --schedule constant
    --task verifiers:sums-env"""


def test_two_steps_an_exact_resume_and_an_evaluation(place):
    own = tokenizer("bytes", None, "<|im_start|> <|im_end|>", eos="<|im_end|>")
    for part in (small_qwen3(own, 64, 1, 2, 0), own):
        part.save_pretrained("model")
    whole = Run(place, [*FLAGS.split(), "--verifiers-sums-env.arguments", '{"kind": "varied"}'], name="whole")
    mine = replace(whole, name="mine")
    assert (whole.here("--steps", 2), mine.here("--steps", 1)) == (0, 0)
    assert mine.here("--resume", "mine", "--steps", 2) == 0
    assert mine.summary["weights_sha256"] == whole.summary["weights_sha256"]
    trained = [line for line in mine.metrics if "reward/part/varied" in line]
    assert len(trained) == 2 and all(line["policy/grad_norm"] > 0 for line in trained)
    words = "evaluate --models mine --examples 2 --max-tokens 4 --device cpu --threads 1 --quiet --output found.json"
    assert main(words.split()) == 0
    assert "verifiers/sums-env" in Path("found.json").read_text()
