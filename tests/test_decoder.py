"""The decoder of our own: every shape that it takes is computed as transformers does, and no other is taken."""

import pytest
import torch
import torch.nn.functional as F
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GPT2Config

from minrl.config import LoraConfig
from minrl.engines import decoder
from minrl.engines.cached_decoder import CachedDecoder, RecomputingDecoder
from minrl.engines.decoder import LlamaDecoder, has_own_decoder, make_decoder
from minrl.engines.layer_parts import Norm
from minrl.engines.products import attend_by_products
from minrl.engines.shapes import SHAPES
from minrl.models import cpu
from minrl.models.lora import Adapters

SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 6
TYPES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
HEADS = {"head_dim": 16}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=16)
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}
LONG = {
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 28,
}
CONFIGS = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True, **rope("llama3", **LLAMA3)},
    "llama with dynamic rope": {"max_position_embeddings": 28, **rope("dynamic", factor=4.0)},
    "llama with yarn": YARN,
    "qwen2": {},
    "qwen2 sliding": {"use_sliding_window": True, **TYPES},
    "qwen3": HEADS,
    "qwen3 sliding": {**HEADS, "use_sliding_window": True, **TYPES},
    "mistral": {"sliding_window": WINDOW},
    "ministral": {**HEADS, **TYPES},
    "ministral3": {
        "sliding_window": None,
        **HEADS,
        **rope("yarn", factor=4.0, original_max_position_embeddings=8, llama_4_scaling_beta=0.3),
    },
    "mixtral": {"num_local_experts": 6, "sliding_window": WINDOW},
    "qwen3_moe": {**MOE, **HEADS, "use_sliding_window": True, "sliding_window": WINDOW, "norm_topk_prob": True},
    "qwen3_moe with dense layers": {**MOE, **HEADS, "mlp_only_layers": [0]},
    "qwen2_moe": {**MOE, "use_sliding_window": True, "shared_expert_intermediate_size": 40, **TYPES},
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 2},
    "flex_olmo": {"num_experts": 6, "num_experts_per_tok": 2},
    "phi3": {"sliding_window": WINDOW},
    "phi3 in part": {**rope("default", partial_rotary_factor=0.5), "sliding_window": None},
    "phi3 longrope": {**rope("longrope", **LONG), "original_max_position_embeddings": 28, "sliding_window": None},
    "smollm3": {"no_rope_layers": [1, 0]},
    "smollm3 sliding": {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": WINDOW},
    "starcoder2": {"sliding_window": WINDOW},
    "olmo": {},
    "olmo2": {},
    "olmo3": TYPES,
    "exaone4": TYPES,
    "exaone4 without windows": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    "gemma": HEADS,
    "gemma2": {**HEADS, **TYPES, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 20},
    "gemma3_text": {**HEADS, **TYPES, "query_pre_attn_scalar": 20},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
    },
    "glm": {"head_dim": 8, "attention_bias": True},
    "glm4": {"head_dim": 8, "attention_bias": True},
    "helium": {"head_dim": 8},
    "ernie4_5": {"head_dim": 8},
    "cohere": {"use_qk_norm": True},
    "cohere2": TYPES,
    "seed_oss": HEADS,
    "arcee": {},
    "hunyuan_v1_dense": HEADS,
    "gpt_oss": {**HEADS, **TYPES, "num_local_experts": 6, "num_experts_per_tok": 2, **YARN},
    "nanochat": {},
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_bias": True},
}
USUAL = (
    *("llama with biases", "qwen2 sliding", "ministral3", "phi3 in part", "starcoder2", "smollm3 sliding", "olmo3"),
    *("gemma2", "gemma3_text", "granite", "glm4", "cohere2", "nanochat", "lfm2", "gpt_oss", "qwen3_moe", "qwen2_moe"),
)
"""Each field of a shape is in one of them. Another config is slow only because of the module that it loads."""


def make_model(name, **more):
    kind, _, _ = name.partition(" ")
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**SMALL, **CONFIGS.get(name, {}), **more})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():  # every weight counts, and tokens differ in probability
        for path, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight), alpha=0.3)
            else:
                size = 2.0 if path.endswith("embed_tokens.weight") else 1.5 * weight.shape[-1] ** -0.5
                weight.copy_(torch.randn_like(weight) * size)
    return model


