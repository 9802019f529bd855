"""What several processes train is what one would, with replicas and with shards, to the last digits of float64."""

import inspect
import json
import re

import pytest
import several_updates
import torch
from crew import crew
from safetensors.torch import load_file
from torch.distributed.fsdp import FSDPModule

from minrl.dataflow import UserError
from minrl.models import sharding
from minrl.models.loading import save_model, small_qwen3, word_tokenizer

SETTINGS = {
    "plain": {},
    "one process teaches": {"silent": [0, 1, 2, 3, 4, 5, 6]},
    "nothing teaches": {"silent": list(range(8))},
    "several passes": {"micro_batch_tokens": 8, "algorithm": {"passes_per_step": 2, "minibatches_per_pass": 2}},
    "reference": {"algorithm": {"kl_coef": 0.1}},
    "entropy, recomputed": {"algorithm": {"entropy_coef": 0.1}, "recompute": "always"},
    "adapters": {"lora": {"lora_rank": 4}, "algorithm": {"kl_coef": 0.1}},
    "untied": {"model": "untied"},
}


@pytest.fixture(scope="module")
def folder(words, tmp_path_factory):
    """With a model whose head is tied to its embedding, and one whose head is not."""
    folder = tmp_path_factory.mktemp("sharding")
    tokenizer = word_tokenizer(words)
    save_model(small_qwen3(tokenizer, 64, 3, 2, seed=0), tokenizer, folder / "tied")
    untied = small_qwen3(tokenizer, 64, 3, 2, seed=1)
    untied.config.tie_word_embeddings = False
    untied.lm_head.weight = torch.nn.Parameter(0.9 * untied.lm_head.weight.detach())
    save_model(untied, tokenizer, folder / "untied")
    return folder


def played(folder, names, count, sharding, machines=1, **more):
    """What the settings lead to in so many processes: weights and moments, and what else was written, by name."""
    place = {name: folder / f"{number}-{count}-{sharding}.json" for number, name in enumerate(names)}
    cases = [
        {"sharding": sharding, "out": str(place[name]), **SETTINGS[name]}
        | {"model": str(folder / SETTINGS[name].get("model", "tied"))}
        | {key: str(path / str(number)) for key, path in more.items()}
        for number, name in enumerate(names)
    ]
    crew(count, several_updates.main, cases, machines=machines)
    return {
        name: (load_file(path.with_suffix(".safetensors")), json.loads(path.read_text()))
        for name, path in place.items()
    }


@pytest.fixture(scope="module")
def alone(folder):
    """All settings in one process."""
    return played(folder, list(SETTINGS), 1, "none")


def require_equal(alone, several):
    for name, (tensors, written) in several.items():
        expected, said = alone[name]
        assert tensors.keys() == expected.keys(), name
        for key, tensor in tensors.items():
            assert torch.allclose(tensor, expected[key], rtol=0, atol=1e-9), (name, key)
        assert written["said"] == said["said"], name
        for here, there in zip(written["scored"], said["scored"], strict=True):
            assert here == pytest.approx(there, abs=1e-9), name
        for here, there in zip(written["metrics"], said["metrics"], strict=True):
            assert here.keys() == there.keys()
            for tag in here.keys() - {"update/computed_tokens"}:
                assert here[tag] == pytest.approx(there[tag], rel=1e-6, abs=1e-9), (name, tag)


def held(written):
    """For each process the share of the weights that it holds, and the types that hold them."""
    for shards in written["shards"]:
        own, whole = (sum(one[place] for one in shards.values()) for place in (1, 2))
        yield own / whole, {one[0] for one in shards.values()}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "sharding", "machines"), [(3, "none", 1), (3, "full", 1), (4, "hybrid", 2)])
def test_several_processes_train_as_one(alone, folder, count, sharding, machines):
    several = played(folder, list(SETTINGS) if machines == 1 else ["plain", "untied"], count, sharding, machines)
    require_equal(alone, several)
    copies = {"none": count, "full": 1, "hybrid": machines}[sharding]
    for _, written in several.values():
        shares, types = zip(*held(written), strict=True)
        assert set.union(*types) == ({"DTensor"} if sharding != "none" else {"Parameter"})
        assert sum(shares) == pytest.approx(copies)
        assert max(shares) < copies / count + 0.03  # four rows are two, two and none in three processes


@pytest.mark.slow
def test_what_two_processes_saved_goes_on_in_one_and_in_three_with_the_same_gradients(folder, tmp_path):
    names, sharding = ["several passes", "untied"], "full"
    before = played(folder, names, 2, sharding, save_in=tmp_path)
    expected = played(folder, names, 2, sharding, resume=tmp_path)
    for count in (1, 3):
        require_equal(expected, played(folder, names, count, sharding, resume=tmp_path))
    for name, (tensors, written) in expected.items():
        key = "step:model.layers.0.mlp.up_proj.weight"
        assert float(tensors[key]) == 2 * float(before[name][0][key]) > 0  # the moments went on
        assert all(line["policy/grad_norm"] > 0 for line in written["metrics"])
        assert written["said"][0] == before[name][1]["said"][-1]


@pytest.mark.slow
def test_the_cases_teach_and_differ(alone):
    """Otherwise all that is compared above would be what was there before."""
    ends = {
        name: tensors["model.layers.0.mlp.up_proj.weight"] for name, (tensors, _) in alone.items() if name != "adapters"
    }
    for name, tensor in ends.items():
        others = [other for at, other in ends.items() if at not in (name, "plain")]
        assert all(not torch.equal(tensor, other) for other in others), name
    first = alone["plain"][1]
    assert first["said"][0] != first["said"][-1]
    assert alone["nothing teaches"][1]["metrics"][0]["policy/optimizer_steps"] == 0


def test_a_torch_without_a_method_of_fsdp_is_refused_in_one_line(monkeypatch):
    shard_source = inspect.getsource(sharding)
    called = set(re.findall(r"module\.((?:set_|un|re)\w+)\(", shard_source))
    assert len(called) >= 6 and all(hasattr(FSDPModule, name) for name in called)
    monkeypatch.delattr(FSDPModule, "set_reduce_scatter_unused_params")  # as in torch 2.11
    with pytest.raises(UserError, match=r"^--sharding needs torch 2.13 or newer"):
        sharding.shard(None, None, "full")
