"""Settings that name a server and the environment variable with its key. The key itself is in no setting and no URL."""

import re
from urllib.parse import urlsplit

from minrl.dataflow import require

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_HOST = "api.openai.com"

KEY_VARIABLE = "OPENAI_API_KEY"
"""The variable that is read where none is named. Its key is for OpenAI's own hosts alone."""


def require_variable(flag: str, name: str) -> None:
    """Refuse what is no name of an environment variable, without repeating it: it may be the key itself."""
    named = re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", name) is not None
    require(named, f"{flag} names the environment variable that holds the key, such as {KEY_VARIABLE}, not the key")


def checked_url(base_url: str) -> str:
    """The endpoint's URL, by default OpenAI's. Raises `UserError` if it cannot be an endpoint or contains a key.

    >>> checked_url(""), checked_url("http://127.0.0.1:8000/v1/")
    ('https://api.openai.com/v1', 'http://127.0.0.1:8000/v1')
    """
    example = "such as http://127.0.0.1:8000/v1"
    own = not any(mark in base_url for mark in "@?#")
    require(own, f"a base URL must hold no key and no user, {example}: put the key into the environment")
    usable = re.fullmatch(r"https?://(\[[\da-f:.]+\]|[^/:\s\[]+)(:\d+)?(/\S*)?", base_url or OPENAI_URL) is not None
    require(usable, f"a base URL must begin with http:// or https:// and a host, {example}, got {base_url!r}")
    secure = base_url.startswith("https:") or not is_openai(base_url)
    require(secure, f"{OPENAI_HOST} is asked by https alone, got {base_url!r}")
    return (base_url or OPENAI_URL).rstrip("/")


def is_openai(url: str) -> bool:
    """Whether the URL is of OpenAI's own hosts, of which regions have some.

    >>> is_openai("https://eu.api.openai.com/v1"), is_openai("https://api.openai.com.evil.org/v1")
    (True, False)
    """
    return f".{urlsplit(url).hostname or ''}".endswith(f".{OPENAI_HOST}")
