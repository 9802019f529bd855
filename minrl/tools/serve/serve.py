"""Talk to a policy: an OpenAI-compatible endpoint on localhost, or a chat in the terminal."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Thread

from minrl.engines.choice import make_engine, takes_vllm
from minrl.models.processes import Processes
from minrl.run.folder import resolve_model
from minrl.run.setup import load_policy
from minrl.tools.serve.config import ServeConfig
from minrl.tools.serve.sampler import MOST_ROWS, Sampler
from minrl.tools.serve.server import ApiServer
from minrl.tools.serve.talk import talk
from minrl.tools.serve.trained import as_trained, prompt_of
from minrl.utils.cli import Command
from minrl.utils.console import Screen


def main(command: Command[ServeConfig]) -> int:
    """Serve, or talk, until a signal comes or the input ends."""
    config = as_trained(command)
    path = resolve_model(config.checkpoint, config.runs_dir)
    if config.chat:
        with _sampler(config, path) as sampler:
            return talk(sampler, config, prompt_of(config))
    with closing(ApiServer(config.checkpoint, config.port)) as server, _sampler(config, path) as sampler:
        server.sampler = sampler
        Thread(target=server.http.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.url} serves {config.checkpoint} ({path}); Ctrl-C ends it\n")
        sys.stdout.flush()
        sampler.serve()
    return 0


@contextmanager
def _sampler(config: ServeConfig, path: str) -> Iterator[Sampler]:
    """The model at the path, with its engine."""
    processes = Processes(config.model)
    takes_vllm(config.engine, processes.device.type)  # refused before the model is loaded
    with Screen(config.quiet):
        policy = load_policy(path, config.model, processes)
        engine = make_engine(config.engine, policy, MOST_ROWS, lambda: "start it again")
    with closing(engine), closing(Sampler(policy, engine, config.max_tokens, config.stop_strings)) as sampler:
        yield sampler
