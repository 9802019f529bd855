"""The rollouts page: one HTML file in which a run's rollouts are read."""
