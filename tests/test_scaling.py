"""docs/scaling.md is what is calculated, and what is calculated is derived here by hand."""

import importlib
from dataclasses import replace

import pytest
from shapes import Work
from test_documents import ROOT, loaded

from minrl.models.memory import Setup, Weights
from tests.three_layers import SHAPE, WEIGHTS

SCALING = loaded(ROOT / "docs" / "scaling.py")
PREDICT = importlib.import_module("predict")
PROCESSES = importlib.import_module("processes")
HARDWARE = importlib.import_module("hardware")

SMALL = HARDWARE.Shape(**SHAPE, model_type="qwen3")
"""Three layers of 64 + 32 + 32 + 64 + 3 x 128 = 576 weights in matrices, as in test_memory.py."""
WORK = PREDICT.Assumed(prompts=2, group=3, prompt_tokens=10, tokens=4)


def test_the_page_is_written_from_the_calculation():
    assert SCALING.page() == SCALING.PAGE.read_text(), "run python docs/scaling.py"


def test_more_or_larger_cards_fit_no_less():
    for shape in (HARDWARE.PUBLISHED[name] for name in SCALING.SIZES):
        for adapted in (False, True):
            fit = [[SCALING.fits(shape, adapted, n, gb) != "-" for n in SCALING.COUNTS] for gb in SCALING.CARDS]
            assert all(row == sorted(row) for row in fit)
            assert all(list(column) == sorted(column) for column in zip(*fit, strict=True))


def test_what_fits_is_what_is_needed():
    """70.6B weights of 16 bytes are 1,129e9: 8 cards have less, 64 have 17.6e9 of them each."""
    large = HARDWARE.PUBLISHED["70B"]
    assert SCALING.fits(large, False, 8, 141) == "-"
    held = SCALING.need(large, False, 64, " sv", 8192)
    assert held.weights + held.gradients + held.moments == pytest.approx(16 * 70.55e9 / 64, rel=1e-3)
    assert SCALING.fits(HARDWARE.PUBLISHED["0.6B"], False, 64, 80) == "full"
    # 8.2B: 131e9 bytes in four parts are 33e9, and vLLM has 16e9 on each card, or in four parts too.
    assert SCALING.fits(HARDWARE.PUBLISHED["8B"], False, 4, 80) == "full s"
    assert SCALING.need(HARDWARE.PUBLISHED["8B"], False, 4, " st", 8192).engine == pytest.approx(8.19e9 / 2, rel=0.01)


def test_the_operations_of_an_update():
    """2 prompts of 10 tokens, computed once each, and 6 completions of 4 tokens behind them.

    Pairs of positions of a prompt with its group: 10^2 / 2, and three times 4 x 10 + 4^2 / 2; each 4 operations for
    every number of 3 layers' queries of 8.
    """
    forward = 2 * 3 * 576 * (20 + 24) + 4 * 2 * (50 + 3 * 48) * 24
    head = 2 * 80 * 24
    assert PREDICT.update_flops(SMALL, WORK, recompute=False) == 3 * forward + 3 * head
    assert PREDICT.update_flops(SMALL, WORK) == 4 * forward + 3 * head


def test_the_bytes_that_decoding_reads():
    """Two bytes of every weight in a matrix, and for each row 12 tokens' keys and values in 3 layers of 4 + 4."""
    assert PREDICT.decode_bytes(SMALL, 5, WORK) == 2 * (3 * 576 + 80) + 5 * 12 * 2 * 24


