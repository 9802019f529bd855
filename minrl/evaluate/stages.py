"""The whole evaluation: check, generate, score, report. A stage that has its result is skipped."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.config import TaskOptions
from minrl.evaluate.check import check_models
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.folder import (
    COMPLETIONS,
    SCORES,
    SUMMARY,
    changed_since,
    folder_of,
    held_samples,
    locked,
    named_folder,
    set_aside,
    stored_settings,
    write_settings,
)
from minrl.evaluate.generate import generate
from minrl.evaluate.models import as_cached
from minrl.evaluate.plan import EvaluationPlan, make_plan
from minrl.evaluate.report import report, whole_report
from minrl.evaluate.rows import Key, Row, RowFile
from minrl.evaluate.score import PARTIAL, is_whole, score
from minrl.evaluate.settings import check_settings, settings_of
from minrl.evaluate.table import read_table
from minrl.report import charts
from minrl.rewards.judge import open_judge
from minrl.rewards.workers import Workers
from minrl.utils.console import Screen

LARGE_CUT_OFF = 0.1
"""The share of completions cut off at the limit above which a warning is shown."""


def evaluate(config: EvaluateConfig, options: TaskOptions, screen: Screen) -> tuple[Path, dict[str, Any] | None]:
    """The folder and its summary.json (None after a dry run). Finished work is not repeated."""
    if config.charts and not charts.available():
        logger.warning("no pictures: matplotlib is not installed (pip install matplotlib), or say --no-charts")
        config = replace(config, charts=False)
    plan = make_plan(config, options, {} if config.forced("generate") else held_samples(named_folder(config)))
    settings = settings_of(plan, options)
    folder = folder_of(config, plan, settings)
    stored = stored_settings(folder)
    if stored is not None and not config.forced("generate"):
        plan = plan.with_recorded(*(stored["generate"].get(name, {}) for name in ("models", "opponents")))
    if stored is not None:
        check_settings(folder, stored, settings, config.force)
    if config.dry_run:
        rows = RowFile(folder / COMPLETIONS).read()
        with open_judge(config.judge, ask=False):
            pass
        check_models(plan, {} if config.forced("generate") else rows, folder, screen)
        return folder, None
    workers = Workers(config.reward_workers, config.reward_deadline_s)
    with locked(folder):
        try:
            return folder, _stages(plan, options, folder, workers, screen)
        except KeyboardInterrupt:
            logger.warning(f"stopped; {folder} keeps what is done, and the same command goes on")
            raise
        finally:
            workers.close()


def _stages(
    plan: EvaluationPlan, options: TaskOptions, folder: Path, workers: Workers, screen: Screen
) -> dict[str, Any]:
    config, completions, table = plan.config, RowFile(folder / COMPLETIONS), folder / SCORES
    _forget(folder, config)
    rows = asked(plan, completions)
    lacking = any(key not in rows or "error" in rows[key] for key in plan.all_keys())
    adds = rows and (lacking or not is_whole(table, rows))
    if adds and (changed := "; ".join(changed_since(folder))):
        logger.warning(f"changed since this evaluation began, so that what is added may be of another kind: {changed}")
    write_settings(folder, settings_of(plan, options), anew=config.forced("generate"))
    if lacking:
        generate(plan, completions, workers, screen)
        rows = asked(plan, completions)
        complain(rows)
        plan = replace(plan, models=[as_cached(model) for model in plan.models])  # the commit of what was downloaded
        write_settings(folder, settings_of(plan, options))
    else:
        logger.info(f"{completions.path} is whole: nothing to generate")
    if is_whole(table, rows):
        logger.info(f"{table} is whole: nothing to score")
    else:
        (folder / SUMMARY).unlink(missing_ok=True)
        with open_judge(config.judge) as judge:
            score(plan.judged(judge), folder, table, rows, workers, screen)
    settings = settings_of(plan, options)
    summary = whole_report(folder, settings)
    if summary is None:
        summary = report(plan, folder, settings, read_table(table) or [], rows)
    say_cut_off(summary, config)
    return summary


def _forget(folder: Path, config: EvaluateConfig) -> None:
    """Remove the results of forced stages; completions are renamed."""
    if config.forced("generate"):
        set_aside(folder / COMPLETIONS)
    if config.forced("score"):
        (folder / SCORES).unlink(missing_ok=True)
        (folder / PARTIAL).unlink(missing_ok=True)
    if config.forced("report"):
        (folder / SUMMARY).unlink(missing_ok=True)


def asked(plan: EvaluationPlan, completions: RowFile) -> dict[Key, Row]:
    """The rows of the plan's episodes, in its order; the file may hold others."""
    rows = completions.read()
    return {key: rows[key] for key in plan.all_keys() if key in rows}


def complain(rows: Mapping[Key, Row]) -> None:
    """Report completions that failed, and those that a server refused."""
    errors = [row["error"] for row in rows.values() if "error" in row]
    if errors:
        logger.error(f"{len(errors)} completions could not be had, the first because: {errors[0]}")
    refused = [row for row in rows.values() if "refused" in row]
    if refused:
        kinds = ", ".join(f"{count} by {kind}" for kind, count in Counter(row["refused"] for row in refused).items())
        logger.warning(
            f"{len(refused)} of {len(rows)} completions were refused by the server ({kinds}): without a text they "
            f"count as not solved, and are not asked again; the first: {refused[0].get('failure', 'a text cut off')}"
        )


def say_cut_off(summary: Mapping[str, Any], config: EvaluateConfig) -> None:
    """Warn about figures whose completions were often cut off at the limit."""
    for result in summary["results"]:
        if result.get("truncated_frac", 0) > LARGE_CUT_OFF:
            logger.warning(
                f"{result['label']} on {result['task']}: {result['truncated_frac']:.0%} of the completions were cut "
                f"off at --max-tokens {config.limit_of(result['task'])}: the figure is that of the limit too, raise it"
            )
