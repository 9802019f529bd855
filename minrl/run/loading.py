"""A policy from a model's folder or hub name, refused if its log-probabilities cannot be computed here."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from loguru import logger

from minrl.batch import pack
from minrl.config import ModelConfig
from minrl.model.context import context_length
from minrl.model.loading import load_model
from minrl.model.lora import adapted_layers, base_of, fold_in, require_peft
from minrl.model.processes import Processes
from minrl.model.templates import settle_template
from minrl.policy import Policy, as_policy
from minrl.scoring import LARGEST_GAP, sampled_rollout, score, supports_packing
from minrl.system.cores import cpu_cores
from minrl.system.progress import activity
from minrl.types import CausalModel, UserError

WINDOW = 4
"""Tokens of a window of attention while scoring is verified."""


def load_policy(path: str, config: ModelConfig, processes: Processes) -> Policy:
    """The model and tokenizer at a hub name or local path, with float32 weights on this process's device.

    Adapters at the path are merged into their base model.
    """
    base = base_of(path)
    if base is not None:
        require_peft(f"{path} holds LoRA adapters and")
    _check_threads(config.threads, processes.split(cpu_cores()))
    try:
        with activity(f"loading {Path(path).name}"):
            model, tokenizer = load_model(base or path)
    except UserError as error:
        raise UserError(f"{path} holds adapters of {base}: {error}" if base else str(error)) from error
    if base is not None:
        fold_in(model, Path(path), base)
    elif adapted_layers(model):
        raise UserError(f"{path} holds LoRA adapters: download them, and give the local folder")
    policy = as_policy(model, tokenizer, config, processes)
    settle_template(policy, policy.model, config.chat_template, path)
    verify_scoring(policy.model)
    if policy.context_length < (whole := model.config.get_text_config().max_position_embeddings):
        logger.warning(
            f"{path} is kept to the original {policy.context_length} tokens of its context of {whole}, prompt and "
            "completion together: beyond them LongRoPE changes what every token before was sampled from"
        )
    return policy


@cache
def _check_threads(threads: int, cores: int) -> None:
    """Say once that there are more threads than cores."""
    if threads > cores:
        logger.warning(
            f"--threads {threads}: this process may use {cores} of the machine's cores, and more threads wait for each "
            f"other; leave the flag out, or give at most {cores}"
        )


@torch.no_grad()
def verify_scoring(model: CausalModel) -> None:
    """Refuse a model whose own log-probabilities differ from those of `score`: it caps or scales its logits, has a
    biased output head or attends in its own way. Two short rollouts with a common prompt are compared. They are longer
    than the windows of attention, which are narrowed for this.
    """
    ids = torch.linspace(1, model.get_output_embeddings().weight.shape[0] - 1, 18).long()
    prompt, *completions = (part.tolist() for part in ids.split([2 * WINDOW, 6, 4]))
    rollouts = [sampled_rollout(prompt, completion) for completion in completions]
    device = next(model.parameters()).device
    gap = 0.0
    with _narrow_windows(model):
        for part in [[0, 1]] if supports_packing(model) else [[0], [1]]:
            scores, _ = score(model, pack(rollouts, part).to(device), temperature=1.0)
            own = []
            for rollout in (rollouts[index] for index in part):
                row = torch.tensor([rollout.ids], device=device)
                logprobs = model(input_ids=row, use_cache=False).logits[0].float().log_softmax(-1)
                own.append(logprobs[len(prompt) - 1 : -1].gather(1, row[0, len(prompt) :, None])[:, 0])
            gap = max(gap, float((torch.cat(own) - scores).abs().max()))
    if not gap <= LARGEST_GAP:
        raise UserError(
            f"{type(model).__name__} cannot be trained: its own log-probabilities differ by {gap:.3g} nats from those "
            "of plain attention and a plain output head (capped or scaled logits, a window of a kind of its own?); "
            "choose a Llama- or Qwen-shaped one"
        )


@contextmanager
def _narrow_windows(model: CausalModel) -> Iterator[None]:
    """Narrow the windows of attention that are shorter than the context to WINDOW tokens inside. The config, from
    which a model makes its masks, and some layers hold them.
    """
    holders = [
        holder
        for holder in (model.config.get_text_config(), *model.modules())
        if WINDOW < (vars(holder).get("sliding_window") or 0) < context_length(model)
    ]
    windows = [holder.sliding_window for holder in holders]
    try:
        for holder in holders:
            holder.sliding_window = WINDOW
        yield
    finally:
        for holder, window in zip(holders, windows, strict=True):
            holder.sliding_window = window
