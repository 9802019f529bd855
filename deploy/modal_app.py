"""MinRL on Modal: GPUs by the hour, runs that end up in a volume, and resume where a container was taken away.

    pip install -e .[modal] && modal setup
    modal run --detach deploy/modal_app.py --gpu H100:2 --hours 6 --name first --flags "--task gsm8k --steps 300"
    modal volume get minrl first

`--flags` go to train.py. Before the time is over the run saves and ends, and the next try resumes it, as after a
preemption. Models come to a volume that all runs share. `--secrets huggingface,wandb` names secrets of Modal.
"""

import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import modal

CHECKOUT = Path(__file__).parent.parent if modal.is_local() else Path("/minrl")
KEPT, HUB = Path("/kept"), Path("/hub")

TRIES = 10
"""Modal's most. A run that needs more hours than that is started again with the same command."""

SAVING_S = 600.0
"""Before a container's time is over, for a step and a checkpoint."""

REFUSED = 2
"""train.py's exit status for a mistake of the command: the next try would make it too."""

PINS = "requirements/pins.txt", "requirements/overrides.txt"

INSTALLED = ("pyproject.toml", "README.md", "minrl/__init__.py", *PINS)
"""What an environment is made from. A change of any other file builds no image anew."""

INSTALL = (
    "cd /minrl && uv pip install --system --editable '.[vllm,lora,wandb,math,rust,judge]' "
    f"--constraints {PINS[0]} --overrides {PINS[1]}"
)

image = modal.Image.debian_slim(python_version="3.11").apt_install("git").pip_install("uv==0.13.8")
for name in INSTALLED:
    image = image.add_local_file(CHECKOUT / name, f"/minrl/{name}", copy=True)
image = (
    image.run_commands(INSTALL)
    .env({"HF_HOME": str(HUB)})
    .workdir("/minrl")
    .add_local_dir(CHECKOUT / "minrl", "/minrl/minrl", ignore=["**/__pycache__"])
    .add_local_dir(CHECKOUT / "configs", "/minrl/configs")
    .add_local_file(CHECKOUT / "train.py", "/minrl/train.py")
    .add_local_file(CHECKOUT / "evaluate.py", "/minrl/evaluate.py")
)

app = modal.App("minrl")
volumes = {
    str(KEPT): modal.Volume.from_name("minrl", create_if_missing=True),
    str(HUB): modal.Volume.from_name("minrl-hub", create_if_missing=True),
}


class Unfinished(Exception):
    """The run saved and ended before its steps were done: Modal tries again, which resumes it."""


def command(flags: Sequence[str], name: str, processes: int, kept: Path) -> list[str]:
    """The command of the first start and of every later one."""
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    patience = [f"--shutdown-timeout={SAVING_S:.0f}"]  # torchrun gives its processes so long after SIGTERM
    places = ["--runs-dir", str(kept / name), "--checkpoints-dir", str(kept / name / "checkpoints")]
    places += ["--judge-cache", str(kept / name / "judge_cache.sqlite")]  # the next try may be on another machine
    launcher = [*several, *patience] if processes > 1 else []
    return [sys.executable, *launcher, "train.py", "--run-name", name, "--resume", "auto", *places, *flags]


def run(flags: Sequence[str], name: str, processes: int, seconds: float, kept: Path) -> int:
    """Train until the end, or until so many seconds are over or Modal takes the container away."""
    process = subprocess.Popen(command(flags, name, processes, kept), cwd=CHECKOUT)
    timer = threading.Timer(max(0.0, seconds - SAVING_S), process.terminate)
    timer.start()
    try:
        status = process.wait()
    except KeyboardInterrupt:  # Modal takes the container away, in half a minute
        process.terminate()
        process.wait()
        raise
    finally:
        timer.cancel()
    if status not in (0, REFUSED):
        raise Unfinished(f"train.py ended with status {status}")
    return status


@app.function(
    image=image,
    volumes=volumes,
    retries=modal.Retries(max_retries=TRIES, initial_delay=1.0, backoff_coefficient=1.0),
    single_use_containers=True,
)
def train(flags: list[str], name: str, processes: int, seconds: float) -> int:
    """A run, in a container. Volumes keep what is written every few seconds, and at the end."""
    return run(flags, name, processes, seconds, KEPT)


@app.local_entrypoint()
def main(name: str, flags: str = "", gpu: str = "H100", hours: float = 4.0, secrets: str = "") -> None:
    """Start a run; with `modal run --detach` it continues when this program ends."""
    count = int(gpu.partition(":")[2] or 1)
    sized = train.with_options(
        gpu=gpu or None,
        timeout=int(3600 * hours),
        secrets=[modal.Secret.from_name(one) for one in secrets.split(",") if one],
    )
    status = sized.remote(shlex.split(flags), name, count, 3600 * hours)
    if status:
        sys.exit(status)
