"""Rewards: worker processes with deadlines, episodes, the judge, and the scoring of given completions."""
