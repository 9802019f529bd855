"""Runs side by side: results, curves, cost and differences of their settings.

`runs` reads a run's folder, `seeds` groups runs, `tables` and `pictures` say and draw what is in them, `page` is HTML;
`listing` is the list of all runs. `python -m minrl report` puts them together.
"""
