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
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from minrl.config import LoraConfig
from minrl.dataflow import CausalModel, UserError, require
from minrl.models.cpu import in_float32
from minrl.models.modules import (
    READ_DIRECTLY,
    Mixin,
    compute_weights,
    hold_frozen,
    is_plain_linear,
    mix_in,
    probe,
    speed_up,
)
from minrl.models.sharding import full_tensor
from minrl.models.source import PICKLE
from minrl.models.text import foreign_modules, train_text
from minrl.utils.files import read_record

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

LARGEST_CHANGE = 1e-3
"""How far log-probabilities in nats may move where adapters are merged: float32 moves them by 1e-5."""


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
            **find_targets(model, config.lora_target_modules),
            task_type="CAUSAL_LM",
            base_model_name_or_path=str(Path(base).resolve()) if Path(base).exists() else base,
        )
        try:
            with torch.random.fork_rng(), _without_warnings():
                torch.manual_seed(seed)
                peft.inject_adapter_in_model(self._peft_config, model)
        except ValueError as error:
            why = " ".join(str(error).split()).partition("( (")[0][:100]  # without the layers of the module
            what = "name other layers by --lora-target-modules"
            raise UserError(f"peft cannot adapt this model ({why}): {what}") from error
        for layer in adapted_layers(model).values():
            if hasattr(layer, "parameter_name"):
                mix_in(_Wrapper, layer)
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
        import peft

        path = (folder / SUBFOLDER if (folder / SUBFOLDER).exists() else folder) / WEIGHTS
        refuse_other_base(self.model, path, str(self._peft_config.base_model_name_or_path))
        loaded: Any = peft.set_peft_model_state_dict(self.model, load_file(path))
        _require_all(loaded, path.parent)


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

    def __contains__(self, name: object) -> bool:
        """Whether there is such a weight; nothing is merged."""
        return name in self.bases


def merged_weight(layer: CausalModel) -> Tensor:
    """The weight that a layer computes with: its own, or W + (alpha / r) B A, in float32."""
    weight = layer.get_param() if hasattr(layer, "parameter_name") else layer.weight
    if not hasattr(layer, "get_delta_weight") or layer.disable_adapters:
        return weight
    with torch.autocast(weight.device.type, enabled=False):
        return in_float32(weight) + sum(_delta(layer, name) for name in layer.active_adapters)


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
def fold_in(model: CausalModel, tokenizer: Any, folder: Path, base: str) -> None:  # noqa: ANN401 - of transformers
    """Merge the folder's adapters, of any kind that peft merges, into the model, which came from `base` and stays a
    plain one. Refused if the merged model differs from peft's own forward pass.
    """
    import peft

    safe = (folder / WEIGHTS).exists() or not (folder / "adapter_model.bin").exists()
    require(safe, f"the adapters in {folder} cannot be loaded: adapter_model.bin is {PICKLE}")
    kind = "adapters"
    try:
        refuse_other_base(model, folder / WEIGHTS, base)
        config: Any = peft.PeftConfig.from_pretrained(str(folder))
        kind = f"{str(config.peft_type).rpartition('.')[2]} adapters"
        require(not config.is_prompt_learning, f"the {kind} in {folder} cannot be merged: they change no weights")
        _refuse_new_tokens(tokenizer, folder, base)
        with _without_warnings():
            adapted: Any = peft.get_peft_model(model, config)
            renamed = getattr(model, "_checkpoint_conversion_mapping", {})
            _require_all(adapted.load_adapter(str(folder), "default", torch_device="cpu", key_mapping=renamed), folder)
            before = probe(adapted)
            adapted.merge_and_unload(safe_merge=True)
    except UserError:
        raise
    except Exception as error:  # peft and safetensors raise whatever a damaged file leads them to
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"the {kind} in {folder} cannot be merged into {base}: {reason}") from error
    change = float((probe(model) - before).abs().max())
    require(
        change < LARGEST_CHANGE,
        f"the {kind} in {folder} cannot be merged into {base}: its log-probabilities would change by {change:.2g} nats",
    )
    train_text(model.eval())


def require_peft(what: str) -> None:
    """Raise `UserError` if peft is not installed; `what` needs it."""
    if find_spec("peft") is None:
        raise UserError(
            f"{what} needs peft, which is not installed: run `make setup EXTRA=lora`, or `pip install peft`"
        )


