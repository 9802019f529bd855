"""Rollout tokens per second of the embedded engine against vLLM on the same CPU.

    make setup EXTRA=bench
    python benchmarks/rollout.py

64 rows, 8 prompts x 8, 32 + 64 tokens, 1M, 5M and 15M parameters, the same precision. vLLM samples without seeds, which
would cost it time, and with the log-probabilities that a trainer needs. Before each round both
forget their prompts, since an update would have changed the weights.
"""

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from harness import Turns, compare, show
from shapes import SHAPES, Work, make_policy, save_shape

from minrl.engines.vllm import installed_build, refusal


def embedded(turns: Turns, work: Work) -> None:
    """The embedded engine."""
    from minrl.engines import Sampling
    from minrl.engines.torch_engine import TorchEngine

    engine = TorchEngine(make_policy(work))
    turns.ready()
    while True:
        requests = work.requests(turns.wait())
        started = time.perf_counter()
        completions = engine.generate(requests, Sampling(1.0, frozenset()))
        turns.done(time.perf_counter() - started, {"tokens": sum(len(c.ids) for c in completions)})


def vllm(turns: Turns, work: Work) -> None:
    """vLLM, in its process."""
    from minrl.engines.vllm import ENVIRONMENT, torch_left_alone

    folder = Path(tempfile.mkdtemp())
    save_shape(work.size, folder)
    os.environ.update(ENVIRONMENT)
    with torch_left_alone():
        from vllm import LLM, SamplingParams

        engine = LLM(
            str(folder),
            trust_remote_code=False,
            dtype=work.dtype,
            max_model_len=work.prompt_tokens + work.max_tokens,
            max_num_seqs=work.prompts * work.group,
            logprobs_mode="processed_logprobs",
            kv_cache_memory_bytes=2**30,  # all rows take 80 MB; the default is a share of the machine
        )
    turns.ready()
    while True:
        requests = work.requests(turns.wait())
        started = time.perf_counter()
        parameters = [
            SamplingParams(max_tokens=r.max_tokens, ignore_eos=True, logprobs=0, detokenize=False) for r in requests
        ]
        engine.reset_prefix_cache()
        prompts = [{"prompt_token_ids": request.ids} for request in requests]
        outputs = engine.generate(prompts, parameters, use_tqdm=False)
        turns.done(time.perf_counter() - started, {"tokens": sum(len(o.outputs[0].token_ids) for o in outputs)})


def main() -> None:
    """Every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    if reason := refusal("cpu", installed_build()):
        print(f"left out: rollout ({reason})")
        return
    rows = []
    for size in options.sizes:
        sides = {"embedded": embedded, "vLLM": vllm}
        name = f"rollout tokens/s, {size}, 64 rows, {options.dtype}"
        row = compare(name, "vLLM on the CPU", sides, Work(size=size, dtype=options.dtype), options.rounds)
        rows.append(replace(row, values=[1 / value for value in row.values]))  # of speeds
    show(rows)


if __name__ == "__main__":
    main()
