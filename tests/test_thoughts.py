"""Thoughts in completions: which text a task receives, whatever the template opened and the tokenizer leaves out."""

import time

import pytest

from minrl.models.chat import ChatTokenizer
from minrl.models.loading import word_tokenizer
from minrl.models.thoughts import after_thoughts, heard


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


def test_a_completion_behind_an_opened_thought_is_a_thought_until_it_closes_it():
    chat = chat_with()
    shown, unclosed, closed = (ids_of(chat, text) for text in ("user <think>", "draft four", "draft </think> four"))
    assert after_thoughts(chat.heard(shown, unclosed)) == ""
    assert chat.heard(shown, closed) == chat.decode(closed)
    for other in ("user", "<think> draft </think>"):
        assert chat.heard(ids_of(chat, other), unclosed) == chat.decode(unclosed)
    assert after_thoughts(heard("<think>\n", "#### 3 <think> no </think> #### 4")).strip() == "#### 4"


SOURCE = [
    "return a[think] * x", "steps: list[Thought] = []", "s = '<|im_end|>'", "s = '<think>'", "s = '</think>'",
    "s = 'assistantfinal'", "steps: Vec<Thought> = vec![];", "s = '<|channel|>analysis'",
]  # fmt: skip
FENCES = ("```python\n{}\n```", "Here:\n\n   ```rust\n   {}\n   ```\nDone.", "~~~\n{}\n~~~", "````\n```\n{}\n````")


@pytest.mark.parametrize("source", SOURCE)
def test_source_in_a_closed_fence_is_whole_and_a_draft_in_thoughts_is_not_read(source):
    for fence in FENCES:
        block = fence.format(source)
        assert after_thoughts(block) == block
        if "/" not in source and "final" not in source:
            assert after_thoughts(f"<think>\n{block}\n</think>\n{block}") == f"\n{block}"
            assert after_thoughts(f"<think>\n{block}") == ""


@pytest.mark.parametrize("piece", ["```\n", "~~~\nx\n", "<think>```\n</think>", "[a"])
def test_fences_are_skipped_in_linear_time(piece):
    started = time.process_time()
    after_thoughts(piece * 20_000)
    after_thoughts(" " * 100_000 + "`" * 100_000)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "text",
    [
        "[Reasoning]\n3\n[Answer]\n#### 4",
        "return a[think] * x", "l: list[Thought] = []", "f(x)[reasoning]", "let a: Vec<Analysis> = all::<Reason>();",
        "The <think> tag is mentioned. #### 4", "In `<thinking>` I think. #### 4",
    ],
)  # fmt: skip
def test_a_heading_a_type_an_index_and_a_tag_that_a_sentence_names_open_no_thought(text):
    assert after_thoughts(text) == text


FORMS = ["analysis", "thinking_process", "reason", "reflection", "scratchpad"]


@pytest.mark.parametrize(
    ("opens", "closes"), [("<|thinking|>", "<|/thinking|>"), *((f"<{name}>", f"</{name}>") for name in FORMS)]
)
def test_a_thought_in_each_form_is_cut(opens, closes):
    assert after_thoughts(f"{opens} #### 3 {closes}#### 4") == after_thoughts(f"#### 3 {closes}#### 4") == "#### 4"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("```python\nnever closed\n</think>\n```python\nx\n```", "\n```python\nx\n```"),  # such a fence hides no mark
        *((f"#### 4{end}#### 5", "#### 4") for end in ("</s>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>")),
        *((f"{text}{mark} #### 5", text) for text in ("", "So ", "the\n", "- ") for mark in ("<think>", "[THINK]")),
    ],
)
def test_an_open_thought_and_what_follows_the_end_of_the_turn_are_not_read(text, answer):
    assert after_thoughts(text) == answer
