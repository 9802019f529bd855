"""Runs side by side: what they reached, how they got there, what it cost and in which settings they differ.

`runs` reads a run's folder, `tables` writes Markdown, `pictures` draws; `python -m minrl.report` puts them together.
"""
