"""Architectures with the real vLLM (tests/vllm_models.py has all), and what of the engine can be tried without it."""

import json
import math
import os
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    MixtralConfig,
    MixtralForCausalLM,
)

from minrl.config import EngineConfig, TrainerConfig
from minrl.dataflow import UserError
from minrl.engines import BATCH_INVARIANT, takes_vllm, vllm_sync
from minrl.engines import vllm as vllm_engine
from minrl.engines.vllm import PolicyClasses, refused
from minrl.engines.vllm_sync import (
    PROBE_TOKENS,
    Checkpoint,
    Compared,
    SyncError,
    find_engine_tensors,
    mismatched_tensors,
    policy_logprobs,
    probe_of,
    require_synced,
    spread_ids,
    unread,
)
from minrl.run import preflight
from tests.vllm_models import CHANGES, TABLE, TOLERANCE, compare_apart

REASON = vllm_engine.refusal("cpu", vllm_engine.installed_build())

FEW = ("mixtral", "phi", "gpt2", "granitemoehybrid")
"""Renamed experts, a head with a bias, columns for rows, recurrent layers."""


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(REASON is not None, reason=REASON or "")
@pytest.mark.parametrize("name", FEW)
def test_vllm_samples_with_the_policy_before_and_after_an_update(name):
    found = compare_apart(name)
    assert found.outcome == "right", found.reason
    assert found.gap <= TOLERANCE["float32"] and found.spread > 0.5


def test_what_vllm_starts_from_is_in_the_same_folder_for_the_same_model(policy, make_policy, tmp_path, monkeypatch):
    """Its path is part of the key by which vLLM finds what it compiled before. vLLM makes a multimodal processor."""
    monkeypatch.setattr(policy.model, "processor_files", {"preprocessor_config.json": b"{}"}, raising=False)
    folder = vllm_engine.shape_folder(tmp_path, policy, policy.model)
    assert (folder / "preprocessor_config.json").read_bytes() == b"{}"
    (folder / "config.json").unlink()  # as by what cleans up old files
    assert vllm_engine.shape_folder(tmp_path, policy, policy.model) == folder and (folder / "config.json").exists()
    plain = make_policy(1)
    other = vllm_engine.shape_folder(tmp_path, plain, plain.model)
    assert other != folder
    plain.model.config.rope_parameters = {"rope_type": "default", "rope_theta": 7.0}
    assert vllm_engine.shape_folder(tmp_path, plain, plain.model) not in (folder, other)
    assert len(list(tmp_path.iterdir())) == 3


