"""Rows of prompt and response, as rollouts whose response tokens are scored.

A row's prompt is encoded as for sampling (a text as `--prompt-format` says). The response's tokens follow, then the
token that ends a completion. No row is cut: a row that does not fit is left out and counted.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.dataflow import Prompt, Rollout, UserError, require
from minrl.models.chat import as_rollout, refuse_images, text_of
from minrl.policy import Policy
from minrl.run.base_model import check_words, shown_text
from minrl.sft.config import SftConfig
from minrl.tasks import Task
from minrl.tasks.checked import is_prompt
from minrl.tasks.data import read_rows
from minrl.tasks.task import is_held_out

TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs", "images")
"""Columns that change a conversation in other trainers, and that no chat template is given here."""

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the response to learn."""

    prompt: Prompt
    response: str

    @property
    def prompt_key(self) -> str:
        """The identity of the prompt."""
        return key_of(self.prompt)


@dataclass(frozen=True)
class Encoded:
    """A row and its tokens."""

    row: Demonstration
    rollout: Rollout

    @cached_property
    def shown(self) -> Ids:
        """The prompt's tokens: equal for rows that differ only in what the chat template leaves out."""
        return tuple(self.rollout.ids[: self.rollout.prompt_length])


@dataclass(frozen=True)
class Rows:
    """The rows to train on, and the rows whose loss is only measured."""

    train: list[Rollout]
    held_out: list[Rollout]


def key_of(prompt: Prompt) -> str:
    """A text that is the same for equal prompts only."""
    return prompt if isinstance(prompt, str) else json.dumps([dict(message) for message in prompt], sort_keys=True)


def read_demonstrations(path: Path, prompt_column: str, response_column: str) -> list[Demonstration]:
    """The distinct rows of a file. What is no row is refused with its number."""
    rows: dict[tuple[str, str], Demonstration] = {}
    for number, row in enumerate(read_rows(path), 1):
        try:
            found = _demonstration(row, prompt_column, response_column)
        except UserError as error:
            raise UserError(f"row {number} of {path}: {error}") from error
        rows.setdefault((found.prompt_key, found.response), found)
    require(bool(rows), f"{path} has no rows: give `{prompt_column}` and `{response_column}` of at least one")
    return list(rows.values())


def _demonstration(row: Any, prompt_column: str, response_column: str) -> Demonstration:  # noqa: ANN401 - from a file
    """A row's prompt and response, or those of its chat messages."""
    lacking = not {prompt_column, response_column} <= row.keys()
    if lacking and isinstance(row.get("messages"), list) and row["messages"]:
        *prompt, last = row["messages"]
        if not isinstance(last, dict) or last.get("role") != "assistant":
            raise UserError("`messages` must end with the assistant's")
        row = {**row, prompt_column: prompt, response_column: [last]}
    elif lacking:
        raise UserError(
            f"a row needs `{prompt_column}` and `{response_column}` (it has {', '.join(row) or 'nothing'}): name its "
            "columns with --prompt-column and --response-column"
        )
    for name in TEMPLATE_COLUMNS:
        require(
            not row.get(name), f"`{name}` is not shown to the model: write it into the messages, or rename the column"
        )
    shown, response = row.get(prompt_column), _text_of_response(response_column, row.get(response_column))
    if not (isinstance(shown, str) and shown) and not _are_messages(shown):
        raise UserError(
            f"`{prompt_column}` must be a text or a list of messages with `role` and `content`, "
            f"got {json.dumps(shown)[:80]}"
        )
    return Demonstration(shown, response)


def _text_of_response(column: str, response: Any) -> str:  # noqa: ANN401 - from a file
    """The text of a response: itself, or that of the assistant's message in a list. What else the message holds is
    refused by name, because it would not be learned.
    """
    if isinstance(response, str):
        return response
    if not (_are_messages(response) and len(response) == 1 and response[0]["role"] == "assistant"):
        raise UserError(f"`{column}` must be a string or a list of one assistant's message, got {response!r:.80}")
    more = [name for name, value in response[0].items() if value and name not in ("role", "content")]
    require(not more, f"`{', '.join(more)}` of the assistant's message is not learned: write it into the content")
    return text_of(response[0])


def _are_messages(prompt: object) -> bool:
    """Whether these are messages of text, which may be in parts."""
    if not (isinstance(prompt, list) and prompt and is_prompt(prompt)):
        return False
    for message in prompt:
        refuse_images(message)
    return all(isinstance(message["role"], str) and isinstance(message["content"], str | list) for message in prompt)


def choose_rows(rows: Sequence[Rollout], count: int, seed: int, path: str) -> list[Rollout]:
    """`count` rows chosen by the seed (0: all), in the file's order. A larger choice contains the smaller ones."""
    if count > len(rows):
        raise UserError(
            f"--max-examples {count} asks for more distinct rows than the {len(rows)} of {path} that can be trained "
            "on: lower it, or leave it out for all"
        )
    chosen = random.Random(f"{seed}/rows").sample(range(len(rows)), len(rows))[: count or len(rows)]
    return [rows[index] for index in sorted(chosen)]


