"""Prompts and turns as tokens: what a policy and supervised fine-tuning ask of the tokenizer."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from loguru import logger

from minrl.models.messages import is_unicode, roles_of, told_by_user
from minrl.models.round_trip import difference
from minrl.models.thoughts import heard
from minrl.models.turns import ANSWER, ANSWERED, Turns
from minrl.types import SOLO, Message, Prompt, Rollout, UserError

LONGEST_MARK = 32
"""Tokens at the end of a prompt in which the mark of a thought stands."""

KEPT_PROMPTS = 1024
"""Prompts whose ids are cached."""


@dataclass(kw_only=True)
class ChatTokenizer(Turns):
    """A tokenizer with its chat template, which remembers the prompts of a group."""

    _encoded: dict[str, list[int]] = field(default_factory=dict)
    _compared: bool = False

    def stop_tokens(self, strings: Iterable[str]) -> frozenset[int]:
        """The ids of those strings that are single tokens, such as `<|im_end|>`."""
        ids = {string: self.tokenizer.convert_tokens_to_ids(string) for string in strings}
        return frozenset(i for string, i in ids.items() if i is not None and self.decode_all([i]) == string)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: a string as it is, messages through the chat template.

        They are cached for the other members of the group.
        """
        asked = f"text {prompt}" if isinstance(prompt, str) else _as_json(prompt)
        if asked not in self._encoded:
            if len(self._encoded) >= KEPT_PROMPTS:
                self._encoded.clear()
            ids = self.encode_first_turn(prompt)
            if prompt and not ids and not isinstance(prompt, str):
                raise UserError(
                    f"the chat template writes nothing for a first turn of {roles_of(prompt)}: change the task's "
                    "messages, or choose another template with --chat-template"
                )
            self._encoded[asked] = ids
        return list(self._encoded[asked])

    def heard(self, shown: list[int], completion: list[int]) -> str:
        """The text of sampled ids as a task is told it: with the mark of the thought that what was shown before opened,
        if the completion does not close it.
        """
        return heard(self.decode_all(shown[-LONGEST_MARK:]), self.decode(completion))

    def fits(self, prompt: Prompt, length: int) -> bool:
        """Whether the prompt has at least one token and fewer than `length`; invalid Unicode has none.

        A text with few bytes is not encoded: each token has at least one, except those added at the ends.
        """
        if not isinstance(prompt, str) and not prompt:
            return False
        if not is_unicode(prompt if isinstance(prompt, str) else _as_json(prompt)):
            return False
        text = prompt if isinstance(prompt, str) else self.render(prompt)
        short = len(text.encode()) + self.tokenizer.num_special_tokens_to_add() < length
        return bool(short and text.strip()) or 0 < len(self.encode_first_turn(prompt)) < length

    def encode_next_turn(self, message: Prompt, completion: list[int]) -> list[int]:
        """`Turns.encode_next_turn`; the user says what a tool does if the template has no turn for it. Before the first
        one of a chat, say how such turns differ from the template's.
        """
        if not self._compared and not isinstance(message, str):
            self._compared = True
            found = difference(self)
            if found:
                logger.warning(
                    f"a further turn is appended to the tokens as they were sampled, and {found}: the model is trained "
                    "on what it sampled, and a chat program would show it the template's (docs/templates.md)"
                )
        if not isinstance(message, str) and not self._writes_tools:
            message = list(map(told_by_user, message))
        return super().encode_next_turn(message, completion)

    @cached_property
    def _writes_tools(self) -> bool:
        """Whether the chat template writes what a tool says after an answer."""
        try:
            return self.render([*ANSWERED, {"role": "tool", "content": ANSWER}]).count(ANSWER) == 2
        except UserError:
            return False


def _as_json(messages: Sequence[Message]) -> str:
    """The messages as a text; what JSON does not hold, such as an image, by its repr: a template refuses it."""
    return json.dumps([dict(message) for message in messages], ensure_ascii=False, default=repr)


def as_rollout(tokenizer: ChatTokenizer, example_id: str, turns: Sequence[tuple[Prompt, str]], end: int) -> Rollout:
    """The turns, each (shown, said), as if the policy had sampled each answer and the end token after it."""
    ids: list[int] = []
    said: list[tuple[int, int]] = []
    for shown, text in turns:
        ids += tokenizer.encode_next_turn(shown, ids[said[-1][0] :]) if said else tokenizer.encode_prompt(shown)
        completion = [*tokenizer.encode_answer(text, chat=not isinstance(shown, str)), end]
        said.append((len(ids), len(ids) + len(completion)))
        ids += completion
    return Rollout(
        ids=ids,
        loss_mask=[any(first <= index < last for first, last in said) for index in range(len(ids))],
        rollout_logprobs=[0.0] * len(ids),
        turns=said,
        prompt_length=said[0][0],
        example_id=example_id,
        group=0,
        sample=0,
        role=SOLO,
        seed=0,
        weight_version=0,
    )
