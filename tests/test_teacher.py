"""A teacher: what each token is worth, who may teach, what it reads, and that a run with one resumes to the bit."""

from dataclasses import replace

import pytest
import torch
from gradients import CPU, fixed_rollouts, gradients, settings, tiny_policy
from safetensors.torch import load_file

from minrl import train
from minrl.__main__ import main
from minrl.advantages import teacher_preference
from minrl.batch import pack
from minrl.config import AlgorithmConfig, RolloutConfig, TrainerConfig
from minrl.models.distributed import Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.scoring import score
from minrl.policy import as_policy
from minrl.run.checkpoint import save_policy
from minrl.run.teacher import TeacherPrompt, require_same_tokens, teacher_prompt
from minrl.tasks import Task
from minrl.tasks.task import split
from minrl.types import Example, Reward, UserError
from tests.killing import killed_at
from tests.test_train_loop import loop, metrics

assert loop  # a fixture


@pytest.fixture
def tiny():
    return tiny_policy(Processes(CPU))


def assert_gradients(tiny, step):
    """The step's are those that the model's weights hold, which are then reset."""
    for name, weight in tiny.model.named_parameters():
        torch.testing.assert_close(step[name], weight.grad, atol=1e-6, rtol=0)
    tiny.model.zero_grad()


def distilled(tiny, rollouts, **changes):
    """The gradient of one optimizer step from the teacher alone, with weights put back, and the metrics."""
    seen, found = gradients(tiny, rollouts, settings("distill", passes_per_step=1, importance_cap=0.0, **changes))
    return seen[0], found


def test_the_mean_update_is_the_gradient_of_the_divergence_from_the_teacher(tiny, make_rollout):
    """Each token of the vocabulary as the sampled one, weighted by its probability. The sum of the updates must be the
    gradient of sum_x π(x) log π(x) / π_teacher(x), by autograd over plain logits, at the temperature of the sampling.
    """
    prompt, temperature = [7, 9, 8], 0.7
    ids, rows = torch.tensor([prompt]), tiny.model.config.vocab_size

    def last(model):
        return (model(ids).logits[0, -1] / temperature).log_softmax(-1)

    policy, teacher = last(tiny.model), last(tiny.teacher).detach()
    (policy.exp() * (policy - teacher)).sum().backward()
    expected = {name: weight.grad.clone() for name, weight in tiny.model.named_parameters()}
    tiny.model.zero_grad()
    probability = policy.exp().tolist()
    total = {name: torch.zeros_like(gradient) for name, gradient in expected.items()}
    rollout = RolloutConfig(group_size=1, temperature=temperature)
    config = replace(settings("distill", passes_per_step=1, importance_cap=0.0), rollout=rollout)
    for token in range(rows):
        (step,), _ = gradients(tiny, [make_rollout(prompt, [token])], config)
        for name in total:
            total[name] += probability[token] * step[name]
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-2
    for name, gradient in expected.items():
        torch.testing.assert_close(total[name], gradient, atol=1e-6, rtol=0)


def test_of_a_teacher_like_the_policy_nothing_is_learned(tiny):
    tiny.teacher = None  # the policy itself, which reads the same prompt
    step, found = distilled(tiny, fixed_rollouts())
    assert all((gradient == 0).all() for gradient in step.values())
    assert (found["teacher/kl"], found["teacher/preferred_frac"]) == (0, 0)


def test_a_teacher_is_added_to_the_rewards_with_its_weight(tiny):
    rollouts, once = fixed_rollouts(), {"passes_per_step": 1, "importance_cap": 0.0}
    (alone,), plain = gradients(tiny, rollouts, settings("dapo", **once))
    (taught,), found = gradients(tiny, rollouts, settings("dapo", teacher_id="m", teacher_weight=0.3, **once))
    teacher, _ = distilled(tiny, rollouts)  # which weighs tokens as dapo does
    for name, gradient in taught.items():
        torch.testing.assert_close(gradient, alone[name] + 0.3 * teacher[name], atol=1e-6, rtol=0)
    assert "teacher/kl" in found and "teacher/kl" not in plain
    # A group without spread teaches now; what could not be scored does not.
    unscorable = sum(r.num_sampled for r in rollouts if r.reward is None)
    assert found["policy/trained_token_frac"] == pytest.approx(1 - unscorable / sum(r.num_sampled for r in rollouts))


