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
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3MLP, Gemma3RMSNorm
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from minrl.models import cpu
from minrl.models.modules import Float32Gated, Float32Norm, speed_up

ROOT = Path(__file__).parent.parent
WIDTH = 12


def norm(kind, *sizes, **settings):
    made = kind(*(sizes or (WIDTH,)), **settings)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(-1.5, 2.0, len(made.weight)))
    return made


def gated(kind, config, **settings):
    torch.manual_seed(6)
    return kind(config(hidden_size=WIDTH, intermediate_size=20, num_attention_heads=2, **settings)).requires_grad_(True)


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


TAKEN = {
    "Qwen3's norm": norm(Qwen3RMSNorm, eps=0.3),
    "Llama's norm": norm(LlamaRMSNorm, eps=0.3),
    "Qwen3's gated layer": gated(Qwen3MLP, Qwen3Config),
    "Llama's gated layer": gated(LlamaMLP, LlamaConfig),
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("shape", [(5, WIDTH), (1, 7, 3, WIDTH), (1, WIDTH)])
def test_a_module_and_its_gradients_are_its_own(name, shape, onednn):
    own, fast = TAKEN[name], sped_up(TAKEN[name])
    assert isinstance(fast, Float32Norm if "norm" in name else Float32Gated) and isinstance(fast, type(own))
    contiguous = torch.randn(2, *shape, generator=torch.Generator().manual_seed(3))
    apart = torch.randn(2, *shape, 2, generator=torch.Generator().manual_seed(4)).select(-1, 0)
    for x, grad in (contiguous, apart):
        torch.testing.assert_close(results(fast, x, grad), results(own, x, grad), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "frozen"), [("Qwen3's norm", 2), *(("Qwen3's gated layer", n) for n in (2, 3, 4))])
def test_a_frozen_weight_passes_the_gradient_on(name, frozen, onednn):
    own = copy.deepcopy(TAKEN[name])
    list(own.parameters())[frozen - 2].requires_grad_(False)
    x, grad = torch.randn(2, 4, WIDTH)
    made, expected = (results(module, x, grad) for module in (sped_up(own), own))
    assert made.pop(frozen) is None and expected.pop(frozen) is None
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-5)


def test_the_gradients_of_a_norm_are_those_of_its_formula_in_double_precision():
    fast = sped_up(norm(Qwen3RMSNorm, eps=1e-2))
    x, grad = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(5))
    double, weight = (tensor.detach().double().requires_grad_() for tensor in (x, fast.weight))
    (double / (double.square().mean(-1, keepdim=True) + 1e-2).sqrt() * weight).backward(grad.double())
    _, of_x, of_weight = results(fast, x, grad)
    torch.testing.assert_close(of_x.double(), double.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(of_weight.double(), weight.grad, atol=1e-5, rtol=1e-5)


OTHERS = {
    "adds 1 to the weight": norm(Gemma3RMSNorm),
    "takes a gate": norm(Qwen3NextRMSNormGated),
    "bfloat16": norm(Qwen3RMSNorm).bfloat16(),
    "not on a CPU": norm(Qwen3RMSNorm).to("meta"),
    "another norm": nn.LayerNorm(WIDTH),
    "its weight is not read": FalconMambaWeightlessRMSNorm(WIDTH),
    "GELU": gated(Gemma3MLP, Gemma3TextConfig),
    "ReLU": gated(Qwen3MLP, Qwen3Config, hidden_act="relu"),
    "biases": gated(LlamaMLP, LlamaConfig, mlp_bias=True),
    "gated in bfloat16": gated(Qwen3MLP, Qwen3Config).bfloat16(),
    "gated, not on a CPU": gated(Qwen3MLP, Qwen3Config).to("meta"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_module_that_computes_something_else_stays_as_it_is(name, onednn):
    assert type(sped_up(OTHERS[name])) is type(OTHERS[name])


def test_other_precisions_take_the_modules_own_way():
    own = norm(Qwen3RMSNorm)
    x = torch.randn(3, WIDTH).bfloat16()
    assert torch.equal(sped_up(own)(x), own(x))


def test_speeding_up_twice_is_once_and_a_norm_can_be_copied_and_pickled():
    fast = sped_up(norm(Qwen3RMSNorm))
    assert type(sped_up(fast)) is type(fast)
    x = torch.randn(3, WIDTH)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert type(other) is type(fast) and torch.equal(other(x), fast(x))


def test_a_gated_layer_keeps_two_tensors_of_its_width(onednn):
    layer, kept = sped_up(gated(Qwen3MLP, Qwen3Config)), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape), lambda _: None):
        layer(torch.randn(9, WIDTH))
    assert kept.count((9, 20)) == 2


class Limited(nn.Module):
    """A gated layer with limits, or with fewer numbers than it takes."""

    def __init__(self, limit, out=WIDTH):
        super().__init__()
        self.limit, self.down_proj = limit, nn.Linear(20, out, bias=False)
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, 20, bias=False) for _ in range(2))

    def forward(self, x):
        gate, up = nn.functional.silu(self.gate_proj(x)), self.up_proj(x)
        return self.down_proj(gate.clamp(max=self.limit) * up.clamp(-self.limit, self.limit))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("name", ["gelu", "gelu_pytorch_tanh", "relu", "silu"])
