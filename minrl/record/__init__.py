"""What a run writes: metrics, curves, rollouts. And the session that evaluates, saves and ends it."""
