"""Serve a model through OpenAI's API on this machine, or chat with it in the terminal.

The main thread samples, another one runs the HTTP server. Only programs of this machine are served: requests that name
another host (DNS rebinding) are refused, and so is what is not declared as JSON, all that a page of another site can
send (CORS).
"""

import asyncio
import json
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from minrl.dataflow import Message, Prompt, UserError, require
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate.models import run_of, run_settings
from minrl.models.distributed import Processes
from minrl.run.folder import RunFolder, resolve_model
from minrl.run.setup import load_policy
from minrl.tools.serve.api import Answer, ApiError, ApiRequest, Delta, read_request
from minrl.tools.serve.config import ServeConfig
from minrl.tools.serve.sampler import Event, Job, Sampler
from minrl.utils.cli import Command
from minrl.utils.console import Screen
from minrl.utils.files import read_record, refusal
from minrl.utils.signals import exit_status
from minrl.utils.task_names import option_keys, weights_of
from minrl.utils.text import printable

HOST = "127.0.0.1"
INTERRUPTED = exit_status(signal.SIGINT)


def main(command: Command[ServeConfig]) -> int:
    """Serve, or chat, until a signal comes or the input ends."""
    run = run_of(command.config.checkpoint, command.config.runs_dir)
    config = as_trained(command, run) if run else command.config
    path = resolve_model(config.checkpoint, config.runs_dir)
    if config.chat:
        return chat(load_sampler(config, path), config, run.record.get("prompt") if run else None)
    with closing(listen(config.port)) as listener:  # a port that is taken is reported before the model is loaded
        sampler = load_sampler(config, path)
        if torch.cuda.is_available():
            sys.stderr.write(f"vLLM is faster on this GPU: {vllm_command(path, config.checkpoint)}\n")
        url = f"http://{HOST}:{listener.getsockname()[1]}/v1"
        sys.stdout.write(f"{url} serves {config.checkpoint} ({path}); Ctrl-C ends it\n")
        sys.stdout.flush()
        Thread(target=http_server(sampler, config.checkpoint).run, args=([listener],), daemon=True).start()
        while True:
            sampler.step()


def load_sampler(config: ServeConfig, path: str) -> Sampler:
    """The model at the path, ready to sample."""
    with Screen(config.quiet):
        policy = load_policy(path, config, Processes(config))
    Screen(quiet=True).__enter__()  # for the rest of the process: warnings, and no bars
    return Sampler(policy, TorchEngine(policy), config.max_tokens, config.stop_strings)


def as_trained(command: Command[ServeConfig], run: RunFolder) -> ServeConfig:
    """The config with the settings that the run was trained with, where the command sets nothing else."""
    trainer = run_settings(run).trainer
    trained = {name: getattr(trainer, name) for name in ("max_tokens", "stop_strings", "chat_template_options")}
    trained["stop_strings"] += tuple(run.record.get("task_stop_strings", ()))  # the task's own
    tasks = [*weights_of(trainer.task)]
    for name in tasks if len(tasks) == 1 else ():  # of the record: a program's task is known to that program alone
        own = run.config.get("tasks", {}).get(option_keys(name)[0], {})
        trained["max_tokens"] = own.get("max_tokens") or trained["max_tokens"]
    return command.over(trained).config


def vllm_command(path: str, name: str) -> str:
    """The command with which vLLM serves the model, or adapters on their base model."""
    base = read_record(Path(path) / "adapter_config.json").get("base_model_name_or_path")
    if base and not (Path(path) / "config.json").exists():
        return shlex.join(["vllm", "serve", base, "--enable-lora", "--lora-modules", f"{name}={path}"])
    return shlex.join(["vllm", "serve", path, "--served-model-name", name])


# The endpoint


def listen(port: int) -> socket.socket:
    """A socket at the port. Raises `UserError` if it is taken."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        why = f"port {port} of {HOST} is not available ({refusal(error)})"
        raise UserError(f"{why}: name another with --port, or 0 for any free one") from error


def http_server(sampler: Sampler, name: str) -> uvicorn.Server:
    """OpenAI's paths for one model. `server.run` answers in a thread while another one calls `sampler.step`."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "minrl"}]})

    async def answer(request: Request) -> Response:
        if request.headers.get("Content-Type", "").partition(";")[0] != "application/json":
            raise ApiError("send JSON, with the header Content-Type: application/json", 415)
        read = read_request(await request.body(), chat="chat" in request.url.path)
        if read.model not in ("", name):
            message = f"the model {read.model!r:.80} is not served here, {name!r} is"
            raise ApiError(message, 404, "model_not_found", "model")
        events = _events(sampler, read)
        form = Answer(read, name, await anext(events))  # type: ignore[arg-type]
        kind = "text/event-stream" if read.stream else "application/json"
        return StreamingResponse(_written(form, events), media_type=kind)  # cancelled if the client hangs up

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body, error.status)

    paths = ("/v1/chat/completions", "/v1/completions")
    app = Starlette(
        routes=[*(Route(path, answer, methods=["POST"]) for path in paths), Route("/v1/models", models)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])],
        exception_handlers={ApiError: refused},
    )
    return uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))


