"""Whether vLLM's CPU build samples with an architecture as plain transformers computes it.

    python -m tests.vllm_models [NAME ...]

makes each small with random weights, starts the engine, verifies a sync, changes every weight, verifies the next, and
compares the log-probabilities of sampled tokens with plain transformers: eager attention, one sequence at a time, in
float32: `right`, or `refused` and the reason. Without names: all. vLLM needs torchvision for Qwen3.5,
whose gated delta rule it computes in bfloat16 only on a CPU.
"""

import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForMultimodalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from minrl.dataflow import CausalModel, Completion, Request, UserError
from minrl.engines import Sampling
from minrl.models.distributed import Processes
from minrl.models.loading import text_part, word_tokenizer
from minrl.policy import Policy, as_policy
from tests.parsed import sized

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
"""Nats: of the largest difference, in bfloat16 of the mean one, as experts near a tie change with any rounding."""
IN_BFLOAT16 = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""vLLM's kernels for gated delta rules on a CPU take nothing else."""
LONGEST_S = 300
MARKS = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
WORDS = [*(f"w{index}" for index in range(96)), *MARKS]
REQUESTS = [Request([5 + (7 * i + 13 * k) % 95 for k in range(20)], 2**40 + i, 12 + i) for i in range(4)]
"""Longer than the windows, so that they matter."""

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # vLLM's attention on a CPU takes multiples of 32
    "max_position_embeddings": 128,
    "sliding_window": 8,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 64),
    "num_experts_per_tok": 2,
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts"), 1),
    **dict.fromkeys(("attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}
"""Usual names of a config's fields, where it has them."""

DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "layer_types": ["linear_attention", "full_attention"],
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1}
LATENT = {
    **{"kv_lora_rank": 64, "q_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32},
    "head_dim": 32,
    "num_key_value_heads": 4,
}
IMAGES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2} | {
    "image_size": 28,
    "patch_size": 14,
}
IDS = {"vocab_size": 105, "eos_token_id": 2, "bos_token_id": None, "pad_token_id": 0}
"""Those of `word_tokenizer`."""

TEXT = {name: SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")} | {
    **{name: SIZES[name] for name in ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")},
    **IDS,
}
"""The text part of a multimodal model."""

PLAIN = """
    llama qwen2 qwen3 qwen2_moe qwen3_moe mistral ministral ministral3 mixtral gemma phi phi3 phimoe olmo olmo2 olmo3
    olmoe smollm3 glm glm4 granite granitemoe granitemoeshared starcoder2 gpt_neox exaone4 gpt_oss nanochat
    hunyuan_v1_dense hunyuan_v1_moe seed_oss stablelm nemotron ernie4_5 ernie4_5_moe apertus
"""
"""Architectures that need nothing besides."""

CHANGES: dict[str, dict[str, Any]] = {
    **{name: {} for name in PLAIN.split()},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "cohere": {"logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0, "num_hidden_layers": 4},
    **{name: {"query_pre_attn_scalar": 32} for name in ("gemma2", "gemma3_text")},
    "gemma3": {"text_config": {**TEXT, "query_pre_attn_scalar": 32}, "vision_config": IMAGES},
    "gemma4_text": {
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 105,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mistral3": {
        "text_config": {**TEXT, "model_type": "mistral"},
        "vision_config": {**IMAGES, "model_type": "pixtral"},
    },
    "gpt2": {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 128},
    "glm4_moe": {"head_dim": 32, "use_qk_norm": True},
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), LATENT),
    "glm4_moe_lite": {**LATENT, "first_k_dense_replace": 1},
    "llama4_text": {
        **{"intermediate_size_mlp": 96, "intermediate_size": 96, "attention_chunk_size": 128, "num_experts_per_tok": 1},
        "interleave_moe_layer_step": 2,
    },
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 64},
    "falcon_h1": {**MAMBA, "mamba_d_head": 16, "mamba_d_ssm": 128},
    "mamba2": {"num_heads": 8, "head_dim": 32, "state_size": 16, "n_groups": 1},
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), DELTA),
}
"""The architectures, by model type, and what they need besides `SIZES`."""


@dataclass(frozen=True)
class Found:
    """What became of an architecture. `outcome`: right, refused, wrong, traceback, crash or not made."""

    outcome: str
    reason: str = ""
    gap: float = 0.0
    spread: float = 0.0
    probed: tuple[str, ...] = ()
    """Tensors that no name finds in the engine."""

    @property
    def cell(self) -> str:
        """For the table of models."""
        reason = self.reason.partition("; try --engine torch")[0].removesuffix("; use --engine torch")
        return self.outcome + (f": {' '.join(reason.split())}" if reason else "")


