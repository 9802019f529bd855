"""Say how good a model is at a task, or score completions that somebody already has.

    python evaluate.py --checkpoint checkpoints/countdown-grpo-seed0 --task countdown --output result.json
    python evaluate.py --task countdown --completions mine.jsonl --output scored.jsonl

The first takes a checkpoint, a run or any transformers model, samples the task's held-out examples and writes JSON. The
second reads rows with `completion` and the fields that the task's reward reads, and writes each row, in order, with
`reward`, `solved` and `parts` added; a row that cannot be scored has `reward: null` and says why under `error`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from minrl.command_line import parse_with_tasks, run_main
from minrl.completions import score_file
from minrl.config import EvaluateConfig, TaskOptions, task_key
from minrl.judge import Judge, judged, open_judge
from minrl.tasks import Task, load_task
from minrl.types import require
from minrl.workers import Workers


def main(arguments: Sequence[str]) -> int:
    """Evaluate a model, or score a file."""
    config, options = parse_with_tasks(EvaluateConfig, arguments)
    task = load_task(config.task, options, config.data_path)
    for note in task.notes():
        sys.stderr.write(f"{config.task}: {note}\n")
    workers = Workers(config.reward_workers, config.reward_deadline_s)
    try:
        with open_judge(config.judge) as judge:
            if config.completions:
                return _score(config, task, workers, judge)
            return _evaluate(config, options, judged(task, judge), workers)
    finally:
        workers.close()


def _score(config: EvaluateConfig, task: Task, workers: Workers, judge: Judge | None) -> int:
    output = Path(config.output or Path(config.completions).with_suffix(".scored.jsonl"))
    rows, solved, failed = score_file(task, Path(config.completions), output, workers, judge)
    sys.stderr.write(f"{output}: {rows} rows, {solved} solved, {failed} could not be scored\n")
    return 0


def _evaluate(config: EvaluateConfig, options: TaskOptions, task: Task, workers: Workers) -> int:
    from minrl.engines.choice import make_engine
    from minrl.engines.opponent import EngineWithOpponent
    from minrl.evaluation import evaluate
    from minrl.parts import no_frozen_role, resolve_model
    from minrl.policy import load_policy
    from minrl.processes import Processes

    task.dataset.sizes()  # a task without its data is refused before a model is loaded
    require(task.frozen_opponent or not config.opponent, no_frozen_role(config.task))
    path, processes = resolve_model(config.checkpoint), Processes(config.model)
    policy = load_policy(path, config.model, processes)
    engine = make_engine(config.engine, policy)
    if config.opponent:
        opponent = load_policy(resolve_model(config.opponent), config.model, processes)
        engine = EngineWithOpponent(engine, opponent, policy)
    try:
        evaluation = evaluate(policy, engine, workers, task, config.evaluation, config.rollout, config.seed)
    finally:
        engine.close()
    result: Mapping[str, object] = {
        "model": path,
        "task": config.task,
        **({"opponent": config.opponent or path} if task.frozen_opponent else {}),
        "options": vars(options[task_key(config.task)]),
        **({"judge": vars(config.judge)} if config.judge.judge_model else {}),
        "seed": config.seed,
        "temperature": config.temperature,
        **evaluation.to_json(),
    }
    text = json.dumps(result, indent=1)
    if config.output:
        Path(config.output).parent.mkdir(parents=True, exist_ok=True)
        Path(config.output).write_text(text + "\n")
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    run_main(main)
