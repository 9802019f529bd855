"""Wrong flags, files and values: what was given, what is allowed, how to mend it, in one line; nothing is touched."""

import shlex

import pytest

from tests.wrong_uses import refused  # noqa: F401 - a fixture

FLAGS = [
    # names of other trainers, and slips
    ("train", "--lr 1e-5", "unknown flag --lr", "did you mean learning-rate?"),
    ("train", "--model gpt2", "unknown flag --model", "did you mean model-id?"),
    ("train", "--model_name_or_path gpt2", "did you mean model-id?"),
    ("train", "--epochs 3", "unknown flag --epochs", "did you mean steps?"),
    ("train", "--batch-size 8", "did you mean prompts-per-step?"),
    ("train", "--num_generations 8", "did you mean group-size?"),
    ("train", "--beta 0.04", "did you mean kl-coef?"),
    ("train", "--max-completion-length 512", "did you mean max-tokens?"),
    ("train", "--output_dir out", "did you mean runs-dir?"),
    ("evaluate", "--model x", "unknown flag --model", "did you mean models?"),
    ("sft", "--batch_sise 8 --data rows.jsonl", "did you mean batch-size"),
    ("train", "-steps 5", "unknown flag -steps", "did you mean steps?"),
    ("train", "--Steps 5", "unknown flag --Steps", "did you mean steps?"),
    ("train", "--STEPS 5", "did you mean steps?"),
    ("train", "steps=5", "unknown flag steps=5", "did you mean --steps?"),
    ("train", "\u2014steps 5", "did you mean --steps?"),
    ("train", "steps 5", "unknown flag steps", "did you mean --steps?"),
    ("train", "-s 5", "unknown flag -s: --help lists all"),
    ("train", "--revision 5", "unknown flag --revision: --help lists all"),
    ("train", "--task countdown hanoi", "unknown flag hanoi"),
    ("train", "train.py --steps 5", "unknown flag train.py: --help lists all"),
    ("viewer", "nowhere --port 80", "--port is where --serve listens: add --serve"),
    ("report", "--runs a", "unknown flag --runs"),
    ("evaluate", "--steps 5 --checkpoint x", "unknown flag --steps"),
    # several tasks
    ("train", "--task countdown:2,hanio:1", "no task 'hanio'", "did you mean hanoi?"),
    ("train", "--task countdown:0,hanoi:1", "the weight of countdown must be a number above 0, got '0'"),
    ("train", "--task countdown:-1,hanoi:1", "the weight of countdown must be a number above 0, got '-1'"),
    ("train", "--task countdown:many,hanoi:1", "the weight of countdown must be a number above 0, got 'many'"),
    ("train", "--task countdown:nan,hanoi", "the weight of countdown must be a number above 0, got 'nan'"),
    ("train", "--task countdown:inf,hanoi", "the weight of countdown must be a number above 0, got 'inf'"),
    ("train", "--task countdown:2,hanoi:", "the weight of hanoi must be a number above 0, got ''"),
    ("train", "--task :2,hanoi", "task must name a task before its weight, got ':2'"),
    ("train", "--task countdown:2,hanoi:1,countdown:1", "task names countdown twice"),
    ("train", "--task countdown,hanoi --task-max-tokens tictactoe:9", "the tasks are countdown, hanoi"),
    ("train", "--task countdown,hanoi --task-max-tokens 9", "task_max_tokens must say TASK:VALUE", "got '9'"),
    ("train", "--task countdown,hanoi --task-max-tokens hanoi:1.5", "must be a whole number above 0, got '1.5'"),
    ("train", "--task countdown,hanoi --task-max-tokens hanoi:5,hanoi:6", "each task once"),
    ("train", "--task countdown,hanoi --task-reward-scale hanoi:0", "of hanoi must be a number above 0, got '0'"),
    ("train", "--task countdown --task-reward-scale countdown:2", "the run has countdown alone"),
    ("train", "--task countdown,hanoi --data-path x.jsonl", "say --task-data-path hanoi:FILE"),
    ("train", "--task countdown,hanoi --task-data-path gsm8k:x", "the tasks are countdown, hanoi"),
    ("train", "--task countdown,hanoi --task-data-path hanoi:x", "hanoi makes its own boards and takes no --data-path"),
    ("train", "--task countdown,hanoi --target-reward-std 0.3", "target_reward_std adapts one temperature"),
    ("train", "--task countdown:2,hanoi --teacher-prompt {prompt}", "teacher_prompt is written for one task"),
    ("iterate", "--task countdown,hanoi", "train.py alone takes several tasks in one run"),
    ("filter", "--task countdown,hanoi --data a --output b", "train.py alone takes several tasks in one run"),
    ("evaluate", "--checkpoint x --task countdown,countdown", "task names countdown twice"),
    # values of a wrong type
    ("train", "--learning-rate 3e", "--learning-rate must be of type float, got '3e'"),
    ("train", "--learning-rate 0,001", "must be of type float, got '0,001'"),
    ("train", "--steps 1.5", "--steps must be of type int, got '1.5'"),
    ("train", "--steps 1e3", "must be of type int, got '1e3'"),
    ("train", "--steps 10k", "must be of type int, got '10k'"),
    ("train", "--steps ''", "must be of type int, got ''"),
    ("train", "--steps 5 --steps", "Missing value for argument '--steps': it must be of type int"),
    ("train", "--task", "Missing value for argument '--task'"),
    ("train", "--temperature hot", "--temperature must be of type float, got 'hot'"),
    ("train", "--hanoi.max-disks many", "--hanoi.max-disks must be of type int, got 'many'"),
    ("evaluate", "--checkpoint x --pass-at two", "--pass-at must be of type int, got 'two'"),
    ("evaluate", "--checkpoint x --force all", "'all'", "'generate', 'score', 'report'"),
    ("train", "--device gpu", "'gpu'", "'auto', 'cpu', 'cuda'"),
    ("train", "--device cuda:0", "'cuda:0'", "did you mean cuda?"),
    ("train", "--dtype fp16", "'fp16'", "'float32', 'bfloat16'"),
    ("train", "--chat-template-options {think:false}", "must be a JSON object, got '{think:false}'"),
    ("train", "--chat-template chatlm", "one of chatml, llama3, gemma, plain, got 'chatlm'", "did you mean chatml?"),
    ("train", "--chat-template chatml", "chat_template is for a --model-id"),
    ("evaluate", "--models openai:x@http://h --chat-template plain", "chat_template is for models loaded here"),
    ("evaluate", "--completions x.jsonl --chat-template plain", "chat_template is for models loaded here"),
    # values out of range
    ("train", "--learning-rate -1", "learning_rate must be 0 or more, got -1.0"),
    ("train", "--learning-rate nan", "learning_rate must be 0 or more, got nan"),
    ("train", "--learning-rate inf", "learning_rate must be finite, got inf"),
    ("train", "--seed -1", "seed must be 0 or more and below 2^63, got -1"),
    ("train", "--temperature 0", "temperature must be at least 0.001 to sample, got 0.0"),
    ("train", "--max-tokens -1", "max_tokens must be at least 1, got -1"),
    ("train", "--threads 99999", "threads must be 0 (one per core) or more, at most 1024, got 99999"),
    ("train", "--kl-coef -0.1", "kl_coef must be 0 (off) or more, got -0.1"),
    ("train", "--clip-low 1.5", "clip_low must be in (0, 1), or 0", "got 1.5"),
    ("train", "--base-heads 3", "base_heads must be even and at least 2, got 3"),
    ("train", "--save-every -1", "save_every must be 0 (only the last checkpoint) or more, got -1"),
    ("train", "--countdown.held-out-share 0", "countdown.held_out_share must be in (0, 1), got 0.0"),
    ("train", "--tictactoe.max-opening -3", "tictactoe.max_opening must be from 0 to 8, got -3"),
    ("train", "--stop-strings ''", "stop_strings must not be empty"),
    ("train", "--runs-dir ''", "runs_dir must name a folder, got '': leave it out for runs/"),
    ("train", "--checkpoints-dir=", "checkpoints_dir must name a folder, got ''"),
    ("evaluate", "--checkpoint x --examples -1", "examples must be at least 1, got -1"),
    ("sft", "--data rows.jsonl --epochs nan", "epochs must be above 0, got nan"),
    ("sft", "--data rows.jsonl --held-out-share 1", "held_out_share must be in [0, 1), got 1.0"),
    ("iterate", "--samples-per-example 0", "samples_per_example must be at least 1, got 0"),
    ("report", "runs/nowhere --smoothing 2", "smoothing must be at least 0 and below 1, got 2.0"),
    ("viewer", "nowhere --max-steps -1", "max_steps must be 0 (all) or more, got -1"),
    # flags that contradict each other, or need another
    ("train", "--minibatches-per-pass 100", "minibatches_per_pass (100) must not exceed prompts_per_step (48)"),
    ("train", "--overlong penalize", "overlong penalize and overlong_buffer go together, got penalize and 0"),
    ("train", "--overlong-buffer 16", "go together, got keep and 16"),
    ("train", "--length-penalty nan", "length_penalty must be 0 (off) or above and below 1, got nan"),
    ("train", "--length-target 193", "length_target (193) must be at most max_tokens (192)"),
    ("train", "--length-penalty 0.2 --length-target 64", "length_penalty 0.2", "length_target 64", "leave one out"),
    ("train", "--kl-estimator k1 --kl-gradient naive", "choose kl_gradient exact, or another kl_estimator"),
    ("train", "--algorithm reinforce --passes-per-step 2", "passes_per_step must be 1, got 2; or choose --algorithm"),
    ("train", "--lora-alpha 16", "lora_alpha is read only with adapters: give --lora-rank too"),
    ("train", "--opponent x", "--opponent has nobody to play", "leave it out"),
    ("train", "--data-path nowhere.jsonl", "countdown makes its own problems and takes no --data-path"),
    ("train", "--task ''", "name the model to train with --model-id, or a --task"),
    ("evaluate", "", "--checkpoint or --models", "--completions", "got neither"),
    ("evaluate", "--checkpoint x --completions rows.jsonl", "got both"),
    ("evaluate", "--model-id x", "takes the model as --checkpoint or --models, not --model-id"),
    ("evaluate", "--checkpoint x --temperature 0 --samples 4", "temperature 0 says the same again"),
    ("evaluate", "--checkpoint x --pass-at 8 --samples 4", "pass_at 8 needs at least 8 --samples, got 4"),
    ("evaluate", "--checkpoint x --data-path a --tasks gsm8k math", "data_path is one task's data", "2 tasks"),
    ("evaluate", "--completions rows.jsonl --task gsm8k --data-path a", "data_path is of no use with --completions"),
    ("evaluate", "--completions rows.jsonl --tasks countdown hanoi", "--completions are of one task"),
    ("sft", "", "name the rows to train on with --data"),
    ("filter", "--data rows.jsonl", "--output is missing"),
    ("filter", "--data rows.jsonl --output out --task tictactoe", "tictactoe is played over several turns"),
    # files
    ("train", "--task nowhere.py:task", "--task", "no file", "/nowhere.py"),
    ("train", "--task empty.py", "say which of its attributes is the task", "empty.py:TASK"),
    ("train", "--task notes.txt", "no task 'notes.txt'", "path/to/file.py:name"),
    ("train", "--config .", "cannot read the config file .: Is a directory"),
    ("train", "--config rows.jsonl", "unknown setting 'prompt'"),
    ("train", "--runs-dir notes.txt", "notes.txt", "a file is where a folder should be", "--runs-dir"),
    ("train", "--checkpoints-dir notes.txt/x", "notes.txt/x", "a file is where a folder should be"),
    ("train", "--judge-model m --judge-prompt notes.txt", "never shows the completion: write {completion} in it"),
    ("evaluate", "--completions .", "cannot read the completions in .", "Is a directory"),
    ("evaluate", "--completions nowhere.jsonl", "cannot read the completions in nowhere.jsonl", "No such file"),
    ("evaluate", "--completions rows.jsonl --output .", "cannot write .: it is a folder; name a file"),
    ("evaluate", "--completions rows.jsonl --output full", "cannot write full: it is a folder; name a file"),
    ("evaluate", "--completions rows.jsonl --output notes.txt/x", "notes.txt: a file is where a folder should be"),
    ("filter", "--data nowhere.jsonl --output out", "cannot read the rows in nowhere.jsonl"),
    ("filter", "--data rows.jsonl --output full", "cannot write full: it is a folder; name a file"),
    ("report", "notes.txt", "no run notes.txt", "holds a config.json"),
    ("viewer", ".", ". is no run: it has no config.json; name a folder in runs/"),
]  # fmt: skip
"""A program, its flags, and what its one line must hold. More are in test_command_line.py."""


IDS = [f"{program} {flags}" for program, flags, *_ in FLAGS]


@pytest.mark.parametrize(("program", "flags", "words"), [(p, f, w) for p, f, *w in FLAGS], ids=IDS)
def test_a_wrong_flag_value_or_file_is_one_line(refused, tmp_path, monkeypatch, program, flags, words):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("milk, bread\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    (tmp_path / "empty.py").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine\n")
    quiet = [] if program in ("report", "viewer", "filter") else ["--quiet"]
    refused(program, [*shlex.split(flags), *quiet], *words)
