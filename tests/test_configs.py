"""Each file of configs/ loads, names its command, and says whether it was run."""

import pytest
from test_documents import ROOT

from minrl.algorithms import choose_algorithm
from tests.parsed import parsed

FILES = sorted((ROOT / "configs").iterdir())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_loads_and_names_its_command(file):
    measured = file.stem.startswith("smollm2_")  # the others repeat what was published
    config, options = parsed(["--config", str(file), *["--model-id", "PATH"] * measured])
    assert choose_algorithm(config) and options.keys() == {config.rollout.task}
    command = f"# Command: python train.py --config configs/{file.name}{' --model-id PATH' * measured}\n"
    assert command in file.read_text() and ("\n# We have not run it.\n" in file.read_text()) != measured
    if measured:
        assert config.rollout.task == file.stem.removeprefix("smollm2_")
