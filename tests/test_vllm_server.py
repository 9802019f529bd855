"""The engine of servers against a small server of the tests that is right, wrong, slow, dead or another one."""

import asyncio
import errno
import json
import os
import resource
import signal
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from crew import crew

from minrl.__main__ import main
from minrl.config import EngineConfig
from minrl.engines import Engine, Sampling
from minrl.engines.choice import make_engine
from minrl.engines.seeds import mix_seed
from minrl.engines.torch_engine import TorchEngine
from minrl.engines.vllm.verify import SyncError
from minrl.engines.vllm_server import client, handover, weights
from minrl.engines.vllm_server.address import private_urls
from minrl.engines.vllm_server.engine import ServerEngine
from minrl.engines.vllm_server.weights import WeightsFolder
from minrl.engines.vllm_server.worker import Saved
from minrl.models.processes import Processes
from minrl.models.sharding import master_weights
from minrl.run.checkpoint import save_policy
from minrl.run.setup import sharded_policy
from minrl.types import Request, UserError
from tests.conftest import CPU
from tests.fake_vllm import FakeVllm
from tests.together import together

REQUESTS = [Request([5 + index // 2, 6, 7], 2**40 + index, 3 + index % 3) for index in range(8)]
SAMPLING = Sampling(0.9, frozenset([2]))


@pytest.fixture
def servers(policy):
    with ExitStack() as stack:
        yield [stack.enter_context(closing(FakeVllm(policy))) for _ in range(2)]


def config_of(servers, folder, **changes) -> EngineConfig:
    urls = ",".join(server.url for server in servers)
    return EngineConfig(engine="vllm-server", engine_urls=urls, engine_weights_dir=str(folder), **changes)


@pytest.fixture
def engine(servers, policy, tmp_path) -> ServerEngine:
    return make_engine(config_of(servers, tmp_path), policy)


def improve(policy) -> None:
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(1e-2 * torch.randn_like(weight))
    policy.version += 1


def own_completions(policy, sampling=SAMPLING):
    mixed = [replace(request, seed=mix_seed(request.seed)) for request in REQUESTS]
    return TorchEngine(policy).generate(mixed, sampling)


def same(found, expected) -> bool:
    assert [(one.ids, one.finish_reason) for one in found] == [(one.ids, one.finish_reason) for one in expected]
    torch.testing.assert_close([o.logprobs for o in found], [o.logprobs for o in expected], atol=1e-5, rtol=0)
    return True


def test_servers_sample_with_the_policys_weights_each_prompt_in_one_place(engine, servers, policy):
    assert isinstance(engine, Engine) and engine.needs_correction
    for _ in range(2):
        assert same(engine.generate(REQUESTS, SAMPLING), own_completions(policy))
        improve(policy)
        with pytest.raises(SyncError, match=r"update 0 and the policy is at 1|update 1 and the policy is at 2"):
            engine.generate(REQUESTS, SAMPLING)
        engine.sync(policy)
    engine.sync(policy)  # after a step without a gradient
    prompts = [{tuple(ids) for ids in server.prompts()} for server in servers]
    assert all(len(one) == 2 for one in prompts) and not prompts[0] & prompts[1]
    torch.testing.assert_close(engine.score([5, 6, 7]), TorchEngine(policy).score([5, 6, 7]), atol=1e-5, rtol=0)
    facts = engine.take_facts()
    assert facts["prompt_tokens"] - facts["prompt_tokens_computed"] == 2 * len(REQUESTS)
    assert facts["engine/sync_gap_max"] < 1e-5 and facts["engine/sync_checked_tensors"] > 20


def test_what_continues_a_prompt_goes_to_the_server_that_has_it(engine, servers):
    first = engine.generate(REQUESTS, SAMPLING)
    before = [{tuple(ids) for ids in server.prompts()} for server in servers]
    for server in servers:
        server.asked.clear()
    turns = [
        Request([*request.ids, *one.ids, 9], request.seed + 100, 2)
        for request, one in zip(REQUESTS, first, strict=True)
    ]
    engine.generate(turns[::-1], SAMPLING)
    assert [{tuple(ids[:3]) for ids in server.prompts()} for server in servers] == before


def test_stop_strings_and_stop_ids_are_handed_on(engine, policy):
    ids = max((one.ids for one in own_completions(policy)), key=len)
    sampling = Sampling(0.9, frozenset([ids[-2]]), (policy.decode_all(ids[1:2]),))
    assert same(engine.generate(REQUESTS, sampling), own_completions(policy, sampling))


def test_the_weights_do_not_stay_and_the_shape_does(engine, policy, tmp_path):
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"shape", "run"}  # the latter a lock
    assert json.loads((tmp_path / "shape/config.json").read_text())["architectures"] == [type(policy.model).__name__]
    assert not list((tmp_path / "shape").glob("*.safetensors"))
    engine.close()


@pytest.mark.parametrize("size", [1e-2, 1e-6])
def test_a_server_that_did_not_load_the_weights_is_caught_however_small_the_step(engine, servers, policy, size):
    servers[1].loads = False
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.add_(size)
    policy.version += 1
    with pytest.raises(SyncError, match=rf"update 1 the server at {servers[1].url} .*[1-9]\d* of .* tensors differ"):
        engine.sync(policy)
    with pytest.raises(SyncError, match="call sync"):
        engine.generate(REQUESTS, SAMPLING)


def test_a_server_that_computes_another_model_is_refused_at_the_start(servers, policy, tmp_path):
    servers[0].engine.score = lambda ids: [-1.0] * (len(ids) - 1)
    with pytest.raises(UserError, match=rf"vLLM 0.32.0 at {servers[0].url} does not compute Qwen3ForCausalLM"):
        make_engine(config_of(servers, tmp_path), policy)


def dies_at(server, count):
    """The server ends when it is asked for this completion."""

    def act(path, body):
        if len(server.prompts()) == count:
            server.die()
        return None

    return act


def test_a_server_that_dies_in_a_step_changes_no_sample_and_returns_after_a_sync(
    engine, servers, policy, said, monkeypatch
):
    servers[0].act = dies_at(servers[0], 3)
    assert same(engine.generate(REQUESTS, SAMPLING), own_completions(policy))
    assert sum(servers[0].url in line and "is lost" in line for line in said) == 1
    improve(policy)
    engine.sync(policy)
    assert same(engine.generate(REQUESTS, SAMPLING), own_completions(policy))
    with closing(FakeVllm(policy, servers[0].port)) as again:
        engine.generate(REQUESTS, SAMPLING)
        assert not again.asked  # nobody has verified it
        improve(policy)
        engine.sync(policy)
        assert same(engine.generate(REQUESTS, SAMPLING), own_completions(policy))
        assert again.prompts()
    assert sum("is lost" in line for line in said) == 1 and sum("is back" in line for line in said) == 1


def test_without_a_server_the_run_ends_with_every_reason(engine, servers):
    for server in servers:
        server.act = dies_at(server, 2)
    with pytest.raises(UserError, match="no server is left") as caught:
        engine.generate(REQUESTS, SAMPLING)
    said = str(caught.value)
    assert all(f"{server.url}: " in said for server in servers) and "\n" not in said


@pytest.fixture
def silence(servers) -> Iterator[None]:
    """The servers answer no request for a completion, until the test ends."""
    ended = threading.Event()
    for server in servers:
        server.act = lambda path, body: ended.wait(60) and None if "seed" in body else None
    yield
    ended.set()


def test_servers_that_are_too_slow_end_the_run(engine, silence):
    engine.config = replace(engine.config, engine_timeout_s=0.3)
    with pytest.raises(UserError, match=r"no answer within 0.3 s \(--engine-timeout-s\)"):
        engine.generate(REQUESTS, SAMPLING)


@pytest.mark.slow
def test_a_server_that_is_too_slow_is_replaced(engine, servers, policy, silence):
    engine.config = replace(engine.config, engine_timeout_s=10.0)  # the other one has so long
    servers[1].act = lambda path, body: None
    assert same(engine.generate(REQUESTS, SAMPLING), own_completions(policy))


@pytest.mark.parametrize("token", ["", "another run's"])
def test_what_was_sampled_with_other_weights_in_between_does_not_count(engine, servers, policy, token):
    def act(path, body):
        if len(servers[0].prompts()) == 3:
            servers[0].token = token
        return None

    servers[0].act = act
    if token:
        with pytest.raises(UserError, match="give each run servers of its own"):
            engine.generate(REQUESTS, SAMPLING)
    else:
        assert same(engine.generate(REQUESTS, SAMPLING), own_completions(policy))
        assert len(servers[1].prompts()) == len(REQUESTS)


def held_until(held, released, path, body):
    """A server's answers to the last of its requests wait."""
    if "seed" in body and body["seed"] in held:
        assert released.wait(60)


def test_completions_are_told_of_as_they_arrive_and_each_once(engine, servers, policy):
    assert engine.cores == 0
    released, told = threading.Event(), []
    for server in servers:
        server.act = partial(held_until, {mix_seed(REQUESTS[5].seed)}, released)

    def hear(completions):
        told.extend(completions)
        asyncio.run(asyncio.sleep(0))  # who listens may run a loop of its own
        if len(told) == len(REQUESTS) - 1:
            released.set()

    completions = engine.generate(REQUESTS, SAMPLING, ended=hear)
    assert same(completions, own_completions(policy))
    assert told[-1][0] == 5 and sorted(told, key=lambda one: one[0]) == list(enumerate(completions))
    facts = engine.take_facts()
    assert facts["prompt_tokens"] - facts["prompt_tokens_computed"] == len(REQUESTS)


@pytest.mark.parametrize("token", ["", "another run's"])
def test_what_was_told_of_is_not_asked_for_again_and_what_was_not_checked_is_not_told_of(
    engine, servers, policy, token
):
    """A server that changes its weights once one of its completions has been told of."""
    released, told = threading.Event(), []
    own = next(part for url, part in engine._servers.spread(REQUESTS, range(8)).items() if url == servers[0].url)
    servers[0].act = partial(held_until, {mix_seed(REQUESTS[index].seed) for index in own[1:]}, released)

    def hear(completions):
        told.extend(completions)
        if not released.is_set() and own[0] in dict(told):
            servers[0].token = token
            released.set()

    if token:
        with pytest.raises(UserError, match="give each run servers of its own"):
            engine.generate(REQUESTS, SAMPLING, ended=hear)
        assert not {*dict(told)} & {*own[1:]}
    else:
        completions = engine.generate(REQUESTS, SAMPLING, ended=hear)
        assert same(completions, own_completions(policy))
        assert sorted(told, key=lambda one: one[0]) == list(enumerate(completions))
        asked = [body["seed"] for _, body in servers[1].asked if "seed" in body]
        assert mix_seed(REQUESTS[own[0]].seed) not in asked and len(asked) == len(REQUESTS) - 1


def test_an_error_of_who_listens_ends_the_call_and_the_next_one_samples(engine, policy):
    def hear(completions):
        raise RuntimeError("not now")

    with pytest.raises(RuntimeError, match="not now"):
        engine.generate(REQUESTS, SAMPLING, ended=hear)
    assert same(engine.generate(REQUESTS, SAMPLING), own_completions(policy))


def answer(**changes):
    """A completion, with changes."""
    choice = {"token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0, -2.0]}, "finish_reason": "length"}
    return {"choices": [{**choice, **changes}], "usage": {"prompt_tokens": changes.get("prompt", 3)}}


ANSWERS = [
    ((200, b"<html>"), "answers what is no JSON: <html>"),
    ([], "answers what is no completion"),
    ({"choices": []}, "answers what is no completion"),
    (answer(token_ids=None), "answers what is no completion"),
    (answer(logprobs={"token_logprobs": [-1.0, float("nan")]}), "no finite numbers"),
    (answer(logprobs={"token_logprobs": [-1.0, None]}), "answers what is no completion"),
    (answer(logprobs={"token_logprobs": [-1.0]}), "1 log-probabilities of 2 tokens"),
    (answer(token_ids=[5.5, 6]), "no finite numbers"),
    (answer(token_ids=[], logprobs={"token_logprobs": []}), "0 tokens where 1 to"),
    (answer(token_ids=[5] * 9, logprobs={"token_logprobs": [-1.0] * 9}), "9 tokens where 1 to"),
    (answer(prompt=4), "4 prompt tokens where it was sent 3"),
    (answer(finish_reason="error"), "'error' in place of stop or length"),
    (answer(finish_reason="length"), "2 tokens as cut off, where"),
    ((400, b"no such token"), "refuses with status 400: no such token"),
]


def test_an_answer_that_is_none_ends_the_run_in_one_line(engine, servers):
    for said, expected in ANSWERS:
        servers[0].act = lambda path, body, said=said: said if "seed" in body else None
        with pytest.raises(UserError, match=expected) as caught:
            engine.generate(REQUESTS, SAMPLING)
        assert servers[0].url in str(caught.value) and "\n" not in str(caught.value)


def test_a_server_with_an_inner_error_is_replaced(engine, servers, policy):
    servers[0].act = lambda path, body: (500, b"EngineDeadError") if "seed" in body else None
    assert same(engine.generate(REQUESTS, SAMPLING), own_completions(policy))


OTHER_KINDS = [
    ({"version": "0.25.1"}, "runs vLLM 0.25.1, and 0.26 to 0.32 are supported"),
    ({"architectures": ["LlamaForCausalLM"]}, "serves LlamaForCausalLM, and the policy is a Qwen3ForCausalLM"),
    ({"shape": {"hidden_size": 32}}, "serves another model, with hidden_size 32 in place of 64"),
    ({"context_length": 16}, "takes 16 tokens, and 1024 are wanted"),
    ({"dtype": "bfloat16"}, "has dtype 'bfloat16' in place of 'float32'"),
    ({"logprobs_mode": "raw_logprobs"}, "has logprobs_mode 'raw_logprobs' in place of 'processed_logprobs'"),
    ({"generation_config": "auto"}, "has generation_config 'auto' in place of 'vllm'"),
    ({"quantization": "fp8"}, "has quantization 'fp8' in place of ''"),
    ({"speculative": True}, "has speculative True in place of False"),
    ({"replicas": 2}, "has replicas 2 in place of 1"),
]


def test_a_server_of_another_kind_is_refused_with_the_command_of_the_right_one(servers, policy, tmp_path):
    right = servers[1].described
    for described, expected in OTHER_KINDS:
        servers[1].described = right | described
        with pytest.raises(UserError) as caught:
            make_engine(config_of(servers, tmp_path), policy)
        said = str(caught.value)
        assert expected in said and "\n" not in said
        assert f"VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model {tmp_path}/shape" in said
        assert f"--host 127.0.0.1 --port {servers[1].port} --dtype float32 --max-model-len 1024" in said


def test_a_server_without_control_endpoints_is_refused_with_the_command(servers, policy, tmp_path):
    servers[0].act = lambda path, body: (404, b"Not Found") if path == "/collective_rpc" else None
    with pytest.raises(UserError, match=r"status 404: Not Found.*VLLM_SERVER_DEV_MODE=1"):
        make_engine(config_of(servers, tmp_path), policy)
    servers[0].act = lambda path, body: {"results": [None]} if path == "/collective_rpc" else None
    with pytest.raises(UserError, match=r"is no server of this run .*answers minrl_describe with \[None\]"):
        make_engine(config_of(servers, tmp_path), policy)
    servers[0].act = lambda path, body: (500, b"no attribute 'minrl_describe'") if path == "/collective_rpc" else None
    with pytest.raises(UserError, match=r"no attribute 'minrl_describe'.*--worker-extension-cls minrl"):
        make_engine(config_of(servers, tmp_path), policy)


def test_servers_that_are_not_there_are_waited_for(servers, policy, tmp_path, said, monkeypatch):
    monkeypatch.setattr(handover, "PAUSE_S", 0.01)
    monkeypatch.setattr(handover, "START_S", 0.1)
    servers[0].close()
    with pytest.raises(UserError, match=rf"{servers[0].url}: no connection .* for 0.1 s; start it with: ") as error:
        make_engine(config_of(servers, tmp_path), policy)
    assert "--no-enable-chunked-prefill" in str(error.value)  # with which a seed ends vLLM on a CPU
    assert "--no-enable-prefix-caching" not in str(error.value)
    assert sum(f"waiting for {servers[0].url}" in line for line in said) == 1


def test_no_proxy_is_asked(servers, policy, tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:9")
    assert same(make_engine(config_of(servers, tmp_path), policy).generate(REQUESTS, SAMPLING), own_completions(policy))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://8.8.8.8:8000", "8.8.8.8 is 8.8.8.8, not a loopback or private address"),
        ("http://169.254.169.254:80", "not a loopback or private address"),
        ("http://0.0.0.0:8000", "not a loopback or private address"),
        ("http://[2001:4860:4860::8888]:8000", "not a loopback or private address"),
        ("http://[::ffff:8.8.8.8]:8000", "not a loopback or private address"),
        ("http://100.64.0.1:8000", "not a loopback or private address"),
        ("http://127.0.0.1", "scheme, host and port alone"),
        ("http://127.0.0.1:8000/v1", "scheme, host and port alone"),
        ("127.0.0.1:8000", "must begin with http"),
        ("http://me:secret@127.0.0.1:8000", "must hold no key and no user"),
    ],
)
def test_servers_outside_of_private_networks_are_refused_in_one_line(url, expected):
    with pytest.raises(UserError, match=r".") as caught:
        private_urls([url])
    assert expected in str(caught.value) and "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_a_name_is_as_private_as_its_addresses(monkeypatch):
    found = {"card1": "10.0.0.7", "outside": "93.184.215.14"}
    monkeypatch.setattr("socket.getaddrinfo", lambda host, port: [(0, 0, 0, "", (found.get(host, host), 0))])
    assert private_urls(["http://card1:8001"]) == ["http://10.0.0.7:8001"]
    assert private_urls(["http://[fd00::1]:8001"]) == ["http://[fd00::1]:8001"]
    with pytest.raises(UserError, match=r"outside is 93.184.215.14, not a loopback"):
        private_urls(["http://outside:8001"])
    with pytest.raises(UserError, match="names a server twice"):
        private_urls(["http://card1:8001", "http://10.0.0.7:8001"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"engine": "vllm-server"}, "engine vllm-server needs engine_urls"),
        ({"engine": "vllm-server", "engine_urls": "http://127.0.0.1:1"}, "needs engine_weights_dir"),
        ({"engine_urls": "http://127.0.0.1:1"}, "engine_urls is read only with --engine vllm-server"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(settings, expected):
    with pytest.raises(UserError, match=expected):
        EngineConfig(**settings)


def test_several_processes_hand_the_weights_over_once_and_agree_on_what_came_of_it(
    servers, policy, make_policy, tmp_path
):
    def made(processes):
        own = make_policy(0)
        own.processes = processes
        return own

    def work(own):
        engine = make_engine(config_of(servers, tmp_path), own)
        found = [engine.generate(REQUESTS[own.processes.rank :: 2], SAMPLING)]
        with torch.no_grad():
            own.model.get_input_embeddings().weight.add_(1e-2)
        own.version += 1
        own.processes.wait()
        engine.sync(own)
        own.processes.wait()
        servers[1].loads = False
        own.version += 1
        with torch.no_grad():
            own.model.get_input_embeddings().weight.add_(1e-2)
        with pytest.raises(SyncError, match=servers[1].url):
            engine.sync(own)
        return found

    first, second = together(2, made, work)
    whole = own_completions(policy)
    assert same(first[0], whole[::2]) and same(second[0], whole[1::2])
    assert [server.count("minrl_reload") for server in servers] == [3, 3]


def sampled_with_shards(policy, config):
    """What a process with a part of the weights samples of its part of the requests, before and after an update."""
    with Processes(CPU).open() as processes:
        own = sharded_policy(lambda: policy, processes, "full")
        assert {type(weight).__name__ for weight in master_weights(own.model).values()} == {"DTensor"}
        engine, found = make_engine(config, own), []
        for _ in range(2):
            found.append(engine.generate(REQUESTS[processes.rank :: 2], SAMPLING))
            with torch.no_grad():
                for weight in master_weights(own.model).values():
                    weight.mul_(1.05)
            own.version += 1
            engine.sync(own)
        facts = engine.take_facts()
        engine.close()
        return found, facts


def test_servers_get_the_weights_of_shards(servers, policy, tmp_path):
    (first, facts), (second, _) = crew(2, sampled_with_shards, policy, config_of(servers, tmp_path))
    for before, after in zip(first, second, strict=True):
        whole = own_completions(policy)
        assert same(before, whole[::2]) and same(after, whole[1::2])
        with torch.no_grad():
            for weight in policy.model.parameters():
                weight.mul_(1.05)
    assert facts["engine/sync_checked_tensors"] > 20 and facts["engine/sync_gap_max"] < 1e-4
    assert [server.count("minrl_reload") for server in servers] == [3, 3]


def test_weights_are_written_in_parts_matrices_in_the_servers_precision(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PART", 40)
    tensors = {"matrix": torch.randn(3, 4), "vector": torch.randn(5), "count": torch.tensor([[2**40 + 1]])}
    folder = WeightsFolder(str(tmp_path))
    path = Path(folder.write(iter(tensors.items()), 7, torch.bfloat16))
    saved = Saved(path)
    assert set(saved) == set(tensors) and len(list(path.iterdir())) == 2
    assert saved["matrix"].equal(tensors["matrix"].bfloat16())
    assert saved["vector"].equal(tensors["vector"]) and saved["count"].equal(tensors["count"])
    again = Path(folder.write(iter(tensors.items()), 7, torch.float32))
    assert again != path and list(tmp_path.iterdir()) == [again]
    folder.remove()
    assert not list(tmp_path.iterdir())


def test_every_tensor_is_asked_for_although_the_disk_is_full(tmp_path, monkeypatch):
    def full(part, path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    asked = []
    monkeypatch.setattr(weights, "PART", 1)
    monkeypatch.setattr(weights, "save_file", full)

    def tensors():
        for name in "abc":
            asked.append(name)
            yield name, torch.ones(2, 2)

    with pytest.raises((OSError, UserError), match="No space left"):
        WeightsFolder(str(tmp_path)).write(tensors(), 0, torch.float32)
    assert asked == ["a", "b", "c"] and not list(tmp_path.iterdir())


def test_weights_of_killed_runs_are_removed_and_those_of_living_ones_are_not(tmp_path):
    def written():
        return {path.name for path in tmp_path.iterdir()}

    tensors = {"matrix": torch.ones(2, 2)}
    living = WeightsFolder(str(tmp_path))
    living.open()
    kept = Path(living.write(tensors.items(), 1, torch.float32)).name
    child = os.fork()
    if child == 0:
        killed = WeightsFolder(str(tmp_path))
        killed.open()
        path = Path(killed.write(tensors.items(), 2, torch.float32))
        path.with_name(f".{path.name[:-1]}2.tmp").mkdir()  # the next one, half written
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(written()) == 5
    following = WeightsFolder(str(tmp_path))
    following.open()
    assert {name for name in written() if "update" in name} == {kept} and len(written()) == 3
    following.close()
    living.close()
    assert not written()


def test_connections_leave_files_for_the_rest_of_the_process(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    assert client.most_connections() == 512
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert client.most_connections() is None


@pytest.mark.slow
def test_a_run_goes_on_with_servers_elsewhere(servers, policy, tmp_path):
    save_policy(policy, tmp_path / "model")
    places = ["--runs-dir", str(tmp_path / "runs"), "--checkpoints-dir", str(tmp_path / "checkpoints"), "--quiet"]

    def at(*servers, folder):
        urls = ",".join(server.url for server in servers)
        return ["--engine", "vllm-server", "--engine-urls", urls, "--engine-weights-dir", str(tmp_path / folder)]

    flags = (
        f"--model-id {tmp_path / 'model'} --prompts-per-step 2 --group-size 2 --max-tokens 3 --no-preflight --steps 1"
    )
    flags += (
        " --no-eval-first --eval-every 0 --eval-examples 2 --eval-samples 1 --threads 1 --device cpu --reward-workers 1"
    )
    assert main(["train", *flags.split(), *at(servers[0], folder="first"), *places]) == 0
    servers[0].close()
    resumed = ["--resume", "latest", "--steps", "2", *places]
    with pytest.raises(UserError, match=r"only --steps, --stop-at and --patience may change, got --engine"):
        main(["train", *resumed, "--engine", "torch"])
    assert main(["train", *resumed, *at(servers[1], folder="second")]) == 0
    (config,) = (tmp_path / "runs").glob("*/config.json")
    stored = json.loads(config.read_text())["config"]
    assert stored["engine_urls"] == servers[1].url and stored["engine_weights_dir"] == str(tmp_path / "second")
    assert servers[1].prompts()


class Wire:
    """Stands in for NCCL: what it sends a server is in its memory."""

    servers: ClassVar = {}

    def __init__(self, client, source):
        self.client, self.source = client, source

    @classmethod
    def trainer_init(cls, info, *, client, source):
        assert info.rank == 0 and info.world_size == 3 and info.master_address == "127.0.0.1" and info.master_port > 0
        client.init_weight_transfer_engine({"world_size": info.world_size})
        return cls(client, source)

    def send_weights(self):
        self.client.start_weight_update()
        sent = dict(self.source)
        assert [(one.name, one.dtype, one.shape) for one in self.source.metadata()] == [
            (name, tensor.dtype, tuple(tensor.shape)) for name, tensor in sent.items()
        ]
        for server in self.servers:
            if server.described["transfer"]:
                server.wire = sent
        self.client.update_weights({"names": list(sent)})
        self.client.finish_weight_update()

    def shutdown(self):
        self.servers = []


def test_weights_go_from_card_to_card_where_a_server_takes_them(servers, policy, make_policy, tmp_path, monkeypatch):
    @dataclass
    class Info:
        master_address: str
        master_port: int
        world_size: int
        rank: int

    meta = namedtuple("ParamMeta", "name dtype shape")
    stand_ins = {
        "nccl_engine": SimpleNamespace(NCCLTrainerInitInfo=Info, NCCLTrainerWeightTransferEngine=Wire),
        "base": SimpleNamespace(ParamMeta=meta, WeightSource=object),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, f"vllm.distributed.weight_transfer.{name}", stand_in)
    monkeypatch.setattr(handover, "takes_cards", lambda found, device: found["transfer"] == "nccl")
    monkeypatch.setattr(Wire, "servers", servers)
    servers[0].described |= {"transfer": "nccl", "tensor_parallel": 2}

    def work(own):
        engine = make_engine(config_of(servers, tmp_path), own)
        with torch.no_grad():
            own.model.get_input_embeddings().weight.add_(1e-2)
        own.version += 1
        engine.sync(own)
        found = engine.generate(REQUESTS, SAMPLING)
        own.processes.wait()
        engine.close()
        return found

    first, second = together(2, lambda processes: replace(make_policy(0), processes=processes), work)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.add_(1e-2)
    assert same(first, own_completions(policy)) and same(second, own_completions(policy))
    assert [server.count("minrl_reload") for server in servers] == [0, 2]
    assert [server.count("minrl_mark") for server in servers] == [2, 0]
    paths = [path for path, _ in servers[0].asked if "weight" in path]
    update = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
    assert paths == ["/init_weight_transfer_engine", *update, *update]
