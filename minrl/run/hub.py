"""A finished run's model at the Hugging Face hub, with a model card: `--push-to-hub NAME`.

All files of the checkpoint are pushed but those that only the run itself reads. The card becomes its README.md.
"""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml
from loguru import logger

import minrl
from minrl.dataflow import require
from minrl.evaluate.statistics import shown
from minrl.models.lora import CONFIG as ADAPTERS
from minrl.run.checkpoint import MOMENTS
from minrl.run.folder import STATE, RunFolder, step_of
from minrl.run.records import differing
from minrl.run.run import Run
from minrl.utils.cli import near, tool
from minrl.utils.files import write_text
from minrl.utils.text import first_line, without_keys

OF_THE_RUN = (MOMENTS, STATE)
"""Files of a checkpoint that are not pushed."""

OF_THE_PLACE = ("_url", "_urls", "_dir", "_variable")
"""Ends of settings that are not in the card: where the run was made is nobody's business."""

FOLDERS = re.compile(r"(?<![\w.:/~-])/(?:[^/:,\n]+/)+")
"""The folders of an absolute path."""


def require_hub(name: str) -> None:
    """Raise `UserError` if the name is none of the hub's, or the hub is out of reach for this process. Nothing is sent:
    whether the token may write is known at the end.
    """
    if not name:
        return
    from huggingface_hub import constants, get_token
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
        valid = "/" in name
    except HFValidationError:
        valid = False
    require(valid, f"push_to_hub must be the name of a repository of the hub, such as user/name, got {name!r}")
    offline = "--push-to-hub needs the hub, and HF_HUB_OFFLINE is set: unset it, or leave --push-to-hub out"
    require(not constants.HF_HUB_OFFLINE, offline)
    remedy = "log in with `hf auth login`, set HF_TOKEN, or leave --push-to-hub out"
    require(get_token() is not None, f"--push-to-hub finds no token of the hub: {remedy}")


def push(run: Run, summary: Mapping[str, Any], model: Path, base: str) -> bool:
    """Push a checkpoint, trained from the model `base`. Returns whether it is at the hub; else a warning has the
    command that pushes it: the run is complete all the same.
    """
    from huggingface_hub import HfApi

    name = run.config.push_to_hub
    write_text(model / "README.md", card(run, summary, model, base))
    try:
        api = HfApi(library_name="minrl", library_version=minrl.__version__)
        api.create_repo(name, exist_ok=True)
        message = f"{model.name} of the run {run.name}"
        api.upload_folder(repo_id=name, folder_path=model, ignore_patterns=[*OF_THE_RUN], commit_message=message)
    except Exception as error:  # the network's, the hub's, its client's
        words = [tool("hf"), "upload", name, near(model), ".", *(f"--exclude={one}" for one in OF_THE_RUN)]
        why = without_keys(first_line(error))
        logger.warning(f"not pushed to {name}: {why}; the run is complete, to push it later: {shlex.join(words)}")
        return False
    logger.info(f"pushed {near(model)} to {api.endpoint}/{name}")
    return True


def card(run: Run, summary: Mapping[str, Any], model: Path, base: str) -> str:
    """The model card of a checkpoint: metadata, origin, held-out scores, how it is loaded, settings."""
    name, step, program = run.config.push_to_hub, step_of(model), run.settings.program
    adapters, commit = (model / ADAPTERS).exists(), str(RunFolder(run.folder).record.get("commit") or "")[:7]
    facts: dict[str, Any] = {"base_model": base} if base and not os.path.isabs(base) else {}
    facts |= {"library_name": "peft" if adapters else "transformers", "pipeline_tag": "text-generation"}
    facts["tags"] = ["minrl", "reinforcement-learning" if program == "train" else program]
    origin = facts.get("base_model") or (Path(base).name if run.config.model_id else "a small model of MinRL's own")
    chosen = "best of the run by its held-out score" if step == summary.get("best", {}).get("step") else "last"
    settings = {key: value for key, value in differing(run).items() if not key.endswith(OF_THE_PLACE)}
    at = f" (commit {commit})" if commit else ""
    on = f" on the task `{summary['task']}`" if summary["task"] else ""
    auto = "AutoPeftModelForCausalLM" if adapters else "AutoModelForCausalLM"
    text = f"""---
{yaml.safe_dump(facts)}---

# {name.partition("/")[2]}

{"Adapters of " if adapters else ""}{origin}, trained by MinRL {minrl.__version__}{at} with
`{summary["algorithm"]}`{on}: step {step}, the
{chosen}.

{_scores(summary, step)}## How to load it

    from {facts["library_name"]} import {auto}
    from transformers import AutoTokenizer

    model = {auto}.from_pretrained("{name}")
    tokenizer = AutoTokenizer.from_pretrained("{name}")

## Settings that differ from the defaults

{indent(yaml.safe_dump(settings), "    ")}"""
    return FOLDERS.sub("", text)


def _scores(summary: Mapping[str, Any], step: int) -> str:
    """The table of held-out scores; empty if nothing was evaluated."""
    best, last, rows = summary.get("best", {}), summary["steps"], []
    other = best.get("step") == step != last
    for task, ends in {summary["task"]: summary, **summary["other_tasks"]}.items():
        found = [ends.get("eval_before"), ends.get("eval_after"), *([best if ends is summary else None] * other)]
        scores = [shown(one["pass@1"], one["ci95"]) if one else "-" for one in found]
        rows += [[task, *scores]] if any(found) else []
    head = ["held-out pass@1 (95 % interval)", "before", f"after step {last}", *([f"step {step}"] * other)]
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "## Held-out scores\n\n" + "\n".join(lines) + "\n\n" if rows else ""
