"""Modules that compute the same faster on a CPU: products summed over tokens, and RMS norms with their gradients."""

import copy

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from minrl.models import cpu
from minrl.models.modules import Float32Linear, Float32Norm, speed_up

WIDTH = 12


def norm(kind, *sizes, **settings):
    made = kind(*(sizes or (WIDTH,)), **settings)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(-1.5, 2.0, len(made.weight)))
    return made


def sped_up(module):
    model = nn.ModuleList([copy.deepcopy(module)])
    speed_up(model)
    return model[0]


@pytest.fixture
def onednn(monkeypatch):
    """Linear layers are oneDNN's, also where it is the slower one."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    for module in ("minrl.models.cpu", "minrl.models.modules"):
        monkeypatch.setattr(f"{module}.onednn_available", lambda: True)


def results(module, x, grad):
    """What it computes, and the gradients of input and weights."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = module(x)
    y.backward(grad)
    return [y.detach(), x.grad, *(weight.grad for weight in module.parameters())]


@pytest.mark.parametrize("kind", [Qwen3RMSNorm, LlamaRMSNorm])
@pytest.mark.parametrize("shape", [(5, WIDTH), (1, 7, 3, WIDTH)])
def test_a_norm_and_its_gradients_are_its_own(kind, shape):
    own = norm(kind, eps=0.3)
    fast = sped_up(own)
    assert isinstance(fast, Float32Norm)
    contiguous = torch.randn(2, *shape, generator=torch.Generator().manual_seed(3))
    apart = torch.randn(2, *shape, 2, generator=torch.Generator().manual_seed(4)).select(-1, 0)
    for x, grad in (contiguous, apart):
        torch.testing.assert_close(results(fast, x, grad), results(own, x, grad), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [Qwen3RMSNorm, LlamaRMSNorm])
def test_a_norm_in_another_precision_is_transformers_to_the_bit(kind):
    own = norm(kind, eps=0.3)
    fast = sped_up(own)
    x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(3)).bfloat16()
    assert torch.equal(fast(x), own(x)) and torch.equal(fast.bfloat16()(x), own.bfloat16()(x))


@pytest.mark.parametrize("own", [norm(Gemma3RMSNorm), nn.LayerNorm(WIDTH)])  # the former adds 1 to the weight
def test_a_norm_that_computes_something_else_stays_as_it_is(own):
    assert type(sped_up(own)) is type(own)


def test_a_linear_layer_and_its_gradients_are_its_own(onednn):
    torch.manual_seed(7)
    own = nn.Linear(WIDTH, 7)
    fast = sped_up(own)
    assert type(fast) is Float32Linear
    x, grad = torch.randn(2, 5, WIDTH), torch.randn(2, 5, 7)
    torch.testing.assert_close(results(fast, x, grad), results(own, x, grad), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2,), (3, 100)])
def test_a_weight_in_onednns_order_gives_the_same_product(shape, dtype, onednn):
    generator = torch.Generator().manual_seed(8)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in [(*shape, 40), (70, 40), (70,)])
    made = cpu.few_rows_product(x, cpu.ordered(weight.to(dtype)), bias.to(dtype))
    x, weight, bias = (each.to(dtype).double() for each in (x, weight, bias))
    close = {"atol": 1e-4, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 2**-8}  # its half digit
    torch.testing.assert_close(made.double(), x @ weight.T + bias, **close)
    assert made.dtype == dtype


@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize(("left", "right"), [(5, 9), (9, 5)])
def test_products_summed_over_tokens(left, right, onednn, monkeypatch):
    if onednn and not cpu.onednn_available():
        pytest.skip("oneDNN is not the faster one here")
    monkeypatch.setattr(cpu, "onednn_available", lambda: onednn)
    monkeypatch.setattr(cpu, "ADDED_NUMBERS", 2 * right)  # two rows at once
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(31, width, generator=generator) for width in (left, right))
    expected = (x.double().T @ y.double()).float()
    torch.testing.assert_close(cpu.summed_product(x, y), expected, atol=1e-4, rtol=1e-5)
    apart = torch.randn(31, 2 * left, generator=generator)[:, ::2]
    torch.testing.assert_close(cpu.summed_product(apart, y), apart.T @ y, atol=1e-4, rtol=1e-5)
    total = torch.ones(left, right)
    cpu.add_summed_product(total, x, y)
    torch.testing.assert_close(total, 1 + expected, atol=1e-4, rtol=1e-5)
