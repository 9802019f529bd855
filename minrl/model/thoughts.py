"""Answers that hold thoughts, between the tags of reasoning models, behind prompts that may have opened one."""

import re

OPENED, CLOSED = "<think>", "</think>"


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
