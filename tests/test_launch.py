"""Where a process finds itself: what each launcher says in the environment, and what is refused in one line."""

import os
import re

import pytest
import torch

from minrl.config import ModelConfig
from minrl.dataflow import UserError
from minrl.models import distributed
from minrl.models.distributed import (
    Processes,
    has_hidden_card,
    own_card,
    require_one_run,
    require_own_cards,
    share_of_cores,
)
from minrl.models.launch import Launch, first_host, launched
from minrl.utils.processor import cpu_cores

TORCHRUN = {  # the third of four processes on two nodes
    **{"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"},
    **{"GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "first", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "none"},
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
SALLOC = {name: value for name, value in SBATCH.items() if name not in ("SLURM_PROCID", "SLURM_LOCALID")}


def test_torchrun_says_everything():
    assert launched(TORCHRUN) == Launch("torchrun", 2, 4, 0, 2, "first", 29400)
    assert launched({**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "no"}).launcher == "accelerate launch"
    assert launched(TORCHRUN).nodes == 2


def test_srun_says_it_in_its_own_words():
    found = launched(SRUN)
    assert found == Launch("srun", 2, 4, 0, 2, "n08", 10000 + 7 * 41 + 1)
    assert launched(found.variables) == Launch("environment", 2, 4, 0, 2, found.address, found.port)
    assert launched({**SRUN, **found.variables}) == found  # what is said to torch does not contradict
    assert launched({**SRUN, "MASTER_ADDR": "ib-n08", "MASTER_PORT": "5000"}).address == "ib-n08"


@pytest.mark.parametrize("shell", [SBATCH, SALLOC, {}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_a_program_that_no_launcher_started_is_one_process(shell):
    assert launched(shell) == Launch()
    assert launched(shell).variables == {}


WRONG = {
    "a WORLD_SIZE left over": ({"WORLD_SIZE": "4"}, "WORLD_SIZE is 4 .* RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_"),
    "no address": ({**TORCHRUN, "MASTER_ADDR": ""}, "MASTER_ADDR not set: start the processes with torchrun"),
    "a rank beyond the size": ({**TORCHRUN, "RANK": "4"}, "RANK and WORLD_SIZE are 4 and 4"),
    "ranks across the nodes": ({**TORCHRUN, "RANK": "1"}, "process 1 of 4 says that it is 0 of 2 on its node"),
    "tasks that differ by node": ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "3,1"}, "3,1: each must have as many"),
    "cyclic tasks": ({**SRUN, "SLURM_PROCID": "1"}, "--distribution=block"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_combination_is_one_line(name):
    environment, said = WRONG[name]
    with pytest.raises(UserError) as refused:
        launched(environment)
    assert re.search(said, str(refused.value)) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a-[3,5],b", "a-3"), ("b,a-[3,5]", "b"), ("r[10-12]s[1-2]x", "r10s1x")],
)
def test_the_first_node_of_a_list(nodes, first):
    assert first_host(nodes) == first


def told(*ranks):
    """What processes say of themselves, with what is given of each."""
    return [{"host": "a", "pid": 10 + rank, "card": None, "cores": [0, 1], **own} for rank, own in enumerate(ranks)]


def test_processes_of_one_run_have_the_same_settings_and_code():
    require_one_run(told({"--threads": 1, "torch": "2.13.0"}, {"--threads": 1, "torch": "2.13.0", "host": "b"}))
    with pytest.raises(UserError, match=r"process 1 of 2 \(on b\) has --threads 2, and process 0 \(on a\) has 1"):
        require_one_run(told({"--threads": 1}, {"--threads": 2, "host": "b"}))


def test_each_process_has_a_card():
    place = {"address": "a", "port": 1}
    second = Launch("torchrun", 1, 2, 1, 2, **place)
    assert own_card(second, cards=2).index == 1
    assert own_card(second, cards=1).index == 0  # the only one that srun --gpus-per-task shows it
    with pytest.raises(UserError, match="3 processes on this node, and torch finds 2 cards"):
        own_card(Launch("torchrun", 1, 3, 1, 3, **place), cards=2)
    require_own_cards(told({"card": "x"}, {"card": "y"}, {"card": "x", "host": "b"}))
    with pytest.raises(UserError, match="processes 0 and 2 of 3 have the same card of a"):
        require_own_cards(told({"card": "x"}, {"card": "y"}, {"card": "x"}))


def test_cores_are_shared_by_those_that_are_bound_to_them():
    shared = told({"cores": [0, 1, 2, 3]}, {"cores": [0, 1, 2, 3]}, {"cores": [0, 1, 2, 3], "host": "b"})
    assert [share_of_cores(shared, rank) for rank in range(3)] == [2, 2, 4]
    bound = told({"cores": [0, 1]}, {"cores": [2, 3]})
    assert [share_of_cores(bound, rank) for rank in range(2)] == [2, 2]
    assert share_of_cores(told({"cores": [0]}, {"cores": [0]}), 1) == 1


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_a_containers_quota_limits_the_cores(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert cpu_cores(tmp_path) == cores


def test_a_card_that_torch_cannot_use_is_no_reason_to_train_on_the_processor_unasked(tmp_path, monkeypatch):
    (tmp_path / "nvidiactl").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert not has_hidden_card(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_hidden_card(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(distributed, "has_hidden_card", lambda: True)
    with pytest.raises(UserError, match=r"this machine has an NVIDIA card that torch .* cannot use: update its driver"):
        Processes(ModelConfig())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert not has_hidden_card(tmp_path)
