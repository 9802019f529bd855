"""Figures of what was sampled, and how certain they are."""
