"""Environments of verifiers, with the real library: its own rollouts and rubrics, sampled by the run."""

import io
import json
import logging
import signal
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

pytestmark = pytest.mark.verifiers
pytest.importorskip("verifiers", reason="verifiers is not installed: make setup EXTRA=verifiers")

from minrl.__main__ import main  # noqa: E402 - after the skip
from minrl.dataflow import SOLO, Turn, UserError  # noqa: E402
from minrl.models.loading import small_qwen3  # noqa: E402
from minrl.policy import as_policy  # noqa: E402
from minrl.rewards.episode import Play  # noqa: E402
from minrl.rollout import Plan, rollout  # noqa: E402
from minrl.tasks import Dataset, load_task  # noqa: E402
from minrl.tasks.task import Sampled  # noqa: E402
from minrl.tasks.verifiers import VerifiersOptions, load_library  # noqa: E402
from minrl.utils.task_names import task_key  # noqa: E402
from tests.chat_templates import tokenizer  # noqa: E402
from tests.conftest import CPU  # noqa: E402
from tests.test_documents import FENCE, PAGES  # noqa: E402
from tests.test_rollout import Scripted  # noqa: E402
from tests.test_tools import CHATS  # noqa: E402

(GUESS,) = (block for _, block in FENCE.findall(PAGES["docs/tools.md"]) if "import verifiers" in block)

LEGS = """import verifiers as vf

def load_environment():
    return vf.ReasoningGymEnv(gym="leg_counting", num_train_examples=12, num_eval_examples=4)
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
    if "raise" in completion[-1]["content"]:
        raise ValueError(completion[-1]["content"])
    return float(completion[-1]["content"] == answer)

async def varied(completion):
    return len(completion[-1]["content"]) % 3 / 2

async def shortest(completions):
    return [float(len(one) == min(map(len, completions))) for one in completions]

class Guesses(vf.MultiTurnEnv):
    @vf.stop
    async def is_right(self, state):
        return bool(state["trajectory"]) and state["trajectory"][-1]["completion"][-1]["content"] == state["answer"]

    async def env_response(self, messages, state):
        return [{"role": "user", "content": "again"}]

class Spoiled(vf.MultiTurnEnv):
    async def env_response(self, messages, state):
        match messages[-1]["content"]:
            case "rewrite":
                messages[0]["content"] = "another prompt"
            case "error":
                raise vf.SandboxError("it is down")
            case "bug":
                raise KeyError("bug")
        return [{"role": "user", "content": "more<|im_end|>"}]

async def cut(state):
    return float(state["is_truncated"])

def load_environment(kind="tools", count=10):
    rows = [{"question": f"{n} + 1 ?", "answer": str(n + 1)} for n in range(count)]
    data, funcs = Dataset.from_list(rows), [right, cut]
    if kind == "spoiled":
        return Spoiled(dataset=data, eval_dataset=Dataset.from_list(rows[:3]), rubric=vf.Rubric(funcs=funcs))
    if kind == "guesses":
        return Guesses(dataset=data, max_turns=2, rubric=vf.Rubric(funcs=[shortest]))
    if kind == "group":
        return vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[right, shortest], weights=[1.0, 0.5]))
    if kind == "varied":
        return Spoiled(dataset=data, max_turns=2, rubric=vf.Rubric(funcs=[varied]))
    if kind == "several":
        return vf.EnvGroup(envs=[load_environment("tools"), load_environment("group")], env_names=["one", "other"])
    if kind == "text":
        return vf.SingleTurnEnv(dataset=data.rename_column("question", "prompt"), message_type="completion")
    return vf.ToolEnv(dataset=data, tools=[add], max_turns=3, rubric=vf.Rubric(funcs=funcs))
'''


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with environments, from which they are imported."""
    for name, source in (("guess_number", GUESS), ("legs_env", LEGS), ("sums_env", SUMS)):
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def load(name="sums-env", **arguments):
    options = VerifiersOptions(arguments=json.dumps(arguments) if arguments else "", seconds=30)
    return load_task(f"verifiers:{name}", {f"verifiers/{name}": options})


