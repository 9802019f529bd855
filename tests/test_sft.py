"""Supervised fine-tuning: which rows, which tokens, whatever the packing; and the filter. test_resume.py resumes it."""

import json
import math
from dataclasses import replace

import pytest
import torch
from gradients import CPU, tiny_policy

from minrl.__main__ import main
from minrl.dataflow import UserError
from minrl.models.distributed import Processes
from minrl.sft.config import SftConfig
from minrl.sft.demonstrations import (
    Demonstration,
    as_rollout_of,
    end_token,
    fingerprint,
    load_rows,
    read_demonstrations,
)
from minrl.sft.step import sft_step
from minrl.tasks import load_task
from minrl.utils.files import read_jsonl
from tests.evaluated import SUMS
from tests.parsed import sized
from tests.runs import Run, write_rows
from tests.say_sevens import EXAMPLES, SAY_SEVENS

BOUND = 1e-6
"""In double precision; transformers' RMSNorm computes in float32 inside."""


def test_the_loss_is_the_mean_over_response_tokens_and_end_token():
    tiny = tiny_policy(Processes(CPU))
    texts = [(f"{n % 3} {n % 2} 7", " ".join(str((n * k) % 40) for k in range(1, 2 + n % 5))) for n in range(7)]
    before = {name: weight.detach().clone() for name, weight in tiny.model.named_parameters()}
    scored, losses, entropies = 0, [], []
    for prompt, response in texts:  # each by itself, through the model's own logits
        shown = tiny.tokenizer(prompt)["input_ids"]
        said = [*tiny.tokenizer(response)["input_ids"], tiny.tokenizer.eos_token_id]
        logprobs = tiny.model(torch.tensor([shown + said])).logits[0].log_softmax(-1)[len(shown) - 1 : -1]
        losses.append(-logprobs.gather(1, torch.tensor(said)[:, None]).sum())
        entropies.append(-(logprobs.exp() * logprobs).sum())
        scored += len(said)
    (sum(losses) / scored).backward()
    gradients = {name: weight.grad.clone() for name, weight in tiny.model.named_parameters()}
    norm = math.sqrt(sum(float(gradient.pow(2).sum()) for gradient in gradients.values()))
    tiny.model.zero_grad()
    rows = [as_rollout_of(tiny, Demonstration((one,))) for one in texts]
    config = sized(warmup_steps=0, max_grad_norm=1e6, learning_rate=0.5)
    metrics = sft_step(tiny, torch.optim.SGD(tiny.model.parameters()), rows, config, step=1)
    for name, weight in tiny.model.named_parameters():
        moved = before[name] - metrics["policy/learning_rate"] * gradients[name]
        torch.testing.assert_close(weight.detach(), moved, atol=BOUND, rtol=0, msg=name)
    expected = [sum(losses).item() / scored, sum(entropies).item() / scored, scored, norm]
    tags = ("sft/loss", "sft/entropy", "sft/tokens", "policy/grad_norm")
    assert [metrics[tag] for tag in tags] == pytest.approx(expected, rel=1e-5) and norm > 1e-3


def test_a_row_is_seen_as_when_sampling_and_ends_as_a_completion_does(policy):
    chat = [{"role": "system", "content": "add"}, {"role": "user", "content": "numbers 3 5"}]
    words = policy.tokenizer.convert_ids_to_tokens
    for prompt, shown in (("numbers 3 5", "numbers 3 5"), (chat, "<user> numbers 3 5 <assistant>")):
        row = as_rollout_of(policy, Demonstration(((prompt, "3 + 5"),)))
        assert words(row.ids) == [*shown.split(), "3", "+", "5", "<end>"]
        assert row.ids[: row.prompt_length] == policy.encode_prompt(prompt)
        assert row.loss_mask == [False] * (len(row.ids) - 4) + [True] * 4


def test_the_end_of_a_chat_is_what_closes_the_turn(policy):
    # A model whose turns close with <pad>, at which the engine stops, though its tokenizer's end token is <end>.
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace("<end>", "<pad>")
    assert end_token(policy, chat=True) == policy.tokenizer.pad_token_id in policy.stop_ids
    assert end_token(policy, chat=False) == policy.tokenizer.eos_token_id


