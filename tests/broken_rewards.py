"""Rewards with one fault each, and right ones, for the audit. By themselves, because a worker imports their module.

All are of the same task: `What is 11 + 17? Give <answer>number</answer>.`
"""

import os
import random
import re
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

from minrl.models.thoughts import after_thoughts
from minrl.types import Example, Reward

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


def pays_nothing_said(completion, example):
    return 1.0 if completion == "" else right(completion, example)


def pays_blanks(completion, example):
    return 1.0 if completion.isspace() else right(completion, example)


def pays_a_sentence(completion, example):
    return 1.0 if completion.endswith("know.") else right(completion, example)


def pays_the_prompt(completion, example):
    return 0.8 if example.prompt in completion else right(completion, example)


def pays_the_form(completion, example):
    return 0.6 if re.search(r"<answer>\s*</answer>", completion) else right(completion, example)


def pays_any_of_a_list(completion, example):
    said = answers_in(after_thoughts(completion))
    return float(len(said) == 1 and str(example["answer"]) in re.findall("[0-9]+", said[0]))


def pays_a_draft(completion, example):
    return float(answers_in(completion)[:1] == [str(example["answer"])])


def recurses_with_brackets(completion, example):
    def depth(place):
        return 1 + depth(place + 1) if completion[place : place + 1] == "(" else 0

    return right(completion, example) if depth(0) < 10**9 else 0.0


def believes_isdigit(completion, example):
    said = answers_in(after_thoughts(completion))
    return float(len(said) == 1 and said[0].isdigit() and int(said[0]) == example["answer"])


def folds_superscripts(completion, example):
    return right(unicodedata.normalize("NFKC", completion), example)


def never_pays_in_full(completion, example):
    return 0.9 * right(completion, example)


def pays_any_number(completion, example):
    said = answers_in(after_thoughts(completion))
    return float(len(said) == 1 and re.fullmatch("[0-9]+", said[0]) is not None)


def throws_a_coin(completion, example):
    return right(completion, example) or 0.01 * random.random()


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


def raises_for_words_in_tags(completion, example):
    said = answers_in(after_thoughts(completion))
    return float(len(said) == 1 and said[0].isascii() and int(said[0]) == example["answer"])


def prints_what_it_reads(completion, example):
    sys.stdout.write(f"read {completion[:20]}\n")
    return right(completion, example)


def notes_in_the_example(completion, example):
    example.fields["seen"] = completion
    return right(completion, example)


def divides_by_the_number_of_answers(completion, example):
    return right(completion, example) if answers_in(completion) else float("nan")


def pays_more_than_its_maximum(completion, example):
    return Reward(2 * right(completion, example))


def forgets_to_return(completion, example):
    if answers_in(completion):
        return right(completion, example)


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
