"""Flash attention of runs on a CUDA card against padded rows and the formula.

python -m pytest tests/gpu -m gpu
"""

import pytest
import torch

from minrl.batch import pack
from minrl.models import varlen_attention
from minrl.models.attention import CardAttention
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.padded_attention import PaddedAttention
from minrl.models.scoring import score

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]

HEADS, KV_HEADS = 8, 4
GROUPS = {
    "ragged": [(300, [1, 257, 40]), (7, [130, 2]), (64, [64]), (33, [1, 1])],
    "one query": [(5, [2]), (7, [2])],  # which the kernel turns into heads
    "nothing across": [(1, [1]), (1, [1])],
}


@pytest.fixture(params=GROUPS)
def stream(request, make_rollout):
    rollouts = []
    for group, (prompt, lengths) in enumerate(GROUPS[request.param]):
        ids = [1000 * group + n for n in range(prompt)]
        rollouts += [make_rollout(ids, [7] * length, group=group) for length in lengths]
    return pack(rollouts, range(len(rollouts))).to(torch.device("cuda"))


def with_gradients(attend, inputs):
    inputs = [x.requires_grad_() for x in inputs]
    output = attend(*inputs, 0.1, None)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return [output, *torch.autograd.grad((output * weights).sum(), inputs)]


@pytest.mark.parametrize("width", [32, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_runs_are_padded_rows_within_the_precision(dtype, width, stream):
    generator, tokens = torch.Generator().manual_seed(0), len(stream.input_ids)
    exact = [torch.randn(1, h, tokens, width, generator=generator).cuda() for h in (HEADS, KV_HEADS, KV_HEADS)]
    half = [x.to(dtype) for x in exact]
    assert varlen_attention.takes(half[0], None)
    expected = with_gradients(PaddedAttention(stream), [x.float() for x in half])
    for new, old in zip(with_gradients(CardAttention(stream), half), expected, strict=True):
        assert new.dtype == dtype
        torch.testing.assert_close(new.float() / old.abs().max(), old / old.abs().max(), atol=3e-2, rtol=0)


def test_autocast_decides_the_precision_of_what_normalization_left_in_float32(stream):
    shapes = [(1, h, len(stream.input_ids), 64) for h in (HEADS, KV_HEADS, KV_HEADS)]
    inputs = [torch.randn(shape, device="cuda") for shape in shapes]
    with torch.autocast("cuda", torch.bfloat16):
        assert CardAttention(stream)(*inputs, 0.1, None).dtype == torch.bfloat16
    assert CardAttention(stream)(*inputs, 0.1, None).dtype == torch.float32


def scored(device, stream, recompute, autocast):
    words = word_tokenizer([str(number) for number in range(40)])
    model = small_qwen3(words, 128, 3, 4, seed=0).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        logprobs, entropy = score(model, stream.to(torch.device(device)), 0.8, recompute)
    (logprobs.sum() + 0.1 * entropy.sum()).backward()
    return [logprobs, entropy, *(weight.grad for weight in model.parameters())]


@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_learns_on_a_card_what_it_learns_on_a_cpu(recompute, make_rollout):
    rollouts = [make_rollout(list(range(5, 45)), [7 + length % 30] * length) for length in (3, 40, 81)]
    stream = pack(rollouts, range(3))
    exact = scored("cpu", stream, False, autocast=False)
    for new, old in zip(scored("cuda", stream, recompute, autocast=True), exact, strict=True):
        size = old.abs().max()
        torch.testing.assert_close(new.float().cpu() / size, old / size, atol=5e-2, rtol=0)
