"""The step time of a model on many cards: calculated from counted bytes and operations, not measured.

    python benchmarks/predict.py
    python benchmarks/predict.py --model 32B --card H200 --cards 64 --link-share 0.5

Everything that is assumed is printed and has a flag. Nothing overlaps but what `--hidden` says: the phases of a step
follow each other, and the share of communication that computing hides is an assumption too.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from harness import doing

from minrl.models.memory import Setup, Weights, needed
from minrl.models.shape import shape_of

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

from hardware import GIB, PUBLISHED, USABLE, Shape

CARDS = {
    # bfloat16 without sparsity, bytes of memory and their rate, bytes to the cards of the node in one direction
    "H100": (989e12, 80 * GIB, 3.35e12, 450e9),
    "H200": (989e12, 141 * GIB, 4.8e12, 450e9),
}
"""NVIDIA's data sheets of the SXM cards: operations/s, bytes, bytes/s, and half of NVLink's 900 GB/s."""


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What is assumed. A share is of the data sheet's figure."""

    prompts: int = 128
    """prompts of a step"""
    group: int = 8
    """completions of a prompt"""
    prompt_tokens: int = 512
    """tokens of a prompt"""
    tokens: int = 1024
    """tokens of a completion; all are as long"""
    micro_batch: int = 16384
    """tokens of a micro-batch"""
    node: int = 8
    """cards of a node"""
    product_share: float = 0.4
    """share of the operations that products of the update reach"""
    prefill_share: float = 0.4
    """the same for the prompts that the engine reads"""
    memory_share: float = 0.6
    """share of the memory's rate that decoding reaches"""
    token_ms: float = 5.0
    """milliseconds that a decoded token takes beside its bytes, such as launches and sampling"""
    cache_share: float = 0.45
    """share of a card that vLLM takes (--engine-memory-frac)"""
    link_share: float = 0.7
    """share of a link's rate that collectives reach"""
    network: float = 50e9
    """bytes/s of a card to other nodes: 400 Gbit/s each"""
    hidden: float = 0.0
    """share of the communication of forward and backward passes that computing hides"""
    reward_ms: float = 10.0
    """milliseconds of a reward on one core"""
    cores: int = 12
    """cores of a node that compute rewards, for each card"""


def matrices(shape: Shape) -> int:
    """Weights that every token is multiplied with: those of the layers."""
    return shape.num_hidden_layers * sum(inputs * outputs for inputs, outputs in shape.layer)


def update_flops(shape: Shape, assumed: Assumed, recompute: bool = True) -> float:
    """Operations of one update of all rollouts: a prompt once for its group, the head for completions alone.

    2 for each weight and token forward, 4 backward, and 2 more where a layer is computed again; attention 4 for each
    pair of positions and each number of a query, half of the square, as often.
    """
    passes = 4 if recompute else 3
    completions = assumed.prompts * assumed.group * assumed.tokens
    computed = assumed.prompts * assumed.prompt_tokens + completions
    head = shape.vocab_size * shape.hidden_size
    before = assumed.prompt_tokens
    pairs = before**2 / 2 + assumed.group * (assumed.tokens * before + assumed.tokens**2 / 2)
    queries = shape.num_attention_heads * shape.head_dim * shape.num_hidden_layers
    attention = 4.0 * assumed.prompts * pairs * queries
    return passes * (2.0 * matrices(shape) * computed + attention) + 3 * 2.0 * head * completions


