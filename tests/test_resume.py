"""A run that was stopped or killed and then resumed ends as one that never was: figures, curves, rollouts, weights,
moments.
"""

import signal
from dataclasses import replace
from random import Random

import pytest

from minrl import trainer
from minrl.config import TrainerConfig
from minrl.dataflow import UserError
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.run.checkpoint import newest
from minrl.run.run import open_run
from minrl.sft import expert_iteration, sft
from minrl.tracking import session
from minrl.utils.cli import parse
from tests.killing import killed_at, signalled_at
from tests.runs import Run, same_end, signal_when, write_rows
from tests.say_duel import DUEL
from tests.say_sevens import EXAMPLES, SAY_SEVENS, SIZES, TASK, demonstration
from tests.test_documents import ROOT

STEPS = 6
SAMPLED = """--prompts-per-step 4 --group-size 8 --save-every 1 --eval-every 3 --eval-examples 4 --eval-samples 1
    --rollouts-every 2 --threads 1 --device cpu --keep-checkpoints 0 --quiet --no-preflight"""
PLAIN = [*SAY_SEVENS, *SAMPLED.split(), "--steps", str(STEPS)]
SHORT = [*PLAIN, "--steps", "3", "--eval-every", "2"]
OWN = f"{SAMPLED} --steps 3 --eval-every 2 --learning-rate 1e-2 --warmup-steps 0".split()
SMALL_BASE = "--base-hidden-size 64 --base-heads 2 --base-layers 1"
ROWS = [*SAY_SEVENS, "--data", "ROWS", *str.split("""--batch-size 4 --save-every 2 --eval-every 3 --eval-examples 4
    --eval-samples 1 --rollouts-every 2 --threads 1 --device cpu --learning-rate 2e-3 --steps 6""")]  # fmt: skip
ROUNDS = [*SAY_SEVENS, *str.split("""--rounds 3 --examples-per-round 8 --sample-batch-size 4 --samples-per-example 8
    --batch-size 4 --max-per-example 0 --learning-rate 2e-3 --warmup-steps 2 --eval-examples 4 --eval-samples 2
    --threads 1 --device cpu --quiet""")]  # fmt: skip
TOOL = f"--task {ROOT}/docs/products.py:products --base-steps 60 {SMALL_BASE} --max-tokens 12 --reward-workers 1"
OPPONENT = "--task tictactoe --tictactoe.opponent frozen --model-id SQUARES --max-tokens 1 --algorithm spiral"
ADAPTERS = [*SHORT, "--lora-rank", "4", "--kl-coef", "0.01"]
OWN_ROWS = """
from minrl import task
from minrl.algorithms import ALGORITHMS

mine = ALGORITHMS["dr_grpo"]

def choose(examples, count, rates, rng):
    return sorted(rng.sample(list(examples), len(examples)), key=lambda one: rates.get(one.id, -1))[:count]

@task(data=[{"question": f"numbers {n}"} for n in range(8)], prompt="question", held_out=0.5, group=True)
def most(completions, row):
    counts = [text.split().count("7") for text in completions]
    return [float(count == max(counts) > min(counts)) for count in counts]
"""

