"""Step time and peak memory on one CUDA card against TRL 1.16 with vLLM in the same process.

    python benchmarks/gpu.py --trl        makes the model, then runs this

32 prompts x 8 completions of up to 512 tokens. Each side is a process of its own, one after the other, `--rounds`
times in turns: two would not fit the card. Random weights hardly ever end a completion by themselves; seconds are
compared per sampled token. Memory is everything that is taken on the card, looked at every 20 ms.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from gpu import PROMPT_WORDS, even_words, run_loop
from harness import Row, doing, save

from minrl.types import Example

PROMPTS, GROUP, TOKENS, STEPS = 32, 8, 512, 6


class Peak:
    """The most memory that was taken on the card while this was running."""

    def __init__(self) -> None:
        self.gib, self._ended = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            free, total = torch.cuda.mem_get_info()
            self.gib = max(self.gib, (total - free) / 2**30)


def ours(model: Path) -> list[tuple[float, float]]:
    """Seconds and sampled tokens of each step of `train.py`."""
    steps = run_loop(model, STEPS, False)
    return [(step["time/step_s"], step["speed/tokens_per_s"] * step["time/step_s"]) for step in steps]


def trl(model: Path) -> list[tuple[float, float]]:
    """The same of TRL's GRPOTrainer: its defaults, but for the batch and for vLLM in its process."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    steps: list[tuple[float, float]] = []
    sampled: list[int] = []
    words = AutoTokenizer.from_pretrained(model, padding_side="left", trust_remote_code=False)

    def reward(completions, completion_ids, **_):
        sampled.append(sum(map(len, completion_ids)))
        return [even_words(completion, Example("", "", {})).value for completion in completions]

    class Timed(TrainerCallback):
        """Seconds from the beginning to the end of each step."""

        def on_step_begin(self, *_, **__) -> None:
            torch.cuda.synchronize()
            self.started = time.perf_counter()

        def on_step_end(self, *_, **__) -> None:
            torch.cuda.synchronize()
            steps.append((time.perf_counter() - self.started, sampled[-1]))

    prompts = [" ".join(f"w{(i * 7919 + k * 104729) % 90}" for k in range(PROMPT_WORDS)) for i in range(1024)]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=GROUP,
            gradient_accumulation_steps=PROMPTS,
            num_generations=GROUP,
            max_completion_length=TOKENS,
            max_steps=STEPS,
            save_strategy="no",
            report_to="none",
            use_vllm=True,
            vllm_mode="colocate",
        )
        data = Dataset.from_list([{"prompt": prompt} for prompt in prompts])
        GRPOTrainer(str(model), reward, config, data, processing_class=words, callbacks=[Timed()]).train()
    return steps


SIDES = {"ours": ours, "trl": trl}


def main() -> None:
    """Run the sides in turns, or, called with --side, one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--side", choices=list(SIDES))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.side:
        with Peak() as peak:
            steps = SIDES[options.side](options.model)
        print("RESULT", json.dumps({"steps": steps[2:], "peak_gib": peak.gib}), flush=True)
        return
    seconds: list[float] = []
    memory: list[float] = []
    for number in range(options.rounds):
        found = {}
        for side in SIDES:
            doing(f"{side}, round {number + 1} of {options.rounds}")
            found[side] = run_side(side, options.model)
        per_token = {name: statistics.median(s / tokens for s, tokens in one["steps"]) for name, one in found.items()}
        seconds.append(per_token["ours"] / per_token["trl"])
        memory.append(found["ours"]["peak_gib"] / found["trl"]["peak_gib"])
    rows = [
        Row("whole GRPO step per token, 0.6B, one card", "TRL 1.16, vLLM colocated", 0.6, seconds),
        Row("peak memory, 0.6B, one card", "TRL 1.16, vLLM colocated", 0.7, memory),
    ]
    save("gpu_trl", rows)


def run_side(side: str, model: Path) -> dict:
    """One side in a process of its own."""
    command = [sys.executable, __file__, str(model), "--side", side]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    return json.loads(line.removeprefix("RESULT"))


if __name__ == "__main__":
    main()