def sent_by_each(weights: Weights, setup: Setup, passes: int) -> dict[str, float]:
    """Bytes that each process sends in an optimizer step of so many micro-batches, and those of them that go, along
    the slowest link, to other nodes.

    A ring sends (n - 1) / n of the whole for a gather, as much for a sum that is scattered, and twice for a sum that
    all have. Each micro-batch gathers layers twice, forward and backward, what is outside them once, and sums once;
    whole copies sum once for all.
    """
    count, per_node = setup.processes, setup.processes // setup.nodes
    trained = 4.0 * weights.trained
    if setup.shards == 1:
        sent = 2 * trained * (count - 1) / count
        return {"gather": 0.0, "reduce": sent, "between nodes": sent if setup.nodes > 1 else 0.0}
    shards = setup.shards
    gathered = 2 * weights.stored - weights.part(weights.stored, weights.outer)
    gather = passes * gathered * (shards - 1) / shards
    reduce = passes * trained * (shards - 1) / shards
    between = gather + reduce if shards > per_node else 0.0
    if shards < count:  # what a node has summed is summed over the nodes
        over_nodes = passes * 2 * trained / shards * (setup.nodes - 1) / setup.nodes
        reduce, between = reduce + over_nodes, over_nodes
    return {"gather": gather, "reduce": reduce, "between nodes": between}


def decode_bytes(shape: Shape, rows: int, assumed: Assumed) -> float:
    """Bytes that decoding reads for each position: all weights once, and the keys and values of its rows so far."""
    slot = 2 * shape_of(shape).cached
    average = assumed.prompt_tokens + assumed.tokens / 2
    return 2.0 * (matrices(shape) + shape.vocab_size * shape.hidden_size) + rows * average * slot


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step by part, and GiB of a card."""

    seconds: dict[str, float]
    gib: float
    fits: bool
    """Whether the card holds that, and vLLM's share of it its weights and one row."""

    @property
    def total(self) -> float:
        """Of all parts."""
        return sum(self.seconds.values())


