"""The end of a test run says what it left out and why: a line for each reason, with the number of tests.

Skipped tests say why themselves. Tests whose marker the run excludes are counted under that marker, with its
description from pyproject.toml and the command that runs them. `conftest.py` imports the hooks below. Under
pytest-xdist every worker deselects the same tests and tells the process that reports.
"""

import re
import shlex
from collections import Counter

import pytest

EXCLUDED = pytest.StashKey[Counter[str]]()
"""Deselected tests by the excluded marker that they carry."""


def excluded_markers(config: pytest.Config) -> list[str]:
    """
    >>> from types import SimpleNamespace as Of
    >>> excluded_markers(Of(option=Of(markexpr="browser and not gpu and not slow")))
    ['gpu', 'slow']
    """
    return re.findall(r"\bnot (\w+)", config.option.markexpr)


def command(marker: str, markers: list[str]) -> str:
    """What runs the tests counted under a marker: each test counts under its first one.

    >>> command("vllm", ["gpu", "vllm", "slow"])
    'make test ARGS="-m \\'vllm and not gpu\\'"'
    """
    expression = " and not ".join([marker, *markers[: markers.index(marker)]])
    return f'make test ARGS="-m {shlex.quote(expression)}"'


def pytest_configure(config: pytest.Config) -> None:
    config.stash[EXCLUDED] = Counter()


def pytest_deselected(items: list[pytest.Item]) -> None:
    config = items[0].config
    for item in items:
        carried = [marker for marker in excluded_markers(config) if item.get_closest_marker(marker)]
        config.stash[EXCLUDED].update(carried[:1])


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["excluded"] = dict(session.config.stash[EXCLUDED])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    told = getattr(node, "workeroutput", {}).get("excluded", {})  # a worker that crashed tells nothing
    node.config.stash[EXCLUDED] |= Counter(told)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    descriptions = dict(line.split(": ", 1) for line in config.getini("markers") if ": " in line)
    markers = excluded_markers(config)
    excluded = config.stash[EXCLUDED]
    lines = [
        (excluded[marker], f"{marker}: {descriptions.get(marker, 'excluded')}: {command(marker, markers)}")
        for marker in markers
        if excluded[marker]
    ]
    # A module that skips itself is reported by every worker: once is enough.
    reports = {report.nodeid: report for report in terminalreporter.stats.get("skipped", [])}
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports.values())
    lines += sorted(((count, reason) for reason, count in reasons.items()), key=lambda line: (-line[0], line[1]))
    if lines:
        terminalreporter.section("left out")
    for count, reason in lines:
        terminalreporter.line(f"{count:5} {reason}")