def logprobs_of(hidden, model):
    return (hidden.float() @ model.get_output_embeddings().weight.float().T).log_softmax(-1)


@torch.no_grad()
def alone(model, ids):
    """Log-probabilities of every token after each position of a sequence, by transformers' plain forward pass."""
    return logprobs_of(model.get_decoder()(torch.tensor([ids]), use_cache=False).last_hidden_state[0], model)


@torch.no_grad()
def decoded(model, made):
    """Rows as they are decoded: the sequence, the length of its prompt, and log-probabilities of every token after each
    position from the prompt's end on. Rows are repeated, reordered and dropped on the way.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 60, (count,), generator=generator).tolist() for count in (1, 5, 14)]
    rows = [(prompt, len(prompt), [one]) for prompt, one in zip(prompts, made.prefill(prompts, 13), strict=True)]
    done = []
    for chosen, steps in (([2, 0, 0, 1, 2], 4), ([3, 1, 4], 6), ([1], 3)):
        done += [row for index, row in enumerate(rows) if index not in chosen]
        rows = [rows[index] for index in chosen]
        made.select(torch.tensor(chosen))
        for _ in range(steps):
            tokens = torch.randint(3, 60, (len(rows),), generator=generator)
            hidden = made.step(tokens)
            rows = [
                ([*ids, token], start, [*states, state])
                for (ids, start, states), token, state in zip(rows, tokens.tolist(), hidden, strict=True)
            ]
    return [(ids, start, logprobs_of(torch.stack(states), model)) for ids, start, states in done + rows]


def test_every_shape_has_a_config_here():
    assert {name.partition(" ")[0] for name in CONFIGS} == SHAPES.keys()


@pytest.mark.parametrize("name", [n if n in USUAL else pytest.param(n, marks=pytest.mark.slow) for n in CONFIGS])
def test_every_shape_is_computed_as_transformers_does(name):
    model = make_model(name)
    made = make_decoder(model)
    assert isinstance(made, LlamaDecoder)
    for ids, start, logprobs in decoded(model, made):
        expected = alone(model, ids)[start - 1 :]
        assert expected.std() > 0.5  # otherwise any two numbers would agree
        torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)


SHARING = ("llama with biases", "qwen2 sliding", "gemma2", "gemma3_text", "ministral3", "cohere2", "lfm2", "gpt_oss")


@pytest.mark.parametrize("name", SHARING)
def test_rows_that_share_their_prompts_are_computed_as_alone(name, monkeypatch):
    monkeypatch.setattr(LlamaDecoder, "_is_worth_sharing", lambda self, rows: True)
    model = make_model(name)
    made = make_decoder(model)
    for ids, start, logprobs in decoded(model, made):
        torch.testing.assert_close(logprobs, alone(model, ids)[start - 1 :], atol=1e-4, rtol=0)
    assert made.prompts.prompts == len(made.prompts.prompt_of) == 1  # the others were released
    assert {layer.shape[1:4] for layer in made.prompts.layers if layer is not None} == {(1, 2, 14)}


@torch.no_grad()
def test_long_prompts_are_shared_where_they_have_about_as_many_rows(monkeypatch):
    made = make_decoder(make_model("llama"))
    alike, uneven = [0, 0, 1, 1], [0, 0, 0, 0, 0, 1]
    for rows, sharing in (([0, 0, 1], False), (alike, True), (uneven, True), ([*uneven, 2], False)):
        prompts = [[3, 4, 5], [6, 7], [8]][: max(rows) + 1]
        # Each row beyond the first of a prompt saves keys and values of 3 slots, 2 heads and 8 dimensions.
        saved = (len(rows) - len(prompts)) * 2 * 3 * 2 * 8
        for worth in (saved, saved + 1):
            monkeypatch.setattr(decoder, "WORTH_SHARING", worth)
            made.prefill(prompts, 5)
            made.select(torch.tensor(rows))
            assert (made.prompts is not None) == (sharing and worth == saved)
            assert {cache.shape[1:4] for cache in made.cache} == {(len(rows), 2, 5 if made.prompts else 8)}


@pytest.mark.parametrize("name", ["phi3 in part", "gemma2", "olmo3", "nanochat", "lfm2", "gpt_oss", "qwen2_moe"])
def test_adapters_are_merged_into_weights_of_every_layout(name):
    plain, model = make_model(name), make_model(name)
    for each in (plain, model):
        for weight in each.parameters():
            weight.data = weight.data.bfloat16().float()
    Adapters(model, LoraConfig(lora_rank=2, lora_alpha=4), "base", seed=0)
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16  # frozen weights are held so
    for path, weight in model.named_parameters():
        if "lora_B" in path:
            weight.data.normal_(std=0.2)
    for ids, start, logprobs in decoded(model, make_decoder(model)):
        torch.testing.assert_close(logprobs, alone(model, ids)[start - 1 :], atol=1e-4, rtol=0)
        assert (logprobs - alone(plain, ids)[start - 1 :]).abs().max() > 0.1


@pytest.mark.parametrize(
    "name", ["phi3 in part", "gemma3_text", "olmo3", "cohere2", "nanochat", "ministral3", "gpt_oss"]
)
def test_in_bfloat16_every_part_has_a_small_gap_to_the_policy(name):
    model = make_model(name)
    with torch.autocast("cpu", torch.bfloat16):
        made = make_decoder(model)
        assert made.layers[0].qkv.dtype == torch.bfloat16
        for ids, start, logprobs in decoded(model, made):
            expected = alone(model, ids)[start - 1 :]
            assert (logprobs - expected).abs().mean() < 0.05 * expected.std()


def test_in_bfloat16_the_router_chooses_as_in_float32():
    # Two experts whose shares differ by less than bfloat16 can say: 1 and 1 + 2^-9 of a logit's 4.
    model = make_model("qwen3_moe", num_experts_per_tok=1, num_experts=2)
    experts = make_decoder(model).layers[0].feed_forward
    x = torch.zeros(1, 1, 32)
    x[..., 0] = 1.0
    experts.router.data.zero_()
    experts.router.data[:, 0] = torch.tensor([4.0, 4.0 + 2**-7])
    assert experts.router.bfloat16()[0, 0] == experts.router.bfloat16()[1, 0]
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled), torch.no_grad():
            assert experts._route(x[0])[1].tolist() == [[1]]


REFUSED = {
    "a type that is not described": ("gpt_neox", {}),
    "clipped projections": ("olmo", {"clip_qkv": 3.0}),
    "clipped projections of a mixture": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 3.0}),
    "attention to both sides": ("gemma", {**HEADS, "use_bidirectional_attention": True}),
    "another kind of layer": ("qwen3", {**HEADS, "layer_types": ["chunked_attention", "full_attention"]}),
    "experts of odd widths": ("qwen3_moe", {**MOE, **HEADS, "moe_intermediate_size": 23}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_described_exactly_is_left_to_transformers(why):
    kind, fields = REFUSED[why]
    model = make_model(kind, **fields)
    assert not has_own_decoder(model)
    assert isinstance(make_decoder(model), CachedDecoder)


def test_experts_in_float64_are_left_to_transformers():
    assert not has_own_decoder(make_model("mixtral").double())
    assert has_own_decoder(make_model("mixtral").bfloat16())
    assert has_own_decoder(make_model("mistral").double())


@pytest.mark.parametrize("cap", [None, 0.7])
@pytest.mark.parametrize("masked", [False, True])
def test_plain_products_attend_as_torch_does(masked, cap):
    query, cache = torch.randn(3, 2, 4, 8, dtype=torch.float64), torch.randn(2, 3, 2, 9, 8, dtype=torch.float64)
    keys, values = cache[:, :, :, :6]  # as in use: the first slots of a longer cache
    mask = torch.ones(3, 1, 4, 6, dtype=torch.bool)
    mask[1, :, :, :3] = False
    scores = 0.3 * query @ keys.transpose(2, 3)
    scores = scores if cap is None else cap * (scores / cap).tanh()
    expected = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values if masked else scores.softmax(-1) @ values
    attended = attend_by_products(query, keys, values, mask if masked else None, 0.3, cap)
    torch.testing.assert_close(attended, expected, atol=1e-12, rtol=0)


def test_without_a_cache_a_row_that_has_ended_stays_inside_the_context():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=8)
    model = AutoModelForCausalLM.from_config(config).eval()
    recomputing = RecomputingDecoder(model)
    prompts, tokens = [[1] * 7, [2, 3]], [4, 5, 6, 7]  # the first has ended after one token
    recomputing.prefill(prompts, 5)
    with torch.no_grad():
        for token in tokens:
            hidden = recomputing.step(torch.tensor([token, token]))
        expected = model.transformer(torch.tensor([[2, 3, *tokens]])).last_hidden_state[0, -1]
    torch.testing.assert_close(hidden[1], expected, atol=1e-5, rtol=0)


def test_scores_of_keys_in_bfloat16_are_not_rounded():
    query, keys, values = (torch.randn(3, 2, length, 8, dtype=torch.bfloat16) for length in (1, 6, 6))
    expected = F.scaled_dot_product_attention(query.double(), keys.double(), values.double(), scale=5.0)
    attended = attend_by_products(query, keys, values, None, 5.0)
    torch.testing.assert_close(attended.double(), expected, atol=1e-5, rtol=0)  # rounded scores: 0.05


def test_under_autocast_products_alone_are_in_bfloat16(monkeypatch):
    products, multiply = [], decoder.few_rows_product

    def seen(x, weight, bias):
        products.append((torch.is_autocast_enabled("cpu"), weight.dtype))
        return multiply(x, weight, bias)

    monkeypatch.setattr(decoder, "few_rows_product", seen)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        made = make_decoder(make_model("llama"))
        states = made.prefill([[3, 4, 5]], 1), made.step(torch.tensor([6]))
    assert set(products) == {(False, torch.bfloat16)}
    assert [state.dtype for state in states] == [torch.float32] * 2
    assert [cache.dtype for cache in made.cache] == [torch.bfloat16] * len(made.layers)


ROUNDED = {"atol": 0.03, "rtol": 0.01}
"""Two roundings to 8 bits of numbers around 1."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_decoders_norms_are_torchs(dtype):
    x, weight, bias = torch.randn(4, 3, 16).to(dtype), torch.randn(16).to(dtype), torch.randn(16).to(dtype)
    device = torch.device("cpu")
    for rows in (x, x * 1e-3):  # in the latter the constant below the root is felt
        rms = Norm(weight, None, 1e-6, False, device)
        torch.testing.assert_close(rms(rows), F.rms_norm(rows, (16,), None, 1e-6) * weight)
        centred = Norm(weight, bias, 1e-5, True, device)
        torch.testing.assert_close(
            centred(rows),
            F.layer_norm(rows, (16,), weight, bias, 1e-5),
            atol=0.02 if dtype == torch.bfloat16 else 1e-6,
            rtol=0.02,
        )


