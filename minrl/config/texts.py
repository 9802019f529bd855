"""Settings that name a path, or are a text that may stand in a file."""

from pathlib import Path

from minrl.types import UserError, require

PATH = {"path": "always"}
"""Marks a setting that names a file or folder: config.json holds its absolute path."""

PATH_OR_NAME = {"path": "where it exists"}
"""Marks a setting that names a local folder, or something else by a name that is no path."""


def text_or_file(name: str, given: str, shown: str) -> str:
    """The text of the setting `name`, which is given or stands in a file that is named. It must have `shown` in it."""
    if shown in given:
        return given
    try:
        text = Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise UserError(
            f"{name} must be a text with {shown} in it, or a file with one, got {given[:80]!r}: {reason}"
        ) from error
    require(shown in text, f"the {name} in {given} never shows the {shown.strip('{}')}: write {shown} in it")
    return text
