"""What one engine does on a GPU, in a process of its own, as JSON.

    python -m tests.gpu.on_card MODEL sleep|awake     an engine of vLLM: start, sync, sleep, wake, no sync
    python -m tests.gpu.on_card MODEL loop [FLAG ...]  five steps of the whole loop
    python -m tests.gpu.on_card MODEL server FOLDER    a server beside the policy, started here

vLLM's sleeping memory takes one engine in a process.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import run_loop
from minrl.dataflow import Request
from minrl.engines import Engine, Sampling
from minrl.engines.vllm import VllmEngine
from minrl.engines.vllm_server import SHAPE, ServerEngine, save_shape, served_by, server_command
from minrl.engines.vllm_sync import SyncError
from minrl.models.distributed import Processes
from minrl.policy import Policy
from minrl.run.setup import load_policy
from tests.parsed import sized
from tests.runs import until

ROOT = Path(__file__).parent.parent.parent
SERVER_S = 100.0
REQUESTS = [Request([5 + index % 90] * 48, 2**40 + index, 64) for index in range(32)]
SAMPLING = Sampling(1.0, frozenset())


def used_gib() -> float:
    """What is taken of the GPU, without the freed blocks that torch keeps."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def improve(policy: Policy, size: float) -> None:
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(size * torch.randn_like(weight))
    policy.version += 1


@torch.no_grad()
def mean_gap(engine: Engine, policy: Policy) -> float:
    """Of what the engine reports and what the policy computes."""
    gaps = []
    for request, completion in zip(REQUESTS, engine.generate(REQUESTS, SAMPLING), strict=True):
        ids = torch.tensor([request.ids + completion.ids], device="cuda")
        with policy.processes.autocast():
            logits = policy.model(input_ids=ids, use_cache=False).logits[0, :-1]
        own = logits.float().log_softmax(-1).gather(1, ids[0, 1:, None])[len(request.ids) - 1 :, 0].cpu()
        gaps.append(float((own - torch.tensor(completion.logprobs)).abs().mean()))
    return sum(gaps) / len(gaps)


def engine_on(policy: Policy, sleep: str) -> dict[str, Any]:
    config = sized(engine="vllm", engine_sleep=sleep == "sleep", engine_memory_frac=0.4)
    engine = VllmEngine(config, policy, 64)
    found: dict[str, Any] = {"gap_before": mean_gap(engine, policy), "awake_gib": used_gib()}
    engine.sleep()
    found["asleep_gib"] = used_gib()
    improve(policy, 1e-3)
    engine.wake()
    engine.sync(policy)
    found |= {"gap_after": mean_gap(engine, policy), "again_gib": used_gib(), **engine.take_facts()}
    engine._load = lambda weights: None  # type: ignore[method-assign]
    improve(policy, 1e-6)
    try:
        engine.sync(policy)
    except SyncError as error:
        found["stale"] = str(error)
    engine.close()
    return found


@contextmanager
def served(command: str, port: int, log: Path):
    """Inside, the server of the printed command listens: started by this interpreter, and not waited for once dead."""
    words = shlex.split(command)
    first = words.index("python")
    variables = dict(word.split("=", 1) for word in words[:first])
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **variables, "PYTHONPATH": paths}
    line = [sys.executable, *words[first + 1 :]]
    with log.open("w") as out:
        server = subprocess.Popen(line, stdout=out, stderr=out, env=environment, cwd=ROOT)
    try:
        until(lambda: listens(port), server, SERVER_S)
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}:\n{log.read_text()[-3000:]}")
        yield
    finally:
        server.terminate()
        server.wait(30)


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def server_on(policy: Policy, folder: str) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    config = sized(engine="vllm-server", engine_urls=url, engine_weights_dir=folder, engine_timeout_s=60)
    save_shape(Path(folder, SHAPE), policy)
    command = f"{server_command(served_by(config, policy), policy, url)} --gpu-memory-utilization 0.2"
    with served(command, port, Path(folder, "server.log")):
        engine = ServerEngine(config, policy)
        found: dict[str, Any] = {"gap_before": mean_gap(engine, policy)}
        improve(policy, 1e-3)
        engine.sync(policy)
        found["gap_after"] = mean_gap(engine, policy)
        engine.close()
        return found | engine.take_facts()


def main(model: str, kind: str, *words: str) -> None:
    if kind == "loop":
        steps = run_loop(Path(model), 5, False, *words)
        print(json.dumps(steps))
        assert len(steps) == 5 and all(step["engine/logprob_gap_mean"] < 0.05 for step in steps)
        return
    policy = load_policy(model, sized(), Processes(sized()))
    found = server_on(policy, *words) if kind == "server" else engine_on(policy, kind)
    print(json.dumps(found))
    assert found["gap_before"] < 0.05 and found["gap_after"] < 0.05
    if kind != "server":
        assert kind == "awake" or found["asleep_gib"] < found["awake_gib"] - 1
        assert found["again_gib"] <= found["awake_gib"] + 0.5
        assert found["engine/sync_checked_tensors"] > 300 and "tensors differ" in found["stale"]


if __name__ == "__main__":
    main(*sys.argv[1:])
