"""The evaluation in its folder: its settings and its lock, and the stages, which add to what it holds."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.config import JudgeConfig, TaskOptions
from minrl.dataflow import UserError, require
from minrl.evaluate.config import STAGES, EvaluateConfig, Stage
from minrl.evaluate.generate import (
    EvaluatedTask,
    EvaluationPlan,
    Key,
    Row,
    generate,
    read_rows,
    sampler_of,
    write_in_order,
)
from minrl.evaluate.models import cached, find_models
from minrl.evaluate.report import SUMMARY, report
from minrl.evaluate.score import score, unscored
from minrl.rewards.judge import asked_by, open_judge
from minrl.rewards.workers import Workers
from minrl.run.records import changes, provenance
from minrl.run.setup import no_frozen_role
from minrl.tasks import load_task
from minrl.tasks.programs import programs
from minrl.utils.cli import plain_options
from minrl.utils.console import activity
from minrl.utils.files import LOCK, holder, lock, names_in, read_record, write_json, writing
from minrl.utils.task_names import option_keys, task_key
from minrl.utils.text import digest_of

HOME = Path("evaluations")
"""The parent of folders without a name from the user."""

CONFIG, COMPLETIONS = "config.json", "completions.jsonl"

SAMPLING = ("seed", "temperature", "greedy", "max_tokens", "task_max_tokens", "stop_strings", "opponent")
ENGINE = ("engine", "engine_context_length", "batch_invariant")
JUDGE = ("judge_model", "judge_base_url", "judge_weight", "judge_prompt", "judge_temperature", "judge_max_tokens")

Settings = Mapping[str, Mapping[str, Any]]
"""Plain values by stage."""


def evaluate(config: EvaluateConfig, options: TaskOptions) -> tuple[Path, dict[str, Any] | None]:
    """The folder and its summary.json (None after a dry run). Completions and scores that it holds are kept."""
    plan = make_plan(config, options)
    settings = settings_of(plan, options)
    folder = folder_of(config, settings)
    check_settings(folder, settings, config)
    with closing(Workers(config.reward_workers, config.reward_deadline_s)) as workers:
        if config.dry_run:
            rows = {} if config.forced("generate") else read_rows(folder / COMPLETIONS)
            with open_judge(config.judge, ask=False):
                dry_run(plan.with_samples(rows), rows, folder, workers)
            return folder, None
        with locked(folder):
            try:
                return folder, _run(plan, options, folder, workers)
            except KeyboardInterrupt:
                logger.warning(f"stopped; {folder} keeps what is done, and the same command resumes")
                raise


def make_plan(config: EvaluateConfig, options: TaskOptions) -> EvaluationPlan:
    """The plan for the config, without numbers of samples. Refuses what cannot be evaluated."""
    tasks: list[EvaluatedTask] = []
    for name in config.task_names:
        key = task_key(name)
        task = replace(load_task(name, options, config.data_of(key)), max_tokens=config.limit_of(key))
        task.dataset.sizes()  # a task without its data is refused before a model is loaded
        require(key not in {one.name for one in tasks}, f"--tasks names {key} more than once")
        tasks.append(EvaluatedTask(key, task, list(task.dataset.held_out)[: config.examples]))
    frozen = any(task.task.frozen_opponent for task in tasks)
    require(frozen or not config.opponent, no_frozen_role(" or ".join(task.name for task in tasks)))
    models = find_models(config.model_names, config.runs_dir, config.every_checkpoint)
    if config.opponent and any(model.served for model in models):
        raise UserError("--opponent plays beside local models only: leave it out, and a server's model plays itself")
    return EvaluationPlan(config, models, tasks, find_models(filter(None, [config.opponent]), config.runs_dir))


def _run(plan: EvaluationPlan, options: TaskOptions, folder: Path, workers: Workers) -> dict[str, Any]:
    config, completions = plan.config, folder / COMPLETIONS
    if config.forced("generate"):
        set_aside(completions)
    (folder / SUMMARY).unlink(missing_ok=True)
    rows = read_rows(completions)
    plan = plan.with_samples(rows)
    if rows and config.forced("score"):
        forget_scores(plan, completions, rows)
    missing = any(plan.missing(model, task, rows) for model in plan.models for task in plan.tasks)
    if rows and missing and (changed := changes(read_record(folder / CONFIG), provenance())):
        logger.warning(f"changed since this evaluation began, so that what is added may differ: {'; '.join(changed)}")
    write_settings(folder, settings_of(plan, options), anew=config.forced("generate"))
    with open_judge(config.judge if missing or unscored(plan, rows) else JudgeConfig()) as judge:
        if missing:
            generate(plan.with_judge(judge), completions, rows, workers)
            plan = replace(plan, models=list(map(cached, plan.models)))  # which may have been downloaded
            write_settings(folder, settings_of(plan, options))
        score(plan, completions, rows, workers, judge)
    write_in_order(completions, plan, rows)
    errors = [rows[key]["error"] for key in plan.all_keys() if "error" in rows.get(key, {})]
    if errors:
        logger.error(f"{len(errors)} completions could not be had, the first because: {errors[0]}")
    return report(plan, folder, settings_of(plan, options), rows)


def forget_scores(plan: EvaluationPlan, completions: Path, rows: dict[Key, Row]) -> None:
    """Remove the scores of all completions: after a kill, none of another reward is taken for one of this."""
    for row in rows.values():
        row.pop("scores", None)
    write_in_order(completions, plan, rows)
    if as_played := [task.name for task in plan.tasks if task.task.episode is not None]:
        logger.warning(
            f"{', '.join(as_played)}: episodes of several turns keep the rewards that they had when they were played; "
            "--force generate plays them again"
        )


def set_aside(completions: Path) -> None:
    """Rename the completions that are about to be generated again: they may have been paid for."""
    if completions.exists():
        names = (completions.with_name(f"{completions.stem}.{number}.jsonl") for number in itertools.count(1))
        older = next(path for path in names if not path.exists())
        completions.replace(older)
        logger.info(f"the completions until now are kept in {older}")


# The folder


def settings_of(plan: EvaluationPlan, options: TaskOptions) -> Settings:
    """The settings that completions and scores depend on. Episodes of several turns are rewarded as they are played:
    what their rewards depend on is among the settings of their completions.
    """
    config = plan.config
    judge = {**{name: getattr(config.judge, name) for name in JUDGE}, "words": asked_by(config.judge)}
    tasks: dict[str, dict[str, Any]] = {"generate": {}, "score": {}}
    for name, task in zip(config.task_names, plan.tasks, strict=True):
        tasks["generate"][task.name] = {
            "examples": f"{len(task.examples)}, {digest_of([[one.id, one.prompt] for one in task.examples])}",
            "options": options_of(name, options),
        }
        rewards = {
            "references": digest_of([[one.id, one.fields, one.category] for one in task.examples]),
            "programs": programs(name),
            "judge": judge,
        }
        stage = "score" if task.task.episode is None else "generate"
        tasks[stage].setdefault(task.name, {}).update(rewards)
    settings = {
        "generate": {
            **{name: getattr(config, name) for name in SAMPLING},
            **{name: getattr(config.engine, name) for name in ENGINE},
            "dtype": config.model.dtype,
            "device": config.model.device,
            "chat_template": config.model.template_name,
            "chat_template_options": config.model.chat_template_options,
            "models": {model.name: model.fingerprint for model in (*plan.models, *plan.opponents)},
            "tasks": tasks["generate"],
        },
        "score": {"reward_deadline_s": config.reward_deadline_s, "judge": judge, "tasks": tasks["score"]},
    }
    return json.loads(json.dumps(settings, default=str))


def options_of(task: str, options: TaskOptions) -> dict[str, Any]:
    """The task's options by name, and those of its tool as `tool.option`."""
    own, *tools = option_keys(task)
    of_tools = {f"{tool}.{name}": value for tool in tools for name, value in plain_options(options[tool]).items()}
    return {**plain_options(options[own]), **of_tools}


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
    return next(f for f in folders if not any(differences(stored_settings(f), settings, "generate")))


