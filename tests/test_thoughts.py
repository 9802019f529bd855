"""Thoughts in completions: which text a task is told, whatever the template opened and the tokenizer leaves out."""

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


SOURCE = [
    "return a[think] * x", "return d[thought]", "steps: list[Thought] = []", "out[reasoning] = 1", "s = '<|im_end|>'",
    "s = '<think>'", "s = '</think>'", "s = 'assistantfinal'", "steps: Vec<Thought> = vec![];", "s = '[THINK]'",
    "s = '<|channel|>analysis'", "s = '</reasoning>'",
]  # fmt: skip
FENCES = ("```python\n{}\n```", "Here:\n\n   ```rust\n   {}\n   ```\nDone.", "~~~\n{}\n~~~", "````\n```\n{}\n````")


@pytest.mark.parametrize("fence", FENCES)
@pytest.mark.parametrize("source", SOURCE)
def test_source_in_a_closed_fence_is_whole_and_a_draft_in_thoughts_is_not_read(source, fence):
    block = fence.format(source)
    assert after_thoughts(block) == block
    if "/" not in source and "final" not in source:
        assert after_thoughts(f"<think>\n{block}\n</think>\n{block}") == f"\n{block}"
        assert after_thoughts(f"{block}\nno </think>{block}").lstrip("\n") == block.lstrip("\n")
        assert after_thoughts(f"<think>\n{block}") == ""


@pytest.mark.parametrize("source", ["return a[think] * x", "l: list[Thought] = []", "f(x)[reasoning]", "Vec<Thought>"])
def test_an_index_is_no_mark_outside_of_a_fence_either(source):
    assert after_thoughts(source) == source


def test_a_fence_that_a_thought_leaves_open_hides_no_mark():
    draft = "```python\nnever closed\n</think>\n```python\nx\n```"
    assert after_thoughts(draft) == after_thoughts(f"<think>{draft}") == "\n```python\nx\n```"


@pytest.mark.parametrize("piece", ["```\n", "```a\n", "~~~\nx\n", "<think>```\n</think>", "[a", "> ```", " "])
def test_fences_are_skipped_in_linear_time(piece):
    started = time.process_time()
    after_thoughts(piece * 20_000)
    after_thoughts(" " * 100_000 + "`" * 100_000)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("heading", ["[Reasoning]", "[Thinking]", "[Thought]", "[Reflection]"])
def test_a_heading_in_square_brackets_that_nothing_closes_is_no_thought(heading):
    text = f"{heading}\n3\n[Answer]\n#### 4"
    assert after_thoughts(text) == text
    assert after_thoughts(f"{heading} 3 </think>#### 4") == "#### 4"


@pytest.mark.parametrize("text", ["The <think> tag is mentioned. #### 4", "In `<thinking>` I think. #### 4"])
def test_a_tag_that_a_sentence_names_and_nothing_closes_opens_no_thought(text):
    assert after_thoughts(text) == text
    assert after_thoughts(f"{text}<think> 5 </think> 6").split()[-1] == "6"


@pytest.mark.parametrize("before", ["", "Well. ", "So ", "It is 4.", "the\n", "- "])
@pytest.mark.parametrize("mark", ["<think>", "<analysis>", "<|thinking|>", "[THINK]"])
def test_a_draft_in_a_thought_that_is_not_closed_is_not_read(before, mark):
    assert after_thoughts(f"{before}{mark} #### 5") == before


@pytest.mark.parametrize("mark", ["</s>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|im_end|>"])
def test_what_stands_behind_the_end_of_the_turn_is_not_read(mark):
    assert after_thoughts(f"#### 4{mark}#### 5") == "#### 4"


FORMS = ["analysis", "thinking_process", "thought_process", "reason", "reflection", "scratchpad"]


@pytest.mark.parametrize(
    ("opens", "closes"), [("<|thinking|>", "<|/thinking|>"), *((f"<{name}>", f"</{name}>") for name in FORMS)]
)
def test_a_thought_in_each_form_is_cut(opens, closes):
    assert after_thoughts(f"{opens} #### 3 {closes}#### 4") == "#### 4"
    assert after_thoughts(f"#### 3 {closes}#### 4") == "#### 4"


def test_a_type_of_a_program_is_no_thought():
    assert (
        after_thoughts("let found: Vec<Analysis> = all::<Reason>();") == "let found: Vec<Analysis> = all::<Reason>();"
    )
