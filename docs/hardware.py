"""Writes docs/hardware.md: which model fits which card or laptop, by the estimate of the preflight.

    python docs/hardware.py

`tests/test_hardware.py` compares the page with what this makes, and the shapes with transformers' models.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minrl.config import OptimizerConfig
from minrl.engines.decoders import LARGEST_COPY
from minrl.models.memory import Need, Setup, Weights, needed, with_adapters

PAGE = Path(__file__).with_name("hardware.md")
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Qwen-shaped decoder, by the names of its config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    tie_word_embeddings: bool
    model_type: str = "qwen2"
    num_hidden_layers: int = 28
    head_dim: int = 128
    is_heterogeneous = False  # every layer has these sizes

    def get_text_config(self, decoder: bool) -> "Shape":
        """Itself, as that of a model for text."""
        return self

    @property
    def layer(self) -> list[tuple[int, int]]:
        """Inputs and outputs of a layer's matrices."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = (heads * self.head_dim for heads in (self.num_attention_heads, self.num_key_value_heads))
        return [*[(hidden, queries)], *[(hidden, keys)] * 2, (queries, hidden), *[(hidden, inner)] * 2, (inner, hidden)]

    @property
    def weights(self) -> Weights:
        """Matrices, norms, Qwen 2's biases or Qwen 3's norms of queries and keys, embedding, head: all are trained."""
        heads = self.num_attention_heads + 2 * self.num_key_value_heads
        own = {"qwen2": heads * self.head_dim, "qwen3": 2 * self.head_dim, "llama": 0}[self.model_type]
        layer = sum(inputs * outputs for inputs, outputs in self.layer) + 2 * self.hidden_size + own
        outer = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2) + self.hidden_size
        total = self.num_hidden_layers * layer + outer
        return Weights(total=total, trained=total, layer=layer, outer=outer)


