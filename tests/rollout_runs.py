"""Runs written by hand, with the writer that training uses, for the tests of the rollouts page."""

import json
import random

from minrl.dataflow import PlayedTurn, Reward
from minrl.report.lines import rollout_line
from minrl.tracking.writers import RunFiles
from tests.conftest import rollout_of


def line(turns, *, prompt="numbers 3 5", roles=("policy",), purpose="train", advantage=0.5, shown="<shown>", **changes):
    """One role's rollout as a line of the run's file. `turns` holds the pieces of each sampled turn; the prompt and
    what is shown between turns are one token each.
    """
    tokens, mask, bounds = [prompt], [0], []
    for turn in turns:
        if bounds:
            tokens, mask = [*tokens, shown], [*mask, 0]
        bounds.append((len(tokens), len(tokens) + len(turn)))
        tokens, mask = [*tokens, *turn], [*mask, *[1] * len(turn)]
    values = {
        "ids": list(range(len(tokens))),
        "loss_mask": [bool(one) for one in mask],
        "rollout_logprobs": [-0.25 * one for one in mask],
        "turns": bounds,
        "role": roles[0],
        "seed": 2**62 + 1,
        "weight_version": 3,
        "reward": Reward(0.5, {"format": 1.0, "sum": 0.0}),
        "text": "".join(piece for turn in turns for piece in turn),
        "episode": [PlayedTurn(role, 7 + n, "stop") for n, role in enumerate(list(roles) * len(turns))],
    }
    rollout = rollout_of([0], [], **{**values, **changes})
    special = [index for index, token in enumerate(tokens) if token == "<end>"]
    known = {"advantage": advantage, "logprobs": [-0.2501] * sum(mask)} if purpose == "train" else {}
    return {**rollout_line(rollout, purpose, tokens, special), **known}


def write_run(folder, steps, **config):
    """A run's folder with these rollouts: lines by step."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"task": "countdown", "algorithm": "grpo", "model_id": "", "rollouts_every": 10, **config}
    (folder / "config.json").write_text(json.dumps({"minrl_run": folder.name, "commit": "c" * 40, "config": settings}))
    log = RunFiles(folder)
    for step, lines in steps.items():
        log.rollouts(step, lines)
    return folder


def many(groups, group_size, step=10, tokens=40):
    """A step's rollouts in numbers, all different and the same at every call."""
    rng = random.Random(step)
    words = [" 3", " 5", " 7", " 9", " 12", " +", " -", " =", " no", " yes", " <answer>", " </answer>", " target"]
    lines = []
    for group in range(groups):
        for sample in range(group_size):
            turn = [*rng.choices(words, k=rng.randint(tokens // 2, tokens * 3 // 2)), "<end>"]
            reward = Reward(float(rng.random() < step / 60), {"format": 1.0})
            places = {"group": group, "slot": group, "sample": sample, "example_id": f"example {group}"}
            surprise = [0.0, *(-rng.expovariate(2.0) for _ in turn)]
            one = line([turn], advantage=rng.gauss(0, 1), reward=reward, rollout_logprobs=surprise, **places)
            lines.append(one)
    return lines
