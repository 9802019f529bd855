"""Supervised fine-tuning: which rows, which tokens, whatever the packing; and the filter. test_resume.py resumes it."""

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from gradients import CPU, tiny_policy

from minrl.__main__ import main
from minrl.dataflow import TrainState, UserError
from minrl.models.chat import question_of
from minrl.models.distributed import Processes
from minrl.run.setup import Parts
from minrl.sft import sft
from minrl.sft.config import SftConfig
from minrl.sft.demonstrations import (
    Demonstration,
    Rows,
    as_rollout_of,
    end_token,
    fingerprint,
    load_rows,
    read_demonstrations,
)
from minrl.sft.sft import fine_tune, steps_of
from minrl.sft.step import sft_step
from minrl.tasks import load_task
from minrl.tracking.session import Session
from minrl.utils.files import read_jsonl
from tests.parsed import sized
from tests.runs import Run, write_rows
from tests.say_sevens import EXAMPLES, SAY_SEVENS

BOUND = 1e-6
"""In double precision; transformers' RMSNorm computes in float32 inside."""


@pytest.fixture(scope="module")
def tiny():
    return tiny_policy(Processes(CPU))


def numbers(count, first=0):
    """Rows of one to five words that the tiny policy knows, over six prompts that they share."""
    return [
        Demonstration(((f"{n % 3} {n % 2} 7", " ".join(str((n * k) % 40) for k in range(1, 2 + n % 5))),))
        for n in range(first, first + count)
    ]


def rollouts(policy, rows):
    return [as_rollout_of(policy, row) for row in rows]


def test_the_loss_is_the_mean_over_response_tokens_and_end_token(tiny):
    rows = rollouts(tiny, numbers(7))
    before = {name: weight.detach().clone() for name, weight in tiny.model.named_parameters()}
    scored, losses, entropies = 0, [], []
    for demonstration in numbers(7):  # each by itself, through the model's own logits
        shown = tiny.tokenizer(demonstration.prompt)["input_ids"]
        said = [*tiny.tokenizer(demonstration.turns[0][1])["input_ids"], tiny.tokenizer.eos_token_id]
        logprobs = tiny.model(torch.tensor([shown + said])).logits[0].log_softmax(-1)[len(shown) - 1 : -1]
        losses.append(-logprobs.gather(1, torch.tensor(said)[:, None]).sum())
        entropies.append(-(logprobs.exp() * logprobs).sum())
        scored += len(said)
    (sum(losses) / scored).backward()
    gradients = {name: weight.grad.clone() for name, weight in tiny.model.named_parameters()}
    norm = math.sqrt(sum(float(gradient.pow(2).sum()) for gradient in gradients.values()))
    tiny.model.zero_grad()
    optimizer = torch.optim.SGD(tiny.model.parameters())
    metrics = sft_step(tiny, optimizer, rows, sized(warmup_steps=0, learning_rate=0.5, max_grad_norm=1e6), step=1)
    assert norm > 1e-3
    for name, weight in tiny.model.named_parameters():
        moved = before[name] - metrics["policy/learning_rate"] * gradients[name]
        torch.testing.assert_close(weight.detach(), moved, atol=BOUND, rtol=0, msg=name)
        weight.data.copy_(before[name])
    expected = [sum(losses).item() / scored, sum(entropies).item() / scored, scored, norm]
    tags = ("sft/loss", "sft/entropy", "sft/tokens", "policy/grad_norm")
    assert [metrics[tag] for tag in tags] == pytest.approx(expected, rel=1e-5)


def steps_to(last, state):
    while state.step < last:
        state.step += 1
        yield state.step


@pytest.fixture
def batches(tiny, monkeypatch):
    """The rows, by number, of each batch that a run of nine rows trains on from a state on."""

    def drawn(state, **settings):
        rows, seen = rollouts(tiny, numbers(9)), []
        settings = SftConfig(batch_size=4, **settings)
        last = settings.steps or steps_of(settings, state, len(rows), settings.batch_size)
        parts, run = object.__new__(Parts), SimpleNamespace(settings=settings)
        vars(parts).update(policy=tiny, optimizer=None, engine=MagicMock(), tasks={}, state=state, run=run)
        vars(parts).update(config=sized(steps=last))
        monkeypatch.setattr(sft, "sft_step", lambda *given: seen.append(given[2]) or {})
        recorder = MagicMock(spec=Session, parts=parts, run=run, steps=lambda: steps_to(last, state))
        fine_tune(recorder, Rows(rows, [], []))
        return [[rows.index(row) for row in batch] for batch in seen]

    return drawn


