"""transformers' models and tokenizers: loaded from a hub or a folder, made with random weights, saved."""

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE
from huggingface_hub.errors import HFValidationError
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from minrl.dataflow import CausalModel, UserError, require
from minrl.models.attention import ATTENTION, packed_attention
from minrl.models.chat import CHAT_TEMPLATE
from minrl.models.compiled import COMPILED, compiled_attention
from minrl.models.experts import EXPERTS, cast_experts
from minrl.models.gguf import GgufFile, read_gguf, refuse_what_is_lost, restore_llama3_rope, source_of
from minrl.models.modules import LARGEST_CHANGE, probe
from minrl.models.structure import decoder_of, head_of
from minrl.utils.text import first_line

ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)
ALL_ATTENTION_FUNCTIONS.register(COMPILED, compiled_attention)
ALL_EXPERTS_FUNCTIONS.register(EXPERTS, cast_experts)
logging.disable_progress_bar()
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")  # which would ask others to convert pickled weights

HUB_TIMEOUT_S = 5.0

HEAD_DIM = 32
"""Head dimension of the models made here: small, and supported by vLLM on a CPU."""

PAD, UNKNOWN, END, USER, ASSISTANT = "<pad>", "<unk>", "<end>", "<user>", "<assistant>"


def load_model(path: str) -> tuple[CausalModel, PreTrainedTokenizerBase]:
    """The model in float32, of a multimodal one its text part as a model of text, and its tokenizer, at a hub name or
    in a local folder or GGUF file. Refused if a weight is missing or not finite.

    If the hub cannot be reached only the cache is read, at once instead of after minutes of retries.
    """
    cached_only = not Path(path).exists() and not hub_reachable()
    file = read_gguf(path) if Path(path).is_file() else None
    try:
        tokenizer, (model, found) = _from_pretrained(path, file, cached_only)
    except UserError:
        raise
    except Exception as error:  # transformers raises whatever a damaged file leads it to
        raise UserError(_not_found(path, error, cached_only)) from error
    lacking = sorted({*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])})
    require(not lacking, f"{path} lacks {len(lacking)} weights of its own shape, {next(iter(lacking), '')} among them")
    if file is not None:
        refuse_what_is_lost(file, model)
    broken = next((name for name, weight in model.named_parameters() if not weight.sum().isfinite()), None)
    require(broken is None, f"{path} holds {broken} with weights that are not finite: choose an earlier checkpoint")
    require(
        bool(tokenizer("text", add_special_tokens=False)["input_ids"]),
        f"{path} is not a model folder that transformers can load (it has no tokenizer): put tokenizer.json there",
    )
    model = text_part(path, model)
    make_savable(model)
    return model.requires_grad_(True), tokenizer


def _from_pretrained(
    path: str, file: GgufFile | None, cached_only: bool
) -> tuple[PreTrainedTokenizerBase, tuple[CausalModel, dict[str, Any]]]:
    """The tokenizer, and the model with what transformers says of its loading."""
    options: dict[str, Any] = {"local_files_only": cached_only, "trust_remote_code": False}
    with source_of(path) as source:
        config = read_config(path, source, cached_only)
        tokenizer = AutoTokenizer.from_pretrained(**source, **options)
        if file is not None:
            restore_llama3_rope(file, config)
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        loaded = auto_class(path, config).from_pretrained(
            **source,
            **options,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused in one line
        )
    return tokenizer, loaded


def read_config(path: str, source: Mapping[str, str], cached_only: bool) -> Any:  # noqa: ANN401 - of transformers
    """The config of the model at a hub name or a local path. No code of the model's own is run; the attention is left
    to the class.
    """
    config = AutoConfig.from_pretrained(**source, local_files_only=cached_only, trust_remote_code=False)
    config._attn_implementation = None
    method = (getattr(config, "quantization_config", None) or {}).get("quant_method")
    require(method is None, f"{path} is quantized ({method}) and cannot be trained: give the model it was made of")
    return config


def auto_class(path: str, config: Any) -> Any:  # noqa: ANN401 - of transformers
    """The auto class for a causal language model with this config."""
    for auto in (AutoModelForCausalLM, AutoModelForMultimodalLM):
        if type(config) in auto._model_mapping and not config.is_encoder_decoder:
            return auto
    raise UserError(
        f"{path} holds a model of type {config.model_type!r}, which is no causal language model: choose one that "
        "continues a text"
    )


