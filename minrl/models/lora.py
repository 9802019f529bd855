"""LoRA (arXiv:2106.09685, equation 3): W + (alpha / r) B A for chosen weights W, of which only A and B are trained.

peft injects the adapters into the transformers model. Engines and checkpoints read plain weights as `MergedWeights`.
The base weights never change: with the adapters off the model is bit for bit the one the run started from, so that the
reference of a KL term needs no second copy.

There is no dropout: it would make the trained probabilities differ from the sampled ones.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from minrl.config import LoraConfig
from minrl.models.cpu import in_float32
from minrl.models.frozen import hold_frozen
from minrl.models.modules import speed_up
from minrl.models.sharding import whole
from minrl.models.source import PICKLE
from minrl.models.targets import find_targets, parameter_wrapper, refusals_in_one_line, refuse_tied
from minrl.models.text import foreign_modules, train_text
from minrl.types import CausalModel, UserError, require
from minrl.utils.files import read_record
from minrl.utils.text import first_line

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of adapters, as peft names them."""

SUBFOLDER = "adapter"
"""Where the adapters lie beside a merged model."""

ADAPTER = ".lora_"
"""Part of the names of adapters' weights."""

PREFIX = "base_model.model."
"""The prefix of weight names in peft's files."""

SAMPLES = 256
"""Elements of each base weight in the fingerprint."""


