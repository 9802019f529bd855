"""Time and memory of a whole GRPO step against TRL 1.16 with its defaults.

    make setup EXTRA=bench
    python benchmarks/step.py            1M, 5M and 15M parameters, 8 prompts x 8, 32 + 64 tokens
    python benchmarks/step.py --lengths varying --dtypes float32 bfloat16    1 to 64 tokens; both sides in one precision
    python benchmarks/step.py --model PATH --dtypes float32     a pretrained chat model, 4 prompts x 8, 32 tokens

Each side has its own default precision, ours float32 and TRL's bfloat16. Our side is `train.py` itself, TRL's its
GRPOTrainer: all 64 completions in one generation and one micro-batch, which is faster on a CPU than its default of 8 at
a time. Both train the same model on the same prompts, and the completions of each step are as long on both sides: end
tokens come from a schedule. TRL's step is timed without its data loader.
"""

import argparse
import contextlib
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from harness import Row, Turns, compare, show
from memory import gib
from shapes import SHAPES, Work, even_share, even_task, save_shape

STEPS = 10_000
"""More than there are rounds: the sides stop when they are told to."""


class PacedRun:
    """`train.py` with its steps held until their turn, and its completions' lengths from the schedule."""

    def __init__(self, turns: Turns, work: Work) -> None:
        self.turns, self.work = turns, work
        self.number, self.started, self.counted = 0, 0.0, dict[str, int]()

    def install(self) -> None:
        """Put this object between the loop and what it calls."""
        from minrl import trainer
        from minrl.engines.torch_engine import TorchEngine

        generate, sample = TorchEngine.generate, trainer.sample_groups
        TorchEngine.generate = lambda engine, *args, **named: self.generate(generate, engine, *args, **named)
        trainer.sample_groups = lambda *args, **named: self.begin(sample, *args, **named)

    def begin(self, sample, *args, **named):
        """A step begins by sampling: report the one before, and wait for the turn."""
        if self.started:
            self.turns.done(time.perf_counter() - self.started, {**self.counted, "ours_gib": gib("VmHWM")})
        else:
            self.turns.ready()
        self.number = self.turns.wait()
        self.started = time.perf_counter()
        return sample(*args, **named)

    def generate(self, generate, engine, requests, sampling, **named):
        """The engine's completions, as long as the schedule says."""
        pairs = zip(requests, self.work.lengths(self.number), strict=True)
        fixed = [replace(request, max_tokens=length) for request, length in pairs]
        completions = generate(engine, fixed, replace(sampling, stop_ids=frozenset()), **named)
        self.counted = {
            "completion_tokens": sum(len(completion.ids) for completion in completions),
            "prompt_tokens": sum(len(request.ids) for request in requests),
        }
        return completions


def ours(turns: Turns, work: Work) -> None:
    """The steps of `train.py`, each after its turn has come."""
    from minrl.__main__ import main as run_program
    from minrl.tasks import TASK_DEFINITIONS

    PacedRun(turns, work).install()
    TASK_DEFINITIONS["even"] = even_task(work.examples())
    with tempfile.TemporaryDirectory() as folder:
        if not work.model:
            save_shape(work.size, Path(folder) / "model")
        run_program(["train", *_flags(work, folder)])