@pytest.mark.parametrize(
    ("sharding", "gather", "reduce", "between"),
    [
        ("none", 0, 2 * 7552 * 3 / 4, 2 * 7552 * 3 / 4),
        # Two gathers of the layers, one of the rest and a sum, for each of five micro-batches; a quarter is one's own.
        ("full", 5 * 14_752 * 3 / 4, 5 * 7552 * 3 / 4, 5 * (14_752 + 7552) * 3 / 4),
        # The same within a pair of cards; then each half is summed with the other node's.
        ("hybrid", 5 * 14_752 / 2, 5 * (7552 / 2 + 7552 / 2), 5 * 7552 / 2),
    ],
)
def test_the_bytes_that_four_cards_on_two_nodes_send(sharding, gather, reduce, between):
    """4 x 1,888 = 7,552 bytes of weights, of which 4 x 88 are outside the layers: 14,752 are gathered for a pass."""
    setup = Setup(processes=4, nodes=2, sharding=sharding)
    sent = PREDICT.sent_by_each(WEIGHTS, setup, 5)
    assert sent == {"gather": gather, "reduce": reduce, "between nodes": between}
    if sharding != "hybrid":
        assert PREDICT.sent_by_each(WEIGHTS, replace(setup, nodes=1), 5)["between nodes"] == 0


def test_the_seconds_of_a_step_by_part(monkeypatch):
    """A card of 100 operations and 1,000 bytes a second, whose link takes 50 bytes and the network 20, all reached."""
    monkeypatch.setitem(PREDICT.CARDS, "small", (100.0, 1e9, 1000.0, 50.0))
    whole = {"product_share": 1.0, "prefill_share": 1.0, "memory_share": 1.0, "link_share": 1.0, "network": 20.0}
    work = replace(WORK, **whole, token_ms=1000.0, micro_batch=30, node=2, reward_ms=500.0, cores=3)
    one = PREDICT.predict(SMALL, "small", 1, "none", work)
    assert one.seconds["rollout: prompts"] == 2 * 3 * 576 * 10 * 2 / 100
    position = 2 * (3 * 576 + 80) * 6 / 100  # more than the bytes of a position
    assert one.seconds["rollout: decoding"] == pytest.approx(4 * (position + 1))
    assert one.seconds["rewards"] == 6 * 0.5 / 3
    assert one.seconds["update: products"] == PREDICT.update_flops(SMALL, work) / 100
    assert one.seconds["update: gather and reduce"] == 0
    assert one.seconds["optimizer step"] == pytest.approx(28 * 1888 / 1000)
    assert one.seconds["sync"] == pytest.approx(6 * 1888 / 1000)
    assert one.total == pytest.approx(sum(one.seconds.values())) and one.fits

    # 44 tokens are two micro-batches on one card, and one of 22 on each of two, which fits the link.
    pair = PREDICT.predict(SMALL, "small", 2, "full", work)
    assert pair.seconds["update: gather and reduce"] == pytest.approx((14_752 + 7552) / 2 / 50)
    assert pair.seconds["sync"] == pytest.approx(6 * 1888 / 1000 + 7552 / 2 / 50)
    hidden = PREDICT.predict(SMALL, "small", 2, "full", replace(work, hidden=1.0))
    products = PREDICT.update_flops(SMALL, work) / 200
    assert hidden.seconds["update: gather and reduce"] == pytest.approx(max(0, (14_752 + 7552) / 2 / 50 - products))
    # Four cards are two nodes, which the network joins.
    four = PREDICT.predict(SMALL, "small", 4, "none", work)
    assert four.seconds["update: gather and reduce"] == pytest.approx(2 * 7552 * 3 / 4 / 20)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_two_processes_hold_and_send_what_is_calculated(sharding):
    """gloo has no scattered sum, and makes one that all have: twice the bytes."""
    case = PROCESSES.Case(2, sharding, 1, 512, "always", Work(size="1M", prompts=4, group=2, max_tokens=16))
    for rank in PROCESSES.launch(case):
        weights, setup = Weights(**rank["weights"]), Setup(processes=2, sharding=sharding)
        sent = PREDICT.sent_by_each(weights, setup, rank["passes"])
        least = sent["gather"] + sent["reduce"] * (2 if sharding == "full" else 1)
        assert least <= rank["turns"][0]["sent"] <= 1.1 * least
        assert rank["held"] == pytest.approx(12 * weights.total / setup.shards, rel=0.01)
        assert 0.7 <= rank["peak"] / rank["estimate"] <= 1.1