def small_model(name: str) -> tuple[CausalModel, Any]:
    """The architecture in float32 with weights, biases and norms that matter, and a tokenizer."""
    tokenizer = word_tokenizer(WORDS)
    config_class, changes = CONFIG_MAPPING[name], CHANGES[name]
    usual = config_class()
    assert (len(tokenizer), tokenizer.eos_token_id) == (IDS["vocab_size"], IDS["eos_token_id"])
    values = {key: value for key, value in SIZES.items() if _settable(usual, key)} | IDS
    values = {} if "text_config" in changes else values
    own = {usual.attribute_map.get(key, key) for key in changes}
    values = {key: value for key, value in values.items() if usual.attribute_map.get(key, key) not in own}
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else AutoModelForMultimodalLM
    model = auto.from_config(config_class(**values, **changes)).float()
    assert sum(weight.numel() for weight in model.parameters()) < 10**7, f"{name} is not small: {model.config}"
    if model._supports_attention_backend:
        model.set_attn_implementation("eager")
    change(model, 0.1)
    return text_part(name, model), tokenizer


def change(model: CausalModel, size: float) -> None:
    """Move every weight."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(size * torch.randn_like(weight))


def compare(name: str) -> Found:
    """Start the engine for the architecture, sync, update, sync, and compare. The engine is left to the process."""
    from minrl.engines.vllm import VllmEngine
    from minrl.engines.vllm_sync import find_engine_tensors, unread

    try:
        model, tokenizer = small_model(name)
    except Exception as error:
        return Found("not made", f"{type(error).__name__}: {error}")
    dtype: Any = "bfloat16" if name in IN_BFLOAT16 else "float32"
    settings = sized(device="cpu", threads=1, dtype=dtype)
    try:
        policy = as_policy(model, tokenizer, settings, Processes(settings))
        engine = VllmEngine(sized(engine="vllm"), policy, len(REQUESTS))
        gap, spread = _gap(policy, engine.generate(REQUESTS, Sampling(1.0, frozenset())))
        change(model, 0.01)
        policy.version += 1
        engine.sync(policy)
        after, _ = _gap(policy, engine.generate(REQUESTS, Sampling(1.0, frozenset())))
    except UserError as error:
        return Found("refused", str(error))
    except Exception:
        return Found("traceback", traceback.format_exc())
    weights = model.state_dict()
    probed = unread(find_engine_tensors(engine.model, weights), weights)
    gap = max(gap, after)
    outcome = "right" if gap <= TOLERANCE[dtype] else "wrong"
    return Found(outcome + " in bfloat16" * (name in IN_BFLOAT16), "", gap, spread, tuple(probed))


def compare_apart(name: str) -> Found:
    """`compare` in a process of its own, which may crash. It is forked, so that vLLM is imported once."""
    _import_vllm()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LONGEST_S)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        with os.fdopen(writer, "w") as pipe:
            json.dump(asdict(compare(name)), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return Found(**json.loads(said)) if said else Found("crash", f"the process ended with status {status}")


def main(names: list[str]) -> None:
    """Compare each, and print a line."""
    for name in names or sorted(CHANGES):
        start = time.perf_counter()
        found = compare_apart(name)
        print(f"{name}: {found.cell} {found.gap:.1e} {found.spread:.2f} {len(found.probed)}", end=" ")
        print(f"{time.perf_counter() - start:.0f} s", flush=True)


def _settable(config: Any, name: str) -> bool:
    """Whether a config has the field, and it can be set."""
    attribute = getattr(type(config), name, None)
    if isinstance(attribute, property) and attribute.fset is None:
        return False
    if "expert" in name and vars(config).get(name, 1) is None:
        return False  # a dense model, of a family that has experts too
    return name in vars(config) or name in config.attribute_map


def _gap(policy: Policy, completions: list[Completion]) -> tuple[float, float]:
    """The difference from plain transformers in nats (`TOLERANCE`), and how far log-probabilities spread."""
    gaps, spreads = [], []
    for request, completion in zip(REQUESTS, completions, strict=True):
        ids = torch.tensor([request.ids + completion.ids])
        with torch.no_grad():
            logprobs = policy.model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        own = logprobs.gather(1, ids[0, 1:, None])[len(request.ids) - 1 :, 0]
        difference = (own - torch.tensor(completion.logprobs)).abs()
        gaps.append(float(difference.max() if policy.processes.dtype == torch.float32 else difference.mean()))
        spreads.append(float(logprobs.std(-1).mean()))
    return max(gaps), min(spreads)


def _import_vllm() -> None:
    for module in ("vllm.entrypoints.llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"):
        import_module(module)


if __name__ == "__main__":
    main(sys.argv[1:])
