"""The models, prompts and lengths that the benchmarks share."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from minrl.dataflow import Example, Request, Reward, Rollout
from minrl.models.distributed import Processes
from minrl.models.loading import save_model, small_qwen3, word_tokenizer
from minrl.models.scoring import sampled_rollout
from minrl.policy import Policy, as_policy
from minrl.tasks import Task, load_task
from minrl.tasks.task import Dataset
from tests.parsed import sized


@dataclass(frozen=True)
class Shape:
    """A Qwen3-shaped model with tied embeddings and heads of 32 dimensions."""

    hidden_size: int
    layers: int
    heads: int
    vocabulary: int


SHAPES = {"1M": Shape(192, 2, 4, 1000), "5M": Shape(256, 4, 8, 8192), "15M": Shape(384, 6, 12, 16384)}
"""1.0, 5.2 and 16.9 million parameters: the embedded base model's shape, and two with a vocabulary that weighs."""


@dataclass(frozen=True)
class Work:
    """What is done in each round: `varying` completions are between 1 token and `max_tokens` long, half on average."""

    size: str = "5M"
    varying: bool = False
    prompts: int = 8
    group: int = 8
    prompt_tokens: int = 32
    max_tokens: int = 64
    dtype: str = "float32"
    model: str = ""
    """A folder of transformers with a pretrained chat model, in place of a model of `size` with random weights."""

    def lengths(self, number: int) -> list[int]:
        """Tokens of each completion of a round, the same for both sides."""
        count = self.prompts * self.group
        rng = random.Random(number)
        return [rng.randint(1, self.max_tokens) for _ in range(count)] if self.varying else [self.max_tokens] * count

    def prompt_ids(self) -> list[list[int]]:
        """Different prompts of the same length."""
        size = SHAPES[self.size].vocabulary
        return [
            [5 + (7919 * prompt + 104729 * token) % (size - 5) for token in range(self.prompt_tokens)]
            for prompt in range(self.prompts)
        ]

    def requests(self, number: int = 0) -> list[Request]:
        """The requests of a round, whole groups one after another."""
        prompts, lengths = self.prompt_ids(), self.lengths(number)
        return [Request(prompts[row // self.group], 1000 * number + row, length) for row, length in enumerate(lengths)]

    def examples(self) -> list[Example]:
        """The prompts: text, for a pretrained model messages of the task `sentences`."""
        if self.model:
            return list(load_task("sentences").dataset.train[: self.prompts])
        texts = [" ".join(f"w{token - 5}" for token in ids) for ids in self.prompt_ids()]
        return [Example(text, text, {}) for text in texts]


def make_policy(work: Work) -> Policy:
    """A policy with random weights, in memory."""
    config = sized(device="cpu", dtype=work.dtype)
    return as_policy(*_model(work.size), config, Processes(config))


def save_shape(size: str, folder: Path) -> None:
    """The same model on disk."""
    save_model(*_model(size), folder)


def _model(size: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    shape = SHAPES[size]
    words = word_tokenizer([f"w{index}" for index in range(shape.vocabulary - 5)])
    return small_qwen3(words, shape.hidden_size, shape.layers, shape.heads, seed=0), words


def even_share(text: str) -> float:
    """The reward of both sides: the share of words with an even last character. Any model's groups differ in it."""
    words = text.split()
    return sum(ord(word[-1]) % 2 == 0 for word in words) / max(1, len(words))


def even_task(examples: Sequence[Example]) -> Task:
    """The task of the benchmarks; its only examples are the prompts."""
    dataset = Dataset(train=examples, held_out=[Example("held out", "w1 w2", {})])
    return Task(dataset, lambda completion, example: Reward(even_share(completion)), cheap=True)


def random_rollouts(work: Work, number: int = 0) -> list[Rollout]:
    """Rollouts of random tokens, with rewards that differ in each group."""
    size, rng, rollouts = SHAPES[work.size].vocabulary, random.Random(number), []
    for row, request in enumerate(work.requests(number)):
        rollout = sampled_rollout(request.ids, rng.choices(range(5, size), k=request.max_tokens))
        place = {"group": row // work.group, "sample": row % work.group}
        rollouts.append(replace(rollout, **place, reward=Reward((7 * row % 5) / 5)))
    return rollouts
