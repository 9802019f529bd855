"""Runs over a grid of settings and a list of seeds, and one report of them all.

`python -m minrl.sweep` is the program; see `minrl.sweep.__main__`.
"""
