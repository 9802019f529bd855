"""Every curve of MinRL: its tag, its meaning, and the chart of TensorBoard that shows it.

`docs/curves.md` and the page of charts are made from this list. Whatever else is logged is written too. `*` stands for
a name that a task or a setting gives. Tags of no chart have a curve of their own in the tab SCALARS.
"""

import re
from collections.abc import Collection, Mapping

FIRST = "Reward, held-out score, length, gap"
"""The row that is open; the others are closed."""

HELD_OUT = "Held-out score of each task with its 95 % interval"
"""Its charts are made for the tasks of a run."""

CURVES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    FIRST: {
        "reward/mean": ("reward", "mean reward of the step's rollouts that could be rewarded"),
        "eval/*/pass@1": ("held-out score", "share of held-out examples that one sample solves"),
        "rollout/limit_frac": ("length over the limit; truncated", "mean length of a completion's turn over its limit"),
        "rollout/truncated_frac": ("length over the limit; truncated", "share of completions that reached the limit"),
        "engine/logprob_gap_mean": (
            "gap and KL, nats",
            "mean distance of engine and policy in the log-probability of a token",
        ),
        "engine/kl": ("gap and KL, nats", "estimated divergence of the engine from the policy, per token"),
        "policy/ref_kl": ("gap and KL, nats", "estimated divergence from the reference, per token, with `--kl-coef`"),
    },
    HELD_OUT: {
        "eval/*/*": ("", "held-out figures of a task: the 95 % interval of pass@1 (`_low`, `_high`), the greedy score"),
        "task/*/*": ("", "of several tasks, the curves of rewards and rollouts of each"),
    },
    "Groups": {
        "reward/solved_frac": ("solved", "share of rollouts with the full reward"),
        "reward/solve_none_group_frac": ("solved groups", "share of groups in which no rollout is solved"),
        "reward/solve_some_group_frac": ("solved groups", "share of groups in which some are"),
        "reward/solve_all_group_frac": ("solved groups", "share of groups in which all are"),
        "task/*/reward/mean": ("reward of each task", "mean reward of one of several tasks"),
        "reward/part/*": ("parts of the reward", "mean of a part of the reward"),
        "reward/role/*": ("roles", "mean reward of a role, and of its parts"),
        "reward/unscorable_frac": ("unscorable share", "share of completions whose reward failed"),
        "eval/*/unscorable_frac": ("unscorable share", "the same of held-out completions"),
        "reward/std": ("", "standard deviation of the rewards"),
        "reward/zero_spread_group_frac": ("", "share of groups whose rewards are all equal: they have no advantage"),
        "baseline/*": ("", "moving average of a role's reward, where the algorithm has one"),
    },
    "Completions": {
        "rollout/completion_tokens_mean": ("tokens", "mean number of sampled tokens"),
        "rollout/completion_tokens_solved_mean": ("tokens", "the same of solved completions"),
        "rollout/completion_tokens_unsolved_mean": ("tokens", "the same of the others"),
        "rollout/temperature": ("temperature", "sampling temperature"),
        "rollout/completion_tokens_max": ("", "the longest completion"),
        "rollout/prompt_tokens_mean": ("", "mean number of prompt tokens"),
    },
    "Policy": {
        "policy/entropy": ("entropy, nats", "mean entropy of the policy at the sampled tokens"),
        "rollout/entropy": ("entropy, nats", "mean of -log p of the sampled tokens, as the engine sampled them"),
        "policy/grad_norm": ("gradient norm", "norm of the gradient before it is scaled to `--max-grad-norm`"),
        "policy/clip_low_frac": ("clipped tokens", "share of tokens whose ratio is clipped from below"),
        "policy/clip_high_frac": ("clipped tokens", "share of tokens whose ratio is clipped from above"),
        "policy/loss": ("loss", "loss of the update"),
        "sft/loss": ("loss", "mean of -log p of the response tokens that are trained on"),
        "sft/held_out_loss": ("loss", "the same of held-out rows"),
        "policy/learning_rate": ("learning rate", "learning rate of the last optimizer step"),
        "teacher/kl": ("teacher", "estimated divergence from the teacher, per token"),
        "teacher/preferred_frac": ("teacher", "share of sampled tokens that the teacher finds likelier"),
        "taught/agreement": ("movement and advantage", "share of tokens that moved the way their advantage points"),
        "taught/agreement_by_chance": ("movement and advantage", "that share if the two were independent"),
        "taught/alignment": ("movement and advantage", "sum of movement times advantage, over that of sizes"),
        "taught/spill_over": ("spill-over, engine lag", "movement of other prompts' tokens over that of trained ones"),
        "taught/engine_lag": ("spill-over, engine lag", "gap of engine and policy over the movement of trained tokens"),
        "taught/change_mean": ("", "mean movement of the trained tokens' log-probabilities, nats"),
        "policy/ratio_max": ("", "largest ratio of a token"),
        "policy/optimizer_steps": ("", "optimizer steps"),
        "policy/skipped_steps": ("", "optimizer steps that were skipped: the gradient was not finite"),
        "policy/trained_token_frac": ("", "share of sampled tokens that reach the gradient"),
        "update/computed_tokens": ("", "tokens that went through the model in the update"),
        "sft/entropy": ("", "mean entropy at the response tokens"),
        "sft/held_out_entropy": ("", "the same of held-out rows"),
        "sft/tokens": ("", "response tokens that were trained on"),
        "sft/epoch": ("", "passes over the rows so far"),
        "sft/optimizer_steps": ("", "optimizer steps of a round of expert iteration"),
        "expert/kept": ("", "completions that a round of expert iteration trains on"),
        "expert/kept_frac": ("", "their share"),
        "expert/solved_examples": ("", "examples with such a completion"),
    },
    "Engine": {
        "engine/importance_weight_mean": ("raw importance weight", "mean of exp(policy - engine) before the cap"),
        "engine/importance_weight_min": ("raw importance weight", "the smallest"),
        "engine/importance_weight_max": ("raw importance weight", "the largest"),
        "engine/ess": ("effective sample size; capped", "effective sample size of the importance weights, as a share"),
        "engine/importance_cap_frac": ("effective sample size; capped", "share of importance weights that are capped"),
        "engine/prompt_reuse_frac": ("prompt reuse", "share of prompt tokens that were not computed again"),
        "engine/sync_gap_max": ("sync gap, nats", "largest distance of engine and policy after a sync"),
        "engine/logprob_gap_max": ("", "largest distance of the two at a token"),
        "engine/sync_checked_tensors": ("", "weights that the check of a sync compared"),
    },
    "Cost": {
        "time/rollout_s": ("seconds", "sampling"),
        "time/reward_s": ("seconds", "waiting for rewards after sampling"),
        "time/compare_s": ("seconds", "advantages and batch"),
        "time/update_s": ("seconds", "the update"),
        "time/sync_s": ("seconds", "the engine's sleep, its waking and the new weights"),
        "time/eval_s": ("seconds", "evaluation, and what the update moved"),
        "time/log_s": ("seconds", "logging"),
        "time/save_s": ("seconds", "the checkpoint of the step before"),
        "time/other_s": ("seconds", "all else"),
        "time/step_s": ("seconds", "the step: the sum of the above"),
        "speed/tokens_per_s": ("tokens per second", "sampled tokens over the seconds of the step"),
        "speed/rollout_tokens_per_s": ("tokens per second", "the same over those of sampling"),
        "speed/update_tokens_per_s": ("tokens per second", "tokens computed in the update over its seconds"),
        "memory/peak_gib": ("memory, GiB", "peak of a process: on a GPU by torch, else resident"),
        "memory/rollout_gib": ("memory, GiB", "GPU memory in use, by anyone, after sampling"),
        "memory/update_gib": ("memory, GiB", "the same after the update"),
        "memory/sync_gib": ("memory, GiB", "the same after the sync"),
        "memory/eval_gib": ("memory, GiB", "the same after an evaluation"),
        "system/memory_gb": ("memory in use, GB", "resident memory of the process and all that it started"),
        "system/device_memory_gb": ("memory in use, GB", "GPU memory in use at the end of the step, by anyone"),
        "system/cpu_percent": ("processor time, %", "their processor time over the cores they may use"),
    },
}
"""By row: each tag with its chart, if it has one, and its meaning."""

