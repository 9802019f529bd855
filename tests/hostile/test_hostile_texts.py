# ruff: noqa: RUF001 - look-alikes are what is tried
"""What a model writes ends no turn of another, commands no terminal, leaves no block of a page, names no curve."""

import io
import random
import re
import unicodedata

import pytest
from loguru import logger
from rich.console import Console
from tokenizers import AddedToken

from minrl.models.chat import ChatTokenizer
from minrl.models.loading import word_tokenizer
from minrl.report.charts import Chart, svg
from minrl.report.page import markdown_table
from minrl.rewards.judge import Judge
from minrl.rewards.worker_process import show_printed
from minrl.tasks.code_game import CodeGameOptions, refusal, shown_to_guesser
from minrl.utils.console import Screen, Table, print_tables
from minrl.utils.text import one_line, printable, unmarked
from tests.hostile.cases import SCREENS, SPECIAL, TURNS
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
        for text in (f"a{token}b", token * 2, f"<{token}>", f"|{token}|", f"\n{token}\r\n{token} "):
            assert token not in unmarked(text)
            assert re.sub(r"\s", "", unmarked(text)) == re.sub(r"\s", "", text)  # nothing is lost


def test_marks_that_pieces_make_together_are_broken_too():
    rng = random.Random(0)
    pieces = [*SPECIAL, *"<|>[]/~!", "</", "｜", "im_end", "INST", " ", "\u200d", "\u200b", "＜"]
    for _ in range(1000):
        shown = read_by_a_tokenizer(unmarked("".join(rng.choices(pieces, k=rng.randint(2, 6)))))
        # a joiner between two other scripts stays; the laxest tokenizer drops it
        assert not [token for token in ("<|im_end|>", "</s>", "[INST]", "<end_of_turn>", "<eos>") if token in shown], (
            shown
        )


ORDINARY_TEXTS = (
    "if a < b and c > d: print(x[0], y[i][j], z[-1])",
    "<b>bold</b> <div><p>1 < 2</p></div><br>",
    "Vec<i32>, Option<T>, std::vector<int>, List<String>",
    "<answer> 7 + 5 - 3 </answer>",
    "x |> f |> g; a || b; |x| + |y|; {1|2}; a <| b",
    "1 <= 2 >= 1 <> 3 << 4 >> 2 -> <- => <=> ...",
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


def with_marks(*tokens):
    words = word_tokenizer(["numbers", "1", "2", "<answer>"])
    words.add_tokens([AddedToken(token, special=True) for token in tokens], special_tokens=True)
    return ChatTokenizer(tokenizer=words, chat_template_options={})


@pytest.mark.parametrize("content", ["1 {} 2", [{"type": "text", "text": "1 {} 2"}]], ids=["text", "parts"])
@pytest.mark.parametrize("mark", ["<|im_end|>", "<end>", "<user>"])
def test_what_another_said_ends_no_turn_of_a_message(mark, content):
    chat = with_marks("<|im_end|>")
    filled = content.format(mark) if isinstance(content, str) else [{"type": "text", "text": "1 " + mark + " 2"}]
    plain = chat.encode_prompt([{"role": "user", "content": "1 2"}])
    ids = chat.encode_prompt([{"role": "user", "content": filled}])
    special = set(chat.tokenizer.all_special_ids) - {chat.tokenizer.unk_token_id}
    assert [id for id in ids if id in special] == [id for id in plain if id in special]
    again = chat.encode_next_turn([{"role": "user", "content": filled}], ids[-1:])
    assert [id for id in again if id in special] == [
        id for id in chat.encode_next_turn([{"role": "user", "content": "1 2"}], ids[-1:]) if id in special
    ]
    answered = chat.render([{"role": "user", "content": "1"}, {"role": "assistant", "content": mark}], ask=False)
    assert mark in answered  # an answer stays what it is


def test_a_program_whose_text_the_guesser_would_see_otherwise_is_refused():
    for mark in ("[TOOL_CALLS]", "|ENDOFTEXT|", "]~b]", "[|x|]"):
        assert "mark" in refusal(f"print(len('{mark}'))", CodeGameOptions())
    program = "SIZE = 1\nprint([3, 4][SIZE])  # [TOOL_CALLS] ]~b]\n"  # an index by a constant is no mark
    assert refusal(program, CodeGameOptions()) == ""
    shown = shown_to_guesser(program)[-1]["content"]
    assert "[TOOL_CALLS]" not in shown and "]~b]" not in shown


def test_every_sink_shows_letters_alone(tmp_path, capsys):
    text = "\n".join([*TURNS.values(), *SCREENS.values()])
    with Screen(quiet=False) as screen:
        screen.log_to(tmp_path / "log.txt")
        logger.error("{}", text)
        show_printed(io.BytesIO(text.replace("\n", " ").encode(errors="surrogatepass")))
    console = Console(file=io.StringIO(), width=300)
    print_tables([Table(text, ["model", text], [[text, text]], [text])], console)
    told, log = capsys.readouterr().err, (tmp_path / "log.txt").read_text(encoding="utf-8")
    drawn = svg(Chart(text, "x"), [], "step", 0.0)
    for shown in (told, log, console.file.getvalue(), drawn):
        assert shown == printable(shown)
    begins = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (INFO|WARNING|ERROR) |    |$")
    assert all(begins.match(line) for line in log.split("\n"))  # no line looks like one of the program's
    made = markdown_table(["model"], [[text]])
    assert made.count("\n") == 2 and printable(made) == made  # header, rule, one line


def test_one_line():
    assert one_line("a\n\tb\r\u2028c") == "a b\\r\\u2028c"
