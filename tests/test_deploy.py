"""The launchers in deploy/: what can be known of them without a cluster, a cloud or a registry."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.parsed import parsed

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
SBATCH = DEPLOY / "slurm.sbatch"


SRUN = """#!/usr/bin/env bash
env >>"$PLACE/environment"
printf '%s\\n' "$@" >>"$PLACE/arguments"
exit "$(cat "$PLACE/status")"
"""


@pytest.fixture
def batch(tmp_path):
    """Runs the batch script where srun and scontrol write what they are given: the flags of train.py, the variables
    that are exported, and whether the job was queued again.
    """

    def run(*flags, status=0):
        for name, text in (("srun", SRUN), ("scontrol", '#!/bin/sh\necho "$@" >"$PLACE/queued"\n')):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        (tmp_path / "status").write_text(str(status))
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/home/me", "PLACE": str(tmp_path)}
        environment |= {"SLURM_JOB_ID": "41", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NUM_NODES": "2"}
        environment |= {"SLURM_CPUS_PER_TASK": "3", "SLURM_TMPDIR": "/scratch"}
        ended = subprocess.run(["bash", SBATCH, *flags], env=environment, capture_output=True, text=True)
        assert ended.returncode == status, ended.stderr
        given = (tmp_path / "arguments").read_text().splitlines()
        lines = (tmp_path / "environment").read_text().splitlines()
        exported = dict(line.partition("=")[::2] for line in lines)
        return given[given.index("train.py") + 1 :], exported, (tmp_path / "queued").exists()

    return run


@pytest.mark.parametrize(("status", "queued"), [(2, False), (138, True)])
def test_a_job_that_was_stopped_before_its_limit_is_queued_again(batch, status, queued):
    _, exported, again = batch(status=status)
    assert again == queued
    assert exported["SRUN_CPUS_PER_TASK"] == "3" and exported["TMPDIR"].startswith("/scratch/minrl-41")


@pytest.mark.parametrize(
    ("given", "resume", "name"),
    [(["--stop-strings", "two words"], "auto", "slurm-41"), (["--resume", "runs/mine"], "runs/mine", "")],
)
def test_each_start_of_a_job_resumes_the_same_run(batch, given, resume, name):
    words, *_ = batch(*given)
    config, _ = parsed(words[: words.index(given[-1]) + 1])
    assert (config.resume, config.run_name) == (resume, name)
    assert config.stop_strings == (("two words",) if given[0] == "--stop-strings" else ())


@pytest.fixture
def app(monkeypatch):
    pytest.importorskip("modal", reason="modal is not installed: make setup EXTRA=modal")
    monkeypatch.syspath_prepend(DEPLOY)
    import modal_app

    yield modal_app
    del sys.modules["modal_app"]


SMALL = """--base-steps 5 --steps 2 --device cpu --threads 1 --no-eval-first --no-preflight --prompts-per-step 2
    --group-size 2 --eval-examples 4 --eval-samples 2"""


@pytest.mark.slow
@pytest.mark.modal
def test_a_try_that_runs_out_of_time_saves_and_the_next_one_goes_on(app, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(app, "KEPT", tmp_path)
    flags = SMALL.split()
    with pytest.raises(app.Unfinished, match="status"):
        app.train.local(flags, "first", 1, app.SAVING_S + 3.0)  # in the imports, or after them
    assert app.train.local(flags, "first", 1, app.SAVING_S + 600.0) == 0
    assert (tmp_path / "first" / "first" / "summary.json").exists()
