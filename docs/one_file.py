"""GRPO in one file, to be read: sample, reward, compare, update. It imports torch and transformers alone.

    python train.py --steps 1                               # makes the small base model
    python docs/one_file.py checkpoints/base-countdown-*
    python docs/one_file.py HuggingFaceTB/SmolLM2-135M-Instruct --steps 2

The task is Countdown: reach a target with three numbers, each used once.
tests/test_one_file.py shows that its loss and its gradient are those of MinRL with --algorithm grpo.
"""

import argparse
import itertools
import random
import re
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

# The task: problems, and the reward of a completion


def problems(max_number: int = 9) -> tuple[list, list]:
    """All problems (numbers, target) that + and - solve, for training and held out. Problems with the same numbers are
    on the same side: one's solution must not give away another's.
    """
    sides: tuple[list, list] = ([], [])
    for numbers in itertools.combinations_with_replacement(range(1, max_number + 1), 3):
        orders, signs = set(itertools.permutations(numbers)), itertools.product((1, -1), repeat=2)
        targets = {a + s * b + t * c for (a, b, c), (s, t) in itertools.product(orders, signs)}
        held_out = random.Random(str(numbers)).random() < 0.2
        sides[held_out].extend((numbers, target) for target in sorted(targets) if target > 0)
    return sides


def question(numbers: tuple[int, ...], target: int) -> str:
    """What the model is asked."""
    return f"numbers {' '.join(map(str, numbers))} target {target}"


def reward(completion: str, numbers: tuple[int, ...], target: int) -> float:
    """1 if the answer uses each number once and reaches the target, 0.1 if it misses it, else 0."""
    answer = re.search(r"<answer>([\d+\-*/() ]{1,60})</answer>", completion)
    if answer is None or re.search(r"\*\*|//", answer[1]):  # what is left is plain arithmetic, which `eval` may read
        return 0.0
    if sorted(map(int, re.findall(r"\d+", answer[1]))) != sorted(numbers):
        return 0.0
    try:
        return 1.0 if abs(eval(answer[1]) - target) < 1e-9 else 0.1
    except (SyntaxError, TypeError, ZeroDivisionError):
        return 0.0


# Sampling


@dataclass
class Batch:
    """N sequences of L tokens. Prompts are padded on the left, so that all completions begin at the same place."""

    ids: Tensor  # (N, L)
    attended: Tensor  # (N, L), 0 for padding
    sampled: Tensor  # (N, L), 1 for what the model wrote, its end token included


@torch.no_grad()
def sample(model, tokenizer, prompts: list[str], max_tokens: int, temperature: float) -> Batch:
    """A completion of each prompt. Temperature 0 is greedy."""
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    shown = tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
    how = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    ids = model.generate(
        input_ids=shown["input_ids"],
        attention_mask=shown["attention_mask"],
        max_new_tokens=max_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        do_sample=temperature > 0,
        **how,
    )
    start = shown["input_ids"].shape[1]
    ended = (ids[:, start:] == tokenizer.eos_token_id).cumsum(1)
    wrote = (ended - (ids[:, start:] == tokenizer.eos_token_id).long() == 0).long()  # up to the first end token
    sampled = torch.cat([torch.zeros_like(shown["attention_mask"]), wrote], 1)
    return Batch(ids, torch.cat([shown["attention_mask"], wrote], 1), sampled)


def texts_of(tokenizer, batch: Batch) -> list[str]:
    """What the model wrote."""
    return [tokenizer.decode(ids[mask.bool()]) for ids, mask in zip(batch.ids, batch.sampled, strict=True)]


# The algorithm: group-relative advantages (arXiv:2402.03300, section 4.1.2) and the clipped surrogate (its equation 3)


def logprobs_of(model, batch: Batch, temperature: float) -> Tensor:
    """The log-probability of each token but the first, given those before it: (N, L - 1)."""
    positions = (batch.attended.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=batch.ids, attention_mask=batch.attended, position_ids=positions).logits[:, :-1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(2, batch.ids[:, 1:, None])[..., 0]


def advantages_of(rewards: Tensor) -> Tensor:
    """How much better each completion is than the others of its prompt. Rewards (prompts, group) -> (N,)."""
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)
    return ((rewards - mean) / (std + 1e-4)).flatten()


def grpo_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sampled: Tensor, clip: float = 0.2) -> Tensor:
    """The mean over completions of the mean over their tokens of -min(ratio A, clip(ratio) A)."""
    ratio = (logprobs - old_logprobs).exp()
    gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(1 - clip, 1 + clip) * advantages[:, None])
    per_completion = (gain * sampled).sum(1) / sampled.sum(1)
    return -per_completion.mean()


def update(
    model, optimizer, batch: Batch, advantages: Tensor, updates: int = 1, temperature: float = 1.0
) -> list[float]:
    """`updates` optimizer steps on the batch. Returns the loss before each."""
    sampled, losses, old = batch.sampled[:, 1:].to(advantages.dtype), [], None
    for _ in range(updates):
        logprobs = logprobs_of(model, batch, temperature)
        old = logprobs.detach() if old is None else old  # of the policy that sampled: in the first step the ratio is 1
        loss = grpo_loss(logprobs, old, advantages, sampled)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# The loop


def main() -> None:
    """Train, and measure the held-out problems before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or a name at the hub")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--prompts", type=int, default=16, help="prompts of a step")
    parser.add_argument("--group", type=int, default=8, help="completions of a prompt")
    parser.add_argument("--updates", type=int, default=1, help="optimizer steps on a step's completions")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    config = parser.parse_args()
    torch.manual_seed(config.seed)
    rng, (train, held_out) = random.Random(config.seed), problems()
    tokenizer = AutoTokenizer.from_pretrained(config.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)

    def score() -> float:
        asked = random.Random(0).sample(held_out, min(128, len(held_out)))
        batch = sample(model, tokenizer, [question(*one) for one in asked], config.max_tokens, temperature=0.0)
        solved = [reward(text, *one) == 1 for text, one in zip(texts_of(tokenizer, batch), asked, strict=True)]
        return sum(solved) / len(solved)

    print(f"held-out, greedy: {score():.1%}")
    for step in range(1, config.steps + 1):
        began = time.monotonic()
        asked = [one for one in rng.sample(train, config.prompts) for _ in range(config.group)]
        batch = sample(model, tokenizer, [question(*one) for one in asked], config.max_tokens, config.temperature)
        texts = texts_of(tokenizer, batch)
        rewards = torch.tensor([reward(text, *one) for text, one in zip(texts, asked, strict=True)])
        advantages = advantages_of(rewards.view(config.prompts, config.group))
        losses = update(model, optimizer, batch, advantages, config.updates, config.temperature)
        print(f"step {step}: reward {rewards.mean():.3f}, loss {losses[-1]:+.4f}, {time.monotonic() - began:.1f} s")
    print(f"held-out, greedy: {score():.1%}")


if __name__ == "__main__":
    main()
