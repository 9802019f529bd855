"""Folders with a known name in a folder of everybody: taken only where nobody else can have put anything into them."""

import os
from pathlib import Path

import pytest

from minrl.system.files import lock, private_folder
from minrl.types import UserError


def test_a_private_folder_is_made_once_and_taken_again(tmp_path):
    before = os.umask(0o077)
    try:
        made = private_folder(tmp_path / "cache")
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o7777 == 0o711  # others pass, whatever the umask
    (made / "kept").touch()
    assert private_folder(made) == made and (made / "kept").exists()


def link(path):
    (path.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent / "elsewhere")


PLANTED = {
    "a link": (link, "is a link"),
    "a link to nothing": (lambda path: path.symlink_to("/nowhere"), "is a link"),
    "a file": (Path.touch, "is no folder"),
    "one of everybody": (lambda path: (path.mkdir(), path.chmod(0o777)), "may be changed by others .its mode is 0777"),
    "one of a group": (lambda path: (path.mkdir(), path.chmod(0o770)), "may be changed by others"),
    "one that others replace": (lambda path: path.parent.chmod(0o777), "others may replace it"),
}


@pytest.mark.parametrize(("plant", "said"), PLANTED.values(), ids=PLANTED)
def test_a_folder_that_others_made_is_refused_in_one_line_and_left_alone(tmp_path, plant, said):
    path = tmp_path / "cache"
    plant(path)
    with pytest.raises(PermissionError, match=said) as refused:
        private_folder(path)
    assert "\n" not in str(refused.value) and "TMPDIR" in str(refused.value)
    assert not (tmp_path / "elsewhere").exists() or (tmp_path / "elsewhere").stat().st_mode & 0o7777 != 0o711


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match=f"belongs to the user {owner}"):
        private_folder(tmp_path / "cache")


def test_a_lock_follows_no_link(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("theirs")
    (tmp_path / "lock").symlink_to(kept)
    with pytest.raises(UserError, match="cannot lock"):
        lock(tmp_path / "lock")
    assert kept.read_text() == "theirs"
