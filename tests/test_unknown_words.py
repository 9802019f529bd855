"""Words that a tokenizer lacks are said, and refused where they are many: in prompts and in demonstrations."""

import pytest

from minrl.dataflow import Example, Reward, UserError
from minrl.run.base_model import check_task_words, check_words, prompts_read, require_words
from minrl.tasks import Dataset, Task
from tests.conftest import CPU


def task_of(train, held_out, **more):
    examples = [[Example(text, text, {}) for text in texts] for texts in (train, held_out)]
    return Task(Dataset(*examples), lambda text, example: Reward(0.0), **more)


KNOWN = [f"numbers {n} {m}" for n in range(9) for m in range(9)]  # 3 tokens each


def test_prompts_of_unknown_words_are_refused_in_either_split(policy, said):
    strange = ["numbers eins zwei"]
    for split, task in {"training": task_of(strange, KNOWN), "held-out": task_of(KNOWN, strange)}.items():
        with pytest.raises(UserError, match=f"66.67% of the tokens of the {split} prompts of mine stand .*'eins', 'zw"):
            check_task_words(policy, "mine", task)
    check_task_words(policy, "mine", task_of(KNOWN[:40], KNOWN[40:]))
    assert not said


def test_up_to_one_in_a_hundred_is_reported_and_accepted(policy, said):
    read = prompts_read(policy, ["numbers 3 eins", *KNOWN[:33]])  # one of 3 * 34 = 102 tokens: 0.98 %
    check_words(policy, "the prompts", read)
    assert "0.98% of the tokens of the prompts stand for words" in said[0] and "('eins')" in said[0]
    with pytest.raises(UserError, match=r"1.01% of .*; at most 1% may: choose a model"):
        check_words(policy, "the prompts", read[:-1])
    policy.tokenizer.unk_token = policy.tokenizer.eos_token  # as GPT-2's is named: a tokenizer of bytes lacks no word
    check_words(policy, "the prompts", [([policy.tokenizer.eos_token_id], "")])


WORDS = ["numbers", *map(str, range(9)), "7"]


def test_demonstrations_beyond_the_vocabulary_are_refused():
    def task(said):
        return {"mine": task_of(KNOWN[:9], KNOWN[9:12], demonstrations=lambda example, rng: said)}

    require_words(WORDS, ["mine"], task("7"), CPU)
    with pytest.raises(UserError, match=r"of the demonstrations of mine stand for words .* lacks \('sieben'\)"):
        require_words(WORDS, ["mine"], task("sieben"), CPU)
    # A task that is only evaluated is read before the model is made.
    with pytest.raises(UserError, match="of the training prompts of other stand for words"):
        require_words(WORDS, ["mine"], {**task("7"), "other": task_of(["acht"], ["neun"])}, CPU)
