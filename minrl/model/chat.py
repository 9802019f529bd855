"""Prompts and turns as tokens, by the model's tokenizer and its chat template."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minrl.types import SOLO, Message, Prompt, Rollout, UserError

KEPT_PROMPTS = 1024
"""Prompts whose ids are cached."""

_SENTINEL = "\u2042"


@dataclass(kw_only=True)
class ChatTokenizer:
    """A tokenizer with its chat template and the options of that template."""

    tokenizer: Any
    chat_template_options: dict[str, Any]
    _encoded: dict[object, list[int]] = field(default_factory=dict)

    def stop_tokens(self, strings: Iterable[str]) -> frozenset[int]:
        """The ids of those strings that are single tokens, such as `<|im_end|>`."""
        ids = {string: self.tokenizer.convert_tokens_to_ids(string) for string in strings}
        return frozenset(i for string, i in ids.items() if i is not None and self.decode_all([i]) == string)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: a string as it is, messages through the chat template.

        They are cached for the other members of the group.
        """
        asked = prompt if isinstance(prompt, str) else tuple(tuple(message.items()) for message in prompt)
        if asked not in self._encoded:
            if len(self._encoded) >= KEPT_PROMPTS:
                self._encoded.clear()
            self._encoded[asked] = self._encode(prompt)
        return list(self._encoded[asked])

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer(prompt)["input_ids"]
        return self._ids_of(self._render(prompt))

    def fits(self, prompt: Prompt, length: int) -> bool:
        """Whether the prompt has at least one token and fewer than `length`; invalid Unicode has none.

        A text with few bytes is not encoded: each token has at least one, except those added at the ends.
        """
        if not isinstance(prompt, str) and not prompt:
            return False
        text = prompt if isinstance(prompt, str) else self._render(prompt)
        try:
            size = len(text.encode())
        except UnicodeEncodeError:  # half of a surrogate pair
            return False
        short = size + self.tokenizer.num_special_tokens_to_add() < length
        return bool(short and text.strip()) or 0 < len(self._encode(prompt)) < length

    def encode_next_turn(self, message: Prompt, completion: list[int]) -> list[int]:
        """Token ids that follow a sampled completion when the same role is shown the next message.

        The template closes the assistant's turn. A completion that already ends with that token does not repeat it.
        """
        if isinstance(message, str):
            return self.tokenizer(message, add_special_tokens=False)["input_ids"]
        opening = [{"role": "user", "content": _SENTINEL}, {"role": "assistant", "content": _SENTINEL * 2}]
        ids = self._ids_of(self._render([*opening, *message]).rpartition(_SENTINEL * 2)[2])
        return ids[1:] if completion and ids and completion[-1] == ids[0] else ids

    def decode(self, ids: list[int]) -> str:
        """The text of sampled ids, for rewards and readers."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def decode_all(self, ids: list[int]) -> str:
        """The text of ids with their special tokens, for readers."""
        return self.tokenizer.decode(ids)

    def _ids_of(self, rendered: str) -> list[int]:
        return self.tokenizer(rendered, add_special_tokens=False)["input_ids"]

    def _render(self, messages: list[Message]) -> str:
        if self.tokenizer.chat_template is None:
            raise UserError(
                "the tokenizer has no chat template and the task's prompts are chat messages: "
                "choose an instruction-tuned model, or give the tokenizer a chat_template"
            )
        return self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=True,
            **self.chat_template_options,
        )


def as_rollout(tokenizer: ChatTokenizer, example_id: str, turns: Sequence[tuple[Prompt, str]], end: int) -> Rollout:
    """The turns, each (shown, said), as if the policy had sampled each answer and the end token after it."""
    ids: list[int] = []
    said: list[tuple[int, int]] = []
    for shown, text in turns:
        ids += tokenizer.encode_next_turn(shown, ids[said[-1][0] :]) if said else tokenizer.encode_prompt(shown)
        completion = [*tokenizer.tokenizer(text, add_special_tokens=False)["input_ids"], end]
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
