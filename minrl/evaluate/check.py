"""The dry run: everything that can be checked without generating a token."""

from collections.abc import Mapping
from pathlib import Path

from loguru import logger

from minrl.engines.choice import takes_vllm
from minrl.evaluate.generate import missing
from minrl.evaluate.local import check_prompts
from minrl.evaluate.models import NamedModel
from minrl.evaluate.plan import EvaluationPlan
from minrl.evaluate.rows import Key, Row
from minrl.evaluate.served import connect
from minrl.models.processes import Processes
from minrl.rewards.chat_client import ChatError
from minrl.run.setup import load_policy
from minrl.types import UserError
from minrl.utils.console import Screen


def check_models(plan: EvaluationPlan, rows: Mapping[Key, Row], folder: Path, screen: Screen) -> None:
    """Load each local model, check that prompts fit, ask servers for their models, report the remaining work."""
    with screen.progress("checking", len(plan.models)) as report:
        for number, model in enumerate(plan.models):
            if model.served:
                _check_server(plan, model)
            else:
                _check_local(plan, model)
            report(number + 1, model.label)
    total = todo = 0
    for model in plan.models:
        of_model = missing(plan, model, rows)
        for task in plan.tasks:
            episodes = sum(mode.samples for mode in task.modes) * len(task.examples)
            left = sum(batch.count for batch in of_model[task.name])
            logger.info(f"{model.name} on {task.name}: {len(task.examples)} examples, {left} of {episodes} to generate")
            total, todo = total + episodes, todo + left
    logger.info(f"nothing wrong; {todo} of {total} completions to generate, into {folder}")


def _check_local(plan: EvaluationPlan, model: NamedModel) -> None:
    config = plan.config
    policy = load_policy(model.name, config.model, Processes(config.model))
    limit = policy.context_length
    if takes_vllm(config.engine, policy.device.type):
        limit = min(config.engine.engine_context_length or limit, limit)
    for task in plan.tasks:
        check_prompts(policy, model, task, limit, config.limit_of(task.name))


def _check_server(plan: EvaluationPlan, model: NamedModel) -> None:
    client = connect(plan, model)
    try:
        known = client.served_models()
    except ChatError as error:
        raise UserError(f"{error}; nothing was asked of the model yet") from error
    finally:
        client.close()
    if model.served_name not in known:
        logger.warning(f"{model.name}: the server lists {', '.join(known[:5]) or 'no models'} and not this one")
