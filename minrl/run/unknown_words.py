"""How much of a text stands for words that the model's tokenizer lacks.

A tokenizer of whole words reads each of these as one and the same token. A model that is trained on them learns to say
that token, and one that is evaluated on them was not shown the problem.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from loguru import logger

from minrl.model.chat import ChatTokenizer
from minrl.tasks import Task
from minrl.types import Prompt, UserError

LARGEST_SHARE = 0.01
"""More of the tokens must not stand for unknown words."""

PROMPTS_READ = 64
"""Prompts of each split that are looked at: a sample, since their order is without system."""

WORDS_NAMED = 3

Read = tuple[Sequence[int], str]
"""The tokens of a text, and the part of the text whose words can be named."""


def check_task_words(tokenizer: ChatTokenizer, name: str, task: Task) -> None:
    """Say what share of the task's prompts is unknown words, and refuse too large a one.

    What an episode of the task's own shows is known when it is played.
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
    """What a prompt asks: a chat's last message, since not every template shows the others."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def check_words(tokenizer: ChatTokenizer, what: str, read: Sequence[Read]) -> None:
    """Say the share of tokens that stand for unknown words; `UserError` above `LARGEST_SHARE`."""
    unknown = unknown_id(tokenizer.tokenizer)
    if unknown is None:
        return
    count = sum(list(ids).count(unknown) for ids, _ in read)
    if not count:
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
    """The id of every word that the tokenizer lacks; None where it lacks none. Tokenizers of bytes give their end or
    padding token that role, and it stands for no word.
    """
    named = tokenizer.unk_token_id
    return None if named in (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id) else named


def _unknown_words(tokenizer: Any, unknown: int, texts: Iterable[str]) -> list[str]:  # noqa: ANN401
    """The first few words of the texts that the tokenizer lacks."""
    found: dict[str, None] = {}
    for text in texts:
        for word in text.split():
            if word not in found and unknown in tokenizer(word, add_special_tokens=False)["input_ids"]:
                found[word] = None
                if len(found) == WORDS_NAMED:
                    return list(found)
    return list(found)
