"""What training holds, part by part, against the least that it could: steps of a model of a known shape.

    python benchmarks/memory.py --train 0.6B
    python benchmarks/memory.py --train 1.7B --lora-rank 16

The shapes are those of Qwen3 with random weights, in a checkpoint in bfloat16. A few rollouts are sampled by the
embedded engine, and an optimizer step is taken on them, twice: the second has moments from its start. The floor of each
part is what `minrl.models.memory` estimates. That of a phase's seconds is its products at the best product's rate, or
what it must read and write at the machine's (roofline.py), whichever takes longer.
"""

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import doing
from roofline import Machine

SHAPES = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144},
    "tiny": {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 512},
}
GIB = 2**30
PROMPT = 32
"""Tokens of a prompt."""
STATUS = Path("/proc/self/status")


def gib(field: str) -> float:
    """A figure of this process's memory: VmRSS now, VmHWM at its peak."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 2**20


@contextmanager
def peak(name: str, peaks: dict[str, float], seconds: dict[str, float]) -> Iterator[None]:
    """Note the most resident memory inside beyond what is there before, and how long it took."""
    doing(name)
    ctypes.CDLL(None).malloc_trim(0)
    before, started = gib("VmRSS"), time.perf_counter()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from now
    yield
    peaks[name] = max(peaks.get(name, 0.0), gib("VmHWM") - before)
    seconds[name] = time.perf_counter() - started
    print(f"{name}: {before:.2f} GiB before, {gib('VmHWM'):.2f} at the peak, {seconds[name]:.0f} s", flush=True)


def save_base(size: str, folder: str) -> None:
    """Write a checkpoint with random weights in bfloat16."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from minrl.models.loading import word_tokenizer

    shape = {"vocab_size": 151_936, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8}
    ends = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2, "tie_word_embeddings": True}
    torch.manual_seed(0)
    config = Qwen3Config(**(shape | SHAPES[size] | ends), head_dim=128)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config).bfloat16()
    model.to_empty(device="cpu").tie_weights()
    some = 0.02 * torch.randn(2**20)  # repeated: billions of normal numbers take minutes
    for weight in model.parameters():
        weight.data = some.repeat(-(-weight.numel() // 2**20))[: weight.numel()].view(weight.shape).bfloat16()
        if weight.ndim < 2:
            weight.data.fill_(1)
    model.save_pretrained(folder)
    word_tokenizer([f"w{index}" for index in range(100)]).save_pretrained(folder)


def main(size: str, rank: int, optimizer_name: str, prompts: int, group: int, tokens: int, threads: int) -> None:
    """Steps of the model; a row for each part."""
    with tempfile.TemporaryDirectory() as folder:
        doing("writing the checkpoint")
        make = f"from memory_parts import save_base; save_base({size!r}, {folder!r})"
        subprocess.run([sys.executable, "-c", make], check=True, cwd=Path(__file__).parent)
        steps(folder, rank, optimizer_name, prompts, group, tokens, threads)


def steps(folder: str, rank: int, optimizer_name: str, prompts: int, group: int, tokens: int, threads: int) -> None:
    """Load, sample and train twice; print the parts."""
    from shapes import as_rollouts

    from minrl.algorithms import choose_algorithm, compute_advantages
    from minrl.batch import make_batch
    from minrl.config import LoraConfig, ModelConfig, OptimizerConfig, TrainerConfig
    from minrl.engines import Sampling
    from minrl.engines.torch_engine import TorchEngine
    from minrl.models.distributed import Processes
    from minrl.models.lora import Adapters
    from minrl.optimizer import make_optimizer
    from minrl.run.setup import load_policy
    from minrl.types import Request, TrainState
    from minrl.update import update_policy

    peaks: dict[str, float] = {}
    seconds: dict[str, float] = {}
    config = TrainerConfig(
        model=ModelConfig(device="cpu", dtype="float32", threads=threads),
        optimizer=OptimizerConfig(optimizer=optimizer_name, learning_rate=1e-6),
        lora=LoraConfig(lora_rank=rank) if rank else LoraConfig(),
    )
    with peak("loading", peaks, seconds):
        policy = load_policy(folder, config.model, Processes(config.model))
    if rank:
        with peak("adapters", peaks, seconds):
            policy.adapters = Adapters(policy.model, config.lora, folder, seed=0)
    requests = [
        Request([5 + (7 * (row // group) + 3 * place) % 90 for place in range(PROMPT)], row, tokens)
        for row in range(prompts * group)
    ]
    algorithm, optimizer = choose_algorithm(config), make_optimizer(policy, config.optimizer)
    for step in (1, 2):
        with peak("sampling", peaks, seconds):
            completions = TorchEngine(policy).generate(requests, Sampling(1.0, frozenset()))
        rollouts = as_rollouts(requests, completions, group)
        batch = make_batch(rollouts, compute_advantages(rollouts, algorithm, config, TrainState()).values)
        with peak("update", peaks, seconds):
            update_policy(policy, optimizer, batch, algorithm, config, TrainState(step=step), False)
    moments = sum(_bytes(state.values()) for state in optimizer.state.values())
    _print(policy, optimizer_name, sum(len(rollout.ids) for rollout in rollouts), peaks, moments)
    print("\n| phase | s | floor s | floor is |\n| --- | --- | --- | --- |")
    for name, (products_s, bytes_s) in _floors(policy, prompts, group, tokens, moments).items():
        bound = "products" if products_s > bytes_s else "bytes"
        print(f"| {name} | {seconds[name]:.1f} | {max(products_s, bytes_s):.1f} | {bound} |")


def _floors(policy: Any, prompts: int, group: int, tokens: int, moments: int) -> dict[str, tuple[float, float]]:
    """Seconds of each phase's products, and of its bytes: weights at each position, and the cache up to there with a
    prompt's once for its group; of the optimizer, weights, gradients and moments, all but the gradients also written.
    Adapters are merged before sampling. The last token of a completion is sampled, not read.
    """
    from minrl.engines.torch_engine import footprint

    machine, model = Machine.measured(), policy.model
    head = model.get_output_embeddings().weight
    weights = list(model.parameters())
    lora = policy.adapters is not None
    base = [weight for weight in weights if not (lora and weight.requires_grad)]
    inside = sum(weight.numel() for weight in base if weight.ndim > 1 and weight is not head)
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    rows, own = prompts * group, tokens - 1
    stream, sampled = prompts * PROMPT + rows * own, rows * tokens
    heads = model.config.num_attention_heads * model.config.head_dim * model.config.num_hidden_layers
    pairs = rows * (own * PROMPT + own**2 / 2) + prompts * PROMPT**2 / 2
    once = stream * inside + sampled * head.numel()
    slots = own * prompts * PROMPT + rows * sum(range(1, tokens))
    read = tokens * _bytes(base) + slots * footprint(model, 4).slot
    update = 4 * once + 6 * stream * trained if lora else 6 * once  # frozen weights have no gradient
    products = {"sampling": 2 * once + 4 * pairs * heads, "update": update + 12 * pairs * heads}
    moved = {"sampling": read, "update": 3 * 4 * trained + 2 * moments}
    return {name: (products[name] / machine.flops, moved[name] / machine.bytes) for name in products}


def _print(policy: Any, optimizer: str, tokens: int, peaks: Mapping[str, float], moments: int) -> None:
    """A row for each part: what it took, and the estimate."""
    from minrl.engines.torch_engine import footprint
    from minrl.models.memory import Setup, needed, weights_of
    from minrl.models.text import decoder_of, layers_of

    weights, counted = list(policy.model.parameters()), weights_of(policy.model, layers_of(decoder_of(policy.model)))
    trained, cache = counted.trained, footprint(policy.model, 4).slot * tokens
    least = needed(counted, policy.model.config, Setup(optimizer=optimizer, tokens=tokens))
    rows = {
        "weights": (_bytes(weights), least.weights),
        "gradients": (4 * trained, least.gradients),
        "moments": (moments, least.moments),
        "casts and activations": (
            peaks["update"] * GIB - 4 * trained - moments,
            least.casts + least.activations,
        ),
        "engine's copies, and logits": (peaks["sampling"] * GIB - cache, least.copies),
        "cache": (cache, cache),
    }
    at_the_end = f"{gib('VmRSS'):.2f} GiB resident at the end"
    print(f"\n{counted.total / 1e9:.2f}B weights, {trained / 1e6:.1f}M trained; {at_the_end}")
    print("| part | GiB | floor |\n| --- | --- | --- |")
    for name, (measured, floor) in rows.items():
        print(f"| {name} | {measured / GIB:.2f} | {floor / GIB:.2f} |")


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if hasattr(tensor, "numel"))
