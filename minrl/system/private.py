"""Folders with a known name where everybody may write, such as /tmp.

Little is imported: the process that watches a call of untrusted code uses it too.
"""

import os
import stat
from pathlib import Path


def private_folder(path: Path) -> Path:
    """Make the folder, or take the one that is there if nobody but this user can have put anything into it.

    Others may pass through it and see nothing. Raises PermissionError, in one line, for a link, for a folder of another
    user, for one that others may write to, and for one that others may replace.
    """
    try:
        os.mkdir(path, 0o711)
        os.chmod(path, 0o711)  # whatever the umask is
    except FileExistsError:
        pass
    found, above = os.lstat(path), os.stat(os.path.dirname(os.path.abspath(path)))
    if stat.S_ISLNK(found.st_mode):
        wrong = "is a link"
    elif not stat.S_ISDIR(found.st_mode):
        wrong = "is no folder"
    elif found.st_uid != os.geteuid():
        wrong = f"belongs to the user {found.st_uid}"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = f"may be changed by others (its mode is {stat.S_IMODE(found.st_mode):04o})"
    elif above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        wrong = "lies in a folder in which others may replace it"
    else:
        return path
    raise PermissionError(f"{path} {wrong}: remove it, or set TMPDIR to a folder of your own")
