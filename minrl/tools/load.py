"""A trained model to sample from, in a notebook or a program.

policy = minrl.load("nb")
policy.generate(["numbers 3 7 5 target 9"], n=4)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minrl.dataflow import Prompt, Request, require
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate.models import run_of
from minrl.models.distributed import Processes
from minrl.policy import Policy
from minrl.rollout import completion_seed, heard_by
from minrl.run.folder import resolve_model
from minrl.run.setup import load_policy
from minrl.tools.config import ServeConfig
from minrl.tools.serve import as_trained
from minrl.utils.cli import parse


@dataclass(frozen=True)
class LoadedPolicy:
    """A model with the chat template, the limit and the stop strings of the run that trained it. `example` is a prompt
    of that run; None without one.
    """

    policy: Policy
    engine: TorchEngine
    config: ServeConfig
    example: Prompt | None

    def generate(
        self,
        prompts: Sequence[Prompt],
        n: int = 4,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        seed: int = 0,
    ) -> list[list[str]]:
        """`n` completions of each prompt, as the task's reward sees them. Temperature 0 is greedy; `max_tokens` is
        the run's if it is None. A text is what the user says where the run's prompts are chats, behind their system
        message, and else the whole prompt. Raises `UserError` for a prompt that is empty or too long.
        """
        require(not isinstance(prompts, str) and n > 0 and temperature >= 0, "generate takes a list of prompts, n >= 1")
        policy, stops = self.policy, self.config.stop_strings
        shown = [policy.encode_prompt(self._as_trained(prompt)) for prompt in prompts]
        room, limit = self.engine.context_length, max_tokens or self.config.max_tokens
        for ids in shown:
            require(0 < len(ids) < room, f"a prompt has {len(ids)} tokens, and the model takes 1 to {room - 1}")
        requests = [
            Request(ids, completion_seed(seed, row, sample), min(limit, room - len(ids)))
            for row, ids in enumerate(shown)
            for sample in range(n)
        ]
        stop_ids = policy.stop_ids | policy.stop_tokens(stops)
        made = iter(self.engine.generate(requests, Sampling(temperature, stop_ids, stops + policy.stop_strings)))
        return [[heard_by(policy, ids, next(made).ids) for _ in range(n)] for ids in shown]

    def _as_trained(self, prompt: Prompt) -> Prompt:
        if not isinstance(prompt, str) or not isinstance(self.example, list):
            return prompt
        system = [message for message in self.example[:1] if message["role"] == "system"]
        return [*system, {"role": "user", "content": prompt}]


def load(name: str, runs_dir: str = "runs") -> LoadedPolicy:
    """The model of a run (`nb`, or `nb@best`), a checkpoint, a folder, a GGUF file or a hub name, to sample from with
    the embedded engine.
    """
    run = run_of(name, runs_dir)
    command = parse(ServeConfig, [name, "--runs-dir", runs_dir, "--quiet"])
    config = as_trained(command, run) if run else command.config
    policy = load_policy(resolve_model(name, runs_dir), config, Processes(config))
    return LoadedPolicy(policy, TorchEngine(policy), config, run.record.get("prompt") if run else None)
