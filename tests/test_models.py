"""The architectures that people train: loaded, checked and computed as plain transformers computes them."""

import pytest
import torch

from minrl.batch import pack
from minrl.dataflow import Request, UserError
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.models.scoring import sampled_rollout
from minrl.run.setup import load_policy
from tests.conftest import CPU, random_model, small_config
from tests.multimodal import ROWS, byte_tokenizer
from tests.test_scoring import plain

LARGER = {"vocab_size": ROWS, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 256}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
GROUPS = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
GATED = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}

POPULAR = {
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {**EXPERTS, "head_dim": 16},
    "mistral": {"sliding_window": 8, "head_dim": 16},
    "gemma2": {**ALTERNATING, "head_dim": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 5.0},
    "phi3": {},
    "gpt_oss": {**EXPERTS, **ALTERNATING, "head_dim": 16},
}
OTHERS = {
    "llama": {},
    "qwen2": {},
    "mixtral": {**EXPERTS, "sliding_window": None},
    "gemma3_text": {**ALTERNATING, "head_dim": 16},
    "olmo2": {},
    "gpt_neox": {},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 2.0},
    "smollm3": {},
    "mamba2": {"state_size": 8, "expand": 2, "head_dim": 32, "num_heads": 4, "n_groups": 2, "chunk_size": 8},
    "cohere2": {**ALTERNATING, "logit_scale": 0.5},
    "deepseek_v3": {**EXPERTS, **LATENT, **GROUPS, "num_key_value_heads": 4},
    "qwen3_next": {**EXPERTS, **GATED, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"]},
}
"""Settings beside `LARGER` of each model type; windows are shorter than what is computed. Others are tried in the slow
set.
"""


@pytest.mark.parametrize("kind", [*POPULAR, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)])
def test_an_architecture_is_computed_as_transformers_does(kind, tmp_path, processes):
    model = random_model(small_config(kind, **LARGER | {**POPULAR, **OTHERS}[kind]))
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    policy = load_policy(str(tmp_path), CPU, processes)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(5, 96, (length,), generator=generator).tolist() for length in (3, 17, 11)]
    requests = [Request(prompt, seed, limit) for prompt in prompts for seed, limit in enumerate((1, 3, 9, 12))]
    completions = TorchEngine(policy).generate(requests, Sampling(1.0, frozenset()))
    rollouts = [sampled_rollout(r.ids, one.ids) for r, one in zip(requests, completions, strict=True)]
    expected, _ = plain(model, rollouts, 1.0)
    assert expected.std() > 0.5  # otherwise any two numbers would agree
    said = torch.tensor([logprob for one in completions for logprob in one.logprobs])
    torch.testing.assert_close(said, expected.detach(), atol=1e-4, rtol=0)
    stream = pack(rollouts, range(len(rollouts)))
    logprobs, _ = policy.score(stream, 1.0)
    logprobs = logprobs[stream.token_index.argsort()]
    torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)
    factors = torch.cos(2.0 * torch.arange(len(expected)))
    for found in (logprobs, expected):
        (found * factors).sum().backward()
    theirs, mine = ({n: w.grad for n, w in m.named_parameters()} for m in (model, policy.model))
    largest = max(float(gradient.abs().max()) for gradient in theirs.values() if gradient is not None)
    for name, gradient in theirs.items():
        if gradient is not None:
            bound = 1e-3 * max(1e-2 * largest, float(gradient.abs().max()))
            torch.testing.assert_close(mine[name], gradient, atol=bound, rtol=0, msg=name)


def test_an_architecture_that_reads_ahead_is_refused(tmp_path, processes):
    random_model(small_config("bert", **LARGER, is_decoder=False)).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="depends on the tokens behind it"):
        load_policy(str(tmp_path), CPU, processes)
