"""Writes docs/scaling.md: which model trains on how many cards, and what a step of 7B would take there.

    python docs/scaling.py

`tests/test_scaling.py` compares the page with what this makes.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from minrl.config import OptimizerConfig
from minrl.models.memory import Need, Setup, needed, with_adapters

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from hardware import CACHE_GIB, GIB, PUBLISHED, RANK, SMALL_TOKENS, USABLE, Shape
from predict import Assumed, assumptions, kinds, report

PAGE = Path(__file__).with_name("scaling.md")
SIZES = ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "70B")
CARDS, COUNTS, NODE = (24, 80, 141), (1, 2, 4, 8, 16, 64), 8
WAYS = {
    # what is in the table: sharding, engine, whether vLLM is divided over the cards of a node
    "": ("none", "vllm", False),
    " s": ("full", "vllm", False),
    " st": ("full", "vllm", True),
    " sv": ("full", "vllm-server", False),
}
"""Ways to train on several cards, those that need the least first."""


@cache
def need(shape: Shape, adapted: bool, cards: int, way: str, tokens: int, reference: bool = False) -> Need:
    """What each of so many cards holds."""
    sharding, engine, parallel = WAYS[way]
    weights = with_adapters(shape.weights, shape, RANK, bfloat16=True) if adapted else shape.weights
    setup = Setup(
        processes=cards,
        nodes=-(-cards // NODE),
        sharding=sharding,
        bfloat16=True,
        tokens=tokens,
        reference=reference,
        engine=engine,
        tensor_parallel=min(cards, NODE) if parallel else 1,
        cache=CACHE_GIB * GIB,
    )
    return needed(weights, shape, setup)


def fits(shape: Shape, adapted: bool, cards: int, memory_gb: int) -> str:
    """The first way that fits, with an m where only smaller micro-batches do; a dash if none."""
    for tokens, mark in ((OptimizerConfig().micro_batch_tokens, ""), (SMALL_TOKENS, "m")):
        for way in WAYS if cards > 1 else ("",):
            if need(shape, adapted, cards, way, tokens).total <= USABLE * memory_gb * GIB:
                name = "LoRA" if adapted else "full"
                return name + (way or " " * bool(mark)) + mark
    return "-"


def cell(shape: Shape, cards: int, memory_gb: int) -> str:
    """Full training and adapters, as they fit."""
    found = [fits(shape, adapted, cards, memory_gb) for adapted in (False, True)]
    return ", ".join(one for one in found if one != "-") or "none"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _tables() -> Iterator[str]:
    for memory_gb in CARDS:
        yield ""
        yield _row(f"cards of {memory_gb} GB", *map(str, COUNTS))
        yield _row(*["---"] * (len(COUNTS) + 1))
        for name in SIZES:
            yield _row(name, *(cell(PUBLISHED[name], cards, memory_gb) for cards in COUNTS))


PARTS = ("weights", "gradients", "moments", "casts", "activations", "gathered", "buffers", "engine", "reference")


def _parts() -> Iterator[str]:
    tokens = OptimizerConfig().micro_batch_tokens
    yield _row("model, cards", *PARTS)
    yield _row(*["---"] * (len(PARTS) + 1))
    for name in ("8B", "32B", "70B"):
        for adapted in (False, True):
            for cards, way in ((1, ""), (8, " s"), (64, " s")):
                held = vars(need(PUBLISHED[name], adapted, cards, way, tokens, reference=not adapted))
                numbers = (f"about {held[part] / GIB:.1f}" for part in PARTS)
                yield _row(f"{name}{' LoRA' * adapted}, {cards}", *numbers)


def page() -> str:
    """The whole page."""
    assumed = Assumed()
    columns = [(cards, kind) for cards in (8, 64) for kind in kinds(cards, assumed)]
    return TEXT.format(
        tables="\n".join(_tables()).strip(),
        parts="\n".join(_parts()),
        predicted="\n".join(report("7B", "H100", columns, assumed)),
        hidden="\n".join(report("7B", "H200", columns, replace(assumed, hidden=1.0))),
        assumed="\n".join(assumptions("H100", assumed)),
        rank=RANK,
        tokens=OptimizerConfig().micro_batch_tokens,
        few=SMALL_TOKENS,
        cache=CACHE_GIB,
        usable=USABLE,
    )


TEXT = """# Several cards, several machines

What to do when one card is not enough. One process trains on each card; together they are one run, with the command
line of one. This page is written by `python docs/scaling.py`, from the function with which the preflight judges a run
(`minrl/models/memory.py`). `python benchmarks/processes.py` compares that function with measured peaks on a processor;
no figure on this page was measured on a card.

## What to do, in this order

**The model fits one card, but a step takes long**: a whole copy in each process (`--sharding none`, the default).
Rollouts, rewards and the update are divided, and gradients are summed once for an optimizer step.

```sh
torchrun --nproc-per-node 8 train.py --model-id Qwen/Qwen3-0.6B --task gsm8k
```

**Several machines**: the same command on each of them, with the address of one.

```sh
torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29500 train.py --task gsm8k
```

**The model does not fit**: first what costs no other card, adapters (`--lora-rank {rank}`), moments in 8 bits
(`--optimizer adamw8bit`) and smaller micro-batches (`--micro-batch-tokens {few}`). Then `--sharding full`: torch's
FSDP2 divides weights, gradients and moments over all processes, and gathers a layer's weights before it computes.
`--sharding hybrid` divides them over the cards of a machine and repeats them on each machine, so that sums of gradients
are all that leaves it. A KL term's reference and a teacher are divided too; a frozen opponent, which only samples, is
whole in each process.

**The engine does not fit**: vLLM in each process holds the weights in bfloat16 once more. `--engine-tensor-parallel 8`
divides them over the cards of a machine. With `--engine vllm-server` other cards or machines sample.

Where a run does not fit, the preflight names what would make it fit.

There is no Ray, and nothing of our own in its place: no scheduler, no remote calls, no parameter server. Every process
does the same at the same time, and collectives of torch.distributed are all that they say to each other. What starts
processes, and starts them again, is there wherever cards are: torchrun, SLURM, a container service. A second runtime
would bring its own ports, logs and ways to fail.

## What fits

{tables}

| in the table | means |
| --- | --- |
| full | all weights are trained, a whole copy on each card, vLLM in each process |
| LoRA | adapters, `--lora-rank {rank}` |
| s | with `--sharding full` |
| t | and `--engine-tensor-parallel` over the cards of a machine (8 at most) |
| v | and `--engine vllm-server`: the engine is on further cards |
| m | with `--micro-batch-tokens {few}` in place of {tokens} |

A share of {usable} of a card is used. While vLLM samples beside the policy it has its weights and, at least, {cache}
GiB for keys and values; where its usual share of the card is less, raise `--engine-memory-frac`.

GiB of an update in each process, sharded over several, all weights trained or adapters (LoRA):

{parts}

Gathered is what is whole while a layer computes: that layer, and embedding and head, which belong to none. Buffers are
the layer that is gathered next, and gradients before they are summed. These two do not shrink with more cards. The
reference is a copy that only a KL term (`--kl-coef`) needs; with adapters it is the model without them.

## How long a step takes: calculated, not measured

`python benchmarks/predict.py` prints this from counted bytes and operations. Every assumption has a flag.

{predicted}

The same on H200, with `hidden` at 1: computing hides all communication of the passes that it is long enough for.

{hidden}

```
{assumed}
```
"""


if __name__ == "__main__":
    PAGE.write_text(page())