def stored_settings(folder: Path) -> Settings:
    """The settings of the evaluation in the folder; none before the first completion. Other folders are refused."""
    path = folder / CONFIG
    if path.exists():
        record = read_record(path)
        require("evaluation" in record, f"{path} is not an evaluation's: choose another --output")
        return record["evaluation"] if (folder / COMPLETIONS).exists() else {}
    require(not folder.exists() or folder.is_dir(), f"--output {folder} is a file: name a folder, or NAME.json")
    others = names_in(folder) if folder.is_dir() else []
    require(not others, f"{folder} holds {others[:1]} and no evaluation: choose another --output")
    return {}


def check_settings(folder: Path, settings: Settings, config: EvaluateConfig) -> None:
    """Refuse to mix results of different settings."""
    stored = stored_settings(folder)
    for stage in STAGES:
        found = [] if config.forced(stage) else list(differences(stored, settings, stage))
        require(
            not found,
            f"{folder} holds an evaluation with {'; '.join(found[:3])}: choose another --output, or do it again with "
            f"--force {stage}",
        )


def differences(stored: Settings, now: Settings, stage: Stage) -> Iterator[str]:
    """A phrase for each setting that was stored and differs now. Models and tasks are compared that both have; a hub's
    model whose commit was or is unknown is the same.
    """
    before, after = (dict(_by_path(settings.get(stage, {}))) for settings in (stored, now))
    for path in (path for path in before if path in after and before[path] != after[path]):
        if path[0] != "models":
            yield f"{' '.join(path)} {before[path]!r}, now {after[path]!r}"
        elif before[path] and after[path]:
            yield f"other weights of {path[1]}"