@pytest.mark.parametrize(("name", "own"), [("phi3", {"qkv_proj", "gate_up_proj", "o_proj"}), ("llama", {"o_proj"})])
def test_large_weights_that_stand_alone_are_the_models_own(name, own, monkeypatch):
    model = make_model(name)
    for copied in (0, 2**20):
        monkeypatch.setattr(cpu, "COPIED", copied)
        monkeypatch.setattr(cpu, "onednn_available", lambda: True)
        layer, read = model.model.layers[0], LlamaDecoder(model).layers[0]
        read_weights = {id(read.qkv), id(read.out), id(read.feed_forward.into), id(read.feed_forward.down)}
        weights = {path.split(".")[-2]: id(weight) for path, weight in layer.named_parameters()}
        taken = {part for part, weight in weights.items() if weight in read_weights}
        assert taken == (set() if copied else {*own, "down_proj"})


@pytest.mark.parametrize("prompts", [[[3, 4, 5]], [[3, 4, 5], [6]]])
@torch.no_grad()
def test_a_token_that_the_cache_has_no_slot_for_is_refused(prompts):
    decoder = make_decoder(make_model("llama"))
    decoder.prefill(prompts, 1)
    tokens = torch.tensor([6] * len(prompts))
    decoder.step(tokens)
    with pytest.raises(AssertionError, match="no slot"):
        decoder.step(tokens)
