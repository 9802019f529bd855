"""Flash attention on a CUDA GPU against padded rows on it and the CPU.

python -m pytest tests/gpu -m gpu
"""

import pytest
import torch

from minrl.batch import pack
from minrl.models.attention import StreamAttention, takes_flash
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.scoring import score

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

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


def with_gradients(attend, inputs, window):
    inputs = [x.requires_grad_() for x in inputs]
    output = attend(*inputs, 0.1, window)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return [output, *torch.autograd.grad((output * weights).sum(), inputs)]


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("width", [32, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sequences_and_padded_rows_are_those_of_the_cpu(dtype, width, window, stream):
    generator, tokens = torch.Generator().manual_seed(0), len(stream.input_ids)
    exact = [torch.randn(1, h, tokens, width, generator=generator) for h in (HEADS, KV_HEADS, KV_HEADS)]
    half = [x.cuda().to(dtype) for x in exact]
    assert takes_flash(half[0][0].transpose(0, 1))
    expected = with_gradients(StreamAttention(stream.to(torch.device("cpu"))), [x.float().cpu() for x in half], window)
    for inputs, bound in ((half, 3e-2), ([x.detach().float() for x in half], 1e-3)):
        for new, old in zip(with_gradients(StreamAttention(stream), inputs, window), expected, strict=True):
            assert new.dtype == inputs[0].dtype
            torch.testing.assert_close(new.float().cpu() / old.abs().max(), old / old.abs().max(), atol=bound, rtol=0)


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
