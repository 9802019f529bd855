"""Every architecture of transformers that has a causal language model head, made small, with random weights.

A config class is shrunk by the usual names of its fields (`SMALL`). Of the lists with an entry for each layer so many
layers are kept that every kind occurs. `CHANGES` has what some architectures need besides, `VARIANTS` further settings
of an architecture that are computed in another way.
"""

import dataclasses
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto import modeling_auto

from minrl.dataflow import CausalModel

VOCABULARY, CONTEXT, WINDOW, CHUNK = 96, 256, 8, 8

TEXT = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
IMAGES = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

HIDDEN, INNER, LAYERS, HEADS, KEY_HEADS, HEAD_DIM, EXPERTS = 64, 96, 2, 4, 2, 16, 4
MOST_LAYERS = 4
SPREAD = 1.5
"""Standard deviation of what a matrix makes of a normal vector."""

SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size", "decoder_vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim", "embed_dim", "emb_dim", "dim"),
        HIDDEN,
    ),
    **dict.fromkeys(
        ("embedding_dim", "input_embedding_size", "output_embedding_size", "lru_width", "mlp_dim"),
        HIDDEN,
    ),
    "attention_hidden_size": 2 * HIDDEN,
    **dict.fromkeys(
        ("backbone_hidden_size", "out_hidden_size", "projection_dim", "text_hidden_size", "hidden_size_global"), HIDDEN
    ),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size", "dff", "d_ff"), INNER
    ),
    **dict.fromkeys(
        ("d_inner", "dim_ff", "n_inner", "feed_forward_size", "dense_intermediate_size", "intermediate_size_mlp"), INNER
    ),
    **dict.fromkeys(
        ("moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size", "share_expert_dim"), 32
    ),
    **dict.fromkeys(("shared_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers", "depth"), LAYERS
    ),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "layers", "num_blocks"), LAYERS),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "attention_heads"), HEADS
    ),
    **dict.fromkeys(
        ("encoder_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads"),
        HEADS,
    ),
    **dict.fromkeys(("swa_num_attention_heads", "linear_num_heads", "num_sliding_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), KEY_HEADS),
    **dict.fromkeys(("head_dim", "kv_channels", "dim_head", "d_head", "d_kv", "swa_head_dim", "linear_head_dim"), 16),
    "attention_head_dim": 32,
    "attention_head_size": 16,
    "global_head_dim": 16,
    **dict.fromkeys(
        ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "zero_expert_num"), EXPERTS
    ),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("n_group", "num_expert_group", "topk_group"), 1),
    **dict.fromkeys(("sliding_window", "window_size", "attention_window_size", "local_attention"), WINDOW),
    **dict.fromkeys(("sliding_window_size", "attention_chunk_size", "keep_window_size"), WINDOW),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size", "block_size"), CHUNK),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length"), CONTEXT),
    **dict.fromkeys(("max_target_positions", "max_source_positions", "model_max_length"), CONTEXT),
    "original_max_position_embeddings": CONTEXT,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "o_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "qk_head_dim": 16,
    "v_head_dim": 12,
    "index_n_heads": 16,  # a key that all of a few heads reject ties with others, and which is taken is chance
    "index_head_dim": 16,
    "index_topk": 6,
    "index_block_size": 4,
    "index_topk_blocks": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "state_size": 8,
    "mamba_d_state": 8,
    "ssm_state_size": 8,
    "mamba_n_heads": 4,
    "mamba_num_heads": 4,
    "n_mamba_heads": 2,
    "mamba_d_head": 32,
    "mamba_head_dim": 32,
    "mamba_d_ssm": 128,
    "mamba_dt_rank": 8,
    "time_step_rank": 8,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "num_nextn_predict_layers": 0,
    "rotary_dim": 8,
    "type_vocab_size": 2,
    # Scales that are not 1, caps that are not far away.
    "logit_scale": 0.5,
    "logits_scaling": 2.0,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.3,
    "lm_head_multiplier": 0.6,
    "key_multiplier": 0.8,
    "attention_out_multiplier": 0.9,
    "attention_in_multiplier": 1.2,
    "ssm_in_multiplier": 1.1,
    "ssm_out_multiplier": 0.8,
    "mlp_multipliers": [0.9, 1.2],
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
    "final_logit_softcapping": 5.0,
    "attn_logit_softcapping": 5.0,
    "logits_soft_cap": 5.0,
    "query_pre_attn_scalar": 20,
    # Towers of images.
    "image_size": 28,
    "patch_size": 14,
    "num_channels": 3,
    "vision_feature_layer": -1,
}
"""Field names of configs and their values here. A field that is None or 0 by default stays so."""

SPECIAL = ("<pad>", "<unk>", "<end>", "<|endoftext|>")
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

DECODER = {"is_decoder": True, "add_cross_attention": False, "is_encoder_decoder": False}
"""Architectures that are encoders, or parts of an encoder with a decoder, by default."""

