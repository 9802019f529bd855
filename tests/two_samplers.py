"""What some steps of a run sample and remember, for the test that several processes agree on it."""

from dataclasses import asdict

from gradients import tiny_policy

from minrl.config import RolloutConfig, SamplingConfig, TrainerConfig
from minrl.draw import Draw, examples_due, observe, training_plan
from minrl.engines.torch_engine import TorchEngine
from minrl.models.processes import Processes
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.rollout import rollout
from minrl.tasks import Task
from minrl.tasks.task import split
from minrl.types import Example, Reward, TrainState

PROMPTS, STEPS = 6, 4


def odd(completion: str, example: Example) -> Reward:
    """Whether the first number is odd: a coin to a policy of random weights."""
    return Reward(float(any(int(word) % 2 for word in completion.split()[:1])))


TASK = Task(split([Example(f"{n} {n + 1}", f"{n} {n + 1}", {}) for n in range(24)], 0.25), odd, cheap=True)


class Counting(TorchEngine):
    """Remembers the seeds of what it samples."""

    def generate(self, requests, sampling, **named):
        self.seeds += [request.seed for request in requests]
        return super().generate(requests, sampling, **named)


def config_of(refill_rounds: int) -> TrainerConfig:
    """Everything on; groups of two, of which about half have spread."""
    return TrainerConfig(
        rollout=RolloutConfig(prompts_per_step=PROMPTS, group_size=2, max_tokens=2),
        sampling=SamplingConfig(refill_rounds=refill_rounds, curriculum=True, target_reward_std=0.3),
    )


def single_precision(processes: Processes) -> Policy:
    """What samples."""
    policy = tiny_policy(processes)
    policy.model.float()
    return policy


def sampled_steps(refill_rounds: int, policy: Policy, task: Task = TASK) -> list[dict]:
    """For each step: the examples wanted in each round, all rollouts, what this process's own engine sampled, and the
    state.
    """
    config, state, steps = config_of(refill_rounds), TrainState(), []
    engine, workers = Counting(policy), Workers(1, 120.0)
    for _ in range(STEPS):
        state.step += 1
        draw, rounds, engine.seeds = Draw(config, task.schedule(config.seed, state.step, PROMPTS)), [], []
        while draw.due:
            rounds.append(len(draw.due))
            examples = examples_due(task, draw.due, config, state)
            plan = training_plan(config, state, draw.drawn)
            draw.add(rollout(policy, engine, workers, task, examples, plan))
        rollouts = draw.sampled.rollouts
        observe(state, config, rollouts)
        described = [(r.group, r.example_id, r.seed, r.reward.value) for r in rollouts]
        steps.append({"rounds": rounds, "mine": engine.seeds, "all": described, "state": asdict(state)})
    workers.close()
    return steps
