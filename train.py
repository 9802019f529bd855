"""Make a language model better at a task.

    python train.py                                           the default task, on any machine
    python train.py --task hanoi --steps 200
    python train.py --model-id Qwen/Qwen3-0.6B                a model of the hub or of a local folder
    python train.py --resume latest                           continue where it stopped

The same as `minrl train`. The algorithm is in minrl/trainer.py.
"""

from minrl.__main__ import console

if __name__ == "__main__":
    console("train")
