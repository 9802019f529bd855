"""Answers that hold thoughts, between the marks of reasoning models, behind prompts that may have opened one.

    <think> 7 - 5 is 2, no </think> <answer> 7 + 5 - 3 </answer>    ->    <answer> 7 + 5 - 3 </answer>

Rewards read what `after_thoughts` leaves.
"""

import re

OPENED, CLOSED = "<think>", "</think>"

LONGEST_MARK = 32
"""Tokens at the end of a prompt in which the mark of a thought stands."""

_TAG = r"(?:\w{1,20}[:_])?think(?:ing)?|thoughts?|reasoning|reflection|scratch_?pad"

FORMS = {  # what opens and what closes a thought
    rf"<(?:{_TAG})>": rf"</(?:{_TAG})>",  # DeepSeek R1, Qwen3, Seed
    r"\[THINK\]": r"\[/THINK\]",  # Magistral
    r"\u25c1think\u25b7": r"\u25c1/think\u25b7",  # Kimi
    r"<\|(?:begin_of_thought|thinking)\|>": r"<\|(?:end_of_thought|/thinking)\|>",  # OpenThinker
    r"<\|START_THINKING\|>": r"<\|END_THINKING\|>",  # Command A
    r"<\|channel>thought": r"<channel\|>",  # Gemma 4
    r"<\|inner_prefix\|>": r"<\|inner_suffix\|>",  # Apertus
    r"<\|im_start\|>think": r"<\|im_start\|>answer",  # s1
    r"\bHere(?:'s| is) my thought process:": r"\bHere(?:'s| is) my response:",  # Granite
    r"<\|channel\|>analysis<\|message\|>": r"<\|channel\|>final<\|message\|>",  # gpt-oss
    r"\Aanalysis(?=[A-Z])": r"assistantfinal",  # gpt-oss without its special tokens
}
_MARK = re.compile(f"(?P<opens>{'|'.join(FORMS)})|(?P<closes>{'|'.join(FORMS.values())})")
_END = re.compile(
    r"<(?:\|(?:im_end|eot_id|end|return|endoftext)\|>|end_of_turn>|/s>|eos>|\uff5cend\u2581of\u2581sentence\uff5c>)"
)


def turn(text: str) -> str:
    """The text before the first mark of the end of its turn, such as `</s>`."""
    return _END.split(text)[0]


def after_thoughts(text: str) -> str:
    """What a completion says outside its thoughts, in its turn. A thought that is not closed goes on to the end, and a
    mark that closes one that the prompt opened ends what stands before it. What a run sampled says whether
    its prompt opened one (`Sampled.opened`).

    >>> after_thoughts("<think> 3? </think> It is 4. [THINK] 5? [/THINK] Yes."), after_thoughts("3? </think>4")
    (' It is 4. \\n Yes.', '4')
    """
    said: list[str] = []
    start, thought = 0, bool(getattr(text, "opened", ""))
    for mark in _MARK.finditer(text):
        if not thought and mark["opens"]:
            said.append(text[start : mark.start()])
        elif not thought:
            said = []
        thought, start = bool(mark["opens"]), mark.end()
    return turn("\n".join(filter(None, [*said, "" if thought else text[start:]])))


def opened_by(shown: str) -> str:
    """The mark of the thought that the end of a prompt opens; empty if it opens none."""
    *_, last = [None, *_MARK.finditer(shown.rstrip())]
    return last[0] if last is not None and last["opens"] and last.end() == len(shown.rstrip()) else ""


def heard(shown: str, text: str) -> str:
    """What a completion says behind the end of a prompt, for readers who do not see the prompt: with the mark of the
    thought that the prompt opened, if it does not close it.

    >>> heard("Assistant: <think>\\n", "It may be 5"), heard("Assistant: <think>\\n", "It may be 5 </think> 4")
    ('<think>It may be 5', 'It may be 5 </think> 4')
    """
    first = _MARK.search(text)
    return opened_by(shown) + text if first is None or first["opens"] else text
