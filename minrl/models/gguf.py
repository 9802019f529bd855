"""GGUF files, the format of llama.cpp and ollama, which transformers dequantizes as it loads them.

transformers reads the tensors and settings that it knows and ignores the rest. A file with anything else that changes
what the model computes is refused.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from minrl.dataflow import CausalModel, UserError, require
from minrl.utils.text import first_line

SETTINGS = {
    "rope.freq_base": "rope_theta",
    "rope.scaling.factor": "factor",
    "attention.sliding_window": "sliding_window",
    "attention.layer_norm_epsilon": "eps",
    "attention.layer_norm_rms_epsilon": "eps",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "logit_scale": "logit_scale",
    "expert_used_count": "num_experts_per_tok",
    "expert_weights_scale": "routed_scaling_factor",
}
"""Settings that no tensor's shape shows, behind the name of the architecture, and part of the name of transformers'."""

LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""RoPE of Llama 3.1 and later. Their GGUF files hold the factors that follow from these as a tensor."""

FREQUENCIES = "rope_freqs.weight"

GIVE_SAFETENSORS = "transformers does not read this kind of model from GGUF: give its safetensors"


@dataclass(frozen=True)
class GgufFile:
    """What a GGUF file holds: its settings, the size of its vocabulary, and the data and number of weights of each
    tensor.
    """

    path: str
    metadata: Mapping[str, Any]
    vocabulary: int
    tensors: Mapping[str, tuple[np.ndarray, int]]

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture."""
        return str(self.metadata["general.architecture"])


@contextmanager
def source_of(path: str) -> Iterator[dict[str, str]]:
    """The arguments of `from_pretrained` that name a model. A GGUF file gets a folder of its own: transformers would
    read the tokenizer or the adapters beside it, and ollama's files have no suffix.
    """
    if not Path(path).is_file():
        yield {"pretrained_model_name_or_path": path}
        return
    with TemporaryDirectory(prefix="minrl-gguf-") as folder:
        (Path(folder) / "model.gguf").symlink_to(Path(path).resolve())
        yield {"pretrained_model_name_or_path": folder, "gguf_file": "model.gguf"}


def read_gguf(path: str) -> GgufFile:
    """The header of a GGUF file. Raises `UserError` for a file that holds no whole language model."""
    with Path(path).open("rb") as file:
        require(
            file.read(4) == b"GGUF",
            f"{path} is not a GGUF file: give a .gguf file, a folder in transformers' format or a hub name",
        )
    require(
        all(find_spec(name) is not None for name in ("gguf", "transformers.integrations.gguf")),
        f"{path} needs the package gguf and transformers 5.18 or later: run `make setup EXTRA=gguf`, or "
        "`pip install gguf`",
    )
    try:
        found = _parse(path)
    except Exception as error:  # whatever damaged bytes lead to
        raise UserError(f"{path} is damaged or incomplete ({first_line(error)}): download it again") from error
    parts = found.metadata.get("split.count", 1)
    require(parts <= 1, f"{path} is one of {parts} parts: join them with llama-gguf-split --merge")
    return found


def _parse(path: str) -> GgufFile:
    from gguf import GGUFReader
    from transformers import modeling_gguf_pytorch_utils as loader

    loader.tqdm = lambda tensors, **_: tensors  # a bar in between would tear MinRL's own
    reader = GGUFReader(path)
    scalars = {name: field.contents() for name, field in reader.fields.items() if len(field.types) == 1}
    tensors = {tensor.name: (tensor.data, int(tensor.n_elements)) for tensor in reader.tensors}
    return GgufFile(path, scalars, len(reader.fields["tokenizer.ggml.tokens"].data), tensors)


def settle_config(file: GgufFile, config: Any) -> None:  # noqa: ANN401 - of transformers
    """Give the config the scaled RoPE of Llama 3.1 and later, where the file's factors are exactly these."""
    vars(config).pop("_model_name_or_path", None)  # the title of the file, which would be saved
    if FREQUENCIES not in file.tensors:
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    factors = torch.from_numpy(file.tensors[FREQUENCIES][0].copy()).view(torch.float32)
    theta = config.rope_parameters["rope_theta"]
    config.rope_parameters = {"rope_type": "llama3", "rope_theta": theta, "factor": float(factors.max()), **LLAMA_3}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = theta ** -(torch.arange(len(factors)) / len(factors))
    require(
        len(scaled) == len(factors) and torch.allclose(plain / scaled, factors, rtol=1e-4),
        f"{file.path} scales RoPE by {FREQUENCIES} in another way than Llama 3: {GIVE_SAFETENSORS}",
    )


def without_added(tokenizer: Any, file: GgufFile) -> None:  # noqa: ANN401 - of transformers
    """Take out the tokens that transformers adds to every tokenizer of a kind, such as <|endoftext|>: the model has no
    row for them.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < file.vocabulary]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(content))


def refuse_what_is_lost(file: GgufFile, model: CausalModel) -> None:
    """Refuse a file with weights or settings that transformers left out of the model."""
    own = {id(weight): weight.numel() for weight in model.state_dict(keep_vars=True).values()}
    held = sum(count for name, (_, count) in file.tensors.items() if name != FREQUENCIES)
    require(
        held == sum(own.values()),
        f"{file.path} holds {held} weights, and transformers makes a {type(model).__name__} of {sum(own.values())}: "
        f"{GIVE_SAFETENSORS}",
    )
    for setting, name in SETTINGS.items():
        value = file.metadata.get(f"{file.architecture}.{setting}", 0)
        found = _numbers(model.config.to_dict(), name)
        require(
            not isinstance(value, int | float)
            or not value
            or any(math.isclose(value, one, rel_tol=1e-6) for one in found),
            f"{file.path} has {file.architecture}.{setting} {value}, which is lost: {GIVE_SAFETENSORS}",
        )


def _numbers(config: Mapping[str, Any], name: str) -> Iterator[float]:
    """The numbers of a config, nested ones too, whose names have this part."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, name)
        elif isinstance(value, int | float) and name in key:
            yield value
