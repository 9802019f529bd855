"""Rollout tokens per second of the embedded engine with its own decoder against transformers' cache, shape by shape.

    python benchmarks/decoders.py --shapes mistral gemma3_text --sizes 1M 5M

64 rows, 8 prompts x 8, 32 + 64 tokens, random weights, float32. Both take turns in one process of one thread, whose own
time is counted, so that what else the machine does disturbs neither; the ratio is the median of the rounds'.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from harness import doing
from shapes import Work
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from minrl.config import ModelConfig
from minrl.engines import Sampling, torch_engine
from minrl.engines.cached_decoder import CachedDecoder
from minrl.engines.decoder import LlamaDecoder, make_decoder
from minrl.engines.shapes import SHAPES
from minrl.models.loading import word_tokenizer
from minrl.models.processes import Processes
from minrl.policy import Policy, as_policy

SIZES = {"1M": (192, 2, 4, 1000), "5M": (256, 4, 8, 8192), "50M": (512, 12, 8, 16384)}
"""Hidden size, layers, heads and vocabulary, which make so many parameters in a dense model with gates."""

MIXTURE = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2}


def fields(name: str, size: str) -> dict[str, Any]:
    """The config of a shape at a size; every other layer slides where layers may."""
    hidden, layers, heads, vocabulary = SIZES[size]
    moe = any(word in name for word in ("moe", "mixtral", "flex_olmo", "gpt_oss"))
    inner = hidden * 3 // 4 if moe else 3 * hidden
    made = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "max_position_embeddings": 1024,
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    }
    if name != "exaone4":
        made["head_dim"] = hidden // heads
    if moe:
        made |= {**MIXTURE, "moe_intermediate_size": inner, "shared_expert_intermediate_size": inner}
    if SHAPES[name].windows:
        made |= {"sliding_window": 48, "use_sliding_window": True}
    if name == "lfm2":
        made["layer_types"] = ["conv", "full_attention"] * (layers // 2)
    if SHAPES[name].windows == "typed":
        made["layer_types"] = ["sliding_attention", "full_attention"] * (layers // 2)
    return made


def make_policy(name: str, size: str) -> Policy:
    """A policy of the shape with random weights, in memory."""
    config = ModelConfig(device="cpu", threads=1)
    torch.manual_seed(0)
    attention = "eager" if SHAPES[name].capped or name == "gpt_oss" else "sdpa"  # which takes neither cap nor sinks
    made = CONFIG_MAPPING[name](**fields(name, size))
    model = AutoModelForCausalLM.from_config(made, attn_implementation=attention)
    return as_policy(model, word_tokenizer([f"w{n}" for n in range(SIZES[size][3] - 5)]), config, Processes(config))


def main() -> None:
    """Every shape at every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--sizes", nargs="+", default=["1M", "5M"], choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for size in options.sizes:
        for name in options.shapes:
            doing(f"{name}, {size}")
            print(size, name, *measure(name, size, options.rounds, options.tokens), flush=True)


def measure(name: str, size: str, rounds: int, tokens: int) -> tuple[str, str, str]:
    """Parameters; tokens per second by the own decoder; how many times as many those are as by transformers' cache."""
    policy = make_policy(name, size)
    engine, work = torch_engine.TorchEngine(policy), Work(size="1M" if size == "1M" else "5M", max_tokens=tokens)
    own, ratios = [], []
    for number in range(rounds + 1):
        seconds = []
        for make in (make_decoder, CachedDecoder):
            torch_engine.make_decoder = make
            started = time.process_time()
            completions = engine.generate(work.requests(number), Sampling(1.0, frozenset()))
            seconds.append(time.process_time() - started)
        if number:  # the first round warms up
            own.append(sum(len(c.ids) for c in completions) / seconds[0])
            ratios.append(seconds[1] / seconds[0])
    assert isinstance(make_decoder(policy.model), LlamaDecoder)
    parameters = sum(weight.numel() for weight in policy.model.parameters()) / 1e6
    return f"{parameters:.1f}M", f"{statistics.median(own):,.0f} tokens/s", f"x{statistics.median(ratios):.2f}"


if __name__ == "__main__":
    main()
