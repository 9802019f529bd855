"""What several processes train is what one would, with replicas and with shards, to the last digits of float64."""

import inspect
import re

import pytest
import torch
from crew import crew
from torch.distributed.fsdp import FSDPModule
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from minrl.algorithms import choose_algorithm
from minrl.batch import make_batch, pack
from minrl.dataflow import Request, Reward, TrainState, UserError
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.models import distributed, sharding
from minrl.models.distributed import Processes
from minrl.models.loading import load_model, save_model, small_qwen3, word_tokenizer
from minrl.models.lora import Adapters
from minrl.models.scoring import sampled_rollout
from minrl.models.sharding import gathered, named_weights, sharded_policy
from minrl.optimizer import make_optimizer
from minrl.policy import as_policy
from minrl.run.checkpoint import optimizer_tensors
from minrl.update import update_policy
from tests.conftest import CPU, rollout_of
from tests.parsed import sized

LENGTHS = (1, 9, 3, 14, 2, 2, 7, 5)
"""Sampled tokens of each rollout: processes have unequal shares of them."""

SETTINGS = {
    "plain": {},
    "one process teaches": {"silent": [0, 1, 2, 3, 4, 5, 6]},
    "nothing teaches": {"silent": list(range(8))},
    "several passes": {"model": "untied", "micro_batch_tokens": 8, "passes_per_step": 2, "minibatches_per_pass": 2},
    "recomputed": {"kl_coef": 0.1, "entropy_coef": 0.1, "activation_checkpointing": "always"},
    "adapters": {"lora_rank": 4, "kl_coef": 0.1},
}


@pytest.fixture(scope="module")
def folder(words, tmp_path_factory):
    """With a model whose head is tied to its embedding, and one whose head is not."""
    folder = tmp_path_factory.mktemp("sharding")
    tokenizer = word_tokenizer(words)
    save_model(small_qwen3(tokenizer, 64, 3, 2, seed=0), tokenizer, folder / "tied")
    untied = small_qwen3(tokenizer, 64, 3, 2, seed=1)
    untied.config.tie_word_embeddings = False
    untied.lm_head.weight = torch.nn.Parameter(0.9 * untied.lm_head.weight.detach())
    save_model(untied, tokenizer, folder / "untied")
    return folder


def played(folder, names, count, sharding, machines=1):
    """What the settings lead to in so many processes, by name."""
    return dict(zip(names, crew(count, trained, folder, names, sharding, machines=machines)[0], strict=True))


def trained(folder, names, sharding):
    """What the settings lead to in this process, one after the other; all of it in the main one."""
    Qwen3RMSNorm.forward = norm_in_float64
    distributed.BUCKET = 2**14  # gradients are sent in several messages
    with Processes(CPU).open() as processes:
        return [two_steps(folder, processes, sharding, **SETTINGS[name]) for name in names]


def norm_in_float64(self, hidden):
    return self.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.variance_epsilon)


def two_steps(folder, processes, sharding, model="tied", silent=(), **settings):
    """Weights and moments after two optimizer steps on a fixed batch, and what was computed on the way."""
    own = {"learning_rate": 1e-2, "warmup_steps": 0, "max_grad_norm": 0.5, "micro_batch_tokens": 16, **settings}
    config = sized(device="cpu", threads=1, sharding=sharding, **own)

    def load():
        loaded, tokenizer = load_model(str(folder / model))
        policy = as_policy(loaded.double(), tokenizer, config, processes)
        if config.lora_rank:
            policy.adapters = Adapters(policy.model, config, str(folder / model), 0)
            policy.model.double()
        elif config.kl_coef:
            policy.reference = load_model(str(folder / model))[0].double().requires_grad_(False)
        return policy

    policy = sharded_policy(load, processes, sharding) if sharding != "none" and processes.count > 1 else load()
    optimizer, engine = make_optimizer(policy, config), TorchEngine(policy)
    said, scored, metrics = [completions(engine)], [], []
    for step in (1, 2):
        engine.sleep()
        state, algorithm = TrainState(step=step), choose_algorithm(config)
        metrics.append(update_policy(policy, optimizer, batch(silent), algorithm, config, state, False).metrics)
        scored.append(logprobs(policy))
        with torch.no_grad():  # as an update, without a backward pass between two passes without a gradient
            for weight in named_weights(policy.model).values():
                weight.mul_(1.1)
        scored.append(logprobs(policy))
        engine.wake()
        engine.sync(policy)
        scored.append(logprobs(policy))  # while the engine holds whole weights
        said.append(completions(engine))
    engine.sleep()
    weights = named_weights(policy.model)
    tensors = gathered([*weights.items(), *optimizer_tensors(optimizer, policy).items()], processes.main)
    held = sum(getattr(weight, "to_local", lambda weight=weight: weight)().numel() for weight in weights.values())
    shares = processes.gather([held / sum(weight.numel() for weight in weights.values())])
    return {"tensors": tensors, "metrics": metrics, "said": said, "scored": scored, "shares": shares}


