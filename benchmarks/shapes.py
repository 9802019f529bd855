"""The models, prompts and lengths that the benchmarks share."""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from minrl.config import ModelConfig
from minrl.models.distributed import Processes
from minrl.models.loading import HEAD_DIM, save_model, small_qwen3, word_tokenizer
from minrl.policy import Policy, as_policy
from minrl.tasks import TASK_DEFINITIONS, Task
from minrl.tasks.task import Dataset
from minrl.types import Completion, Example, Request, Reward, Rollout


@dataclass(frozen=True)
class Shape:
    """A Qwen3-shaped model with tied embeddings and heads of 32 dimensions."""

    hidden_size: int
    layers: int
    heads: int
    vocabulary: int


SHAPES = {"1M": Shape(192, 2, 4, 1000), "5M": Shape(256, 4, 8, 8192), "15M": Shape(384, 6, 12, 16384)}
"""1.0, 5.2 and 16.9 million parameters: the embedded base model's shape, and two with a vocabulary that weighs."""

VLLM_BLOCK = 128
"""Tokens of a block of vLLM's cache on a CPU: a row takes whole ones."""

PROMPTS, GROUP, PROMPT_TOKENS, MAX_TOKENS = 8, 8, 32, 64


@dataclass(frozen=True)
class Work:
    """What is done in each round: `varying` completions are between 1 token and `max_tokens` long, half on average."""

    size: str = "5M"
    varying: bool = False
    prompts: int = PROMPTS
    group: int = GROUP
    prompt_tokens: int = PROMPT_TOKENS
    max_tokens: int = MAX_TOKENS
    dtype: str = "float32"
    threads: int = 0
    model: str = ""
    """A folder of transformers with a pretrained chat model, in place of a model of `size` with random weights."""

    def lengths(self, number: int) -> list[int]:
        """Tokens of each completion of a round, the same for both sides."""
        count = self.prompts * self.group
        rng = random.Random(number)
        return [rng.randint(1, self.max_tokens) for _ in range(count)] if self.varying else [self.max_tokens] * count

    def cache_bytes(self) -> int:
        """Keys and values of all rows at their longest in vLLM's blocks, and of the block that it keeps empty."""
        shape = SHAPES[self.size]
        blocks = self.prompts * self.group * -(-(self.prompt_tokens + self.max_tokens) // VLLM_BLOCK) + 1
        values = 2 * shape.layers * (shape.heads // 2) * HEAD_DIM
        return blocks * VLLM_BLOCK * values * getattr(torch, self.dtype).itemsize

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
            sentences = TASK_DEFINITIONS["sentences"]
            return list(sentences.make(sentences.options(), "").dataset.train[: self.prompts])
        texts = [" ".join(f"w{token - 5}" for token in ids) for ids in self.prompt_ids()]
        return [Example(text, text, {}) for text in texts]


def tokenizer(shape: Shape):
    """As many words as the model has tokens."""
    return word_tokenizer([f"w{index}" for index in range(shape.vocabulary - 5)])


def make_policy(work: Work, processes: Processes | None = None) -> Policy:
    """A policy with random weights, in memory; of these processes where they are there already."""
    shape = SHAPES[work.size]
    words = tokenizer(shape)
    config = ModelConfig(device="cpu", dtype=work.dtype, threads=work.threads)
    processes = processes or Processes(config)
    model = small_qwen3(words, shape.hidden_size, shape.layers, shape.heads, seed=0)
    return as_policy(model, words, config, processes)


def parse_batch(description: str | None, rounds: int) -> argparse.Namespace:
    """The shape of a batch and of a small model, as flags."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--hidden-size", type=int, default=192)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser.parse_args()


def batch_of(options: argparse.Namespace) -> tuple[Policy, list[Request]]:
    """A policy with random weights on the best device, and the requests of those flags."""
    words = word_tokenizer([f"w{index}" for index in range(500)])
    model = small_qwen3(words, options.hidden_size, options.layers, 4, seed=0)
    requests = [
        Request(
            [5 + (31 * (index // options.group_size) + 7 * token) % 490 for token in range(options.prompt_tokens)],
            index + 1,
            options.max_tokens,
        )
        for index in range(options.prompts * options.group_size)
    ]
    return as_policy(model, words, ModelConfig(), Processes(ModelConfig())), requests


def save_shape(size: str, folder: Path) -> None:
    """The same model on the disk."""
    shape = SHAPES[size]
    words = tokenizer(shape)
    model = small_qwen3(words, shape.hidden_size, shape.layers, shape.heads, seed=0)
    torch.manual_seed(0)
    save_model(model, words, folder)


def even_share(text: str) -> float:
    """The reward of both sides: the share of words with an even last character. Any model's groups differ in it."""
    words = text.split()
    return sum(ord(word[-1]) % 2 == 0 for word in words) / max(1, len(words))


def even_task(examples: Sequence[Example]) -> Task:
    """The task of the benchmarks; its only examples are the prompts."""
    dataset = Dataset(train=examples, held_out=[Example("held out", "w1 w2", {})])
    return Task(dataset, lambda completion, example: Reward(even_share(completion)), cheap=True)


def as_rollouts(requests: Sequence[Request], completions: Sequence[Completion], group: int) -> list[Rollout]:
    """Rollouts with rewards that differ inside every group."""
    rollouts = []
    for row, (request, completion) in enumerate(zip(requests, completions, strict=True)):
        start, ids = len(request.ids), request.ids + completion.ids
        rollouts.append(
            Rollout(
                ids=ids,
                loss_mask=[False] * start + [True] * len(completion.ids),
                rollout_logprobs=[0.0] * start + list(completion.logprobs),
                turns=[(start, len(ids))],
                prompt_length=start,
                example_id=str(row // group),
                group=row // group,
                sample=row % group,
                role="solo",
                seed=request.seed,
                weight_version=0,
                reward=Reward((7 * row % 5) / 5),
            )
        )
    return rollouts


def random_rollouts(work: Work, number: int = 0) -> list[Rollout]:
    """Rollouts of random tokens: what an update costs does not depend on which they are."""
    size, rng = SHAPES[work.size].vocabulary, random.Random(number)
    requests = work.requests(number)
    completions = [
        Completion([rng.randrange(5, size) for _ in range(r.max_tokens)], [0.0] * r.max_tokens, "length")
        for r in requests
    ]
    return as_rollouts(requests, completions, work.group)