HISTOGRAMS = {
    "reward/value": "rewards",
    "rollout/completion_tokens": "lengths",
    "engine/importance_weight": "raw importance weights of tokens",
}
"""Distributions of the steps whose rollouts are written."""


def pattern(tag: str) -> str:
    """A regular expression of the tags that an entry of the list stands for.

    >>> pattern("eval/*/pass@1")
    '^eval/.*/pass@1$'
    """
    return "^" + tag.replace("*", ".*") + "$"


def charts(logged: Collection[str]) -> dict[str, dict[str, list[str]]]:
    """The patterns of each chart, by row, without charts that show none of the tags logged: they would be empty."""
    rows = {}
    for row, tags in CURVES.items():
        shown: dict[str, list[str]] = {}
        for tag, (chart, _) in tags.items():
            if chart:
                shown.setdefault(chart, []).append(pattern(tag))
        shown = {chart: own for chart, own in shown.items() if any(re.match("|".join(own), tag) for tag in logged)}
        if shown:
            rows[row] = shown
    return rows


def table() -> str:
    """The list as Markdown."""
    lines = ["| curve | meaning |", "|---|---|"]
    for row, tags in CURVES.items():
        lines += [f"| **{row}** | |", *(f"| `{tag}` | {meaning} |" for tag, (_, meaning) in tags.items())]
    lines.append("| **Histograms**, of steps whose rollouts are written | |")
    return "\n".join([*lines, *(f"| `{tag}` | {meaning} |" for tag, meaning in HISTOGRAMS.items())])
