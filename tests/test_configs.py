"""Each file of configs/ loads, names its command, and says whether it was run."""

import json

import pytest
import torch
from test_documents import ROOT

from minrl.__main__ import main
from minrl.algorithms import choose_algorithm
from minrl.engines import torch_engine
from minrl.run.folder import RunFolder
from tests.chat_templates import tokenizer
from tests.conftest import save_small_model
from tests.hostile.cases import SMALLEST
from tests.parsed import parsed
from tests.test_opponent import CHATML

FILES = sorted((ROOT / "configs").iterdir())
PROGRAMS = {
    "baseline_math": "python evaluate.py",
    "math_sft": "python -m minrl sft",
    "math_expert_iteration": "python -m minrl expert-iteration",
}
"""What else than train.py a config is for: test_math_recipes.py runs them."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_loads_and_names_its_command(file):
    measured = file.stem.startswith("smollm2_")  # the others repeat what was published
    program = PROGRAMS.get(file.stem, "python train.py")
    command = f"# Command: {program} --config configs/{file.name}{' --model-id PATH' * measured}"
    assert command in file.read_text() and ("\n# We have not run it.\n" in file.read_text()) != measured
    if file.stem in PROGRAMS:
        return
    config, options = parsed(["--config", str(file), *["--model-id", "PATH"] * measured])
    assert choose_algorithm(config) and options.keys() == {config.task, *config.other_tasks}
    if measured:
        assert config.task == file.stem.removeprefix("smollm2_")


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Saves a model that says one of two tokens, each half of the time, and another one with another tokenizer."""

    def says(*texts):
        models = {
            "policy": "<|system|> <|user|> <|assistant|> <|end|>",
            "other": "<|end|> <|unused1|> <|unused2|> <|unused3|>",
        }
        for folder, special in models.items():
            own = tokenizer("bytes", CHATML, special, eos="<|end|>")
            own.add_tokens(list(texts))
            save_small_model(tmp_path / folder, own, 64)
        two = torch.tensor(own.convert_tokens_to_ids(list(texts)))

        def sample(logits, u, temperature):
            tokens = two[(u < 0.5).long()]
            return tokens, (logits / (temperature or 1)).log_softmax(-1).gather(1, tokens[:, None])[:, 0]

        monkeypatch.setattr(torch_engine, "sample", sample)

    return says


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "texts"),
    [("code_execution", ["print(7)", "("]), ("code_game", ["print(7)", "("]), ("spiral_tictactoe", ["7", "5"])],
)
def test_a_recipe_of_the_coding_games_runs_and_tracks_mbpp(name, texts, says, tmp_path, monkeypatch):
    pytest.importorskip("peft", reason="needs the lora extra")
    monkeypatch.chdir(tmp_path)
    says(*texts)
    rows = [{**SMALLEST, "task_id": number, "text": f"Problem {number}."} for number in range(600, 620)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = f"""--config {ROOT}/configs/{name}.yaml --model-id policy --code.data-path rows.jsonl --code.max-tokens 1
        --optimizer adamw --steps 2 --eval-every 1 --max-tokens 1 --eval-examples 2 --threads 1
        --device cpu --no-preflight --quiet --run-name run""".split()
    flags += ["--opponent", "other", "--opponent-max-tokens", "1"] if name == "code_game" else []
    assert main(["train", *flags]) == 0
    before, *steps = RunFolder(tmp_path / "runs/run").metrics
    assert [line["eval/code/pass@1"] for line in (before, *steps)] == [0.0] * 3  # nothing passes MBPP's tests
    assert [line["reward/unscorable_frac"] for line in steps] == [0.0] * 2
    if name == "code_execution":  # half of the programs print, and the others have a syntax error
        assert all(line["reward/mean"] == 1.5 * line["reward/part/with_output"] - 0.5 for line in steps)
        assert 0 < steps[0]["reward/part/with_output"] < 1
    elif name == "code_game":  # the other model answers with the program's text, or a parenthesis
        assert all(line["reward/part/stumped"] == line["reward/part/valid"] for line in steps)
        assert 0 < steps[0]["reward/part/valid"] < 1
    else:
        assert [line["reward/mean"] for line in steps] == [0.0] * 2 and steps[0]["reward/part/illegal"] > 0