def read(path, **settings):
    config = SftConfig(data=str(path), **settings)
    return read_demonstrations(config, config.data)


def loaded(path, policy, task=None, **settings):
    config = SftConfig(data=str(path), **settings)
    return load_rows(config, {one: read_demonstrations(config, one) for one in fingerprint(config)}, policy, task)


def test_equal_rows_count_once_and_messages_are_rows_too(policy, tmp_path):
    chat = [{"role": "user", "content": "1"}]
    rows = [
        {"q": "1", "a": "2"},
        {"q": "1", "a": "2", "other": 1},
        {"q": chat, "a": "2"},
        {"q": "1", "messages": [*chat, {"role": "assistant", "content": "4"}]},
        {"q": "1", "a": [{"role": "assistant", "content": [{"type": "text", "text": "5"}]}]},
    ]
    path = write_rows(tmp_path / "rows.jsonl", *rows)
    names = {"prompt_column": "q", "response_column": "a"}
    found = [row.turns[0] for row in read(path, **names)]
    assert found == [("1", "2"), ("1", "2"), (chat, "2"), (chat, "4"), ("1", "5")]
    kept = loaded(path, policy, held_out_share=0.0, prompt_format="text", **names)
    assert kept.numbers == [1, 3, 4, 5] and len(kept.train) == 4


def talk(*weights):
    """A conversation whose answers have these weights, None for no weight."""
    said = []
    for number, weight in enumerate(weights):
        own = {} if weight is None else {"weight": weight}
        said.append({"role": "user", "content": f"numbers {number}"})
        said.append({"role": "assistant", "content": f"{number} + {number}", **own})
    return {"messages": said}


def test_each_answer_of_a_conversation_is_learned_but_those_of_weight_0(policy, tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", talk(1, 0, None))
    (row,) = loaded(path, policy, held_out_share=0.0, loss_on="assistant").train
    learned = [i for i, own in zip(row.ids, row.loss_mask, strict=True) if own]
    assert policy.decode_all(learned) == "0 + 0 <end> 2 + 2 <end>"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "1"}', r"needs `prompt` and `response` \(it has prompt\): name its columns with --prompt-column"),
        ('{"prompt": "1", "response": "2", "tools": [{}]}', "`tools` is not shown to the model"),
        ('{"prompt": "1", "response": "2", "weight": 0}', "`weight` of a row is not obeyed"),
        (json.dumps(talk(1, 1)), "message 2 has weight 1 and is not learned: give --loss-on assistant"),
    ],
)
def test_what_is_no_row_is_refused_with_its_number(tmp_path, line, message):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1", "response": "2"}\n' + line + "\n")
    with pytest.raises(UserError, match=message):
        read(tmp_path / "rows.jsonl")


def test_held_out_prompts_in_any_form_and_rows_that_do_not_fit_are_not_trained_on(policy, tmp_path):
    task = load_task("countdown")
    kept_back, free = task.dataset.held_out[0].prompt, [example.prompt for example in task.dataset.train[:30]]
    asked, text = kept_back[-1], kept_back[-1]["content"]
    rows = [{"prompt": one, "response": r} for one in [kept_back, *free] for r in ("1", "2")]
    rows.append({"prompt": "numbers 1", "response": " ".join(["7"] * 100)})
    data = str(write_rows(tmp_path / "rows.jsonl", *rows))
    rows = loaded(data, policy, task, held_out_share=0.3, max_row_tokens=50)
    train, held_out = ({rollout.example_id for rollout in part} for part in (rows.train, rows.held_out))
    # Every row is in one of the two, but for the task's own held-out problem and the row of 100 sevens.
    assert len(train) + len(held_out - train) in (30, 31) and train and held_out and not train & held_out
    assert max(len(rollout.ids) for rollout in rows.train + rows.held_out) <= 50
    assert len(rows.train) == 2 * len(train)  # both responses to a prompt are on the same side
    with pytest.raises(UserError, match=r"can be trained on: of 63 distinct ones 0 are held out, 63 show"):
        loaded(data, policy, task, eval_data=data)
    other = [{"role": "user", "content": "numbers 1"}, {"role": "assistant", "content": "7"}, asked]
    for form in (kept_back, [{"role": "system", "content": "Be brief."}, asked], f"{text.replace(' ', '  ')} ", other):
        path = write_rows(tmp_path / "two.jsonl", *({"prompt": one, "response": "7"} for one in (form, free[0])))
        (row,) = loaded(path, policy, task, held_out_share=0.0).train
        assert " ".join(free[0][-1]["content"].split()) in policy.decode_all(row.ids)


