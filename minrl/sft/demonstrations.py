"""Rows of prompt and response, as rollouts whose response tokens are scored.

A row's prompt is encoded as for sampling (a text as `--prompt-format` says). The response's tokens follow, then the
token that ends a completion. A conversation is a row too: its last answer is learned, with `--loss-on assistant` each
of them. No row is cut: a row that does not fit is left out and counted.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.dataflow import Message, Prompt, Reward, Rollout, UserError, require
from minrl.models.chat import as_rollout, question_of, refuse_images, text_of
from minrl.policy import Policy
from minrl.run.base_model import require_known_words
from minrl.sft.config import SftConfig
from minrl.tasks import Task
from minrl.tasks.checked import is_prompt
from minrl.tasks.data import read_rows
from minrl.tasks.held_out import Problems, held_out_problems
from minrl.tasks.task import is_held_out

TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs", "images")
"""Columns that change a conversation in other trainers, and that no chat template is given here."""

MASKS = ("loss_mask", "completion_mask", "assistant_masks", "label_mask")
"""Columns by which other trainers say which tokens are learned."""

WEIGHTS = ("weight", "loss", "train", "loss_weight")
"""Keys of a row or of a message that say whether it is learned: OpenAI's, ms-swift's, axolotl's."""


@dataclass(frozen=True)
class Demonstration:
    """What is shown, and the response to learn; in a conversation further turns. `number` counts the file's rows."""

    turns: tuple[tuple[Prompt, str], ...]
    learned: tuple[bool, ...] = (True,)
    number: int = 1

    @property
    def prompt(self) -> Prompt:
        """The first prompt."""
        return self.turns[0][0]

    @property
    def question(self) -> str:
        """What the last prompt asks."""
        return question_of(self.turns[-1][0])

    @property
    def said(self) -> str:
        """What the row asks and answers."""
        asked = (prompt if isinstance(prompt, str) else text_of(prompt[-1]) for prompt, _ in self.turns)
        return " ".join(f"{question} {text}" for question, (_, text) in zip(asked, self.turns, strict=True))


@dataclass(frozen=True)
class Rows:
    """The rows to train on with their numbers in the file, and the rows whose loss is only measured."""

    train: list[Rollout]
    held_out: list[Rollout]
    numbers: list[int]


Encoded = tuple[Demonstration, Rollout]
"""A row and its tokens."""


def read_demonstrations(config: SftConfig, path: str) -> list[Demonstration]:
    """The rows of a file. What is no row is refused with its number."""
    rows = []
    for number, row in enumerate(read_rows(Path(path)), 1):
        try:
            rows.append(replace(_demonstration(row, config), number=number))
        except UserError as error:
            raise UserError(f"row {number} of {path}: {error}") from error
    wanted = f"`{config.prompt_column}` and `{config.response_column}`"
    require(bool(rows), f"{path} has no rows: give {wanted} of at least one")
    return rows


def _demonstration(row: Mapping[str, Any], config: SftConfig) -> Demonstration:
    """A row's prompt and response, or those of its chat messages, whose first names the tools of the row."""
    for name in (config.prompt_column, "messages"):
        if (tools := row.get("tools")) and _are_messages(row.get(name)):
            first, *others = row[name]
            tools = _from_json(tools) if isinstance(tools, str) else tools
            row = {**row, name: [{**first, "tools": tools}, *others], "tools": None}
    for name in TEMPLATE_COLUMNS:
        require(
            not row.get(name), f"`{name}` is not shown to the model: write it into the messages, or rename the column"
        )
    for name in (*MASKS, *WEIGHTS):
        learned = row.get(name) is None or (name in WEIGHTS and row[name] == 1)
        require(learned, f"`{name}` of a row is not obeyed: leave the row out, weigh its messages or rename the column")
    columns = config.prompt_column, config.response_column
    if not set(columns) <= row.keys():
        require(
            isinstance(row.get("messages"), list) and bool(row["messages"]),
            f"a row needs `{columns[0]}` and `{columns[1]}` (it has {', '.join(row) or 'nothing'}): name its columns "
            "with --prompt-column and --response-column",
        )
        return _conversation(row["messages"], "messages", config.loss_on)
    prompt, response = (row[name] for name in columns)
    if not (isinstance(prompt, str) and prompt) and not _are_messages(prompt):
        raise UserError(
            f"`{columns[0]}` must be a text or a list of messages with `role` and `content`, "
            f"got {json.dumps(prompt)[:80]}"
        )
    if isinstance(response, str) and (isinstance(prompt, str) or config.loss_on == "last"):
        return Demonstration(((prompt, response),))
    said = [{"role": "assistant", "content": response}] if isinstance(response, str) else response
    if not (_are_messages(said) and len(said) == 1 and said[0]["role"] == "assistant"):
        raise UserError(f"`{columns[1]}` must be a string or a list of one assistant's message, got {response!r:.80}")
    if isinstance(prompt, str):
        answer = _conversation([{"role": "user", "content": prompt}, *said], columns[1], config.loss_on).turns[0][1]
        return Demonstration(((prompt, answer),))
    return _conversation([*prompt, *said], columns[1], config.loss_on)


