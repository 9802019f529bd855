"""Which files untrusted code may open where nothing can be mounted: Landlock, of Linux 5.13 and later.

It may read and run the system's programs and what the call names, and change its own folder: it leaves nothing in
folders that everybody may write to. From Linux 6.12 on it cannot signal a process that it has not started. Landlock
does not hide that a path exists, and the owner of a file may still change its mode.
"""

import ctypes
import os
import stat
import struct

from minrl.sandbox.files import DEVICES, LIBC, SYSTEM, Call, checked

SYS_CREATE_RULESET, SYS_ADD_RULE, SYS_RESTRICT_SELF = 444, 445, 446  # the same on every machine
CREATE_RULESET_VERSION, RULE_PATH_BENEATH = 1, 1  # <linux/landlock.h>
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, MAKE_CHAR, MAKE_BLOCK = 1, 2, 4, 8, 1 << 6, 1 << 11
TRUNCATE, IOCTL_DEVICE = 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights each version knows, from the lowest bit on; later ones know no more."""
NO_TCP, NO_OUTER_SOCKETS_OR_SIGNALS = 3, 3


def version() -> int:
    """The version that this kernel has; 0 if it has none."""
    return max(0, LIBC.syscall(SYS_CREATE_RULESET, None, ctypes.c_size_t(0), CREATE_RULESET_VERSION))


def ruleset(call: Call, folder: str) -> int:
    """A descriptor of what the call may open, for `restrict`. Whoever makes it can reach all of the paths."""
    known = (1 << RIGHTS[min(version(), max(RIGHTS))]) - 1
    attributes = struct.pack("=QQQ", known, NO_TCP, NO_OUTER_SOCKETS_OR_SIGNALS)
    size = 8 if version() < 4 else 16 if version() < 6 else 24
    rules = LIBC.syscall(SYS_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    checked(rules, "landlock_create_ruleset")
    for path in [*SYSTEM, "/proc", *call["readable"]]:
        _allow(rules, path, EXECUTE | READ_FILE | READ_DIR)
    for name in DEVICES:
        _allow(rules, f"/dev/{name}", READ_FILE | WRITE_FILE)
    for path in [folder, *call["writable"]]:
        _allow(rules, path, known & ~(MAKE_CHAR | MAKE_BLOCK))
    return rules


def restrict(rules: int) -> None:
    """Put this process and all that it starts under the rules for good. It must have `no_new_privs`."""
    checked(LIBC.syscall(SYS_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


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
