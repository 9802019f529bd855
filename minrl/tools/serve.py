"""Serve a model through OpenAI's API on this machine, or chat with it in the terminal.

The main thread samples, another one runs the HTTP server. Requests that wait when a batch ends are the next batch. Only
programs of this machine are served: requests that name another host (DNS rebinding) are refused, and so is what is not
declared as JSON, all that a page of another site can send (CORS).
"""

import asyncio
import json
import secrets
import shlex
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from queue import Queue
from threading import Thread
from typing import Annotated, Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from minrl.dataflow import Message, Prompt, Request, UserError, require
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate.models import FROM_RUN, run_of, run_settings
from minrl.models.distributed import Processes
from minrl.policy import Policy
from minrl.rollout import completion_seed
from minrl.run.base_model import require_known_words
from minrl.run.folder import RunFolder, resolve_model
from minrl.run.setup import load_policy
from minrl.tools.config import TEMPERATURE, ServeConfig
from minrl.utils.cli import Command
from minrl.utils.console import Screen
from minrl.utils.files import refusal
from minrl.utils.settings import Bound, Natural, Settings
from minrl.utils.signals import exit_status
from minrl.utils.task_names import option_keys, weights_of
from minrl.utils.text import is_unicode, printable

HOST = "127.0.0.1"
INTERRUPTED = exit_status(signal.SIGINT)

NEUTRAL: Mapping[str, Any] = {"top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": False}
"""Settings that are not supported, with the value that changes nothing. `user` is ignored."""

# Requests


