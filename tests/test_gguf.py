"""GGUF files: the weights are those that gguf itself dequantizes, and train like any; or the file is refused."""

import json

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from minrl.dataflow import UserError
from minrl.models.loading import count_weights, load_model, save_model
from minrl.run.checkpoint import weights_sha256
from minrl.run.setup import load_policy
from minrl.tasks import TASK_DEFINITIONS
from tests.conftest import CPU, small_config
from tests.runs import Run

TOKENS = ["<pad>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
CONTROL, NORMAL = 3, 1
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}"
HEADS, KEY_HEADS = 4, 2
SHAPE = {"vocab_size": len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "rms_norm_eps": 1e-5}
SHAPE |= {"max_position_embeddings": 256, "tie_word_embeddings": True, "eos_token_id": 1}
SHAPE |= {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA_3 |= {"original_max_position_embeddings": 8192, "rope_theta": 5e5}
IDS = torch.tensor([[2, 70, 71, 90, 100, 33, 5, 258, 12, 11, 10, 80]])


def small_llama(**changes):
    torch.manual_seed(0)
    return LlamaForCausalLM(small_config("llama", **SHAPE | changes)).eval()


def rotated(weight, heads, back=False):
    """Rows of a query or key matrix in llama.cpp's order: what RoPE turns together is adjacent; `back` from it."""
    order = (heads, -1, 2) if back else (heads, 2, -1)
    return weight.reshape(*order, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, model, quantization=Kind.F32, more=(), parts=1):
    """Write the model with its matrices in this quantization, and give it the weights that are in the file."""
    writer, config = gguf.GGUFWriter(str(path), "llama"), model.config
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_uint32("split.count", parts)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([CONTROL if len(token) > 2 else NORMAL for token in TOKENS])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.named_parameters():
        heads = HEADS if "q_proj" in name else KEY_HEADS if "k_proj" in name else 0
        values = weight.detach().numpy()
        values = np.ascontiguousarray(rotated(values, heads) if heads else values)
        kind = quantization if values.ndim == 2 else Kind.F32
        data = gguf.quantize(values, kind)
        writer.add_tensor(names.get_name(name.removesuffix(".weight")) + ".weight", data, raw_dtype=kind)
        read = gguf.dequantize(data, kind)
        weight.data = torch.from_numpy(rotated(read, heads, back=True) if heads else read.copy())
    for name, data in more:
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("quantization", [Kind.F32, Kind.Q8_0])
def test_the_weights_are_those_that_gguf_dequantizes_and_are_saved_as_safetensors(tmp_path, quantization):
    before, model = small_llama(), small_llama()
    path = write_gguf(tmp_path / "sha256-of-ollama", model, quantization)  # which has no suffix
    assert torch.equal(before.lm_head.weight, model.lm_head.weight) == (quantization == Kind.F32)
    assert count_weights(str(path)) == model.num_parameters()
    (tmp_path / "tokenizer_config.json").write_text("{")  # of another model
    loaded, tokenizer = load_model(str(path))
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    for (name, weight), (known, expected) in zip(loaded.named_parameters(), model.named_parameters(), strict=True):
        assert name == known and torch.equal(weight, expected), name
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-5, rtol=0)
    save_model(loaded, tokenizer, tmp_path / "saved")
    plain, known = (kind.from_pretrained(tmp_path / "saved") for kind in (AutoModelForCausalLM, AutoTokenizer))
    torch.testing.assert_close(logits(plain), logits(model), atol=1e-5, rtol=0)
    assert plain.lm_head.weight is plain.model.embed_tokens.weight
    assert plain.generation_config.eos_token_id == 1 and plain.dtype == torch.float32
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    ids = known.apply_chat_template([{"role": "user", "content": "cab"}], return_dict=False)
    assert known.chat_template == TEMPLATE and known.decode(ids) == "user: cab<end>"
    assert ids[-3:] == [TOKENS.index(token) for token in ("c", "ab", "<end>")]


def test_the_scaled_rope_of_llama_3_is_read_from_its_factors(tmp_path):
    model = small_llama(rope_parameters=LLAMA_3)
    plain = 5e5 ** -(torch.arange(8) / 8)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    path = write_gguf(tmp_path / "m.gguf", model, more=[("rope_freqs.weight", factors)])
    assert count_weights(str(path)) == model.num_parameters()  # without the factors
    loaded, _ = load_model(str(path))
    assert loaded.config.rope_parameters == LLAMA_3 | {"factor": pytest.approx(8)}
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-5, rtol=0)
    other = write_gguf(tmp_path / "o.gguf", small_llama(), more=[("rope_freqs.weight", factors[::-1].copy())])
    with pytest.raises(UserError, match=r"scales RoPE by rope_freqs.weight in another way than Llama 3"):
        load_model(str(other))


REFUSED = {  # how it is written, what is done to its bytes, and the reason
    "one of two parts": ({"parts": 2}, bytes, "is one of 2 parts: join them with llama-gguf-split"),
    "a bias": ({"more": [("blk.0.attn_q.bias", np.ones(64, np.float32))]}, bytes, "holds .* weights, and transformers"),
    "not GGUF": ({}, lambda content: b"PK" + content, "is not a GGUF file: give a .gguf file, a folder"),
    "cut in its weights": ({}, lambda content: content[:-1000], "is damaged or incomplete .*download it again"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_damaged_or_not_read_whole_is_refused_in_a_line(tmp_path, case):
    changes, damage, reason = REFUSED[case]
    path = write_gguf(tmp_path / "m.gguf", small_llama(), **changes)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=reason) as refused:
        load_model(str(path))
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)


def test_a_run_with_adapters_on_a_file_is_saved_merged_and_refuses_another_in_its_place(
    sevens, tmp_path, monkeypatch, processes
):
    monkeypatch.setitem(TASK_DEFINITIONS, "sevens", sevens)
    monkeypatch.chdir(tmp_path)
    file = write_gguf(tmp_path / "small.gguf", small_llama(), Kind.Q8_0)
    flags = """--task sevens --model-id small.gguf --prompts-per-step 2 --group-size 2 --max-tokens 4 --lora-rank 2
        --steps 1 --eval-every 0 --no-eval-first --eval-examples 2 --learning-rate 1e-2 --entropy-coef 0.1
        --no-preflight --rollouts-every 0 --threads 1 --device cpu --quiet"""
    run, start = Run(tmp_path, flags.split()), load_policy(str(file), CPU, processes)
    assert run.here() == 0
    record = json.loads((run.folder / "config.json").read_text())
    assert record["config"]["model_id"] == str(file)
    assert record["models"]["start model"]["weights_sha256"] == weights_sha256(start)
    saved = run.checkpoints / "step_000001"
    own, plain = load_policy(str(saved), CPU, processes).model, AutoModelForCausalLM.from_pretrained(saved)
    torch.testing.assert_close(logits(plain), logits(own), atol=1e-6, rtol=0)
    assert float((logits(plain) - logits(start.model)).abs().max()) > 0
    write_gguf(file, small_llama(), Kind.Q4_0)
    with pytest.raises(UserError, match=r"start model of run .* has other weights than when the run began"):
        run.resume("--steps", "2")