def playing(task, *said, room=True):
    """A play in which the policy says these texts, and the turns that it was shown. Without room none follows."""
    play, shown, said = Play(task, task.dataset.train[0], Random(0)), [], list(said)
    play.advance(None)
    while play.pending is not None:
        if isinstance(play.pending, Turn):
            shown.append(play.pending)
            text = said.pop(0) if said or room else ""
            play.advance(text if isinstance(text, Sampled) or not text else Sampled(text))
        else:
            job = play.pending
            assert job.waits
            play.advance(
                job.function(*([one] for one in job.arguments))[0] if job.group else job.function(*job.arguments)
            )
    assert not said
    return play, shown


def call(**arguments):
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"


def test_the_pages_environment_plays_and_scores_by_itself():
    task = load("guess-number", numbers=10)
    assert sum(task.dataset.sizes()) == 10
    answer = task.dataset.train[0]["answer"]
    play, shown = playing(task, "99", answer)
    assert shown[1].message == [{"role": "user", "content": "No. Another guess?"}]
    reward = play.rewards[SOLO]
    assert reward.value == reward.maximum == 1.2
    assert reward.parts == {"found": 1.0, "brief": 1.0, "num_turns": 2.0}
    play, shown = playing(task, "96", "97", "98", "99")  # max_turns
    assert play.rewards[SOLO].value == 0.2 and not play.rewards[SOLO].solved and len(shown) == 4


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


def test_several_environments_are_one_task():
    task = load(kind="several")
    assert sum(task.dataset.sizes()) == 20 and min(task.dataset.sizes()) > 0
    rows = {example["task"]: example for example in task.dataset.train}
    for name, value in (("one", 1.0), ("other", 1.5)):
        own = replace(task, dataset=Dataset([rows[name]], []))
        assert playing(own, rows[name]["answer"])[0].rewards[SOLO].value == value


def test_an_environment_hears_of_truncation_and_of_a_full_context():
    whole, cut = Sampled("5"), Sampled("5")
    cut.truncated = True
    assert [playing(load(), said)[0].rewards[SOLO].parts["cut"] for said in (whole, cut)] == [0.0, 1.0]
    play, shown = playing(load(kind="spoiled"), "a", room=False)
    assert len(shown) == 2 and play.rewards[SOLO].parts == {"right": 0.0, "cut": 1.0, "num_turns": 1.0}


def test_what_goes_wrong_in_an_environment_is_scored_counted_or_stops(monkeypatch):
    task, printed = load(kind="group"), io.StringIO()
    monkeypatch.setattr(logging.getLogger("verifiers").handlers[0], "stream", printed)
    for said in ("raise 1", "raise 2"):
        assert playing(task, said)[0].rewards[SOLO].parts["right"] == 0.0  # as the library has it
    assert printed.getvalue().count("Error calling reward function right: raise") == 1  # of two
    task = load(kind="spoiled")
    assert "SandboxError: it is down" in playing(task, "error")[0].failure
    assert "KeyError: 'bug'" in playing(task, "bug")[0].failure
    assert "mistake in task verifiers/sums-env" in playing(task, "rewrite")[0].failure


def test_evaluation_rows_are_held_out_and_not_trained_on():
    assert load(kind="spoiled").dataset.sizes() == (7, 3)
    train, held_out = load(count=40).dataset.sizes()
    assert train + held_out == 40 and 2 <= held_out <= 16


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("nowhere", {}, "verifiers/nowhere cannot be loaded: Could not import 'nowhere'"),
        ("json", {}, "does not have a 'load_environment' function"),
        ("sums-env", {"kinds": 1}, "with the arguments {\"kinds\": 1}.*unexpected keyword argument 'kinds'"),
        ("sums-env", {"count": 0}, "verifiers/sums-env has no examples"),
        ("sums-env", {"kind": "text"}, "only chats are played"),
    ],
)
def test_wrong_environments_are_refused_in_one_line(name, arguments, reason):
    with pytest.raises(UserError, match=reason) as refused:
        load(name, **arguments).dataset.sizes()
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="the tools of verifiers/sums-env are its own: leave out --tools"):
        load_task("verifiers:sums-env+python")


