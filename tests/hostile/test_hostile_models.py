"""Models from strangers: no code of theirs runs, no pickle is read, no template runs for ever."""

import json
import pickle
from pathlib import Path

import pytest

from minrl.dataflow import UserError
from minrl.models.chat import ChatTokenizer
from minrl.models.loading import load_model, save_model, word_tokenizer
from minrl.models.lora import merge_adapters


class Written:
    """A pickle that writes a file as it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def model(policy, tmp_path):
    folder = tmp_path / "model"
    save_model(policy.model, policy.tokenizer, folder)
    return folder


def test_pickled_weights_are_refused_in_one_line_and_not_read(model):
    (model / "model.safetensors").unlink()
    touched = model / "touched"
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Written(touched)))
    with pytest.raises(UserError, match="it has no safetensors: a pickle may run code as it is read") as error:
        load_model(str(model))
    assert "\n" not in str(error.value) and not touched.exists()


def test_pickled_adapters_are_refused_in_one_line(model, policy):
    (model / "adapter_config.json").write_text("{}")
    touched = model / "touched"
    (model / "adapter_model.bin").write_bytes(pickle.dumps(Written(touched)))
    with pytest.raises(UserError, match=r"adapters in .* cannot be merged into base: "):
        merge_adapters(policy.model, model, "base")
    assert not touched.exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_no_code_of_a_folder_is_run(model, file):
    touched = model / "touched"
    (model / "own.py").write_text(f"from pathlib import Path\nPath({str(touched)!r}).touch()\nclass Own: pass\n")
    path = model / file
    stored = json.loads(path.read_text())
    own = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoModel"), "own.Own")
    stored["auto_map"] = {**own, "AutoTokenizer": ["own.Own", "own.Own"]}
    path.write_text(json.dumps(stored))
    try:
        load_model(str(model))
    except UserError as error:
        assert "\n" not in str(error)
    assert not touched.exists()


def test_a_template_of_a_stranger_reaches_nothing():
    words = word_tokenizer(["1"])
    words.chat_template = "{{ raise_exception.__globals__['json'].codecs.open('/etc/passwd').read() }}"
    chat = ChatTokenizer(tokenizer=words, chat_template_options={})
    with pytest.raises(UserError, match="the chat template does not take a conversation of user: ") as error:
        chat.render([{"role": "user", "content": "1"}])
    assert "\n" not in str(error.value) and "root:" not in str(error.value)


def test_an_index_that_names_a_pickle_runs_nothing(model):
    (model / "model.safetensors").unlink()
    touched = model / "touched"
    (model / "evil.bin").write_bytes(pickle.dumps(Written(touched)))
    index = {"metadata": {"total_size": 1}, "weight_map": {"model.embed_tokens.weight": "evil.bin"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError):
        load_model(str(model))
    assert not touched.exists()