def test_a_text_is_shown_as_the_task_shows_its_prompts_or_through_the_template_that_there_is(policy, tmp_path, sevens):
    path = write_rows(tmp_path / "rows.jsonl", {"prompt": "numbers 3 5", "response": "7"})

    def shown(task=None, **settings):
        (row,) = loaded(path, policy, task, held_out_share=0.0, **settings).train
        return policy.decode_all(row.ids[: row.prompt_length])

    text, chat = "numbers 3 5", "<user> numbers 3 5 <assistant>"
    assert shown() == chat  # as any chat model is asked when it is evaluated
    assert shown(sevens) == text  # which poses texts
    assert (shown(prompt_format="text"), shown(sevens, prompt_format="chat")) == (text, chat)
    policy.tokenizer.chat_template = None
    assert shown() == text


def test_rows_in_words_that_the_tokenizer_lacks_are_refused_above_one_in_a_hundred(policy, tmp_path):
    # A row of 4 tokens and an end, of which 2 stand for unknown words, and rows of 5 that it knows: 2 of 200 are 1 %.
    rows = [{"prompt": f"numbers {n} {m}", "response": "7"} for n in range(8) for m in range(8)]
    rows.insert(0, {"prompt": "numbers zwei drei", "response": "7"})
    path, settings = tmp_path / "rows.jsonl", {"held_out_share": 0.0, "prompt_format": "text"}
    assert loaded(write_rows(path, *rows), policy, **settings).train
    with pytest.raises(UserError, match=r"2\.\d+% of the tokens of .*rows.jsonl stand for words .* lacks \('"):
        loaded(write_rows(path, *rows[:17]), policy, **settings)


FLAGS = [*SAY_SEVENS, *str.split("""--batch-size 4 --steps 6 --eval-every 3 --eval-examples 4 --eval-samples 1
    --held-out-share 0.3 --learning-rate 2e-3 --threads 1 --device cpu --quiet""")]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory, sevens_base):
    """A run on rows whose answers are all 7."""
    place = tmp_path_factory.mktemp("whole")
    rows = write_rows(place / "rows.jsonl", *({"prompt": one.prompt, "response": "7"} for one in EXAMPLES))
    made = Run(place, [*FLAGS, "--data", str(rows)], "sft").given_base_of(sevens_base)
    assert made.here() == 0
    return made


@pytest.mark.learns
def test_a_run_measures_rows_and_task_and_learns(run):
    lines, found = run.metrics, run.summary
    assert [line["step"] for line in lines if "sft/held_out_loss" in line] == [0, 3, 6]
    assert all(f"eval/sevens/{name}" in lines[3] for name in ("pass@1", "pass@1_low", "pass@1_high", "entropy"))
    assert 0 < lines[6]["sft/entropy"] < math.log(100)  # of fewer words than that
    assert found["held_out_loss"]["6"] < found["held_out_loss"]["0"]
    assert lines[6]["sft/epoch"] == pytest.approx(24 / found["train_rows"])
    assert found["algorithm"] == "sft" and "pass@1" in found["eval_after"]


def test_a_run_is_not_resumed_with_other_rows_or_by_another_program(run):
    with pytest.raises(UserError, match=r"is not one of minrl train: continue it with .*python -m minrl sft --resume"):
        replace(run, program="train").here("--resume", run.folder)
    rows = run.place / "rows.jsonl"  # config.json names it
    before = rows.read_text()
    rows.write_text(before * 2)
    with pytest.raises(UserError, match=r"are not those that run .* began with"):
        run.resume("--steps", 7)
    rows.write_text(before)


