"""The engine of servers against a small server of the tests that is right, wrong, slow, dead or another one."""

import asyncio
import json
import re
import threading
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
import torch
from crew import crew

from minrl.dataflow import Request, UserError
from minrl.engines import Engine, Sampling, make_engine, vllm_server
from minrl.engines.torch_engine import TorchEngine, mix_seed
from minrl.engines.vllm_server import server_command, server_urls
from minrl.engines.vllm_sync import SyncError
from minrl.models.distributed import Processes
from minrl.models.sharding import named_weights, sharded_policy
from tests.conftest import CPU, improve
from tests.fake_vllm import FakeVllm
from tests.parsed import sized

REQUESTS = [Request([5 + index // 2, 6, 7], 2**40 + index, 3 + index % 3) for index in range(8)]
SAMPLING = Sampling(0.9, frozenset([2]))


@pytest.fixture
def servers(policy):
    with ExitStack() as stack:
        yield [stack.enter_context(closing(FakeVllm(policy))) for _ in range(2)]


@pytest.fixture
def config(servers, tmp_path):
    return config_of(servers, tmp_path)


@pytest.fixture
def engine(config, policy):
    return make_engine(config, policy)


def config_of(servers, folder):
    urls = ",".join(server.url for server in servers)
    config = sized(engine="vllm-server", engine_urls=urls, engine_weights_dir=str(folder))
    for server in servers:
        server.config = config
    return config


def own_completions(policy, sampling=SAMPLING):
    mixed = [replace(request, seed=mix_seed(request.seed)) for request in REQUESTS]
    return TorchEngine(policy).generate(mixed, sampling)


def same(found, expected):
    assert [(one.ids, one.finish_reason) for one in found] == [(one.ids, one.finish_reason) for one in expected]
    torch.testing.assert_close([o.logprobs for o in found], [o.logprobs for o in expected], atol=1e-5, rtol=0)
    return True


def test_servers_sample_with_the_policys_weights_each_prompt_in_one_place(engine, servers, policy, tmp_path):
    assert isinstance(engine, Engine) and engine.needs_correction and engine.cores == 0
    ids = max((one.ids for one in own_completions(policy)), key=len)
    stopped = Sampling(0.9, frozenset([ids[-2]]), (policy.decode_all(ids[1:2]),))
    assert same(engine.generate(REQUESTS, stopped), own_completions(policy, stopped))
    assert same(engine.generate(REQUESTS, SAMPLING), own_completions(policy))
    improve(policy)
    with pytest.raises(SyncError, match="update 0 and the policy is at 1"):
        engine.generate(REQUESTS, SAMPLING)
    engine.sync(policy)
    engine.take_facts()
    assert same(engine.generate(REQUESTS, SAMPLING), own_completions(policy))
    engine.sync(policy)  # after a step without a gradient
    prompts = [{tuple(ids) for ids in server.prompts()} for server in servers]
    assert all(len(one) == 2 for one in prompts) and not prompts[0] & prompts[1]
    facts = engine.take_facts()
    assert facts["prompt_tokens"] - facts["prompt_tokens_computed"] == len(REQUESTS)
    assert facts["engine/sync_gap_max"] < 1e-5 and facts["engine/sync_checked_tensors"] > 20
    assert {path.name for path in tmp_path.iterdir()} == {"shape"}  # the weights do not stay
    assert json.loads((tmp_path / "shape/config.json").read_text())["architectures"] == [type(policy.model).__name__]


def test_a_server_that_did_not_load_the_weights_is_caught_however_small_the_step(engine, servers, policy):
    servers[1].loads = False
    improve(policy, 1e-6)
    with pytest.raises(SyncError, match=rf"update 1 vLLM 0.32 at {servers[1].url} .*[1-9]\d* of .* tensors differ"):
        engine.sync(policy)
    with pytest.raises(SyncError, match="call wake"):
        engine.generate(REQUESTS, SAMPLING)


def test_completions_are_reported_as_they_arrive_and_each_once(engine, servers, policy):
    released, told = threading.Event(), []

    def act(path, body):  # the answer to one request waits for all others
        if body.get("seed") == mix_seed(REQUESTS[5].seed):
            assert released.wait(60)

    def hear(completions):
        told.extend(completions)
        asyncio.run(asyncio.sleep(0))  # who listens may run a loop of its own
        if len(told) == len(REQUESTS) - 1:
            released.set()

    for server in servers:
        server.act = act
    completions = engine.generate(REQUESTS, SAMPLING, on_end=hear)
    assert same(completions, own_completions(policy))
    assert told[-1][0] == 5 and sorted(told, key=lambda one: one[0]) == list(enumerate(completions))


def test_an_answer_without_a_completion_or_none_in_time_ends_the_run_in_one_line(engine, servers):
    ended = threading.Event()
    choice = {"finish_reason": "abort", "token_ids": [], "logprobs": {"token_logprobs": []}}  # vLLM's on SIGTERM
    servers[0].act = lambda path, body: {"success": False} if path == "/reset_prefix_cache" else None
    with pytest.raises(UserError, match="did not empty its prefix cache"):
        engine.sync(engine.policy)
    servers[0].act = lambda path, body: None
    engine.sync(engine.policy)
    for answer, limit_s, expected in (
        (lambda: {"choices": [choice], "usage": {}}, 60, "it ended a completion with 'abort'"),
        (
            lambda: (500, {}, "EngineDeadError\nmore"),
            60,
            "/v1/completions answers with status 500: EngineDeadError more",
        ),
        (lambda: ended.wait(60) and None, 0.2, "no answer within 0.2 s (--engine-timeout-s)"),
    ):
        engine.config = replace(engine.config, engine_timeout_s=limit_s)
        for server in servers:
            server.act = lambda path, body, answer=answer: answer() if "seed" in body else None
        with pytest.raises(UserError, match=re.escape(expected)) as caught:
            engine.generate(REQUESTS, SAMPLING)
        assert str(caught.value).startswith("http://127.0.0.1") and "\n" not in str(caught.value)
    ended.set()


def test_a_server_that_dies_ends_the_run_and_says_how_to_start_it_and_to_resume(servers, policy, config, tmp_path):
    engine = make_engine(config, policy, resumption=lambda: "resume with: minrl train --resume x")
    servers[0].act = lambda path, body: servers[0].die() if path == "/v1/completions" else None
    with pytest.raises(UserError, match=r"no connection") as caught:
        engine.generate(REQUESTS, SAMPLING)
    said, command = str(caught.value), server_command(engine._served, policy, servers[0].url)
    assert said.startswith(servers[0].url) and "\n" not in said
    assert f"start it with: {command}; resume with: minrl train --resume x" in said
    (tmp_path / "update-000002-abc").mkdir()  # weights of the run that was killed
    (tmp_path / ".update-000003-abc.tmp").mkdir()  # the next ones, half written
    with closing(FakeVllm(policy, servers[0].port)) as again:  # started again, for a run that is resumed
        resumed = make_engine(config_of([again, servers[1]], tmp_path), policy)
        assert same(resumed.generate(REQUESTS, SAMPLING), own_completions(policy))
    assert [path.name for path in tmp_path.iterdir()] == ["shape"]


def test_what_was_sampled_with_other_weights_ends_the_run(engine, servers):
    def act(path, body):
        if len(servers[0].prompts()) == 3:
            servers[0].token = ""

    servers[0].act = act
    with pytest.raises(UserError, match="it has started anew, without the policy's weights"):
        engine.generate(REQUESTS, SAMPLING)


def test_a_server_of_another_kind_is_refused_with_the_command_of_the_right_one(servers, policy, config, tmp_path):
    servers[1].other = {"version": "0.25"}
    with pytest.raises(UserError, match=r"has version '0\.25' in place of '0\.32'") as caught:
        make_engine(config, policy)
    started = f"python -m vllm.entrypoints.openai.api_server --model {tmp_path}/shape"
    assert f"VLLM_SERVER_DEV_MODE=1 VLLM_USE_FLASHINFER_SAMPLER=0 {started}" in str(caught.value)
    assert f"--host 127.0.0.1 --port {servers[1].port} --dtype float32 --max-model-len 1024" in str(caught.value)


def test_servers_that_are_not_there_are_waited_for(servers, policy, config, said, monkeypatch):
    monkeypatch.setattr(vllm_server, "PAUSE_S", 0.01)
    monkeypatch.setattr(vllm_server, "START_S", 0.1)
    servers[0].close()
    with pytest.raises(UserError, match=rf"{servers[0].url}: no connection .*; start it with: ") as error:
        make_engine(config, policy)
    assert "--no-enable-chunked-prefill" in str(error.value)  # with which a seed ends vLLM on a CPU
    assert sum(f"waiting for {servers[0].url}" in line for line in said) == 1


def test_urls_of_servers_are_host_and_port_and_each_is_named_once():
    for urls, expected in (
        (["http://127.0.0.1:8000/v1"], "names servers as http://HOST:PORT"),
        (["http://127.0.0.1"], "names servers as http://HOST:PORT"),
        (["http://a:1", "http://a:1/"], "names a server twice"),
    ):
        with pytest.raises(UserError, match=expected):
            server_urls(urls)


def sampled_with_shards(policy, config):
    """What a process with a part of the weights samples of its part of the requests, after an update."""
    with Processes(CPU).open() as processes:
        own = sharded_policy(lambda: policy, processes, "full")
        engine = make_engine(config, own)
        with torch.no_grad():
            for weight in named_weights(own.model).values():
                assert type(weight).__name__ == "DTensor"
                weight.mul_(1.05)
        own.version += 1
        engine.sync(own)
        return engine.generate(REQUESTS[processes.rank :: 2], SAMPLING), engine.take_facts()


@pytest.mark.slow
def test_servers_get_the_weights_of_shards(servers, policy, config):
    (first, facts), (second, _) = crew(2, sampled_with_shards, policy, config)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(1.05)
    whole = own_completions(policy)
    assert same(first, whole[::2]) and same(second, whole[1::2])
    assert facts["engine/sync_checked_tensors"] > 20 and facts["engine/sync_gap_max"] < 1e-4
    reloads = [[body for body in server.asked if body.get("method") == "minrl_reload"] for server in servers]
    assert list(map(len, reloads)) == [2, 2]  # each update once, by one process
