"""GGUF files, the format of llama.cpp and ollama, which transformers dequantizes as it loads them.

transformers reads the tensors and settings that it knows and ignores the rest. A file with anything else that changes
what the model computes is refused.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from minrl.dataflow import CausalModel, UserError, require
from minrl.utils.text import first_line

LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""RoPE of Llama 3.1 and later. Their GGUF files hold the factors that follow from these as a tensor."""

FREQUENCIES = "rope_freqs.weight"

GIVE_SAFETENSORS = "transformers does not read this kind of model from GGUF: give its safetensors"


@dataclass(frozen=True)
class GgufFile:
    """The header of a GGUF file: its settings, the shape of each tensor, and the factors of a scaled RoPE, if any."""

    path: str
    metadata: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    frequencies: np.ndarray | None

    @property
    def num_weights(self) -> int:
        """The number of weights in the file."""
        return sum(prod(shape) for name, shape in self.shapes.items() if name != FREQUENCIES)


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
    from transformers import modeling_gguf_pytorch_utils as loader
    from transformers.integrations.gguf.reader import GgufHeader, read_gguf_metadata

    loader.tqdm = lambda tensors, **_: tensors  # a bar in between would tear MinRL's own
    try:
        header, (metadata, _) = GgufHeader.from_file(path), read_gguf_metadata(path)
        end = max(header.data_start + one.offset + one.nbytes for one in header.tensors)
        require(end <= Path(path).stat().st_size, "it ends within its weights")
    except Exception as error:  # whatever damaged bytes lead to
        raise UserError(f"{path} is damaged or incomplete ({first_line(error)}): download it again") from error
    parts = metadata.get("split.count", 1)
    require(parts <= 1, f"{path} is one of {parts} parts: join them with llama-gguf-split --merge")
    shapes = {one.name: one.shape for one in header.tensors}
    starts = {one.name: header.data_start + one.offset for one in header.tensors}
    frequencies = None
    if FREQUENCIES in shapes:
        frequencies = np.fromfile(path, np.float32, prod(shapes[FREQUENCIES]), offset=starts[FREQUENCIES])
    return GgufFile(path, metadata, shapes, frequencies)


def restore_llama3_rope(file: GgufFile, config: Any) -> None:  # noqa: ANN401 - of transformers
    """Give the config the scaled RoPE of Llama 3.1 and later, where the file's factors are exactly these."""
    vars(config).pop("_model_name_or_path", None)  # the title of the file, which would be saved
    if file.frequencies is None:
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    factors = torch.from_numpy(file.frequencies)
    theta = config.rope_parameters["rope_theta"]
    config.rope_parameters = {"rope_type": "llama3", "rope_theta": theta, "factor": float(factors.max()), **LLAMA_3}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = theta ** -(torch.arange(len(factors)) / len(factors))
    require(
        len(scaled) == len(factors) and torch.allclose(plain / scaled, factors, rtol=1e-4),
        f"{file.path} scales RoPE by {FREQUENCIES} in another way than Llama 3: {GIVE_SAFETENSORS}",
    )


def refuse_what_is_lost(file: GgufFile, model: CausalModel) -> None:
    """Refuse a file with weights or a scaled RoPE that transformers left out of the model."""
    own = {id(weight): weight.numel() for weight in model.state_dict(keep_vars=True).values()}
    require(
        file.num_weights == sum(own.values()),
        f"{file.path} holds {file.num_weights} weights, and transformers makes a {type(model).__name__} of "
        f"{sum(own.values())}: {GIVE_SAFETENSORS}",
    )
    scaled = file.metadata.get(f"{file.metadata['general.architecture']}.rope.scaling.factor")
    require(not scaled, f"{file.path} scales RoPE by {scaled}, which is lost: {GIVE_SAFETENSORS}")
