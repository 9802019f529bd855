"""Hashes of seeds: every bit of the result depends on every bit of the seed."""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The step of SplitMix64 from one position of a completion to the next."""

FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = 2**64


def mix(z: np.ndarray) -> np.ndarray:
    """The finalizer mix64variant13 of SplitMix64 (Steele, Lea and Flood, doi:10.1145/2714064.2660195)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return z ^ (z >> np.uint64(31))


def mix_seed(seed: int) -> int:
    """63 bits for torch's generator on a CPU, which reads the low 32 only."""
    return int(mix(np.array([seed], dtype=np.uint64))[0]) & (2**63 - 1)


def seed_after(seed: int, tokens: int) -> int:
    """The seed with which a completion goes on after so many of its tokens, which then count as prompt: the embedded
    engine draws the same uniform numbers for the rest as with `seed` for the whole.

    >>> seed_after(7, 0), seed_after(seed_after(7, 2), 3) == seed_after(7, 5)
    (7, True)
    """
    mixed = int(mix(np.array([seed], dtype=np.uint64))[0])
    return _unmix((mixed + tokens * int(GOLDEN)) % WORD)


def _unmix(z: int) -> int:
    """The inverse of `mix`."""
    z ^= z >> 31 ^ z >> 62
    z = z * pow(SECOND, -1, WORD) % WORD
    z ^= z >> 27 ^ z >> 54
    z = z * pow(FIRST, -1, WORD) % WORD
    return z ^ z >> 30 ^ z >> 60