def test_several_steps_prefer_by_the_policy_that_sampled(tiny):
    """In the second pass the policy has moved; what the teacher prefers is still measured from where it was."""
    rollouts = [one for one in fixed_rollouts() if one.reward is not None]
    stream = pack(rollouts, range(len(rollouts)))
    teacher, old = (score(model, stream, 1.0)[0].detach() for model in (tiny.teacher, tiny.model))
    (first, second), found = gradients(tiny, rollouts, settings("distill", passes_per_step=2, importance_cap=0.0))
    assert found["policy/ratio_max"] > 1
    assert found["teacher/kl"] == pytest.approx(-float(teacher_preference(teacher, old).mean()), abs=1e-6)
    assert any(not torch.equal(first[name], second[name]) for name in first)


def shown_more(tiny, text="{prompt} 3 {answer}", **fields):
    """The policy as its own teacher, which reads 3 and the answer behind the prompt."""
    tiny.teacher = None
    example = Example("0", "", {"answer": "4", **fields})
    tiny.teacher_reads = TeacherPrompt(tiny, text, {"0": example})
    return tiny


def test_a_policy_that_is_shown_more_teaches_itself(tiny, make_rollout):
    message, said = "1 2", tiny.tokenizer("5 6")["input_ids"]
    prompt = tiny.encode_prompt(message)
    one = make_rollout(prompt, said, example_id="0", message=message)
    step, found = distilled(shown_more(tiny), [one])
    read = tiny.tokenizer("1 2 3 4 5 6")["input_ids"]

    def sampled(ids):
        return tiny.model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)[-2:].gather(1, torch.tensor([said]).T)

    policy, teacher = sampled(one.ids), sampled(read)
    preference = (teacher - policy).detach()
    (-(preference * policy).mean()).backward()
    assert_gradients(tiny, step)
    assert found["teacher/kl"] == pytest.approx(-float(preference.mean()), abs=1e-6)


def test_behind_the_teachers_prompt_a_rollout_says_the_same(tiny, make_rollout):
    reads, prompt = shown_more(tiny).teacher_reads, tiny.encode_prompt("1 2")
    mask = [False, True, False, True, True]
    one = make_rollout([5], [7, 8, 9, 3], loss_mask=mask, turns=[(1, 2), (3, 5)], example_id="0", message="1 2")
    moved, length = reads(one), len(tiny.encode_prompt("1 2 3 4"))
    assert length > len(prompt) and moved.prompt_length == length
    assert moved.ids == [*tiny.encode_prompt("1 2 3 4"), 7, 8, 9, 3]
    assert [moved.ids[start:end] for start, end in moved.turns] == [[7], [9, 3]]
    assert [i for i, m in zip(moved.ids, moved.loss_mask, strict=True) if m] == [7, 9, 3]
    assert moved.rollout_logprobs == [0.0] * length + [-1.0] * 4
    assert one.ids == [5, 7, 8, 9, 3]  # as it was


def test_in_a_chat_the_last_message_of_the_user_is_replaced(tiny):
    reads = shown_more(tiny, "{answer} is right: {prompt}").teacher_reads
    system, prefix = {"role": "system", "content": "{prompt}"}, {"role": "assistant", "content": "So"}
    shown = reads.shown([system, {"role": "user", "content": "2 + 2 {answer}"}, prefix], reads.examples["0"])
    assert shown == [system, {"role": "user", "content": "4 is right: 2 + 2 {answer}"}, prefix]


@pytest.fixture
def task():
    examples = [Example(str(n), f"{n} {n}", {"answer": str(n)}) for n in range(8)]
    return Task(split(examples, 0.5), lambda text, example: Reward(0.0), cheap=True)


def asked(text, max_tokens=8, **limits):
    return TrainerConfig(teacher_prompt=text, task="t", max_tokens=max_tokens, **limits)


def test_what_a_teacher_cannot_read_is_refused(tiny, task, make_rollout):
    reads = teacher_prompt(tiny, asked("{prompt} {answer}"), task)
    assert reads.examples.keys() == {example.id for example in task.dataset.train}
    assert teacher_prompt(tiny, TrainerConfig(), task) is None
    with pytest.raises(UserError, match=r"words that the model's tokenizer lacks \('Tell'"):
        teacher_prompt(tiny, asked("Tell {prompt}"), task)
    limit = tiny.context_length
    assert teacher_prompt(tiny, asked("{prompt}", limit - 2), task)
    room = rf"no room for the {limit - 1} tokens of a completion of t in the {limit} .* in (\d) of \1 tr"
    with pytest.raises(UserError, match=room):
        teacher_prompt(tiny, asked("{prompt}", task_max_tokens=f"t:{limit - 1}"), task)  # the task's own limit
    empty = [Example(one.id, one.prompt, {}) for one in task.dataset.train]
    object.__setattr__(task, "dataset", replace(task.dataset, train=empty))
    with pytest.raises(UserError, match=r"shows \{answer\}, and (\d) of \1 training examples of t have none"):
        teacher_prompt(tiny, asked("{prompt} {answer}"), task)
    long = make_rollout([5], [6] * (limit - 1), example_id="0", message="0")  # an episode that grows
    with pytest.raises(UserError, match=rf"{limit + 2} tokens, 3 of its prompt, and takes {limit} \(example '0'"):
        shown_more(tiny).teacher_reads(long)


