"""The whole evaluation: check, generate, score, report, each stage only where its result is not there yet."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loguru import logger

from minrl import charts
from minrl.config import TaskOptions
from minrl.evaluate_config import EvaluateConfig
from minrl.judge import open_judge
from minrl.pipeline.check import check_models
from minrl.pipeline.folder import (
    COMPLETIONS,
    SCORES,
    SUMMARY,
    Settings,
    check_settings,
    folder_of,
    locked,
    stored_settings,
    write_settings,
)
from minrl.pipeline.generate import generate
from minrl.pipeline.plan import Plan, make_plan, settings_of
from minrl.pipeline.report import report, whole_report
from minrl.pipeline.rows import Key, Row, RowFile
from minrl.pipeline.score import PARTIAL, is_whole, score
from minrl.pipeline.table import read_table
from minrl.screen import Screen
from minrl.workers import Workers


def evaluate(config: EvaluateConfig, options: TaskOptions, screen: Screen) -> tuple[Path, dict[str, Any] | None]:
    """The folder, and its summary.json (None after a dry run). What is there already is not done again."""
    if config.charts and not charts.available():
        logger.warning("no pictures: matplotlib is not installed (pip install matplotlib), or say --no-charts")
        config = replace(config, charts=False)
    plan = make_plan(config, options)
    settings = settings_of(plan, options)
    folder = folder_of(config, settings)
    stored = stored_settings(folder)
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
            return folder, _stages(plan, folder, settings, workers, screen)
        except KeyboardInterrupt:
            logger.warning(f"stopped; {folder} keeps what is done, and the same command goes on")
            raise
        finally:
            workers.close()


def _stages(plan: Plan, folder: Path, settings: Settings, workers: Workers, screen: Screen) -> dict[str, Any]:
    config, completions, table = plan.config, RowFile(folder / COMPLETIONS), folder / SCORES
    if config.forced("generate"):
        completions.path.unlink(missing_ok=True)
    if config.forced("score"):
        table.unlink(missing_ok=True)
        (folder / PARTIAL).unlink(missing_ok=True)
    if config.forced("report"):
        (folder / SUMMARY).unlink(missing_ok=True)
    write_settings(folder, settings)
    rows = completions.read()
    if any(key not in rows or "error" in rows[key] for key in plan.all_keys()):
        generate(plan, completions, workers, screen)
        rows = completions.read()
        complain(rows)
    else:
        logger.info(f"{completions.path} is whole: nothing to generate")
    if is_whole(table, rows):
        logger.info(f"{table} is whole: nothing to score")
    else:
        (folder / SUMMARY).unlink(missing_ok=True)
        with open_judge(config.judge) as judge:
            score(plan.judged(judge), folder, table, rows, workers, screen)
    summary = whole_report(folder, settings)
    if summary is None:
        summary = report(plan, folder, settings, read_table(table) or [], rows)
    return summary


def complain(rows: Mapping[Key, Row]) -> None:
    """Say what a server did not answer."""
    errors = [row["error"] for row in rows.values() if "error" in row]
    if errors:
        logger.error(f"{len(errors)} completions could not be had, the first because: {errors[0]}")