def _from_json(tools: str) -> Any:  # noqa: ANN401 - whatever the text holds
    try:
        return json.loads(tools)
    except ValueError as error:
        raise UserError(f"`tools` is a text and no JSON: {error}") from error


def _conversation(messages: list[Message], column: str, loss_on: str) -> Demonstration:
    """A conversation that ends with the assistant, of which the last answer or all answers are learned, as far as the
    messages do not say otherwise: `weight: 0` keeps an answer from being learned.
    """
    require(len(messages) > 1 and _are_messages(messages), f"`{column}` must be messages with `role` and `content`")
    answers = [place for place, one in enumerate(messages) if one["role"] == "assistant"]
    require(answers[-1:] == [len(messages) - 1], f"`{column}` must end with the assistant's")
    answers = answers[-1:] if loss_on == "last" else answers
    asked = [_weight(message, place) for place, message in enumerate(messages, 1)]
    for place, weight in enumerate(asked):
        why = "give --loss-on assistant" if messages[place]["role"] == "assistant" else "remove its weight"
        require(not weight or place in answers, f"message {place + 1} has weight 1 and is not learned: {why}")
    answers = answers[next((n for n, place in enumerate(answers) if asked[place] is not False), len(answers)) :]
    require(bool(answers), "no answer of the conversation is learned, by its weights: leave the row out")
    turns, start = [], 0
    for place in answers:
        _require_text(messages[place], column)
        require(place > start, "two messages of the assistant follow each other: join them")
        turns.append((messages[start:place], text_of(messages[place])))
        start = place + 1
    return Demonstration(tuple(turns), tuple(asked[place] is not False for place in answers))


def _weight(message: Message, place: int) -> bool | None:
    """Whether the message says that it is learned; None if it says nothing."""
    for name in WEIGHTS:
        if (value := message.get(name)) is not None:
            require(value in (0, 1), f"`{name}` of message {place} must be 0 or 1, got {value!r:.80}")
            return bool(value)
    return None


def _require_text(message: Message, column: str) -> None:
    """Refuse what an answer holds beside its text: it would not be learned."""
    more = [name for name, value in message.items() if value and name not in ("role", "content", *WEIGHTS)]
    require(not more, f"`{', '.join(more)}` of the assistant's message is not learned: write it into the content")


def _are_messages(prompt: object) -> bool:
    """Whether these are messages of text, which may be in parts."""
    if not (isinstance(prompt, list) and prompt and is_prompt(prompt)):
        return False
    for message in prompt:
        refuse_images(message)
    return all(isinstance(message["role"], str) for message in prompt)


def choose_rows(count: int, available: int, seed: int) -> list[int]:
    """`count` numbers below `available`, chosen by the seed (0: all), in order. A larger choice contains the smaller
    ones.
    """
    return sorted(random.Random(f"{seed}/rows").sample(range(available), available)[: count or available])


