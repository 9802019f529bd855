"""Wrong flags, files and values: what was given, what is allowed, how to mend it, in one line; nothing is touched."""

import shlex

import pytest

from tests.wrong_uses import refused  # noqa: F401 - a fixture

FLAGS = [
    ("sft", "--batch_sise 8 --data rows.jsonl", "unknown flag --batch-sise: did you mean --batch-size"),
    # several tasks
    *(("train", f"--task countdown:{weight},hanoi:1", f"of countdown must be a number above 0, got '{weight}'")
      for weight in ("0", "nan", "inf")),
    ("train", "--task countdown:many,hanoi:1", "the weight of countdown must be a number, got 'many'"),
    ("train", "--task :2,hanoi", "task must name a task before its weight, got ':2'"),
    ("train", "--task countdown:2,hanoi:1,countdown:1", "task names countdown twice"),
    ("train", "--task countdown,hanoi --task-max-tokens tictactoe:9", "the tasks are countdown, hanoi"),
    ("train", "--task countdown,hanoi --task-max-tokens hanoi:5,hanoi:6", "each task once"),
    ("train", "--task countdown,hanoi --task-reward-scale hanoi:0", "of hanoi must be a number above 0, got '0'"),
    ("train", "--task countdown --task-reward-scale countdown:2", "the run has countdown alone"),
    ("train", "--task countdown,hanoi --task-data-path gsm8k:x", "the tasks are countdown, hanoi"),
    ("train", "--task countdown,hanoi --task-data-path hanoi:x", "hanoi makes its own boards and takes no --data-path"),
    ("train", "--task countdown,hanoi --target-reward-std 0.3", "target_reward_std is of one task"),
    ("train", "--task countdown:2,hanoi --teacher-prompt {prompt}", "teacher_prompt is of one task"),
    ("expert-iteration", "--task countdown,hanoi", "train.py alone takes several tasks in one run"),
    # values
    ("evaluate", "--checkpoint x --pass-at two", "pass_at must be an integer, got 'two'"),
    ("evaluate", "--checkpoint x --force all", "must be one of generate, score, got 'all'"),
    ("train", "--chat-template chatlm", "one of chatml, llama3, gemma, plain, got 'chatlm'", "did you mean chatml?"),
    ("evaluate", "--models openai:x@http://h --chat-template plain", "chat_template is for models loaded here"),
    ("train", "--runs-dir ''", "runs_dir must name a folder, got '': leave it out for runs/"),
    # flags that contradict each other, or need another
    ("train", "--overlong penalize", "overlong penalize and overlong_buffer go together, got penalize and 0"),
    ("train", "--length-target 193", "length_target (193) must be at most max_tokens (192)"),
    ("train", "--length-penalty 0.2 --length-target 64", "length_penalty 0.2", "length_target 64", "leave one out"),
    ("train", "--kl-estimator k1 --kl-gradient naive", "choose kl_gradient exact, or another kl_estimator"),
    ("train", "--algorithm reinforce --passes-per-step 2", "passes_per_step must be 1, got 2; or choose --algorithm"),
    ("train", "--opponent x", "--opponent has nobody to play", "leave it out"),
    ("train", "--data-path nowhere.jsonl", "countdown makes its own problems and takes no --data-path"),
    ("train", "--task ''", "name the model to train with --model-id, or a --task"),
    ("evaluate", "--model-id x", "takes the model as --checkpoint or --models, not --model-id"),
    ("evaluate", "--checkpoint x --temperature 0 --samples 4", "temperature 0 says the same again"),
    ("evaluate", "--checkpoint x --pass-at 8 --samples 4", "pass_at 8 needs at least 8 --samples, got 4"),
    ("evaluate", "--completions rows.jsonl --task gsm8k --data-path a", "data_path is of no use with --completions"),
    ("sft", "", "name the rows to train on with --data"),
    ("filter", "--data rows.jsonl --output out --task tictactoe", "tictactoe is played over several turns"),
    # files
    ("train", "--task nowhere.py:task", "--task", "no file", "/nowhere.py"),
    ("train", "--task empty.py", "say which of its attributes is the task", "empty.py:TASK"),
    ("train", "--task notes.txt", "no task 'notes.txt'", "path/to/file.py:name"),
    ("train", "--config rows.jsonl", "unknown setting 'prompt'"),
    ("train", "--runs-dir notes.txt", "notes.txt", "a file is where a folder should be", "--runs-dir"),
    ("train", "--judge-model m --judge-prompt notes.txt", "never shows the completion: write {completion} in it"),
    ("evaluate", "--completions nowhere.jsonl", "cannot read the completions in nowhere.jsonl", "No such file"),
    ("evaluate", "--completions rows.jsonl --output .", "cannot write .: it is a folder; name a file"),
    ("evaluate", "--completions rows.jsonl --output notes.txt/x", "notes.txt: a file is where a folder should be"),
    ("filter", "--data nowhere.jsonl --output out", "cannot read the rows in nowhere.jsonl"),
    ("report", "notes.txt", "no run notes.txt", "holds a config.json"),
]  # fmt: skip
"""A program, its flags, and what its one line must hold. More are in test_cli.py."""


IDS = [f"{program} {flags}" for program, flags, *_ in FLAGS]


@pytest.mark.parametrize(("program", "flags", "words"), [(p, f, w) for p, f, *w in FLAGS], ids=IDS)
def test_a_wrong_flag_value_or_file_is_one_line(refused, tmp_path, monkeypatch, program, flags, words):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("milk, bread\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    (tmp_path / "empty.py").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine\n")
    quiet = [] if program in ("report", "rollouts", "filter") else ["--quiet"]
    refused(program, [*shlex.split(flags), *quiet], *words)