def test_an_environment_takes_no_signals_for_itself():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    load(count=7)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.fixture
def policy(processes):
    own = tokenizer("bytes", *CHATS["qwen"][:2], eos="<|im_end|>")
    return as_policy(small_qwen3(own, 64, 1, 2, 0), own, CPU, processes)


def test_ids_only_grow_and_only_what_the_policy_says_is_trained_on(policy, workers):
    task = load()
    said = [f"{call(x=99, y=1)}<|im_end|>", f"{task.dataset.train[0]['answer']}<|im_end|>"]
    engine = Scripted(policy, *said, room=4000)
    sampled = rollout(policy, engine, workers, task, task.dataset.train[:1], Plan(1, 999, 1.0, 0, "test", 1))
    (one,) = sampled.rollouts
    assert sampled.failures == [] and one.reward.value == 1.0
    pieces = [("".join(policy.tokenizer.decode([id])), mask) for id, mask in zip(one.ids, one.loss_mask, strict=True)]
    assert "".join(text for text, mask in pieces if mask) == "".join(said)
    given = "".join(text for text, mask in pieces[one.prompt_length :] if not mask)
    assert "\nnot 99 < |im_end| >\n" in given and given.count("<|im_end|>") == 1
    first, second = engine.calls[0][0].ids, engine.calls[1][0].ids
    assert second[: len(first)] == first


def test_a_group_is_scored_when_its_last_rollout_has_ended(policy, workers):
    task = load(kind="guesses")
    said = [task.dataset.train[0]["answer"], "wrong", "wrong"]
    engine = Scripted(policy, *(f"{one}<|im_end|>" for one in said), room=4000)
    sampled = rollout(policy, engine, workers, task, task.dataset.train[:1], Plan(2, 999, 1.0, 0, "test", 1))
    assert sampled.failures == [] and [one.reward.value for one in sampled.rollouts] == [1.0, 0.0]


RUNS = {"legs-env": "format_reward_func", "guess-number": "num_turns", "sums-env": "varied"}
MODEL = "--model-id model --chat-template chatml --max-tokens 4 --threads 1 --device cpu --quiet --no-preflight"
STEPS = "--prompts-per-step 2 --group-size 2 --eval-every 1 --eval-examples 2 --learning-rate 1e-2"


@pytest.mark.parametrize("name", RUNS)
def test_two_steps_an_exact_resume_and_an_evaluation(name):
    own = tokenizer("bytes", None, "<|im_start|> <|im_end|>", eos="<|im_end|>")
    for part in (small_qwen3(own, 64, 1, 2, 0), own):
        part.save_pretrained("model")
    flags = ["train", "--task", f"verifiers:{name}", *f"{MODEL} {STEPS} --schedule constant".split()]
    flags += ["--verifiers-sums-env.arguments", '{"kind": "varied"}'] if name == "sums-env" else []
    assert main([*flags, "--run-name", "whole", "--steps", "2"]) == 0
    assert main([*flags, "--run-name", "mine", "--steps", "1"]) == 0
    first = weights("mine")
    assert main(["train", "--resume", "mine", "--steps", "2", "--quiet"]) == 0
    assert weights("mine") == weights("whole") and (weights("mine") != first or name != "sums-env")
    lines = [json.loads(line) for line in Path("runs/mine/metrics.jsonl").read_text().splitlines()]
    assert len([line[f"reward/part/{RUNS[name]}"] for line in lines if "reward/mean" in line]) == 2
    words = "evaluate --models mine --examples 2 --max-tokens 4 --device cpu --threads 1 --quiet --output found.json"
    assert main(words.split()) == 0
    assert (
        task_key(f"verifiers:{name}") == f"verifiers/{name}" and f"verifiers/{name}" in Path("found.json").read_text()
    )


def weights(run):
    return json.loads(Path(f"runs/{run}/summary.json").read_text())["weights_sha256"]


def test_the_library_is_the_pinned_one():
    assert load_library().__version__ == "0.1.9.post3"
