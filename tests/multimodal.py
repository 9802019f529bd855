"""Small multimodal models with random weights, in folders as a hub has them: bfloat16."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import CONFIG_MAPPING, AutoModelForMultimodalLM, PreTrainedTokenizerFast

ROWS = 272
"""Rows of the embedding: a token for each byte, the special tokens, and a few that nothing says."""

TEXT = {"vocab_size": ROWS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
TEXT |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
TEXT |= {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGES = {"image_size": 28, "patch_size": 14}
QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32}
QWEN_VISION |= {"num_position_embeddings": 16}
QWEN = {"image_token_id": 260, "video_token_id": 261, "vision_start_token_id": 262, "vision_end_token_id": 263}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
HYBRID = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 2}
HYBRID |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
FAMILIES: dict[str, tuple[str, dict, dict, dict]] = {
    "gemma3": ("gemma3", WINDOW, VISION | IMAGES, {"mm_tokens_per_image": 1, "image_token_index": 260}),
    "qwen3_vl": ("qwen3_vl", ROPE, QWEN_VISION | {"deepstack_visual_indexes": [0]}, QWEN),
    "qwen3_5_moe": ("qwen3_5_moe", HYBRID | EXPERTS, QWEN_VISION, QWEN),
}
"""The model's type, and what is its own in the configs of its text part, of its vision tower and of the whole. The text
part of qwen3_vl has no class of a causal language model in transformers.
"""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, after <pad> and <end>."""
    words = ["<pad>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", chat_template=template
    )


def save_multimodal(name: str, folder: Path) -> Path:
    """The model of a family, as transformers itself saves it."""
    kind, text, vision, rest = FAMILIES[name]
    config = CONFIG_MAPPING[kind](text_config=TEXT | text, vision_config=vision, **rest)
    torch.manual_seed(0)
    model = AutoModelForMultimodalLM.from_config(config)
    for weight in model.parameters():
        size = 6 if weight.ndim > 1 else 1  # else all tokens would have nearly the same probability
        weight.data = (weight.data * size).bfloat16()
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
