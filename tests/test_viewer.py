"""The rollouts page as a file: what is logged for it, what it holds, what it leaves out and says so."""

import base64
import gzip
import json

import pytest
import torch
from rollout_runs import line, many, write_run
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from minrl.__main__ import main
from minrl.report.lines import token_texts, training_lines
from minrl.report.rollouts import (
    PAGE,
    about,
    choose,
    encode,
    make_page,
    packed_steps,
)
from minrl.update import Update


def unpacked(packed):
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.mark.parametrize("text", ["x 👩‍👩‍👧 y", "é"])
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


def test_what_cannot_be_read_is_said_and_costs_only_its_step(tmp_path):
    folder = write_run(tmp_path / "run", {10: [], 20: many(2, 2), 30: many(2, 2)})
    with gzip.open(folder / "rollouts/step_000010.jsonl.gz", "wt") as file:
        file.write('{"schema": 1}\n')
    torn = folder / "rollouts/step_000020.jsonl.gz"
    torn.write_bytes(torn.read_bytes()[:100])
    changed = folder / "rollouts/step_000030.jsonl.gz"
    content = bytearray(changed.read_bytes())
    content[60:90] = b"\xff" * 30
    (folder / "rollouts/step_000040.jsonl.gz").write_bytes(content)
    steps = packed_steps(make_page(folder))
    assert "schema 1" in unpacked(steps[10].about)["problem"]
    assert "step_000020.jsonl.gz cannot be read" in unpacked(steps[20].about)["problem"]
    assert "step_000040.jsonl.gz cannot be read" in unpacked(steps[40].about)["problem"]
    assert len(unpacked(steps[30].data)["rollouts"]) == 4


def test_the_command_writes_the_page_of_a_run_by_its_name(tmp_path, capsys):
    folder = write_run(tmp_path / "mine", {10: many(4, 2)})
    assert main(["rollouts", "mine", "--runs-dir", str(tmp_path), "--tokens-per-step", "1"]) == 0
    assert capsys.readouterr().out == f"{folder / PAGE}\n"
    assert unpacked(packed_steps(folder / PAGE)[10].about)["shown"] == 2
    assert main(["rollouts", str(folder), "--tokens-per-step", "0", "--output", str(tmp_path / "all.html")]) == 0
    assert unpacked(packed_steps(tmp_path / "all.html")[10].about)["shown"] == 8
