"""Every generator of reasoning-gym as a task: what it makes, and what its verifier pays.

    python benchmarks/reasoning_gym_table.py --size 10

Prints a line for each generator: distinct problems made, the reward of the problem's own answer (none where the library
keeps none), of an empty answer and of two trivial ones, which of these made the verifier raise, and answers scored per
second in one process. A summary follows. Needs the reasoning-gym extra.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

from harness import doing

from minrl.rewards.workers import Failure, call
from minrl.tasks import load_task
from minrl.tasks.reasoning_gym import ReasoningGymOptions, library
from minrl.tasks.task import Task
from minrl.types import Example, Job, UserError

TRIVIAL = {"empty": "", "0": "0", "hello": "hello"}
MIXTURE = '{"datasets": [{"name": "leg_counting"}, {"name": "chain_sum"}]}'


def main() -> None:
    """Measure all generators, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=10)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = options.names or sorted(library().factory.DATASETS)
    print("| generator | made | own answer | " + " | ".join(TRIVIAL) + " | raised | scored/s |")
    print("|" + "---|" * (5 + len(TRIVIAL)))
    lines = [line(name, options.size) for name in names]
    made = [found for found in lines if found is not None]
    full, silent = (sum(found["own"] == value for found in made) for value in (1.0, None))
    raising, lucky = (sum(bool(found[key]) for found in made) for key in ("raised", "lucky"))
    print(
        f"\n{len(made)} of {len(names)} generators made {sum(found['made'] for found in made)} problems; their own "
        f"answer scores 1 with {full}, {silent} keep none; {raising} raise at a trivial answer, {lucky} score one of "
        f"them 1 throughout; median {statistics.median(found['speed'] for found in made):.0f} answers/s"
    )


def line(name: str, size: int) -> dict | None:
    """Print what was found of one generator, and return it; None where it makes nothing or is refused."""
    doing(f"making and scoring {name}")
    try:
        task = load_task(f"reasoning_gym/{name}", {f"reasoning_gym/{name}": settings(name, size)})
        examples = [*task.dataset.train, *task.dataset.held_out]
    except UserError as error:
        print(f"| {name} | {error} |", flush=True)
        return None
    own = [(e["answer"], e) for e in examples if e["answer"] is not None]
    paid = mean(scores(task, own)) if own else None
    raised, trivial, started, asked = [], [], time.perf_counter(), 0
    for kind, answer in TRIVIAL.items():
        results = scores(task, [(answer, example) for example in examples])
        asked += len(results)
        raised += [kind] if any(isinstance(result, Failure) for result in results) else []
        trivial.append(mean(results))
    speed = asked / (time.perf_counter() - started)
    shown = " | ".join("-" if value is None else f"{value:.2f}" for value in (paid, *trivial))
    print(f"| {name} | {len(examples)} | {shown} | {', '.join(raised) or '-'} | {speed:.0f} |", flush=True)
    lucky = any(value is not None and value == 1.0 for value in trivial)
    return {"made": len(examples), "own": paid, "raised": raised, "lucky": lucky, "speed": speed}


def settings(name: str, size: int) -> ReasoningGymOptions:
    """A share that leaves both splits something, and what a mixture needs."""
    return ReasoningGymOptions(size=size, held_out_share=1.0, generator=MIXTURE if name == "composite" else "")


def scores(task: Task, answers: Sequence[tuple[str, Example]]) -> list:
    """The reward of each answer in its tags, or the `Failure` that makes it unscorable."""
    assert task.reward is not None
    results = [call(Job(task.reward, (f"<answer>{answer}</answer>", example))) for answer, example in answers]
    return [result if isinstance(result, Failure) else result.value for result in results]


def mean(results: Sequence) -> float | None:
    """Of those that were scored."""
    values = [result for result in results if not isinstance(result, Failure)]
    return statistics.fmean(values) if values else None


if __name__ == "__main__":
    main()
