"""Make a language model better at a task.

    python train.py                                           the default task, on any machine
    python train.py --task hanoi --steps 200
    python train.py --model-id Qwen/Qwen3-0.6B                a model of the hub or of a local folder
    python train.py --resume latest                           continue where it stopped

The algorithm is in minrl/train.py.
"""

from minrl.utils.cli import before_imports, parse_trainer, run_main

if __name__ == "__main__":
    before_imports(parse_trainer)

    from minrl.train import main

    run_main(main)
