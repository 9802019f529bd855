"""The whole loop on one CUDA GPU: time, memory and speed of each phase.

    python benchmarks/gpu.py                       a Qwen3-0.6B-shaped model with random weights, made here
    python benchmarks/gpu.py --tiny                a small model, on any machine: does the benchmark itself work

Nothing is downloaded. Prints medians over the steps after the first two: seconds of each phase, rollout tokens per
second, model FLOPs utilisation of the update, memory at the end of each phase, and the gap between the engine's
log-probabilities and the policy's. `tests/gpu` measures the sync by itself.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from minrl.__main__ import main as program
from minrl.dataflow import Example, Reward
from minrl.models.loading import save_model, small_qwen3, word_tokenizer
from minrl.tasks import TASK_DEFINITIONS, Task
from minrl.tasks.task import split

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "4090": 165.0}
"""Dense bfloat16 peak by card (vendors' data sheets)."""

PROMPT_WORDS = 64


def even_words(completion: str, example: Example) -> Reward:
    """The share of words with an even number: any model's groups differ in it, so every step has a gradient."""
    numbers = [int(word[1:]) for word in completion.split() if word[:1] == "w" and word[1:].isdigit()]
    return Reward(sum(number % 2 == 0 for number in numbers) / max(1, len(numbers)))


def even_words_task() -> Task:
    """Prompts of random words."""
    prompts = [" ".join(f"w{(i * 7919 + k * 104729) % 90}" for k in range(PROMPT_WORDS)) for i in range(1024)]
    return Task(split([Example(prompt, prompt, {}) for prompt in prompts], 0.1), even_words, cheap=True)


def make_model(folder: Path, tiny: bool) -> None:
    """A random model and a tokenizer of as many words as it has tokens."""
    tokenizer = word_tokenizer([f"w{index}" for index in range(95 if tiny else 151_931)])
    if tiny:
        model = small_qwen3(tokenizer, 64, 2, 2, seed=0)
    else:
        torch.manual_seed(0)
        shape = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
        shape |= {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096}
        ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": tokenizer.pad_token_id}
        model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), tie_word_embeddings=True, **shape, **ends))
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    save_model(model, tokenizer, folder)


def run_loop(model: Path, steps: int, tiny: bool) -> list[dict[str, float]]:
    """Train with vLLM as `python train.py` does; the metrics of each step."""
    TASK_DEFINITIONS["even-words"] = even_words_task()
    batch = ["--prompts-per-step", "4" if tiny else "32", "--group-size", "4" if tiny else "8"]
    length = ["--max-tokens", "16" if tiny else "512"]
    evaluation = ["--no-eval-first", "--eval-every", "0", "--eval-examples", "4", "--no-preflight", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        folders = ["--runs-dir", f"{folder}/runs", "--checkpoints-dir", f"{folder}/checkpoints"]
        arguments = ["--task", "even-words", "--model-id", str(model), "--engine", "vllm", "--steps", str(steps)]
        program(["train", *arguments, *batch, *length, *evaluation, *folders])
        (metrics,) = Path(folder).glob("runs/*/metrics.jsonl")
        return [line for line in map(json.loads, metrics.read_text().splitlines()) if "time/update_s" in line]


def report_loop(steps: list[dict[str, float]], parameters: int) -> None:
    """Medians over the steps after the first two, which compile and warm up."""
    late = steps[2:] or steps
    for tag in sorted({tag for step in late for tag in step}):
        if tag.startswith(("time/", "memory/", "system/", "speed/", "engine/")):
            print(f"{tag:32} {statistics.median(step[tag] for step in late if tag in step):12.5g}")
    update_s = statistics.median(step["time/update_s"] for step in late)
    flops = 6 * parameters * statistics.median(step["update/computed_tokens"] for step in late)
    peak = next((v for name, v in PEAK_TFLOPS.items() if name in _card()), None)
    share = f", {flops / update_s / peak / 1e12:.1%} of {peak:g}" if peak else ""
    print(f"update: {flops / update_s / 1e12:.2f} TFLOP/s (6 x parameters x computed tokens){share}")


def main() -> None:
    """Make the model and run the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        make_model(model, options.tiny)
        parameters = sum(path.stat().st_size for path in model.glob("*.safetensors")) // 4
        print(
            f"{_card()}, torch {torch.__version__}, {parameters / 1e6:.1f} million parameters, {options.steps} steps",
            flush=True,
        )
        report_loop(run_loop(model, options.steps, options.tiny), parameters)


def _card() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


if __name__ == "__main__":
    main()
