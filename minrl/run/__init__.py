"""A run's folders, checkpoints, start model and preflight, and how one is resumed."""