def test_an_epoch_trains_on_each_row_once_in_an_order_of_seed_and_epoch(batches):
    order = [row for batch in batches(TrainState(), epochs=2.0) for row in batch]
    assert sorted(order[:9]) == sorted(order[9:]) == list(range(9)) != order[:9] != order[9:]
    resumed = batches(TrainState(step=2, examples_drawn=8), epochs=2.0)
    assert [row for batch in resumed for row in batch] == order[8:]
    assert [row for batch in batches(TrainState(), epochs=2.0, seed=1) for row in batch] != order


@pytest.mark.parametrize(("epochs", "steps"), [(2.0, 5), (0.5, 1), (0.01, 1)])
def test_epochs_train_on_each_row_so_often_and_a_longer_run_on_the_rest(batches, epochs, steps):
    state = TrainState()
    first = batches(state, epochs=epochs)
    times = Counter(row for batch in first for row in batch)
    assert len(first) == steps and times.total() == max(1, round(epochs * 9)) == state.examples_drawn
    assert max(times.values()) - min(times[row] for row in range(9)) <= 1 and {len(one) for one in first[:-1]} <= {4}
    more = batches(state, epochs=3.0)
    assert times + Counter(row for batch in more for row in batch) == dict.fromkeys(range(9), 3)
    assert [len(batch) for batch in batches(state, steps=state.step + 2)] == [4, 4]  # as many steps, of full batches


def test_a_row_is_seen_as_when_sampling_and_ends_as_a_completion_does(policy):
    chat = [{"role": "system", "content": "add"}, {"role": "user", "content": "numbers 3 5"}]
    plain, messages = (as_rollout_of(policy, Demonstration(((prompt, "3 + 5"),))) for prompt in ("numbers 3 5", chat))
    words = policy.tokenizer.convert_ids_to_tokens
    assert words(plain.ids) == ["numbers", "3", "5", "3", "+", "5", "<end>"]
    assert words(messages.ids) == ["<user>", "numbers", "3", "5", "<assistant>", "3", "+", "5", "<end>"]
    assert messages.ids[: messages.prompt_length] == policy.encode_prompt(chat)
    for rollout in (plain, messages):
        assert words([i for i, said in zip(rollout.ids, rollout.loss_mask, strict=True) if said]) == words(
            rollout.ids[-4:]
        )


def test_the_end_of_a_chat_is_what_closes_the_turn(policy):
    # A model whose turns close with <pad>, at which the engine stops, though its tokenizer's end token is <end>.
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace("<end>", "<pad>")
    assert end_token(policy, chat=True) == policy.tokenizer.pad_token_id
    assert policy.tokenizer.pad_token_id in policy.stop_ids
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace("<pad>", "over")  # a word that is no token
    assert end_token(policy, chat=True) == policy.tokenizer.eos_token_id
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
        answer = {"role": "assistant", "content": f"{number} + {number}"}
        said += [
            {"role": "user", "content": f"numbers {number}"},
            answer | ({} if weight is None else {"weight": weight}),
        ]
    return {"messages": said}


