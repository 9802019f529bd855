"""Models x tasks -> one folder: completions with their rewards, figures with intervals, tables and charts.

A row names what it was made from. A stopped evaluation resumes where it was, and nothing is played or scored twice.
"""
