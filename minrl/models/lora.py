"""LoRA (arXiv:2106.09685, equation 3): W + (alpha / r) B A for chosen weights W, of which only A and B are trained.

peft injects, merges and stores adapters. Engines and checkpoints read plain weights as `MergedWeights`. The base
weights never change: with the adapters off the model is bit for bit the one the run started from, so that the reference
of a KL term needs no second copy. There is no dropout: it would make the trained probabilities differ from the sampled
ones.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from minrl.config import TrainerConfig
from minrl.dataflow import CausalModel, UserError, require
from minrl.models.cpu import in_float32
from minrl.models.modules import READ_DIRECTLY, hold_frozen, is_plain_linear, probe, speed_up
from minrl.models.sharding import full_tensor
from minrl.utils.files import read_record

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of adapters, as peft names them."""

SUBFOLDER = "adapter"
"""Where the adapters lie beside a merged model."""

ADAPTER = ".lora_"
"""Part of the names of adapters' weights."""

SAMPLES = 256
"""Elements of each base weight in the fingerprint."""

OF_EXPERTS = ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
"""Names of layers of a mixture by which peft means experts and routers, also where shared or dense ones have them."""

LARGEST_CHANGE = 1e-3
"""How far log-probabilities in nats may move where adapters are merged: float32 moves them by 1e-5."""