@pytest.mark.learns
def test_a_model_is_trained_without_a_task_on_each_row_so_often_and_a_longer_run_on_the_rest(run, tmp_path):
    (base,) = (run.place / "checkpoints").glob("base-*")
    flags = f"--model-id {base} --device cpu --threads 1 --epochs 1.25 --batch-size 8 --learning-rate 2e-3 --quiet"
    own = Run(tmp_path, [*flags.split(), "--data", str(run.place / "rows.jsonl"), "--max-examples", "16"], "sft")
    assert own.here() == 0
    losses = own.summary["held_out_loss"]
    assert own.summary["train_rows"] == 16 and losses["3"] < losses["0"]
    assert own.resume("--epochs", 2) == 0  # 20 rows in batches of 8, and the other 12 of 32
    assert [line["sft/epoch"] for line in own.metrics[1:]] == [0.5, 1.0, 1.25, 1.75, 2.0]


RIGHT, WRONG = "<answer> 7 + 5 - 3 </answer>", "<answer> 3 + 5 + 7 </answer>"
PROBLEM = {"numbers": [3, 7, 5], "target": 9}


def keep(tmp_path, lines, *flags):
    (tmp_path / "in.jsonl").write_text("".join(line + "\n" for line in lines))  # some are no JSON
    output = tmp_path / "made" / "out.jsonl"
    task = ["--task", "countdown", "--data", str(tmp_path / "in.jsonl"), "--output", str(output)]
    assert main(["filter", *task, *flags]) == 0
    return output.read_text().split("\n")[:-1]


def test_the_filter_keeps_correct_rows_as_they_are_and_in_order(tmp_path, capsys):
    lines = [
        json.dumps({"response": RIGHT, "prompt": "p", "odd": "\u2028", **PROBLEM}, ensure_ascii=False),
        json.dumps({"response": WRONG, "completion": RIGHT, **PROBLEM}),
        json.dumps({"completion": RIGHT, **PROBLEM}, indent=None, separators=(",", ":")),
        json.dumps({"response": RIGHT, "numbers": [3, 7, 5]}),
        "{",
        json.dumps({"response": RIGHT, "truncated": True, **PROBLEM}),
    ]
    assert keep(tmp_path, lines) == [lines[0], lines[2]]
    assert "not scored, the first (row 4: the row lacks 'target'" in capsys.readouterr().err
    assert keep(tmp_path, lines, "--min-reward", "0.1") == lines[:3]


def test_the_filter_leaves_out_rows_that_show_a_held_out_problem_and_counts_them(tmp_path, capsys):
    (tmp_path / "filtered_sums.py").write_text(SUMS)
    name, rows = f"{tmp_path}/filtered_sums.py:sums", tmp_path / "rows.jsonl"
    dataset = load_task(name).dataset
    for prompt in ("User: %s\nAssistant:", [{"role": "user", "content": "Answer in a word. %s Be quick."}]):
        made = [
            json.loads(json.dumps({"prompt": prompt, "n": one["n"], "response": str(one["n"] ** 2)}) % one.prompt)
            for one in (dataset.train[0], dataset.held_out[0])
        ]
        write_rows(rows, *made)
        assert main(["filter", "--task", name, "--data", str(rows), "--output", str(tmp_path / "out.jsonl")]) == 0
        assert read_jsonl(tmp_path / "out.jsonl") == made[:1]
        assert "kept 1 of 2 rows; 0 incorrect, 1 of held-out problems" in capsys.readouterr().err


def test_the_filter_knows_a_held_out_problem_by_the_key_that_its_task_divides_by(tmp_path, capsys):
    numbers = load_task("countdown").dataset.held_out[0]["numbers"][::-1]  # in another order
    said = f"<answer> {' + '.join(map(str, numbers))} </answer>"
    row = {"response": said, "numbers": numbers, "target": sum(numbers)}
    free = json.dumps({"response": RIGHT, **PROBLEM})
    assert keep(tmp_path, [json.dumps(row), free]) == [free]
    assert "1 of held-out problems" in capsys.readouterr().err


def test_the_filter_reads_ground_truth(tmp_path):
    """Rows of the published MATH post-training: a prompt, a response and a `ground_truth`."""
    row, kept = {"prompt": "p", "ground_truth": "54"}, tmp_path / "kept.jsonl"
    rows = write_rows(tmp_path / "rows.jsonl", {**row, "response": "#### 54"}, {**row, "response": "54"})
    assert main(["filter", "--task", "gsm8k", "--data", str(rows), "--output", str(kept)]) == 0
    assert [row["response"] for row in read_jsonl(kept)] == ["#### 54"]