class ApiError(Exception):
    """A refused request, in the form that OpenAI's clients read."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.status = message, status
        self.body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


@dataclass(frozen=True, kw_only=True)
class ApiRequest(Settings):
    """A request for `n` completions of a prompt: a text, or the messages of a chat."""

    prompt: Any
    model: str = ""
    n: Annotated[int, Bound(least=1, most=128)] = 1
    max_tokens: Natural = 0
    temperature: Annotated[float, TEMPERATURE] = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False


def read_request(body: bytes, chat: bool, temperature: float) -> ApiRequest:
    """The request in the body of a chat or a completion, with this temperature if it has none. What the sampler does
    not have is refused by name: nothing is sampled in another way than the request says. Raises `ApiError`.
    """
    try:
        given = json.loads(body)
        require(isinstance(given, dict), f"it must be an object, got {_shown(given)}")
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not a JSON object: {error!s:.200}") from error
    values = {name: value for name, value in given.items() if value is not None and name != "user"}
    try:
        for name in NEUTRAL.keys() & values.keys():
            value = values.pop(name)
            require(value == NEUTRAL[name], f"{name} {_shown(value)} is not supported: leave it out")
        values["prompt"] = _messages(values.pop("messages", None)) if chat else values.get("prompt")
        whole = chat or (isinstance(values["prompt"], str) and is_unicode(values["prompt"]))
        require(whole, f"prompt must be one Unicode text, got {_shown(values['prompt'])}")
        limit = values.pop("max_completion_tokens", 0 if chat else 16)  # 16 as at OpenAI
        values = {"temperature": temperature, "max_tokens": limit, **values}
        options = values.pop("stream_options", {})
        require(isinstance(options, dict), f"stream_options must be an object, got {_shown(options)}")
        values |= options
        stop = values.get("stop")
        require(stop != "" and not (isinstance(stop, list) and "" in stop), "stop must not be empty")
        for name in values.keys() - ApiRequest.__dataclass_fields__.keys():
            raise UserError(f"{name:.80} {_shown(values[name])} is not supported: leave it out")
        return ApiRequest(**values)
    except UserError as error:
        raise ApiError(str(error)) from error


def _messages(value: Any) -> list[Message]:  # noqa: ANN401 - JSON
    """A conversation. Parts of text are joined: many templates would print the list."""
    require(isinstance(value, list) and value != [], f"messages must be a list, not empty, got {_shown(value)}")
    messages: list[Message] = []
    for place, message in enumerate(value):
        given = {name: one for name, one in message.items() if one is not None} if isinstance(message, dict) else {}
        content = given.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
        fits = given.keys() <= {"role", "content", "name"} and isinstance(given.get("role"), str)
        fits = fits and all(isinstance(text, str) for text in texts)
        require(fits, f"messages[{place}] must have a role and a content of text alone, got {_shown(message)}")
        messages.append({"role": given["role"], "content": "".join(map(str, texts))})
    return messages


def _shown(value: object) -> str:
    return f"{json.dumps(value):.80}"


# Sampling


@dataclass(frozen=True)
class Delta:
    """What was added to a choice, with the number of sampled tokens; the last one has a finish reason."""

    index: int
    text: str
    tokens: int
    finish_reason: str | None


Event = int | Delta | ApiError
"""The number of prompt tokens once a request begins, then its deltas, or the error that ends it."""


class Job:
    """A request that is being answered. `tell` is called with each event by the thread that samples; whoever waits sets
    `cancelled` when nobody does any more.
    """

    def __init__(self, request: ApiRequest, tell: Callable[[Event], object]) -> None:
        self.request, self.tell, self.cancelled = request, tell, False


class Choice:
    """One completion of a request, as far as it is sampled."""

    def __init__(self, job: Job, index: int, asked: Request, stops: Sequence[str]) -> None:
        self.job, self.index, self.asked, self.stops = job, index, asked, stops
        self.ids, self.finish_reason = list[int](), ""
        self._text, self._tokens = "", 0

    def add(self, token: int, policy: Policy) -> bool:
        """Add a sampled token, and tell what no further token can change. Returns whether more are wanted."""
        self.ids.append(token)
        # Stop strings are searched in the text with its special tokens, as engines do. A token has at least one byte.
        recent = self.ids[-(4 * max(map(len, self.stops), default=0) + 8) :]
        if token in policy.stop_ids or any(stop in policy.decode_all(recent) for stop in self.stops):
            self.finish_reason = "stop"
        elif len(self.ids) >= self.asked.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason or self.job.request.stream:
            text = policy.decode(self.ids)
            text = text[: min((place for place in map(text.find, self.stops) if place >= 0), default=len(text))]
            if not self.finish_reason:
                text = settled(text, self.stops)
                text = text if text.startswith(self._text) else self._text  # of a tokenizer that rewrites earlier text
            added, tokens = text[len(self._text) :], len(self.ids) - self._tokens
            if added or self.finish_reason:
                self.job.tell(Delta(self.index, added, tokens, self.finish_reason or None))
                self._text, self._tokens = text, len(self.ids)
        return not self.finish_reason and not self.job.cancelled


def settled(text: str, stops: Sequence[str]) -> str:
    """The text without what may be half a character, or the beginning of a stop string.

    >>> settled("so\\ufffd", []), settled("one, tw", ["two", "wo"])
    ('so', 'one, ')
    """
    text = text.rstrip("\ufffd")
    begun = [size for stop in stops for size in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:size])]
    return text[: len(text) - max(begun, default=0)]


class Sampler:
    """Answers requests, those that wait together. `submit` may be called by any thread, `step` by one."""

    def __init__(self, policy: Policy, engine: TorchEngine, max_tokens: int, stop_strings: Sequence[str] = ()) -> None:
        self.policy, self.engine = policy, engine
        self._max_tokens, self._stops = max_tokens, (*stop_strings, *policy.stop_strings)
        self._new: Queue[Job] = Queue()
        self.submit = self._new.put

    def step(self) -> None:
        """Wait for a request, and answer all that are there: one call of the engine for each temperature."""
        jobs = [self._new.get()]
        while not self._new.empty():
            jobs.append(self._new.get())
        choices = [choice for job in jobs if not job.cancelled for choice in self._choices(job)]
        for temperature in dict.fromkeys(choice.job.request.temperature for choice in choices):
            rows = [choice for choice in choices if choice.job.request.temperature == temperature]
            add = lambda row, token, _logprob, rows=rows: rows[row].add(token, self.policy)  # noqa: E731
            self.engine.generate([one.asked for one in rows], Sampling(temperature, self.policy.stop_ids), add)

    def _choices(self, job: Job) -> list[Choice]:
        """The choices of a request; none, and the reason sent, if the model does not take its prompt."""
        request = job.request
        try:
            ids = self.policy.encode_prompt(request.prompt)
            require_known_words(self.policy, "the prompt", [request.prompt])
            require(bool(ids), "the prompt has no tokens")
            room = self.engine.context_length - len(ids)
            limit = request.max_tokens or min(self._max_tokens, room)
            takes = f"the model takes {room + len(ids)} tokens, prompt and completion together"
            require(0 < limit <= room, f"{takes}: the prompt has {len(ids)} and max_tokens is {limit}")
        except UserError as error:
            job.tell(ApiError(str(error)))
            return []
        job.tell(len(ids))
        seed = secrets.randbits(63) if request.seed is None else request.seed % 2**64
        seeds = [seed, *(completion_seed(seed, index) for index in range(1, request.n))]
        stops = (*request.stop, *self._stops)
        return [Choice(job, index, Request(ids, own, limit), stops) for index, own in enumerate(seeds)]


# The endpoint


def answer_body(head: Mapping[str, Any], prompt_tokens: int, deltas: Sequence[Delta], usage: bool) -> dict[str, Any]:
    """The whole answer or a chunk of a stream, by the `object` in its head."""
    kind, choices = head["object"], []
    for index in sorted({delta.index for delta in deltas}):
        own = [delta for delta in deltas if delta.index == index]
        text, place = "".join(delta.text for delta in own), "delta" if "chunk" in kind else "message"
        form = {place: {"role": "assistant", "content": text}} if "chat" in kind else {"text": text}
        choices.append({"index": index, **form, "logprobs": None, "finish_reason": own[-1].finish_reason})
    sampled = sum(delta.tokens for delta in deltas)
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": sampled, "total_tokens": prompt_tokens + sampled}
    return {**head, "choices": choices, **({"usage": counts} if usage else {})}


def http_server(sampler: Sampler, name: str, temperature: float = 1.0) -> uvicorn.Server:
    """OpenAI's paths for one model. `server.run` answers in a thread while another one calls `sampler.step`."""

    async def models(_: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "minrl"}]})

    async def answer(http: HttpRequest) -> Response:
        if http.headers.get("Content-Type", "").partition(";")[0] != "application/json":
            raise ApiError("send JSON, with the header Content-Type: application/json", 415)
        chat = "chat" in http.url.path
        request = read_request(await http.body(), chat, temperature)
        if request.model not in ("", name):
            raise ApiError(f"the model {request.model!r:.80} is not served here, {name!r} is", 404)
        events = _events(sampler, request)
        prompt_tokens = await anext(events)  # or its refusal
        kind = f"chat.completion{'.chunk' if request.stream else ''}" if chat else "text_completion"
        head = {"id": f"minrl-{uuid.uuid4().hex}", "created": int(time.time()), "model": name, "object": kind}
        media_type = "text/event-stream" if request.stream else "application/json"
        return StreamingResponse(_written(request, head, prompt_tokens, events), media_type=media_type)

    async def refused(_: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body, error.status)

    paths = ("/v1/chat/completions", "/v1/completions")
    app = Starlette(
        routes=[*(Route(path, answer, methods=["POST"]) for path in paths), Route("/v1/models", models)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])],
        exception_handlers={ApiError: refused},
    )
    return uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))


