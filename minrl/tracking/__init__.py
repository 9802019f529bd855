"""What a run records: curves, rollouts, times, evaluations, and its end."""
