"""The rollouts page as a file: what is logged for it, what it holds, what it leaves out and says so."""

import base64
import gzip
import json
import re
import subprocess
import sys

import pytest
import torch
from rollout_runs import line, many, write_run
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from minrl.__main__ import main
from minrl.report import rollouts as page
from minrl.report.lines import readable, token_texts, training_lines
from minrl.report.rollouts import (
    PAGE,
    about,
    choose,
    encode,
    make_page,
    packed_steps,
    read_lines,
    refresh_page,
    thinned,
)
from minrl.tracking.writers import RunFiles
from minrl.types import PlayedTurn, Reward, UserError
from minrl.update import Update


def unpacked(packed):
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_texts_of_words_joined_are_the_text(policy):
    tokenizer = policy.tokenizer
    ids = tokenizer("<user> numbers 3 7 5 <assistant> 3 + 7 <end>")["input_ids"]
    (texts,) = token_texts(tokenizer, [ids])
    assert "".join(texts) == tokenizer.decode(ids)
    assert texts[:3] == ["<user>", " numbers", " 3"]


@pytest.mark.parametrize("text", ["a b", "naïve café", "x 👩‍👩‍👧 y", "日本語 text", "é", "\ufffd", "tab\tline\n\n end"])
def test_texts_of_bytes_joined_are_the_text(text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet))  # a token for each byte
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    ids = fast(text)["input_ids"]
    (texts,) = token_texts(fast, [ids])
    assert len(texts) == len(ids) and "".join(texts) == text
    if text == "é":
        assert texts == ["é", ""]


def test_texts_of_pieces_with_their_spaces_joined_are_the_text():
    tokenizer = Tokenizer(models.WordLevel({"▁to": 0, "▁be": 1, "st": 2, "<unk>": 3}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    assert token_texts(fast, [[0, 1, 2, 0], []]) == [["to", " be", "st", " to"], []]


def test_what_the_update_knew_stands_with_its_rollout(policy, make_rollout):
    end = policy.tokenizer.eos_token_id
    rollouts = [make_rollout([5, 6], [7, end]), make_rollout([5, 6], [8, 9, end]), make_rollout([5, 6], [7])]
    nothing = torch.nan
    logprobs = torch.tensor([-1.0, -2.0, nothing, nothing, nothing, -3.0])
    weights = torch.tensor([1.0, 2.0, nothing, nothing, nothing, 0.5])
    lines = training_lines(policy, rollouts, torch.tensor([0.5, 0.0, -0.5]), Update({}, logprobs, weights))
    assert [one["logprobs"] for one in lines] == [[-1.0, -2.0], None, [-3.0]]
    assert [one["importance_weights"] for one in lines] == [[1.0, 2.0], None, [0.5]]
    assert [one["advantage"] for one in lines] == [0.5, 0.0, -0.5]
    assert [one["special"] for one in lines] == [[3], [4], []]
    assert all("".join(one["tokens"]) == policy.decode_all(r.ids) for one, r in zip(lines, rollouts, strict=True))
    assert "importance_weights" not in training_lines(policy, rollouts, torch.zeros(3), Update({}, logprobs))[0]
    (held_out,) = readable(policy, rollouts[:1], "held_out")
    assert held_out["purpose"] == "held_out" and held_out["advantage"] is None


def test_numbers_are_packed_as_they_are_unpacked():
    one = line([[" 3", "<end>"], [" 5"]], rollout_logprobs=[0.0, -0.25, -1.5, 0.0, -2.0])
    one["logprobs"], one["importance_weights"] = [-0.2499, -1.5, -2.5], [1.0001, 1.0, 0.6]
    packed = json.loads(json.dumps(encode([one])))
    (rollout,) = packed["rollouts"]
    assert rollout["surprise"] == [250, 1500, 2000]
    assert rollout["gap"] == [100, 0, -500_000]
    assert rollout["weight"] == [10_001, 10_000, 6_000]
    assert [packed["pieces"][piece] for piece in rollout["pieces"]] == [[" 3", False], ["<end>", True], [" 5", False]]
    shown = [[packed["texts"][text], count] for text, count in rollout["turns"]]
    assert shown == [[[["numbers 3 5", False]], 2], [[["<shown>", False]], 1]]
    assert rollout["seed"] == str(2**62 + 1)


def said(role, content):
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        ("numbers 3 5", "numbers 3 5"),
        ([said("system", "be brief"), said("user", "one"), said("assistant", "1"), said("user", "two")], "two"),
        ([said("user", [{"type": "text", "text": "in"}, {"type": "text", "text": "parts"}])], "in parts"),
        ([said("user", "one"), said("assistant", "<think>")], "one"),
        ([said("system", "play")], "play"),
        ("", "the whole prompt"),  # a run of an earlier version
    ],
)
def test_the_question_is_the_last_message_of_the_user(message, asked):
    packed = encode([line([[" 3"]], prompt="the whole prompt", message=message)])
    assert packed["texts"][packed["rollouts"][0]["asked"]] == [(asked, False)]