async def _events(sampler: Sampler, request: ApiRequest) -> AsyncIterator[Any]:
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


async def _written(
    request: ApiRequest, head: Mapping[str, Any], prompt_tokens: int, events: AsyncIterator[Delta]
) -> AsyncIterator[str]:
    """The body of the answer: a JSON object, or server-sent events."""
    deltas = list[Delta]()
    async for delta in events:  # cancelled if the client hangs up
        deltas.append(delta)
        if request.stream:
            yield f"data: {json.dumps(answer_body(head, prompt_tokens, [delta], usage=False))}\n\n"
    whole = answer_body(head, prompt_tokens, deltas, usage=True)
    if not request.stream:
        yield json.dumps(whole)
        return
    if request.include_usage:
        yield f"data: {json.dumps({**whole, 'choices': []})}\n\n"
    yield "data: [DONE]\n\n"


# The program


def main(command: Command[ServeConfig]) -> int:
    """Serve, or chat, until a signal comes or the input ends."""
    run = run_of(command.config.checkpoint, command.config.runs_dir)
    config = as_trained(command, run) if run else command.config
    path = resolve_model(config.checkpoint, config.runs_dir)
    if config.chat:
        return chat(_load(path, config), config, run.record.get("prompt") if run else None)
    try:
        listener = socket.create_server((HOST, config.port))  # before the model is loaded
    except OSError as error:
        why = f"port {config.port} of {HOST} is not available ({refusal(error)})"
        raise UserError(f"{why}: name another with --port, or 0 for any free one") from error
    with closing(listener):
        sampler = _load(path, config)
        if torch.cuda.is_available():
            vllm = shlex.join(["vllm", "serve", path, "--served-model-name", config.checkpoint])
            sys.stderr.write(f"vLLM is faster on this GPU: {vllm}\n")
        url = f"http://{HOST}:{listener.getsockname()[1]}/v1"
        sys.stdout.write(f"{url} serves {config.checkpoint} ({path}); Ctrl-C ends it\n")
        sys.stdout.flush()
        server = http_server(sampler, config.checkpoint, config.temperature)
        Thread(target=server.run, args=([listener],), daemon=True).start()
        while True:
            sampler.step()


