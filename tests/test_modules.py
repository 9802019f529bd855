"""Modules that compute the same in another way: products, RMS norms, and linear layers that keep no cast weights."""

import copy

import pytest
import torch
from torch import nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from minrl.models import cpu
from minrl.models.modules import Float32Linear, Float32Norm, recast_linears, speed_up

WIDTH = 12


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


@pytest.mark.parametrize("shape", [(5, WIDTH), (1, 7, 3, WIDTH)])
def test_a_norm_and_its_gradients_are_its_own_in_another_precision_to_the_bit(shape):
    own = Qwen3RMSNorm(WIDTH, eps=0.3)
    own.weight.data = torch.linspace(-1.5, 2.0, WIDTH)
    fast = sped_up(own)
    assert isinstance(fast, Float32Norm)
    contiguous = torch.randn(2, *shape, generator=torch.Generator().manual_seed(3))
    apart = torch.randn(2, *shape, 2, generator=torch.Generator().manual_seed(4)).select(-1, 0)
    for x, grad in (contiguous, apart):
        torch.testing.assert_close(results(fast, x, grad), results(own, x, grad), atol=1e-5, rtol=1e-5)
    x = contiguous[0].bfloat16()
    assert torch.equal(fast(x), own(x)) and torch.equal(fast.bfloat16()(x), own.bfloat16()(x))


def test_a_linear_layer_and_its_gradients_are_its_own(onednn):
    torch.manual_seed(7)
    own = nn.Linear(WIDTH, 7)
    fast = sped_up(own)
    assert type(fast) is Float32Linear
    x, grad = torch.randn(2, 5, WIDTH), torch.randn(2, 5, 7)
    torch.testing.assert_close(results(fast, x, grad), results(own, x, grad), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_in_onednns_order_gives_the_same_product(dtype, onednn):
    generator = torch.Generator().manual_seed(8)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in [(3, 100, 40), (70, 40), (70,)])
    made = cpu.few_rows_product(x, cpu.prepacked(weight.to(dtype)), bias.to(dtype))
    x, weight, bias = (each.to(dtype).double() for each in (x, weight, bias))
    close = {"atol": 1e-4, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 2**-8}  # its half digit
    torch.testing.assert_close(made.double(), x @ weight.T + bias, **close)
    assert made.dtype == dtype


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    device = torch.device("cuda")


def test_logits_of_a_gpu_in_bfloat16_are_sums_in_float32_that_are_not_rounded(monkeypatch):
    """What a CPU gives is rounded to 8 bits: by 0.0625 where logits are near 20."""
    generator = torch.Generator().manual_seed(8)
    x, weight, bias = (20 * torch.rand(*size, generator=generator) for size in [(6, 40), (70, 40), (70,)])
    x, weight, bias = x.bfloat16(), (weight / 400).bfloat16(), bias.bfloat16()
    exact = x.double() @ weight.double().T + bias.double()
    monkeypatch.setattr(torch, "mm", lambda left, right, out_dtype: left.to(out_dtype) @ right.to(out_dtype))
    made = cpu.wide_product(x.as_subclass(OnGpu), weight, bias)
    assert made.dtype == torch.float32 and (made - exact).abs().max() < 1e-5
    assert 0.05 < (cpu.wide_product(x, weight, bias) - exact).abs().max() < 0.3


@pytest.mark.parametrize("onednn", [False, True])
def test_products_summed_over_tokens(onednn, monkeypatch):
    if onednn and not cpu.onednn_available():
        pytest.skip("oneDNN is not the faster one here")
    monkeypatch.setattr(cpu, "onednn_available", lambda: onednn)
    for left, right in ((5, 9), (9, 5)):
        monkeypatch.setattr(cpu, "ADDED_NUMBERS", 2 * right)  # two rows at once
        x, y = torch.randn(31, 2 * left, generator=torch.Generator().manual_seed(0))[:, ::2], torch.rand(31, right)
        expected = (x.double().T @ y.double()).float()
        for rows in (x, x.contiguous()):
            torch.testing.assert_close(cpu.weight_gradient(rows, y), expected, atol=1e-4, rtol=1e-5)
        total = torch.ones(left, right)
        cpu.add_weight_gradient(total, x, y)
        torch.testing.assert_close(total, 1 + expected, atol=1e-4, rtol=1e-5)


def passed(layer, x):
    """The product under autocast, its gradients, and the storages that were kept for them."""
    kept = set()

    def keep(tensor):
        kept.add((tensor.untyped_storage().data_ptr(), tensor.dtype))
        return tensor

    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer(x)
    y.float().square().sum().backward()
    return y, [x.grad, *(weight.grad for weight in layer.parameters())], kept


def test_products_and_gradients_are_those_of_autocast_and_no_cast_is_kept():
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 40), torch.randn(2, 5, 24)
    weight, exact = (layer.weight.untyped_storage().data_ptr(), torch.float32), layer(x)
    expected, gradients, casts = passed(layer, x)
    layer.zero_grad()
    recast_linears(nn.ModuleList([layer]))
    made, own, kept = passed(layer, x)
    assert made.dtype == torch.bfloat16 and torch.equal(made, expected)
    assert {gradient.dtype for gradient in own} == {torch.float32}
    torch.testing.assert_close(own, gradients, rtol=2**-7, atol=2**-7)  # sums of other orders, rounded to 8 bits
    assert weight in kept - casts and sum(dtype == torch.bfloat16 for _, dtype in kept) == 1  # the input
    torch.testing.assert_close(layer(x), exact)  # without autocast nothing changes
    layer.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), expected)
