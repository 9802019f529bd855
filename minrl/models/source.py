"""What a model's folder holds: the class that loads it, and the files of its processor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM
from transformers.utils import cached_file

from minrl.dataflow import require

AUTO_CLASSES = (AutoModelForCausalLM, AutoModelForMultimodalLM)

PROCESSOR_FILES = (
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "chat_template.json",
)
"""What a multimodal model's processor reads beside its tokenizer."""

PICKLE = "a pickle, which may run code as it is read: save the weights as safetensors, as model.save_pretrained does"

DEQUANTIZED = ("mxfp4", "fp8")
"""Quantizations that transformers undoes as it loads a checkpoint."""


def read_config(path: str, source: Mapping[str, str], cached_only: bool) -> Any:  # noqa: ANN401 - of transformers
    """The config of the model at a hub name or a local path, which is read from `source`. No code of the model's own is
    run.

    The attention is left to the class: sdpa where it has it. Quantized weights are loaded as what they stand for.
    """
    config = AutoConfig.from_pretrained(**source, local_files_only=cached_only, trust_remote_code=False)
    config._attn_implementation = None
    quantization = getattr(config, "quantization_config", None) or {}
    method = quantization.get("quant_method")
    if method in DEQUANTIZED:
        config.quantization_config = {**quantization, "dequantize": True}
    else:
        require(
            not quantization, f"{path} is quantized ({method}) and cannot be trained: give the model it was made of"
        )
    return config


def auto_class(path: str, config: Any) -> Any:  # noqa: ANN401 - of transformers
    """The auto class whose model has the language model's head, and whatever else the folder holds.

    A nested config names a multimodal class and often one of text alone: the folder's `architectures` decide, or the
    multimodal class. Raises `UserError` if no class generates text from left to right.
    """
    said = (config.architectures or [""])[0]
    classes: dict[Any, Any] = {auto: auto._model_mapping.get(type(config), None) for auto in AUTO_CLASSES}
    found = {auto: one for auto, one in classes.items() if one is not None}
    kind = f"{path} holds a {said or config.model_type}"
    headless = "which has no causal language model head: choose one that has"
    saved_by = getattr(transformers, said, None) if said else None
    require(
        not config.is_encoder_decoder and not config.get_text_config(decoder=True).is_encoder_decoder,
        f"{kind}, an encoder with a decoder: choose a model that only continues a text",
    )
    require(bool(found), f"{path} holds a model of type {config.model_type!r}, {headless}")
    chosen = next((auto for auto, one in found.items() if one.__name__ == said), list(found)[-1])
    able = found[chosen].can_generate() and (saved_by is None or saved_by.can_generate())
    require(able, f"{kind}, {headless}")
    return chosen


def settle_dequantized(model: Any) -> None:  # noqa: ANN401 - of transformers
    """Bring experts that were MXFP4 from bfloat16 to float32, and forget the names of their blocks, under which
    transformers would save them and not find them again.
    """
    conversions = getattr(model, "_weight_conversions", None) or []
    if any(pattern.endswith("_blocks") for conversion in conversions for pattern in conversion.source_patterns):
        model._weight_conversions = None
        for weight in model.parameters():
            weight.data = weight.data.float()


def processor_files(path: str, cached_only: bool) -> dict[str, bytes]:
    """The contents of the processor's files, by name."""
    found = {
        name: cached_file(path, name, local_files_only=cached_only, _raise_exceptions_for_missing_entries=False)
        for name in PROCESSOR_FILES
    }
    return {name: Path(file).read_bytes() for name, file in found.items() if file is not None}