def _load(path: str, config: ServeConfig) -> Sampler:
    with Screen(config.quiet):
        policy = load_policy(path, config, Processes(config))
    Screen(quiet=True).__enter__()  # for the rest of the process: warnings, and no bars
    return Sampler(policy, TorchEngine(policy), config.max_tokens, config.stop_strings)


def as_trained(command: Command[ServeConfig], run: RunFolder) -> ServeConfig:
    """The config with the settings that the run was trained with, where the command sets nothing else."""
    trainer = run_settings(run).trainer
    trained = {name: getattr(trainer, name) for name in FROM_RUN}
    trained["stop_strings"] += tuple(run.record.get("task_stop_strings", ()))  # the task's own
    tasks = [*weights_of(trainer.task)]
    for name in tasks if len(tasks) == 1 else ():  # of the record: a program's task is known to that program alone
        own = run.config.get("tasks", {}).get(option_keys(name)[0], {})
        trained["max_tokens"] = own.get("max_tokens") or trained["max_tokens"]
    return command.over(trained).config


def chat(sampler: Sampler, config: ServeConfig, example: Prompt | None = None) -> int:
    """A line of standard input is a message, and its answer appears as it is sampled. Where the prompts that a run was
    trained on are texts, such as the `example`, a line is the whole prompt; where they begin with a system message, so
    does the chat. Ctrl-C stops an answer.
    """
    plain, terminal = isinstance(example, str) and example != "", sys.stdin.isatty()  # "": of an episode, whose turns
    require(not (plain and config.system), "--system is for chats: the prompts of this run's task are plain texts")
    if terminal:
        shown = f"a prompt of its task is {printable(str(example))!r:.80}; " if plain else ""
        sys.stderr.write(f"{shown}/reset forgets the conversation, Ctrl-D ends it, Ctrl-C stops an answer\n")
    begun: list[Message] = [{"role": "system", "content": config.system}] if config.system else []
    if not begun and isinstance(example, list):
        begun = [message for message in example[:1] if message.get("role") == "system"]
    messages = list(begun)
    with suppress(EOFError):
        while True:
            line = input("> " if terminal else "").strip()
            if line in ("", "/reset"):
                messages = list(begun) if line else messages
                continue
            asked: list[Message] = [*messages, {"role": "user", "content": line}]
            prompt = line if plain else asked
            try:
                said = _said(sampler, ApiRequest(prompt=prompt, temperature=config.temperature, stream=True))
                messages = [*asked, {"role": "assistant", "content": said}]
            except ApiError as error:
                sys.stderr.write(f"error: {printable(error.message)} (/reset begins again)\n")
    return 0


def _said(sampler: Sampler, request: ApiRequest) -> str:
    """The answer, shown while it is sampled, up to Ctrl-C. Raises `ApiError` if there is none."""
    events = list[Event]()

    def tell(event: Event) -> None:
        events.append(event)
        if isinstance(event, Delta):
            sys.stdout.write(printable(event.text))
            sys.stdout.flush()

    sampler.submit(Job(request, tell))
    try:
        sampler.step()
    except KeyboardInterrupt as stop:
        if getattr(stop, "status", INTERRUPTED) != INTERRUPTED:
            raise
    if events and isinstance(events[-1], ApiError):
        raise events[-1]
    sys.stdout.write("\n")
    return "".join(event.text for event in events if isinstance(event, Delta))
