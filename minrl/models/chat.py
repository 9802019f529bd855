"""Prompts and turns of a conversation as token ids, by the model's tokenizer and its chat template.

The ids of an episode only grow: the first turn is encoded as a prompt, and each further turn as what follows a sampled
completion. A template must write every message of a conversation, which is tried with marks in place of their texts.
"""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from loguru import logger

from minrl.dataflow import SOLO, Message, Prompt, Rollout, UserError, require
from minrl.models.thoughts import (
    CLOSED,
    OPENED,
    continued,
    heard,
    is_arranged,
    lead_of,
    opens,
    special_tokens,
    without_special,
)
from minrl.utils.text import first_line, is_unicode, unmarked

LONGEST_MARK = 32
"""Tokens at the end of a prompt in which the mark of a thought stands."""

KEPT_PROMPTS = 1024
"""Prompts whose ids are cached."""

QUESTION, ANSWER = "\u2042", "\u2042\u2042z"
"""Texts of a conversation that is rendered to see what the template writes around them. A tokenizer joins a letter with
other letters only, and no template strips it.
"""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}<user> {{ message.content }} {% endif %}"
    "{% if message.role == 'assistant' %}<assistant> {{ message.content }} <end> {% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""That of the models made here. It leaves out system messages, which explain a task to models that can read: those
