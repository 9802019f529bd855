"""Attacks on a reward before anyone trains on it: what it pays for texts that earn nothing, and how it breaks."""
