"""What an update and the embedded engine would ask of a card, on a card without numbers."""

import pytest
import torch
from card import DEVICE, card
from device_step import FEW, LONGEST, MANY, SETTINGS, Setting, attention_of, decoding_of, update_of, window

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 1024}
NORM = "minrl/optimizer.py"
"""Where the norm of the gradient is read, which says whether to take the step."""


@pytest.fixture(scope="module")
def there():
    with card() as one:
        yield one


def files(lines):
    return [line.rpartition(":")[0] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SETTINGS if "window" not in name])
def test_an_optimizer_step_waits_once_in_every_setting(there, name):
    check(there, SETTINGS[name], TINY, MANY // 4)


def check(there, setting, shape, micro_batch_tokens):
    record, parts = update_of(there, setting, shape, micro_batch_tokens, prompts=1)
    assert files(record.waits) == [NORM] * setting.algorithm.get("passes_per_step", 1)
    assert {dtype for _, dtype in record.products} == {"bfloat16"}
    assert attention_of(record) == "flash"
    return parts


@pytest.mark.slow
def test_an_update_waits_once_however_many_micro_batches_it_has(there):
    assert check(there, SETTINGS["gspo"], TINY, FEW) == 1
    assert check(there, SETTINGS["gspo"], TINY, MANY // 4) > 2


@pytest.mark.parametrize("tokens", [LONGEST, LONGEST - 1])
def test_flash_attention_takes_a_window_whether_it_hides_something_or_not(there, tokens):
    record, _ = update_of(there, Setting(model=window(tokens)), TINY, FEW, prompts=1)
    assert attention_of(record) == "flash"
    assert files(record.waits) == [NORM]


def test_the_embedded_engine_waits_once_for_each_token(there):
    short, long = (decoding_of(there, TINY, tokens).waits for tokens in (3, 7))
    assert len(long) - len(short) == 4
    assert files(long).count("minrl/engines/torch_engine.py") == 7 + 1  # the tokens, and which prompt each row has


def test_what_waits_is_seen(there):
    """Each of these waits for a card; nothing else here does."""
    x = torch.ones(3, 4, device=DEVICE)
    waits = there.record.waits
    for wait in (
        lambda: float(x.sum()),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: torch.zeros(4).to(DEVICE),
        lambda: torch.tensor([1, 2], device=DEVICE),
        lambda: torch.zeros(4).to(DEVICE, non_blocking=True),  # whose memory is not pinned
        lambda: torch.equal(x, x),
        lambda: x.copy_(torch.zeros(3, 4)),
    ):
        waits.clear()
        wait()
        assert len(waits) == 1
    waits.clear()
    torch.zeros(4).pin_memory().to(DEVICE, non_blocking=True)
    x.to("cpu", non_blocking=True)
    torch.where(x > 0, 1.0, x) * 2
    assert waits == []
