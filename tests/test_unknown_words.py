"""Prompts with words that a tokenizer lacks are refused where these are many."""

import pytest

from minrl.dataflow import Example, UserError
from minrl.run.base_model import require_known_prompts, require_known_words
from minrl.tasks import Dataset, Task

KNOWN = [f"numbers {n} {m}" for n in range(9) for m in range(9)]  # 3 tokens each


def test_prompts_of_unknown_words_are_refused_in_either_split(policy):
    known, strange = ([Example(text, text, {}) for text in texts] for texts in (KNOWN, ["numbers eins zwei"]))
    for splits in ((strange, known), (known, strange)):
        with pytest.raises(UserError, match=r"66.67% of the tokens of the prompts of mine stand .*'eins', 'zw"):
            require_known_prompts(policy, "mine", Task(Dataset(*splits), lambda text, example: 0.0))


def test_one_in_a_hundred_may_be_unknown_and_a_tokenizer_of_bytes_lacks_no_word(policy):
    prompts = ["numbers 3 eins", *KNOWN[:33]]  # one of 3 * 34 = 102 tokens: 0.98 %
    require_known_words(policy, "the prompts", prompts)
    with pytest.raises(UserError, match=r"1.01% of .*; at most 1% may: choose a model"):
        require_known_words(policy, "the prompts", prompts[:-1])
    policy.tokenizer.unk_token = policy.tokenizer.eos_token  # as GPT-2's is named
    require_known_words(policy, "the prompts", ["eins zwei"])
