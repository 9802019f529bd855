"""Which class loads a folder, and what of a multimodal model is trained and written back."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM

from minrl.dataflow import UserError
from minrl.models.loading import load_model
from minrl.optimizer import make_optimizer
from minrl.policy import as_policy
from minrl.run.checkpoint import save_policy
from tests.conftest import CPU
from tests.multimodal import save_multimodal
from tests.parsed import sized

IDS = torch.tensor([[72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100, 33, 10, 65, 66, 67, 68, 69, 70]])


@torch.no_grad()
def logprobs_of(model):
    return model.eval()(input_ids=IDS, use_cache=False).logits.log_softmax(-1)


def refusal(folder, config):
    """What is said of a folder with this config."""
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError) as refused:
        load_model(str(folder))
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5_moe"])
def test_of_a_multimodal_model_the_text_part_is_trained_and_saved_as_a_model_of_text(family, tmp_path, processes):
    source = save_multimodal(family, tmp_path / "source")
    whole = AutoModelForMultimodalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    expected = logprobs_of(whole)
    assert float(expected.std()) > 0.5
    policy = as_policy(*load_model(str(source)), CPU, processes)
    torch.testing.assert_close(logprobs_of(policy.model), expected, atol=1e-5, rtol=0)
    optimizer = make_optimizer(policy, sized(learning_rate=1e-2))
    policy.model(input_ids=IDS, use_cache=False).logits.log_softmax(-1)[0, :-1, 5].sum().backward()
    optimizer.step()
    trained = logprobs_of(policy.model)
    assert float((trained - expected).abs().max()) > 0.01
    save_policy(policy, tmp_path / "saved")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", attn_implementation="eager")
    torch.testing.assert_close(logprobs_of(plain), trained, atol=1e-5, rtol=0)
    assert plain.dtype == torch.float32


def test_a_multimodal_model_whose_text_part_has_no_class_or_computes_otherwise_is_refused(tmp_path):
    assert "whose text part is no model of its own" in refusal(save_multimodal("qwen3_vl", tmp_path / "other"), None)
    source = save_multimodal("gemma3", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config["text_config"]["final_logit_softcapping"] = 1.0
    assert "whose text part is no model of its own" in refusal(source, config)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "config.json"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}, "contains custom code"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "is no causal language model"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, "is quantized (gptq)"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_refused_with_the_true_reason(tmp_path, config, reason):
    assert reason in refusal(tmp_path, config)