async def _events(sampler: Sampler, request: ApiRequest) -> AsyncIterator[Event]:
    """What the sampler reports of the request, which is cancelled if the reader leaves."""
    loop, queue, unfinished = asyncio.get_running_loop(), asyncio.Queue[Event](), request.n
    job = Job(request, lambda event: loop.call_soon_threadsafe(queue.put_nowait, event))
    sampler.submit(job)
    try:
        while unfinished:
            event = await queue.get()
            if isinstance(event, ApiError):
                raise event
            unfinished -= isinstance(event, Delta) and event.finish_reason is not None
            yield event
    finally:
        job.cancelled = True


async def _written(form: Answer, events: AsyncIterator[Event]) -> AsyncIterator[str]:
    """The body of the answer: a JSON object, or server-sent events."""
    deltas, stream = list[Delta](), form.request.stream
    async for event in events:
        assert isinstance(event, Delta)
        deltas.append(event)
        if stream:
            yield f"data: {json.dumps(form.body([event], usage=False))}\n\n"
    whole = json.dumps(form.body(deltas, usage=True))
    if not stream:
        yield whole
        return
    if form.request.include_usage:
        yield f"data: {whole}\n\n"
    yield "data: [DONE]\n\n"


# The terminal


def chat(sampler: Sampler, config: ServeConfig, example: Prompt | None = None) -> int:
    """A line of standard input is a message, and its answer appears as it is sampled. Where the prompts of the model's
    task are texts, such as the `example`, a line is the whole prompt; where they begin with a system message, so does
    the chat. Ctrl-C stops an answer.
    """
    plain, terminal = isinstance(example, str), sys.stdin.isatty() and sys.stdout.isatty()
    require(not (plain and config.system), "--system is for chats: the prompts of this run's task are plain texts")
    if not plain:
        sampler.policy.render([{"role": "user", "content": "x"}])  # refused now if there is no chat template
    if terminal:
        with suppress(ImportError):  # without it lines have no history
            import readline  # noqa: F401
        shown = f"a prompt of its task is {printable(example)!r:.80}; " if isinstance(example, str) else ""
        sys.stderr.write(f"{shown}/reset forgets the conversation, Ctrl-D ends it, Ctrl-C stops an answer\n")
    begun: list[Message] = [{"role": "system", "content": config.system}] if config.system else []
    if not begun and isinstance(example, list):
        begun = [message for message in example[:1] if message.get("role") == "system"]
    messages, seed = list(begun), config.seed
    with suppress(EOFError):
        while True:
            try:
                line = input("> " if terminal else "").strip()
            except UnicodeDecodeError as error:
                raise UserError(f"standard input must be UTF-8 text: {error}") from error
            asked: list[Message] = [*messages, {"role": "user", "content": line}]
            request = ApiRequest(prompt=line if plain else asked, temperature=config.temperature, seed=seed or None)
            if line == "/reset":
                messages = list(begun)
            elif line:
                try:
                    messages = [*asked, {"role": "assistant", "content": _said(sampler, request, terminal)}]
                    seed += bool(seed)
                except ApiError as error:
                    sys.stderr.write(f"error: {printable(error.message)} (/reset begins again)\n")
    return 0


def _said(sampler: Sampler, request: ApiRequest, terminal: bool) -> str:
    """The answer, shown while it is sampled, up to Ctrl-C."""
    events = list[Event]()

    def tell(event: Event) -> None:
        events.append(event)
        if isinstance(event, Delta):
            sys.stdout.write(printable(event.text) if terminal else event.text)
            sys.stdout.flush()

    job = Job(replace(request, stream=True), tell)
    sampler.submit(job)
    try:
        while not (events and (isinstance(events[-1], ApiError) or getattr(events[-1], "finish_reason", None))):
            sampler.step()
    except KeyboardInterrupt as stop:
        if getattr(stop, "status", INTERRUPTED) != INTERRUPTED:
            raise
    job.cancelled = True
    if events and isinstance(events[-1], ApiError):
        raise events[-1]
    sys.stdout.write("\n")
    return "".join(event.text for event in events if isinstance(event, Delta))
