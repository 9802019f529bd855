"""What a step uses of the machine: the numbers of /proc, summed over the process and what it started."""

import os
import time

import pytest
import torch

from minrl.record import usage
from minrl.record.usage import Usage, cpu_and_memory, process_tree

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A /proc with this process, its child 2 (started by its second thread) and grandchild 3, and a stranger 4."""
    own = os.getpid()
    for pid, times, pages in (
        (own, (1, 2, 3, 4), 100),
        (2, (10, 20, 0, 0), 50),
        (3, (0, 0, 0, 7), 5),
        (4, (9,) * 4, 9),
    ):
        for thread in (pid, pid + 1000):
            (tmp_path / f"{pid}/task/{thread}").mkdir(parents=True)
            (tmp_path / f"{pid}/task/{thread}/children").write_text("")
        fields = ["S", *"0123456789", *(str(one * TICKS) for one in times), "20", "0"]
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (a) (b 1) {' '.join(fields)}\n")
        (tmp_path / f"{pid}/statm").write_text(f"999 {pages} 1 1 0 1 0\n")
    (tmp_path / f"{own}/task/{own + 1000}/children").write_text("2 77 ")  # 77 ended a moment ago
    (tmp_path / "2/task/2/children").write_text("3")
    monkeypatch.setattr(usage, "PROC", str(tmp_path))
    return tmp_path


def test_the_process_and_what_it_started_count_and_no_stranger(proc):
    assert list(process_tree()) == [os.getpid(), 2, 77, 3]
    assert cpu_and_memory() == (1 + 2 + 3 + 4 + 10 + 20 + 7, 155 * PAGE)


def test_processor_time_is_a_share_of_the_cores_since_the_last_call(proc, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(usage, "cpu_cores", lambda: 4)
    seconds = iter([100.0, 110.0, 112.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    measured, stat = Usage(), proc / "2/stat"
    stat.write_text(stat.read_text().replace(f" {10 * TICKS} ", f" {30 * TICKS} "))  # 20 s more within 10 s
    assert measured.take() == {"system/memory_gb": 155 * PAGE / 1e9, "system/cpu_percent": 50.0}
    assert measured.take()["system/cpu_percent"] == 0.0


def test_where_there_is_no_proc_the_process_alone_is_measured_without_its_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(usage, "PROC", str(tmp_path / "none"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60 * 10**9, 80 * 10**9))
    assert cpu_and_memory() == (pytest.approx(sum(os.times()[:4]), abs=1), None)
    taken = Usage().take()
    assert taken.keys() == {"system/cpu_percent", "system/device_memory_gb"}
    assert taken["system/device_memory_gb"] == pytest.approx(20)


def test_the_numbers_of_this_machine_are_plausible():
    cpu_s, memory = cpu_and_memory()
    assert 0 < cpu_s < 10**7
    if memory is None:
        pytest.skip("this system has no /proc")
    assert 10**7 < memory < 10**12