def test_what_vllm_takes_of_a_card_when_it_wakes_is_counted_before_the_first_step(policy, monkeypatch):
    monkeypatch.setattr(type(policy), "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**20, 2**30))
    monkeypatch.setattr(preflight, "takes_vllm", lambda config, device: True)
    weights = 4 * sum(weight.numel() for weight in policy.model.parameters())
    for sleep, expected in (("kv", int(0.3 * 2**30) - weights), ("off", 0)):  # what never sleeps is not free already
        settings = EngineConfig(engine="vllm", engine_memory_frac=0.3, engine_sleep=sleep)
        assert preflight.setup_of(policy, replace(TrainerConfig(), engine=settings)).cache == expected


def test_batch_invariance_is_set_before_the_first_product_on_a_card(monkeypatch):
    monkeypatch.setattr(vllm_engine, "refusal", lambda device, build: None)
    for name in BATCH_INVARIANT:
        monkeypatch.setenv(name, "")
    assert takes_vllm(EngineConfig(engine="vllm"), "cuda") and not os.environ["CUBLASLT_WORKSPACE_SIZE"]
    assert takes_vllm(EngineConfig(engine="vllm", batch_invariant=True), "cuda")
    assert BATCH_INVARIANT.items() <= os.environ.items()


def test_each_architecture_is_right_or_refused_in_one_line():
    rows = json.loads(TABLE.read_text())
    assert rows.pop("vLLM")
    assert rows.keys() == CHANGES.keys()
    for name, cell in rows.items():
        assert cell in ("right", "right in bfloat16") or cell.startswith(("refused: ", "not made: ")), f"{name}: {cell}"
        assert "\n" not in cell


class Layer(nn.Linear):
    """A module of the policy's, whose class another library changes."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return super().forward(value)


class Compiled:
    def __call__(self, *args: object) -> object:
        raise AttributeError("do_not_compile")


def test_classes_that_vllm_changes_are_put_back_and_its_own_modules_keep_the_change():
    policy, engine_model = nn.Sequential(Layer(2, 2)), nn.Sequential(Layer(2, 2))
    expected, before = policy(torch.ones(2)), dict(vars(Layer))
    classes = PolicyClasses(policy)
    Layer.__bases__ = (*Layer.__bases__, Compiled)
    Layer.__call__, Layer.mark = Compiled.__call__, True
    with pytest.raises(AttributeError):
        policy(torch.ones(2))
    classes.restore(engine_model)
    assert torch.equal(policy(torch.ones(2)), expected)
    assert dict(vars(Layer)) == before and Layer.__bases__ == (nn.Linear,)
    with pytest.raises(AttributeError):
        engine_model(torch.ones(2))
    assert isinstance(engine_model[0], Layer) and engine_model[0].mark


def small_mixtral() -> MixtralForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    return MixtralForCausalLM(MixtralConfig(vocab_size=11, num_key_value_heads=1, num_local_experts=3, **sizes))


def test_the_engine_is_sent_what_a_checkpoint_holds(tmp_path):
    model = small_mixtral()
    model.save_pretrained(tmp_path)
    checkpoint = Checkpoint(model)
    sent = dict(checkpoint.as_saved(checkpoint.tensors()))
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert sent.keys() == set(file.keys())
        assert all(torch.equal(sent[name], file.get_tensor(name)) for name in sent)
    assert not any(name in sent for name in model.state_dict() if "experts" in name)  # of another form in memory


def test_of_a_multimodal_model_the_text_part_is_sent_as_a_model_of_text():
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "head_dim": 8}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    nested = Gemma3Config(text_config=text, vision_config={**vision, "image_size": 28, "patch_size": 14})
    model = Gemma3ForConditionalGeneration(nested)
    checkpoint = Checkpoint(model)
    sent = dict(checkpoint.as_saved(checkpoint.tensors()))
    alone = Gemma3ForCausalLM(model.config.text_config)
    assert type(checkpoint.shape) is Gemma3ForCausalLM
    assert sent.keys() == {name for name in alone.state_dict() if name != "lm_head.weight"}  # tied
    alone.load_state_dict(sent, strict=False)
    alone.tie_weights()
    ids = torch.tensor([[1, 2, 3, 4]])
    torch.testing.assert_close(alone.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


class Engine(nn.Module):
    """A decoder under another prefix, with a fused projection and rows where GPT-2 has columns."""

    def __init__(self) -> None:
        super().__init__()
        self.language_model = nn.ModuleDict({"model": nn.ModuleDict({"h": nn.ModuleList([nn.Module()])})})
        block = self.language_model["model"]["h"][0]
        block.attn = nn.Module()
        block.attn.c_attn = nn.Linear(16, 48)
        block.mlp = nn.Module()
        block.mlp.experts = nn.Module()
        block.mlp.experts.gate = nn.Linear(16, 4, bias=False)
        block.register_buffer("layer_scalar", torch.ones(1))


def test_tensors_are_found_under_other_names_and_shapes():
    model = Engine()
    block = model.language_model["model"]["h"][0]
    weights = {
        "transformer.h.0.attn.c_attn.weight": block.attn.c_attn.weight.detach().T.clone(),
        "transformer.h.0.attn.c_attn.bias": block.attn.c_attn.bias.detach().clone(),
        "transformer.h.0.mlp.gate.weight": block.mlp.experts.gate.weight.detach().clone(),
        "transformer.h.0.layer_scalar": torch.ones(1),
        "transformer.h.0.lost": torch.ones(1),
    }
    held = find_engine_tensors(model, weights, {"transformer.h.0.attn.c_attn.weight"})
    assert unread(held, weights) == ["transformer.h.0.lost"]
    assert mismatched_tensors(held, weights, torch.float32, 0)[0] == []
    for name in weights.keys() - {"transformer.h.0.lost"}:
        changed = weights[name].clone()
        changed[-1] += 1
        assert mismatched_tensors(held, {**weights, name: changed}, torch.float32, 0)[0] == [name]


def test_rows_in_another_order_are_the_probes_to_judge_and_other_values_are_not():
    model = nn.ModuleDict({"q_proj": nn.Linear(4, 6, bias=False)})
    weights = {"q_proj.weight": model["q_proj"].weight.detach()[torch.tensor([3, 1, 2, 0, 5, 4])]}
    held = find_engine_tensors(model, weights)
    assert mismatched_tensors(held, weights, torch.float32, 0) == ([], ["q_proj.weight"])
    weights["q_proj.weight"][0, 0] += 1e-6
    assert mismatched_tensors(held, weights, torch.float32, 0)[0] == ["q_proj.weight"]


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
    monkeypatch.setattr(type(policy.processes), "dtype", property(lambda self: dtype))
    monkeypatch.setattr(vllm_sync.logger, "warning", said.append)
    found = Compared(torch.tensor(gaps), wrong, 9, complete)
    if isinstance(expected, type):
        with pytest.raises(expected, match=f"{len(wrong)} of 9 weight tensors differ"):
            require_synced(policy, found, first, "the engine")
    else:
        require_synced(policy, found, first, "the engine")
    assert len(said) == (expected == "warning")


def test_the_probe_is_a_prompt_and_its_completion_from_the_start():
    assert probe_of([1, 2], [3, 4], 64) == [1, 2, 3, 4]
    assert probe_of([1, 2], [3, 4], 4) == [1, 2, 3]  # room for the token that the engine appends
    assert probe_of(range(900), [3], 4096) == list(range(512))
    assert probe_of([1], [], 64) == []  # nothing to compare


def test_experts_in_another_order_are_wrong():
    """Of a matrix rows in another order may be the loader's doing, of a layer's experts not: each has its router's."""
    weights = {"mlp.experts.gate_up_proj": torch.randn(4, 6, 8), "mlp.experts.down_proj": torch.randn(4, 8, 3)}
    experts = nn.Module()
    for name, weight in weights.items():
        experts.register_parameter(name.rpartition(".")[2], nn.Parameter(weight.clone()))
    model = nn.ModuleDict({"mlp": nn.ModuleDict({"experts": experts})})
    held = find_engine_tensors(model, weights)
    assert mismatched_tensors(held, weights, torch.float32, 0) == ([], [])
    experts.down_proj.data[[0, 1]] = experts.down_proj.data[[1, 0]]
    assert mismatched_tensors(held, weights, torch.float32, 0) == (["mlp.experts.down_proj"], [])


def test_whatever_vllm_raises_is_one_line_with_its_reason(policy):
    class Invalid(ValueError):
        def errors(self) -> list[dict[str, str]]:
            return [{"msg": "Value error, no such dtype\nmore"}]

    for error, reason in (
        (Invalid("1 validation error\n..."), "Value error, no such dtype"),
        (RuntimeError("first\nsecond"), "RuntimeError: first"),
        (AssertionError(), "AssertionError: raise error"),  # says nothing: the line that raised it does
    ):
        with (
            pytest.raises(UserError, match="cannot sample for Qwen3ForCausalLM on this cpu") as raised,
            refused(policy),
        ):
            raise error
        assert str(raised.value).endswith(f"{reason}; use --engine torch")
    with pytest.raises(UserError, match=r"^mine$"), refused(policy):
        raise UserError("mine")


@pytest.mark.parametrize(("window", "tokens"), [(None, PROBE_TOKENS), (100, 100 + PROBE_TOKENS)])
def test_the_first_probe_is_longer_than_the_window(policy, window, tokens):
    policy.model.config.sliding_window = window
    ids = spread_ids(policy)
    assert len(ids) == tokens and max(ids) < len(policy.tokenizer)
    logits = policy.model(input_ids=torch.tensor([ids])).logits[0].detach()
    expected = [float(row.log_softmax(-1)[token]) for row, token in zip(logits[:-1], ids[1:], strict=True)]
    torch.testing.assert_close(policy_logprobs(policy, ids).tolist(), expected[1 - PROBE_TOKENS :])
