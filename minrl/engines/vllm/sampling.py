"""How one completion is asked for: the same in this process and over HTTP."""

from typing import Any

from minrl.engines import Sampling
from minrl.engines.seeds import mix_seed
from minrl.types import Request


def sampling_settings(request: Request, sampling: Sampling) -> dict[str, Any]:
    """vLLM's names and values. Completions include the token or string that stopped them."""
    return {
        "temperature": sampling.temperature,
        "seed": mix_seed(request.seed),
        "max_tokens": request.max_tokens,
        "stop_token_ids": sorted(sampling.stop_ids),
        "stop": list(sampling.stop_strings),
        "skip_special_tokens": False,  # a stop string may hold one
        "include_stop_str_in_output": True,
        "ignore_eos": True,  # which tokens stop is the caller's choice
        "logprobs": 0,
    }
