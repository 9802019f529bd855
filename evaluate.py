"""Say how good models are at tasks, or score completions that somebody already has.

    python evaluate.py --models BASE countdown-grpo-seed0 --tasks countdown hanoi --samples 8 --output evaluations/mine
    python evaluate.py --checkpoint checkpoints/countdown-grpo-seed0 --task countdown --output result.json
    python evaluate.py --task countdown --completions mine.jsonl --output scored.jsonl

The same as `minrl evaluate`. The program is in minrl/evaluate/run.py.
"""

from minrl.__main__ import console

if __name__ == "__main__":
    console("evaluate")