KINDS = {  # what is run: the program, its flags, and a curve that is above 0 where the kind is at work
    "plain": ("train", PLAIN, "policy/optimizer_steps"),
    "fine-tuning": ("sft", ROWS, "sft/tokens"),
    "expert iteration": ("expert-iteration", ROUNDS, "sft/optimizer_steps"),
    "rewards by length": ("train", [*SHORT, "--length-penalty", "0.4"], "policy/optimizer_steps"),
    "adapters, merged": ("train", ADAPTERS, "policy/ref_kl"),
    "adapters alone": ("train", [*ADAPTERS, "--lora-checkpoint", "adapter"], "policy/ref_kl"),
    "fine-tuned adapters": ("sft", [*ROWS, "--lora-rank", "4"], "sft/tokens"),
    "a teacher": ("train", [*SHORT, "--teacher-id", "BASE", "--teacher-weight", "0.3"], "policy/optimizer_steps"),
    "two tasks": (
        "train",
        [*SIZES, "--task", f"{TASK}:2,{DUEL}:1", "--sevens.max-tokens", "3", *OWN, "--prompts-per-step", "3"],
        "task/duel/reward/role/black",
    ),
    "a frozen opponent": ("train", [*OPPONENT.split(), *OWN, "--turn-credit", "turn"], "policy/optimizer_steps"),
    "a tool": ("train", [*TOOL.split(), *OWN], "reward/part/tool_calls"),
    "rewards of a group": (
        "train",
        [*OWN, "--task", "FILE:most", "--model-id", "BASE", "--max-tokens", "4", "--reward-workers", "1"],
        "policy/optimizer_steps",
    ),
    "an algorithm and a sampler of a file": (
        "train",
        [*SHORT, "--algorithm", "FILE:mine", "--sampler", "FILE:choose", "--prompts-per-step", "2"],
        "policy/optimizer_steps",
    ),
    "GGUF": (
        "train",
        [*OWN, "--task", TASK, "--model-id", "GGUF", "--max-tokens", "4", "--entropy-coef", "0.1", "--kl-coef", "0.01"],
        "policy/optimizer_steps",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, sevens_base):
    """The run of a kind that was never stopped, made at its first use."""
    made = {}

    def make(kind):
        if kind not in made:
            program, flags, curve = KINDS[kind]
            place = tmp_path_factory.mktemp("whole")
            flags = [str(given(word, place)) if word.partition(":")[0].isupper() else word for word in flags]
            run = Run(place, flags, program).given_base_of(sevens_base)
            assert run.here() == 0
            # Otherwise any two runs would end alike.
            assert sum(line.get(curve, 0.0) for line in run.metrics) > 0, curve
            made[kind] = run
        return made[kind]

    def given(word, place):
        """The file that a word of the flags stands for."""
        if word == "ROWS":
            answers = Random(0)
            rows = [{"prompt": one.prompt, "response": demonstration(one, answers)} for one in EXAMPLES]
            return write_rows(place / "rows.jsonl", *rows)
        if word == "BASE":
            return next((sevens_base.place / "checkpoints").glob("base-*"))
        if word == "SQUARES":  # of tic-tac-toe, and no other word: many of its moves are legal
            squares = word_tokenizer("123456789")
            for part in (small_qwen3(squares, 64, 2, 2, 0), squares):
                part.save_pretrained(place / "squares")
            return place / "squares"
        if word == "GGUF":
            from tests.test_gguf import small_llama, write_gguf

            return write_gguf(place / "small.gguf", small_llama())
        (place / "own_rows.py").write_text(OWN_ROWS)
        return f"{place}/own_rows.py:{word.partition(':')[2]}"

    return make


def again(whole, place):
    """The same run in another place, which has its base model."""
    return replace(whole, place=place).given_base_of(whole)


DEFAULT = [  # the kind, and where a run of it ends: before the call of that number
    ("plain", trainer, "update_policy", 4),
    ("fine-tuning", sft, "sft_step", 2),
    ("expert iteration", expert_iteration, "sft_step", 2),
]
ENDS = [
    *(("plain", trainer, moment, step) for moment in ("sample_groups", "update_policy") for step in (1, 4)),
    *(("plain", session, "save_checkpoint", step) for step in (1, 4)),
    ("plain", session, "read_state", 4),  # the checkpoint is there, and its hashes are not written yet
    *(("fine-tuning", sft, moment, call) for moment, call in (("sft_step", 2), ("measure", 2), ("sft_step", 6))),
    ("fine-tuning", session, "save_checkpoint", 2),
    ("expert iteration", expert_iteration, "sample_round", 1),
    ("expert iteration", expert_iteration, "keep_correct", 2),
    ("expert iteration", expert_iteration, "sft_step", 2),
    ("expert iteration", expert_iteration, "measure", 3),
    *((kind, session, "save_checkpoint", 2) for kind in KINDS if kind not in ("plain", "fine-tuning")),
]


@pytest.mark.parametrize(
    ("kind", "module", "moment", "call"),
    [pytest.param(*end, marks=[] if end in DEFAULT else pytest.mark.slow) for end in ENDS],
)
def test_a_run_that_ends_anywhere_resumes_to_the_same_end(whole, tmp_path, kind, module, moment, call):
    run = again(whole(kind), tmp_path)
    with killed_at(module, moment, call):
        run.here()
    assert run.resume() == 0
    same_end(run, whole(kind))
    assert run.steps() == whole(kind).steps()


def test_a_run_that_is_told_to_stop_makes_the_evaluation_that_was_due_when_it_is_resumed(whole, tmp_path):
    run = again(whole("fine-tuning"), tmp_path)
    with signalled_at(sft, "sft_step", 3):
        assert run.here() == 143
    assert run.steps() == [0, 1, 2, 3]
    assert run.resume() == 0
    same_end(run, whole("fine-tuning"))


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(whole, tmp_path, capsys):
    run = again(whole("plain"), tmp_path)
    assert run.here("--steps", "4") == 0
    last = newest(run.checkpoints)
    (last / "model.safetensors").write_bytes((last / "model.safetensors").read_bytes()[:1000])
    assert run.here("--resume", run.folder, "--steps", "6", "--no-quiet") == 0
    assert run.summary["weights_sha256"] == whole("plain").summary["weights_sha256"]
    (schedule,) = (line for line in capsys.readouterr().err.splitlines() if "schedule" in line)  # of warmup, 4 of 5
    assert schedule.endswith("now ends at step 6: step 4 has 0.00024 (peak 0.0003)")


@pytest.mark.slow
def test_one_command_begins_a_run_and_resumes_it(whole, tmp_path):
    run = again(whole("plain"), tmp_path)
    with killed_at(trainer, "update_policy", 1):  # its first step was not saved
        replace(run, name="another").here()
    with killed_at(trainer, "update_policy", 3):
        run.here("--resume", "auto", "--run-name", "run", *run.flags)
    for _ in range(2):  # the second finds it finished
        assert run.here("--resume", "auto", "--run-name", "run", *run.flags) == 0
        same_end(run, whole("plain"))
    with pytest.raises(
        UserError, match=r"got --seed 1 \(it has 0\); --learning-rate 0.5 \(it has [\d.e-]+\)"
    ) as refused:
        run.here("--resume", "auto", "--run-name", "run", *run.flags, "--seed", "1", "--learning-rate", "0.5")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (["--seed", "1"], "--seed 1 (it has 0)"),
        (["--chat-template", "chatml", "--model-id", "m"], "--model-id m (it has ); --chat-template chatml (it has )"),
    ],
)
def test_a_resume_refuses_other_settings_than_the_run_has(whole, flags, difference):
    _, *words = whole("plain").words("--resume", "latest", *flags)
    command = parse(TrainerConfig, words)
    with pytest.raises(UserError) as refused:
        open_run(command.config, command.options, command.given)
    keeps = "a resumed run keeps its config and only --steps, --stop-at and --patience may change, got "
    assert str(refused.value).partition("; to change more, start a new run from its weights: ") == (
        keeps + difference,
        "; to change more, start a new run from its weights: ",
        "model_id='run', --model-id run",
    )


