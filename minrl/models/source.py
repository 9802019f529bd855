"""What a model's folder holds: the class that loads it, the files of its processor, or why it cannot be loaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM
from transformers.utils import cached_file

from minrl.types import require

AUTO_CLASSES = (AutoModelForCausalLM, AutoModelForMultimodalLM)

PROCESSOR_FILES = (
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "chat_template.json",
)
"""What a multimodal model's processor reads beside its tokenizer."""

TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "*.model", "tekken.json")
"""What a tokenizer is read from, by the kind of tokenizer."""

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
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


def pickled(folder: Path) -> str | None:
    """Why the weights in a folder are refused, if there are none but pickled ones."""
    files = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    return f"{files[0]} is {PICKLE}" if files and not any(folder.glob("*.safetensors")) else None


def why_not(folder: Path) -> str | None:
    """Why a folder is not one that can be loaded, where that shows; None elsewhere."""
    if not (folder / "config.json").exists():
        if found := sorted(folder.glob("*.gguf")):
            return f"it has no config.json: give the GGUF file itself, {found[0]}"
        return "it has no config.json"
    try:
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError:
        return "its config.json is not JSON"
    if not isinstance(stored, dict) or "model_type" not in stored:
        return "its config.json names no model_type"
    kind = stored["model_type"]
    if kind in transformers.CONFIG_MAPPING:
        known = any(file for pattern in TOKENIZER_FILES for file in folder.glob(pattern))
        return pickled(folder) if known else "it has no tokenizer: put tokenizer.json there"
    if stored.get("auto_map"):
        return f"its model type {kind!r} needs Python code from that folder, which is not run"
    return f"transformers {transformers.__version__} does not know its model type {kind!r}: a later version may"