class Adapters:
    """The adapters inside a model, which alone are trained. `base` is where the model itself came from.

    A is drawn with the seed, B is 0: until the first update the policy is its base model.
    """

    def __init__(self, model: CausalModel, config: LoraConfig, base: str, seed: int) -> None:
        require_peft("--lora-rank")
        import peft

        self.model, self.config = model, config
        model.requires_grad_(False)
        self._peft_config = peft.LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            **find_targets(model, config.lora_target_modules, partial(_refused, model)),
            task_type="CAUSAL_LM",
            base_model_name_or_path=str(Path(base).resolve()) if Path(base).exists() else base,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            _inject(model, self._peft_config)
        hold_frozen(model, {module for _, module in foreign_modules(model)})
        speed_up(model)
        model.eval()
        self._base = fingerprint(model)  # now, while the model is whole; it does not change

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, the model is its base model."""
        layers = adapted_layers(self.model).values()
        for layer in layers:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Save those of a state dict in peft's format, with the fingerprint of the base weights."""
        import peft

        folder.mkdir(parents=True, exist_ok=True)
        own = peft.get_peft_model_state_dict(self.model, state_dict=dict(state), save_embedding_layers=False)
        tensors = {PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in own.items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", "base": self._base})
        self._peft_config.save_pretrained(str(folder))

    def load(self, folder: Path) -> None:
        """Load the adapters of a checkpoint of either kind. Refused if they were trained on other base weights."""
        path = (folder / SUBFOLDER if (folder / SUBFOLDER).exists() else folder) / WEIGHTS
        refuse_other_base(self.model, path, str(self._peft_config.base_model_name_or_path))
        _load_adapters(self.model, path)


class MergedWeights(Mapping[str, Tensor]):
    """A model's weights under the names they have without adapters. Each is merged when it is read, so that there is
    never a second copy of the model.
    """

    def __init__(self, model: CausalModel, weights: Mapping[str, Tensor]) -> None:
        layers = adapted_layers(model)
        self.adapted = {
            f"{_base_name(path)}.{getattr(layer, 'parameter_name', 'weight')}": layer for path, layer in layers.items()
        }
        self.bases = {_base_name(name): w for name, w in weights.items() if not _of_adapter(name, layers)}

    def __getitem__(self, name: str) -> Tensor:
        """The weight that the model computes with; a sharded one is gathered, by all processes together."""
        return whole(self.part(name))

    def part(self, name: str) -> Tensor:
        """The weight that the model computes with, sharded where the model is."""
        return merged_weight(self.adapted[name]) if name in self.adapted else self.bases[name]

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of the weights."""
        return iter(self.bases)

    def __len__(self) -> int:
        """The number of weights without those of adapters."""
        return len(self.bases)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a weight; nothing is merged."""
        return name in self.bases


def merged_weight(layer: CausalModel) -> Tensor:
    """The weight that a layer computes with: its own, or W + (alpha / r) B A, in float32."""
    weight = _base_weight(layer)
    if not hasattr(layer, "get_delta_weight") or layer.disable_adapters:
        return weight
    with torch.autocast(weight.device.type, enabled=False):
        return in_float32(weight) + sum(_delta(layer, name) for name in layer.active_adapters)


def merged_parameter(module: CausalModel, name: str) -> Tensor:
    """The weight that experts or a router compute with."""
    while getattr(module, "parameter_name", name) != name:
        module = module.base_layer
    return merged_weight(module) if hasattr(module, "parameter_name") else getattr(module, name)


def without_adapters(module: CausalModel) -> CausalModel:
    """The module inside of its adapters, or itself."""
    return module.get_base_layer() if hasattr(module, "get_base_layer") else module


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers that have an adapter, by their path in the model. Those of the weights of experts are nested."""
    return {path: module for path, module in model.named_modules() if hasattr(module, "get_delta_weight")}


def base_of(path: str) -> str | None:
    """The base model of the adapters in a local folder; None if it holds none, or a whole model."""
    file = Path(path) / CONFIG
    if not file.exists():
        return None
    base = read_record(file).get("base_model_name_or_path")
    if not isinstance(base, str):
        raise UserError(f"{file} names no base model: write its name or folder there as `base_model_name_or_path`")
    return base


def refuse_other_base(model: CausalModel, path: Path, base: str) -> None:
    """Refuse a file of adapters whose fingerprint is not that of the model, which came from `base`. Files that were not
    written here have none.
    """
    with safe_open(path, "pt") as file:
        expected = (file.metadata() or {}).get("base")
    if expected not in (None, fingerprint(model)):
        raise UserError(
            f"the adapters in {path.parent} were trained on other weights than those of {base}: put the former back"
        )


@torch.no_grad()
def fold_in(model: CausalModel, folder: Path, base: str) -> None:
    """Merge the folder's adapters into the model, which came from `base` and stays a plain one. Refused if they were
    trained on other weights.
    """
    import peft

    whole = (folder / WEIGHTS).exists() or not (folder / "adapter_model.bin").exists()
    require(whole, f"the adapters in {folder} cannot be loaded: adapter_model.bin is {PICKLE}")
    try:
        refuse_other_base(model, folder / WEIGHTS, base)
        _inject(model, peft.PeftConfig.from_pretrained(str(folder)))
        _load_adapters(model, folder / WEIGHTS)
    except UserError:
        raise
    except Exception as error:  # peft and safetensors raise whatever a damaged file leads them to
        what = f"the adapters in {folder} cannot be loaded: {CONFIG} or {WEIGHTS}"
        raise UserError(f"{what}: {first_line(error)}") from error
    layers = adapted_layers(model)
    refuse_tied(model, list(layers))
    for layer in layers.values():
        _base_weight(layer).data = merged_weight(layer)
    for path, layer in layers.items():
        if not path.endswith(".base_layer"):
            model.set_submodule(path, layer.get_base_layer())
    del model.peft_config
    train_text(model)


def require_peft(what: str) -> None:
    """Raise `UserError` if peft is not installed; `what` needs it."""
    if find_spec("peft") is None:
        raise UserError(f"{what} needs peft, which is not installed: run `make setup EXTRA=lora`")


def fingerprint(model: CausalModel) -> str:
    """A hash of a sample of the base weights, which identifies the model."""
    digest = hashlib.sha256()
    for name, weight in sorted(MergedWeights(model, dict(model.named_parameters())).bases.items()):
        sample = weight.detach().flatten()[:: max(1, weight.numel() // SAMPLES)].float().cpu().contiguous()
        digest.update(json.dumps([name, list(weight.shape)]).encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _load_adapters(model: CausalModel, path: Path) -> None:
    import peft

    result: Any = peft.set_peft_model_state_dict(model, load_file(path))
    if result.unexpected_keys:
        raise UserError(f"{path} holds adapters for {result.unexpected_keys[0]}, which the model lacks: give its own")


def _inject(model: CausalModel, config: Any) -> None:  # noqa: ANN401 - of peft, which is optional
    """Put adapters in float32 into the model."""
    import peft

    with warnings.catch_warnings(), refusals_in_one_line():
        warnings.simplefilter("ignore")  # peft sets fan_in_fan_out for GPT-2 by itself, and says so
        peft.inject_adapter_in_model(config, model)
    config.target_modules = config.target_modules and sorted(config.target_modules)  # a set's order is random
    for layer in adapted_layers(model).values():
        for weight in (weight for name, weight in layer.named_parameters() if name.startswith("lora_")):
            weight.data = weight.data.float()
        if hasattr(layer, "parameter_name"):
            layer.__class__ = _parameter_wrapper()


@cache
def _parameter_wrapper() -> type:
    from peft.tuners.lora import ParamWrapper

    return parameter_wrapper(ParamWrapper, merged_weight)


def _base_weight(layer: CausalModel) -> Tensor:
    return getattr(layer.get_base_layer(), layer.parameter_name) if hasattr(layer, "parameter_name") else layer.weight


def _delta(layer: CausalModel, adapter: str) -> Tensor:
    """(alpha / r) B A. peft's own rounds it to the precision of a weight that is no layer's."""
    if not hasattr(layer, "parameter_name"):
        return layer.get_delta_weight(adapter)
    a = layer.lora_A[adapter].weight.unflatten(0, (layer.num_experts, -1))  # (experts, r, in)
    b = layer.lora_B[adapter].weight.unflatten(1, (-1, layer.num_experts)).permute(2, 0, 1)  # (experts, out, r)
    delta = b @ a * layer.scaling[adapter]
    if _base_weight(layer).ndim == 2:
        return delta[0]
    return delta if layer._did_swap_in_out_features else delta.transpose(1, 2)


def _refused(model: CausalModel, name: str) -> bool:
    """Whether peft refuses layers of this name: kernels of Mamba read their weights past the adapter."""
    import peft
    from peft.tuners.tuners_utils import _check_lora_target_modules_mamba

    with suppress(ValueError):
        _check_lora_target_modules_mamba(peft.LoraConfig(), model, name)
        return False
    return True


def _base_name(name: str) -> str:
    return name.replace(".base_layer", "")


def _of_adapter(name: str, layers: Mapping[str, Any]) -> bool:
    """Whether a weight belongs to an adapter: it is in a layer that has one, and not in that layer's base."""
    return ADAPTER in name and name.rpartition(ADAPTER)[0] in layers
