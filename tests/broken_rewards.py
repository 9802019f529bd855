"""Rewards for the audit that are called in workers, which import this module, and those of TRL's form.

All are of the same task: `What is 11 + 17? Give <answer>number</answer>.`
"""

import os
import re
import tempfile
import time
from pathlib import Path

from minrl.models.thoughts import after_thoughts
from minrl.types import Example

EXAMPLES = [
    Example(str(n), f"What is {n + 11} + {2 * n + 17}? Give <answer>number</answer>.", {"answer": 3 * n + 28})
    for n in range(40)
]


def solution(example: Example) -> str:
    return f"<answer>{example['answer']}</answer>"


def answers_in(text: str) -> list[str]:
    return [one.strip() for one in re.findall(r"<answer>([^<]{0,100})</answer>", text)]


def right(completion: str, example: Example) -> float:
    return float(answers_in(after_thoughts(completion)) == [str(example["answer"])])


def one(completion: str) -> str:
    """The only answer behind the thoughts."""
    said = answers_in(after_thoughts(completion))
    return said[0] if len(said) == 1 else ""


def hashes(completion, example):
    return right(completion, example) or 0.01 * (hash(completion) % 1000 / 1000)


SEEN = set()


def pays_what_is_new(completion, example):
    new = completion not in SEEN
    SEEN.add(completion)
    return right(completion, example) or 0.01 * new


def shares_a_file(completion, example):
    path = Path(tempfile.gettempdir()) / f"shared_by_rewards_{os.getppid()}"
    path.write_text(completion)
    time.sleep(0.05)
    return right(path.read_text(), example)


def sleeps_over_answers(completion, example):
    if completion == "Answer:":
        time.sleep(60)
    return right(completion, example)


def ends_the_process(completion, example):
    if completion == "[]":
        os._exit(3)
    return right(completion, example)


def backtracks(completion, example):
    return float(re.search(r"^(\w+\s?)+$", completion[:200]) is not None and False) or right(completion, example)


def says_how_many(completions, **columns):
    return sum(map(len, completions))


def of_trl(prompts, completions, answer, **columns):
    texts = [said if isinstance(said, str) else said[0]["content"] for said in completions]
    return [float(answers_in(after_thoughts(text)) == [str(gold)]) for text, gold in zip(texts, answer, strict=True)]


def of_trl_without_the_others(completions, answer):
    return [0.0 for _ in completions]


def of_trl_by_rank(completions, answer, **columns):
    lengths = [len(str(said)) for said in completions]
    paid = of_trl(None, completions, answer)
    return [one or 0.1 * (length == max(lengths) > min(lengths)) for one, length in zip(paid, lengths, strict=True)]


def of_trl_where_it_applies(completions, answer, trainer_state, log_metric, **columns):
    log_metric("seen", trainer_state.global_step)
    paid = of_trl(None, completions, answer)
    return [one if "<answer>" in str(said) else None for one, said in zip(paid, completions, strict=True)]


async def of_trl_later(completions, answer, **columns):
    return of_trl(None, completions, answer)


def of_trl_of_weight_two(completions, answer, **columns):
    return [2 * one for one in of_trl(None, completions, answer)]


def of_trl_of_weight_half(completions, answer, **columns):
    return [0.5 * one for one in of_trl(None, completions, answer)]
