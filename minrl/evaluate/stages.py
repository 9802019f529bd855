"""The evaluation in its folder: its settings and its lock, and the stages that add to what it holds."""

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.config import JudgeConfig, TaskOptions
from minrl.engines import takes_vllm
from minrl.evaluate.config import STAGES, EvaluateConfig, Stage
from minrl.evaluate.generate import check_prompts, generate, missing
from minrl.evaluate.models import NamedModel
from minrl.evaluate.plan import EvaluationPlan, Settings, make_plan, settings_of
from minrl.evaluate.report import SUMMARY, report
from minrl.evaluate.rows import Key, Row, key_of, read_rows
from minrl.evaluate.score import read_scores, score, unscored
from minrl.evaluate.served import connect
from minrl.models.processes import Processes
from minrl.report import charts
from minrl.rewards.chat_client import ChatError
from minrl.rewards.judge import open_judge
from minrl.rewards.workers import Workers
from minrl.run.records import changes, provenance
from minrl.run.setup import load_policy
from minrl.types import UserError, require
from minrl.utils.console import activity
from minrl.utils.files import LOCK, holder, lock, read_record, write_json

HOME = Path("evaluations")
"""The parent of folders without a name from the user."""

CONFIG, COMPLETIONS, SCORES = "config.json", "completions.jsonl", "scores.jsonl"


def evaluate(config: EvaluateConfig, options: TaskOptions) -> tuple[Path, dict[str, Any] | None]:
    """The folder and its summary.json (None after a dry run). Completions and scores that it holds are kept."""
    if config.charts and not charts.available():
        logger.warning("no charts: matplotlib is not installed (pip install matplotlib), or say --no-charts")
        config = replace(config, charts=False)
    plan = make_plan(config, options)
    settings = settings_of(plan, options)
    folder = folder_of(config, settings)
    check_settings(folder, settings, config)
    if config.dry_run:
        with open_judge(config.judge, ask=False):
            pass
        dry_run(plan.with_samples(rows := rows_in(folder, config)), rows, folder)
        return folder, None
    with locked(folder):
        workers = Workers(config.reward_workers, config.reward_deadline_s)
        try:
            return folder, _run(plan, options, folder, workers)
        except KeyboardInterrupt:
            logger.warning(f"stopped; {folder} keeps what is done, and the same command resumes")
            raise
        finally:
            workers.close()


def _run(plan: EvaluationPlan, options: TaskOptions, folder: Path, workers: Workers) -> dict[str, Any]:
    """The stages."""
    config, completions = plan.config, folder / COMPLETIONS
    if config.forced("generate"):
        set_aside(completions)
    if config.forced("score"):
        (folder / SCORES).unlink(missing_ok=True)
    paid = [task.name for task in plan.tasks if task.task.episode is not None]
    if config.forced("score") and not config.forced("generate") and paid:
        said = "episodes of several turns keep what they were paid when they were played"
        logger.warning(f"{', '.join(paid)}: {said}; --force generate plays them again")
    (folder / SUMMARY).unlink(missing_ok=True)
    rows = rows_in(folder, config)
    plan = plan.with_samples(rows)
    scores = read_scores(folder / SCORES, rows)
    lacking = any(batches for model in plan.models for batches in missing(plan, model, rows))
    if rows and lacking and (changed := changes(read_record(folder / CONFIG), provenance())):
        logger.warning(f"changed since this evaluation began, so that what is added may differ: {'; '.join(changed)}")
    write_settings(folder, settings_of(plan, options), anew=config.forced("generate"))
    with open_judge(config.judge if lacking or unscored(plan, rows, scores) else JudgeConfig()) as judge:
        if lacking:
            generate(plan.judged(judge), completions, rows, workers)
            scores = read_scores(folder / SCORES, rows)
            plan = replace(plan, models=[model.as_cached() for model in plan.models])  # which may have been downloaded
            write_settings(folder, settings_of(plan, options))
        score(plan, folder / SCORES, rows, scores, workers, judge)
    errors = [rows[key]["error"] for key in plan.all_keys() if "error" in rows.get(key, {})]
    if errors:
        logger.error(f"{len(errors)} completions could not be had, the first because: {errors[0]}")
    lines = [line for key in plan.all_keys() for line in scores.get(key, ())]
    return report(plan, folder, settings_of(plan, options), lines, rows)


def rows_in(folder: Path, config: EvaluateConfig) -> dict[Key, Row]:
    """The folder's rows of completions; none if they are to be generated again."""
    return {} if config.forced("generate") else {key_of(row): row for row in read_rows(folder / COMPLETIONS)}


def set_aside(completions: Path) -> None:
    """Rename the completions that are about to be generated again: they may have been paid for."""
    if completions.exists():
        names = (completions.with_name(f"{completions.stem}.{number}.jsonl") for number in itertools.count(1))
        kept = next(path for path in names if not path.exists())
        completions.replace(kept)
        logger.info(f"the completions until now are kept in {kept}")


# The folder


