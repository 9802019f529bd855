"""The system calls that untrusted code may not make: a seccomp filter, at every level, on Linux.

Namespaces and limits do not cover memory that no limit counts (System V segments, memfd, pages given to pipes, shared
memory of which a part is unmapped), objects that outlive their maker (System V queues, keys),
sockets outside network namespaces (AF_VSOCK reaches a virtual machine's host; a pair of datagram sockets sends to any
name), other processes' memory, limits and priorities, a user namespace in which to mount more, and large, rare parts of
the kernel (bpf, io_uring, userfaultfd). Programs and compilers need none of these, or do without.

    socket(AF_INET, SOCK_STREAM, 0)    ->    EPERM
"""

import errno
import os
import struct
import sys
from collections.abc import Iterable

MACHINES = ("x86_64", "aarch64")
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
REFUSED = {  # the kernel's tables of system calls, for each of the machines; -1: there is none
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "setsockopt": (54, 208),
    "sendmsg": (46, 211), "sendmmsg": (307, 269), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "memfd_create": (319, 279), "memfd_secret": (447, 447), "vmsplice": (278, 75),
    "splice": (275, 76), "tee": (276, 77), "sendfile": (40, 71), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "kcmp": (312, 272), "unshare": (272, 97),
    "setns": (308, 268), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_setup": (206, 0), "inotify_init": (253, -1), "inotify_init1": (294, 26), "fanotify_init": (300, 262),
    "seccomp": (317, 277), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
}  # fmt: skip
UNSUPPORTED = {  # attributes of files, which no quota of a file system in memory counts; who copies files asks for them
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
}  # fmt: skip
CALLS = {"socketpair": (53, 199), "mmap": (9, 222), "fcntl": (72, 25), "prctl": (157, 167), "clone": (56, 220)}
"""What the filter refuses with some arguments."""
OF_ITSELF = {
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip
"""What changes a process of the same user by its number: allowed for 0, the caller. The kernel reads the lower half."""
KINDS = {"setpriority": 0, "ioprio_set": 1}
"""Those whose first argument says what the number, their second one, is of: a process, not a group or a user."""
CLONE3 = 435
NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag of <linux/sched.h>
SHARED_ANONYMOUS = 0x21  # MAP_SHARED | MAP_ANONYMOUS of <linux/mman.h>
SOCK_TYPE_MASK, AF_UNIX, SOCK_STREAM, SOCK_SEQPACKET = 0xF, 1, 1, 5  # <linux/net.h>, <linux/socket.h>
LOCKS_AND_PIPES = (6, 7, 37, 38, 1024, 1031)
"""F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, F_SETLEASE and F_SETPIPE_SZ of <linux/fcntl.h>: a file may have any
number of record locks, which no limit counts.
"""
X32 = 0x40000000  # x86_64's second table of calls begins here

LOAD, AND, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06  # <linux/bpf_common.h>
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # struct seccomp_data; the lower half of each argument comes first
ALLOW, FAIL = 0x7FFF0000, 0x00050000  # <linux/seccomp.h>; an errno is added to FAIL
PR_SET_SECCOMP = 22  # <linux/prctl.h>


def exists() -> bool:
    """Whether there is a filter for this machine."""
    return sys.platform == "linux" and os.uname().machine in MACHINES


def number_of(name: str) -> int:
    """The number that this machine gives to a call of the tables."""
    return {**REFUSED, **UNSUPPORTED, **CALLS, **OF_ITSELF}[name][MACHINES.index(os.uname().machine)]


def program() -> bytes:
    """The filter in the kernel's form, an array of `struct sock_filter`."""
    code = [_step(LOAD, ARCHITECTURE), _step(IF_EQUAL, AUDIT_ARCH[os.uname().machine], 1, 0), _fail(errno.EPERM)]
    code += [_step(LOAD, NUMBER), _step(IF_AT_LEAST, X32, 0, 1), _fail(errno.EPERM)]
    # clone3 has its flags in memory, which no filter can read: without it the C library takes clone.
    code += _refuse([CLONE3], errno.ENOSYS)
    code += _refuse(map(number_of, UNSUPPORTED), errno.EOPNOTSUPP)
    code += _refuse((number for name in REFUSED if (number := number_of(name)) >= 0), errno.EPERM)
    for name in OF_ITSELF:
        code += _look(name, 1 if name in KINDS else 0, _require(0))
        code += _look(name, 0, _require(KINDS[name])) if name in KINDS else []
    code += _look("clone", 0, [_step(IF_ANY_BIT, NEW_NAMESPACES, 0, 1), _fail(errno.EPERM)])
    code += _look("prctl", 0, _refuse([PR_SET_SECCOMP], errno.EPERM))
    code += _look("fcntl", 1, _refuse(LOCKS_AND_PIPES, errno.EPERM))
    both = [_step(AND, SHARED_ANONYMOUS), *_refuse([SHARED_ANONYMOUS], errno.EPERM)]
    code += _look("mmap", 3, both)
    code += _look("socketpair", 0, _require(AF_UNIX))
    # Rust starts programs with a pair of packets, Python its event loops with one of streams; both are tied together.
    tied = [_step(AND, SOCK_TYPE_MASK), _step(IF_EQUAL, SOCK_STREAM, 2, 0), _step(IF_EQUAL, SOCK_SEQPACKET, 1, 0)]
    return b"".join([*code, *_look("socketpair", 1, [*tied, _fail(errno.EPERM)]), _step(RETURN, ALLOW)])


def _refuse(values: Iterable[int], error: int) -> list[bytes]:
    """Fail if what is loaded is one of the values."""
    return [step for value in sorted(values) for step in (_step(IF_EQUAL, value, 0, 1), _fail(error))]


def _require(value: int) -> list[bytes]:
    """Fail unless what is loaded is the value."""
    return [_step(IF_EQUAL, value, 1, 0), _fail(errno.EPERM)]


def _look(name: str, argument: int, steps: list[bytes]) -> list[bytes]:
    """In the call of this name, look at an argument; then load the call's number again."""
    inside = [_step(LOAD, ARGUMENTS + 8 * argument), *steps, _step(LOAD, NUMBER)]
    return [_step(IF_EQUAL, number_of(name), 0, len(inside)), *inside]


def _fail(error: int) -> bytes:
    return _step(RETURN, FAIL + error)


def _step(operation: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_so, if_not, value)
