"""Architectures with the real vLLM (tests/vllm_models.py has all), and what of the engine can be tried without it."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM

from minrl.dataflow import Completion, Request, UserError
from minrl.engines import vllm as vllm_engine
from minrl.engines import vllm_sync
from minrl.engines.vllm import vllm_errors
from minrl.engines.vllm_sync import (
    PROBE_TOKENS,
    SyncCheck,
    SyncError,
    as_saved,
    find_engine_tensors,
    first_probes,
    mismatched_tensors,
    policy_logprobs,
    probes_of,
    require_synced,
    tensors_of,
    unread,
)
from minrl.run import preflight
from tests.parsed import sized
from tests.vllm_models import CHANGES, TABLE, TOLERANCE, compare_apart

REASON = vllm_engine.refusal("cpu", vllm_engine.installed_build())

FEW = ("llama", "gemma2", "phi3")
"""Separate projections, norms of another kind and windows, fused projections."""


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(REASON is not None, reason=REASON or "")
@pytest.mark.parametrize("name", FEW)
def test_vllm_samples_with_the_policy_before_and_after_an_update(name):
    found = compare_apart(name)
    assert found.outcome == "right", found.reason
    assert found.gap <= TOLERANCE["float32"] and found.spread > 0.5


def test_what_vllm_starts_from_is_in_the_same_folder_for_the_same_model(policy, tmp_path, monkeypatch):
    """Its path is part of the key by which vLLM finds what it compiled before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = vllm_engine.shape_folder(policy)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [type(policy.model).__name__]
    assert vllm_engine.shape_folder(policy) == folder
    policy.model.config.rope_parameters = {"rope_type": "default", "rope_theta": 7.0}
    assert vllm_engine.shape_folder(policy) != folder
    policy.tokenizer.add_tokens(["new"])
    assert len({vllm_engine.shape_folder(policy) for _ in range(2)}) == 1
    assert len(list((tmp_path / "minrl" / "shapes").iterdir())) == 3


