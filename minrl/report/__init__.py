"""Runs side by side: results, curves, cost and differences of their settings; and the page of their rollouts.

`runs` reads folders of runs and groups seeds, `charts` draws, `page` is the report, `report` the command and the list
of all runs, `lines` and `rollouts` make the rollouts page.
"""
