"""Which class loads a folder, what of a model trains, and what is written back."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForMultimodalLM

from minrl.config import LoraConfig, OptimizerConfig
from minrl.dataflow import TrainState, UserError
from minrl.models.loading import load_model, save_model
from minrl.models.lora import Adapters, adapted_layers, fold_in
from minrl.models.text import decoder_of, head_of
from minrl.optimizer import make_optimizer
from minrl.policy import as_policy
from minrl.run.checkpoint import restore_optimizer, save_checkpoint, save_policy, weights_sha256
from tests.conftest import CPU
from tests.multimodal import FAMILIES, TEXT, byte_tokenizer, save_multimodal

IDS = torch.tensor([[72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100, 33, 10, 65, 66, 67, 68, 69, 70]])


@pytest.fixture(scope="module", params=FAMILIES)
def source(request, tmp_path_factory):
    """A folder with a small model of each family."""
    return save_multimodal(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory):
    return save_multimodal("gemma3", tmp_path_factory.mktemp("gemma3"))


def loaded(folder, processes):
    return as_policy(*load_model(str(folder)), CPU, processes)


def plain_logprobs(folder):
    """By transformers alone: the class that it has for the folder, eager attention."""
    model = AutoModelForMultimodalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(input_ids=IDS).logits.log_softmax(-1)


def own_logprobs(model):
    """By the text part alone, at positions counted from 0 as in a stream."""
    positions = torch.arange(IDS.shape[1])[None]
    hidden = decoder_of(model)(input_ids=IDS, position_ids=positions, use_cache=False).last_hidden_state
    return head_of(model)(hidden).log_softmax(-1)


def refusal(folder, config, *files):
    """What is said of a folder with this config and these files."""
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for name in files:
        (folder / name).write_text("{}")
    with pytest.raises(UserError) as refused:
        load_model(str(folder))
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value)
    return str(refused.value)


def train_a_step(policy, optimizer):
    own_logprobs(policy.model)[0, :-1].gather(1, IDS[0, 1:, None]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_the_text_of_a_multimodal_model_trains_and_the_rest_is_kept_bit_for_bit(source, tmp_path, processes):
    policy = loaded(source, processes)
    expected = plain_logprobs(source)
    assert float(expected.std()) > 0.5
    torch.testing.assert_close(own_logprobs(policy.model), expected, atol=1e-5, rtol=0)
    optimizer = make_optimizer(policy, OptimizerConfig(learning_rate=1e-2))
    train_a_step(policy, optimizer)
    save_policy(policy, tmp_path / "saved")
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "saved" / "model.safetensors")
    assert before.keys() == after.keys()
    text = {name for name in before if "vision" not in name and "visual" not in name and "projector" not in name}
    frozen = before.keys() - text
    assert len(text) > 10 and len(frozen) > 10
    for name in frozen:
        assert after[name].dtype == torch.bfloat16 and torch.equal(after[name], before[name]), name
    for name in text:
        assert after[name].dtype == torch.float32
    moved = {name for name in text if not torch.equal(after[name], before[name].float())}
    assert len(moved) > 0.8 * len(text)  # an expert that nothing reached stays
    buffers = {name for name, _ in policy.model.named_buffers()}
    with_moments = sum(weight.numel() for weight in optimizer.state)
    assert with_moments == sum(after[name].numel() for name in text - buffers)
    trained = own_logprobs(policy.model).detach()
    assert float((trained - expected).abs().max()) > 0.01
    torch.testing.assert_close(plain_logprobs(tmp_path / "saved"), trained, atol=1e-5, rtol=0)
    name = "preprocessor_config.json"
    assert (tmp_path / "saved" / name).read_bytes() == (source / name).read_bytes()
    stored = [json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "saved")]
    assert stored[0]["architectures"] == stored[1]["architectures"]
    assert stored[1]["dtype"] == stored[1]["text_config"]["dtype"] == "float32"


def test_a_run_of_a_multimodal_model_resumes_bit_for_bit(gemma3, tmp_path, processes):
    policy = loaded(gemma3, processes)
    optimizer = make_optimizer(policy, OptimizerConfig(learning_rate=1e-2))
    train_a_step(policy, optimizer)
    path = save_checkpoint(tmp_path, policy, optimizer, TrainState(step=1), keep=0)
    again = loaded(path, processes)
    fresh = make_optimizer(again, OptimizerConfig(learning_rate=1e-2))
    restore_optimizer(path, again, fresh)
    for one, steps in ((policy, optimizer), (again, fresh)):
        train_a_step(one, steps)
    assert weights_sha256(policy) == weights_sha256(again)
    assert {weight.dtype for weight in again.model.parameters()} == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize(
    ("config", "files", "reason"),
    [
        (None, ["model.gguf"], "give the GGUF file itself"),
        (None, [], "config.json"),
        ({"model_type": "unheard"}, [], "does not recognize this architecture"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}, [], "contains custom code"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]}, [], "has no causal language"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, [], "an encoder with a decoder"),
        ({"model_type": "llama"}, [], "it has no tokenizer: put tokenizer.json there"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, [], "is quantized (gptq)"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_refused_with_the_true_reason(tmp_path, config, files, reason):
    assert reason in refusal(tmp_path, config, *files)


def test_experts_in_four_bits_are_loaded_as_what_they_stand_for_and_saved_in_float32(tmp_path):
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 32}
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING["gpt_oss"](**TEXT | experts))
    model.save_pretrained(tmp_path / "source")
    byte_tokenizer().save_pretrained(tmp_path / "source")
    file, config = tmp_path / "source" / "model.safetensors", tmp_path / "source" / "config.json"
    weights = load_file(file)
    matrices = [name for name in weights if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    for name in matrices:  # 32 numbers are 16 bytes and a scale of 2 ** (byte - 127)
        number, inputs, outputs = weights.pop(name).shape
        weights[f"{name}_blocks"] = torch.full((number, outputs, inputs // 32, 16), 0x22, dtype=torch.uint8)  # 1.0
        weights[f"{name}_scales"] = torch.full((number, outputs, inputs // 32), 124, dtype=torch.uint8)
    save_file(weights, file, {"format": "pt"})
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}))
    model, tokenizer = load_model(str(tmp_path / "source"))
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    save_model(model, tokenizer, tmp_path / "saved")
    again, _ = load_model(str(tmp_path / "saved"))
    found = dict(again.named_parameters())
    assert len(matrices) == 4 and all((found[name] == 2.0**-3).all() for name in matrices)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


def test_adapters_are_put_into_the_text_part_alone(gemma3, tmp_path, processes):
    policy = loaded(gemma3, processes)
    policy.adapters = Adapters(policy.model, LoraConfig(lora_rank=2), str(gemma3), seed=0)
    paths = list(adapted_layers(policy.model))
    assert len(paths) == 2 * 7
    assert all(path.startswith("model.language_model.layers.") for path in paths)
    optimizer = make_optimizer(policy, OptimizerConfig(learning_rate=1e-1))
    for _ in range(2):
        train_a_step(policy, optimizer)
    save_policy(policy, tmp_path / "saved")
    torch.testing.assert_close(plain_logprobs(tmp_path / "saved"), own_logprobs(policy.model), atol=1e-4, rtol=0)
    assert float((plain_logprobs(gemma3) - own_logprobs(policy.model).detach()).abs().max()) > 0.01
    before, after = load_file(gemma3 / "model.safetensors"), load_file(tmp_path / "saved" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].float(), after[name].float()) for name in before if "language" not in name)
    again = loaded(gemma3, processes)
    fold_in(again.model, again.tokenizer, tmp_path / "saved" / "adapter", str(gemma3))
    torch.testing.assert_close(own_logprobs(again.model), own_logprobs(policy.model), atol=1e-4, rtol=0)
    trained = {name for name, weight in again.model.named_parameters() if weight.requires_grad}
    assert trained and all("vision" not in name and "projector" not in name for name in trained)


def test_a_folder_without_one_of_its_shards_is_an_incomplete_download(make_policy, tmp_path):
    make_policy(0).model.save_pretrained(tmp_path / "model", max_shard_size="50KB")
    make_policy(0).tokenizer.save_pretrained(tmp_path / "model")
    shards = sorted((tmp_path / "model").glob("model-*.safetensors"))
    assert len(shards) > 1
    shards[-1].unlink()
    with pytest.raises(UserError, match=rf"{shards[-1].name}; the download is incomplete"):
        load_model(str(tmp_path / "model"))