def text_part(path: str, model: CausalModel) -> CausalModel:
    """The model; of a multimodal one its decoder and head as a model of text alone."""
    config = model.config.get_text_config(decoder=True)
    require(model.can_generate(), f"{path} holds a {type(model).__name__}, which generates no text")
    if type(config) is type(model.config):
        return model
    refused = f"{path} holds a {type(model).__name__}, whose text part is no model of its own: choose a model of text"
    require(type(config) in AutoModelForCausalLM._model_mapping, refused)
    head = head_of(model)
    assert head is not None, "loading refuses a model without one"
    config.tie_word_embeddings = head.weight is model.get_input_embeddings().weight
    with torch.device("meta"):
        text = AutoModelForCausalLM.from_config(config)
    place = next(path for path, module in text.named_modules() if module is decoder_of(text))
    text.set_submodule(place, decoder_of(model))
    text.set_output_embeddings(head)
    text.generation_config = model.generation_config
    try:
        same = torch.allclose(probe(text.eval()), probe(model), atol=LARGEST_CHANGE, rtol=0)
    except Exception:  # a model that takes no text alone raises whatever it likes
        same = False
    require(same, refused)
    return text


def count_weights(path: str) -> int:
    """The number of weights of the model at a hub name or a local path, from its config or the header of its file."""
    if Path(path).is_file():
        return read_gguf(path).num_weights
    cached_only = Path(path).exists() or bool(cached_commit(path)) or not hub_reachable()
    config = read_config(path, {"pretrained_model_name_or_path": path}, cached_only)
    with torch.device("meta"):
        return auto_class(path, config).from_config(config).num_parameters()


def make_savable(model: CausalModel) -> None:
    """Replace a generation config that transformers refuses to save, such as the published one of Llama 2."""
    generation = model.generation_config
    try:
        generation.validate(strict=True)
    except ValueError:  # mostly settings of sampling beside do_sample: false
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        model.generation_config = type(generation)(**{name: getattr(generation, name) for name in names})


def hub_reachable() -> bool:
    """Whether the hub answers within a few seconds. Behind a proxy it is assumed to."""
    if HF_HUB_OFFLINE or getproxies():
        return not HF_HUB_OFFLINE
    address = urlsplit(ENDPOINT)
    try:
        socket.create_connection((address.hostname, address.port or 443), timeout=HUB_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def cached_commit(name: str) -> str:
    """The commit of a hub's model in the cache; empty if it is not cached."""
    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # no hub's name: loading it will say so
        return ""
    return Path(found).parent.name if isinstance(found, str) else ""


def made_here(folder: Path) -> bool:
    """Whether a folder holds a base model that MinRL made, or a model trained from one, by its chat template."""
    template = folder / "chat_template.jinja"
    return template.is_file() and template.read_text(encoding="utf-8") == CHAT_TEMPLATE


def save_model(
    model: CausalModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Save in Hugging Face's format, which any transformers program can load. `weights` replace the model's own."""
    model.save_pretrained(folder, state_dict=weights)
    # transformers writes the precision of the first weight, a frozen one perhaps
    model.config.dtype = decoder_of(model).dtype if weights is None else torch.float32
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token for each word; text is split at white space."""
    vocabulary = [PAD, UNKNOWN, END, USER, ASSISTANT, *dict.fromkeys(words)]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def small_qwen3(
    tokenizer: PreTrainedTokenizerBase, hidden_size: int, layers: int, heads: int, seed: int
) -> CausalModel:
    """A Qwen3-shaped model with random weights and tied embeddings."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=3 * hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            head_dim=HEAD_DIM,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


def _not_found(path: str, error: Exception, cached_only: bool) -> str:
    """One line for a model that cannot be loaded, with what to do."""
    reason = first_line(error)
    if "safetensors" in reason:
        reason = "it has no safetensors: a pickle may run code as it is read"
    if Path(path).exists():
        kind = "model folder" if Path(path).is_dir() else "GGUF file"
        return f"{path} is not a {kind} that transformers can load ({reason})"
    if cached_only:
        why = "offline mode is on (HF_HUB_OFFLINE)" if HF_HUB_OFFLINE else f"the hub {ENDPOINT} cannot be reached"
        return (
            f"cannot load model {path!r}: no such folder here, it is not cached, and {why}; give a local folder "
            "(training without --model-id makes a small base model of its own)"
        )
    return f"cannot load model {path!r}: the hub did not give it ({reason}); check the name, or give a local folder"
