"""MinRL: reinforcement learning for language models, small enough to read in an evening."""

__version__ = "0.1.0"