@pytest.mark.parametrize(
    ("weights", "learned"),
    [((None, None), "0 + 0 <end> 1 + 1 <end>"), ((0, None), "1 + 1 <end>"), ((1, 0, True), "0 + 0 <end> 2 + 2 <end>")],
)
def test_each_answer_of_a_conversation_is_learned_but_those_of_weight_0(policy, tmp_path, weights, learned):
    (row,) = loaded(
        write_rows(tmp_path / "rows.jsonl", talk(*weights)), policy, held_out_share=0.0, loss_on="assistant"
    ).train
    assert policy.decode_all([i for i, own in zip(row.ids, row.loss_mask, strict=True) if own]) == learned
    shown = [message | {"weight": None} for message in talk(*weights)["messages"]]
    whole = policy.encode_prompt([*shown, {"role": "user", "content": "numbers 7"}])
    assert whole[: len(row.ids) - 1] == row.ids[:-1]  # as the template writes it


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "row 2 must be an object, got"),
        ('{"prompt": "1"}', r"needs `prompt` and `response` \(it has prompt\): name its columns with --prompt-column"),
        ('{"prompt": "1", "response": null}', "`response` must be a string or a list of .* message, got None"),
        ('{"prompt": "1", "response": "2", "tools": [{}]}', "`tools` is not shown to the model"),
        ('{"prompt": [{"role": "user"}], "response": "1"}', "`prompt` must be a text or a list of messages"),
        (json.dumps({"messages": talk(None)["messages"][::-1]}), "`messages` must end with the assistant's"),
        ('{"prompt": "1", "response": "2", "weight": 0}', "`weight` of a row is not obeyed"),
        (json.dumps({"prompt": "1", "response": talk(0)["messages"][1:]}), "no answer .* is learned"),
        (json.dumps(talk(1, 1)), "message 2 has weight 1 and is not learned: give --loss-on assistant"),
        (json.dumps(talk(None, 0.5)), "`weight` of message 4 must be 0 or 1, got 0.5"),
    ],
)
def test_what_is_no_row_is_refused_with_its_number(tmp_path, line, message):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1", "response": "2"}\n' + line + "\n")
    with pytest.raises(UserError, match=message) as refused:
        read(tmp_path / "rows.jsonl")
    assert "\n" not in str(refused.value)


def test_held_out_prompts_and_rows_that_do_not_fit_are_not_trained_on(policy, tmp_path):
    task = load_task("countdown")
    kept_back, free = task.dataset.held_out[0], task.dataset.train[:30]
    rows = [{"prompt": e.prompt, "response": r} for e in [kept_back, *free] for r in ("1", "2")]
    rows.append({"prompt": "numbers 1", "response": " ".join(["7"] * 100)})
    data = str(write_rows(tmp_path / "rows.jsonl", *rows))
    rows = loaded(data, policy, task, held_out_share=0.3, max_row_tokens=50)
    train, held_out = ({rollout.example_id for rollout in part} for part in (rows.train, rows.held_out))
    # Every row is in one of the two, but for the task's own held-out problem and the row of 100 sevens.
    assert len(train) + len(held_out - train) in (30, 31) and train and held_out and not train & held_out
    assert question_of(kept_back.prompt) not in train
    assert max(len(rollout.ids) for rollout in rows.train + rows.held_out) <= 50
    assert len(rows.train) == 2 * len(train)  # both responses to a prompt are on the same side
    with pytest.raises(UserError, match=r"no row of .* can be trained on: of 63 distinct ones 0 are held out, 63 show"):
        loaded(data, policy, task, eval_data=data)


def shown_as(policy, path, task=None, **settings):
    """The prompts that the policy is trained on, in words."""
    rows = loaded(path, policy, task, held_out_share=0.0, **settings).train
    return {policy.decode_all(rollout.ids[: rollout.prompt_length]) for rollout in rows}


def test_a_text_is_shown_as_the_task_shows_its_prompts_or_through_the_template_that_there_is(policy, tmp_path, sevens):
    path = write_rows(tmp_path / "rows.jsonl", {"prompt": "numbers 3 5", "response": "7"})
    text, chat = {"numbers 3 5"}, {"<user> numbers 3 5 <assistant>"}
    assert shown_as(policy, path) == chat  # as any chat model is asked when it is evaluated
    assert shown_as(policy, path, load_task("countdown")) == chat  # which poses messages
    assert shown_as(policy, path, sevens) == text  # which poses texts
    assert shown_as(policy, path, prompt_format="text") == text
    assert shown_as(policy, path, sevens, prompt_format="chat") == chat
    policy.tokenizer.chat_template = None
    assert shown_as(policy, path) == text
    with pytest.raises(UserError, match="the tokenizer has no chat template"):
        shown_as(policy, path, prompt_format="chat")


