"""Keys of servers: the variables that hold them, the hosts that get them, and texts without them.

A key is in the environment and nowhere else: no setting, no URL, no record and no message has one.
"""

import os
import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from minrl.types import UserError, require

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_HOST = "api.openai.com"

KEY_VARIABLE = "OPENAI_API_KEY"
"""The variable that is read where none is named. Its key is for OpenAI's own hosts alone."""

KEY_LIKE = re.compile(r"(?=[A-Z]*[0-9])[A-Z0-9]{16,}")
"""A part between underscores that no name has: long, with digits, such as AKIA0123456789ABCDEF."""

HOLDS_KEY = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD)$|(^|_)(API_?KEY|ACCESS_KEY|SECRET)_")
IN_URL = re.compile(r"(?<=://)[^\s/?#]*@")
IN_QUERY = re.compile(r"(?i)(?<=[?&])((?:api[-_]?|access[-_]?)?(?:key|token)|sig|signature|secret|password)=[^\s&#]+")
BY_SHAPE = re.compile(r"\b(?:sk-|gsk_|hf_|ghp_|github_pat_|glpat-|xai-|nvapi-|AIza)[\w-]{16,}")
"""What is a key if it has a digit. To look ahead for it here would read the rest of a text again at each beginning."""


def require_variable(flag: str, name: str) -> None:
    """Refuse what is no name of an environment variable, without repeating it: it may be the key itself."""
    is_name = re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", name) and not any(map(KEY_LIKE.fullmatch, name.split("_")))
    require(
        bool(is_name),
        f"{flag} names the environment variable that holds the key, in capital letters, digits and underscores, such "
        f"as {KEY_VARIABLE}; what was given is no such name, and is not repeated in case it is a key",
    )


def checked_url(base_url: str) -> str:
    """The endpoint's URL, by default OpenAI's. Raises `UserError` if it cannot be an endpoint or contains a key.

    >>> checked_url(""), checked_url("http://127.0.0.1:8000/v1/")
    ('https://api.openai.com/v1', 'http://127.0.0.1:8000/v1')
    """
    example = "such as http://127.0.0.1:8000/v1"
    own = not any(mark in base_url for mark in "@?#") and without_keys(base_url) == base_url
    require(own, f"a base URL must hold no key and no user, {example}: put the key into the environment")
    try:
        parts = urlsplit(base_url or OPENAI_URL)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that hold no address
        usable = False
    require(usable, f"a base URL must begin with http:// or https:// and a host, {example}, got {base_url!r}")
    ends = parts.path.rstrip("/").endswith("/completions")
    require(not ends, f"a base URL ends before /chat/completions, {example}, got {base_url!r}")
    secure = parts.scheme == "https" or not is_openai(base_url)
    require(secure, f"{OPENAI_HOST} is asked by https alone, got {base_url!r}")
    return (base_url or OPENAI_URL).rstrip("/")


def is_openai(url: str) -> bool:
    """Whether the URL is of OpenAI's own hosts, of which regions have some.

    >>> is_openai("https://eu.api.openai.com/v1"), is_openai("https://api.openai.com.evil.org/v1")
    (True, False)
    """
    return f".{urlsplit(url).hostname or ''}".endswith(f".{OPENAI_HOST}")


def key_for(url: str, variable: str) -> str:
    """The key that the server may have; empty for servers other than OpenAI's, which may need none."""
    key = os.environ.get(variable, "").strip()
    if variable == KEY_VARIABLE and not is_openai(url):
        return ""
    if not key and is_openai(url):
        raise UserError(f"{OPENAI_HOST} needs a key: put it into the environment variable {variable}")
    require(bool(key), f"the environment variable {variable}, which is to hold the key of {url}, is empty or not set")
    return key


def about_key(url: str, key: str) -> str:
    """What to know of the way to a server; empty if there is nothing."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        what = "texts and the key" if key else "texts"
        return f"{url} is asked by http: {what} can be read on the way; https or a tunnel to this machine hides them"
    if not key and os.environ.get(KEY_VARIABLE) and not is_openai(url):
        return f"{KEY_VARIABLE} is for {OPENAI_HOST} alone and is not sent to {url}: name a variable for its own key"
    return ""


def is_loopback(host: str) -> bool:
    """Whether what is sent to the host stays on this machine.

    >>> is_loopback("127.1.2.3"), is_loopback("::1"), is_loopback("localhost"), is_loopback("127.0.0.1.evil.org")
    (True, True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def without_keys(text: str) -> str:
    """The text without users and keys in URLs, keys of the environment, and what has the shape of one.

    >>> without_keys("no answer of https://me:secret@host/v1?key=1")
    'no answer of https://host/v1?key=***'
    """
    text = IN_QUERY.sub(r"\1=***", IN_URL.sub("", text))
    for name, value in os.environ.items():
        if len(value) >= 12 and HOLDS_KEY.search(name) and not value.startswith("/"):
            text = text.replace(value, "***")
    return BY_SHAPE.sub(lambda found: "***" if re.search("[0-9]", found[0]) else found[0], text)
