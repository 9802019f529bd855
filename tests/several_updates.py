"""Two optimizer steps on a fixed batch, in one process or in several, whose weights are replicas or shards.

Everything is computed in float64, so that what differs is not rounding. The main process writes the weights, moments
and metrics that all processes end with.
"""

from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from minrl.algorithms import choose_algorithm
from minrl.batch import Batch, make_batch, pack
from minrl.config import TrainerConfig
from minrl.dataflow import Request, Reward, TrainState
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.models.distributed import Processes
from minrl.models.loading import load_model
from minrl.models.lora import Adapters
from minrl.models.scoring import sampled_rollout
from minrl.models.sharding import gathered, named_weights, sharded_policy
from minrl.optimizer import make_optimizer
from minrl.policy import Policy, as_policy
from minrl.run.checkpoint import optimizer_tensors, restore_optimizer, save_checkpoint, step_name
from minrl.update import update_policy
from minrl.utils.files import write_json
from tests.conftest import rollout_of
from tests.parsed import sized

STEPS = 2

LENGTHS = (1, 9, 3, 14, 2, 2, 7, 5)
"""Sampled tokens of each rollout: processes have unequal shares of them."""


def main(cases: list[dict]) -> None:
    """Play the cases one after the other."""
    Qwen3RMSNorm.forward = norm_in_float64
    with Processes(sized(device="cpu", threads=1)).open() as processes:
        for case in cases:
            play(case, processes)


def norm_in_float64(self, hidden):
    return self.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.variance_epsilon)


def play(case: dict, processes: Processes) -> None:
    """Train, and write what became of it."""
    config = sized(
        device="cpu",
        threads=1,
        sharding=case["sharding"],
        activation_checkpointing=case.get("recompute", "auto"),
        **case.get("algorithm", {}),
        learning_rate=1e-2,
        warmup_steps=0,
        max_grad_norm=0.5,
        micro_batch_tokens=case.get("micro_batch_tokens", 16),
        **case.get("lora", {}),
    )
    load = partial(whole_policy, case, config, processes)
    several = config.sharding != "none" and processes.count > 1
    policy = sharded_policy(load, processes, config.sharding) if several else load()
    optimizer = make_optimizer(policy, config)
    if "resume" in case:
        restore_optimizer(saved_in(case["resume"]), policy, optimizer)
    engine = TorchEngine(policy)
    said, scored = [completions(engine)], []
    metrics = []
    for step in range(1, STEPS + 1):
        engine.sleep()
        update = update_policy(
            policy, optimizer, batch(policy, case), choose_algorithm(config), config, TrainState(step=step), False
        )
        metrics.append(update.metrics)
        scored += [logprobs(policy)]
        with torch.no_grad():  # as an update, without a backward pass between two passes without a gradient
            for weight in named_weights(policy.model).values():
                weight.mul_(1.1)
        scored += [logprobs(policy)]
        engine.wake()
        engine.sync(policy)
        scored += [logprobs(policy)]  # while the engine holds whole weights
        said.append(completions(engine))
    engine.sleep()
    if "save_in" in case:
        save_checkpoint(Path(case["save_in"]), Path(case["save_in"]), policy, optimizer, TrainState(step=STEPS), config)
    weights = gathered(named_weights(policy.model).items(), processes.main)
    moments = gathered(optimizer_tensors(optimizer, policy).items(), processes.main)
    shards = {
        name: [type(w).__name__, int(getattr(w, "to_local", lambda: w)().numel()), w.numel()]  # noqa: B023
        for name, w in named_weights(policy.model).items()
    }
    shards = processes.gather([shards])
    if processes.main:
        out = Path(case["out"])
        save_file({k: v.contiguous() for k, v in {**weights, **moments}.items()}, out.with_suffix(".safetensors"))
        write_json(out, {"metrics": metrics, "said": said, "scored": scored, "shards": shards})


def saved_in(folder: str) -> Path:
    """The checkpoint that a case has saved."""
    return Path(folder) / step_name(STEPS)


def whole_policy(case: dict, config: TrainerConfig, processes: Processes) -> Policy:
    """The policy of the case in float64, and its reference and teacher if there are any."""
    start = saved_in(case["resume"]) if "resume" in case else Path(case["model"])

    def load(path: Path = start) -> Policy:
        model, tokenizer = load_model(str(path))
        return as_policy(model.double(), tokenizer, config, processes)

    policy = load()
    if config.lora_rank:
        policy.adapters = Adapters(policy.model, config, case["model"], 0)
        policy.model.double()
    elif config.kl_coef:
        policy.reference = load().model.requires_grad_(False)
    if config.teacher_id:
        policy.teacher = load(Path(case["model"]).with_name(config.teacher_id)).model.requires_grad_(False)
    return policy


def batch(policy: Policy, case: dict) -> Batch:
    """Rollouts of four groups; in some cases all of one process's teach nothing."""
    rollouts, advantages = [], []
    for index, length in enumerate(LENGTHS):
        sampled = [(3 * index + 5 * place) % 20 + 5 for place in range(length)]
        told = {"example_id": str(index // 2), "group": index // 2, "sample": index % 2}
        told |= {"reward": Reward(float(index % 2)), "rollout_logprobs": [-2.0] * (3 + length)}
        rollouts.append(rollout_of([5 + index // 2, 6, 7], sampled, **told))
        advantages.append(0.0 if index in case.get("silent", []) else (1.0 if index % 2 else -0.5))
    return make_batch(rollouts, torch.tensor(advantages))


@torch.no_grad()
def logprobs(policy: Policy) -> list[float]:
    """Log-probabilities of a few tokens."""
    ids = [5, 6, 7, 8, 9]
    stream = pack([sampled_rollout(ids[:2], ids[2:])], [0])
    return policy.score(stream, 1.0)[0].tolist()


def completions(engine: TorchEngine) -> list[list[int]]:
    """What the engine says to fixed prompts and seeds."""
    requests = [Request([5 + n, 6, 7], 100 + n, 8) for n in range(3)]
    return [one.ids for one in engine.generate(requests, Sampling(1.0, frozenset()))]
