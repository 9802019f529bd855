"""Models x tasks -> one folder: completions, their rewards, figures with intervals, tables and charts.

The stages are generate (completions.jsonl), score (scores.jsonl) and report (summary.json, summary.csv, summary.md,
charts). A stopped stage resumes where it was, and nothing is generated or scored twice.
"""
