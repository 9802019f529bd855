"""The system calls that untrusted code may not make: a seccomp filter, at every level, on Linux.

Namespaces and limits do not cover memory that no limit counts (System V segments, memfd), objects that outlive their
maker (System V queues, keys), sockets outside network namespaces (AF_VSOCK reaches a virtual machine's host), a user
namespace in which to mount more, and large, rare parts of the kernel (bpf, io_uring, userfaultfd). Programs and
compilers need none of these.

    socket(AF_INET, SOCK_STREAM, 0)    ->    EPERM
"""

import ctypes
import errno
import platform
import struct

from minrl.sandbox.files import LIBC, checked

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
REFUSED = {  # the kernel's tables of system calls
    "x86_64": {
        "socket": 41, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "memfd_create": 319, "ptrace": 101,
        "process_vm_readv": 310, "process_vm_writev": 311, "unshare": 272, "setns": 308, "add_key": 248,
        "request_key": 249, "keyctl": 250, "perf_event_open": 298, "bpf": 321, "userfaultfd": 323,
    },
    "aarch64": {
        "socket": 198, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180, "memfd_create": 279, "ptrace": 117,
        "process_vm_readv": 270, "process_vm_writev": 271, "unshare": 97, "setns": 268, "add_key": 217,
        "request_key": 218, "keyctl": 219, "perf_event_open": 241, "bpf": 280, "userfaultfd": 282,
    },
}  # fmt: skip
REFUSED_EVERYWHERE = {"io_uring_setup": 425, "pidfd_getfd": 438, "memfd_secret": 447}
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag of <linux/sched.h>
X32 = 0x40000000  # x86_64's second table of calls begins here

LOAD, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # <linux/bpf_common.h>
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # struct seccomp_data
ALLOW, FAIL = 0x7FFF0000, 0x00050000  # <linux/seccomp.h>; an errno is added to FAIL
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))  # struct sock_fprog


def exists() -> bool:
    """Whether there is a filter for this machine."""
    return platform.system() == "Linux" and platform.machine() in AUDIT_ARCH


def program() -> bytes:
    """The filter in the kernel's form, an array of `struct sock_filter`."""
    machine = platform.machine()
    refusal = [_step(RETURN, FAIL + errno.EPERM)]
    code = [_step(LOAD, ARCHITECTURE), _step(IF_EQUAL, AUDIT_ARCH[machine], 1, 0), *refusal, _step(LOAD, NUMBER)]
    code += [_step(IF_AT_LEAST, X32, 0, 1), *refusal]
    for number in sorted([*REFUSED[machine].values(), *REFUSED_EVERYWHERE.values()]):
        code += [_step(IF_EQUAL, number, 0, 1), *refusal]
    # clone3 has its flags in memory, which no filter can read: without it the C library takes clone.
    code += [_step(IF_EQUAL, CLONE3, 0, 1), _step(RETURN, FAIL + errno.ENOSYS)]
    code += [_step(IF_EQUAL, CLONE[machine], 0, 3), _step(LOAD, FIRST_ARGUMENT)]
    code += [_step(IF_ANY_BIT, NEW_NAMESPACES, 0, 1), *refusal, _step(RETURN, ALLOW)]
    return b"".join(code)


def install() -> None:
    """Put this process and all that it starts under the filter for good. It must have `no_new_privs`."""
    code = program()
    filter_program = _Program(len(code) // 8, code)
    result = LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_program), 0, 0)
    checked(result, "seccomp filter")


def _step(operation: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_so, if_not, value)
