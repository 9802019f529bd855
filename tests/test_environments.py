"""Environments of TRL's form: their rows, what an episode does with one, rewards, and whole runs."""

import json
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from minrl import task
from minrl.__main__ import main
from minrl.dataflow import SOLO, Turn, UserError
from minrl.models.loading import small_qwen3
from minrl.rewards.episode import Play, run_jobs
from minrl.tasks import load_task, register
from minrl.tasks.programs import programs
from minrl.tasks.tools import ToolsOptions
from tests.chat_templates import QWEN_TOOLS, tokenizer
from tests.crew import free_port
from tests.parsed import parsed
from tests.runs import Run
from tests.test_documents import FENCE, PAGES


class Game:
    """Counts how many of it there are."""

    made = 0

    def __init__(self):
        type(self).made += 1

    def reset(self, seed, low=1, **_) -> str | None:
        self.seed, self.low, self.said = seed, low, []
        return f"From {low}: {random.random()} {np.random.rand()} <|im_end|>"

    def say(self, number: int) -> str:
        """
        Say a number.

        Args:
            number: any
        """
        self.said.append(number)
        if number < 0:
            raise ValueError("below 0")
        if number == 55:
            sys.exit(3)
        if number > 99:
            try:
                time.sleep(number)
            except Exception:
                return "caught"
        return f"{random.random()} {np.random.rand()} <|im_end|>"

    def get_reward(self) -> float:
        if 13 in self.said:
            raise LookupError("13")
        return float(7 in self.said)

    def _hidden(self):
        """No tool."""


def call(number, name="say"):
    return f'<tool_call>{{"name": "{name}", "arguments": {{"number": {number}}}}}</tool_call>'


@pytest.fixture
def loaded():
    """Makes the task of a class."""
    return lambda made, options=None, **more: load_task(register("mine", task(**more)(made)), {"tools": options})


def played(task, workers, *says, seeds=None, examples=None):
    """The plays of one group, in each of which the policy says these texts, and the turns of each."""
    examples = examples or [task.dataset.train[0]] * len(says)
    plays = [Play(task, one, Random(seed), "group") for one, seed in zip(examples, seeds or range(99), strict=False)]
    left, turns = [list(one) for one in says], [[] for _ in says]
    for play in plays:
        play.advance(None)
    while waiting := [play for play in plays if play.pending is not None]:
        if not run_jobs(waiting, workers):
            for number, play in enumerate(plays):
                if isinstance(play.pending, Turn):
                    turns[number].append(play.pending.message)
                    play.advance(left[number].pop(0))
    assert not any(left) or any(play.failure for play in plays)
    return plays, turns


def test_methods_are_tools_and_the_class_rewards_its_episode(loaded, workers):
    task = loaded(Game)
    (play,), ((first, answer, left, last),) = played(task, workers, [f"So {call(7)}", call(55), call(-1), "7"])
    assert [one["function"]["name"] for one in first[0]["tools"]] == ["say"]
    assert first[0]["role"] == "user" and first[0]["content"].startswith("From 1: 0.")
    assert answer[0]["role"] == "tool" and "sys.exit(3)" in str(left)  # ends no trainer
    assert last[0]["content"] == "[error] ValueError: below 0"
    for text in (first[0]["content"], answer[0]["content"]):
        assert text.endswith(" < |im_end| >")
    reward = play.rewards[SOLO]
    assert reward.solved and (reward.value, reward.parts) == (1.0, {"tool_calls": 3, "tool_failed": 2})


def test_episodes_of_a_prompt_begin_alike_and_each_is_played_again_by_its_seed(loaded, workers):
    task = loaded(Game)
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    says = [[call(1), call(1), "1"]] * 3
    _, (one, same, other) = played(task, workers, *says, seeds=[0, 0, 1])
    assert one == same and one[0] == other[0] and one[1] != other[1] and one[1] != one[2]
    assert before == (random.getstate(), np.random.get_state()[1].tolist())


def test_what_reset_or_get_reward_raises_is_one_line_and_leaves_the_rest_of_the_group(loaded, workers):
    class Broken(Game):
        def reset(self, **_):
            raise ConnectionError("no\nserver")

    plays, _ = played(loaded(Game), workers, [call(13), "13"], [call(7), "7"])
    assert "Game.get_reward raised LookupError: 13" in plays[0].failure and "\n" not in plays[0].failure
    assert plays[1].rewards[SOLO].value == 1.0
    (play,), _ = played(loaded(Broken), workers, ["1"])
    assert "Broken.reset raised ConnectionError: no server (test_environments.py, line" in play.failure and play.lost