SLIDING_FULL = ["sliding_attention", "full_attention"]


def _axes(*sections: int) -> dict[str, Any]:
    """Rotary positions of three axes, with so many frequencies each."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}
    return {"text_config": {"rope_parameters": rope}}


CHANGES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("glm4v", "glm46v", "glmga", "glm_ocr", "paddleocr_vl"), _axes(2, 3, 3)),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker"), _axes(2, 3, 3)),
    "glm4v_moe": {
        "text_config": {
            "rope_parameters": _axes(2, 1, 1)["text_config"]["rope_parameters"] | {"partial_rotary_factor": 0.5}
        }
    },
    "bamba": {"attn_layer_indices": [1], "num_logits_to_keep": 1},
    "dbrx": {
        "ffn_config": {"moe_top_k": 2, "hidden_size": 64},
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "gemma3n_text": {
        "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        "layer_types": SLIDING_FULL * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 16,
        "laurel_rank": 8,
    },
    "gemma4_text": {"global_head_dim": 32, "final_logit_softcapping": 5.0, "hidden_size_per_layer_input": 8},
    "gemma4_unified_text": {"global_head_dim": 32, "final_logit_softcapping": 5.0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 4},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    "llama4": {"vision_config": {"projector_input_dim": 64, "projector_output_dim": 64, "vision_output_dim": 64}},
    "ministral": {"layer_types": SLIDING_FULL},
    "llama4_text": {"moe_layers": [1, 3], "interleave_moe_layer_step": 2, "floor_scale": 4, "num_experts_per_tok": 1},
    "mistral4": {"head_dim": 16},
    "mamba2": {"expand": 2, "head_dim": 32, "num_heads": 4, "n_groups": 2},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"n_groups": 2},
    "qwen3_vl": {"vision_config": {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}},
    "qwen3_vl_moe": {"vision_config": {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}},
    "zamba2": {"mamba_headdim": 32, "n_mamba_heads": 4, "hybrid_layer_ids": [1], "adapter_rank": 8},
}
"""What an architecture needs besides the usual names."""

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * number for number in range(8)],
    "long_factor": [1.0 + 0.5 * number for number in range(8)],
    "original_max_position_embeddings": CONTEXT // 2,
}
WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1, "layer_types": SLIDING_FULL}
FOUR_LAYERS = {"num_hidden_layers": 4, "layer_types": SLIDING_FULL * 2}
BIASES = {"attention_bias": True, "mlp_bias": True}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3, groups of experts": ("deepseek_v3", {"n_group": 2, "topk_group": 1}),
    "falcon, ALiBi": ("falcon", {"alibi": True}),
    "gemma4_text, experts": (
        "gemma4_text",
        {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    ),
    "gemma4_text, shared keys": (
        "gemma4_text",
        {**FOUR_LAYERS, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    ),
    "llama, biases": ("llama", BIASES),
    "llama, dynamic RoPE": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "llama, YaRN": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": CONTEXT // 4,
            }
        },
    ),
    "phi3, LongRoPE": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": CONTEXT // 2}),
    "phimoe, window": ("phimoe", {"sliding_window": WINDOW}),
    "qwen2, window": ("qwen2", WINDOWED),
    "qwen3_moe, dense layers": ("qwen3_moe", {"mlp_only_layers": [0]}),
}
"""Further settings of a model type that are computed in another way."""


RARE = """
    blt chameleon cohere2_moe cohere2_vision cohere_compass_text cosmos3_edge deepseek_ocr2 deepseek_v4
    deepseek_vl_hybrid dots1 emu3 ernie4_5_vl_moe florence2 glm5_next granite4_vision hrm_text hunyuan_vl
    inkling_text janus laguna lfm2_vl mellum minicpm3 minimax_m3_vl minimax_m3_vl_text mllama muse_glimmer
    nemotron_h_omni qwen4_exp_text recurrent_gemma reformer roc_bert step3p7 xlm xmod zamba zaya
