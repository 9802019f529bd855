"""What is counted in place of timed: bytes that torch allocates, bytes that leave a process, messages by their size."""

import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

SENT_AT = 200
"""The place of `tcpi_bytes_sent` in Linux' `struct tcp_info`."""


def bytes_sent() -> int:
    """Bytes that this process has sent by all its open TCP connections, as the kernel counts them."""
    total = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            copy = os.dup(int(descriptor))
        except OSError:  # closed meanwhile, as the one that lists them
            continue
        with socket.socket(fileno=copy) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SENT_AT + 8)
                total += struct.unpack_from("<Q", info, SENT_AT)[0]
    return total


@dataclass(frozen=True)
class Counted:
    """What a call did."""

    peak: int
    """Most bytes of tensors beyond those that were there before."""
    messages: dict[str, list[int]]
    """Numbers in each collective, by its kind."""


def counted(run: Callable[[], object]) -> Counted:
    """Run it under torch's profiler, which sees every allocation on the CPU and every collective."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiled:
        run()
    held = peak = 0
    messages: dict[str, list[int]] = {}
    events = profiled.profiler.kineto_results.events()
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
        elif event.name().startswith("gloo:"):
            sizes = [size for shape in event.shapes()[:1] for size in [torch.Size(shape).numel()]]
            messages.setdefault(event.name().removeprefix("gloo:"), []).extend(sizes)
    return Counted(peak, messages)
