"""Thoughts in completions: which text a task receives, whatever the template opened."""

import time

import pytest

from minrl.models.chat import ChatTokenizer
from minrl.models.loading import word_tokenizer
from minrl.tasks.thoughts import after_thoughts, heard


def test_marks_of_thoughts_that_are_special_tokens_are_read():
    tokenizer = word_tokenizer(["draft", "four"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    chat = ChatTokenizer(tokenizer=tokenizer, chat_template_options={})
    ids = tokenizer("[THINK] draft [/THINK] four", add_special_tokens=False)["input_ids"]
    assert after_thoughts(chat.decode(ids)).split() == ["four"]


def test_a_completion_behind_an_opened_thought_is_a_thought_until_it_closes_it():
    assert after_thoughts(heard("user <think>", "draft four")) == ""
    assert heard("user <think>", "draft </think> four") == "draft </think> four"
    for other in ("user", "<think> draft </think>", "<think> and so"):
        assert heard(other, "draft four") == "draft four"
    assert after_thoughts(heard("<think>\n", "#### 3 <think> no </think> #### 4")).strip() == "#### 4"


@pytest.mark.parametrize("piece", ["<think>", "</think>", "<|channel|>", "Here is my ", "[THINK]</s>"])
def test_marks_are_found_in_linear_time(piece):
    started = time.process_time()
    after_thoughts(piece * 50_000)
    assert time.process_time() - started < 2


FORMS = ["<think>", "<thinking>", "<seed:think>", "<thought>", "<reasoning>", "<reflection>", "<scratchpad>"]


@pytest.mark.parametrize(
    ("opens", "closes"), [("<|thinking|>", "<|/thinking|>"), *((name, f"</{name[1:]}") for name in FORMS)]
)
def test_a_thought_in_each_form_is_cut(opens, closes):
    assert after_thoughts(f"{opens} #### 3 {closes}#### 4") == after_thoughts(f"#### 3 {closes}#### 4") == "#### 4"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *((f"#### 4{end}#### 5", "#### 4") for end in ("</s>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>")),
        *((f"{text}{mark} #### 5", text) for text in ("", "So ", "the\n", "- ") for mark in ("<think>", "[THINK]")),
        ("return a[think] * x", "return a[think] * x"),
    ],
)
def test_an_open_thought_and_what_follows_the_end_of_the_turn_are_not_read(text, answer):
    assert after_thoughts(text) == answer