class Adapters:
    """The adapters inside a model, which alone are trained. `base` is where the model itself came from.

    A is drawn with the seed, B is 0: until the first update the policy is its base model.
    """

    def __init__(self, model: CausalModel, config: TrainerConfig, base: str, seed: int) -> None:
        require_peft("--lora-rank")
        import peft

        self.model, self.config, self._start = model, config, base
        model.requires_grad_(False)
        self._peft_config = peft.LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            target_modules=target_modules(model, config),
            task_type="CAUSAL_LM",
            base_model_name_or_path=name_as_base(base),
        )
        try:
            with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
                torch.manual_seed(seed)
                peft.inject_adapter_in_model(self._peft_config, model)
        except ValueError as error:
            why = " ".join(str(error).split()).partition(". ")[0][:100]
            raise UserError(f"peft cannot adapt this model ({why}): name other --lora-target-modules") from error
        experts = [path for path, layer in adapted_layers(model).items() if hasattr(layer, "parameter_name")]
        require(
            not experts,
            f"peft would adapt experts or routers ({next(iter(experts), '')}), which have no adapters here: name other "
            "layers by --lora-target-modules, such as q_proj,k_proj,v_proj,o_proj",
        )
        hold_frozen(model)
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
        tensors = {f"base_model.model.{name}": tensor.detach().cpu().contiguous() for name, tensor in own.items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", "base": self._base})
        self._peft_config.save_pretrained(str(folder))

    def load(self, folder: Path) -> None:
        """Load the adapters of a checkpoint of either kind. Refused if they were trained on other base weights."""
        import peft

        path = (folder / SUBFOLDER if (folder / SUBFOLDER).exists() else folder) / WEIGHTS
        refuse_other_base(self.model, path, self._start)
        _require_all(peft.set_peft_model_state_dict(self.model, load_file(path)), path.parent)


class MergedWeights(Mapping[str, Tensor]):
    """A model's weights under the names they have without adapters. Each is merged when it is read, so that there is
    never a second copy of the model.
    """

    def __init__(self, model: CausalModel, weights: Mapping[str, Tensor]) -> None:
        self.adapted = {f"{path.replace('.base_layer', '')}.weight": one for path, one in adapted_layers(model).items()}
        self.bases = {name.replace(".base_layer", ""): w for name, w in weights.items() if ADAPTER not in name}

    def __getitem__(self, name: str) -> Tensor:
        """The weight that the model computes with; a sharded one is gathered, by all processes together."""
        return full_tensor(self.part(name))

    def part(self, name: str) -> Tensor:
        """The weight that the model computes with, sharded where the model is."""
        return merged_weight(self.adapted[name]) if name in self.adapted else self.bases[name]

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of the weights."""
        return iter(self.bases)

    def __len__(self) -> int:
        """The number of weights without those of adapters."""
        return len(self.bases)


def merged_weight(layer: CausalModel) -> Tensor:
    """The weight that a layer computes with: its own, or W + (alpha / r) B A, in float32."""
    if not hasattr(layer, "get_delta_weight") or layer.disable_adapters:
        return layer.weight
    with torch.autocast(layer.weight.device.type, enabled=False):
        return in_float32(layer.weight) + sum(layer.get_delta_weight(name) for name in layer.active_adapters)


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers that have an adapter, by their path in the model."""
    return {path: module for path, module in model.named_modules() if hasattr(module, "get_delta_weight")}


def target_modules(model: CausalModel, config: TrainerConfig) -> str | list[str]:
    """What `lora_target_modules` says to peft. A name without a match is refused, as peft does only where none matches.
    So are tied weights: adapters would untie them, and engines and checkpoints keep a single one.
    """
    from transformers.pytorch_utils import Conv1D

    names, modules = config.target_names, dict(model.named_modules())
    if config.lora_target_modules == TrainerConfig.lora_target_modules:
        mixture = any("Experts" in type(module).__name__ for module in modules.values())
        left_out = (*READ_DIRECTLY, *(OF_EXPERTS if mixture else ()))
        linear = [path for path, one in modules.items() if is_plain_linear(type(one)) or type(one) is Conv1D]
        head = [path for path, one in modules.items() if one is model.get_output_embeddings()]
        return [path for path in linear if path not in head and path.rpartition(".")[2] not in left_out]
    for name in names:
        linear = [path.rpartition(".")[2] for path, module in modules.items() if isinstance(module, nn.Linear)]
        require(
            name not in READ_DIRECTLY,
            f"lora_target_modules: the model reads the weight of {name} without calling it: leave it out",
        )
        require(
            any(re.fullmatch(rf"(.*\.)?{re.escape(name)}", path) for path in modules),
            f"lora_target_modules: {name!r} matches no layer: there are {', '.join(dict.fromkeys(linear))}",
        )
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    require(
        not tied or not {"lm_head", "embed_tokens"} & {*names},
        "lora_target_modules: embed_tokens and lm_head share one weight in this model: leave them out",
    )
    return names or config.lora_target_modules


def name_as_base(path: str) -> str | None:
    """How adapters name the model at a path, on which other programs put them. None if it is a GGUF file or holds
    adapters itself: peft would leave the latter out.
    """
    if Path(path).is_file() or base_of(path) is not None:
        return None
    return str(Path(path).resolve()) if Path(path).exists() else path


def base_of(path: str) -> str | None:
    """The base model of the adapters in a local folder; None if it holds none, or a whole model."""
    file = Path(path) / CONFIG
    if not file.exists():
        return None
    base = read_record(file).get("base_model_name_or_path")
    require(isinstance(base, str), f"{file} names no base model: write it there as `base_model_name_or_path`")
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
def merge_adapters(model: CausalModel, folder: Path, base: str) -> None:
    """Merge the folder's adapters, of any kind that peft merges, into the model, which came from `base` and stays a
    plain one. Refused if the merged model differs from peft's own forward pass.
    """
    import peft

    try:
        refuse_other_base(model, folder / WEIGHTS, base)
        config: Any = peft.PeftConfig.from_pretrained(str(folder))
        with warnings.catch_warnings(action="ignore"):
            adapted: Any = peft.get_peft_model(model, config)
            _require_all(adapted.load_adapter(str(folder), "default", torch_device="cpu", use_safetensors=True), folder)
            before = probe(adapted)
            adapted.merge_and_unload(safe_merge=True)
    except UserError:
        raise
    except Exception as error:  # peft and safetensors raise whatever a damaged file leads them to
        why = " ".join(str(error).split())[:200]
        raise UserError(f"the adapters in {folder} cannot be merged into {base}: {why}") from error
    change = float((probe(model) - before).abs().max())
    require(change < LARGEST_CHANGE, f"the adapters in {folder} cannot be merged: log-probabilities move by {change:g}")
    model.eval().requires_grad_(True)


def _require_all(loaded: Any, folder: Path) -> None:  # noqa: ANN401 - torch's names of missing and unexpected weights
    """Refuse adapters that are not those of the model."""
    lacking = [name for name in loaded.missing_keys if ADAPTER in name]
    for names, verb in ((loaded.unexpected_keys, "hold"), (lacking, "lack")):
        require(not names, f"the adapters in {folder} {verb} {(names or [''])[0]}, unlike the model: give its own")


def require_peft(what: str) -> None:
    """Raise `UserError` if peft is not installed; `what` needs it."""
    require(
        find_spec("peft") is not None,
        f"{what} needs peft, which is not installed: run `make setup EXTRA=lora`, or `pip install peft`",
    )


def fingerprint(model: CausalModel) -> str:
    """A hash of a sample of the base weights, which identifies the model."""
    digest = hashlib.sha256()
    for name, weight in sorted(MergedWeights(model, dict(model.named_parameters())).bases.items()):
        sample = weight.detach().flatten()[:: max(1, weight.numel() // SAMPLES)].float().cpu().contiguous()
        digest.update(json.dumps([name, list(weight.shape)]).encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
