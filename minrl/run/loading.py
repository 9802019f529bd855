"""A policy from a model's folder or hub name, refused if its log-probabilities cannot be computed here."""

from functools import cache
from pathlib import Path

from loguru import logger

from minrl.config import ModelConfig
from minrl.models.loading import load_model
from minrl.models.lora import adapted_layers, base_of, fold_in, require_peft
from minrl.models.processes import Processes
from minrl.models.shape import shape_of
from minrl.models.templates import settle_template
from minrl.policy import Policy, as_policy
from minrl.run.verify import Verified, verify
from minrl.types import UserError
from minrl.utils.progress import activity


def load_policy(path: str, config: ModelConfig, processes: Processes) -> Policy:
    """The model and tokenizer at a hub name or local path, with float32 weights on this process's device.

    Adapters at the path are merged into their base model.
    """
    base = base_of(path)
    if base is not None:
        require_peft(f"{path} holds LoRA adapters and")
    _check_threads(config.threads, processes.cores)
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
    with activity("verifying the model"):
        _say_what_is_slower(path, verify(policy.model))
    if policy.context_length < (whole := shape_of(model.config).context):
        logger.warning(
            f"{path} is kept to the original {policy.context_length} tokens of its context of {whole}, prompt and "
            "completion together: beyond them LongRoPE changes what every token before was sampled from"
        )
    return policy


def _say_what_is_slower(path: str, verified: Verified) -> None:
    """One line for each part of training that a model's architecture makes slower."""
    if not verified.method.packed:
        logger.warning(
            f"{path} is trained in padded rows, each with its own copy of the prompt, which takes longer: packed "
            f"streams are not right for it ({verified.why_not_packed})"
        )
    if verified.method.decoding == "recomputed":
        logger.warning(
            f"{path} is sampled without a cache by the embedded engine, which takes longer: transformers' own is not "
            f"right for it ({verified.why_not_cached})"
        )


@cache
def _check_threads(threads: int, cores: int) -> None:
    """Say once that there are more threads than cores."""
    if threads > cores:
        logger.warning(
            f"--threads {threads}: this process may use {cores} of the machine's cores, and more threads wait for each "
            f"other; leave the flag out, or give at most {cores}"
        )
