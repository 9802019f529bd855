"""Runs over a grid of settings and a list of seeds, and one report of them all.

`minrl sweep` is the program; see `minrl.tools.sweep.sweep`.
"""