def predict(shape: Shape, card: str, cards: int, sharding: str, assumed: Assumed) -> Prediction:
    """One step of GRPO with vLLM in each process: one optimizer step, AdamW, layers computed again."""
    flops, memory, memory_rate, link = CARDS[card]
    weights, nodes = shape.weights, -(-cards // assumed.node)
    rows = assumed.prompts * assumed.group / cards
    computed = (assumed.prompts * assumed.prompt_tokens + rows * cards * assumed.tokens) / cards
    passes = max(1, -(-int(computed) // assumed.micro_batch))
    setup = Setup(
        processes=cards,
        nodes=nodes,
        sharding=sharding,
        bfloat16=True,
        tokens=min(assumed.micro_batch, int(computed)),
        engine="vllm",
        cache=int(max(0, assumed.cache_share * memory - 2 * weights.total)),
    )
    need = needed(weights, shape, setup)
    # Rollout: as many rows at a time as the cache holds, each position bound by bytes or by operations.
    context = (assumed.prompt_tokens + assumed.tokens) * 2 * shape_of(shape).cached
    waves = max(1, -(-int(rows * context) // max(context, need.cache)))
    at_once = rows / waves
    products = 2.0 * (matrices(shape) + shape.vocab_size * shape.hidden_size) * at_once
    position = max(
        decode_bytes(shape, int(at_once), assumed) / (memory_rate * assumed.memory_share),
        products / (flops * assumed.prefill_share),
    )
    prefill = 2.0 * matrices(shape) * assumed.prompt_tokens * max(1, assumed.prompts / cards)
    update = update_flops(shape, assumed) / cards / (flops * assumed.product_share)
    sent = sent_by_each(weights, setup, passes)
    within = (sent["gather"] + sent["reduce"] - sent["between nodes"]) / (link * assumed.link_share)
    between = sent["between nodes"] / (assumed.network * assumed.link_share)
    communicated = within + between
    exposed = max(communicated * (1 - assumed.hidden), communicated - update)
    # The optimizer reads weights, gradients and moments and writes all but gradients; vLLM gets two bytes of four.
    stepped = 28.0 * weights.trained / setup.shards / (memory_rate * assumed.memory_share)
    handed = 6.0 * weights.total / (memory_rate * assumed.memory_share)
    parts, rate = setup.shards, link if setup.shards <= assumed.node else assumed.network
    handed += weights.stored * (parts - 1) / parts / (rate * assumed.link_share)
    seconds = {
        "rollout: prompts": prefill / (flops * assumed.prefill_share),
        "rollout: decoding": waves * assumed.tokens * (position + assumed.token_ms / 1e3),
        "rewards": rows * assumed.reward_ms / 1e3 / assumed.cores,
        "update: products": update,
        "update: gather and reduce": exposed if sharding != "none" else communicated,
        "optimizer step": stepped,
        "sync": handed,
    }
    return Prediction(seconds, need.total / GIB, need.total <= USABLE * memory and need.cache >= context)


def report(model: str, card: str, columns: list[tuple[int, str]], assumed: Assumed) -> Iterator[str]:
    """A table of seconds by part, and what was assumed."""
    shape = PUBLISHED[model]
    made = [predict(shape, card, cards, sharding, assumed) for cards, sharding in columns]
    heads = [f"{cards} cards, {sharding}" for cards, sharding in columns]
    yield f"| {model} on {card}, seconds of a step | {' | '.join(heads)} |"
    yield f"| --- |{' --- |' * len(columns)}"
    for part in made[0].seconds:
        yield f"| {part} | {' | '.join(f'about {one.seconds[part]:.2f}' for one in made)} |"
    yield f"| all | {' | '.join(f'about {one.total:.1f}' for one in made)} |"
    tokens = assumed.prompts * assumed.group * assumed.tokens
    yield f"| sampled tokens/s | {' | '.join(f'about {tokens / one.total:,.0f}' for one in made)} |"
    held = (f"about {one.gib:.0f}{'' if one.fits else ', too much'}" for one in made)
    yield f"| GiB of a card | {' | '.join(held)} |"


def assumptions(card: str, assumed: Assumed) -> Iterator[str]:
    """A line for everything that is assumed: its flag, value and meaning."""
    flops, memory, rate, link = CARDS[card]
    yield f"--card {card}: {flops / 1e12:.0f}e12 operations/s in bfloat16, {memory / GIB:.0f} GB of memory at"
    yield f"    {rate / 1e12:.2f}e12 bytes/s, {link / 1e9:.0f}e9 bytes/s in each direction of NVLink (data sheet)"
    for field, meaning in zip(fields(assumed), _meanings(), strict=True):
        value = getattr(assumed, field.name)
        yield f"--{field.name.replace('_', '-')} {value:g}: {meaning}"


def _meanings() -> list[str]:
    """The strings below the fields of `Assumed`."""
    parsed = ast.parse(Path(__file__).read_text()).body
    assumed = next(node for node in parsed if isinstance(node, ast.ClassDef) and node.name == Assumed.__name__)
    strings = [node.value for node in assumed.body if isinstance(node, ast.Expr)][1:]
    return [str(string.value) for string in strings if isinstance(string, ast.Constant)]


def main() -> None:
    """Print the prediction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=PUBLISHED, default="7B")
    parser.add_argument("--card", choices=CARDS, default="H100")
    parser.add_argument("--cards", type=int, nargs="+", default=[8, 64])
    for field, meaning in zip(fields(Assumed), _meanings(), strict=True):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(field.default), default=field.default, help=meaning)
    given = vars(parser.parse_args())
    doing("calculating")
    assumed = replace(Assumed(), **{field.name: given[field.name] for field in fields(Assumed)})
    columns = [(cards, kind) for cards in given["cards"] for kind in kinds(cards, assumed)]
    print(*report(given["model"], given["card"], columns, assumed), sep="\n")
    print("\nCalculated, not measured. Assumed:", *assumptions(given["card"], assumed), sep="\n")


def kinds(cards: int, assumed: Assumed) -> tuple[str, ...]:
    """The ways to hold the weights on so many cards."""
    return ("none", "full", "hybrid") if cards > assumed.node else ("none", "full") if cards > 1 else ("none",)


if __name__ == "__main__":
    main()