def fingerprint(model: CausalModel) -> str:
    """A hash of a sample of the base weights, which identifies the model."""
    digest = hashlib.sha256()
    for name, weight in sorted(MergedWeights(model, dict(model.named_parameters())).bases.items()):
        sample = weight.detach().flatten()[:: max(1, weight.numel() // SAMPLES)].float().cpu().contiguous()
        digest.update(json.dumps([name, list(weight.shape)]).encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def find_targets(model: CausalModel, chosen: str) -> dict[str, Any]:
    """peft's settings for the layers that `lora_target_modules` names; routers and experts are parameters to peft. A
    name without a match is refused, as peft does only where none matches. Of all linear layers those that peft refuses
    are left out, and those that a text does not pass through.
    """
    foreign = {path for path, _ in foreign_modules(model)}
    own = {path: module for path, module in model.named_modules() if path not in foreign}
    layers = [path for path, module in own.items() if _adaptable(path, module)]
    if chosen == LoraConfig.lora_target_modules:
        linear = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
        left_out = [path for path in linear if path not in layers or _refused(model, path.rpartition(".")[2])]
        return {"target_modules": chosen, "exclude_modules": left_out or None}
    weights = {name: w for name, w in model.named_parameters() if name.rpartition(".")[0] not in {*layers, *foreign}}
    parameters = {name.removesuffix(".weight"): name for name, w in weights.items() if _is_matrix(name, w)}
    names = LoraConfig(lora_rank=1, lora_target_modules=chosen).target_names
    patterns = {name: rf"(.*\.)?{re.escape(name)}" for name in names} or {chosen: chosen}
    every = [*layers, *parameters]
    matched = {name: [path for path in every if re.fullmatch(p, path)] for name, p in patterns.items()}
    for name, paths in matched.items():
        if not paths:
            there = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in every))
            raise UserError(f"lora_target_modules: {name!r} matches no layer with a weight matrix: there are {there}")
    paths = [path for some in matched.values() for path in some]
    _refuse_tied(model, paths)
    if names and set(paths) <= set(layers):
        return {"target_modules": names, "exclude_modules": sorted(foreign - {""}) or None}
    return {
        "target_modules": [path for path in paths if path not in parameters],
        "target_parameters": [parameters[path] for path in paths if path in parameters],
    }


class _Wrapper(Mixin):
    """peft's wrapper of the weights of experts and routers. peft computes with a merged copy, in the precision of the
    weight, which is kept for the backward pass; here it is in float32, and made again. transformers finds the weights
    through it by their plain paths as it saves.
    """

    @contextmanager
    def _activate_lora(self, _adapters: list[str]) -> Iterator[None]:
        weights = compute_weights(self.get_base_layer())  # type: ignore[operator]
        weights[self.parameter_name] = partial(merged_weight, self)  # type: ignore[index]
        try:
            yield
        finally:
            del weights[self.parameter_name]  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of nn.Module
        """An attribute of the wrapper, or of what it wraps."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_layer"), name)


def _delta(layer: CausalModel, adapter: str) -> Tensor:
    """(alpha / r) B A. peft's own rounds it to the precision of a weight that is no layer's."""
    if not hasattr(layer, "parameter_name"):
        return layer.get_delta_weight(adapter)
    a = layer.lora_A[adapter].weight.unflatten(0, (layer.num_experts, -1))  # (experts, r, in)
    b = layer.lora_B[adapter].weight.unflatten(1, (-1, layer.num_experts)).permute(2, 0, 1)  # (experts, out, r)
    delta = b @ a * layer.scaling[adapter]
    if layer.get_param().ndim == 2:
        return delta[0]
    return delta if layer._did_swap_in_out_features else delta.transpose(1, 2)


def _require_all(loaded: Any, folder: Path) -> None:  # noqa: ANN401 - torch's names of missing and unexpected weights
    """Refuse adapters that are not those of the model."""
    lacking = [name for name in loaded.missing_keys if ADAPTER in name]
    for names, verb in ((loaded.unexpected_keys, "hold"), (lacking, "lack")):
        require(not names, f"the adapters in {folder} {verb} {(names or [''])[0]}, unlike the model: give its own")


def _refuse_new_tokens(tokenizer: Any, folder: Path, base: str) -> None:  # noqa: ANN401 - of transformers
    """Refuse adapters whose tokenizer has tokens that the base model's lacks: their text would be split otherwise."""
    if not (folder / "tokenizer.json").exists():
        return
    new = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab().keys() - tokenizer.get_vocab().keys()
    require(
        not new,
        f"the adapters in {folder} come with {len(new)} tokens that {base} lacks, {min(new, default='')!r} among them: "
        "merge them by peft's merge_and_unload, save the model with that tokenizer, and give its folder",
    )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """peft warns of what is meant, or checked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _refuse_tied(model: CausalModel, paths: list[str]) -> None:
    """Refuse adapters on tied weights: they would untie them, and engines and checkpoints keep a single one."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    tied = ends[0].weight is ends[1].weight
    names = {name for name, module in model.named_modules() if module in ends}
    if tied and names & set(paths):
        raise UserError(
            f"lora_target_modules: {', '.join(sorted(names))} share one weight in this model and cannot have "
            "adapters: leave them out"
        )


def _adaptable(path: str, module: nn.Module) -> bool:
    """Whether peft adapts the layer, so that its adapter has an effect. GPT-2's own linear layer is a Conv1D."""
    plain = isinstance(module, nn.Linear) and is_plain_linear(type(module))
    linear = plain and path.rpartition(".")[2] not in READ_DIRECTLY
    return linear or isinstance(module, nn.Embedding) or type(module).__name__ == "Conv1D"


def _is_matrix(name: str, weight: Tensor) -> bool:
    """Whether a weight outside of the layers that peft knows is that of experts or of a router."""
    router = weight.ndim == 2 and name.endswith((".gate.weight", ".router.weight"))
    return router or (weight.ndim == 3 and "conv" not in name)


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
