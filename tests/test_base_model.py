"""The small base model: cached by what it is made from, warm, and ignorant of held-out problems."""

from dataclasses import replace
from threading import Thread

import pytest

from minrl.dataflow import UserError
from minrl.run.base_model import base_model_path, digest_of, make_base_model, require_demonstrations
from minrl.run.setup import load_policy
from minrl.tasks import Dataset, load_task
from minrl.tasks.hanoi import HanoiOptions
from tests.conftest import CPU
from tests.parsed import sized

SMALL = sized(base_steps=12, base_hidden_size=64, base_heads=2)


@pytest.fixture
def hanoi():
    return load_task("hanoi", {"hanoi": HanoiOptions(min_disks=2, max_disks=2)})


def make(folder, processes, task, config=SMALL, report=lambda *_: None):
    losses = []

    def progress(step, note):
        losses.append(float(note.split()[-1]))
        report(step)

    make_base_model(folder, config, task, list(task.vocabulary), processes, progress)
    return losses


@pytest.mark.learns
def test_demonstrations_are_learned_and_held_out_problems_are_not_shown(tmp_path, processes):
    task = load_task("hanoi", {"hanoi": HanoiOptions(min_disks=2, max_disks=2, peg_names=4)})
    shown = set()

    def watched(example, rng):
        shown.add(example.id)
        return task.demonstrations(example, rng)

    losses = make(tmp_path / "base", processes, replace(task, demonstrations=watched))
    # A vocabulary of about thirty words costs ln 30 = 3.4 nats by chance; which words can follow is learned at once.
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert shown and not shown & {example.id for example in task.dataset.held_out}


def test_the_same_recipe_makes_the_same_weights_and_another_one_others(tmp_path, processes, hanoi):
    for name, steps in (("a", 1), ("b", 1), ("c", 2)):
        make(tmp_path / name, processes, hanoi, replace(SMALL, base_steps=steps))
    first, same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert first == same != other
    policy = load_policy(str(tmp_path / "a"), CPU, processes)
    assert policy.model.config.head_dim == 32  # one that vLLM can run on a CPU
    assert policy.tokenizer.unk_token_id not in policy.encode_prompt(hanoi.dataset.train[0].prompt)


def test_a_model_that_another_process_makes_is_waited_for_and_taken(tmp_path, processes, hanoi):
    config, folder, found = replace(SMALL, base_steps=2), tmp_path / "checkpoints" / "base", []
    second = Thread(target=lambda: found.append(make(folder, processes, hanoi, config)))
    make(folder, processes, hanoi, config, lambda step: second.start() if step == 1 else None)
    second.join()
    assert found == [[]]  # not made twice
    assert [path.name for path in folder.parent.iterdir()] == ["base"]


def test_whatever_the_model_is_made_from_changes_its_place(hanoi):
    fewer = replace(hanoi, dataset=Dataset(hanoi.dataset.train[1:], hanoi.dataset.held_out))
    digest, *digests = (digest_of(one) for one in (hanoi, fewer, replace(hanoi, demonstrations=lambda *_: "1 A>B")))
    usual = [SMALL, "hanoi", [HanoiOptions()], ["a", "b"], "checkpoints", digest]
    others = [replace(SMALL, base_steps=21), "countdown", [HanoiOptions(min_disks=4)], ["b", "a"], "elsewhere"]
    changed = [[*usual[:place], other, *usual[place + 1 :]] for place, other in enumerate(others)]
    places = [base_model_path(*given) for given in (usual, *changed, *([*usual[:-1], one] for one in digests))]
    assert len(set(places)) == len(places) == 8
    usual[2] = [HanoiOptions(max_tokens=64)]  # which is of the run
    assert base_model_path(*usual) == places[0]


def test_a_task_without_demonstrations_or_words_is_refused(sevens):
    with pytest.raises(UserError, match=r"offers no .*demonstrations; name a model with --model-id"):
        require_demonstrations("sevens", sevens)
    require_demonstrations("countdown", load_task("countdown"))