def test_a_held_out_prompt_is_recognised_by_what_the_policy_is_shown_and_by_its_question(policy, tmp_path):
    task = load_task("countdown")
    free, *held_out = (task.dataset.train[0].prompt, *(example.prompt for example in task.dataset.held_out[:4]))
    forms = [
        lambda chat: [{"role": "system", "content": "You are helpful."}, chat[-1]],
        lambda chat: [{**message, "name": None} for message in chat],
        lambda chat: chat[-1]["content"].replace(" ", "  ") + " ",
        lambda chat: [{"role": "user", "content": "numbers 1"}, {"role": "assistant", "content": "7"}, chat[-1]],
    ]
    shown = {form: "<user> {} <assistant>".format(" ".join(free[-1]["content"].split())) for form in forms[:3]}
    for form, prompt in zip(forms, held_out, strict=True):
        rows = [{"prompt": form(prompt), "response": "7"}, {"prompt": form(free), "response": "7"}]
        trained = shown_as(policy, write_rows(tmp_path / "rows.jsonl", *rows), task)
        assert len(trained) == 1 and (form not in shown or trained == {shown[form]})


def test_rows_in_words_that_the_tokenizer_lacks_are_refused_above_one_in_a_hundred(policy, tmp_path):
    # A row of 4 tokens and an end, of which 2 stand for unknown words, and rows of 5 that it knows: 2 of 200 are 1 %.
    known = [{"prompt": f"numbers {n} {m}", "response": "7"} for n in range(8) for m in range(8)]

    def load(count, prompt, response):
        path = write_rows(tmp_path / "rows.jsonl", {"prompt": prompt, "response": response}, *known[:count])
        return loaded(path, policy, held_out_share=0.0, prompt_format="text")

    for lacking in (("numbers zwei drei", "7"), ("numbers 3", "sieben acht")):
        assert sum(len(rollout.ids) for rollout in load(63, *lacking).train) > 200
        with pytest.raises(UserError, match=r"2\.\d+% of the tokens of .*rows.jsonl stand for words .* lacks \('"):
            load(16, *lacking)


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


def test_a_run_is_not_resumed_with_other_rows_or_by_another_program(run, tmp_path):
    shutil.copytree(run.place, tmp_path / "copy")
    own = replace(run, place=tmp_path / "copy")
    with pytest.raises(UserError, match=r"is not one of minrl train: continue it with .*python -m minrl sft --resume"):
        replace(own, program="train").here("--resume", own.folder)
    with pytest.raises(UserError, match="only --steps, --epochs, --stop-at and --patience may change, got --seed"):
        own.resume("--seed", 1)
    rows = run.place / "rows.jsonl"  # config.json names it
    before = rows.read_text()
    rows.write_text(before + json.dumps({"prompt": "zebra " * 50, "response": "2"}) + "\n")  # unknown, too
    with pytest.raises(UserError, match=r"are not those that run .* began with"):
        own.resume("--steps", 7)
    rows.write_text(before)


@pytest.mark.learns
def test_a_model_is_trained_without_a_task(run, tmp_path):
    (base,) = (run.place / "checkpoints").glob("base-*")
    flags = f"--model-id {base} --device cpu --threads 1 --epochs 0.5 --batch-size 8 --learning-rate 2e-3 --quiet"
    own = Run(tmp_path, [*flags.split(), "--data", str(run.place / "rows.jsonl"), "--max-examples", "16"], "sft")
    assert own.here() == 0
    assert own.summary["steps"] == 1 and own.summary["train_rows"] == 16  # half of 16 rows are one batch of 8
    assert own.summary["held_out_loss"]["1"] < own.summary["held_out_loss"]["0"]


RIGHT, WRONG = "<answer> 7 + 5 - 3 </answer>", "<answer> 3 + 5 + 7 </answer>"
PROBLEM = {"numbers": [3, 7, 5], "target": 9}


def keep(tmp_path, lines, *flags):
    (tmp_path / "in.jsonl").write_text("".join(line + "\n" for line in lines))  # some are no JSON
    output = tmp_path / "made" / "out.jsonl"
    task = ["--task", "countdown", "--data", str(tmp_path / "in.jsonl"), "--output", str(output)]
    assert main(["filter", *task, *flags]) == 0
    assert not list(output.parent.glob("*.tmp"))
    return output.read_text().split("\n")[:-1]


