"""Fine-tune a language model on rows of prompt and response, from the command line.

    python -m minrl sft --data rows.jsonl --model-id Qwen/Qwen3-0.6B --learning-rate 1e-5
    python -m minrl sft --data rows.jsonl --task countdown --max-examples 128
    python -m minrl sft --resume latest

Only the response's tokens have a loss (`minrl.sft.step`). The order of the rows is a function of the seed and the
epoch, so a killed run resumes to the same weights.
"""

import math
from dataclasses import replace
from functools import partial

from minrl.dataflow import TrainState, UserError, require
from minrl.rollout import rollout
from minrl.run.folder import RunFolder
from minrl.run.run import Run, open_run
from minrl.run.setup import assemble
from minrl.sampling import draw_examples, every, tracked_plan
from minrl.sft.config import SftConfig
from minrl.sft.demonstrations import Rows, fingerprint, load_rows, read_demonstrations
from minrl.sft.step import measure, rows_in_all, sft_step
from minrl.tracking.session import Session
from minrl.tracking.timers import timed
from minrl.tracking.writers import require_logger
from minrl.utils.cli import Command
from minrl.utils.files import read_json, write_json
from minrl.utils.task_names import task_key

DATA = "data.json"
"""Of a run's folder: the hashes of its files of rows, and the numbers of the rows that are trained on."""


def fine_tune(session: Session, rows: Rows) -> None:
    """Train on the rows, batch by batch, and measure the held-out rows every so many steps."""
    parts, settings = session.parts, session.run.settings
    config, state, engine = parts.config, parts.state, parts.engine
    total = rows_in_all(settings.epochs, len(rows.train))
    if state.step < config.steps:
        engine.sleep()
    for step in session.steps():
        size = min(settings.batch_size, len(rows.train))
        if not settings.steps:
            size = min(size, total - state.examples_drawn)  # the last batch may be short
        drawn = draw_examples(rows.train, size, settings.seed, state)
        session.add(sft_step(parts.policy, parts.optimizer, drawn, config, step))
        session.add({"sft/epoch": state.examples_drawn / len(rows.train)})
        tracked = bool(parts.tasks) and every(config.rollouts_every, step)
        evaluated = every(config.eval_every, step) or step == config.steps
        if tracked or evaluated:
            engine.wake()
            engine.sync(parts.policy)
            if tracked:
                save_tracked(session)
            if evaluated:
                session.evaluate()
            engine.sleep()
        session.step()
        session.save_if_due()


def save_tracked(session: Session) -> None:
    """Write the policy's completions of the held-out examples that are followed through the run."""
    parts = session.parts
    with timed("eval"):
        plan = tracked_plan(parts.task, parts.config)
        tracked = rollout(parts.policy, parts.engine, parts.workers, parts.task, *plan)
    session.save_rollouts(tracked.rollouts)


def main(command: Command[SftConfig]) -> int:
    """Measure the policy, train it on the rows, and measure it again."""
    named = bool(command.config.data or command.config.resume)
    require(named, "name the rows to train on with --data (JSONL with a prompt and a response)")
    run = open_run(command.config, command.options, command.given)
    require_logger(run.config)
    files = filter(None, (run.settings.data, run.settings.eval_data))
    read = {path: read_demonstrations(run.settings, path) for path in files}  # before the model
    with assemble(run) as parts:
        settings: SftConfig = parts.run.settings
        sha256 = fingerprint(settings)
        refuse_other_rows(parts.run, settings, sha256)
        rows = load_rows(settings, read, parts.policy, parts.tasks.get(task_key(settings.task)))
        batch_size = min(settings.batch_size, len(rows.train))
        steps = settings.steps or steps_of(settings, parts.state, len(rows.train), batch_size)
        parts.config = replace(parts.config, steps=max(steps, parts.state.step))
        with Session(parts, command.started, partial(measure, held_out=rows.held_out)) as session:
            if session.main:
                write_json(parts.run.folder / DATA, {"sha256": sha256, "trained_on": rows.numbers})
            fine_tune(session, rows)
            return session.finish(summary_of(parts.run, rows))


def steps_of(settings: SftConfig, state: TrainState, rows: int, batch_size: int) -> int:
    """The last step. A resumed run may have one short batch before it."""
    total = rows_in_all(settings.epochs, rows)
    if total < state.examples_drawn:
        return math.ceil(total / batch_size)
    return state.step + math.ceil((total - state.examples_drawn) / batch_size)


def refuse_other_rows(run: Run, config: SftConfig, sha256: dict[str, str]) -> None:
    """Refuse to resume a run with other rows than those of its files' hashes."""
    known = read_json(run.folder / DATA)
    if known is not None and known["sha256"] != sha256:
        raise UserError(f"the rows in {config.data} are not those that run {run.folder} began with: start a new run")


def summary_of(run: Run, rows: Rows) -> dict[str, object]:
    """What summary.json has besides the entries of every run."""
    tag = "sft/held_out_loss"
    losses = {line["step"]: line[tag] for line in RunFolder(run.folder).metrics if tag in line}
    return {
        "algorithm": "sft",
        "train_rows": len(rows.train),
        "held_out_rows": len(rows.held_out),
        "held_out_loss": losses,
    }
