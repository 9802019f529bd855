"""Whether memory and disk have room for a run, and what would make it fit: by calculation, before step 1."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minrl.config import TrainerConfig
from minrl.engines.choice import takes_vllm
from minrl.engines.decoder import has_own_decoder
from minrl.engines.slices import footprint
from minrl.engines.torch_engine import CACHE_GIB
from minrl.models.activations import LARGEST_SHARE, layers_of
from minrl.models.cpu import free_bytes
from minrl.models.memory import MOMENT_BYTES, Setup, Weights, all_activations, needed, weights_of, with_adapters
from minrl.models.method import method_of
from minrl.models.sharding import master_weights, sharded
from minrl.models.text import decoder_of
from minrl.policy import Policy
from minrl.types import CausalModel, require
from minrl.utils.files import free_bytes as free_on_disk

FEW_TOKENS, RANK, COUNTS = 1024, 16, (2, 4, 8, 16, 32, 64)
"""Tokens of a micro-batch, rank of adapters, numbers of processes: what is tried in place of the run's own."""


def expected_bytes(policy: Policy, config: TrainerConfig, tokens: int) -> int:
    """What a process will hold at the peak beside what is loaded, with micro-batches of so many tokens."""
    text, setup = policy.model.config.get_text_config(), setup_of(policy, config)
    tokens = min(tokens, config.optimizer.micro_batch_tokens)
    kept = all_activations(text, tokens, setup.itemsize)
    always = config.model.activation_checkpointing == "always"
    recompute = setup.recompute and (always or kept > LARGEST_SHARE * policy.free_memory())
    need = needed(_weights(policy.model), text, replace(setup, tokens=tokens, recompute=recompute))
    return need.total - need.loaded


def memory_findings(policy: Policy, config: TrainerConfig) -> Iterator[str]:
    """Whether what a process holds fits in its free memory, and what would; the weights are loaded already."""
    free, text = policy.free_memory(), policy.model.config.get_text_config()
    weights, setup = _weights(policy.model), setup_of(policy, config)
    need = needed(weights, text, setup)
    if need.total - need.loaded < free:
        return
    ways = list(_ways(weights, text, setup, free + need.loaded))
    fit = " or ".join(flags for flags, fits in ways if fits)
    tried = ", ".join(flags for flags, _ in ways)
    remedy = f"it fits with {fit}" if fit else "choose a smaller model or larger machine"
    if tried and not fit:
        remedy += f"; none of these is enough alone: {tried}"
    each = f" in each of {setup.processes} processes" if setup.processes > 1 else ""
    yield (
        f"training {weights.total / 1e9:.1f}B weights needs about {need.total / 2**30:.0f} GiB{each}, of which "
        f"{need.loaded / 2**30:.0f} are taken, and {free / 2**30:.0f} GiB are free: {remedy} (docs/scaling.md)"
    )


def _weights(model: CausalModel) -> Weights:
    return weights_of(model, layers_of(decoder_of(model)))


def save_findings(policy: Policy, config: TrainerConfig) -> Iterator[str]:
    """Whether the main memory has room for a checkpoint of sharded weights, which the main process gathers there."""
    needed, free = checkpoint_bytes(policy, config), free_bytes()
    if sharded(policy.model) and needed >= free:
        yield (
            f"to save, the main process gathers the checkpoint in main memory: about {_size(needed)}, and {_size(free)}"
            " are free: choose a machine with more, or train adapters that are saved alone (--lora-rank 16 "
            "--lora-checkpoint adapter)"
        )


def setup_of(policy: Policy, config: TrainerConfig) -> Setup:
    """The run as `needed` takes it, with the fewest activations that its flags allow."""
    settings, processes = config.rollout, policy.processes
    engine: str = config.engine.engine
    if engine == "auto":
        engine = "vllm" if takes_vllm(config.engine, policy.device.type) else "torch"
    rows, bfloat16 = settings.prompts_per_step * settings.group_size, processes.dtype == torch.bfloat16
    cache = footprint(policy.model, 2 if bfloat16 else 4).of(processes.split(rows), 0, settings.longest)
    return Setup(
        processes=processes.count,
        nodes=processes.launch.nodes,
        sharding=config.model.sharding,
        optimizer=config.optimizer.optimizer,
        bfloat16=bfloat16,
        tokens=min(config.optimizer.micro_batch_tokens, processes.split(rows) * settings.longest),
        recompute=config.model.activation_checkpointing != "never",
        reference=config.algorithm.kl_coef > 0 and config.lora.lora_rank == 0,
        teacher=None if policy.teacher is None else _weights(policy.teacher),
        engine=engine,
        tensor_parallel=config.engine.engine_tensor_parallel,
        own_decoder=method_of(policy.model).decoding == "own" and has_own_decoder(policy.model),
        cache=0 if engine != "torch" else min(cache, int((config.engine.engine_cache_gib or CACHE_GIB) * 2**30)),
    )


