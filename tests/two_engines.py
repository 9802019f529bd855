"""vLLM in several processes: an engine for each, of replicas or of shards. Each writes what it found."""

import json
import os
import sys
from contextlib import closing
from pathlib import Path

import torch
from gradients import CPU

from minrl.dataflow import SOLO, Example, Reward, Turn
from minrl.engines.vllm import VllmEngine
from minrl.models.distributed import Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.sharding import in_one_pass, named_weights, sharded_policy
from minrl.policy import Policy, as_policy
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, Rollouts, rollout
from minrl.tasks import Task
from minrl.tasks.task import split
from tests.parsed import sized

WORDS = [f"w{number}" for number in range(60)]


def episode(example, rng):
    """Between one and three turns, so that processes are done at different times."""
    for _ in range(1 + int(example.id) % 3):
        yield Turn(SOLO, example.prompt)
    return {SOLO: Reward(0.0)}


EXAMPLES = [Example(str(n), f"w{n} w{n + 1}", {}) for n in range(5)]
TASK = Task(split(EXAMPLES, 0.5), lambda text, example: Reward(0.0), episode=episode, cheap=True)


def settings() -> list[str]:
    """What starting an engine must leave as it was."""
    world = torch.distributed.group.WORLD
    state = torch.get_default_device(), torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state().sum()
    card = torch.cuda.current_device() if torch.cuda.is_available() else None
    launcher = {name: value for name, value in sorted(os.environ.items()) if name.endswith(("RANK", "WORLD_SIZE"))}
    return [
        str(one)
        for one in (launcher, card, *state, torch.set_num_threads, id(world), torch.distributed.get_world_size())
    ]


def sampled(policy: Policy, engine: VllmEngine, workers: Workers) -> Rollouts:
    plan = Plan(2, 6, 0.9, 0, "test", policy.version)
    return rollout(policy, engine, workers, TASK, EXAMPLES, plan)


@torch.no_grad()
def worst_gap(policy: Policy, found: Rollouts) -> float:
    gaps = []
    for one in found.rollouts:
        with policy.processes.autocast():
            row = torch.tensor([one.ids], device=policy.device)
            said = in_one_pass(policy.model, lambda model, row=row: model(input_ids=row))
        logits = said.logits[0, :-1] / 0.9
        own = logits.cpu().float().log_softmax(-1).gather(1, torch.tensor(one.ids)[1:, None])[:, 0]
        sampled_ones = torch.tensor(one.loss_mask)[1:]
        gaps.append((own - torch.tensor(one.rollout_logprobs)[1:])[sampled_ones].abs().max())
    return float(torch.stack(gaps).max())


def with_engine(processes: Processes, workers: Workers, sharding: str) -> dict:
    """What two rollouts of an engine were, before and after an update."""
    tokenizer = word_tokenizer(WORDS)

    def whole() -> Policy:
        return as_policy(small_qwen3(tokenizer, 128, 2, 4, 0), tokenizer, CPU, processes)

    policy = whole() if sharding == "none" else sharded_policy(whole, processes, sharding)
    before = settings()
    engine = VllmEngine(sized(engine="vllm", engine_sleep=False), policy, 16)
    as_before, ids, gaps = settings() == before, [], []
    for _ in range(2):
        found = sampled(policy, engine, workers)
        ids.append([one.ids for one in found.rollouts])
        gaps.append(worst_gap(policy, found))
        with torch.no_grad():
            for number, weight in enumerate(named_weights(policy.model).values()):
                weight.mul_(1 + 0.2 * (-1) ** number)
        policy.version += 1
        engine.sync(policy)
    cards = [next(model.parameters()).device.index for model in (engine.model, policy.model)]
    facts, executor = engine.take_facts(), type(engine._llm.llm_engine.model_executor).__name__
    everybody = processes.gather([processes.rank])
    engine.close()
    return {
        "as_before": as_before,
        "ids": ids,
        "gaps": gaps,
        "facts": facts,
        "executor": executor,
        "all": everybody,
        "cards": cards,
    }


def main(folder: str, sharding: str, device: str = "cpu") -> None:
    with Processes(sized(device=device, threads=1)).open() as processes, closing(Workers(1, 60.0)) as workers:
        found = with_engine(processes, workers, sharding)
        Path(folder, f"{sharding}{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
