"""A server that answers as vLLM's does, with a model of its own on this machine, until a test lets it misbehave."""

import contextlib
import copy
import socket
from dataclasses import replace
from functools import partial

import torch

from minrl.dataflow import Request
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.engines.vllm_server import saved_in, served_by
from tests.chat_server import ChatServer
from tests.decoding import decoded_logprobs
from tests.parsed import sized


class FakeVllm(ChatServer):
    """`act(path, body)` is asked first: what it returns is the answer; None leaves it to the model, and `die` ends the
    server where it stands. `other` is what it says of itself besides what a server of the config says.
    """

    def __init__(self, policy, port=0):
        self.own = replace(policy, model=copy.deepcopy(policy.model))
        with torch.no_grad():
            for weight in self.own.model.parameters():  # as of a load format `dummy`
                weight.normal_(0, 0.01)
        self.engine, self.token, self.loads = TorchEngine(self.own), "", True
        self.config, self.other = sized(), {}
        self.act = lambda path, body: None
        self.score = partial(decoded_logprobs, self.own.model)
        super().__init__(None, port)
        self.url, self.port = self.url.removesuffix("/v1"), self.server.server_port

    def respond(self, path, body):
        answer = self.act(path, body)
        if answer is not None:
            return answer
        with self.lock:
            return self.answer(path, body)

    def answer(self, path, body):
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

    def die(self):
        """What SIGKILL does: every connection ends, and nobody listens any more."""
        self.server.socket.close()
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def prompts(self):
        return [body["prompt"] for body in self.asked if "seed" in body]

    def close(self):
        self.die()
        super().close()