def folder_of(config: EvaluateConfig, settings: Settings) -> Path:
    """The folder named by --output, or by the tasks and a hash of the settings of their completions. Neither models nor
    the number of samples are in the hash, so that more are added; other weights have a folder of their own.
    """
    if config.output and not config.output.endswith(".json"):
        return Path(config.output)
    known = {**settings["generate"], "models": {}}
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:10]
    name = f"{'+'.join(settings['generate']['tasks']).replace('/', '-')}-{digest}"
    folders = (HOME / (name if number == 1 else f"{name}-{number}") for number in itertools.count(1))
    return next(f for f in folders if not any(differences(stored_settings(f), settings, ("generate",))))


def stored_settings(folder: Path) -> Settings:
    """The settings of the evaluation in the folder; none if there is no evaluation. Anything else is refused."""
    path = folder / CONFIG
    if path.exists():
        record = read_record(path)
        require("evaluation" in record, f"{path} is not an evaluation's: choose another --output")
        return record["evaluation"]
    require(not folder.exists() or folder.is_dir(), f"--output {folder} is a file: name a folder, or NAME.json")
    others = [entry.name for entry in folder.iterdir() if entry.name != LOCK] if folder.is_dir() else []
    require(not others, f"{folder} holds {others[:1]} and no evaluation: choose another --output")
    return {}


def check_settings(folder: Path, settings: Settings, config: EvaluateConfig) -> None:
    """Refuse to mix results of different settings."""
    stored = stored_settings(folder)
    for stage in STAGES:
        found = [] if config.forced(stage) else list(differences(stored, settings, (stage,)))
        require(
            not found,
            f"{folder} holds an evaluation with {'; '.join(found[:3])}: choose another --output, or do it again with "
            f"--force {stage}",
        )


def differences(stored: Settings, now: Settings, stages: tuple[Stage, ...]) -> Iterator[str]:
    """A phrase for each setting that was stored and differs now. Models and tasks are compared that both have; a hub's
    model whose commit was or is unknown is the same.
    """
    for stage in stages:
        before, after = (dict(_flat(settings.get(stage, {}))) for settings in (stored, now))
        for path in (path for path in before if path in after and before[path] != after[path]):
            if path[0] != "models":
                yield f"{' '.join(path)} {before[path]!r}, now {after[path]!r}"
            elif before[path] and after[path]:
                yield f"other weights of {path[1]}"


def _flat(settings: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every setting by its path."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*path, name))
        else:
            yield (*path, name), value


def write_settings(folder: Path, settings: Settings, anew: bool = False) -> None:
    """Write config.json: the settings, with those of models and tasks that only earlier commands named, and the
    provenance of the evaluation's start, which is now if it begins `anew`.
    """
    record = {} if anew else read_record(folder / CONFIG)
    merged = {stage: dict(values) for stage, values in settings.items()}
    for stage, values in record.get("evaluation", {}).items():
        for name in ("models", "tasks"):
            if name in values:
                known = {one: value for one, value in merged[stage][name].items() if value}
                merged[stage][name] = {**values[name], **known}
    start = {name: value for name, value in record.items() if name != "evaluation"}
    write_json(folder / CONFIG, {"evaluation": merged, **(start or provenance())})


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other programs. A new one in which nothing was generated is removed."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    held = lock(folder / LOCK)
    if held is None:
        raise UserError(
            f"another program ({holder(folder / LOCK)}) is writing to {folder}: wait for it, or choose another --output"
        )
    with held:
        try:
            yield
        finally:
            if new and {*os.listdir(folder)} <= {LOCK, CONFIG}:
                shutil.rmtree(folder)
                with suppress(OSError):  # it holds other evaluations, or does not exist
                    HOME.rmdir()


# The dry run


def dry_run(plan: EvaluationPlan, rows: dict[Key, Row], folder: Path) -> None:
    """Load each local model, check that prompts fit, ask servers for their models, report the remaining work."""
    with activity("checking", len(plan.models)) as done:
        for number, model in enumerate(plan.models):
            (_check_server if model.served else _check_local)(plan, model)
            done(number + 1, model.label)
    total = todo = 0
    for model in plan.models:
        for task, batches in zip(plan.tasks, missing(plan, model, rows), strict=True):
            episodes = sum(mode.samples for mode in task.modes) * len(task.examples)
            left = sum(batch.examples * batch.samples for batch in batches)
            logger.info(f"{model.name} on {task.name}: {len(task.examples)} examples, {left} of {episodes} to generate")
            total, todo = total + episodes, todo + left
    logger.info(f"no problems found; {todo} of {total} completions to generate, into {folder}")


def _check_local(plan: EvaluationPlan, model: NamedModel) -> None:
    config = plan.config
    policy = load_policy(model.name, config.model, Processes(config.model))
    limit = policy.context_length
    if takes_vllm(config.engine, policy.device.type):
        limit = min(config.engine.engine_context_length or limit, limit)
    for task in plan.tasks:
        check_prompts(policy, model, task, limit, config.limit_of(task.name))


def _check_server(plan: EvaluationPlan, model: NamedModel) -> None:
    client = connect(plan.config, model)
    try:
        known = client.served_models()
    except ChatError as error:
        raise UserError(f"{error}; nothing was asked of the model yet") from error
    finally:
        client.close()
    if model.served_name not in known:
        logger.warning(f"{model.name}: the server lists {', '.join(known[:5]) or 'no models'} and not this one")