def test_of_a_large_step_whole_examples_are_shown_and_the_same_at_each():
    first, second = many(20, 4, step=10), many(20, 4, step=20)
    held_out = [line([[" 1"] * 500], purpose="held_out", slot=0)]
    shown = choose(first + held_out, 800), choose(second + held_out, 800)
    groups = [{one["group"] for one in part if one["purpose"] == "train"} for part in shown]
    # About 40 tokens for each rollout: five groups of four, give or take one.
    assert 4 <= len(groups[0]) <= 6 and len(groups[0] ^ groups[1]) <= 2
    for part in shown:
        assert len([one for one in part if one["purpose"] == "train"]) % 4 == 0 and held_out[0] in part
        assert sum(sum(one["loss_mask"]) for one in part if one["purpose"] == "train") <= 800
    assert about(first, shown[0])["total"] == 80
    assert len(choose(first, 1)) == 4  # never nothing


def test_what_could_not_be_scored_is_not_solved():
    rewards = [Reward(1.0), Reward(1.0), Reward(0.5), None]
    lines = [line([["1"]], reward=reward, sample=n) for n, reward in enumerate(rewards)]
    of_step = about(lines, lines)
    assert of_step["solved"] == 2 / 4  # as a group's own line counts them
    assert of_step["mean"] == 2.5 / 3
    assert about(lines[3:], lines[3:])["solved"] is None


@pytest.mark.parametrize("limit", [2, 5, 64])
def test_steps_that_are_left_out_stay_out(limit):
    before = []
    for count in range(1, 300):
        kept = thinned(list(range(count)), limit)
        assert len(kept) <= limit and kept[-1] == count - 1 and kept[0] == 0
        assert set(kept[:-1]) <= {*before, count - 2}
        before = kept
    assert thinned(list(range(300)), 0) == list(range(300))


def test_a_page_that_is_made_again_packs_only_what_is_new(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", {10: many(2, 2), 20: many(2, 2)})
    make_page(folder)
    write_run(folder, {30: many(2, 2)})
    read = []
    monkeypatch.setattr(page, "read_lines", lambda path: read.append(path.name) or read_lines(path))
    steps = packed_steps(make_page(folder))
    assert read == ["step_000030.jsonl.gz"] and sorted(steps) == [10, 20, 30]
    assert unpacked(steps[10].data) == json.loads(json.dumps(encode(many(2, 2))))
    write_run(folder, {20: many(3, 2)})  # a resumed run writes a step anew
    assert unpacked(packed_steps(make_page(folder))[20].about)["total"] == 6
    assert read[1:] == ["step_000020.jsonl.gz"]


def test_the_page_asks_no_network_and_runs_no_other_script(tmp_path):
    text = make_page(write_run(tmp_path / "run", {10: many(2, 2)})).read_text()
    assert not re.search(r"""https?://|(src|href)=["'](?!#)|url\(|@import|\bfetch\(""", text)
    assert "default-src 'none'; style-src 'sha256-" in text and "unsafe" not in text


def test_a_run_of_any_name_is_escaped(tmp_path):
    folder = write_run(tmp_path / "run", {})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "minrl_run": "</title><script>alert(1)</script>"}))
    assert "<script>alert" not in make_page(folder).read_text()


