"""What an update and the embedded engine would ask of a GPU, on a GPU without numbers."""

from types import SimpleNamespace

import pytest
import torch
from card import DEVICE, card
from device_step import FEW, MANY, SETTINGS, Setting, attention_of, decoding_of, update_of
from safetensors.torch import save_file
from torch import nn

from minrl.engines.vllm_server import Synced
from minrl.models.logprobs import Head, chunked_logprobs

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 1024}
NORM = "minrl/optimizer.py"
"""Where the norm of the gradient is read, which says whether to take the step."""
CURVES = ["minrl/update.py"] * 2
"""Where the curves, and the numbers of each token, are read after the last step."""


@pytest.fixture(scope="module")
def there():
    with card() as one:
        yield one


def files(lines):
    return [line.rpartition(":")[0] for line in lines]


def check(there, setting, micro_batch_tokens=MANY // 4):
    record, parts = update_of(there, setting, TINY, micro_batch_tokens, prompts=1)
    assert files(record.waits) == [NORM] * setting.algorithm.get("passes_per_step", 1) + CURVES
    assert {dtype for _, dtype in record.products} == {"bfloat16"}
    assert attention_of(record) == "flash"
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_an_optimizer_step_waits_once_in_every_setting(there, name):
    check(there, SETTINGS[name])


@pytest.mark.slow
def test_an_update_waits_once_however_many_micro_batches_it_has(there):
    assert check(there, SETTINGS["gspo"], FEW) == 1
    assert check(there, SETTINGS["gspo"]) > 2


def test_the_embedded_engine_waits_once_for_each_token(there):
    short, long = (decoding_of(there, TINY, tokens).waits for tokens in (3, 7))
    assert len(long) - len(short) == 4
    assert files(long).count("minrl/engines/torch_engine.py") == 7 + 1  # the tokens, and which prompt each row has


def test_experts_multiply_in_bfloat16_and_nothing_waits_for_a_router(there):
    mixture = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    check(there, Setting(model=mixture), FEW)


def test_the_head_of_a_card_sums_in_float32(there, monkeypatch):
    """Its logits are not rounded to bfloat16 in between: a step of 0.125 where they are near 20."""
    kinds, mm = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda *given, **more: kinds.append(more.get("out_dtype")) or mm(*given, **more))
    hidden, weight = (torch.ones(size, 8, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for size in (5, 11))
    labels = torch.zeros(5, dtype=torch.long, device=DEVICE)
    logprobs, _ = chunked_logprobs(hidden, Head(weight), labels, 1.0)
    assert kinds == [torch.float32] and logprobs.dtype == torch.float32


def test_a_server_on_a_card_compares_its_weights_with_files_in_main_memory(there, tmp_path):
    save_file({"norm.weight": torch.ones(8)}, tmp_path / "weights-00000.safetensors")
    settings = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1), model_config=SimpleNamespace(dtype=torch.bfloat16)
    )
    model = nn.ModuleDict({"norm": nn.LayerNorm(8, bias=False, device=DEVICE)}).requires_grad_(False)
    worker = SimpleNamespace(vllm_config=settings, model_runner=SimpleNamespace(get_model=lambda: model))
    assert Synced.minrl_differing(worker, str(tmp_path), 0)["tensors"] == 1
