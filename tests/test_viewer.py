"""The rollouts page as a file: what is logged for it, what it holds, what it leaves out and says so."""

import base64
import gzip
import json
import re

import torch
from rollout_runs import line, many, write_run
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from minrl.__main__ import main
from minrl.report.lines import token_texts, training_lines
from minrl.report.rollouts import PAGE, RolloutsConfig, write_page
from minrl.run.folder import RunFolder
from minrl.update import Update
from minrl.utils.files import append_jsonl, read_packed, write_packed


def held(page):
    """The lines that a page holds of each step: of its rollouts, and of its evaluations."""
    pattern = r'data-step="(\d+)" data-mean="([^"]*)" [^>]*data-evaluations="([^"]*)">([^<]*)<'
    return {
        int(step): (mean, *(unpacked(one) for one in (rollouts, evaluations)))
        for step, mean, evaluations, rollouts in re.findall(pattern, page.read_text())
    }


def unpacked(packed):
    return [json.loads(line) for line in gzip.decompress(base64.b64decode(packed)).splitlines()] if packed else []


def test_texts_of_bytes_joined_are_the_text():
    tokenizer, text = Tokenizer(models.BPE()), "x 👩‍👩‍👧 é"
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet))  # a token for each byte
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    ids = fast(text)["input_ids"]
    (texts,) = token_texts(fast, [ids])
    assert len(texts) == len(ids) and "".join(texts) == text and texts[-2:] == ["", "é"]
    assert "".join(token_texts(fast, [ids[:-1]])[0]) == fast.decode(ids[:-1])  # half a character at the end


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


def test_the_page_holds_the_files_of_the_run_as_they_are_of_so_many_steps(tmp_path, capsys):
    folder = write_run(tmp_path / "mine", {step: many(1, 2, step) for step in (10, 20, 30)})
    write_packed(folder / "evaluations/step_000030.jsonl.gz", rows := [{"mode": "greedy", "completion": "7"}])
    append_jsonl(folder / "metrics.jsonl", [{"step": 30, "reward/mean": 0.25}])
    assert main(["rollouts", "mine", "--runs-dir", str(tmp_path), "--max-steps", "2"]) == 0
    assert capsys.readouterr().out == f"{folder / PAGE}\n" and "2 of 3 logged steps" in (folder / PAGE).read_text()
    lines = {step: read_packed(folder / f"rollouts/step_{step:06d}.jsonl.gz") for step in (10, 30)}
    assert held(folder / PAGE) == {10: ("None", lines[10], []), 30: ("0.25", lines[30], rows)}


def test_of_a_large_step_whole_groups_and_all_held_out_rollouts_are_shown(tmp_path):
    held_out = line([[" 1"] * 500], purpose="held_out", slot=0)
    folder = write_run(tmp_path / "run", {10: [*many(20, 4), held_out]})
    for limit, least, most in ((800, 4, 6), (1, 1, 1)):  # about 40 tokens for each rollout; never nothing
        *lines, left = held(write_page(RunFolder(folder), RolloutsConfig(tokens_per_step=limit)))[10][1]
        trained = [one for one in lines if one["purpose"] == "train"]
        assert least <= len({one["group"] for one in trained}) <= most and len(trained) % 4 == 0
        assert len(lines) == len(trained) + 1 and left == {"left_out": 81 - len(lines)}
        assert limit == 1 or sum(sum(one["loss_mask"]) for one in trained) <= limit
