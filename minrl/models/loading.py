"""transformers' models and tokenizers: loaded from a hub or a folder, made with random weights, saved."""

import json
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
from loguru import logger
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from minrl.dataflow import CausalModel, UserError, require
from minrl.models.attention import ATTENTION, packed_attention
from minrl.models.chat import CHAT_TEMPLATE
from minrl.models.gguf import (
    GIVE_SAFETENSORS,
    GgufFile,
    read_gguf,
    refuse_what_is_lost,
    settle_config,
    source_of,
    without_added,
)
from minrl.models.modules import exact_routers
from minrl.models.source import PICKLE, auto_class, processor_files, read_config, settle_dequantized
from minrl.models.text import decoder_of, frozen_precision, is_multimodal, keep_precision, train_text
from minrl.utils.text import LFS_POINTER, first_line

ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)
logging.disable_progress_bar()
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")  # which would ask others to convert pickled weights

HUB_TIMEOUT_S = 5.0

HEAD_DIM = 32
"""Head dimension of the models made here: small, and supported by vLLM on a CPU."""

PAD, UNKNOWN, END, USER, ASSISTANT = "<pad>", "<unk>", "<end>", "<user>", "<assistant>"


def load_model(path: str) -> tuple[CausalModel, PreTrainedTokenizerBase]:
    """The model, with a text part in float32, and its tokenizer, at a hub name or in a local folder or GGUF file. What
    a multimodal model has beside its text part is frozen, in the precision of the checkpoint.

    If the hub cannot be reached only the cache is read, at once instead of after minutes of retries.
    """
    cached_only = not Path(path).exists() and not hub_reachable()
    gguf = read_gguf(path) if Path(path).is_file() else None
    try:
        tokenizer, frozen, (model, found) = _from_pretrained(path, gguf, cached_only)
    except UserError:
        raise
    except Exception as error:  # transformers raises whatever a damaged file leads it to
        raise UserError(_not_found(path, error, cached_only)) from error
    lacking = sorted({*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])})
    if lacking:  # transformers fills them with random numbers
        incomplete = "the folder is incomplete, or its config.json is another model's"
        raise UserError(
            f"{path} lacks {len(lacking)} weights of its own shape, {lacking[0]} among them: "
            f"{incomplete if gguf is None else GIVE_SAFETENSORS}"
        )
    if gguf is not None:
        refuse_what_is_lost(gguf, model)
        without_added(tokenizer, gguf)
    broken = next((name for name, weight in model.named_parameters() if not weight.sum().isfinite()), None)
    require(broken is None, f"{path} holds {broken} with weights that are not finite: choose an earlier checkpoint")
    require(
        bool(tokenizer("text", add_special_tokens=False)["input_ids"]),
        f"{path} is not a model folder that transformers can load (it has no tokenizer): put tokenizer.json there",
    )
    refuse_tokens_without_a_row(path, model, tokenizer)
    _settle_generation(path, model)
    settle_dequantized(model)
    train_text(model)
    keep_precision(model, frozen)
    exact_routers(model, model.config.get_text_config(decoder=True))
    model.processor_files = processor_files(path, cached_only) if is_multimodal(model) else {}
    return model, tokenizer


def _from_pretrained(
    path: str, gguf: GgufFile | None, cached_only: bool
) -> tuple[PreTrainedTokenizerBase, torch.dtype, Any]:
    """The tokenizer, the precision of what is frozen, and the model with what transformers says of its loading."""
    quantized = {} if gguf is None else {"quantization_config": transformers.GgufConfig(dequantize=True)}
    with source_of(path) as source:
        config = read_config(path, source, cached_only)
        if gguf is not None:
            settle_config(gguf, config)
        frozen = frozen_precision(config)  # loading writes its own into the config
        auto = auto_class(path, config)
        tokenizer = AutoTokenizer.from_pretrained(**source, local_files_only=cached_only, trust_remote_code=False)
        loaded: Any = auto.from_pretrained(
            **source,
            **quantized,
            config=config,
            dtype=torch.float32,
            local_files_only=cached_only,
            trust_remote_code=False,
            use_safetensors=True,
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused in one line
        )
    return tokenizer, frozen, loaded


def count_weights(path: str) -> int:
    """The number of weights of the model at a hub name or a local path, from its config."""
    cached_only = Path(path).exists() or bool(cached_commit(path)) or not hub_reachable()
    with source_of(path) as source:
        config = read_config(path, source, cached_only)
    with torch.device("meta"):
        return auto_class(path, config).from_config(config).num_parameters()


