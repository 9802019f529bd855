"""Models x tasks -> one folder: completions, their rewards, figures with intervals, tables and pictures.

There are three stages, each with its file: generate (completions.jsonl), score (scores.parquet), and report
(summary.json, tables and pictures). A stopped stage resumes where it was, and no stage is done twice.
"""
