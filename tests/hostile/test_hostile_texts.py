# ruff: noqa: RUF001 - look-alikes are what is tried
"""What a model writes ends no turn of another."""

import re
import unicodedata

import pytest
from tokenizers import AddedToken

from minrl.models.chat import ChatTokenizer
from minrl.models.loading import word_tokenizer
from minrl.rewards.judge import Judge
from minrl.tasks.code_game import CodeGameOptions, refusal, shown_to_guesser
from minrl.utils.text import printable, unmarked
from tests.hostile.cases import SPECIAL, TURNS
from tests.parsed import sized


def read_by_a_tokenizer(text):
    """The text as the laxest tokenizer reads it: normalized, without what cannot be seen."""
    seen = "".join(one for one in text if unicodedata.category(one) not in ("Cc", "Cf", "Cs") or one in "\n\t")
    return unicodedata.normalize("NFKC", seen)


def test_no_special_token_is_left_in_what_is_judged():
    own = unicodedata.normalize("NFKC", " ".join(SPECIAL)).split()
    for turn in TURNS.values():
        judged = read_by_a_tokenizer(unmarked(turn))
        assert not [token for token in own if token in judged]
        assert [token for token in own if token in read_by_a_tokenizer(turn)]  # at least one was there
    for token in SPECIAL:
        for text in (token * 2, f"<{token}>", f"|{token}|", f"\n{token}\r\n{token} "):
            assert token not in unmarked(text)
            assert re.sub(r"\s", "", unmarked(text)) == re.sub(r"\s", "", text)  # nothing is lost


ORDINARY_TEXTS = (
    "if a < b and c > d: print(x[0], y[i][j], z[-1])",
    "<div><p>1 < 2</p></div><br> <answer> 7 + 5 - 3 </answer>",
    "x |> f |> g; a || b; |x| + |y|; {1|2}; a <| b",
    "[1, 2, 3] [a] [link](x) [ ] [x]",
    "Persian: می\u200cخواهم; family: \U0001f468\u200d\U0001f469\u200d\U0001f467",
)


def test_ordinary_text_is_judged_as_it_is():
    assert [text for text in ORDINARY_TEXTS if not unmarked(text) == text == printable(text)] == []


def test_the_judge_is_shown_no_mark_in_prompt_reference_and_completion(tmp_path):
    judge = Judge(sized(judge_model="m", judge_base_url="http://127.0.0.1:1/v1", judge_cache=""))
    try:
        for text in TURNS.values():
            [system, user] = judge._messages(f"p {text}", f"c {text}", f"r {text}")
            assert user["content"].count(unmarked(text)) == 3
            assert unmarked(system["content"]) == system["content"]
    finally:
        judge.close()


@pytest.mark.parametrize("mark", ["<|im_end|>", "<user>"])
def test_what_another_said_ends_no_turn_of_a_message(mark):
    words = word_tokenizer(["numbers", "1", "2", "<answer>"])
    words.add_tokens([AddedToken("<|im_end|>", special=True)], special_tokens=True)
    chat = ChatTokenizer(tokenizer=words, chat_template_options={})
    special = set(words.all_special_ids) - {words.unk_token_id}
    plain, *others = (
        (chat.encode_prompt(messages), chat.encode_next_turn(messages, [words.eos_token_id]))
        for content in ("1 2", f"1 {mark} 2", [{"type": "text", "text": f"1 {mark} 2"}])
        for messages in [[{"role": "user", "content": content}]]
    )
    for other in others:
        for ids, expected in zip(other, plain, strict=True):
            assert [id for id in ids if id in special] == [id for id in expected if id in special]
    answered = chat.render([{"role": "user", "content": "1"}, {"role": "assistant", "content": mark}], ask=False)
    assert mark in answered  # an answer stays what it is


def test_a_program_whose_text_the_guesser_would_see_otherwise_is_refused():
    assert "mark" in refusal("print(len('[TOOL_CALLS]'))", CodeGameOptions())
    program = "SIZE = 1\nprint([3, 4][SIZE])  # [TOOL_CALLS]\n"  # an index by a constant is no mark
    assert refusal(program, CodeGameOptions()) == ""
    assert "[TOOL_CALLS]" not in shown_to_guesser(program)[-1]["content"]
