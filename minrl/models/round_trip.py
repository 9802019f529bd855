"""Whether turns that are appended to sampled tokens make the conversation that the chat template writes."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from minrl.models.thoughts import CLOSED, OPENED, opens
from minrl.models.turns import Turns
from minrl.types import Message, UserError

QUESTIONS = ("What is 2 + 3?", "And twice that?", "And half of it?")
ANSWERS = ("It is 5.", "That is 10.", "Then 5 again.")
THOUGHT = f"{OPENED}\nLet me see.\n{CLOSED}\n\n"

NAMED = 2
"""Differences that are named."""


def difference(turns: Turns) -> str:
    """What differs between the ids of an episode of three turns and the template's rendering of the whole conversation,
    in words; empty if nothing does. The answers are as the template writes them and end as it ends the last one.
    """
    if not turns.frame.shown:
        return "the chat template does not write a conversation that ends with an answer, to compare it with"
    shown = turns.frame.shown
    thinks = opens(shown) or (CLOSED in str(turns.tokenizer.chat_template) and not shown.rstrip().endswith(CLOSED))
    answers = [THOUGHT + answer for answer in ANSWERS] if thinks else ANSWERS
    roles = ("user", "assistant") * len(QUESTIONS)
    texts = [text for pair in zip(QUESTIONS, answers, strict=True) for text in pair]
    messages: list[Message] = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    try:
        episode, rendered = episode_of(turns, answers), turns.render(messages, ask=False)
    except UserError as error:  # of a conversation that the task need not have
        return f"it cannot be compared with the template's conversation ({error})"
    whole = turns.tokenizer(rendered, add_special_tokens=False)["input_ids"]
    found = list(dict.fromkeys(_differences(turns, episode, whole)))
    more = f" and {len(found) - NAMED} further differences" if len(found) > NAMED else ""
    return "; ".join(found[:NAMED]) + more


def episode_of(turns: Turns, answers: Sequence[str]) -> list[int]:
    """The ids of an episode in which each question is answered as a model does that has learned the template."""
    ids: list[int] = []
    completion: list[int] = []
    for number, (question, answer) in enumerate(zip(QUESTIONS, answers, strict=True)):
        message: list[Message] = [{"role": "user", "content": question}]
        ids += turns.encode_next_turn(message, completion) if number else turns.encode_first_turn(message)
        completion = turns.encode_answer(answer, chat=True) + _end(turns, last=number == len(QUESTIONS) - 1)
        ids += completion
    return ids


def _end(turns: Turns, last: bool) -> list[int]:
    """How an answer ends: by a token, else by the text that ends it, which the last one does without."""
    if turns.frame.end is not None:
        return [turns.frame.end]
    return [] if last or not turns.frame.stop else turns.encode_text(turns.frame.space + turns.frame.stop)


def _differences(turns: Turns, episode: list[int], whole: list[int]) -> Iterator[str]:
    """A phrase for each difference. What follows the last answer is not shown to the model, nor is an end that is the
    beginning of the next turn.
    """
    changes = SequenceMatcher(None, episode, whole, autojunk=False).get_opcodes()
    for kind, first, last, start, end in changes:
        ids, others = episode[first:last], whole[start:end]
        ended = (kind == "insert" or ids == [turns.frame.end]) and last == len(episode)
        if kind == "equal" or ended:
            continue
        own, written = turns.decode_all(ids), turns.decode_all(others)
        if own == written:
            own, written = (" ".join(turns.tokenizer.convert_ids_to_tokens(some)) for some in (ids, others))
        if not written:
            yield f"{own!r} stays, which the template leaves out"
        elif not own:
            yield f"the template's {written!r} is missing"
        else:
            yield f"{own!r} stands where the template writes {written!r}"