def test_an_activation_is_told_from_silu_whatever_the_size_of_the_weights(name, scale, onednn):
    layer = gated(Qwen3MLP, Qwen3Config, hidden_act=name)
    with torch.no_grad():
        torch._foreach_mul_(list(layer.parameters()), scale)
    assert isinstance(sped_up(layer), Float32Gated) == (name == "silu")


def test_a_gated_layer_of_which_a_probe_shows_nothing_or_something_else_stays_as_it_is(onednn):
    empty = gated(Qwen3MLP, Qwen3Config, hidden_act="gelu")
    nn.init.zeros_(empty.down_proj.weight)
    for layer in (Limited(16.0), Limited(1e9, out=8), Limited(1e9, out=1), empty):
        assert type(sped_up(layer)) is type(layer)
    assert isinstance(sped_up(Limited(1e9)), Float32Gated)


def test_hooks_of_the_parts_of_a_gated_layer_run(onednn):
    layer, seen = sped_up(gated(Qwen3MLP, Qwen3Config)), []
    part, x = layer.up_proj, torch.randn(3, WIDTH, requires_grad=True)
    for hook in (part.register_forward_hook, part.register_forward_pre_hook):
        hook(lambda *given: seen.append("forward"))
    for hook in (part.register_full_backward_hook, part.register_full_backward_pre_hook):
        handle = hook(lambda *given: seen.append("backward"))
        layer(x).sum().backward()
        handle.remove()
    assert seen == ["forward", "forward", "backward"] * 2


def test_a_gated_layer_with_adapters_or_in_another_precision_takes_the_modules_own_way(onednn):
    own = gated(Qwen3MLP, Qwen3Config)
    fast, x = sped_up(own), torch.randn(3, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(x), own(x))
    fast.up_proj = nn.Sequential(fast.up_proj, nn.Identity())  # as a wrapper with adapters
    torch.testing.assert_close(fast(x), own(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2,), (9, 1), (3, 100)])
def test_a_weight_in_onednns_order_gives_the_same_product(shape, dtype, onednn):
    generator = torch.Generator().manual_seed(8)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in [(*shape, 40), (70, 40), (70,)])
    made = cpu.few_rows_product(x, cpu.ordered(weight.to(dtype)), bias.to(dtype))
    x, weight, bias = (each.to(dtype).double() for each in (x, weight, bias))
    close = {"atol": 1e-4, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 2**-8}  # its half digit
    torch.testing.assert_close(made.double(), x @ weight.T + bias, **close)
    assert made.dtype == dtype


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


LENGTHS = """
import ctypes, sys, torch
from minrl.models.cpu import keep_freed_memory, product

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
    environment = {name: value for name, value in os.environ.items() if name not in cpu.KEPT_PRODUCTS}
    ended = subprocess.run([sys.executable, "-c", LENGTHS], cwd=ROOT, env=environment, capture_output=True, text=True)
    if ended.returncode == 3:
        pytest.skip("the C library does not say what is in use")
    assert float(ended.stdout) < 20, ended