def test_the_filter_keeps_correct_rows_as_they_are_and_in_order(tmp_path, capsys):
    lines = [
        json.dumps({"response": RIGHT, "prompt": "p", "odd": "\u2028", **PROBLEM}, ensure_ascii=False),
        json.dumps({"response": WRONG, "completion": RIGHT, **PROBLEM}),
        json.dumps({"completion": RIGHT, **PROBLEM}, indent=None, separators=(",", ":")),
        json.dumps({"response": RIGHT, "numbers": [3, 7, 5]}),
        "{",
        json.dumps({"response": "", **PROBLEM}),
        json.dumps({"response": RIGHT, "truncated": True, **PROBLEM}),
    ]
    assert keep(tmp_path, lines) == [lines[0], lines[2]]
    assert "could not be scored, the first (row 4: the row lacks 'target'" in capsys.readouterr().err
    assert keep(tmp_path, lines, "--min-reward", "0.1") == lines[:3]
    assert keep(tmp_path, lines, "--min-reward", "0") == [*lines[:3], lines[5]]


ADD = """
from minrl import task

QUESTIONS = [{"question": f"What is the sum of the first {n} odd positive integers?", "n": n} for n in range(20)]

@task(data=QUESTIONS, prompt="question", held_out=0.5)
def sums(completion, row):
    return float(completion.strip() == str(row["n"] ** 2))
"""


def test_the_filter_leaves_out_rows_that_show_a_held_out_problem_and_counts_them(tmp_path, capsys):
    (tmp_path / "filtered_sums.py").write_text(ADD)
    name, rows = f"{tmp_path}/filtered_sums.py:sums", tmp_path / "rows.jsonl"
    dataset = load_task(name).dataset
    for prompt in ("%s", "User: %s\nAssistant:", [{"role": "user", "content": "Answer in a word. %s Be quick."}]):
        made = [
            json.loads(json.dumps({"prompt": prompt, "n": one["n"], "response": str(one["n"] ** 2)}) % one.prompt)
            for one in (dataset.train[0], dataset.held_out[0])
        ]
        write_rows(rows, *made)
        assert main(["filter", "--task", name, "--data", str(rows), "--output", str(tmp_path / "out.jsonl")]) == 0
        assert read_jsonl(tmp_path / "out.jsonl") == made[:1]
        assert "kept 1 of 2 rows; 0 are not correct, 1 show a held-out problem" in capsys.readouterr().err


def test_the_filter_knows_a_held_out_problem_by_the_key_that_its_task_divides_by(tmp_path, capsys):
    held_out = load_task("countdown").dataset.held_out[0]
    numbers = held_out["numbers"]
    for order in (numbers, numbers[::-1]):  # the same numbers in another order
        total = " + ".join(map(str, order))
        row = {"response": f"<answer> {total} </answer>", "numbers": order, "target": sum(order)}
        free = json.dumps({"response": RIGHT, **PROBLEM})
        assert keep(tmp_path, [json.dumps(row), free]) == [free]
        assert "1 show a held-out problem" in capsys.readouterr().err


def test_the_filter_reads_ground_truth_and_fails_where_no_row_could_be_scored(tmp_path, capsys):
    """Rows of the published MATH post-training: a prompt, a response and a `ground_truth`."""
    row = {"prompt": "p", "ground_truth": "54"}
    rows = write_rows(tmp_path / "rows.jsonl", {**row, "response": "#### 54"}, {**row, "response": "54"})
    flags = ["--task", "gsm8k", "--data", str(rows), "--output"]
    assert main(["filter", *flags, str(tmp_path / "kept.jsonl")]) == 0
    assert len((tmp_path / "kept.jsonl").read_text().splitlines()) == 1
    write_rows(rows, {"response": "#### 54"})
    assert main(["filter", *flags, str(tmp_path / "none.jsonl")]) == 1
    assert "1 could not be scored, the first (row 1: the row lacks 'answer'" in capsys.readouterr().err