def _ways(weights: Weights, text: Any, setup: Setup, room: int) -> Iterator[tuple[str, bool]]:  # noqa: ANN401
    """Flags that take less memory than the run's own, and whether they alone make it fit."""

    def fits(changed: Setup, trained: Weights = weights) -> bool:
        return needed(trained, text, changed).total < room

    if setup.tokens > FEW_TOKENS:
        yield f"--micro-batch-tokens {FEW_TOKENS}", fits(replace(setup, tokens=FEW_TOKENS))
    if setup.optimizer == "adamw" and setup.sharding == "none":  # which takes whole weights only
        yield "--optimizer adamw8bit", fits(replace(setup, optimizer="adamw8bit"))
    adapted = with_adapters(weights, text, RANK, setup.bfloat16)
    if weights.trained == weights.total:
        yield f"--lora-rank {RANK}", fits(replace(setup, reference=False), adapted)
    if setup.engine == "vllm" and setup.tensor_parallel == 1 and setup.processes > setup.nodes:
        parallel = setup.processes // setup.nodes
        yield f"--engine-tensor-parallel {parallel}", fits(replace(setup, tensor_parallel=parallel))
    if setup.engine == "vllm" or (setup.engine == "torch" and setup.shards > 1):
        yield "--engine vllm-server", fits(replace(setup, engine="vllm-server", cache=0))
    least = setup.processes + (setup.sharding == "full")
    counts = [count for count in sorted({setup.processes, *COUNTS}) if count >= max(2, least)]
    if counts:
        divided = replace(setup, sharding="full", optimizer="adamw")
        enough = [count for count in counts if fits(replace(divided, processes=count))]
        count = (enough or counts[::-1])[0]
        adamw = "" if setup.optimizer == "adamw" else ", with adamw,"
        yield f"--sharding full{adamw} in {count} processes with as much memory each", bool(enough)


def checkpoint_bytes(policy: Policy, config: TrainerConfig) -> int:
    """Approximate bytes of a checkpoint: the weights, once more if rounded, and the moments of the trained ones."""
    counts = {weight: weight.numel() for weight in master_weights(policy.model).values()}
    trained = sum(count for weight, count in counts.items() if weight.requires_grad)
    saved = trained if config.lora.lora_checkpoint == "adapter" else sum(counts.values())
    each = 6 if config.logging.save_dtype == "bfloat16" and not config.lora.lora_rank else 4
    return each * saved + MOMENT_BYTES[config.optimizer.optimizer] * trained


def require_room(policy: Policy, config: TrainerConfig, folder: Path) -> None:
    """Refuse a run without room for one checkpoint."""
    needed, free = checkpoint_bytes(policy, config), free_on_disk(folder)
    require(
        needed < free,
        f"a checkpoint takes about {_size(needed)} and {folder} has {_size(free)} free: make room there, or name "
        "another disk with --checkpoints-dir",
    )


def disk_findings(policy: Policy, config: TrainerConfig) -> Iterator[str]:
    """Whether the kept checkpoints fit on the disk, with the one that is written before the oldest is removed."""
    settings = config.logging
    saves = math.ceil(config.steps / settings.save_every) if settings.save_every else 1
    count = min(saves, settings.keep_checkpoints + 1) if settings.keep_checkpoints else saves
    count += settings.keep_best
    needed, free = count * checkpoint_bytes(policy, config), free_on_disk(Path(settings.checkpoints_dir))
    if needed >= free:
        yield (
            f"{count} checkpoints take about {_size(needed)} and {settings.checkpoints_dir} has {_size(free)} free: "
            "keep fewer with --keep-checkpoints, or name another disk with --checkpoints-dir"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
