"""Answers that hold thoughts, between the marks of reasoning models, behind prompts that may have opened one.

    <think> 7 - 5 is 2, no </think> <answer> 7 + 5 - 3 </answer>    ->    <answer> 7 + 5 - 3 </answer>

`FORMS` are the marks that are known. Rewards read what `after_thoughts` leaves.
"""

import re
from typing import Any

OPENED, CLOSED = "<think>", "</think>"

FORMS = (
    (r"\|begin_of_thought\|>", r"\|end_of_thought\|>"),  # OpenThinker, Sky-T1
    (r"\|thinking\|>", r"\|/(?:end_)?thinking\|>"),
    (r"\|START_THINKING\|>", r"\|END_THINKING\|>"),  # Command A
    (r"\|inner_prefix\|>", r"\|inner_suffix\|>"),  # Apertus
    (r"\|channel>thought", r"channel\|>"),  # Gemma 4
    (r"unused94>", r"unused95>"),  # MedGemma
    (r"\|think\|>", r"\|content\|>"),  # Solar Open
    (r"\|im_start\|>think", r"\|im_start\|>answer"),  # s1
    (r"\|channel\|>(?!final)[^<\n]{0,80}(?:<\|message\|>)?", r"\|channel\|>final[^<\n]{0,80}<\|message\|>"),  # gpt-oss
)
"""What opens and what closes a thought, after `<`, beside tags such as `<think>`, `<seed:think>` and `[THINK]`."""

_WORDS = (
    (r"\Aanalysis(?=[A-Z])", "<|channel|>analysis<|message|>"),  # gpt-oss, its special tokens left out
    (r"assistantfinal", "<|channel|>final<|message|>"),
)
"""Words that open and close thoughts, and the marks that they stand for."""
_PROCESS = re.compile(r"\bHere(?:'s| is) my thought process:")  # Granite 3
_RESPONSE = re.compile(r"\bHere(?:'s| is) my response:")
_FENCE = (
    r"(?<![^\n])[ \t]*(?P<bar>`{3,5}|~{3,5})(?![`~])[^\n`<\[\u25c1]*\n(?:(?![ \t]*(?P=bar))[^\n]*\n)*"
    r"[ \t]*(?P=bar)[`~]*[ \t\r]*(?![^\n])"
)
"""A fenced block that is closed: what stands in it is program text, unless it stands in a thought. Without possessive
quantifiers, which CPython 3.11.2 matches wrongly.
"""
_TAG = (
    r"(?!(?<=\[)(?-i:(?!/?[A-Z]{2}))|(?<=[\w)\]]\[)(?!/)|(?<=\w<)(?-i:[A-Z]))"  # `a[think]`, `Vec<Thought>` are none
    r"\s?(?P<slash>/?)\s?"
    r"(?P<tag>(?:\w{1,20}[:_])?think(?:ing)?|thoughts?|(?:thinking|thought)_process|reasoning|reflection|scratch_?pad"
    r"|inner_(?:thoughts?|monologue)|(?-i:analysis|reason))"
    r"\s?[>\]\u25b7]"
)
_END = (
    r"(?P<end>\|(?:im_end|eot_id|end|return|call|endoftext|end_of_text|END_RESPONSE|end_of_solution)\|>|end_of_turn>"
    r"|/s>|eos>|[|\uff5c]end[\u2581_]of[\u2581_]sentence[|\uff5c]>)"
)
_ENDED = re.compile(f"<{_END}", re.IGNORECASE)
_PAIRS = [f"(?P<opens{n}>{opens})|(?P<closes{n}>{closes})" for n, (opens, closes) in enumerate(FORMS)]
_ANY = rf"[<\[\u25c1](?=[\s/|\uff5ca-z])(?:{'|'.join([_TAG, *_PAIRS, _END])})"
_MARK, _OUTSIDE = (re.compile(pattern, re.IGNORECASE) for pattern in (_ANY, f"(?P<fence>{_FENCE})|{_ANY}"))
_GLUED = re.compile(r"(?:(?<=</think>)|(?<=\[/THINK\])|(?<=\|>))(?=```|~~~)")
_MENTIONED = (
    re.compile(
        r"(?:\b(?:the|an?|no|my|your|of|in|with|use|using|inside|between) |[\"'`(\u2018\u201c])\Z", re.IGNORECASE
    ),
    re.compile(r"[ \t]?[\w,;.\"'`)\u2019\u201d]"),
)
"""What stands before and behind a tag that a sentence names."""
_PIECES = frozenset(("<|channel|>", "<|message|>"))


def turn(text: str) -> str:
    """The text before the first mark of the end of its turn, such as `</s>`."""
    ended = _ENDED.search(text)
    return text[: ended.start()] if ended else text


