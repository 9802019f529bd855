"""Runs side by side: results, curves, cost and differences of their settings.

`runs` reads a run's folder, `tables` writes Markdown, `pictures` draws; `python -m minrl.report` puts them together.
"""
