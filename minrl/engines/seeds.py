"""Hashes of seeds: every bit of the result depends on every bit of the seed."""

import numpy as np


def mix(z: np.ndarray) -> np.ndarray:
    """The finalizer mix64variant13 of SplitMix64 (Steele, Lea and Flood, doi:10.1145/2714064.2660195)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def mix_seed(seed: int) -> int:
    """63 bits for torch's generator on a CPU, which reads the low 32 only."""
    return int(mix(np.array([seed], dtype=np.uint64))[0]) & (2**63 - 1)