def load_rows(
    config: SftConfig, read: Mapping[str, Sequence[Demonstration]], policy: Policy, task: Task | None
) -> Rows:
    """The rows to train on and those whose loss is measured, from the files' rows.

    A question is on one side only, and no row shows a problem that the task or the file of held-out rows keeps back.
    """
    chat = as_chat(config, policy, task)
    found = _encoded(config.data, read[config.data], policy, chat)
    if config.eval_data:
        rest, held_out = found, _encoded(config.eval_data, read[config.eval_data], policy, chat)
        asked = {row.question for row, _ in held_out}
        kept_back = [Problems(asked, asked)]
    else:
        sides: tuple[list[Encoded], list[Encoded]] = ([], [])
        for one in found:
            sides[is_held_out(one[0].question, config.held_out_share)].append(one)
        (rest, held_out), kept_back = sides, []
    kept_back += [held_out_problems(task)] if task is not None else []
    free = [one for one in rest if not any(problems.shown(*turn) for problems in kept_back for turn in one[0].turns)]
    limit = min(config.max_row_tokens or policy.context_length, policy.context_length)
    fitting, measured = ([one for one in rows if len(one[1].ids) <= limit] for rows in (free, held_out))
    if not fitting:
        raise UserError(
            f"no row of {config.data} can be trained on: of {len(found)} distinct ones {len(found) - len(rest)} are "
            f"held out, {len(rest) - len(free)} show a held-out problem and {len(free)} have more than {limit} tokens"
        )
    chosen = [fitting[index] for index in choose_rows(config.max_examples, len(fitting), config.seed)]
    logger.info(
        f"{config.data}: {len(found)} distinct rows, training on {len(chosen)}, measuring {len(measured)}; left out: "
        f"{len(rest) - len(free)} that show a held-out problem, "
        f"{len(free) - len(fitting) + len(held_out) - len(measured)} of more than {limit} tokens"
    )
    return Rows([one for _, one in chosen], [one for _, one in measured], [row.number for row, _ in chosen])


def as_chat(config: SftConfig, policy: Policy, task: Task | None) -> bool:
    """Whether texts are shown as a user's messages. auto: as the task's own prompts are, so that training matches the
    evaluation; without a task, if the tokenizer has a chat template.
    """
    if config.prompt_format != "auto":
        return config.prompt_format == "chat"
    if task is not None:
        return not isinstance((task.dataset.held_out or task.dataset.train)[0].prompt, str)
    return bool(policy.tokenizer.chat_template)


def _encoded(path: str, rows: Sequence[Demonstration], policy: Policy, chat: bool) -> list[Encoded]:
    """The distinct rows of a file, with their prompts as they are shown, and their tokens."""
    texts = sum(isinstance(row.prompt, str) for row in rows)
    if texts:
        how = "a user's message, through the chat template" if chat else "it is, without a chat template"
        logger.info(f"{path}: the prompt of {texts} of {len(rows)} rows is a text and is shown as {how}")
    encoded = [(row, as_rollout_of(policy, row, chat)) for row in rows]
    require_known_words(policy, path, [row.said for row in rows])
    distinct: dict[tuple[int, ...], Encoded] = {}
    for row, rollout in encoded:
        distinct.setdefault((rollout.prompt_length, *rollout.ids), (row, rollout))
    return list(distinct.values())


def as_rollout_of(policy: Policy, row: Demonstration, chat: bool = False) -> Rollout:
    """The row in tokens, as a rollout of reward 1. Texts are the user's messages in a `chat`."""
    turns = row.turns
    if chat and isinstance(row.prompt, str):
        turns = (([{"role": "user", "content": row.prompt}], turns[0][1]),)
    end = end_token(policy, not isinstance(turns[0][0], str))
    rollout = as_rollout(policy, row.question, turns, end)
    spans = [span for span, learned in zip(rollout.turns, row.learned, strict=True) if learned]
    mask = [any(first <= index < last for first, last in spans) for index in range(len(rollout.ids))]
    return replace(rollout, turns=spans, loss_mask=mask, reward=Reward(1.0))


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
