"""How many tokens of a text stand for words that the model's tokenizer lacks.

A tokenizer of whole words reads all of them as the same token. A model that is trained on them learns to say that
token; a model that is evaluated on them does not see the problem.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from loguru import logger

from minrl.models.chat import ChatTokenizer
from minrl.models.messages import text_of
from minrl.tasks import Task
from minrl.types import Prompt, UserError

LARGEST_SHARE = 0.01
"""Largest allowed share of such tokens."""

PROMPTS_READ = 64
"""Prompts of each split that are read. They are in random order."""

WORDS_NAMED = 3

Read = tuple[Sequence[int], str]
"""The tokens of a text, and the part of the text whose words can be named."""


def check_task_words(tokenizer: ChatTokenizer, name: str, task: Task) -> None:
    """Report the share of unknown words in the task's prompts, and refuse too large a one.

    The prompts of an episode of the task's own are known only when it is played.
    """
    if task.episode is not None or unknown_id(tokenizer.tokenizer) is None:
        return
    for split in ("train", "held_out"):
        prompts = [example.prompt for example in getattr(task.dataset, split)[:PROMPTS_READ]]
        said = "training" if split == "train" else "held-out"
        check_words(tokenizer, f"the {said} prompts of {name}", prompts_read(tokenizer, prompts))


def prompts_read(tokenizer: ChatTokenizer, prompts: Iterable[Prompt]) -> list[Read]:
    """The prompts as the policy is shown them."""
    return [(tokenizer.encode_prompt(prompt), shown_text(prompt)) for prompt in prompts]


def shown_text(prompt: Prompt) -> str:
    """What a prompt asks: a chat's last message, because some templates leave out the others."""
    return prompt if isinstance(prompt, str) else text_of(prompt[-1])


def check_words(tokenizer: ChatTokenizer, what: str, read: Sequence[Read]) -> None:
    """Report the share of tokens that stand for unknown words. Raises `UserError` above `LARGEST_SHARE`."""
    unknown = unknown_id(tokenizer.tokenizer)
    count = sum(list(ids).count(unknown) for ids, _ in read) if unknown is not None else 0
    if unknown is None or not count:
        return
    share = count / sum(len(ids) for ids, _ in read)
    words = ", ".join(map(repr, _unknown_words(tokenizer.tokenizer, unknown, (text for _, text in read))))
    found = f"{share:.2%} of the tokens of {what} stand for words that the model's tokenizer lacks ({words})"
    if share > LARGEST_SHARE:
        raise UserError(
            f"{found}; at most {LARGEST_SHARE:.0%} may: choose a model that knows these words with --model-id, or "
            "leave out what has them (a task of your own names its words in `vocabulary`)"
        )
    logger.warning(f"{found}: the model reads them all as {tokenizer.tokenizer.unk_token}")


def unknown_id(tokenizer: Any) -> int | None:  # noqa: ANN401 - any of transformers'
    """The id of all words that the tokenizer lacks; None if it lacks none. Byte tokenizers name their end or padding
    token here, which stands for no word.
    """
    named = tokenizer.unk_token_id
    return None if named in (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id) else named


def _unknown_words(tokenizer: Any, unknown: int, texts: Iterable[str]) -> list[str]:  # noqa: ANN401
    """The first few words of the texts that the tokenizer lacks."""
    words = dict.fromkeys(word for text in texts for word in text.split())
    lacking = (word for word in words if unknown in tokenizer(word, add_special_tokens=False)["input_ids"])
    return list(islice(lacking, WORDS_NAMED))
