"""A teacher: what each token is worth, who may teach, what it reads. test_resume.py resumes a run with one."""

import pytest
import torch
from gradients import CPU, fixed_rollouts, gradients, settings, tiny_policy

from minrl.dataflow import Example, Reward, UserError
from minrl.models.distributed import Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import as_policy
from minrl.run.teacher import TeacherPrompt, require_same_tokens, teacher_prompt
from minrl.tasks import Task
from minrl.tasks.task import split
from tests.parsed import sized


@pytest.fixture
def tiny():
    return tiny_policy(Processes(CPU))


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
    row = settings("distill", passes_per_step=1, importance_cap=0.0)
    config = row.with_settings(group_size=1, temperature=temperature)
    for token in range(rows):
        (step,), _ = gradients(tiny, [make_rollout(prompt, [token])], config)
        for name in total:
            total[name] += probability[token] * step[name]
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-2
    for name, gradient in expected.items():
        torch.testing.assert_close(total[name], gradient, atol=1e-6, rtol=0)


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
    for name, weight in tiny.model.named_parameters():
        torch.testing.assert_close(step[name], weight.grad, atol=1e-6, rtol=0)
    assert found["teacher/kl"] == pytest.approx(-float(preference.mean()), abs=1e-6)


def test_what_a_teacher_cannot_read_is_refused(tiny):
    examples = [Example(str(n), f"{n} {n}", {"answer": str(n)}) for n in range(8)]
    task = Task(split(examples, 0.5), lambda text, example: Reward(0.0), cheap=True)
    reads = teacher_prompt(tiny, sized(teacher_prompt="{prompt} {answer}", task="t"), task)
    assert reads.examples.keys() == {example.id for example in task.dataset.train}
    with pytest.raises(UserError, match=r"words that the model's tokenizer lacks \('Tell'"):
        teacher_prompt(tiny, sized(teacher_prompt="Tell {prompt}", task="t"), task)


def test_a_teacher_with_other_tokens_is_refused(tiny):
    tokenizer = word_tokenizer([*map(str, range(38)), "39", "38"])
    stranger = as_policy(small_qwen3(tokenizer, 16, 1, 2, 0), tokenizer, CPU, tiny.processes)
    with pytest.raises(UserError, match=r"other tokens than the policy, .* 2 of 45 differ, \['38'\] among them[^\n]*$"):
        require_same_tokens(tiny, stranger, "t")
