"""Thoughts in completions: which text a task is told, whatever the template opened and the tokenizer leaves out."""

import pytest

from minrl.model.chat import ChatTokenizer
from minrl.model.loading import word_tokenizer
from minrl.model.thoughts import after_thoughts, heard


def chat_with(*special):
    tokenizer = word_tokenizer(["<think>", "</think>", "draft", "four", "user"])
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    return ChatTokenizer(tokenizer=tokenizer, chat_template_options={})


def ids_of(chat, text):
    return chat.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(("opens", "closes"), [("[THINK]", "[/THINK]"), ("<unused94>", "<unused95>")])
def test_marks_of_thoughts_that_are_special_tokens_are_read_and_others_are_not(opens, closes):
    chat = chat_with(opens, closes, "<|pad|>")
    text = chat.decode(ids_of(chat, f"{opens} draft {closes} <|pad|> four"))
    assert opens in text and "<|pad|>" not in text
    assert after_thoughts(text).split() == ["four"]
    assert chat.decode(ids_of(chat, "draft <|pad|> four")).split() == ["draft", "four"]


def test_a_completion_behind_an_opened_thought_is_told_as_a_thought_until_it_closes_it():
    chat = chat_with()
    shown, unclosed, closed = (ids_of(chat, text) for text in ("user <think>", "draft four", "draft </think> four"))
    assert after_thoughts(chat.heard(shown, unclosed)) == ""
    assert chat.heard(shown, closed) == chat.decode(closed)
    assert chat.heard(ids_of(chat, "user"), unclosed) == chat.decode(unclosed)
    assert chat.heard(ids_of(chat, "<think> draft </think>"), unclosed) == chat.decode(unclosed)


def test_a_thought_that_is_opened_twice_hides_what_stands_before_it():
    assert after_thoughts(heard("<think>\n", "#### 3 <think> no </think> #### 4")).strip() == "#### 4"
