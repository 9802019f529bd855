"""Where a process finds itself: what each launcher says in the environment, and what is refused in one line."""

import os

import pytest
import torch

from minrl.dataflow import UserError
from minrl.models import distributed
from minrl.models.distributed import (
    Processes,
    has_hidden_card,
    precision,
    require_launcher,
    require_one_run,
    srun_variables,
)
from minrl.utils.processor import control_groups, cpu_cores, require_one_process
from tests.parsed import sized

TORCHRUN = {  # the third of four processes on two nodes
    **{"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "first", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "none"},
}
SRUN = {  # the same of SLURM 22.05, of the second step of job 41
    **{"SLURM_JOB_ID": "41", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[07-09,12]"},
    **{"SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[08-09]", "SLURM_PROCID": "2"},
    **{"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"},
}
SBATCH = {  # its batch script, which is a task of no step
    **{"SLURM_JOB_ID": "41", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[08-09]"},
    **{"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "2(x2)"},
}


def test_a_task_of_srun_is_given_the_names_that_torch_reads():
    place = {"MASTER_ADDR": "n08", "MASTER_PORT": str(10000 + 7 * 41 + 1)}
    found = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", **place}
    assert srun_variables(SRUN) == found
    given = {"MASTER_ADDR": "ib-n08", "MASTER_PORT": "5000"}
    assert srun_variables({**SRUN, **given}) == {**found, **given}
    assert srun_variables({**SRUN, **TORCHRUN}) == {}  # torchrun, which srun started on each node


def test_a_program_that_no_launcher_started_is_given_none():
    for shell in (SBATCH, {}, {**SRUN, "SLURM_STEP_NUM_TASKS": "1"}):
        assert srun_variables(shell) == {}


def test_a_number_of_processes_left_over_in_the_environment_is_refused():
    for environment in ({}, {"WORLD_SIZE": ""}, TORCHRUN):
        require_launcher(environment)
    with pytest.raises(UserError, match=r"WORLD_SIZE is 4 .* RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT not set"):
        require_launcher({"WORLD_SIZE": "4"})


def test_a_program_of_one_process_is_not_started_several_times(monkeypatch):
    require_one_process("minrl serve")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(UserError, match="minrl serve runs in one process, got 2"):
        require_one_process("minrl serve")


def of_process(*ranks):
    """What processes say of themselves, with what is given of each."""
    return [{"host": "a", "cores": [0, 1], **own} for rank, own in enumerate(ranks)]


def test_processes_of_one_run_have_the_same_settings_and_code():
    require_one_run(of_process({"--threads": 1, "torch": "2.13.0"}, {"--threads": 1, "torch": "2.13.0", "host": "b"}))
    with pytest.raises(UserError, match=r"process 1 of 2 \(on b\) has --threads 2, and process 0 \(on a\) has 1"):
        require_one_run(of_process({"--threads": 1}, {"--threads": 2, "host": "b"}))


def test_the_limits_of_every_group_around_a_process_hold_for_it(tmp_path, monkeypatch):
    (tmp_path / "cgroup").write_text("4:memory:/other\n0::/job/step\n")
    (tmp_path / "job/step").mkdir(parents=True)
    for group, quota in ((".", "max 100000"), ("job", "200000 100000"), ("job/step", "500000 100000")):
        (tmp_path / group / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    groups = control_groups(str(tmp_path), str(tmp_path / "cgroup"))
    assert [cpu_cores(groups[place:]) for place in range(3)] == [2, 2, 8]


def test_a_card_that_torch_cannot_use_is_no_reason_to_train_on_the_processor_unasked(tmp_path, monkeypatch):
    (tmp_path / "nvidiactl").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert not has_hidden_card(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_hidden_card(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(distributed, "has_hidden_card", lambda: True)
    with pytest.raises(UserError, match=r"this machine has an NVIDIA GPU that torch .* cannot use: update its driver"):
        Processes(sized())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert not has_hidden_card(tmp_path)


def test_a_gpu_without_products_in_bfloat16_computes_in_float32_and_says_so(monkeypatch, said):
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    for capability, auto in (((7, 5), torch.float32), ((8, 0), torch.bfloat16)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert precision("auto", cuda) == auto and precision("float32", cuda) == torch.float32
    assert "Tesla T4 has no products in bfloat16" in said[0] and "auto is float32" in said[0] and len(said) == 1
    assert (precision("auto", cpu), precision("bfloat16", cpu)) == (torch.float32, torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with pytest.raises(UserError, match=r"^Tesla T4 has no products .*: use --dtype float32$"):
        precision("bfloat16", cuda)
