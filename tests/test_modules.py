"""Modules that compute the same faster on a CPU: products summed over tokens, and RMS norms with their gradients."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.models.falcon_mamba.modeling_falcon_mamba import FalconMambaWeightlessRMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from minrl.kernels import cpu
from minrl.kernels.modules import Float32Norm, speed_up

ROOT = Path(__file__).parent.parent
WIDTH = 12


def with_weights(norm):
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1.5, 2.0, len(norm.weight)))
    return norm


def sped_up(norm):
    model = nn.ModuleList([copy.deepcopy(norm)])
    speed_up(model)
    return model[0]


def results(norm, x, grad):
    """What it computes, and the gradients of input and weight."""
    norm.weight.grad, x = None, x.clone().requires_grad_()
    y = norm(x)
    y.backward(grad)
    return y.detach(), x.grad, norm.weight.grad


@pytest.mark.parametrize("kind", [Qwen3RMSNorm, LlamaRMSNorm])
@pytest.mark.parametrize("shape", [(5, WIDTH), (1, 7, 3, WIDTH), (1, WIDTH)])
def test_a_norm_and_its_gradients_are_the_modules_own(kind, shape):
    own = with_weights(kind(WIDTH, eps=0.3))
    fast = sped_up(own)
    assert isinstance(fast, Float32Norm) and isinstance(fast, kind)
    x, grad = torch.randn(2, *shape, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(results(fast, x, grad), results(own, x, grad), atol=1e-5, rtol=1e-5)
    apart = torch.randn(2, *shape, 2, generator=torch.Generator().manual_seed(4)).select(-1, 0)  # not contiguous
    torch.testing.assert_close(results(fast, *apart), results(own, *apart), atol=1e-5, rtol=1e-5)


def test_the_gradients_of_a_norm_are_those_of_its_formula_in_double_precision():
    fast = sped_up(with_weights(Qwen3RMSNorm(WIDTH, eps=1e-2)))
    x, grad = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(5))
    double, weight = (tensor.detach().double().requires_grad_() for tensor in (x, fast.weight))
    (double / (double.square().mean(-1, keepdim=True) + 1e-2).sqrt() * weight).backward(grad.double())
    _, of_x, of_weight = results(fast, x, grad)
    torch.testing.assert_close(of_x.double(), double.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(of_weight.double(), weight.grad, atol=1e-5, rtol=1e-5)


def test_a_norm_whose_weight_is_frozen_passes_the_gradient_on():
    own = with_weights(Qwen3RMSNorm(WIDTH)).requires_grad_(False)
    x, grad = torch.randn(2, 4, WIDTH)
    made = [results(norm, x, grad) for norm in (sped_up(own), own)]
    assert made[0][2] is None
    torch.testing.assert_close(made[0][:2], made[1][:2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "norm",
    [
        with_weights(Gemma3RMSNorm(WIDTH)),  # adds 1 to the weight
        with_weights(Qwen3NextRMSNormGated(WIDTH)),  # takes a gate
        with_weights(Qwen3RMSNorm(WIDTH)).bfloat16(),
        with_weights(Qwen3RMSNorm(WIDTH)).to("meta"),
        nn.LayerNorm(WIDTH),
        FalconMambaWeightlessRMSNorm(WIDTH),  # whose weight is not read
    ],
    ids=["one more", "gated", "bfloat16", "not on a CPU", "another norm", "weightless"],
)
def test_another_norm_stays_as_it_is(norm):
    assert type(sped_up(norm)) is type(norm)


def test_other_precisions_take_the_modules_own_way():
    own = with_weights(Qwen3RMSNorm(WIDTH))
    x = torch.randn(3, WIDTH).bfloat16()
    assert torch.equal(sped_up(own)(x), own(x))


def test_speeding_up_twice_is_once_and_a_norm_can_be_copied_and_pickled():
    fast = sped_up(with_weights(Qwen3RMSNorm(WIDTH)))
    assert type(sped_up(fast)) is type(fast)
    x = torch.randn(3, WIDTH)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert type(other) is type(fast) and torch.equal(other(x), fast(x))


@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize(("left", "right"), [(5, 9), (9, 5), (4, 4)])
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
    double = torch.ones(left, right, dtype=torch.float64)
    cpu.add_summed_product(double, x, y)
    torch.testing.assert_close(double, (1 + expected).double(), atol=1e-4, rtol=1e-5)


def test_few_compiled_products_are_kept_unless_one_says_how_many(monkeypatch):
    first, second = cpu.PRODUCT_CACHES
    monkeypatch.setenv(first, "7")
    monkeypatch.delenv(second, raising=False)
    cpu.keep_freed_memory()
    assert (os.environ[first], os.environ[second]) == ("7", str(cpu.KEPT_PRODUCTS))


LENGTHS = """
import ctypes, sys, torch
from minrl.kernels.cpu import keep_freed_memory, product

class Blocks(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

def used():
    blocks = mallinfo()
    return (blocks.uordblks + blocks.hblkhd) / 2**20

mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
if mallinfo is None:
    sys.exit(3)
mallinfo.restype = Blocks
torch.set_num_threads(1)
keep_freed_memory()
weight, sizes = torch.randn(576, 192), []
for length in range(1, 401):
    product(torch.randn(8 * length, 192), weight)
    sizes.append(used())
print(sizes[-1] - sizes[99])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_lengths():
    """300 further lengths of a stream: 150 MiB where a thousand products are kept."""
    environment = {name: value for name, value in os.environ.items() if name not in cpu.PRODUCT_CACHES}
    ended = subprocess.run([sys.executable, "-c", LENGTHS], cwd=ROOT, env=environment, capture_output=True, text=True)
    if ended.returncode == 3:
        pytest.skip("the C library does not say what is in use")
    assert float(ended.stdout) < 20, ended
