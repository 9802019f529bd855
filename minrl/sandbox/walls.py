"""The walls between untrusted code and the machine, level by level.

Each function of `LAUNCH` turns its process into the command: it returns only by an exception. `streams` are the
command's standard streams and the pipe that reports `STARTED` once all walls stand.
"""

import fcntl
import os
import resource
import signal
import warnings  # noqa: F401 - os.execvpe imports it, behind walls that hide it
from collections.abc import Callable, Iterator

from minrl.sandbox import filter as sandbox_filter
from minrl.sandbox import landlock
from minrl.sandbox.files import (
    DEVICES,
    LIBC,
    LINKS,
    MIB,
    SYSTEM,
    WORK,
    Call,
    build_root,
    checked,
    directories_of,
    mounted,
    own,
    parents_of,
    write_files,
)

STARTED = b"started\n"
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # <linux/prctl.h>
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER = 0x20000, 0x4000000, 0x8000000, 0x10000000  # <linux/sched.h>
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
PENDING = 1024
"""Signals that wait and timers, each a piece of the kernel's memory, of one user."""


def launch_limited(call: Call, uid: int, folder: str, streams: list[int]) -> None:
    """Limits, a uid of its own if we are root, a directory on the disk, and Landlock where the kernel has it."""
    processes = processes_allowed(call, uid)
    os.mkdir(folder, 0o700)
    write_files(folder, call["files"], uid)
    own(call["writable"], uid)
    enter(call, uid, folder, processes, streams, landlock.ruleset(call, folder) if landlock.version() else -1)


def launch_in_namespaces(call: Call, uid: int, _: str, streams: list[int]) -> None:
    """Namespaces of its own for processes, mounts, network, IPC, host name and, if we are not root, users.

    Their first process ends with the command; then the kernel ends all others.
    """
    processes, root = processes_allowed(call, uid), os.geteuid() == 0
    gid = os.getegid()  # inside it is unknown until it is mapped
    own(call["writable"], uid)
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    checked(LIBC.unshare(flags if root else flags | CLONE_NEWUSER), "unshare")
    die_with_parent()
    if not root:
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(content)
    first = os.fork()
    if first:
        forget(call, streams)
        os._exit(shell_status(os.waitpid(first, 0)[1]))
    die_with_parent()
    build_root(call, uid)
    command = os.fork()
    if command == 0:
        enter(call, uid, WORK, processes, streams)
    forget(call, streams)
    while True:
        pid, status = os.wait()
        if pid == command:
            os._exit(shell_status(status))


def launch_in_bubblewrap(call: Call, uid: int, _: str, streams: list[int]) -> None:
    """The same walls by `bwrap`. As root it keeps only the capabilities with which `setpriv` becomes the uid."""
    own(call["writable"], uid)
    arguments = ["bwrap", "--die-with-parent", "--new-session"]
    arguments += [f"--unshare-{name}" for name in ("pid", "net", "ipc", "uts", "cgroup-try")]
    arguments += [*mounts_of_bubblewrap(call), *files_of_bubblewrap(call)]
    processes = processes_allowed(call, uid)
    command = ["prlimit", f"--nproc={processes}:{processes}"]  # inside, where the kernel counts from zero
    if os.geteuid() == 0:
        arguments += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        ids = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        command = ["setpriv", *ids, "--inh-caps=-all", "--no-new-privs", *command]
    else:
        arguments += ["--unshare-user"]
    # Without the first line a command that cannot be run would look like one that ran and failed.
    say = 'command -v -- "$1" >/dev/null || { echo "cannot run $1" >&9; exit 127; }; '
    say += f'echo {STARTED.decode().strip()} >&9; exec 9>&-; exec "$@"'
    if sandbox_filter.exists():
        arguments += ["--seccomp", _in_memory(sandbox_filter.program(has_unreadable(call)))]
    arguments += ["--remount-ro", "/", "--chdir", WORK, "--", *command, "sh", "-c", say, "sh", *call["command"]]
    set_limits(call, resource.RLIM_INFINITY)
    streams = [_high(fd) for fd in streams]
    os.dup2(streams.pop(), 9)
    execute({**call, "command": arguments}, WORK, streams)


