"""What some steps of a run sample and remember, for the test that several processes agree on it."""

import sys
from dataclasses import asdict

import torch
from gradients import CPU, tiny_policy

from minrl.checkpoint import TrainState
from minrl.config import RolloutConfig, SamplingConfig, TrainerConfig
from minrl.engines.torch_engine import TorchEngine
from minrl.processes import Processes
from minrl.rollout import gather_rollouts, rollout, training_plan
from minrl.sampling import Draw, at_temperature, choose_examples, observe
from minrl.tasks import Task
from minrl.tasks.task import split
from minrl.types import Example, Reward
from minrl.workers import Workers

PROMPTS, STEPS = 6, 4


def odd(completion: str, example: Example) -> Reward:
    """Whether the first number is odd: a coin to a policy of random weights."""
    return Reward(float(any(int(word) % 2 for word in completion.split()[:1])))


TASK = Task(split([Example(f"{n} {n + 1}", f"{n} {n + 1}", {}) for n in range(24)], 0.25), odd, cheap=True)


def config_of(refill_rounds: int) -> TrainerConfig:
    """Everything on; groups of two, of which about half have spread."""
    return TrainerConfig(
        rollout=RolloutConfig(prompts_per_step=PROMPTS, group_size=2, max_tokens=2),
        sampling=SamplingConfig(refill_rounds=refill_rounds, curriculum=True, target_reward_std=0.3),
    )


def sampled_steps(refill_rounds: int, processes: Processes) -> list[dict]:
    """For each step: the examples wanted in each round, this process's own rollouts, everybody's, and the state."""
    config, state, steps = config_of(refill_rounds), TrainState(), []
    policy, workers = tiny_policy(processes), Workers(1, 120.0)
    policy.model.float()
    for _ in range(STEPS):
        state.step += 1
        draw, rounds = Draw(at_temperature(config, state), processes), []
        while draw.prompts:
            rounds.append(draw.prompts)
            examples = choose_examples(TASK.dataset.train, draw.config, state, processes)
            plan = training_plan(draw.config, state, processes, draw.drawn)
            draw.add(rollout(policy, TorchEngine(policy), workers, TASK, examples, plan))
        rollouts, mine = gather_rollouts(draw.sampled, processes)
        observe(state, config, rollouts)
        described = [(r.group, r.example_id, r.seed, r.reward.value) for r in rollouts]
        steps.append({"rounds": rounds, "mine": described[mine], "all": described, "state": asdict(state)})
    workers.close()
    return steps


def main(path: str) -> None:
    """This process's view, with and without refill."""
    processes = Processes(CPU)
    assert processes.count == 2
    torch.save({rounds: sampled_steps(rounds, processes) for rounds in (0, 2)}, f"{path}.{processes.rank}")
    processes.wait()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