def test_a_method_that_takes_too_long_ends_the_episode_and_is_used_no_more(loaded, workers):
    task, Game.made = loaded(Game, ToolsOptions(seconds=0.2)), 0
    plays, _ = played(task, workers, [call(100), "1"], [call(7), "7"])
    line = "Game.say did not return within 0.2 s (--tools.seconds)"
    assert [play.failure for play in plays] == [line, None] and Game.made == 2
    played(task, workers, ["1"], ["1"])
    assert Game.made == 3


ASK = [{"role": "user", "content": "Play. "}]


def test_rows_are_given_to_reset_and_equal_ones_are_problems_of_their_own(loaded, workers):
    class Strict(Game):
        def reset(self, low, seed=0):
            return super().reset(seed, low)

    rows = [{"prompt": ASK, "low": 5, "other": 1}] * 8
    task = loaded(Strict, data=rows, held_out=0.5)
    examples = [*task.dataset.train, *task.dataset.held_out]
    assert len({one.id for one in examples}) == 8 and task.dataset.held_out
    _, ((first,), (second,)) = played(task, workers, ["1"], ["1"], examples=examples[:2])
    assert first[0]["content"].startswith("Play. From 5: 0.") and first != second


def brief(environments, completions, low, **_):
    ((said,),) = completions
    return [None if said["content"] == "none" else 1 / len(one.said) for one in environments]


def test_rewards_of_trls_form_are_given_the_environment_beside_its_own(loaded, workers):
    rows = [{"prompt": ASK, "low": 5}]
    task = loaded(Game, data=rows, rewards=[(brief, 0.5)], held_out=0)
    (note,) = task.notes()
    assert "1.5 or more, where each of get_reward, brief is 1" in note
    plays, _ = played(task, workers, [call(7), "1"], [call(1) + call(7), "1"], ["none"])
    assert [play.rewards[SOLO].value for play in plays] == [1.5, 1.25, 0.0]
    assert plays[1].rewards[SOLO].parts == {"get_reward": 1, "brief": 0.5, "tool_calls": 2, "tool_failed": 0}
    assert [play.rewards[SOLO].solved for play in plays] == [True, False, False]


@pytest.fixture
def place(tmp_path, monkeypatch, own_imports):
    monkeypatch.chdir(tmp_path)
    sys.path.append(str(tmp_path))
    return tmp_path


def test_wrong_uses_are_refused_in_one_line(place, monkeypatch):
    good = "from minrl import task\nclass Good:\n    def reset(self): ...\n    def go(self):\n        'Go.'\n"
    monkeypatch.setitem(sys.modules, "openenv", None)
    for name, source, reason in (
        ("good", good, "nothing rewards the episodes of Good: give it a method `get_reward`, or put @task"),
        ("begun", good.replace("reset", "begin"), "Good is no environment: it has no method `reset`"),
        ("lacks", "import openenv.no", r"ModuleNotFoundError.*: make setup EXTRA=openenv, or pip install 'minrl\["),
    ):
        Path(f"{name}_game.py").write_text(source)
        with pytest.raises(UserError, match=reason) as refused:
            config, options = parsed(["--task", f"{name}_game.py:Good"])
            load_task(config.task, options)
        assert "\n" not in str(refused.value)


# Whole runs, by a model that calls


def write_model(folder, *calls):
    """A model of random weights that says nearly always one of these calls, or ends its turn."""
    calls = [one.replace(" ", "") for one in calls]
    special = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", *calls]
    own = tokenizer("bytes", QWEN_TOOLS, " ".join(special), eos="<|im_end|>")
    model = small_qwen3(own, 64, 1, 2, 0)
    model.config.max_position_embeddings = 4096
    weight = model.get_input_embeddings().weight.data
    weight[:, 0] = 1.0  # after the norm nearly the same everywhere, so that it acts as a bias of the output
    ids = [own.convert_tokens_to_ids(one) for one in ("<|im_end|>", *calls)]
    weight[ids, 0] = 2.2
    for part in (model, own):
        part.save_pretrained(folder)


