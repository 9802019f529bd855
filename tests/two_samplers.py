"""What some steps of a run sample and remember, for the test that several processes agree on it."""

from dataclasses import asdict

from gradients import tiny_policy

from minrl.config import TrainerConfig
from minrl.dataflow import Example, Reward, TrainState
from minrl.engines.torch_engine import TorchEngine
from minrl.models.distributed import Processes
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.sampling import adapt_sampling, sample_groups
from minrl.tasks import Task
from minrl.tasks.task import split
from tests.parsed import sized

PROMPTS, STEPS = 6, 4


def odd(completion: str, example: Example) -> Reward:
    """Whether the first number is odd: a coin to a policy of random weights."""
    return Reward(float(any(word.isdigit() and int(word) % 2 for word in completion.split()[:1])))


TASK = Task(split([Example(f"{n} {n + 1}", f"{n} {n + 1}", {}) for n in range(24)], 0.25), odd, cheap=True)


class Counting(TorchEngine):
    """Remembers the seeds of what it samples."""

    def generate(self, requests, sampling, **named):
        self.seeds += [request.seed for request in requests]
        return super().generate(requests, sampling, **named)


def config_of(refill_rounds: int) -> TrainerConfig:
    """Everything on; groups of two, of which about half have spread."""
    return sized(
        prompts_per_step=PROMPTS,
        group_size=2,
        max_tokens=2,
        refill_rounds=refill_rounds,
        curriculum=True,
        target_reward_std=0.3,
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
    share, rounds = policy.processes.share, []
    policy.processes.share = lambda count: rounds.append(count) or share(count)
    for _ in range(STEPS):
        state.step += 1
        engine.seeds = []
        rounds.clear()
        rollouts = sample_groups(policy, engine, workers, task, config, state).rollouts
        adapt_sampling(state, config, rollouts)
        described = [(r.group, r.example_id, r.seed, r.reward.value) for r in rollouts]
        steps.append({"rounds": list(rounds), "mine": engine.seeds, "all": described, "state": asdict(state)})
    workers.close()
    policy.processes.share = share
    return steps
