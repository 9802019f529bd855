"""Chat messages: their texts, and what of them no chat template is given."""

import re
from collections.abc import Sequence

from minrl.types import Message, UserError, require
from minrl.utils.text import unmarked


def text_of(message: Message) -> str:
    """The text of a message, of which there may be several parts."""
    content = message["content"]
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


def with_text(message: Message, text: str) -> Message:
    """The message with another text, in parts if it had parts."""
    content = message["content"]
    return {**message, "content": text if isinstance(content, str) else [{"type": "text", "text": text}]}


def roles_of(messages: Sequence[Message]) -> str:
    """The roles of a conversation, in words."""
    return ", ".join(str(message.get("role")) for message in messages) or "no messages"


def told_by_user(message: Message) -> Message:
    """What a tool says as a message of the user, between marks; any other message as it is."""
    if message.get("role") != "tool":
        return message
    return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


def quoted(message: Message, special: re.Pattern[str] | None) -> Message:
    """The message with a space in each special token that its text holds: what others wrote ends no turn. An answer is
    the assistant's own and stays as it is.
    """
    content = message.get("content")
    if special is None or message.get("role") == "assistant" or not special.search(str(content)):
        return message

    def broken(text: object) -> object:
        return special.sub(lambda match: unmarked(match[0]), text) if isinstance(text, str) else text

    if isinstance(content, list):
        return {**message, "content": [{**part, "text": broken(part["text"])} for part in content]}
    return {**message, "content": broken(content)}


def refuse_images(message: Message) -> None:
    """Refuse what a message has beside text; parts of text are the template's to join."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    kinds = [part.get("type") if isinstance(part, dict) else type(part).__name__ for part in parts]
    other = sorted({str(kind) for kind in kinds if kind != "text"})
    if content is not None and not isinstance(content, str | list):
        other = [type(content).__name__]
    if other:
        raise UserError(
            f"a message of the {message.get('role')} holds {', '.join(other)}: models are trained on text alone; give "
            'its content as a text, or as a list of {"type": "text", "text": ...}'
        )


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded: a lone half of a surrogate pair, as JSON may hold, cannot."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def refuse_half_pairs(text: str, messages: Sequence[Message]) -> None:
    """Refuse a rendered conversation that no tokenizer takes."""
    require(
        is_unicode(text),
        f"a conversation of {roles_of(messages)} holds a lone half of a surrogate pair, which is no character: remove "
        "it from the task's messages",
    )