def test_what_cannot_be_read_is_said_and_costs_only_its_step(tmp_path):
    folder = write_run(tmp_path / "run", {10: [], 20: many(2, 2), 30: many(2, 2)})
    with gzip.open(folder / "rollouts/step_000010.jsonl.gz", "wt") as file:
        file.write('{"schema": 1}\n')
    torn = folder / "rollouts/step_000020.jsonl.gz"
    torn.write_bytes(torn.read_bytes()[:100])
    steps = packed_steps(make_page(folder))
    assert "schema 1" in unpacked(steps[10].about)["problem"]
    assert "step_000020.jsonl.gz cannot be read" in unpacked(steps[20].about)["problem"]
    assert len(unpacked(steps[30].data)["rollouts"]) == 4


def test_a_page_that_cannot_be_made_does_not_end_a_run(tmp_path, monkeypatch):
    from loguru import logger

    folder = write_run(tmp_path / "my run", {10: many(1, 2)})
    said = []
    sink = logger.add(said.append, level="WARNING")
    monkeypatch.setattr(page, "make_page", lambda folder: 1 / 0)
    refresh_page(folder)
    logger.remove(sink)
    assert len(said) == 1 and f"could not be made (division by zero); python -m minrl rollouts '{folder}'\n" in said[0]


def test_what_a_resume_cut_away_goes_from_the_page(tmp_path):
    folder = write_run(tmp_path / "run", {})
    refresh_page(folder)
    assert not (folder / PAGE).exists()  # before the first rollouts
    write_run(folder, {10: many(2, 2), 20: many(2, 2)})
    refresh_page(folder)
    for step in (20, 10):
        RunFiles(folder, cut_after=step - 1)
        refresh_page(folder)
        assert sorted(packed_steps(folder / PAGE)) == ([10] if step == 20 else [])


def test_the_command_writes_the_page_of_a_run_by_its_name(tmp_path, capsys):
    folder = write_run(tmp_path / "mine", {10: many(4, 2)})
    assert main(["rollouts", "mine", "--runs-dir", str(tmp_path), "--tokens-per-step", "1"]) == 0
    assert capsys.readouterr().out == f"{folder / PAGE}\n"
    assert unpacked(packed_steps(folder / PAGE)[10].about)["shown"] == 2
    assert main(["rollouts", str(folder), "--tokens-per-step", "0", "--output", str(tmp_path / "all.html")]) == 0
    assert unpacked(packed_steps(tmp_path / "all.html")[10].about)["shown"] == 8


def test_the_command_without_a_run_is_refused():
    with pytest.raises(UserError, match="name the run"):
        main(["rollouts"])


def test_a_turn_says_who_wrote_its_message_and_a_run_of_an_earlier_version_does_not():
    episode = [PlayedTurn("policy", 1, "stop"), PlayedTurn("policy", 2, "stop", shown_by="tool")]
    one = line([[" 1"], [" 2"]], episode=episode)
    earlier = [{name: value for name, value in turn.items() if name != "shown_by"} for turn in one["episode"]]
    new, old = encode([one, {**one, "episode": earlier}])["rollouts"]
    assert new["episode"] == [["policy", "1", "stop", None], ["policy", "2", "stop", None, "tool"]]
    assert old["episode"] == [["policy", "1", "stop", None], ["policy", "2", "stop", None]]


def test_the_command_starts_without_torch():
    code = "import minrl.report.rollouts, sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
