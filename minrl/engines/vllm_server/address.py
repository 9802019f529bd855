"""Where servers may be: on this machine or in a private network. Their control endpoints, by which weights are loaded,
ask nobody for a key.
"""

import socket
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from minrl.types import require
from minrl.utils.keys import checked_url

PRIVATE = tuple(
    map(ip_network, ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)
"""Loopback, RFC 1918 and unique local addresses."""


def private_urls(urls: Sequence[str]) -> list[str]:
    """The servers' URLs, with an address in place of a host's name. Refuses what is not loopback or private.

    >>> private_urls(["http://127.0.0.1:8001/"])
    ['http://127.0.0.1:8001']
    """
    found = list(map(_private_url, urls))
    require(len(set(found)) == len(found), f"--engine-urls names a server twice: {', '.join(urls)}")
    return found


def _private_url(url: str) -> str:
    parts = urlsplit(checked_url(url))
    host = parts.hostname or ""
    require(
        parts.scheme == "http" and not parts.path and parts.port is not None,
        f"--engine-urls names servers by scheme, host and port alone, such as http://127.0.0.1:8001, got {url!r}",
    )
    try:
        addresses = sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None)}, key=lambda a: (":" in a, a))
    except OSError:
        addresses = []
    require(bool(addresses), f"--engine-urls: the name {host} has no address: name the server by its address")
    outside = [address for address in addresses if not is_private(address)]
    require(
        not outside,
        f"--engine-urls: {host} is {''.join(outside[:1])}, not a loopback or private address (RFC 1918, fc00::/7): "
        "whoever reaches a server's control endpoints can replace its weights; use a private network or a tunnel",
    )
    address = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    return f"http://{address}:{parts.port}"


def is_private(address: str) -> bool:
    """Whether an address is this machine's or a private network's.

    >>> is_private("10.1.2.3"), is_private("fd00::1"), is_private("8.8.8.8"), is_private("169.254.169.254")
    (True, True, False, False)
    """
    return any(ip_address(address.partition("%")[0]) in network for network in PRIVATE)