FLAGS = str.split("""--model-id model --prompts-per-step 2 --group-size 4 --max-tokens 8 --learning-rate 1e-2
    --warmup-steps 0 --schedule constant --eval-every 0 --eval-examples 4 --eval-samples 1 --threads 1
    --device cpu --quiet""")

EVALUATED = str.split("--examples 6 --samples 2 --threads 1 --device cpu --quiet --no-charts --output out")


@pytest.mark.slow
def test_the_examples_of_the_page_are_trained_resumed_and_evaluated(place):
    (game, _) = (block for language, block in FENCE.findall(PAGES["docs/tools.md"]) if language == "py")
    Path("numbers_game.py").write_text(game)
    write_model("model", *(call(number, "guess") for number in (1, 3, 5)))
    whole = Run(place, ["--task", "numbers_game.py:Game", *FLAGS, "--no-preflight"], name="whole")
    parts = replace(whole, name="parts")
    assert (whole.here("--steps", 2), parts.here("--steps", 1)) == (0, 0)
    assert parts.here("--resume", "parts", "--steps", 2) == 0
    assert parts.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert all(line["reward/part/tool_calls"] > 0 for line in whole.metrics if "reward/mean" in line)
    assert "numbers_game" in programs(f"{place}/numbers_game.py:Game")
    assert main(["evaluate", "--checkpoint", "runs/whole", *EVALUATED]) == 0


@pytest.fixture
def echo_server(place):
    """OpenEnv's own template of an environment, made as `openenv init` makes it, and served."""
    openenv = pytest.importorskip("openenv", reason="OpenEnv is not installed: make setup EXTRA=openenv")
    made = Path("echo_env")
    template = Path(openenv.__file__).parent / "cli" / "templates" / "openenv_env"
    shutil.copytree(template, made, ignore=shutil.ignore_patterns("__pycache__"))
    words = {"__ENV_NAME__": "echo_env", "__ENV_CLASS_NAME__": "Echo", "__ENV_TITLE_NAME__": "Echo"}
    for path in [path for path in made.rglob("*") if path.is_file()]:
        text = path.read_text().replace("max_concurrent_envs=1", "max_concurrent_envs=64")
        for word, name in words.items():
            text = text.replace(word, name)
        path.unlink()
        path.with_name(path.name.replace("__ENV_NAME__", "echo_env")).write_text(text)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "echo_env.server.app:app", "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert any("Uvicorn running" in line for line in server.stderr)
    yield port
    server.terminate()
    server.communicate()


@pytest.mark.slow
@pytest.mark.openenv
def test_an_environment_of_openenv_is_trained_and_evaluated(echo_server):
    (_, echo) = (block for language, block in FENCE.findall(PAGES["docs/tools.md"]) if language == "py")
    Path("echoes.py").write_text(echo.replace("localhost:8000", f"127.0.0.1:{echo_server}"))
    said = ['<tool_call>{"name":"echo","arguments":{"message":"%s"}}</tool_call>' % ("a" * n) for n in (1, 4, 10)]
    write_model("model", *said)
    run = Run(Path(), ["--task", "echoes.py:Echo", *FLAGS, "--steps", "2"], name="echo")
    assert run.here() == 0
    lines = [line for line in run.metrics if "reward/mean" in line]
    assert len(lines) == 2 and all(line["reward/part/tool_calls"] > 0 for line in lines)
    assert all(line["reward/part/tool_failed"] == 0 < line["reward/mean"] < 1 for line in lines)
    assert main(["evaluate", "--checkpoint", "runs/echo", *EVALUATED]) == 0


def test_no_method_ends_the_trainer(loaded, workers):
    class Leaving(Game):
        async def leave(self) -> str:
            """Leave the game."""
            sys.exit(3)

        def go(self) -> str:
            """Go."""
            sys.exit("away")

    left, gone = ({"name": name, "arguments": {}} for name in ("leave", "go"))
    written = [f"<tool_call>{json.dumps(one)}</tool_call>" for one in (left, gone)]
    _, (asked,) = played(loaded(Leaving), workers, [*written, "7"])
    assert "sys.exit(3)" in str(asked[1]) and "sys.exit('away')" in str(asked[2])