"""
"""Architectures whose small configs would need settings of their own: a load verifies them like any other."""

NOT_MADE = {
    **dict.fromkeys(RARE.split(), "rarely trained: the check on load decides"),
    **dict.fromkeys(("fast_vlm", "gemma3n", "perception_lm"), "its vision tower needs timm, which is not installed"),
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), "a drafter, which reads another model's states"),
    **dict.fromkeys(("musicgen", "musicgen_melody"), "makes codes of sounds from an encoder's text"),
    "diffusion_gemma": "denoises blocks of tokens, not from left to right",
    "inkling_mm_model": "its image tower needs scipy, and cannot be made small",
    "t5gemma2": "an encoder with a decoder",
    "vision-encoder-decoder": "a pair of any two models",
}
"""Architectures that are not tried, and why."""


def architectures() -> dict[str, str]:
    """The class with the head of each model type that transformers lists."""
    return {**TEXT, **IMAGES}


def names() -> list[str]:
    """Every model type and variant."""
    return sorted([*architectures(), *VARIANTS])


def class_of(name: str) -> str:
    """The class with the head of an architecture or variant."""
    return architectures()[VARIANTS.get(name, (name,))[0]]


def small_config(config_class: type[PreTrainedConfig], changes: dict[str, Any]) -> PreTrainedConfig:
    """The config shrunk by field name. `changes` come last, those of nested configs as nested dictionaries."""
    usual = vars(config_class())
    usual |= {name: usual.get(own) for name, own in config_class.attribute_map.items() if name not in usual}
    fields = {field.name: str(field.type) for field in dataclasses.fields(config_class)}
    values = {name: SMALL[name] for name in fields.keys() & SMALL.keys() if usual.get(name) or name == "head_dim"}
    values |= _layers(usual, {name for name in fields if name not in changes})
    values |= {name: value for name, value in DECODER.items() if name in fields and config_class.model_type in TEXT}
    values |= {name: value for name, value in IDS.items() if name in fields}
    if "bos_token_id" in fields and "None" in fields["bos_token_id"]:
        values["bos_token_id"] = None
    if (rope := usual.get("rope_parameters")) and "mrope_section" in rope:
        dims = int(values.get("head_dim", HEAD_DIM) * rope.get("partial_rotary_factor", 1.0)) // 2
        values["rope_parameters"] = rope | {"mrope_section": [dims - 2 * (dims // 3), dims // 3, dims // 3]}
    if "kv_lora_rank" in fields and "num_key_value_heads" in values:  # all heads share one latent
        values["num_key_value_heads"] = HEADS
        values |= {"head_dim": SMALL["qk_rope_head_dim"]} if values.get("qk_rope_head_dim") else {}
    nested = {name: vars_ for name, vars_ in changes.items() if name in config_class.sub_configs and vars_ is not None}
    for name in config_class.sub_configs:
        sub, own = usual.get(name), dict(nested.get(name, {}))
        kind = CONFIG_MAPPING[own.pop("model_type")] if "model_type" in own else type(sub)
        if issubclass(kind, PreTrainedConfig):
            values[name] = small_config(kind, {**CHANGES.get(kind.model_type, {}), **own})
    return config_class(**{**values, **{name: value for name, value in changes.items() if name not in nested}})


def _layers(usual: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    """Of the lists with an entry for each layer, the entries of as many layers as show every kind, in order."""
    count = usual.get("num_hidden_layers")
    if not isinstance(count, int) or count <= MOST_LAYERS:
        return {}
    lists = {k: v for k, v in usual.items() if k in fields and isinstance(v, list | tuple) and len(v) == count}
    if not lists:
        return {}
    rows = list(map(str, zip(*lists.values(), strict=True)))
    kept = sorted(rows.index(row) for row in {*rows})
    if len(kept) > MOST_LAYERS:
        kept = [*range(MOST_LAYERS - 1), count - 1]
    kept += range(LAYERS - len(kept))
    return {name: type(value)(value[i] for i in kept) for name, value in lists.items()} | {
        "num_hidden_layers": len(kept)
    }


def small_model(name: str, seed: int = 0) -> CausalModel:
    """The architecture or variant `name` in float32 with random weights that speak: its log-probabilities differ by
    more than half a nat from token to token, and no bias, sink or decay is at the zero or one where it starts.
    """
    kind, changes = VARIANTS.get(name, (name, {}))
    config = small_config(CONFIG_MAPPING[kind], {**CHANGES.get(kind, {}), **changes})
    torch.manual_seed(seed)
    model = getattr(transformers, class_of(name))(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*model.parameters(), *_empty_buffers(model)):
            _draw(tensor, generator)
        for path, weight in model.named_parameters():  # else softplus is 0, and positions tie, in Doge's mask
            weight.mul_(0.2 if path.endswith("self_attn.dt_proj.weight") else 1.0)
    return model


def small_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each visible character: a vocabulary that every class of tokenizer in transformers can hold."""
    characters = [chr(code) for code in range(ord("!"), ord("!") + VOCABULARY - len(SPECIAL))]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *characters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIAL[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pad, unknown, end, _ = SPECIAL
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, unk_token=unknown, eos_token=end)


def _empty_buffers(model: CausalModel) -> list[torch.Tensor]:
    """What a checkpoint holds besides weights and starts at 0, such as the bias of a router."""
    saved = {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    return [buffer for buffer in saved.values() if buffer.is_floating_point() and not buffer.any()]


def _draw(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Matrices so large that a layer changes what it is given; vectors some way off where they start."""
    noise = torch.randn(tensor.shape, generator=generator)
    if tensor.ndim >= 2 and tensor.std() > 0:
        tensor.copy_(noise * SPREAD / tensor[0].numel() ** 0.5)
    else:
        tensor.add_(0.2 * noise)
