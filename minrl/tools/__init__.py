"""Programs around a run: an endpoint, a search for rewards that can be cheated, sweeps, verification."""
