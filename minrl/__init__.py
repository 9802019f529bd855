"""MinRL: reinforcement learning for language models, small enough to read in an evening."""
