"""Thoughts in completions: which text a task receives, whatever the template opened."""

import pickle
from dataclasses import replace

import pytest

from minrl.models.chat import ChatTokenizer
from minrl.models.loading import word_tokenizer
from minrl.rollout import Plan, rollout
from minrl.tasks.task import Sampled, extract_answer
from minrl.tasks.thoughts import after_thoughts, heard


def test_special_tokens_that_a_tokenizer_has_of_its_own_reach_the_reward():
    tokenizer = word_tokenizer(["draft", "four"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "<answer>", "</answer>"]})
    chat = ChatTokenizer(tokenizer=tokenizer, chat_template_options={})
    ids = tokenizer("[THINK] draft [/THINK] <answer> four </answer>", add_special_tokens=False)["input_ids"]
    assert extract_answer(after_thoughts(chat.decode([*ids, *chat.stop_ids]))).strip() == "four"


def test_a_completion_behind_an_opened_thought_is_a_thought_until_it_closes_it():
    assert after_thoughts(heard("user <think>", "draft four")) == ""
    assert heard("user <think>", "draft </think> four") == "draft </think> four"
    for other in ("user", "<think> draft </think>", "<think> and so"):
        assert heard(other, "draft four") == "draft four"
    assert after_thoughts(heard("<think>\n", "#### 3 <think> no </think> #### 4")).strip() == "#### 4"


def test_a_reward_is_told_what_was_sampled_and_a_grader_whether_the_prompt_opened_a_thought(
    policy, engine, workers, sevens
):
    told, example = [], replace(sevens.dataset.train[0], prompt="numbers 7 <think>")
    task = replace(sevens, reward=lambda completion, _: told.append(completion) or 0.0)
    played = rollout(policy, engine, workers, task, [example], Plan(4, 8, 1.0, 0, "test", 0)).rollouts
    assert sorted(told) == sorted(policy.decode(one.ids[one.prompt_length :]) for one in played)
    assert [text.opened for text in told] == ["<think>"] * 4
    assert after_thoughts(pickle.loads(pickle.dumps(Sampled.of("#### 4", [7], 1, "<think>")))) == ""  # in a worker
    assert after_thoughts(Sampled.of("3? </think> #### 4", [7], 1, "<think>")) == " #### 4"


MODELS = {
    "Seed": ("<seed:think>", "</seed:think>"),
    "Magistral": ("[THINK]", "[/THINK]"),
    "gpt-oss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>\n"),
    "gpt-oss without its tokens": ("analysisWe need to be careful.", "assistantfinal\n"),
    "s1": ("<|im_start|>think\n", "\n<|im_start|>answer\n"),
}


@pytest.mark.parametrize("model", MODELS)
def test_thoughts_are_cut_as_models_write_them(model):
    opens, closes = MODELS[model]
    answer = after_thoughts(f"{opens} Perhaps #### 3{closes}#### 4")
    assert answer.endswith("#### 4") and "3" not in answer
    assert "4" not in after_thoughts(f"{opens} So #### 4")  # cut off while thinking


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *((f"#### 4{end}#### 5", "#### 4") for end in ("</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>")),
        *((f"{text}{mark} #### 5", text) for text in ("", "- ") for mark in ("<think>", "[THINK]")),
        ("return a[think] * x", "return a[think] * x"),
    ],
)
def test_an_open_thought_and_what_follows_the_end_of_the_turn_are_not_read(text, answer):
    assert after_thoughts(text) == answer