def after_thoughts(text: str) -> str:
    """What a completion says outside its thoughts. A thought that is not closed goes on to the end, and a mark that
    closes one that the prompt opened ends what stands before it. The turn ends with the first mark of its end. In a
    fenced block outside of thoughts nothing is a mark; a tag that is never closed is none where a sentence names it.

    >>> after_thoughts("<think> 3? </think> It is 4. [THINK] 5? [/THINK] Yes."), after_thoughts("3? </think>4")
    (' It is 4. \\n Yes.', '4')
    >>> after_thoughts("It is 4. <thinking> 5?"), after_thoughts("<|channel|>final<|message|>4<|return|>")
    ('It is 4. ', '4')
    """
    for words, mark in _WORDS:
        text = _put(mark, words, text)
    if _PROCESS.search(text):
        text = _RESPONSE.sub(CLOSED, _PROCESS.sub(OPENED, text))
    text = _GLUED.sub("\n", text)
    closed = {form: found.start() for found in _MARK.finditer(text) for form, closes in [_form(found)] if closes}
    said, start, thought, place = [], 0, "", 0
    while found := (_MARK if thought else _OUTSIDE).search(text, place):
        place = found.end()
        if not thought and found["fence"]:
            continue
        form, closes = _form(found)
        if not closes and not thought:
            if closed.get(form, -1) < found.start() and _is_named(text, found):
                continue
            said.append(text[start : found.start()])
            thought = form
        elif closes and (thought in ("", form) or (thought == "end" and found[0].startswith("<|channel"))):
            said, start, thought = said if thought == form else [], found.end(), ""
    return "\n".join(filter(None, [*said, "" if thought else text[start:]]))


def _put(mark: str, words: str, text: str) -> str:
    """The text with a mark in the place of words outside of its fences."""
    return re.sub(f"({_FENCE})|{words}", lambda found: found[1] or mark, text)


def _is_named(text: str, mark: re.Match[str]) -> bool:
    """Whether a tag that nothing closes is a heading, or named by a sentence.

    >>> [after_thoughts(f"{tag} 4") for tag in ("[Reasoning]", "[THINK]", "The <think> tag.", "Well <think>")]
    ['[Reasoning] 4', '', 'The <think> tag. 4', 'Well ']
    """
    if not mark["tag"] or mark[0] == "[THINK]":
        return False
    before, behind = _MENTIONED
    in_sentence = before.search(text[max(0, mark.start() - 10) : mark.start()]) and behind.match(text, mark.end())
    return mark[0][0] == "[" or in_sentence is not None


def _form(mark: re.Match[str]) -> tuple[str, bool]:
    """The form of a mark, and whether it closes a thought."""
    if mark["tag"]:
        name = mark["tag"].lower()
        return mark[0][0] + ("think" if name.startswith("th") else name), bool(mark["slash"])
    kind = mark.lastgroup or ""
    return kind.removeprefix("opens").removeprefix("closes"), kind.startswith("closes")


def is_mark(text: str) -> bool:
    """Whether a token opens or closes a thought, or is a part of what does."""
    found = _MARK.fullmatch(text)
    return text in _PIECES or (found is not None and not found["end"])


def special_tokens(tokenizer: Any) -> tuple[frozenset[int], frozenset[int]]:  # noqa: ANN401 - of transformers
    """The tokens that a decoder leaves out, and those of them between which thoughts stand, such as `[THINK]`."""
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= {*tokenizer.all_special_ids}
    return frozenset(special), frozenset(id for id in special if is_mark(tokenizer.decode([id])))


def without_special(ids: list[int], special: frozenset[int], marks: frozenset[int]) -> tuple[list[int], bool]:
    """The ids that a text is made of, and whether marks of thoughts are among them; without such, as they are."""
    marked = not marks.isdisjoint(ids)
    return ([id for id in ids if id in marks or id not in special] if marked else ids), marked


def heard(shown: str, text: str) -> str:
    """What a completion says behind the end of a prompt: with the mark of the thought that the prompt opened, if it
    would be read otherwise without it.

    >>> heard("Assistant: <think>\\n", "It may be 5"), heard("Assistant: <think>\\n", "It may be 5 </think> 4")
    ('<think>It may be 5', 'It may be 5 </think> 4')
    """
    *_, last = [None, *_MARK.finditer(shown.rstrip())]
    if last is None or last["end"] or _form(last)[1] or last.end() < len(shown.rstrip()):
        return text
    whole = last[0] + text
    return text if after_thoughts(whole) == after_thoughts(text) else whole


def opens(shown: str) -> bool:
    """Whether a prompt ends with the tag that opens a thought."""
    return shown.rstrip().endswith(OPENED)


def continued(shown: str, text: str) -> str:
    """What an answer adds to a prompt: without the tag that opens a thought if the prompt has it."""
    said = text.lstrip()
    if not opens(shown) or not said.startswith(OPENED):
        return text
    said = said.removeprefix(OPENED)
    return said.lstrip() if shown[-1].isspace() else said


def lead_of(lead: str, text: str) -> str:
    """What a template puts in front of an answer: without its empty thought if the answer has its own."""
    return re.sub(rf"({OPENED})?\s*{CLOSED}\s*", "", lead) if _has_own(text) else lead


def is_arranged(text: str, reply: str, whole: str) -> bool:
    """Whether a template's reply, the end of a whole conversation, is an answer with other white space, or behind an
    empty thought if it has none.
    """
    place = 0
    for part in filter(None, map(str.strip, re.split(f"{OPENED}|{CLOSED}", text))):
        place = reply.find(part, place) + len(part)
        if place < len(part):
            return False
    return not _has_own(text) or (CLOSED in whole) == (CLOSED in text)


def _has_own(text: str) -> bool:
    return CLOSED in text or text.lstrip().startswith(OPENED)
