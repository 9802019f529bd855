"""The part of the file system that a call of untrusted code sees."""

import ctypes
import os

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

LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8  # <sys/mount.h>
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2
SYS_MOUNT_SETATTR, SYS_PIVOT_ROOT = 442, {"x86_64": 155, "aarch64": 41}  # the kernel's tables of system calls


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
    for path in call["writable"]:
        bind(path, MOUNT_ATTR_NOSUID)
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


def parents_of(paths: list[str]) -> list[str]:
    """The directories above the paths, outer ones first."""
    above = {path[:end] for path in paths for end in range(1, len(path)) if path[end] == "/"}
    return [path for path in sorted(above) if mounted([path])]


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


def own(paths: list[str], uid: int) -> None:
    """Give the directories that the command may write to its uid: the last call had another uid."""
    for path in paths if os.geteuid() == 0 else []:
        os.lchown(path, uid, uid)
        for folder, directories, files in os.walk(path):
            for name in directories + files:
                os.lchown(os.path.join(folder, name), uid, uid)
