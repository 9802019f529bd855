"""Seeds of 63 bits for an engine that reads 32 of them."""

import numpy as np


def mix_seed(seed: int) -> int:
    """63 bits of which the low 32 depend on all of the seed's: torch's generator on a CPU reads no others.

    The finalizer mix64variant13 of SplitMix64 (Steele, Lea and Flood, doi:10.1145/2714064.2660195).
    """
    with np.errstate(over="ignore"):
        z = np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int((z ^ (z >> np.uint64(31))) & np.uint64(2**63 - 1))
