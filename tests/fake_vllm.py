"""A server that answers as vLLM's does, with a model of its own on this machine, until a test lets it misbehave."""

import contextlib
import copy
import json
import socket
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import torch

from minrl.dataflow import Request
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.engines.vllm_server import saved_in, served_by
from minrl.policy import Policy
from tests.decoding import decoded_logprobs
from tests.parsed import sized


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass


class FakeVllm:
    """`act(path, body)` is asked first: what it returns is the answer, as an object of JSON or as bytes with a status;
    None leaves it to the model, and `die` ends the server where it stands. `other` is what it says of itself besides
    what a server of the config says.
    """

    def __init__(self, policy: Policy, port: int = 0) -> None:
        self.own = replace(policy, model=copy.deepcopy(policy.model))
        with torch.no_grad():
            for weight in self.own.model.parameters():  # as of a load format `dummy`
                weight.normal_(0, 0.01)
        self.engine, self.token, self.loads = TorchEngine(self.own), "", True
        self.config, self.other = sized(), {}
        self.act = lambda path, body: None
        self.score = partial(decoded_logprobs, self.own.model)
        self.asked: list[tuple[str, dict]] = []
        self.lock, self.open = threading.Lock(), set()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                fake.open.add(self.connection)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
                answer = fake.respond(urlsplit(self.path).path, body)
                status, text = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
                with contextlib.suppress(OSError):  # the client may have given up, or the server died
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def respond(self, path: str, body: dict):
        self.asked.append((path, body))
        answer = self.act(path, body)
        if answer is not None:
            return answer
        with self.lock:
            try:
                return self.answer(path, body)
            except Exception as error:
                return 500, f"{type(error).__name__}: {error}".encode()

    def answer(self, path: str, body: dict):
        if path == "/collective_rpc":
            return {"results": [getattr(self, body["method"])(*body.get("args", []))]}
        if path == "/reset_prefix_cache":
            return {"success": True}
        if "prompt_logprobs" in body:
            scored = self.score(body["prompt"])
            entries = [{str(token): {"logprob": one}} for token, one in zip(body["prompt"][1:], scored, strict=True)]
            return {"choices": [{"prompt_logprobs": [None, *entries]}]}
        sampling = Sampling(body["temperature"], frozenset(body["stop_token_ids"]), tuple(body["stop"]))
        (one,) = self.engine.generate([Request(body["prompt"], body["seed"], body["max_tokens"])], sampling)
        logprobs = {"token_logprobs": one.logprobs}
        choice = {"token_ids": one.ids, "logprobs": logprobs, "finish_reason": one.finish_reason}
        return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 1}}}

    def minrl_describe(self):
        return {**served_by(self.config, self.own), **self.other, "token": self.token}

    def minrl_reload(self, folder, token):
        saved = saved_in(folder)
        with torch.no_grad():
            for name, weight in self.own.model.named_parameters():
                if self.loads:
                    weight.copy_(saved[name])
        self.token = token

    def minrl_differing(self, folder, version):
        weights, saved = dict(self.own.model.named_parameters()), saved_in(folder)
        wrong = [name for name in saved if not saved[name].equal(weights[name])]
        return {"wrong": wrong, "tensors": len(saved), "complete": True}

    def die(self) -> None:
        """What SIGKILL does: every connection ends, and nobody listens any more."""
        self.server.socket.close()
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def prompts(self) -> list[list[int]]:
        return [body["prompt"] for path, body in self.asked if "seed" in body]

    def close(self) -> None:
        self.die()
        self.server.shutdown()