def mounts_of_bubblewrap(call: Call) -> Iterator[str]:
    """The arguments for the files of the machine that the call may see."""
    readable = mounted(call["readable"])
    for path in parents_of([*SYSTEM, *readable, *call["writable"], "/dev/null"]):
        yield from ("--dir", path)  # bwrap's own parents would be closed to the uid
    for path in SYSTEM:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.exists(path):
            yield from ("--ro-bind", path, path)
    # The first process, bwrap's own, would let a program of its user write to its memory, and no limit of processes
    # holds for it.
    yield from ("--proc", "/proc", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1")
    for name in DEVICES:
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for name, target in LINKS.items():
        yield from ("--symlink", target, f"/dev/{name}")
    for path in readable:
        yield from ("--ro-bind", path, path)
    for path in call["writable"]:
        yield from ("--bind", path, path)


def files_of_bubblewrap(call: Call) -> Iterator[str]:
    """The arguments for the directory in memory. If we are root it belongs to root, so the uid needs all modes."""
    yield from ("--perms", "0777", "--size", str(call["file_mib"] * MIB), "--tmpfs", WORK)
    if not any(path.startswith("/tmp/") for path in [*call["readable"], *call["writable"]]):
        yield from ("--symlink", WORK[1:], "/tmp")
    for directory in directories_of(call["files"]):
        yield from ("--perms", "0777", "--dir", f"{WORK}/{directory}")
    for name, content in call["files"].items():
        yield from ("--perms", "0666", "--file", _in_memory(content), f"{WORK}/{name}")


def _in_memory(content: bytes) -> str:
    """The number of a descriptor from which the next program reads the content."""
    file = _high(os.memfd_create("file"))
    os.set_inheritable(file, True)
    with open(file, "wb", closefd=False) as memory:
        memory.write(content)
    os.lseek(file, 0, os.SEEK_SET)
    return str(file)


LAUNCH: dict[str, Callable[[Call, int, str, list[int]], None]] = {
    "bubblewrap": launch_in_bubblewrap,
    "namespaces": launch_in_namespaces,
    "limits": launch_limited,
}
"""The strongest first."""


def processes_allowed(call: Call, uid: int) -> int:
    """The call's limit, plus the user's threads if the uid is the user's: the kernel counts all threads of a uid."""
    allowed = int(call["processes"])
    if uid != os.geteuid():
        return allowed
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                allowed += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has just ended, or is not ours to read
    return allowed


def set_limits(call: Call, processes: int) -> None:
    """Limits that the command inherits and cannot raise."""
    memory, file = call["memory_mib"] * MIB, call["file_mib"] * MIB
    limits = {
        resource.RLIMIT_CPU: (call["cpu_s"], call["cpu_s"] + 1),
        resource.RLIMIT_FSIZE: (file, file),
        resource.RLIMIT_NOFILE: (256, 256),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NPROC: (processes, processes),
        resource.RLIMIT_AS: (memory, memory),
        resource.RLIMIT_SIGPENDING: (PENDING, PENDING),
    }
    for name, (soft, hard) in limits.items():
        most = resource.getrlimit(name)[1]
        if soft != resource.RLIM_INFINITY:
            infinite = most == resource.RLIM_INFINITY
            resource.setrlimit(name, (soft, hard) if infinite else (min(soft, most), min(hard, most)))


def drop_privileges(uid: int) -> None:
    """From root to the uid for good: no groups, no capabilities, none from setuid programs."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        if os.getresuid() != (uid, uid, uid) or uid == 0:
            raise PermissionError(f"cannot become uid {uid}")
    checked(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    die_with_parent()


def enter(call: Call, uid: int, home: str, processes: int, streams: list[int], rules: int = -1) -> None:
    """Become the command in its directory: as the uid, within the limits and rules, under the filter."""
    os.chdir(home)
    drop_privileges(uid)
    set_limits(call, processes)
    if rules >= 0:
        landlock.restrict(rules)
    if sandbox_filter.exists():
        sandbox_filter.install(has_unreadable(call))
    execute(call, home, streams)


def has_unreadable(call: Call) -> bool:
    """Whether the call names a program that nobody may read, its owner included."""
    return any(os.path.isfile(path) and not os.stat(path).st_mode & 0o444 for path in call["readable"])


def die_with_parent() -> None:
    """Be killed when the parent process dies. A change of uid undoes it."""
    checked(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent-death signal")


def execute(call: Call, home: str, streams: list[int]) -> None:
    """Become the command, with clean signals, streams and environment; its channel is descriptor 3."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and children would inherit that
        signal.signal(number, signal.SIG_DFL)
    if len(streams) > 3:  # the pipe closes itself as the command starts
        os.write(streams[3], STARTED)
    kept = streams[:3] + ([call["channel"]] if call["channel"] >= 0 else [])
    for target, fd in enumerate([_high(fd) for fd in kept]):
        os.dup2(fd, target)
    clean = {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "USER": "nobody"}
    os.execvpe(call["command"][0], call["command"], {**clean, **call["environment"]})


def forget(call: Call, streams: list[int]) -> None:
    """Close the descriptors that only the command uses."""
    for fd in streams if call["channel"] < 0 else [*streams, call["channel"]]:
        os.close(fd)


def shell_status(wait_status: int) -> int:
    """A shell's exit status: the exit code, or 128 + the signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code


def _high(fd: int) -> int:
    """A copy of the descriptor with a number of 100 or more, which the command does not use."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)
