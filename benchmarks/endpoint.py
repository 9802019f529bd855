"""minrl serve by its own endpoint: tokens per second of one request, and of several at once.

    python benchmarks/endpoint.py

A model of random weights that never ends an answer, the shape of the default run's. Prints one line for each number of
requests, and what the engine alone samples in one call of the same tokens.
"""

import argparse
import json
import statistics
import threading
import time
import urllib.request
from functools import partial

from harness import doing

from minrl.config import ModelConfig
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.models.distributed import Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import Policy, as_policy
from minrl.tools.serve.sampler import Sampler
from minrl.tools.serve.serve import http_server, listen
from minrl.types import Request


def parse() -> argparse.Namespace:
    """The shape of the model and of the requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--hidden-size", type=int, default=192)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def ask(url: str, seed: int, max_tokens: int, stream: bool) -> None:
    """One request, read to its end."""
    body = {"prompt": "numbers 3 7", "max_tokens": max_tokens, "seed": seed, "stream": stream}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()


def seconds(url: str, count: int, max_tokens: int, stream: bool) -> float:
    """How long that many requests take that come at once."""
    threads = [threading.Thread(target=ask, args=(url, seed, max_tokens, stream)) for seed in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def alone(policy: Policy, engine: TorchEngine, count: int, max_tokens: int) -> float:
    """How long the engine takes for the same tokens in one call."""
    requests = [Request(policy.encode_prompt("numbers 3 7"), seed, max_tokens) for seed in range(count)]
    began = time.perf_counter()
    engine.generate(requests, Sampling(1.0, frozenset()))
    return time.perf_counter() - began


def main() -> None:
    """Measure in turns, so that a change of the machine's speed falls on all."""
    args = parse()
    config = ModelConfig(device="cpu", threads=args.threads)
    tokenizer = word_tokenizer(["numbers", *map(str, range(10))])
    policy = as_policy(
        small_qwen3(tokenizer, args.hidden_size, args.layers, 4, 0), tokenizer, config, Processes(config)
    )
    policy.model.generation_config.eos_token_id = policy.tokenizer.eos_token_id = None
    policy.tokenizer.chat_template = None
    engine = TorchEngine(policy)
    sampler, listener = Sampler(policy, engine, args.max_tokens), listen(0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"

    def sample() -> None:
        while True:
            sampler.step()

    threading.Thread(target=sample, daemon=True).start()
    threading.Thread(target=http_server(sampler, "random").run, args=([listener],), daemon=True).start()
    times: dict[tuple[int, str], list[float]] = {}
    doing("serving")
    for _ in range(args.rounds):
        for count in args.requests:
            ways = {
                "engine": partial(alone, policy, engine, count, args.max_tokens),
                "whole": partial(seconds, url, count, args.max_tokens, False),
                "streamed": partial(seconds, url, count, args.max_tokens, True),
            }
            for way, measure in ways.items():
                times.setdefault((count, way), []).append(measure())
    for (count, way), took in times.items():
        rate = count * args.max_tokens / statistics.median(took)
        spread = " to ".join(f"{count * args.max_tokens / one:,.0f}" for one in (max(took), min(took)))
        print(f"{count} at once, {way}: {rate:,.0f} tokens/s ({spread})")


if __name__ == "__main__":
    main()