def batch(silent):
    """Rollouts of four groups, of which some teach nothing."""
    rollouts, advantages = [], []
    for index, length in enumerate(LENGTHS):
        sampled = [(3 * index + 5 * place) % 20 + 5 for place in range(length)]
        told = {"example_id": str(index // 2), "group": index // 2, "sample": index % 2}
        told |= {"reward": Reward(float(index % 2)), "rollout_logprobs": [-2.0] * (3 + length)}
        rollouts.append(rollout_of([5 + index // 2, 6, 7], sampled, **told))
        advantages.append(0.0 if index in silent else (1.0 if index % 2 else -0.5))
    return make_batch(rollouts, torch.tensor(advantages))


@torch.no_grad()
def logprobs(policy):
    return policy.score(pack([sampled_rollout([5, 6], [7, 8, 9])], [0]), 1.0)[0].tolist()


def completions(engine):
    """What the engine says to fixed prompts and seeds."""
    requests = [Request([5 + n, 6, 7], 100 + n, 8) for n in range(3)]
    return [one.ids for one in engine.generate(requests, Sampling(1.0, frozenset()))]


@pytest.fixture(scope="module")
def alone(folder):
    """All settings in one process."""
    return played(folder, list(SETTINGS), 1, "none")


@pytest.mark.slow
@pytest.mark.parametrize(("count", "sharding", "machines"), [(3, "none", 1), (3, "full", 1), (4, "hybrid", 2)])
def test_several_processes_train_as_one(alone, folder, count, sharding, machines):
    names = [*SETTINGS] if machines == 1 else ["plain", "several passes"]
    copies = {"none": count, "full": 1, "hybrid": machines}[sharding]
    assert alone["plain"]["metrics"][0]["policy/grad_norm"] > 0  # else equal weights say nothing
    for name, found in played(folder, names, count, sharding, machines).items():
        expected = alone[name]
        assert found["tensors"].keys() == expected["tensors"].keys(), name
        for key, tensor in found["tensors"].items():
            assert torch.allclose(tensor, expected["tensors"][key], rtol=0, atol=1e-9), (name, key)
        assert found["said"] == expected["said"], name
        for here, there in zip(found["scored"], expected["scored"], strict=True):
            assert here == pytest.approx(there, abs=1e-9), name
        for here, there in zip(found["metrics"], expected["metrics"], strict=True):
            assert here.keys() == there.keys()
            for tag in here.keys() - {"update/computed_tokens"}:
                assert here[tag] == pytest.approx(there[tag], rel=1e-6, abs=1e-9), (name, tag)
        assert sum(found["shares"]) == pytest.approx(copies)
        assert max(found["shares"]) < copies / count + 0.03  # four rows are two, two and none in three processes


def test_a_torch_without_a_method_of_fsdp_is_refused_in_one_line(monkeypatch):
    called = set(re.findall(r"module\.((?:set_|un|re)\w+)\(", inspect.getsource(sharding)))
    assert len(called) >= 6 and all(hasattr(FSDPModule, name) for name in called)
    monkeypatch.delattr(FSDPModule, "set_reduce_scatter_unused_params")  # as in torch 2.11
    with pytest.raises(UserError, match=r"^--sharding needs torch 2.13 or newer"):
        sharding.shard(None, None, "full")
