"""The report's charts: curves of all runs over steps, tokens or seconds, scores before and after, seconds of a step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from minrl.report.runs import AXES, RunData, smoothed
from minrl.report.seeds import Group, mean
from minrl.report.svg import Bar, Curve, bars, chart

PANELS = (
    ("reward", "reward/mean", "linear"),
    ("share of rollouts solved", "reward/solved_frac", "share"),
    ("tokens of a completion", "rollout/completion_tokens_mean", "linear"),
    ("tokens of a solved completion", "rollout/completion_tokens_solved_mean", "linear"),
    ("tokens of an unsolved completion", "rollout/completion_tokens_unsolved_mean", "linear"),
    ("length's part of the reward", "reward/part/length", "linear"),
    ("share truncated", "rollout/truncated_frac", "share"),
    ("entropy of the policy, nats", "policy/entropy", "linear"),
    ("loss of held-out rows, nats", "sft/held_out_loss", "linear"),
    ("loss, nats", "sft/loss", "linear"),
    ("gap of engine and policy, nats", "engine/logprob_gap_mean", "log"),
    ("gradient norm", "policy/grad_norm", "linear"),
    ("sampled tokens per second", "speed/tokens_per_s", "linear"),
    ("peak memory, GiB", "memory/peak_gib", "linear"),
    ("memory, GB", "system/memory_gb", "linear"),
    ("memory of the card, GB", "system/device_memory_gb", "linear"),
    ("processor, % of the cores", "system/cpu_percent", "linear"),
)
"""Title, tag and scale of the panels beside the held-out score, in the order in which they are wanted."""


FEWEST_FOR_A_BAND = 3
"""Seeds of a mean with a band: the interval of two is 13 standard errors wide and would hide the curves."""


def curves(groups: Sequence[Group], axis: str, smoothing: float) -> list[str]:
    """A chart of each tag that the runs have, over `axis` of `AXES`; the held-out scores come second."""
    drawn = []
    for title, tag, scale in PANELS:
        found = [[_points(run, tag, smoothing) for run in group.runs] for group in groups]
        if any(len(points) > 1 for own in found for points in own):
            lines = [_curve(number, own, groups[number], axis, scale) for number, own in enumerate(found)]
            for number, group in enumerate(groups):
                if len(group.runs) == 1:
                    lines[number] = replace(lines[number], behind=[group.runs[0].over(axis, tag)])
            drawn.append(chart(title, lines, AXES[axis], scale, axis))
    tasks = dict.fromkeys(task for group in groups for run in group.runs for task in run.tasks)
    scores = [_scores(groups, task, axis) for task in tasks]
    return [*drawn[:1], *scores, *drawn[1:]]


def _points(run: RunData, tag: str, smoothing: float) -> dict[float, float]:
    """The smoothed values of a tag by step."""
    steps, values = run.curve(tag)
    return dict(zip(steps, smoothed(values, smoothing), strict=True))


def _scores(groups: Sequence[Group], task: str, axis: str) -> str:
    """The held-out score of a task: of a single run with its own interval, of several seeds with that over them."""
    lines = []
    for number, group in enumerate(groups):
        found = [{float(score.step): score.pass_at_1 for score in run.scores(task)} for run in group.runs]
        curve = _curve(number, found, group, axis, "share")
        if len(group.runs) == 1:
            x = group.runs[0].positions(axis)
            band = [(x[score.step], score.low, score.high) for score in group.runs[0].scores(task)]
            curve = replace(curve, band=band, dots=True)
        lines.append(curve)
    return chart(f"held-out pass@1 of {task}", lines, AXES[axis], "share", axis)


def _curve(number: int, values: Sequence[Mapping[float, float]], group: Group, axis: str, scale: str) -> Curve:
    """The mean over the runs of a group, at the steps that all of them have, with its interval and each run behind."""
    positions = [run.positions(axis) for run in group.runs]
    steps = [step for step in values[0] if all(step in one for one in values)]
    means = {step: mean([one[step] for one in values]) for step in steps}
    x = {step: sum(place[step] for place in positions) / len(positions) for step in steps}
    floor, ceiling = (0.0, 1.0) if scale == "share" else (-float("inf"), float("inf"))
    band = [
        (x[step], max(floor, one.low), min(ceiling, one.high))
        for step, one in means.items()
        if one.low is not None and one.high is not None and len(group.runs) >= FEWEST_FOR_A_BAND
    ]
    each = [[(place[step], value) for step, value in one.items()] for place, one in zip(positions, values, strict=True)]
    return Curve(number, [(x[step], one.value) for step, one in means.items()], band, each if len(each) > 1 else ())


def before_and_after(runs: Sequence[RunData]) -> list[str]:
    """For each task a chart with two bars a run: the score before the first step, and the last one after it."""
    charts = []
    for task in dict.fromkeys(task for run in runs for task in run.tasks):
        rows = [
            Bar(f"{when}: {run.name}", [(score.pass_at_1, number)], f"{score.pass_at_1:.1%}", (score.low, score.high))
            for run in runs
            for number, (when, score) in enumerate(zip(("before", "after"), run.before_and_after(task), strict=True))
            if score is not None
        ]
        charts.append(bars(f"held-out pass@1 of {task}, 95 % interval", rows, 1.0))
    return charts


def seconds(runs: Sequence[RunData]) -> str:
    """For each run a bar of the phases of a step, the longest first, with the whole behind it; empty without times."""
    shares = [_without_crumbs(run.seconds_by_phase()) for run in runs]
    totals = {phase: sum(share.get(phase, 0.0) for share in shares) for share in shares for phase in share}
    phases = sorted(totals, key=lambda phase: -totals[phase])
    limit = max(sum(share.values()) for share in shares)
    if not limit:
        return ""
    rows = [
        Bar(run.name, [(share.get(phase, 0.0), number) for number, phase in enumerate(phases)], f"{whole:.2f} s")
        for run, share in zip(runs, shares, strict=True)
        for whole in [sum(share.values())]
    ]
    return bars("seconds of a step", rows, limit, phases)


def _without_crumbs(phases: Mapping[str, float]) -> dict[str, float]:
    """The phases, with those below 1 % of the step added to `other`."""
    whole = sum(phases.values())
    seen = {phase: value for phase, value in phases.items() if value >= 0.01 * whole and phase != "other"}
    return {**seen, "other": whole - sum(seen.values())} if phases else {}
