"""A policy that says hostile and honest completions now and then: a real engine, some of whose completions are given.

A given completion is scored by the policy itself, so the engine stays exact and the update is that of a real run.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from minrl.batch import pack
from minrl.config import EngineConfig, ModelConfig
from minrl.engines import Ended, Sampling, ended_as
from minrl.engines.torch_engine import TorchEngine
from minrl.models.chat import CHAT_TEMPLATE
from minrl.models.distributed import Processes
from minrl.models.loading import ASSISTANT, END, PAD, USER, small_qwen3
from minrl.models.scoring import sampled_rollout
from minrl.policy import Policy, as_policy
from minrl.run import setup
from minrl.run.checkpoint import save_policy
from minrl.types import Completion, Request

Says = Callable[[str, random.Random], str | None]
"""What is said to a prompt in place of the policy's own completion; None: its own."""

CONTEXT = 4096
WORDS = 600
"""Tokens beside the bytes: the texts are several times shorter with them."""


def save_reader(folder: Path, texts: Sequence[str]) -> None:
    """Save a tiny model with random weights whose tokenizer can write any text, the given ones in few tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD, END, USER, ASSISTANT]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(special) + WORDS,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for text in texts if _encodable(text)], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    model = small_qwen3(fast, 64, 1, 2, seed=0)
    model.config.max_position_embeddings = CONTEXT
    config = ModelConfig(device="cpu", threads=1)
    save_policy(as_policy(model, fast, config, Processes(config)), folder)


def _encodable(text: str) -> bool:
    """Whether a text has bytes in UTF-8; a lone surrogate has none, and no tokenizer can write it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


PASSES = 160
"""After which the memory of scoring and training grows no more, whatever the lengths."""


class Forced(TorchEngine):
    """The embedded engine, with some completions given. `before` is called when no program runs.

    Spaces fill each given completion to a multiple of `multiple` tokens: torch keeps memory for every length it meets.
    """

    def __init__(self, policy: Policy, says: Says, before: Callable[[], None], multiple: int) -> None:
        super().__init__(policy)
        self.says, self.before, self.multiple = says, before, multiple
        (self.space,) = policy.tokenizer(" ", add_special_tokens=False)["input_ids"]
        if multiple > 1:
            self._meet_lengths()

    def _meet_lengths(self) -> None:
        """Passes of many lengths: oneDNN and the C library keep memory for about the first hundred that they meet."""
        rng = random.Random(0)
        for _ in range(PASSES):
            ids = [self.space] * rng.randrange(2, self.context_length // 2)
            self.policy.score(pack([sampled_rollout(ids[:1], ids[1:])], [0]), 1.0)[0].sum().backward()
            self.policy.model.zero_grad()

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, ended: Ended | None = None
    ) -> list[Completion]:
        """The given completions, and sampled ones for the other requests."""
        self.before()
        given = [self._given(request, sampling) for request in requests]
        own = [index for index, completion in enumerate(given) if completion is None]
        if ended is not None:
            ended([(index, completion) for index, completion in enumerate(given) if completion is not None])
        sampled = iter(super().generate([requests[index] for index in own], sampling, ended=ended_as(ended, own)))
        return [completion or next(sampled) for completion in given]

    @torch.no_grad()
    def _given(self, request: Request, sampling: Sampling) -> Completion | None:
        tokenizer = self.policy.tokenizer
        text = self.says(tokenizer.decode(request.ids), random.Random(request.seed))
        if text is None or not _encodable(text):
            return None
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        ids += [self.space] * (-(len(ids) + 1) % self.multiple) + [tokenizer.eos_token_id]
        if len(request.ids) + len(ids) > self.context_length:
            return None
        stream = pack([sampled_rollout(list(request.ids), ids)], [0])
        logprobs, _ = self.policy.score(stream, sampling.temperature or 1.0)
        ordered = torch.empty_like(logprobs)
        ordered[stream.token_index] = logprobs
        return Completion(ids, ordered.tolist(), "stop")


@contextmanager
def saying(says: Says, before: Callable[[], None] = lambda: None, multiple: int = 1) -> Iterator[None]:
    """Inside, the engine of every run of this process is a `Forced` one."""

    def make(config: EngineConfig, policy: Policy, *_: object) -> Forced:
        return Forced(policy, says, before, multiple)

    with mock.patch.object(setup, "make_engine", make):
        yield