KILL_WHEN = {
    "while the base model is made": lambda run: list((run.place / "checkpoints").glob("base-*")),
    "before the first step": lambda run: (run.folder / "config.json").exists(),
    "after the first evaluation": lambda run: len(run.steps()) >= 1,
    "after step 1": lambda run: len(run.steps()) >= 2,
    "after step 4": lambda run: len(run.steps()) >= 5,
    "while a checkpoint is written": lambda run: list(run.checkpoints.glob(".step_00000[2-5]*")),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", KILL_WHEN)
def test_a_killed_run_continues_to_the_same_weights(whole, tmp_path, moment):
    run = replace(whole("plain"), place=tmp_path)
    process = run.start()

    def ready():
        if not KILL_WHEN[moment](run):
            return False
        if run.steps():
            with pytest.raises(UserError, match=rf"is running \(process {process.pid} on"):
                run.resume()
        return True

    assert signal_when(process, ready) == -signal.SIGKILL
    begun = (run.folder / "config.json").exists()
    assert run.start(*["--resume", "latest"] * begun).wait(timeout=600) == 0
    same_end(run, whole("plain"))
    assert run.steps() == whole("plain").steps()


@pytest.mark.slow
def test_a_run_killed_when_an_older_checkpoint_has_lost_its_moments_continues_to_the_same_weights(whole, tmp_path):
    run = replace(whole("plain"), place=tmp_path)
    moments = run.checkpoints / "step_000001/optimizer.safetensors"
    process = run.start("--save-moments", "last")
    assert signal_when(process, lambda: moments.parent.exists() and not moments.exists()) == -signal.SIGKILL
    assert run.start("--resume", "latest").wait(timeout=600) == 0
    same_end(run, whole("plain"))
    left = [path.parent.name for path in sorted(run.checkpoints.glob("step_*/optimizer.safetensors"))]
    assert left == ["step_000005", "step_000006"]


KILLED_AGAIN = ["plain", "fine-tuning", "expert iteration", "adapters, merged", "adapters alone"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KILLED_AGAIN)
def test_a_run_that_is_killed_again_and_again_continues_to_the_same_weights(whole, tmp_path, kind):
    run, flags = replace(whole(kind), place=tmp_path), ()
    lines = len(whole(kind).steps())
    for count in (lines // 4 + 1, lines // 2 + 1, lines - 1):
        signal_when(run.start(*flags), lambda count=count: len(run.steps()) >= count)
        flags = "--resume", "latest"
    assert run.start(*flags).wait(timeout=600) == 0
    same_end(run, whole(kind))
    assert run.steps() == whole(kind).steps()


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(whole, tmp_path):
    run = replace(whole("plain"), place=tmp_path)
    assert signal_when(run.start("--save-every", "0"), lambda: len(run.steps()) >= 3, signal.SIGINT) == 130
    said = (tmp_path / "stderr.txt").read_text()
    assert f"resume with: python -m minrl train --resume {run.folder}" in " ".join(said.split())
    assert "Traceback" not in said
    assert newest(run.checkpoints) is not None
    assert not (run.folder / "summary.json").exists()
    assert run.start("--resume", run.folder).wait(timeout=600) == 0
    assert run.summary["weights_sha256"] == whole("plain").summary["weights_sha256"]