def test_what_vllm_takes_of_a_card_when_it_wakes_is_counted_before_the_first_step(policy, monkeypatch):
    monkeypatch.setattr(type(policy), "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**20, 2**30))
    monkeypatch.setattr(preflight, "takes_vllm", lambda config, device: True)
    weights = 4 * policy.num_weights
    for sleep, expected in ((True, int(0.3 * 2**30) - weights), (False, 0)):  # what never sleeps is not free already
        settings = sized(engine="vllm", engine_memory_frac=0.3, engine_sleep=sleep)
        assert preflight.returned_bytes(policy, settings) == expected


def test_each_architecture_is_right_or_refused_in_one_line():
    rows = json.loads(TABLE.read_text())
    assert rows.pop("vLLM")
    assert rows.keys() == CHANGES.keys()
    for name, cell in rows.items():
        assert cell in ("right", "right in bfloat16") or cell.startswith(("refused: ", "not made: ")), f"{name}: {cell}"
        assert "\n" not in cell


def small_mixtral() -> MixtralForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    return MixtralForCausalLM(MixtralConfig(vocab_size=11, num_key_value_heads=1, num_local_experts=3, **sizes))


def test_the_engine_is_sent_what_a_checkpoint_holds(tmp_path):
    model = small_mixtral()
    model.save_pretrained(tmp_path)
    sent = dict(as_saved(model, tensors_of(model)))
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert sent.keys() == set(file.keys())
        assert all(torch.equal(sent[name], file.get_tensor(name)) for name in sent)
    assert not any(name in sent for name in model.state_dict() if "experts" in name)  # of another form in memory


def test_tensors_are_found_by_name_alone_and_within_fused_ones():
    block = nn.ModuleDict({"qkv_proj": nn.Linear(4, 8), "o_proj": nn.Linear(4, 4, bias=False)})
    block.register_buffer("scalar", torch.tensor(1.0))
    model, weights = nn.ModuleDict({"layers": nn.ModuleList([block])}), {"layers.0.lost": torch.ones(1)}
    for name, rows in (("q_proj", slice(0, 4)), ("k_proj", slice(4, 6)), ("v_proj", slice(6, 8))):
        weights[f"layers.0.{name}.weight"] = block["qkv_proj"].weight.detach()[rows].clone()
        weights[f"layers.0.{name}.bias"] = block["qkv_proj"].bias.detach()[rows].clone()
    weights["layers.0.o_proj.weight"] = block["o_proj"].weight.detach().clone()
    weights["layers.0.scalar"] = torch.tensor(1.0)
    held = find_engine_tensors(model, weights)
    assert unread(held, weights) == ["layers.0.lost"]
    assert mismatched_tensors(held, weights, torch.float32, 0) == []
    for name in weights.keys() - {"layers.0.lost"}:
        changed = weights[name] + 1e-6
        assert mismatched_tensors(held, {**weights, name: changed}, torch.float32, 0) == [name]


@pytest.mark.parametrize("backend", ["TRITON", "CPU"])
def test_experts_are_read_where_the_kernel_keeps_them_as_loaded(backend):
    weights = {"mlp.experts.gate_up_proj": torch.randn(4, 6, 8), "mlp.experts.down_proj": torch.randn(4, 8, 3)}
    experts = nn.Module()
    for name, weight in zip(("w13_weight", "w2_weight"), weights.values(), strict=True):
        experts.register_parameter(name, nn.Parameter(weight.clone()))
    experts.quant_method = SimpleNamespace(unquantized_backend=SimpleNamespace(name=backend))
    model = nn.ModuleDict({"mlp": nn.ModuleDict({"experts": nn.ModuleDict({"routed_experts": experts})})})
    held = find_engine_tensors(model, weights)
    assert unread(held, weights) == ([] if backend == "TRITON" else sorted(weights))
    experts.w2_weight.data[[0, 1]] = experts.w2_weight.data[[1, 0]]
    wrong = mismatched_tensors(held, weights, torch.float32, 0)
    assert wrong == (["mlp.experts.down_proj"] if backend == "TRITON" else [])


OUTLIER, APART, NAN = [4.0] + [0.05] * 31, [0.3] * 32, [math.nan] * 32


@pytest.mark.parametrize(
    ("dtype", "gaps", "wrong", "complete", "first", "expected"),
    [
        (torch.bfloat16, OUTLIER, [], False, False, None),  # a mean of 0.17: rounding moves some tokens by nats
        (torch.bfloat16, OUTLIER, ["a"], True, False, SyncError),
        (torch.bfloat16, APART, [], True, False, "warning"),
        (torch.bfloat16, APART, [], False, False, SyncError),  # what was not read may be wrong
        (torch.bfloat16, APART, [], True, True, UserError),  # vLLM computes another model
        (torch.bfloat16, NAN, [], True, False, SyncError),
        (torch.float32, [0.0] * 31 + [2e-4], [], True, False, SyncError),
        (torch.float32, [9e-5] * 32, [], False, False, None),
    ],
)
def test_a_check_judges_the_mean_gap_in_bfloat16_and_the_largest_in_float32(
    policy, monkeypatch, dtype, gaps, wrong, complete, first, expected
):
    said = []
    monkeypatch.setattr(policy.processes, "dtype", dtype)
    monkeypatch.setattr(vllm_sync.logger, "warning", said.append)
    found = SyncCheck(torch.tensor(gaps), wrong, 9, complete)
    if isinstance(expected, type):
        with pytest.raises(expected, match=f"{len(wrong)} of 9 weight tensors differ"):
            require_synced(policy, found, first, "the engine")
    else:
        require_synced(policy, found, first, "the engine")
    assert len(said) == (expected == "warning")


def test_the_probes_are_prompts_and_their_completions_from_the_start():
    requests = [Request([1, 2], 0, 2), Request([9], 0, 2), Request(list(range(900)), 0, 1)]
    said = [Completion([3, 4], [], "length"), Completion([], [], "length"), Completion([5], [], "length")]
    assert probes_of(requests, said, 4096) == [[1, 2, 3, 4], list(range(512))]
    assert probes_of(requests[:2], said[:2], 4) == [[1, 2, 3]]  # room for a further token; and nothing to compare


def test_whatever_vllm_raises_is_one_line_with_its_reason(policy):
    for error, reason in ((RuntimeError("first\nsecond"), "RuntimeError: first"), (AssertionError(), "AssertionError")):
        with (
            pytest.raises(UserError, match="cannot sample for Qwen3ForCausalLM on this cpu") as raised,
            vllm_errors(policy),
        ):
            raise error
        assert reason in str(raised.value) and str(raised.value).endswith("; use --engine torch")
        assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match=r"^mine$"), vllm_errors(policy):
        raise UserError("mine")


def test_the_first_probes_are_two_texts_and_the_policy_scores_their_last_tokens(policy):
    first, second = first_probes(policy)
    assert (
        len(first) == len(second) == PROBE_TOKENS and first != second and max(*first, *second) < len(policy.tokenizer)
    )
    for ids in (first, [*first, *second]):
        logits = policy.model(input_ids=torch.tensor([ids])).logits[0].detach()
        expected = [float(row.log_softmax(-1)[token]) for row, token in zip(logits[:-1], ids[1:], strict=True)]
        torch.testing.assert_close(policy_logprobs(policy, ids).tolist(), expected[1 - PROBE_TOKENS :])
    assert policy_logprobs(policy, second).shape == (PROBE_TOKENS - 1,)


def test_a_second_text_is_probed_where_no_weight_is_wrong_and_the_gap_is_large():
    found = {(gap, bool(wrong)): SyncCheck(torch.tensor([gap]), wrong, 9).decides(torch.bfloat16) for gap, wrong in (
        (0.1, []), (0.3, []), (0.3, ["a"]), (math.nan, [])
    )}  # fmt: skip
    assert list(found.values()) == [True, False, True, False]