def load_rows(config: SftConfig, policy: Policy, task: Task | None) -> Rows:
    """The rows to train on and those whose loss is measured.

    No prompt is in both, and no prompt that the task holds out is trained on. Prompts are equal if their tokens are.
    Prompts of the task and of `eval_data` are also equal if their questions are, whatever system message and white
    space. A held-out problem in other words, such as its numbers in another order, is not recognised.
    """
    chat = as_chat(config, policy, task)
    found = _read(config.data, config, policy, chat)
    if config.eval_data:
        held_out = _read(config.eval_data, config, policy, chat)
    else:
        keys: dict[Ids, str] = {}
        share = config.held_out_share
        held_out = [one for one in found if is_held_out(keys.setdefault(one.shown, one.row.prompt_key), share)]
    shown = {one.shown for one in held_out}
    questions = {question_of(one.row.prompt) for one in held_out if config.eval_data}
    if task is not None:
        shown |= {tuple(policy.encode_prompt(example.prompt)) for example in task.dataset.held_out if example.prompt}
        questions |= _held_out_questions(task)
    free = [one for one in found if one.shown not in shown and question_of(one.row.prompt) not in questions - {""}]
    limit = min(config.max_row_tokens or policy.context_length, policy.context_length)
    fitting, measured = ([one.rollout for one in rows if len(one.rollout.ids) <= limit] for rows in (free, held_out))
    if not fitting:
        raise UserError(
            f"no row of {config.data} can be trained on: of {len(found)} distinct ones {len(found) - len(free)} have "
            f"a held-out prompt and {len(free)} more than {limit} tokens"
        )
    rows = Rows(choose_rows(fitting, config.max_examples, config.seed, config.data), measured)
    logger.info(
        f"{config.data}: {len(found)} distinct rows, training on {len(rows.train)}, measuring {len(rows.held_out)}; "
        f"left out for a held-out prompt {len(found) - len(free)}, for more than {limit} tokens "
        f"{len(free) - len(fitting) + len(held_out) - len(measured)}"
    )
    return rows


def question_of(prompt: Prompt) -> str:
    """The question of a prompt without extra white space: the text, or a chat's last message of the user.

    >>> question_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 1  + 1? "}])
    '1 + 1?'
    """
    users = [prompt] if isinstance(prompt, str) else [text_of(m) for m in prompt if m["role"] == "user"]
    return " ".join(users[-1].split()) if users else ""


def _held_out_questions(task: Task) -> set[str]:
    """Questions of the held-out examples, without those that training examples ask too."""
    dataset = task.dataset
    held_out, train = ({question_of(example.prompt) for example in part} for part in (dataset.held_out, dataset.train))
    return held_out - train


def as_chat(config: SftConfig, policy: Policy, task: Task | None) -> bool:
    """Whether texts are shown as a user's messages. auto: as the task's own prompts are, so that training matches the
    evaluation; without a task, if the tokenizer has a chat template.
    """
    if config.prompt_format != "auto":
        return config.prompt_format == "chat"
    if task is not None:
        return not isinstance((task.dataset.held_out or task.dataset.train)[0].prompt, str)
    return bool(policy.tokenizer.chat_template)


def _read(path: str, config: SftConfig, policy: Policy, chat: bool) -> list[Encoded]:
    """The distinct rows of a file, with their prompts as they are shown."""
    found = read_demonstrations(Path(path), config.prompt_column, config.response_column)
    texts = sum(isinstance(row.prompt, str) for row in found)
    if texts:
        how = "a user's message, through the chat template" if chat else "it is, without a chat template"
        logger.info(f"{path}: the prompt of {texts} of {len(found)} rows is a text and is shown as {how}")
    rows = [
        replace(row, prompt=[{"role": "user", "content": row.prompt}]) if chat and isinstance(row.prompt, str) else row
        for row in found
    ]
    encoded = [Encoded(*pair) for pair in zip(rows, as_rollouts(policy, rows), strict=True)]
    read = [(one.rollout.ids, f"{shown_text(one.row.prompt)} {one.row.response}") for one in encoded]
    check_words(policy, path, read)
    distinct: dict[tuple[Ids, str], Encoded] = {}
    for one in encoded:
        distinct.setdefault((one.shown, one.row.response), one)
    return list(distinct.values())


def as_rollouts(policy: Policy, rows: Iterable[Demonstration]) -> list[Rollout]:
    """The rows in tokens."""
    end = cache(partial(end_token, policy))
    return [
        as_rollout(policy, row.prompt_key, [(row.prompt, row.response)], end(not isinstance(row.prompt, str)))
        for row in rows
    ]


def end_token(policy: Policy, chat: bool) -> int:
    """The token that ends a completion: in a chat the one with which the template ends the assistant's turn."""
    if chat and policy.closing.end is not None:
        return policy.closing.end
    if policy.tokenizer.eos_token_id is None:
        raise UserError("the tokenizer names no end token, so that no response could end: give it an eos_token")
    return policy.tokenizer.eos_token_id


def fingerprint(config: SftConfig) -> dict[str, str]:
    """SHA-256 of each file of rows."""
    return {
        path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in (config.data, config.eval_data) if path
    }
