"""95 % intervals of a mean over the samples of several examples."""

import math
from collections.abc import Sequence

import numpy as np

BOOTSTRAP_RESAMPLES = 2000
Z95 = 1.959963984540054


def interval(solved: np.ndarray, example_ids: Sequence[str]) -> tuple[float, float]:
    """95 % interval of the mean over the samples: Wilson's if every example has one sample, else a bootstrap over
    examples with all their samples.
    """
    groups: dict[str, list[float]] = {}
    for example_id, value in zip(example_ids, solved, strict=True):
        groups.setdefault(example_id, []).append(float(value))
    if len(groups) == len(solved):
        return wilson(float(solved.sum()), len(solved))
    counts = np.array([len(values) for values in groups.values()])
    return bootstrap(np.array([np.mean(values) for values in groups.values()]), counts)


def wilson(successes: int | float, n: int) -> tuple[float, float]:
    """Wilson's score interval at 95 % (Wilson 1927, doi:10.1080/01621459.1927.10502953).

    >>> [round(bound, 4) for bound in wilson(5.0, 10)]
    [0.2366, 0.7634]
    """
    p, z2 = successes / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(means: np.ndarray, counts: np.ndarray | None = None) -> tuple[float, float]:
    """Percentile interval at 95 % of the mean over the samples of all examples, by resampling the examples.

    If all examples agree, resampling has no variance; the result is then Wilson's interval over the examples.
    """
    if np.all(means == means[0]):
        return wilson(float(means.sum()), len(means))
    return percentiles(resampled(means, counts))


def resampled(means: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """The mean over the samples in each resample of the examples, drawn with a fixed seed. `counts` are the numbers of
    samples of the examples (None: equal).
    """
    drawn = np.random.default_rng(0).integers(0, len(means), size=(BOOTSTRAP_RESAMPLES, len(means)))
    if counts is None or np.all(counts == counts[0]):
        return means[drawn].mean(axis=1)
    return (means * counts)[drawn].sum(axis=1) / counts[drawn].sum(axis=1)


def percentiles(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