MODELS = {
    "Qwen/Qwen3-0.6B": Shape(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_attention_heads=16,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        model_type="qwen3",
    ),
    "Qwen/Qwen2.5-1.5B": Shape(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "Qwen/Qwen2.5-7B": Shape(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_attention_heads=28,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    ),
}


def qwen3(hidden: int, inner: int, layers: int, heads: int, tied: bool) -> Shape:
    """A dense Qwen3."""
    return Shape(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        tie_word_embeddings=tied,
        model_type="qwen3",
    )


PUBLISHED = {
    "0.6B": MODELS["Qwen/Qwen3-0.6B"],
    "1.7B": qwen3(2048, 6144, 28, 16, tied=True),
    "4B": qwen3(2560, 9728, 36, 32, tied=True),
    "7B": MODELS["Qwen/Qwen2.5-7B"],
    "8B": qwen3(4096, 12288, 36, 32, tied=False),
    "14B": qwen3(5120, 17408, 40, 40, tied=False),
    "32B": qwen3(5120, 25600, 64, 64, tied=False),
    "70B": Shape(
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        tie_word_embeddings=False,
        model_type="llama",
    ),
}
"""Dense models by size: Qwen3, Qwen2.5-7B and Llama-3.1-70B."""
CARDS, LAPTOPS = (8, 16, 24, 48, 80, 141), (8, 16, 32)
USABLE = 0.92
"""The share of a card's memory that CUDA and fragmentation leave."""
SYSTEM_GIB = 4
"""What a laptop's system and Python itself take."""
VLLM_SHARE = 0.45
"""--engine-memory-frac, of the card while vLLM samples."""
CACHE_GIB, SMALL_CACHE_GIB = 4, 1
"""The embedded engine's memory: at most as its default, and as set below."""
RANK = 16
METHODS = {"full": "", "8-bit": "--optimizer adamw8bit", "LoRA": f"--lora-rank {RANK}"}
"""What is trained, the most thorough first, and its flags."""
SMALL_TOKENS = 2048
SMALL = f"--engine torch --engine-cache-gib {SMALL_CACHE_GIB} --micro-batch-tokens {SMALL_TOKENS}"
"""The flags where memory is short."""


def need(shape: Shape, method: str, card: bool, small: bool) -> Need:
    """What an update of the model holds."""
    weights = shape.weights
    if method == "LoRA":
        weights = with_adapters(weights, shape, RANK, bfloat16=True)
    setup = Setup(
        optimizer="adamw8bit" if method == "8-bit" else "adamw",
        bfloat16=card,
        tokens=SMALL_TOKENS if small else OptimizerConfig().micro_batch_tokens,
        engine="vllm" if card and not small else "torch",
        own_decoder=4 * weights.held <= LARGEST_COPY,
        cache=(SMALL_CACHE_GIB if small else CACHE_GIB) * GIB,
    )
    return needed(weights, shape, setup)


def fits(shape: Shape, method: str, memory_gib: int, card: bool, small: bool) -> bool:
    """Whether the update fits, and sampling, and on a laptop loading."""
    usable = USABLE * memory_gib if card else memory_gib - SYSTEM_GIB
    held = need(shape, method, card, small)
    if card and not small:  # vLLM takes its share of the card for its weights and its cache
        sampling = held.weights + held.moments + VLLM_SHARE * memory_gib * GIB
        return max(held.update, sampling) <= usable * GIB
    loading = 0 if card else 4 * shape.weights.total
    return max(held.total, loading) <= usable * GIB


def fitting(shape: Shape, memory_gib: int, card: bool) -> str:
    """The methods that fit, and those that do in the small settings."""
    found = []
    for method in METHODS:
        if fits(shape, method, memory_gib, card, small=False):
            found.append(method)
        elif fits(shape, method, memory_gib, card, small=True):
            found.append(f"{method} (small)")
    return ", ".join(found) or "none"


def page() -> str:
    """The whole page."""
    names = [name.rpartition("-")[2] for name in MODELS]
    table = [_row("memory", *names), _row(*["---"] * (len(names) + 1))]
    for kind, sizes in (("card", CARDS), ("laptop", LAPTOPS)):
        for size in sizes:
            cells = (fitting(shape, size, kind == "card") for shape in MODELS.values())
            table.append(_row(f"{kind} of {size} GB", *cells))
    return TEXT.format(
        fits="\n".join(table),
        flags="\n".join(_flags()),
        needs="\n".join(_needs()),
        cache=CACHE_GIB,
        share=VLLM_SHARE,
        system=SYSTEM_GIB,
        usable=USABLE,
        rank=RANK,
        tokens=OptimizerConfig().micro_batch_tokens,
    )


def _flags() -> Iterator[str]:
    yield from (_row("in the table", "flags"), _row("---", "---"))
    for method, flags in METHODS.items():
        yield _row(method, f"`{flags}`" if flags else "none")
    yield _row("small", f"`{SMALL}`")


PARTS = ("weights", "gradients", "moments", "casts", "activations", "engine")
"""Of an update in one process. The embedded engine's copies are gone by then."""


def _needs() -> Iterator[str]:
    yield from (_row("model, what is trained", *PARTS), _row(*["---"] * (len(PARTS) + 1)))
    for name, shape in MODELS.items():
        for method in METHODS:
            held = vars(need(shape, method, card=True, small=False))
            yield _row(f"{name.rpartition('-')[2]}, {method}", *(_about(held[part]) for part in PARTS))


def _about(size: int) -> str:
    return f"about {size / GIB:.1f}" if size / GIB >= 0.05 else "less than 0.1"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


TEXT = """# Hardware

Which model fits, trained how. These are estimates by the function with which the preflight warns
(`minrl/models/memory.py`), from a model's shape; none was measured on a card. This page is written by
`python docs/hardware.py`.

## What fits

{fits}

{flags}

```sh
python train.py --model-id Qwen/Qwen3-0.6B --task gsm8k
python train.py --model-id Qwen/Qwen2.5-1.5B --task gsm8k --optimizer adamw8bit
python train.py --model-id Qwen/Qwen2.5-7B --task gsm8k --lora-rank {rank}
```

`adamw8bit` needs the extra `optim8bit` (Linux), adapters the extra `lora`. On a card vLLM samples: it keeps a copy of
the weights in bfloat16 while the policy trains, and takes {share} of the card while it samples
(`--engine-memory-frac`). In the small settings, and on a laptop, the embedded engine samples in at most {cache} GiB, or
what `--engine-cache-gib` says. {system} GiB of a laptop are counted for its system, and a share of {usable} of a card
is used.

Memory is not time. On a laptop's processor a 0.6B model is for trying out, with few and short completions,
which are its [defaults](fine_tuning.md#defaults-that-depend-on-the-model). The small base model that MinRL makes runs
on any laptop.

## Where it goes

GiB of an update on a card, with `--micro-batch-tokens {tokens}`:

{needs}

Weights that are trained, adapters too, are in float32 whatever `--dtype` says, which is the precision of products; so
are gradients and moments, but for the moments of `adamw8bit`. The frozen weights under adapters stay in two bytes each
where the checkpoint is in bfloat16. Products are those of float32 all the same: one weight at a time is cast for them.
Casts are the weights in bfloat16 for the products on a card; a processor computes in float32 and has none, but for the
output head of a frozen model. The activations are the fewest that do: each layer's input, and one layer that is
computed again; where there is room, more are kept (`--activation-checkpointing`). The engine is vLLM's copy of the
weights. The embedded engine has copies while it samples, when there are no gradients and activations: matrices side by
side, and under adapters all of them merged. Of frozen weights of more than 8 GiB in float32 it makes none, and takes
longer. Loading takes 4 bytes for each weight, for a moment.

A KL term (`--kl-coef`) without adapters adds the reference's weights, and a teacher (`--teacher-id`) its own. A prompt
with its completion is computed whole, also where it is longer than `--micro-batch-tokens`.

## Several processes

`torchrun --nproc-per-node 2 train.py` trains in two processes on one machine ([runs.md](runs.md)). Each has the whole
model and its own engine: the table holds for each card. On a processor they divide the memory and the cores. A model
that fits no card is divided over several: [scaling.md](scaling.md).
"""


if __name__ == "__main__":
    PAGE.write_text(page())
