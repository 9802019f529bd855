"""Peak memory of scoring and its backward pass against a plain log-softmax of all the logits.

    python benchmarks/memory.py

V = 151,936, D = 1024, 4,096 tokens, float32. Counted is the most resident memory beyond what was there before,
less the gradients of weights and hidden states, which both sides return.
"""

import argparse
import ctypes
import time
from pathlib import Path

import torch
from harness import Row, Sides, Turns, show

TOKENS, WIDTH, VOCABULARY = 4096, 1024, 151_936


def gib(field: str) -> float:
    """A figure of this process's memory: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 2**20


def measure(name: str, turns: Turns, score) -> None:
    """Report the peak of one forward and backward pass in each turn."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator).requires_grad_()
    weight = (torch.randn(VOCABULARY, WIDTH, generator=generator) / WIDTH**0.5).requires_grad_()
    labels = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    turns.ready()
    while True:
        turns.wait()
        hidden.grad = weight.grad = None
        ctypes.CDLL(None).malloc_trim(0)
        before = gib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from now
        started = time.perf_counter()
        logprobs, entropy = score(hidden, weight, labels)
        (logprobs.sum() + 0 * entropy.sum()).backward()
        seconds = time.perf_counter() - started
        gradients = (hidden.numel() + weight.numel()) * 4 / 2**30
        mean = float(logprobs.detach().mean())
        turns.done(seconds, {f"{name}_mean": mean, f"{name}_gib": gib("VmHWM") - before - gradients})


def chunked(turns: Turns, _: None) -> None:
    """MinRL's head."""
    from minrl.models.logprobs import Head, chunked_logprobs

    measure("chunked", turns, lambda hidden, weight, labels: chunked_logprobs(hidden, Head(weight), labels, 1.0))


def plain(turns: Turns, _: None) -> None:
    """log_softmax of all logits, and the entropy that every trainer reports, without a gradient."""

    def score(hidden, weight, labels):
        logp = (hidden @ weight.T).log_softmax(-1)
        with torch.no_grad():
            entropy = torch.stack([-(rows.exp() * rows).sum() for rows in logp.split(64)])
        return logp.gather(1, labels[:, None])[:, 0], entropy

    measure("plain", turns, score)


def main() -> None:
    """One row: gibibytes over gibibytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    sides = Sides("memory", {"chunked": chunked, "plain": plain}, None)
    kept = sides.rounds(options.rounds, warmup=0)
    sides.close()
    ratios = []
    for one in kept:
        facts = {key: value for side in one["facts"].values() for key, value in side.items()}
        assert abs(facts["chunked_mean"] - facts["plain_mean"]) < 1e-4, facts
        ratios.append(facts["chunked_gib"] / facts["plain_gib"])
    what = f"peak memory of scoring, V = {VOCABULARY:,}, D = {WIDTH}, {TOKENS:,} tokens"
    show([Row(what, "plain log_softmax", ratios)])


if __name__ == "__main__":
    main()