def trl(turns: Turns, work: Work) -> None:
    """The steps of TRL's GRPOTrainer, each after its turn has come."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    state: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp())
    if not work.model:
        save_shape(work.size, folder)
    path = work.model or folder
    words = AutoTokenizer.from_pretrained(path, padding_side="left", trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, trust_remote_code=False)
    generate = model.generate

    class Scheduled(LogitsProcessor):
        """The end token where the schedule has it, and nowhere else."""

        def __call__(self, input_ids, scores):
            scores[:, words.eos_token_id] = -torch.inf
            last = state["lengths"] == input_ids.shape[1] - state["width"] + 1
            if work.varying and last.any():
                scores[last] = -torch.inf
                scores[last, words.eos_token_id] = 0.0
            return scores

    def scheduled(*args, **kwargs):
        state["width"] = kwargs["input_ids"].shape[1]
        ids = generate(*args, **kwargs, logits_processor=LogitsProcessorList([Scheduled()]))
        sampled = torch.arange(ids.shape[1] - state["width"]) < state["lengths"][:, None]
        state["counted"] = {
            "completion_tokens": int(sampled.sum()),
            "prompt_tokens": int(kwargs["attention_mask"].sum()),
        }
        return ids

    class Paced(TrainerCallback):
        """Waits for the turn before a step and reports after it."""

        def on_step_begin(self, *_, **__) -> None:
            state["lengths"] = torch.tensor(work.lengths(turns.wait()))
            state["started"] = time.perf_counter()

        def on_step_end(self, *_, **__) -> None:
            turns.done(time.perf_counter() - state["started"], {**state["counted"], "TRL_gib": gib("VmHWM")})

    def reward(completions, **_):
        return [even_share(one if isinstance(one, str) else one[0]["content"]) for one in completions]

    model.generate = scheduled
    rows = work.prompts * work.group
    config = GRPOConfig(
        output_dir=str(folder / "run"),
        per_device_train_batch_size=rows,
        num_generations=work.group,
        max_completion_length=work.max_tokens,
        max_steps=STEPS,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        shuffle_dataset=False,
        **({} if work.dtype == "default" else {"bf16": work.dtype == "bfloat16"}),
    )
    prompts = Dataset.from_list([{"prompt": example.prompt} for example in work.examples()])
    with open(folder / "log.txt", "w") as log, contextlib.redirect_stdout(log):
        trainer = GRPOTrainer(model, reward, config, prompts, processing_class=words, callbacks=[Paced()])
        turns.ready()
        trainer.train()


def _flags(work: Work, folder: str) -> list[str]:
    """train.py's defaults, but for the shape of the batch and for what is not part of a step."""
    flags = {
        "--task": "even",
        "--model-id": work.model or f"{folder}/model",
        "--prompts-per-step": work.prompts,
        "--group-size": work.group,
        "--max-tokens": work.max_tokens,
        "--steps": STEPS,
        **dict.fromkeys(["--eval-every", "--save-every", "--rollouts-every"], 0),
        "--dtype": "auto" if work.dtype == "default" else work.dtype,
        "--runs-dir": f"{folder}/runs",
        "--checkpoints-dir": f"{folder}/checkpoints",
    }
    switches = ["--no-eval-first", "--no-preflight", "--quiet"]
    return [str(part) for pair in flags.items() for part in pair] + switches


def main() -> None:
    """Every size, way of lengths and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1, help="rounds before those that count")
    parser.add_argument("--sizes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--lengths", nargs="+", default=["fixed"], choices=["fixed", "varying"])
    parser.add_argument("--dtypes", nargs="+", default=["default"], choices=["default", "float32", "bfloat16"])
    parser.add_argument("--model", default="", help="a folder of transformers, in place of --sizes")
    options = parser.parse_args()
    rows = []
    sizes = [Path(options.model).name] if options.model else options.sizes
    shape = {"model": options.model, "prompts": 4, "max_tokens": 32} if options.model else {}
    for size, lengths, dtype in product(sizes, options.lengths, options.dtypes):
        work = Work(size=size, varying=lengths == "varying", dtype=dtype, **shape)
        against = "TRL 1.16" if dtype == "default" else f"TRL 1.16, both {dtype}"
        what, sides = f"whole GRPO step, {size}, {lengths} lengths", {"ours": ours, "TRL": trl}
        row = compare(what, against, sides, work, options.rounds, options.warmup)
        peak = [row.facts["ours"]["ours_gib"] / row.facts["TRL"]["TRL_gib"]]
        rows += [row, Row(f"peak memory of a step, {size}, {lengths} lengths", against, peak)]
    show(rows)


if __name__ == "__main__":
    main()
