"""Mixtures of experts in bfloat16: how far engine and policy are apart, with routers in bfloat16 and in float32.

    python benchmarks/experts.py

Models of random weights sample 32 completions of 64 tokens by the embedded engine in bfloat16; the policy scores them
in bfloat16, and in float32. A token is flipped in a layer where bfloat16 sends it to other experts than float32.
"""

import argparse
import sys
from contextlib import contextmanager

import torch
from harness import doing
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from minrl.batch import pack
from minrl.config import ModelConfig
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.models.distributed import Processes
from minrl.models.loading import word_tokenizer
from minrl.models.modules import exact_routers
from minrl.models.scoring import sampled_rollout, score
from minrl.policy import as_policy
from minrl.run.verify import verify
from minrl.types import Request

SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}
MANY = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32}
LOCAL = {"num_local_experts": 16, "num_experts_per_tok": 4, "head_dim": 16}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
GROUPS = {"n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
LARGE = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4}
LARGE |= {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 128, "vocab_size": 4096}
MODELS = {
    "Mixtral": ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "Qwen2-MoE": ("qwen2_moe", MANY | {"shared_expert_intermediate_size": 48}),
    "Qwen3-MoE": ("qwen3_moe", MANY),
    "OLMoE": ("olmoe", {"num_experts": 16, "num_experts_per_tok": 4, "num_key_value_heads": 4}),
    "DeepSeek V3": ("deepseek_v3", LATENT | GROUPS | {"num_key_value_heads": 4, "moe_intermediate_size": 32}),
    "MiniMax M2": ("minimax_m2", LOCAL | {"rotary_dim": 16}),
    "gpt-oss": ("gpt_oss", LOCAL | {"sliding_window": 32}),
    "Qwen3-MoE, wide": ("qwen3_moe", LARGE),
}


def make(kind: str, changes: dict, processes: Processes, exact: bool):
    """The policy of a model of random weights, scaled so that tokens and experts differ."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**SMALL | changes))
    for name, weight in model.named_parameters():
        if "router" in name or "mlp.gate.weight" in name:
            weight.data.normal_(0, 2 * weight.shape[-1] ** -0.5)
        elif weight.ndim > 1:
            weight.data.normal_(0, 1.5 * weight.shape[-1] ** -0.5)
    paths = exact_routers(model, model.config) if exact else []
    policy = as_policy(model, word_tokenizer([]), ModelConfig(device="cpu", dtype="bfloat16", threads=1), processes)
    verify(model)
    return policy, paths


@contextmanager
def chosen_experts(model):
    """The experts that each router chooses, sorted, in order of the calls."""
    chosen: list[torch.Tensor] = []
    routers = [m for m in model.modules() if type(m).__name__.lower().endswith("router")]
    hooks = [m.register_forward_hook(lambda _m, _i, out: chosen.append(out[-1].sort(-1).values)) for m in routers]
    yield chosen
    for hook in hooks:
        hook.remove()


@torch.no_grad()
def measure(policy) -> dict[str, float]:
    """Gaps, flips and importance weights of completions that the engine samples."""
    generator = torch.Generator().manual_seed(0)
    size = policy.model.config.vocab_size
    prompts = torch.randint(3, size, (8, 16), generator=generator).tolist()
    requests = [Request(prompt, 4 * number + seed, 64) for number, prompt in enumerate(prompts) for seed in range(4)]
    completions = TorchEngine(policy).generate(requests, Sampling(1.0, frozenset()))
    rollouts = [sampled_rollout(r.ids, c.ids) for r, c in zip(requests, completions, strict=True)]
    stream = pack(rollouts, range(len(rollouts)))
    engine = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    engine = engine[stream.token_index]
    with chosen_experts(policy.model) as short:
        scored = policy.score(stream, 1.0)[0]
    with chosen_experts(policy.model) as exact:
        expected = score(policy.model, stream, 1.0)[0]
    flipped = torch.cat([(a != b).any(-1) for a, b in zip(short, exact, strict=True)]).float().mean()
    gap, weight = (scored - engine).abs(), (scored - engine).exp()
    return {
        "mean": float(gap.mean()),
        "max": float(gap.max()),
        "flipped": float(flipped),
        "from float32": float((scored - expected).abs().mean()),
        "weight": float(weight.mean()),
        "capped": float((weight > 2).float().mean()),
        "ess": float(weight.clamp(max=2).sum() ** 2 / (weight.clamp(max=2) ** 2).sum() / len(weight)),
    }


def main() -> None:
    """Print a row for each model and precision of its routers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    chosen = parser.parse_args().models
    processes = Processes(ModelConfig(device="cpu", dtype="bfloat16", threads=1))
    columns = ("mean", "max", "flipped", "from float32", "weight", "capped", "ess")
    print(f"{'model':18s} {'router':9s}", *(f"{name:>12s}" for name in columns))
    for name in chosen:
        kind, changes = MODELS[name]
        for exact in (False, True):
            doing(f"{name}, router in {'float32' if exact else 'bfloat16'}")
            policy, _ = make(kind, changes, processes, exact)
            figures = measure(policy)
            router = "float32" if exact else "bfloat16"
            print(f"{name:18s} {router:9s}", *(f"{figures[column]:12.4f}" for column in columns))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