def stranger(words, processes, rows=0):
    tokenizer = word_tokenizer(words)
    model = small_qwen3(tokenizer, 16, 1, 2, 0)
    if rows:
        model.resize_token_embeddings(rows)
    return as_policy(model, tokenizer, CPU, processes)


def test_a_teacher_with_other_tokens_is_refused(tiny):
    words = [str(number) for number in range(40)]
    require_same_tokens(tiny, stranger([*words, "more"], tiny.processes), "t")
    with pytest.raises(UserError, match=r"other tokens than the policy, .* 2 of 45 differ, \['38'\] among them[^\n]*$"):
        require_same_tokens(tiny, stranger([*words[:-2], "39", "38"], tiny.processes), "t")
    tiny.model.resize_token_embeddings(48)  # as models are padded
    require_same_tokens(tiny, stranger(words, tiny.processes, rows=64), "t")
    with pytest.raises(UserError, match="45 rows in its embedding, and the policy may sample any of its 48"):
        require_same_tokens(tiny, stranger(words, tiny.processes), "t")


def test_the_prompt_of_a_teacher_may_stand_in_a_file_whose_text_is_kept(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("{prompt}\nThe answer is {answer}.")
    assert AlgorithmConfig(teacher_prompt=str(path)).teacher_prompt == path.read_text()
    path.write_text("{answer}")
    with pytest.raises(UserError, match=r"never shows the prompt: write \{prompt\} in it"):
        AlgorithmConfig(teacher_prompt=str(path))


@pytest.fixture
def taught(loop, make_policy, tmp_path):
    """Runs as `loop` does, beside a teacher that says hardly anything but 7: all its hidden states have the direction
    of the embeddings, of which that of 7 is longer.
    """
    teacher = make_policy(3)
    (seven,) = teacher.tokenizer("7", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        embedding = teacher.model.get_input_embeddings().weight
        embedding += 1.0
        embedding[seven] *= 1.15  # of 64 dimensions: about 9 nats
    save_policy(teacher, tmp_path / "teacher")
    return lambda *more: loop("--teacher-id", str(tmp_path / "teacher"), "--no-preflight", *more)


@pytest.mark.learns
def test_a_teacher_alone_raises_a_reward_that_nobody_reads(taught):
    _, run = taught("--algorithm", "distill", "--steps", "10", "--learning-rate", "3e-2")
    steps = [line for line in metrics(run) if "reward/mean" in line]
    rewards, divergence = ([line[tag] for line in steps] for tag in ("reward/mean", "teacher/kl"))
    assert rewards[0] < 0.1
    assert sum(rewards[-5:]) / 5 > 0.4, rewards
    assert divergence[-1] < divergence[0] / 2
    assert all(0 <= line["teacher/preferred_frac"] <= 1 for line in steps)


FLAGS = ["--steps", "3", "--save-every", "1", "--no-eval-first", "--minibatches-per-pass", "2"]
TEACHERS = {"another model": ["--algorithm", "distill"], "the policy": ["--teacher-prompt", "{prompt} 7 7"]}


@pytest.mark.parametrize("kind", TEACHERS)
def test_a_killed_run_ends_as_one_that_was_never_stopped(kind, taught, loop, tmp_path, monkeypatch):
    start = taught if kind == "another model" else loop
    flags = [*FLAGS, *TEACHERS[kind], "--no-preflight"]
    start(*flags, "--run-name", "whole")
    with killed_at(train, "update_policy", 2):
        start(*flags, "--run-name", "killed")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", str(tmp_path / "runs" / "killed")]) == 0
    last = "step_000003/model.safetensors"
    whole, killed = (load_file(tmp_path / "ckpt" / name / last) for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    begun = load_file(tmp_path / "model" / "model.safetensors")
    assert any(not torch.equal(whole[name], begun[name]) for name in whole)
