"""Fast forms of what the model computes: attention over packed streams, the output head, recomputed activations."""
