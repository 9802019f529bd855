"""Models x tasks -> one folder: completions, their rewards, figures with intervals, tables and pictures.

Three stages, each with one file of the folder as its result: generate (completions.jsonl), score (scores.parquet),
report (summary.json and what is drawn from it). Each goes on where it was stopped, and none is done twice.
"""