def _by_path(settings: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _by_path(value, (*path, name))
        else:
            yield (*path, name), value


def write_settings(folder: Path, settings: Settings, anew: bool = False) -> None:
    """Write config.json: the settings, with those of models and tasks that only earlier commands named, and the
    provenance of the evaluation's start, which is now if it begins `anew`.
    """
    record = {} if anew else read_record(folder / CONFIG)
    merged = {stage: dict(values) for stage, values in settings.items()}
    earlier: Settings = {} if anew else stored_settings(folder)
    for stage, values in earlier.items():
        for name in {"models", "tasks"} & values.keys():
            known = {one: value for one, value in merged[stage][name].items() if value}
            merged[stage][name] = {**values[name], **known}
    start = {name: value for name, value in record.items() if name != "evaluation"}
    write_json(folder / CONFIG, {"evaluation": merged, **(start or provenance())})


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other programs. One in which nothing was generated is removed."""
    with writing(folder):
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
            if not (folder / COMPLETIONS).exists():
                (folder / CONFIG).unlink(missing_ok=True)
                (folder / LOCK).unlink(missing_ok=True)
                with suppress(OSError):  # they hold other evaluations, or completions that were set aside
                    folder.rmdir()
                    HOME.rmdir()


def dry_run(plan: EvaluationPlan, rows: dict[Key, Row], folder: Path, workers: Workers) -> None:
    """Load each local model, check that prompts fit, ask servers for their models, report the remaining work."""
    total = todo = 0
    with activity("checking", len(plan.models)) as done:
        for number, model in enumerate(plan.models):
            with closing(sampler_of(plan, model, workers)) as sampler:
                for task in plan.tasks:
                    sampler.check(task)
                    episodes, missing = sum(1 for _ in task.keys(model)), len(plan.missing(model, task, rows))
                    of_task = f"{len(task.examples)} examples, {missing} of {episodes} to generate"
                    logger.info(f"{model.name} on {task.name}: {of_task}")
                    total, todo = total + episodes, todo + missing
            done(number + 1, model.label)
    logger.info(f"no problems found; {todo} of {total} completions to generate, into {folder}")
