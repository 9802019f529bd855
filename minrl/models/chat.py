"""Prompts and turns of a conversation as token ids, by the model's tokenizer and its chat template.

The ids of an episode only grow: the first turn is encoded as a prompt, and each further turn as what the template
writes behind an answer. A template must write every message of a conversation, which is tried with marks in place of
their texts.

The schemas of tools are the key `tools` of a message, by convention the first. The template is given them; where it
ignores them, they are written into the text of the system.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from minrl.dataflow import SOLO, Message, Prompt, Rollout, UserError, require
from minrl.utils.text import first_line, is_unicode, unmarked

KEPT_PROMPTS = 1024
"""Prompts whose ids are cached."""

QUESTION, ANSWER = "\u2042", "\u2042\u2042z"
"""Texts of a conversation that is rendered to see what the template writes around them. A tokenizer joins a letter with
other letters only, and no template strips it.
"""

OPENED, CLOSED = "<think>", "</think>"
"""What opens and closes a thought where a template arranges thoughts."""

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

TRIED_TOOL = {
    "name": "marked_tool",
    "description": "A tool.",
    "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "A text."}}, "required": []},
}
"""The schema with which it is tried whether a template shows tools."""

TOOLS_TEXT = """You may call these functions:
{schemas}
To call one, write
<tool_call>
{{"name": "<its name>", "arguments": {{"<a parameter>": <its value>}}}}
</tool_call>
and end your turn: what it returns is the next message. Then answer, without a call."""
"""What says which tools there are where no template does."""


@dataclass(frozen=True)
class Closing:
    """What a chat template writes behind the last answer; all of it is empty without a template."""

    text: str = ""
    space: str = ""
    """White space that it writes between an answer and its end."""
    end: int | None = None
    """The token that ends the answer; None if no token does."""
    stop: str = ""
    """The text that ends the answer where no token does."""


@dataclass(kw_only=True)
class ChatTokenizer:
    """A tokenizer with its chat template and the options of that template, which remembers the prompts of a group."""

    tokenizer: Any
    chat_template_options: dict[str, Any]
    _closings: dict[str, Closing] = field(default_factory=dict)
    _written: dict[tuple[object, ...], type] = field(default_factory=dict)
    _encoded: dict[str, list[int]] = field(default_factory=dict)

    @property
    def closing(self) -> Closing:
        """What the template writes behind an answer; empty if there is none or it refuses a question with an answer."""
        template = str(self.tokenizer.chat_template or "")
        if template not in self._closings:
            self._closings[template] = self._find_closing() if template else Closing()
        return self._closings[template]

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The text that ends an answer where no token does, for engines."""
        return (self.closing.stop,) if self.closing.stop else ()

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a completion, as far as they are known here: the one with which the template ends an
        answer, which is often not the tokenizer's own.
        """
        return frozenset() if self.closing.end is None else frozenset({self.closing.end})

    def stop_tokens(self, strings: Iterable[str]) -> frozenset[int]:
        """The ids of those strings that are single tokens, such as `<|im_end|>`."""
        ids = {string: self.tokenizer.convert_tokens_to_ids(string) for string in strings}
        return frozenset(i for string, i in ids.items() if i is not None and self.decode_all([i]) == string)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: a string as the tokenizer reads it, messages as transformers' `apply_chat_template`
        encodes them. They are cached for the other members of the group.
        """
        asked = f"text {prompt}" if isinstance(prompt, str) else _as_json(prompt)
        if asked not in self._encoded:
            if len(self._encoded) >= KEPT_PROMPTS:
                self._encoded.clear()
            self._encoded[asked] = (
                self._ids_of_text(prompt) if isinstance(prompt, str) else self._ids_of(self.render(prompt))
            )
        return list(self._encoded[asked])

    def _ids_of_text(self, text: str) -> list[int]:
        """A text that begins with the tokenizer's first token itself does not get another, and none ends with an end
        token that the tokenizer adds: the completion is still to come.
        """
        ids, alone = self.tokenizer(text)["input_ids"], self.tokenizer("z")["input_ids"]
        first, last = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        ids = ids[1:] if first is not None and ids[:2] == [first, first] else ids
        return ids[:-1] if last is not None and alone[-1] == last else ids

    def encode_next_turn(self, message: Prompt, completion: list[int]) -> list[int]:
        """Token ids that follow a sampled completion when the same role is shown the next message: the end of the
        answer, as far as the completion has not written it, and the message.
        """
        if isinstance(message, str):
            return self.encode_text(message)
        calls = message[0].get("role") == "tool" and self._before_tools == "call"
        rendered = self.render([*(called(message[0].get("name")) if calls else ANSWERED), *message])
        before, answer, following = rendered.partition(ANSWER)  # the first: the message may hold it too
        ids, stop = self._ids_behind(before + answer, following), self.closing.stop.strip()
        place = next((place for place, id in enumerate(ids) if id in self._special), None)
        if completion and place is not None and completion[-1] in (ids[place], self.closing.end):
            return ids[place + 1 :]
        said = self.decode_all(completion[-4 * len(stop) - 8 :]) if stop in following else ""
        if stop and stop in said:  # with what the last token holds beside it
            written, more = following.index(stop) + len(stop), said.rpartition(stop)[2]
            written += len(more) if following[written:].startswith(more) else 0
            return self._ids_behind(before + answer + following[:written], following[written:])
        return ids

    def encode_answer(self, text: str, chat: bool) -> list[int]:
        """Token ids of an answer that somebody else wrote, up to its end: as it is after a prompt of plain text, in a
        chat as the template writes it. A thought that the prompt opens is not opened again.
        """
        if not chat:
            return self.encode_text(text)
        shown, closing = self.render(ASKED), self.closing
        whole = self.render([*ASKED, {"role": "assistant", "content": text}], ask=False)
        opened = shown.rstrip().endswith(OPENED) and text.lstrip().startswith(OPENED)
        written = text.lstrip().removeprefix(OPENED).lstrip() if opened else text
        if whole.startswith(shown) and whole.endswith(closing.text) and (CLOSED in text or not opened):
            reply = whole.removeprefix(shown).removesuffix(closing.text)
            written = reply if all(part.strip() in reply for part in written.split(CLOSED)) else written
        return self._ids_behind(shown, written + (closing.space if closing.end is not None else ""))

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text that continues another."""
        return self._ids_behind("z" if text[:1].isspace() else "\n", text)

    def decode(self, ids: list[int]) -> str:
        """The text of sampled ids, for rewards and readers, without what ends it."""
        ends = self.stop_ids & self._special
        text, stop = self.decode_all([id for id in ids if id not in ends]), self.closing.stop
        before, found, behind = text.rpartition(stop) if stop else ("", "", text)
        return before if found and len(behind) < len(stop) else text  # the last token may hold more than the end

    def decode_all(self, ids: list[int]) -> str:
        """The text of ids with their special tokens, for readers."""
        return self.tokenizer.decode(ids)

    def fits(self, prompt: Prompt, length: int) -> bool:
        """Whether the prompt has at least one token and fewer than `length`; invalid Unicode has none."""
        if not prompt or not is_unicode(prompt if isinstance(prompt, str) else _as_json(prompt)):
            return False
        return 0 < len(self.encode_prompt(prompt)) < length

    def render(self, messages: Sequence[Message], ask: bool = True) -> str:
        """The conversation as the chat template writes it; `ask`: up to where the next answer begins, or where it goes
        on if the last message is the assistant's.
        """
        require(
            bool(self.tokenizer.chat_template),
            "the tokenizer has no chat template and the task's prompts are chat messages: choose an instruction-tuned "
            "model, or name a template with --chat-template",
        )
        for message in messages:
            refuse_images(message)
        if tools_of(messages) and not self._shows_tools:
            try:
                return self.render(with_tools_as_text(messages, "system"), ask)
            except UserError:  # a template without system messages
                return self.render(with_tools_as_text(messages, "user"), ask)
        if self.tokenizer.chat_template != CHAT_TEMPLATE:
            form = self._form_of_calls(messages, ask)
            messages = [with_arguments(message, form) for message in messages]
        text = self._rendered(messages, ask)
        require(
            is_unicode(text),
            f"a conversation of {roles_of(messages)} holds a lone half of a surrogate pair, which is no character: "
            "remove it from the task's messages",
        )
        return text

    def _form_of_calls(self, messages: Sequence[Message], ask: bool) -> type:
        """Whether the template takes the arguments of tools' calls as an object (`dict`, transformers' form) or as
        JSON (`str`, OpenAI's). Messages of which it leaves something out are refused. It is tried once for each
        sequence of kinds of messages, with marks in place of what is said.
        """
        asked = (str(self.tokenizer.chat_template), ask, *map(kind_of, messages))
        if asked not in self._written:
            try:
                self._written[asked] = self._tried(messages, ask, dict)
            except UserError:
                self._written[asked] = self._tried(messages, ask, str)
        return self._written[asked]

    def _tried(self, messages: Sequence[Message], ask: bool, form: type) -> type:
        """The form, if the template writes every message with it, and arguments neither as Python writes an object nor
        as a JSON text within JSON.
        """
        marked = [with_marks(message, f"mark{place}", form) for place, message in enumerate(messages)]
        text = self._rendered([message for message, _ in marked], ask)
        for message, marks in marked:
            require(
                all(mark in text and ("value" not in mark or f"'{mark}'" not in text) for mark in marks),
                f"the chat template leaves out what the {message.get('role')} says in a conversation of "
                f"{roles_of(messages)}: change the task's messages, or choose another template with --chat-template",
            )
        return form

    def _rendered(self, messages: Sequence[Message], ask: bool) -> str:
        """The text that the template writes. Keys without a value are left out: parquet gives every message the keys of
        all others, and templates ask whether a key is there. The user says what a tool does if the template has no turn
        for it.
        """
        if not self._before_tools and any(message.get("role") == "tool" for message in messages):
            messages = list(map(tool_as_user, messages))
        tools = {"tools": found} if (found := tools_of(messages)) else {}
        calls = {"tool_call_id": "call00000"}  # which Mistral's wants
        messages = [{**calls, **message} if message.get("role") == "tool" else message for message in messages]
        given = [
            {key: v for key, v in quoted(m, self._marks).items() if v is not None and key != "tools"} for m in messages
        ]
        goes_on = ask and bool(messages) and messages[-1].get("role") == "assistant"
        try:
            return self.tokenizer.apply_chat_template(
                given,
                tokenize=False,
                add_generation_prompt=ask and not goes_on,
                continue_final_message=goes_on,
                **{**self.chat_template_options, **tools},
            )
        except Exception as error:  # jinja raises whatever a template leads it to
            raise UserError(
                f"the chat template does not take a conversation of {roles_of(messages)}: {first_line(error)}; change "
                "the task's messages, or choose another template with --chat-template"
            ) from error

    @cached_property
    def _before_tools(self) -> str:
        """What the chat template writes a tool's message behind: any `answer`, or only a `call`; empty: nothing."""
        for behind, before in (("answer", ANSWERED), ("call", called("f"))):
            self.__dict__["_before_tools"] = behind  # while it is tried
            try:
                if QUESTION * 3 in self._rendered([*before, {"role": "tool", "content": QUESTION * 3}], ask=True):
                    return behind
            except UserError:
                pass
        return ""

    @cached_property
    def _shows_tools(self) -> bool:
        """Whether the chat template writes the schemas of tools."""
        tools = [{"type": "function", "function": TRIED_TOOL}]
        try:
            return str(TRIED_TOOL["name"]) in self._rendered([{**ASKED[0], "tools": tools}], ask=True)
        except UserError:
            return False

    def read_response(self, prompt: Prompt, shown: list[int], ids: list[int]) -> dict[str, Any] | None:
        """The message with calls of tools in a completion, as the tokenizer's own `parse_response` reads it. None if it
        has none, the prompt names no tools, or the completion is not of its form.
        """
        tools = [] if isinstance(prompt, str) else tools_of(prompt)
        if not tools or getattr(self.tokenizer, "response_template", None) is None:
            return None
        try:
            return self.tokenizer.parse_response(self.decode_all(ids), prefix=self.decode_all(shown), tools=tools)
        except (ValueError, LookupError, TypeError):  # of what the model wrote
            return None

    def _find_closing(self) -> Closing:
        try:
            text = self.render(ANSWERED, ask=False).rpartition(ANSWER)[2]
            turns = self.render([*ANSWERED, *ASKED]).partition(ANSWER)[2].partition(QUESTION)[0]
        except UserError:  # said where messages are encoded; a task of plain text needs no template
            return Closing()
        ids = self._ids_behind(ANSWER, text)
        place = next((place for place, id in enumerate(ids) if id in self._special), None)
        if place is not None and not self.decode_all(ids[:place]).strip():
            return Closing(text, text[: len(text) - len(text.lstrip())], ids[place])
        after = text if text.strip() else turns  # the next turn's header alone says that the answer has ended
        ids = self._ids_of(after)
        first = next((place for place, id in enumerate(ids) if id in self._special), None)
        stop = self.decode_all(ids[:first]).strip()
        if stop not in after:  # the tokenizer cannot write it
            return Closing(text)
        stop = f"\n{stop}" if stop and f"\n{stop}" in after else stop
        return Closing(text, after[: after.index(stop)], None, stop)

    def _ids_of(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _ids_behind(self, before: str, text: str) -> list[int]:
        """The ids of a text as they are behind another: alone, a space may be put in front of it. Where the two join in
        a token, those of the text alone.
        """
        first, both = self._ids_of(before), self._ids_of(before + text)
        return both[len(first) :] if both[: len(first)] == first else self._ids_of(text)

    @cached_property
    def _special(self) -> frozenset[int]:
        """The tokens that are no text, such as `<|im_end|>`, without the one for words that the tokenizer lacks and
        those for white space.
        """
        own = self.tokenizer
        ends = {own.bos_token_id, own.eos_token_id, own.pad_token_id}  # byte tokenizers name one of them as unknown
        added = {*own.added_tokens_decoder, *own.all_special_ids} - {own.unk_token_id}
        return frozenset({id for id in added if self.decode_all([id]).strip()} | ends - {None})

    @cached_property
    def _marks(self) -> re.Pattern[str] | None:
        """The special tokens that have the shape of a mark: a message that holds one could end its turn."""
        own = self.tokenizer
        special = {token.content for token in own.added_tokens_decoder.values() if token.special}
        marks = sorted(token for token in special | {*own.all_special_tokens} if unmarked(token) != token)
        return re.compile("|".join(map(re.escape, reversed(marks)))) if marks else None


def text_of(message: Message) -> str:
    """The text of a message, of which there may be several parts, or none beside calls of tools."""
    content = message.get("content")
    return content if isinstance(content, str) else " ".join(part["text"] for part in content or ())


def said_in(prompt: Prompt) -> str:
    """All that a prompt says, without roles."""
    return prompt if isinstance(prompt, str) else "\n".join(map(text_of, prompt))


def question_of(prompt: Prompt) -> str:
    """The question of a prompt without extra white space: the text, or a chat's last message of the user.

    >>> question_of([*ASKED, {"role": "user", "content": " 1  + 1? "}, {"role": "assistant", "content": "2"}])
    '1 + 1?'
    """
    if not isinstance(prompt, str):
        prompt = said_in([message for message in prompt if message["role"] == "user"][-1:] or prompt)
    return " ".join(prompt.split())


def shown(prompt: Prompt) -> str:
    """A prompt as one text, with the role before each message."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{message['role']}: {text_of(message)}" for message in prompt)


def kind_of(message: Message) -> tuple[object, ...]:
    """Who speaks, in which form, and whether with text and with arguments of each call of a tool."""
    content, calls = message.get("content"), message.get("tool_calls") or ()
    given = (bool(call.get("function", call).get("arguments")) for call in calls)
    return message.get("role"), type(content), bool(content), bool(message.get("tools")), *given


def with_arguments(message: Message, form: type) -> Message:
    """The message with the arguments of its calls of tools as objects (`dict`) or as JSON (`str`)."""

    def changed(call: Any) -> Any:  # noqa: ANN401 - JSON
        own = call.get("function", call)
        given = own.get("arguments")
        if given is None or isinstance(given, form):
            return call
        try:
            value = json.dumps(given, ensure_ascii=False) if form is str else json.loads(given or "{}")
        except (TypeError, ValueError):
            value = None
        require(
            isinstance(value, form),
            f"`arguments` of a call of the tool {own.get('name')} must be a JSON object, got {given!r:.80}",
        )
        own = {**own, "arguments": value}
        return {**call, "function": own} if "function" in call else own

    calls = message.get("tool_calls")
    return {**message, "tool_calls": list(map(changed, calls))} if calls else message


def with_marks(message: Message, mark: str, form: type) -> tuple[Message, list[str]]:
    """The message with marks for its text and for the names and arguments of its calls of tools, and the marks."""
    content, marks = message.get("content"), []
    if content:
        marks = [mark]
        message = {**message, "content": mark if isinstance(content, str) else [{"type": "text", "text": mark}]}
    calls = []
    for number, call in enumerate(message.get("tool_calls") or ()):
        name, value = f"{mark}name{number}", f"{mark}value{number}"
        own = {**call.get("function", call), "name": name}
        marks.append(name)
        if own.get("arguments"):
            own["arguments"] = {"x": value}
            marks.append(f'"{value}"' if form is str else value)  # whose quotes are escaped within JSON
        calls.append({**call, "function": own} if "function" in call else own)
    return (with_arguments({**message, "tool_calls": calls}, form) if calls else message), marks


def tools_of(messages: Sequence[Message]) -> list[Any]:
    """The schemas of the tools that a conversation names."""
    return [tool for message in messages for tool in message.get("tools") or ()]


def tools_text(tools: Sequence[Any]) -> str:
    """What says in words which tools there are, and how they are called."""
    return TOOLS_TEXT.format(schemas="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


def with_tools_as_text(messages: Sequence[Message], role: str) -> list[Message]:
    """The conversation with its tools in words: behind the system's text, or in front of the user's first."""
    first, *others = [{key: value for key, value in message.items() if key != "tools"} for message in messages]
    said, own = tools_text(tools_of(messages)), text_of(first)
    if role == first.get("role") == "system":
        return [{**first, "content": f"{own}\n\n{said}"}, *others]
    if role == "system":
        return [{"role": "system", "content": said}, first, *others]
    return [{**first, "content": f"{said}\n\n{own}"}, *others]


def called(name: object) -> Sequence[Message]:
    """A conversation that ends in a call of this tool."""
    call = {"type": "function", "function": {"name": name, "arguments": {"x": ANSWER}}}
    return (*ASKED, {"role": "assistant", "content": "", "tool_calls": [call]})


def roles_of(messages: Sequence[Message]) -> str:
    """The roles of a conversation, in words."""
    return ", ".join(str(message.get("role")) for message in messages) or "no messages"


def tool_as_user(message: Message) -> Message:
    """What a tool says as a message of the user, between marks; any other message as it is."""
    if message.get("role") != "tool":
        return message
    return {"role": "user", "content": f"<tool_response>\n{text_of(message)}\n</tool_response>"}


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
    if not other and not all(isinstance(part.get("text"), str) for part in parts):
        other = ["a part without text"]
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
        text = text.removesuffix(tokenizer.decode_all([end]))  # which follows
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
