"""The walls between untrusted code and the machine, level by level.

Each function of `LAUNCH` turns its process into the command: it returns only by an exception. `streams` are the
command's standard streams and the pipe that reports `STARTED` once all walls stand.
"""

import ctypes
import fcntl
import os
import resource
import signal
import stat
import struct
import warnings  # noqa: F401 - os.execvpe imports it, behind walls that hide it
from collections.abc import Callable

from minrl.sandbox import seccomp

TYPE_CHECKING = False  # as `typing` has it, whose import takes each call 5 ms
if TYPE_CHECKING:
    from typing import Any

    Call = dict[str, Any]
else:
    Call = dict

MIB = 2**20
WORK = "/sandbox"
SYSTEM = (
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/include"),
    *("/usr/share/zoneinfo", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"),
)
"""What programs and compilers need of the machine: not all of /usr, where somebody's project may lie."""
DEVICES = ("null", "full", "random", "urandom")
"""Not `zero`: a shared mapping of it is memory that no limit counts once a part is unmapped."""
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
"""Links in /dev."""
MAX_FILES = 16384

MAX_DESCRIPTORS = 256
LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8  # <sys/mount.h>
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2
SYS_MOUNT_SETATTR, SYS_PIVOT_ROOT = 442, {"x86_64": 155, "aarch64": 41}  # the kernel's tables of system calls
SYS_CREATE_RULESET, SYS_ADD_RULE, SYS_RESTRICT_SELF = 444, 445, 446  # the same on every machine
CREATE_RULESET_VERSION, RULE_PATH_BENEATH = 1, 1  # <linux/landlock.h>
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, MAKE_CHAR, MAKE_BLOCK = 1, 2, 4, 8, 1 << 6, 1 << 11
TRUNCATE, IOCTL_DEVICE = 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights each version knows, from the lowest bit on; later ones know no more."""
NO_TCP, NO_OUTER_SOCKETS_OR_SIGNALS = 3, 3
STARTED = b"started\n"
LATE = "the walls did not stand within"
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # <linux/prctl.h>
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER = 0x20000, 0x4000000, 0x8000000, 0x10000000  # <linux/sched.h>
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2  # <linux/seccomp.h>
F_ADD_SEALS = 1033  # <linux/fcntl.h>
PENDING = 1024
"""Signals that wait and timers, each a piece of the kernel's memory, of one user."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))  # struct sock_fprog


def launch_limited(call: Call, uid: int, folder: str, streams: list[int]) -> None:
    """Limits, a uid of its own if we are root, a directory on the disk, and Landlock where the kernel has it."""
    processes = processes_allowed(call, uid)
    os.mkdir(folder, 0o700)
    write_files(folder, call["files"], uid)
    enter(call, uid, folder, processes, streams, landlock_rules(call, folder) if landlock_version() else -1)


def launch_in_namespaces(call: Call, uid: int, _: str, streams: list[int]) -> None:
    """Namespaces of its own for processes, mounts, network, IPC, host name and, if we are not root, users.

    Their first process ends with the command; then the kernel ends all others.
    """
    processes, root = processes_allowed(call, uid), os.geteuid() == 0
    gid = os.getegid()  # inside it is unknown until it is mapped
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    checked(LIBC.unshare(flags if root else flags | CLONE_NEWUSER), "unshare")
    die_with_parent()
    if not root:
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(content)
    first = os.fork()
    if first:
        close_descriptors(call, streams)
        os._exit(shell_status(os.waitpid(first, 0)[1]))
    die_with_parent()
    build_root(call, uid)
    command = os.fork()
    if command == 0:
        enter(call, uid, WORK, processes, streams)
    close_descriptors(call, streams)
    while True:
        pid, status = os.wait()
        if pid == command:
            os._exit(shell_status(status))


def in_memory(content: bytes) -> int:
    """A descriptor from which the content is read, and through which no more memory can be had."""
    file = _high(os.memfd_create("file", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    with open(file, "wb", closefd=False) as memory:
        memory.write(content)
    fcntl.fcntl(file, F_ADD_SEALS, 0xF)
    os.lseek(file, 0, os.SEEK_SET)
    return file


LAUNCH: dict[str, Callable[[Call, int, str, list[int]], None]] = {
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
        resource.RLIMIT_NOFILE: (MAX_DESCRIPTORS, MAX_DESCRIPTORS),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NPROC: (processes, processes),
        resource.RLIMIT_AS: (memory, memory),
        resource.RLIMIT_SIGPENDING: (PENDING, PENDING),
    }
    for name, (soft, hard) in limits.items():
        most = resource.getrlimit(name)[1]
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
        checked(LIBC.syscall(SYS_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
        os.close(rules)
    if seccomp.exists():
        code = seccomp.program()
        program = _Program(len(code) // 8, code)
        checked(LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp filter")
    execute(call, home, streams)


def die_with_parent() -> None:
    """Be killed when the parent process dies. A change of uid undoes it."""
    checked(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent-death signal")


def execute(call: Call, home: str, streams: list[int]) -> None:
    """Become the command, with clean signals, streams and environment; its channel is descriptor 3."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and children would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.write(streams[3], STARTED)  # the pipe closes itself as the command starts
    kept = streams[:3] + ([call["channel"]] if call["channel"] >= 0 else [])
    for target, fd in enumerate([_high(fd) for fd in kept]):
        os.dup2(fd, target)
    clean = {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "USER": "nobody"}
    os.execvpe(call["command"][0], call["command"], {**clean, **call["environment"]})


def close_descriptors(call: Call, streams: list[int]) -> None:
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


def build_root(call: Call, uid: int) -> None:
    """The system's programs and what the call may read, all read-only, and an empty directory in memory.

    The old root is mounted below the new one while that is built, and then removed.
    """
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755")
    os.mkdir("/tmp/old")
    checked(LIBC.syscall(SYS_PIVOT_ROOT[os.uname().machine], b"/tmp", b"/tmp/old"), "pivot_root")
    os.chdir("/")
    for path in SYSTEM:
        if os.path.islink(f"/old{path}"):
            os.symlink(os.readlink(f"/old{path}"), path)
        elif os.path.exists(f"/old{path}"):
            bind(path, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID)
    for path in mounted(call["readable"]):
        bind(path, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID)
    for name in DEVICES:
        bind(f"/dev/{name}", MOUNT_ATTR_NOSUID)
    for name, target in LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/proc")
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.mkdir(WORK)
    if not os.path.exists("/tmp"):
        os.symlink(WORK, "/tmp")
    size = f"size={call['file_mib'] * MIB},nr_inodes={MAX_FILES},mode=700"
    mount("tmpfs", WORK, "tmpfs", MS_NOSUID | MS_NODEV, size)
    write_files(WORK, call["files"], uid)
    checked(LIBC.umount2(b"/old", MNT_DETACH), "umount /old")
    os.rmdir("/old")
    mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def bind(path: str, attributes: int) -> None:
    """Mount the path of the old root, and all below it, with the attributes."""
    source = f"/old{path}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    elif not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o444))
    mount(source, path, "", MS_BIND | MS_REC)
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)  # struct mount_attr: set, clear, propagation, userns_fd
    arguments = (AT_FDCWD, path.encode(), AT_RECURSIVE, ctypes.byref(wanted), ctypes.sizeof(wanted))
    checked(LIBC.syscall(SYS_MOUNT_SETATTR, *arguments), f"mount_setattr {path}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2). Raises OSError if it fails."""
    result = LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    checked(result, f"mount {target}")


def mounted(paths: list[str]) -> list[str]:
    """The paths outside the system's directories, outer ones first."""
    shown = [path for path in SYSTEM if os.path.isdir(path)]
    return [path for path in sorted(set(paths)) if not any(f"{path}/".startswith(f"{outer}/") for outer in shown)]


def checked(result: int, what: str) -> None:
    """Raise OSError with what was tried if a call of libc failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def directories_of(files: dict[str, bytes]) -> list[str]:
    """Every directory that the files need, outer ones first."""
    return sorted({name[:end] for name in files for end in range(len(name)) if name[end] == "/"})


def write_files(folder: str, files: dict[str, bytes], uid: int) -> None:
    """Write the call's files into the folder. All of it belongs to the uid then."""
    paths = [folder]
    for directory in directories_of(files):
        paths.append(f"{folder}/{directory}")
        os.mkdir(paths[-1], 0o700)
    for name, content in files.items():
        paths.append(f"{folder}/{name}")
        with open(paths[-1], "wb") as file:
            file.write(content)
    for path in paths:
        os.chown(path, uid, uid if os.geteuid() == 0 else -1)


def landlock_version() -> int:
    """The version of Landlock that this kernel has; 0 if it has none. It limits which files are opened where no mounts
    can. It does not hide that a path exists, and the owner of a file may still change its mode.
    """
    return max(0, LIBC.syscall(SYS_CREATE_RULESET, None, ctypes.c_size_t(0), CREATE_RULESET_VERSION))


def landlock_rules(call: Call, folder: str) -> int:
    """A descriptor of what the call may open. Whoever makes it can reach all of the paths."""
    known = (1 << RIGHTS[min(landlock_version(), max(RIGHTS))]) - 1
    attributes = struct.pack("=QQQ", known, NO_TCP, NO_OUTER_SOCKETS_OR_SIGNALS)
    size = 8 if landlock_version() < 4 else 16 if landlock_version() < 6 else 24
    rules = LIBC.syscall(SYS_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    checked(rules, "landlock_create_ruleset")
    for path in [*SYSTEM, "/proc", *call["readable"]]:
        _allow(rules, path, EXECUTE | READ_FILE | READ_DIR)
    for name in DEVICES:
        _allow(rules, f"/dev/{name}", READ_FILE | WRITE_FILE)
    _allow(rules, folder, known & ~(MAKE_CHAR | MAKE_BLOCK))
    return rules


def _allow(rules: int, path: str, rights: int) -> None:
    """Allow the rights to the path and all below it, if it exists."""
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(os.fstat(parent).st_mode):
        rights &= OF_FILES
    rule = struct.pack("=Qi", rights, parent)
    checked(LIBC.syscall(SYS_ADD_RULE, rules, RULE_PATH_BENEATH, rule, 0), f"landlock_add_rule {path}")
    os.close(parent)
