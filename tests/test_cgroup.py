"""The control group of a call, on folders that stand for the kernel's. `test_sandbox.py` uses a real one."""

import os
from pathlib import Path

import pytest

from minrl.sandbox import calls, cgroup
from minrl.sandbox.cgroup import MIB, OVERHEAD_MIB, OVERHEAD_PIDS, Group
from minrl.sandbox.process import Watch
from minrl.sandbox.slot import Slot

FILES = (
    "cgroup.procs",
    "cgroup.kill",
    "memory.max",
    "memory.oom.group",
    "memory.swap.max",
    "memory.events",
    "pids.max",
)
OWN = "parent/own"
NO_SLOT = Slot.__new__(Slot)
"""One in a folder of its own would have the uid of another's call, and would kill that."""
V1 = "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
DISK = "23 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw"


def mounted(mount, root="/"):
    return f"30 23 0:26 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw"


class Kernel:
    """A mount whose new folders have the kernel's files but those `lacking`. `steps` are what was done with groups;
    `busy` is how often a removal fails.
    """

    def __init__(self, mount, monkeypatch):
        self.mount, self.steps, self.lacking, self.busy = str(mount), [], set(), 0
        self._mkdir, self._rmdir, self._write = os.mkdir, os.rmdir, Group._write
        monkeypatch.setattr(os, "mkdir", self.mkdir)
        monkeypatch.setattr(os, "rmdir", self.rmdir)
        monkeypatch.setattr(Group, "_write", lambda group, name, value: self.write(group, name, value))

    @property
    def parent(self):
        return f"{self.mount}/parent"

    def mkdir(self, path, *mode):
        self._mkdir(path, *mode)
        if str(path).startswith(self.mount):
            self.steps.append("make")
            for name in set(FILES) - self.lacking:
                Path(path, name).write_text("oom 0\noom_kill 0\n" if name == "memory.events" else "")

    def rmdir(self, path):
        if str(path).startswith(self.mount):
            self.busy -= 1
            if self.busy >= 0:
                raise OSError(16, "Device or resource busy")
            self.steps.append("remove")
            for file in Path(path).iterdir():
                file.unlink()
        self._rmdir(path)

    def write(self, group, name, value):
        self._write(group, name, value)
        self.steps.append((name, value))

    def left(self):
        return [path.name for path in Path(self.parent).iterdir() if path.is_dir() and path.name != "own"]


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A mount of version 2 that gives groups to those beside `parent/own`."""
    mount = tmp_path / "mount"
    for group in (mount, mount / "parent", mount / OWN):
        group.mkdir()
        (group / "cgroup.subtree_control").write_text("cpu memory pids\n" if group.name == "parent" else "cpu\n")
        (group / "cgroup.procs").write_text("")
    return Kernel(mount, monkeypatch)


def place(kernel, tmp_path, own=f"0::/{OWN}\n", *mounts):
    (tmp_path / "mountinfo").write_text("".join(f"{line}\n" for line in mounts or (DISK, V1, mounted(kernel.mount))))
    (tmp_path / "cgroup").write_text(own)
    return cgroup.place(str(tmp_path))


@pytest.mark.parametrize(
    ("root", "own", "found"),
    [
        ("/", "/a/b", ["/cg/a/b", "/cg/a"]),
        ("/", "/a", ["/cg/a", "/cg"]),
        ("/", "/", ["/cg"]),
        ("/a", "/a", ["/cg"]),  # a container that is shown its own group alone: the one above is not there
        ("/a", "/a/b", ["/cg/b", "/cg"]),
        ("/b", "/a", []),  # another part is mounted
        ("/ab", "/a", []),
        ("/..", "/", []),  # mounted before we got a cgroup namespace
        ("/", "/../a", []),  # moved out of our cgroup namespace
    ],
)
def test_a_group_lies_below_or_beside_our_own_within_the_mount(root, own, found):
    lines = [DISK, V1, mounted("/cg", root)]
    assert list(cgroup.folders(lines, ["4:memory:/x", f"0::{own}"])) == found


@pytest.mark.parametrize("groups", [[], ["4:memory:/x"], ["0::"]], ids=["no groups", "version 1", "nothing"])
def test_without_a_group_of_version_2_there_is_no_place(groups):
    assert list(cgroup.folders([DISK, mounted("/cg")], groups)) == []
    assert list(cgroup.folders([DISK, V1], ["0::/a"])) == []


def test_a_kernel_without_control_groups_has_no_place(tmp_path):
    assert cgroup.place(str(tmp_path / "no-such-folder")) == ("", "")


def test_the_place_is_tried_once_and_the_trial_leaves_nothing(kernel, tmp_path):
    assert place(kernel, tmp_path) == (kernel.parent, "")
    assert (kernel.steps[0], kernel.steps[-1], kernel.left()) == ("make", "remove", [])


def test_a_place_is_below_our_group_where_that_gives_groups(kernel, tmp_path):
    Path(kernel.mount, OWN, "cgroup.subtree_control").write_text("memory pids")
    assert place(kernel, tmp_path)[0] == f"{kernel.mount}/{OWN}"


@pytest.mark.parametrize("given", ["", "memory", "cpu pids io"])
def test_a_place_gives_both_controllers(kernel, tmp_path, given):
    Path(kernel.parent, "cgroup.subtree_control").write_text(given)
    assert place(kernel, tmp_path) == ("", "") and kernel.steps == []


@pytest.mark.parametrize("closed", ["", "/cgroup.procs"])
def test_a_place_that_is_not_ours_to_write_is_none(kernel, tmp_path, monkeypatch, closed):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != kernel.parent + closed and access(path, mode))
    assert place(kernel, tmp_path) == ("", "") and kernel.steps == []


@pytest.mark.parametrize("lacking", ["memory.max", "pids.max", "memory.oom.group", "memory.events", "cgroup.procs"])
def test_where_a_trial_fails_no_group_is_used_and_the_reason_is_said(kernel, tmp_path, monkeypatch, lacking):
    kernel.lacking = {lacking}
    monkeypatch.setattr(cgroup, "ENTER", 'test -e "$0/cgroup.procs" || { echo cgroup.procs >&2; exit 1; }')
    folder, problem = place(kernel, tmp_path)
    assert folder == "" and lacking in problem and kernel.left() == []
    monkeypatch.setattr(calls, "_cgroup", lambda: (folder, problem))
    line = calls.describe()
    assert f"no control group counts its memory, as none could be made: {problem}" in line and "\n" not in line
    monkeypatch.setattr(calls, "_cgroup", lambda: (kernel.parent, ""))
    assert calls.describe().endswith("; a control group counts all memory")


def test_where_nobody_may_enter_no_group_is_used(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup, "ENTER", "echo busy >&2; exit 2")  # the kernel's rules about who may go where
    assert place(kernel, tmp_path) == ("", "busy")
    assert kernel.left() == []


def test_a_group_is_limited_before_it_is_entered(kernel):
    group = Group(kernel.parent, "call", 100, 20)
    group.enter()
    limits = {("memory.max", (100 + OVERHEAD_MIB) * MIB), ("memory.swap.max", 0), ("memory.oom.group", 1)}
    assert kernel.steps[0] == "make" and kernel.steps[-1] == ("cgroup.procs", 0)
    assert set(kernel.steps[1:-1]) == {*limits, ("pids.max", 20 + OVERHEAD_PIDS)}
    assert Path(group.path, "memory.max").read_text() == str((100 + OVERHEAD_MIB) * MIB)


def test_a_kernel_that_counts_no_swap_has_groups_too(kernel):
    kernel.lacking = {"memory.swap.max"}
    Group(kernel.parent, "call", 100, 20)
    assert ("memory.swap.max", 0) not in kernel.steps and ("pids.max", 20 + OVERHEAD_PIDS) in kernel.steps


def test_a_group_of_the_same_name_was_left_behind_and_goes_first(kernel):
    Group(kernel.parent, "call", 100, 20)
    os.mkdir(f"{kernel.parent}/call/below")  # a program that may made one of its own
    kernel.steps.clear()
    Group(kernel.parent, "call", 100, 20)
    assert kernel.steps[:4] == [("cgroup.kill", 1), "remove", "remove", "make"]


def test_a_busy_group_is_removed_when_it_is_no_longer_so_and_not_for_ever(kernel, monkeypatch):
    group = Group(kernel.parent, "call", 100, 20)
    kernel.busy = 3
    group.remove()
    assert kernel.left() == [] and kernel.steps.count(("cgroup.kill", 1)) == 4
    group = Group(kernel.parent, "call", 100, 20)
    kernel.busy = 1000
    monkeypatch.setattr(cgroup, "GIVE_UP_S", 0.01)
    with pytest.raises(OSError, match="busy"):
        group.remove()


def test_before_linux_5_14_the_processes_are_killed_one_by_one(kernel, monkeypatch):
    kernel.lacking = {"cgroup.kill"}
    killed = []

    def kill(pid, number):
        killed.append((pid, number))
        if pid == 101:
            raise ProcessLookupError  # it has ended since

    group = Group(kernel.parent, "call", 100, 20)
    Path(group.path, "cgroup.procs").write_text("101\n0\n102\n")  # 0: one of another pid namespace
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", kill)
        group.remove()
    assert killed == [(101, 9), (102, 9)] and kernel.left() == []


def test_files_that_may_only_be_written_are_written(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(os, "open", lambda path, flags, *mode: opened.append(flags) or 3)
    monkeypatch.setattr(os, "write", lambda file, text: len(text))
    monkeypatch.setattr(os, "close", lambda file: None)
    group = Group.__new__(Group)
    group.path = "x"
    group._write("cgroup.kill", 1)
    assert opened == [os.O_WRONLY], "the mode of cgroup.kill is 0200, and the kernel makes no files there"


@pytest.mark.parametrize(("events", "status"), [("oom_kill 0\n", "error"), ("oom 3\noom_kill 2\n", "memory")])
def test_a_call_that_the_kernel_killed_for_memory_says_so(kernel, events, status):
    group = Group(kernel.parent, "call", 100, 20)
    Path(group.path, "memory.events").write_text(events)
    call = {"start_s": 1.0, "stdin": b"", "level": "limits", "output_bytes": 10}
    watch = Watch(call, NO_SLOT, group, -1)
    watch.status, watch.exit_code = "ended", -9
    assert watch._verdict()[0] == status