cannot.
"""

ASKED: Sequence[Message] = ({"role": "user", "content": QUESTION},)
ANSWERED: Sequence[Message] = (*ASKED, {"role": "assistant", "content": ANSWER})


@dataclass(frozen=True)
class Frame:
    """What a chat template writes around an answer."""

    shown: str = ""
    """A prompt, up to where the answer begins."""
    lead: str = ""
    """What it writes between the prompt and the answer, such as a space."""
    closing: str = ""
    """What it writes after the last answer."""
    space: str = ""
    """White space that it writes between an answer and its end."""
    end: int | None = None
    """The token that ends the last answer; None if no token does."""
    stop: str = ""
    """The text that ends an answer where no token does."""


@dataclass(kw_only=True)
class ChatTokenizer:
    """A tokenizer with its chat template and the options of that template, which remembers the prompts of a group."""

    tokenizer: Any
    chat_template_options: dict[str, Any]
    _frames: dict[str, Frame] = field(default_factory=dict)
    _left_out: dict[tuple[object, ...], str | None] = field(default_factory=dict)
    _encoded: dict[str, list[int]] = field(default_factory=dict)
    _said_unclosed: bool = False
    _said_date: bool = False

    @property
    def frame(self) -> Frame:
        """What the template writes around an answer; empty if there is none or it refuses a question with an answer."""
        template = repr(self.tokenizer.chat_template)
        if template not in self._frames:
            try:
                self._frames[template] = self._find_frame()
            except UserError:  # said where messages are encoded; a task of plain text needs no template
                self._frames[template] = Frame()
        return self._frames[template]

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The text that ends an answer where no token does, for engines."""
        return (self.frame.stop,) if self.frame.stop else ()

    @property
    def first_of_text(self) -> int | None:
        """The token that the tokenizer puts in front of every text."""
        return self._ends_of_text[0]

    @property
    def template_ends(self) -> frozenset[int]:
        """The token with which the chat template ends an answer, if there is one: often not the tokenizer's own."""
        return frozenset() if self.frame.end is None else frozenset({self.frame.end})

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a completion, as far as they are known here."""
        return self.template_ends

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
            self._encoded[asked] = self.encode_first_turn(prompt)
        return list(self._encoded[asked])

    def encode_first_turn(self, prompt: Prompt) -> list[int]:
        """A text as the tokenizer reads it, messages as transformers' `apply_chat_template` encodes them.

        A text that begins with the tokenizer's first token itself does not get another, and none ends with an end token
        that the tokenizer adds: the completion is still to come.
        """
        if not isinstance(prompt, str):
            return self._ids_of(self.render(prompt))
        ids, (first, last) = self.tokenizer(prompt)["input_ids"], self._ends_of_text
        ids = ids[1:] if first is not None and ids[:2] == [first, first] else ids
        return ids[:-1] if last is not None and ids[-1:] == [last] else ids

    def encode_next_turn(self, message: Prompt, completion: list[int]) -> list[int]:
        """Token ids that follow a sampled completion when the same role is shown the next message. The user says what a
        tool does if the template has no turn for it.

        The template closes the answer. What the completion ended with is not repeated, be it the template's end token
        or the text that stands for one; after anything else, such as another stop token, the whole closing follows.
        """
        if isinstance(message, str):
            return self.encode_text(message)
        message = message if self._writes_tools else list(map(told_by_user, message))
        rendered = self.render([*ANSWERED, *message])
        before, found, following = rendered.partition(ANSWER)  # the first: the message may hold it too
        start = len(before) + len(found)
        ids = self._ids_after(rendered, start)
        place = self._first_added(ids)
        if completion and place is not None and completion[-1] in (ids[place], self.frame.end):
            return ids[place + 1 :]
        written = self._written(following, completion) if self.frame.stop else 0
        return self._ids_after(rendered, start + written) if written else ids

    def encode_answer(self, text: str, chat: bool) -> list[int]:
        """Token ids of an answer that somebody else wrote, up to its end: as it is after a prompt of plain text, in a
        chat as the template writes it.
        """
        if not chat:
            return self.encode_text(text)
        self._require_template()
        frame = self.frame
        if opens(frame.shown) and CLOSED not in text:
            self._say_unclosed()
        whole = self.render([*ASKED, {"role": "assistant", "content": text}], ask=False) if frame.shown else ""
        reply = whole.removeprefix(frame.shown).removesuffix(frame.closing)
        if whole != frame.shown + reply + frame.closing or not is_arranged(text, reply, whole):
            reply = lead_of(frame.lead, text) + continued(frame.shown, text)
        written = reply + (frame.space if frame.end is not None else "")
        return self._ids_after(frame.shown + written, len(frame.shown)) if self._prefixes else self._ids_of(written)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text that continues another."""
        if not text or not self._prefixes:
            return self._ids_of(text)
        before = "z" if text[0].isspace() else "\n"
        return self._ids_after(before + text, len(before))

    def decode(self, ids: list[int]) -> str:
        """The text of sampled ids, for rewards and readers, without what ends it."""
        ends = self.stop_ids & self._added  # a token may be added without being special, so that a decoder keeps it
        ids = [id for id in ids if id not in ends]
        ids, marked = without_special(ids, *self._special)
        text, place = self._ended(ids, self.frame.stop, skip_special_tokens=not marked)
        return text if place is None else text[:place]

    def decode_all(self, ids: list[int]) -> str:
        """The text of ids with their special tokens, for readers."""
        return self.tokenizer.decode(ids)

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

    def render(self, messages: Sequence[Message], ask: bool = True) -> str:
        """The conversation as the chat template writes it; `ask`: up to where the next answer begins, or where it goes
        on if the last message is the assistant's.
        """
        self._require_template()
        for message in messages:
            refuse_images(message)
        if self.tokenizer.chat_template != CHAT_TEMPLATE and (left_out := self.left_out(messages, ask)):
            raise UserError(
                f"the chat template leaves out what the {left_out} says in a conversation of {roles_of(messages)}: "
                "change the task's messages, or choose another template with --chat-template"
            )
        self._warn_of_date(messages, ask)
        if ask and messages and messages[-1].get("role") == "assistant":
            shown, begun = self._rendered(messages[:-1], ask=True), text_of(messages[-1])
            text = shown + lead_of(self.frame.lead, begun) + continued(shown, begun)
        else:
            text = self._rendered(messages, ask)
        require(
            is_unicode(text),
            f"a conversation of {roles_of(messages)} holds a lone half of a surrogate pair, which is no character: "
            "remove it from the task's messages",
        )
        return text

    def left_out(self, messages: Sequence[Message], ask: bool = True) -> str | None:
        """The role of a message whose text or calls of tools the template does not write; None if it writes all. Tried
        once for each sequence of roles.
        """
        kinds = [
            (m.get("role"), type(m.get("content")), bool(m.get("content")), bool(m.get("tool_calls"))) for m in messages
        ]
        asked = (repr(self.tokenizer.chat_template), ask, *kinds)
        if asked not in self._left_out:
            marks = {n: f"\u2042{n}z" for n, message in enumerate(messages) if message.get("content")}
            marked = [with_text(m, marks[n]) if n in marks else m for n, m in enumerate(messages)]
            text = self._rendered(marked, ask)
            missing = [n for n, mark in marks.items() if mark not in text]
            missing += [
                n for n, m in enumerate(marked) if m.get("tool_calls") and self._ignores_calls(marked, n, text, ask)
            ]
            self._left_out[asked] = str(messages[missing[0]].get("role")) if missing else None
        return self._left_out[asked]

    def _ignores_calls(self, messages: Sequence[Message], place: int, text: str, ask: bool) -> bool:
        """Whether the template writes the text without the calls of tools of one of the messages too."""
        without = {name: value for name, value in messages[place].items() if name != "tool_calls"}
        with suppress(UserError):  # which it does not take without them
            return self._rendered([*messages[:place], without, *messages[place + 1 :]], ask) == text
        return False

    def _rendered(self, messages: Sequence[Message], ask: bool, **variables: object) -> str:
        """The text that the template writes. Keys without a value are left out: parquet gives every message the keys of
        all others, and templates ask whether a key is there.
        """
        given = [{key: v for key, v in quoted(m, self._marks).items() if v is not None} for m in messages]
        options = {**self.chat_template_options, **variables}
        try:
            return self.tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=ask, **options)
        except Exception as error:  # jinja raises whatever a template leads it to
            raise UserError(
                f"the chat template does not take a conversation of {roles_of(messages)}: {first_line(error)}; change "
                "the task's messages, or choose another template with --chat-template"
            ) from error

    def _warn_of_date(self, messages: Sequence[Message], ask: bool) -> None:
        """Warn once of a template that writes today's date: tomorrow it writes another prompt."""
        if self._said_date or "strftime_now" not in str(self.tokenizer.chat_template):
            return
        self._said_date = True
        if QUESTION in self._rendered(messages, ask, strftime_now=lambda _: QUESTION):
            logger.warning(
                "the chat template writes today's date: a run resumed or evaluated on another day shows other prompts. "
                """Set the date, for Llama 3.2 by --chat-template-options '{"date_string": "26 Jul 2024"}', """
                "or choose a template without it by --chat-template"
            )

    @cached_property
    def _writes_tools(self) -> bool:
        """Whether the chat template writes what a tool says after an answer."""
        try:
            return self.left_out([*ANSWERED, {"role": "tool", "content": ANSWER}]) is None
        except UserError:
            return False

    def _require_template(self) -> None:
        require(
            bool(self.tokenizer.chat_template),
            "the tokenizer has no chat template and the task's prompts are chat messages: choose an instruction-tuned "
            "model, or name a template with --chat-template",
        )

    def _say_unclosed(self) -> None:
        """Say once that a prompt opens a thought which a response does not end."""
        if not self._said_unclosed:
            self._said_unclosed = True
            logger.warning(
                f"the chat template's prompt ends with {OPENED}, and there are responses without {CLOSED}: they are "
                + ("put behind an empty thought" if CLOSED in self.frame.lead else "learned as thoughts")
                + "; write their thoughts too, or choose a template that opens none with --chat-template"
            )

    def _find_frame(self) -> Frame:
        if not self.tokenizer.chat_template:
            return Frame()
        shown, answered = self.render(ASKED), self.render(ANSWERED, ask=False)
        before, found, closing = answered.rpartition(ANSWER)
        if not found:
            return Frame()
        lead = before.removeprefix(shown) if before.startswith(shown) else ""
        after, (end, stop) = closing, self._end_in(closing)
        if end is None and not stop:  # the next turn's header alone says that the answer has ended
            after = self.render([*ANSWERED, *ASKED]).rpartition(ANSWER)[2].partition(QUESTION)[0]
            end, stop = self._end_in(after)
            stop = f"\n{stop}" if stop and f"\n{stop}" in after else stop
        space = after[: after.index(stop) if stop else len(after) - len(after.lstrip())]
        return Frame(shown, lead, closing, space, end, stop)

    def _end_in(self, text: str) -> tuple[int | None, str]:
        """The token that ends an answer, in what follows it; or the text, if it is none of the tokenizer's tokens."""
        ids = self._ids_of(text)
        place = self._first_added(ids)
        if place is not None:
            return ids[place], ""
        token = next((index for index, id in enumerate(ids) if id in self._added), None)
        return None, (text if token is None else self.decode_all(ids[:token])).strip()

    def _first_added(self, ids: list[int]) -> int | None:
        """Where the first token stands that is no text, if nothing but white space precedes it."""
        place = next((index for index, id in enumerate(ids) if id in self._added), None)
        return place if place is not None and not self.decode_all(ids[:place]).strip() else None

    def _written(self, following: str, completion: list[int]) -> int:
        """How many characters of what follows an answer the completion has already, from the text that ended it."""
        stop = self.frame.stop.strip()
        said, place = self._ended(completion, stop, skip_special_tokens=False)
        if place is None or not following.lstrip().startswith(stop):
            return 0
        written, more = following.index(stop) + len(stop), said[place + len(stop) :]
        return written + (len(more) if following[written:].startswith(more) else 0)

    def _ended(self, ids: list[int], stop: str, skip_special_tokens: bool) -> tuple[str, int | None]:
        """The text of sampled ids, and where the text that ended them begins in it. White space may follow that, and
        what the last token holds beside it.
        """
        text = self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        place = text.rfind(stop) if stop else -1
        end = place + len(stop)
        ended = place >= 0 and (
            not text[end:].strip()
            or end > len(self.tokenizer.decode(ids[:-1], skip_special_tokens=skip_special_tokens))
        )
        return text, place if ended else None

    def _ids_of(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _ids_after(self, text: str, start: int) -> list[int]:
        """The ids of a text from a place on, as they are in the whole text: alone, a space may be put in front of it.
        Where a token spans the place, the rest is encoded alone.
        """
        if self.tokenizer.is_fast:
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            offsets = encoded["offset_mapping"]
            place = next((index for index, (_, end) in enumerate(offsets) if end > start), len(offsets))
            if place == len(offsets) or offsets[place][0] >= start:
                return encoded["input_ids"][place:]
        return self._ids_of(text[start:])

    @cached_property
    def _added(self) -> frozenset[int]:
        """The tokens that are no text, such as `<|im_end|>`, without the one for words that the tokenizer lacks and
        those for white space.
        """
        own = self.tokenizer
        ends = {own.bos_token_id, own.eos_token_id, own.pad_token_id}  # byte tokenizers name one of them as unknown
        added = {*own.added_tokens_decoder, *own.all_special_ids} - {own.unk_token_id}
        return frozenset({id for id in added if self.decode_all([id]).strip()} | ends - {None})

    @cached_property
    def _special(self) -> tuple[frozenset[int], frozenset[int]]:
        return special_tokens(self.tokenizer)

    @cached_property
    def _marks(self) -> re.Pattern[str] | None:
        """The special tokens that have the shape of a mark: a message that holds one could end its turn."""
        own = self.tokenizer
        special = {token.content for token in own.added_tokens_decoder.values() if token.special}
        marks = sorted(token for token in special | {*own.all_special_tokens} if unmarked(token) != token)
        return re.compile("|".join(map(re.escape, reversed(marks)))) if marks else None

    @cached_property
    def _prefixes(self) -> bool:
        """Whether the tokenizer puts a space in front of a text."""
        alone, after = self._ids_of("z"), self._ids_of("\nz")
        return after[-len(alone) :] != alone

    @cached_property
    def _ends_of_text(self) -> tuple[int | None, int | None]:
        """The tokens that the tokenizer puts in front of a text and behind it."""
        plain, whole = self._ids_of("z"), self.tokenizer("z")["input_ids"]
        first, last = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        more = len(whole) > len(plain)
        return (first if more and whole[:1] == [first] else None), (last if more and whole[-1:] == [last] else None)


def text_of(message: Message) -> str:
    """The text of a message, of which there may be several parts."""
    content = message["content"]
    return content if isinstance(content, str) else " ".join(part["text"] for part in content or ())


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


def _as_json(messages: Sequence[Message]) -> str:
    """The messages as a text; what JSON does not hold, such as an image, by its repr: a template refuses it."""
    return json.dumps([dict(message) for message in messages], ensure_ascii=False, default=repr)


def as_rollout(tokenizer: ChatTokenizer, example_id: str, turns: Sequence[tuple[Prompt, str]], end: int) -> Rollout:
    """The turns, each (shown, said), as if the policy had sampled each answer and the end token after it."""
    ids: list[int] = []
    said: list[tuple[int, int]] = []
    for shown, text in turns:
        ids += tokenizer.encode_next_turn(shown, ids[said[-1][0] :]) if said else tokenizer.encode_prompt(shown)
        asked = not isinstance(shown, str) and shown[-1].get("role") != "assistant"  # else the text goes on
        completion = [*tokenizer.encode_answer(text, chat=asked), end]
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
