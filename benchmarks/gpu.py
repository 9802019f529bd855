"""Does MinRL work on this CUDA GPU, and how fast: in at most fifteen minutes, as a table for docs/benchmarks.md.

    make gpu                                       all stages, with a Qwen3-0.6B-shaped model of random weights
    PYTHONPATH=. python benchmarks/gpu.py          the same in an environment that is there, without a network
    python benchmarks/gpu.py --tiny                the loop with a small model on any machine: does the script work

Nothing is downloaded. Each stage is a process with a time limit, whose output goes to runs/gpu.log; if it fails, the
next begins all the same: vLLM's kernels are imported; flash attention against the CPU; an engine with and without
sleep, whose sync is broken on purpose; five steps of the loop, without and with --compile; a server. Of the loop
medians over the steps after the first two are printed: seconds of each phase, tokens per second, model FLOPs
utilisation of the update, memory at the end of each phase, and the gap between the log-probabilities of the engine and
the policy.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import minrl.update
from minrl.__main__ import main as program
from minrl.dataflow import Example, Reward
from minrl.models.loading import save_model, small_qwen3, word_tokenizer
from minrl.tasks import TASK_DEFINITIONS, Task
from minrl.tasks.task import split

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "4090": 165.0}
"""Dense bfloat16 peak by GPU (vendors' data sheets)."""

PROMPT_WORDS = 64

ROOT = Path(__file__).parent.parent

ON_CARD = ("-m", "tests.gpu.on_card", "MODEL")
KERNELS = "import vllm._C_stable_libtorch, vllm.cumem_allocator; from vllm import LLM; print('{}')"
STAGES = {
    "vLLM's kernels": (60, ("-c", KERNELS)),
    "flash attention": (90, ("-m", "pytest", "tests/gpu/test_cuda_attention.py", "-m", "gpu")),
    "an engine that sleeps": (180, (*ON_CARD, "sleep")),
    "an engine that stays awake": (90, (*ON_CARD, "awake")),
    "the loop": (150, (*ON_CARD, "loop")),
    "the loop with --compile": (150, (*ON_CARD, "loop", "--compile")),
    "a server": (150, (*ON_CARD, "server", "FOLDER")),
}
"""Seconds at most of each stage, 870 in all, and what Python runs. MODEL and FOLDER are filled in."""


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


def run_loop(model: Path, steps: int, tiny: bool, *flags: str) -> list[dict[str, float]]:
    """Train with vLLM as `python train.py` does; the metrics of each step. An update ends when the GPU has done it."""
    step = minrl.update.clipped_step

    def finished(*arguments: object) -> float:
        norm = step(*arguments)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return norm

    minrl.update.clipped_step = finished
    TASK_DEFINITIONS["even-words"] = even_words_task()
    batch = ["--prompts-per-step", "4" if tiny else "32", "--group-size", "4" if tiny else "8"]
    length = ["--max-tokens", "16" if tiny else "512"]
    evaluation = ["--no-eval-first", "--eval-every", "0", "--eval-examples", "4", "--no-preflight", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        folders = ["--runs-dir", f"{folder}/runs", "--checkpoints-dir", f"{folder}/checkpoints"]
        arguments = ["--task", "even-words", "--model-id", str(model), "--engine", "vllm", "--steps", str(steps)]
        program(["train", *arguments, *batch, *length, *evaluation, *folders, *flags])
        (metrics,) = Path(folder).glob("runs/*/metrics.jsonl")
        return [line for line in map(json.loads, metrics.read_text().splitlines()) if "time/update_s" in line]


def report_loop(steps: list[dict[str, float]], parameters: int) -> None:
    """Medians over the steps after the first two, which compile and warm up."""
    late = steps[2:] or steps
    for tag in sorted({tag for step in late for tag in step}):
        if tag.startswith(("time/", "memory/", "system/", "speed/", "engine/")):
            print(f"| `{tag}` | {statistics.median(step[tag] for step in late if tag in step):.5g} |")
    update_s = statistics.median(step["time/update_s"] for step in late)
    flops = 6 * parameters * statistics.median(step["update/computed_tokens"] for step in late)
    peak = next((v for name, v in PEAK_TFLOPS.items() if name in _card()), None)
    share = f", {flops / update_s / peak / 1e12:.1%} of {peak:g}" if peak else ""
    print(f"| update, 6 x parameters x computed tokens | {flops / update_s / 1e12:.2f} TFLOP/s{share} |", flush=True)


def run_stage(words: list[str], limit_s: float, log: Path) -> tuple[str, str, float]:
    """What became of a stage: `done`, or how it failed; the last line that it printed, and its seconds."""
    started = time.monotonic()
    with log.open("a+", encoding="utf-8") as out:
        out.write(f"\n== {' '.join(words)}\n")
        out.flush()
        start = out.tell()
        line = [sys.executable, *words]
        stage = subprocess.Popen(line, stdout=out, stderr=out, cwd=ROOT, start_new_session=True)
        try:
            status = stage.wait(limit_s)
            outcome = "done" if status == 0 else f"failed with status {status}"
        except subprocess.TimeoutExpired:
            os.killpg(stage.pid, signal.SIGKILL)  # a server that it started, too
            outcome = f"not done in {limit_s:g} s"
        out.seek(start)
        said = out.read().strip().splitlines() or [""]
    return outcome, said[-1], time.monotonic() - started


def main() -> None:
    """Make the model and run the stages, or the loop of a small one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    tiny, log, failed = parser.parse_args().tiny, ROOT / "runs/gpu.log", False
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        make_model(model, tiny)
        parameters = sum(path.stat().st_size for path in model.glob("*.safetensors")) // 4
        print(f"{_card()}, torch {torch.__version__}, {parameters / 1e6:.1f} million parameters", flush=True)
        if tiny:
            return report_loop(run_loop(model, 3, True), parameters)
        log.parent.mkdir(exist_ok=True)
        log.write_text("")
        print("\n| stage | outcome | s |\n|---|---|---|", flush=True)
        for name, (limit_s, words) in STAGES.items():
            filled = {"MODEL": str(model), "FOLDER": str(Path(folder, "served"))}
            outcome, said, seconds = run_stage([filled.get(word, word) for word in words], limit_s, log)
            failed |= outcome != "done"
            print(f"| {name} | {outcome} | {seconds:.0f} |", flush=True)
            if outcome == "done" and "loop" in words:
                report_loop(json.loads(said), parameters)
            else:
                print(f"| | {said[-300:]} | |", flush=True)
    print(f"\nall that was printed: {log}")
    sys.exit(failed)


def _card() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


if __name__ == "__main__":
    main()
