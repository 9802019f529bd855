"""Supervised fine-tuning, expert iteration, and the filter that turns completions into rows for the former.

python -m minrl sft                fine-tune on rows of prompt and response
python -m minrl filter             keep the rows of a file that a task's reward finds correct
python -m minrl expert-iteration   sample, keep the correct, fine-tune; again
"""