def _settle_generation(path: str, model: CausalModel) -> None:
    """Make the generation config one that can be saved: some that people publish, such as Llama 2's, cannot. Ends that
    are no tokens of the model are left out, which is said; what is no number is refused.
    """
    generation, rows = model.generation_config, model.get_input_embeddings().weight.shape[0]
    said = generation.eos_token_id
    ends = [end for end in (said if isinstance(said, list) else [said]) if end is not None]
    for end in ends:
        require(
            isinstance(end, int),
            f"{path}: eos_token_id in generation_config.json must be a token from 0 to {rows - 1}, or a list of them; "
            f"got {end!r}",
        )
    tokens = [end for end in ends if 0 <= end < rows]
    if tokens != ends:  # often what a class of configs has by default
        logger.warning(f"{path}: eos_token_id {said} is no token of the model's {rows}: no completion ends with it")
        generation.eos_token_id = tokens or None
    try:
        generation.validate(strict=True)
    except ValueError:  # mostly settings of sampling beside do_sample: false
        model.generation_config = type(generation)(
            **{name: getattr(generation, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        )


def refuse_tokens_without_a_row(path: str, model: CausalModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer with ids beyond the model's embedding, which the first text with one of them would show.

    Placeholders of images and sounds, which Gemma 3's tokenizer keeps for a model of text alone, stand in no text: they
    are the special tokens with a name that transformers does not give every tokenizer.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    every = PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES
    placeholders = {token for name, token in tokenizer.special_tokens_map.items() if name not in every}
    beyond = {id: token for token, id in tokenizer.get_vocab().items() if id >= rows and token not in placeholders}
    if beyond:
        raise UserError(
            f"{path}: the tokenizer has {len(beyond)} tokens that the model's embedding of {rows} rows lacks, "
            f"{beyond[max(beyond)]!r} with id {max(beyond)} among them: put the model's own tokenizer there, or, where "
            "tokens were added, save the model again after model.resize_token_embeddings(len(tokenizer))"
        )


def hub_reachable() -> bool:
    """Whether the hub answers within a few seconds. Behind a proxy it is assumed to."""
    if HF_HUB_OFFLINE:
        return False
    if getproxies():
        return True
    address = urlsplit(ENDPOINT)
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname, port), timeout=HUB_TIMEOUT_S).close()
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
    try:
        template = folder / "chat_template.jinja"
        if template.exists():
            return template.read_text(encoding="utf-8") == CHAT_TEMPLATE
        stored = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(stored, dict) and stored.get("chat_template") == CHAT_TEMPLATE


def save_model(
    model: CausalModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Save in Hugging Face's format, which any transformers program can load, with the processor's files of the folder
    that the model came from. `weights` replace the model's own.
    """
    model.save_pretrained(folder, state_dict=weights)
    # transformers writes the precision of the first weight, a frozen one perhaps
    model.config.dtype = decoder_of(model).dtype if weights is None else torch.float32
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_processor(model, folder)


def save_processor(model: CausalModel, folder: Path) -> None:
    """Save the processor's files of the folder that a multimodal model came from."""
    for name, content in getattr(model, "processor_files", {}).items():
        (folder / name).write_bytes(content)


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
    if isinstance(error, FileNotFoundError):  # of a shard that the index names
        reason += "; the download is incomplete: repeat it"
    elif "safetensors" in reason:
        reason = f"it has no safetensors; what else it has is {PICKLE}"
    if "backend tokenizer" in reason:
        reason = "it has no tokenizer: put tokenizer.json there"
    if Path(path).exists():
        files = [file for file in Path(path).glob("*.*") if file.is_file() and file.stat().st_size < 1000]
        if pointers := [file.name for file in files if file.read_bytes().startswith(LFS_POINTER)]:
            reason = f"{pointers[0]} is a pointer of Git LFS: fetch the file by `git lfs pull`"
        kind, found = "model folder" if Path(path).is_dir() else "GGUF file", sorted(Path(path).glob("*.gguf"))
        more = f": give the GGUF file itself, {found[0]}" if found else ""
        return f"{path} is not a {kind} that transformers can load ({reason}){more}"
    if cached_only:
        why = "offline mode is on (HF_HUB_OFFLINE)" if HF_HUB_OFFLINE else f"the hub {ENDPOINT} cannot be reached"
        return (
            f"cannot load model {path!r}: no such folder here, it is not cached, and {why}; give a local folder "
            "(training without --model-id makes a small base model of its own)"
        )
    if "config.json" in reason:
        reason += "; of a repository of GGUF files download one and give that"
    return f"cannot load model {path!r}: the hub did not give it ({reason}); check the name, or give a local folder"
