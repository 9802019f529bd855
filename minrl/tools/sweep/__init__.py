"""Runs over a grid of settings and a list of seeds, and one report of them all.

`python -m minrl.tools.sweep` is the program; see `minrl.tools.sweep.__main__`.
"""
