"""Linear layers under autocast that keep their weight, and no cast of it, for the backward pass."""

import pytest
import torch
from torch import nn

from minrl.models.modules import Float32Linear, RecastLinear, recast_linears


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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.Linear, Float32Linear])
def test_products_and_gradients_are_those_of_autocast_and_no_cast_is_kept(kind, bias):
    torch.manual_seed(0)
    layer = kind(24, 40, bias=bias)
    x = torch.randn(2, 5, 24)
    expected, gradients, casts = passed(layer, x)
    assert (layer.weight.untyped_storage().data_ptr(), torch.float32) not in casts
    layer.zero_grad()
    recast_linears(nn.ModuleList([layer]))
    assert type(layer) is RecastLinear
    made, own, kept = passed(layer, x)
    assert made.dtype == expected.dtype == torch.bfloat16 and torch.equal(made, expected)
    for mine, theirs in zip(own, gradients, strict=True):
        assert mine.dtype == theirs.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, rtol=2**-7, atol=2**-7)  # sums of other orders, rounded to 8 bits
    assert (layer.weight.untyped_storage().data_ptr(), torch.float32) in kept
    assert sum(dtype == torch.bfloat16 for _, dtype in kept) == 1  # the input


def test_without_autocast_and_without_a_gradient_nothing_changes():
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 3), torch.randn(4, 6)
    expected = layer(x)
    recast_linears(layer)
    torch.testing.assert_close(layer(x), expected)
    layer.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
