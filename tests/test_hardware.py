"""docs/hardware.md is what the estimate says, the shapes are the models', and a layer keeps what is estimated."""

from functools import partial

import pytest
import torch
from test_documents import ROOT, loaded
from transformers import AutoConfig, AutoModelForCausalLM

from minrl.batch import pack
from minrl.models.memory import least_activations, weights_of, with_adapters
from minrl.models.scoring import kept_bytes, sampled_rollout, score

HARDWARE = loaded(ROOT / "docs" / "hardware.py")
GIB = 2**30


def model_of(shape, **changes):
    settings = {**vars(shape), **changes}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))


def test_the_page_is_written_from_the_estimate():
    assert HARDWARE.page() == HARDWARE.PAGE.read_text(), "run python docs/hardware.py"


ALL = {**HARDWARE.MODELS, **HARDWARE.PUBLISHED}


@pytest.mark.parametrize("name", ALL)
def test_the_shapes_have_the_weights_of_the_models(name):
    shape = ALL[name]
    with torch.device("meta"):
        model = model_of(shape, num_hidden_layers=2)
    layers = [module for module in model.model.layers.modules() if isinstance(module, torch.nn.Linear)]
    of_two = weights_of(model, list(model.model.layers))
    assert (shape.weights.layer, shape.weights.outer) == (of_two.layer, of_two.outer)
    assert shape.weights.total == of_two.total + (shape.num_hidden_layers - 2) * of_two.layer
    adapters = sum(16 * (one.in_features + one.out_features) for one in layers)
    adapted = with_adapters(shape.weights, shape, 16, bfloat16=True)
    assert adapted.trained == shape.num_hidden_layers * adapters // 2


@pytest.mark.parametrize(("dtype", "itemsize"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_a_layer_keeps_what_is_estimated(dtype, itemsize):
    small = {"vocab_size": 50, "hidden_size": 128, "intermediate_size": 384, "head_dim": 32, "num_attention_heads": 4}
    shape = HARDWARE.Shape(**small, num_key_value_heads=2, tie_word_embeddings=True, model_type="qwen3")
    stream, kept = pack([sampled_rollout([0], [0] * 255)], [0]), []
    for layers in (1, 2):
        model = model_of(shape, num_hidden_layers=layers)
        with torch.autocast("cpu", dtype=dtype, enabled=itemsize == 2):
            kept.append(kept_bytes(partial(score, model, stream, 1.0)))
    weights = itemsize * sum(weight.numel() for weight in model.model.layers[0].parameters())
    inputs, both = (least_activations(model_of(shape, num_hidden_layers=n).config, 256, itemsize) for n in (1, 2))
    one_layer = (inputs - (both - inputs)) / 2  # what is left without the inputs, twice
    assert kept[1] - kept[0] - weights == pytest.approx(one_layer, rel=0.06)


def test_what_fits_a_card_fits_a_larger_one_and_less_thorough_training_takes_less():
    for shape in HARDWARE.MODELS.values():
        totals = [HARDWARE.need(shape, method, card=True, small=False).total for method in HARDWARE.METHODS]
        assert totals == sorted(totals, reverse=True)
        for sizes, card in ((HARDWARE.CARDS, True), (HARDWARE.LAPTOPS, False)):
            for method in HARDWARE.METHODS:
                fits = [HARDWARE.fits(shape, method, size, card, small=True) for size in sizes]
                assert fits == sorted(fits)
    # 7.6B weights of 4 bytes, as much for gradients, twice as much for moments, half for casts: over 127 GiB.
    assert not HARDWARE.fits(HARDWARE.MODELS["Qwen/Qwen2.5-7B"], "full", 127, card=True, small=True)
