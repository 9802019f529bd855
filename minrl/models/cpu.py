"""Faster matrix products and memory on a CPU.

torch sends float32 matrix products to MKL, which uses AVX-512 on Intel's processors only. oneDNN, which torch includes,
computes them 1.3 to 2.5 times faster on a Zen 5 (docs/lessons.md). Where there is AVX2 only, they stay with MKL.

The C library returns large freed blocks to the system at once, so that every operation's output causes new page faults.
Keeping the blocks saves a third of a forward pass. oneDNN compiles a product for each shape in up to a millisecond,
and torch and oneDNN keep a thousand of them, of half a MiB each, which lie in between. Numbers of rows are therefore
rounded up to one of few, whose products are kept.

After each parallel region libgomp's threads spin for milliseconds before they sleep. On a quiet machine this is
fastest. Beside another busy process it is slow: they spin on the core that the last of them waits for. libgomp spins
briefly while it has more threads than cores: `spin_less_when_busy` keeps a second team, which sleeps, while they wait.
"""

import ctypes
import os
import sys
import time
from functools import cache
from pathlib import Path
from threading import Thread

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minrl.utils.processor import control_groups

FEW_ROWS = 512
"""Rows up to which MKL multiplies faster from the weight's side."""

KEPT_PRODUCTS = {"LRU_CACHE_CAPACITY": 16, "ONEDNN_PRIMITIVE_CACHE_CAPACITY": 128}
"""Compiled products that torch and oneDNN keep, by the variables that say so: 1,024 each by default. Sampling takes
about 80 for four rows to a hundred, a forward and backward pass 15 for each number of tokens. Where one too few is
kept, all are compiled again in each step.
"""

COPIED = 2**23
"""Numbers of a weight of the model up to which it is copied for nothing but its order in memory: 32 MiB in float32."""

ADDED_NUMBERS = 2**22
"""Numbers of a sum of products that are added at once: 16 MiB in float32."""

OWN_SPINS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""The variables by which a user says how long threads spin."""

BUSY_S, BUSY = 0.5, 0.25
"""A thread that waits for a core for this share of so many seconds has a neighbour. Beside a loop on one of two cores
threads waited for 1.0 of the time, on a quiet machine for 0.06 (at most 0.19).
"""

QUIET_S, QUIET = 2.0, 0.15
"""The same for the end of it. Threads that spin less waited for 0.5 beside a loop, and for 0.1 without."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> None:
    """Tell glibc to reuse freed blocks of up to 32 MiB, its limit, and not to shrink the heap, and torch to keep few of
    oneDNN's products. Before the first product. The variables may be set otherwise by who starts the program.
    """
    for name, count in KEPT_PRODUCTS.items():
        os.environ.setdefault(name, str(count))
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def free_bytes(device: torch.device | None = None) -> int:
    """Available bytes of a CUDA GPU, or of memory, the page cache included, within the limits of control groups."""
    if device is not None and device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    allowed = [limit for group in control_groups() if (limit := _below_the_limit(group)) is not None]
    return min([psutil.virtual_memory().available, *allowed])


def resident_bytes(device: torch.device) -> int:
    """Bytes that this process holds of a CUDA GPU or of memory."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else psutil.Process().memory_info().rss


def _below_the_limit(group: Path) -> int | None:
    """Bytes up to the limit of a control group (version 2 or 1); None without a limit."""
    maximum, used = group / "memory.max", group / "memory.current"
    if not maximum.exists():
        maximum, used = (group / f"memory/memory.{name}_in_bytes" for name in ("limit", "usage"))
    limit = maximum.read_text().strip() if maximum.exists() else "max"
    if limit == "max":
        return None
    stat = dict(line.split() for line in (maximum.parent / "memory.stat").read_text().splitlines())
    return int(limit) - int(used.read_text()) + int(stat.get("total_inactive_file", stat["inactive_file"]))


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, by the fastest product for float32 on this CPU; by plain torch elsewhere. A weight that is
    held in fewer bits than x is cast for it.
    """
    if weight.itemsize < x.itemsize and not torch.is_autocast_enabled(x.device.type):
        weight = weight.to(x.dtype)
    if _onednn_multiplies(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def wide_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`product` of (N, D) in float32 or better: a GPU hands out the sums before they are rounded to bfloat16."""
    if x.device.type == "cpu" or x.dtype != torch.bfloat16:
        return in_float32(product(x, weight, bias))
    made = torch.mm(x, weight.T, out_dtype=torch.float32)
    return made if bias is None else made.add_(bias)


def few_rows_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`product` of x (..., D) in the weight's precision, without a gradient. The weight may be a `prepacked` one. Up to
    `FEW_ROWS` rows MKL computes (weight @ x.T).T, which is not contiguous, up to 1.8 times faster than x @ weight.T.
    """
    x = x if x.dtype == weight.dtype else x.to(weight.dtype)
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    rows = x.numel() // x.shape[-1]
    if rows > FEW_ROWS or not float32_on_cpu(x, weight) or onednn_available():
        return product(x, weight, bias)
    columns = x.reshape(rows, -1).T
    made = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return made.T.unflatten(0, x.shape[:-1])


def prepacked(weight: Tensor) -> Tensor:
    """A weight in the order of memory in which oneDNN reads it, for `few_rows_product` only; the same where oneDNN does
    not multiply. Else each product of more than one row brings it to that order: for few rows that is half of its time.
    The model's own weights are copied up to a size.
    """
    if isinstance(weight, nn.Parameter) and weight.numel() > COPIED:
        return weight
    short = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and _onednn_takes_bfloat16()
    if short or _onednn_multiplies(weight, weight):
        return torch.ops.mkldnn._reorder_linear_weight(weight)
    return weight


def bucketed(count: int, parts: int) -> int:
    """`count` rounded up to one of few numbers: `parts` of them from a power of two to the next, equally far apart.

    >>> [bucketed(count, 2) for count in (1, 5, 6, 7, 33)]
    [1, 6, 6, 8, 48]
    """
    step = max(1, 2 ** (count.bit_length() - 1) // parts)
    return -(-count // step) * step


def weight_gradient(left: Tensor, right: Tensor) -> Tensor:
    """`left.T @ right` of (N, A) and (N, B): a weight's gradient, summed over N tokens. The narrower one goes first,
    which oneDNN multiplies faster; it has plain loops for a slice of rows that are not contiguous.
    """
    if not _onednn_multiplies(left, right):
        return left.T @ right
    if left.shape[1] > right.shape[1]:
        return weight_gradient(right, left).T
    first, second = (side.contiguous().T for side in (left, right))
    return torch.ops.mkldnn._linear_pointwise(first, second, None, "none", [], "")


def add_weight_gradient(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total += left.T @ right`, without a copy of the whole product where the precisions are the same. A GPU sums in
    the total's.
    """
    if total.device.type != "cpu" and left.dtype != total.dtype:
        total += torch.mm(left.T, right, out_dtype=total.dtype)
        return
    if not _onednn_multiplies(left, right) and left.dtype == total.dtype:
        total.addmm_(left.T, right)
        return
    rows = max(1, ADDED_NUMBERS // total.shape[1])
    for start in range(0, len(total), rows):
        total[start : start + rows] += weight_gradient(left[:, start : start + rows], right)


def in_compute_dtype(factor: Tensor) -> Tensor:
    """A factor in the precision of products, so that one that is used many times is cast once."""
    device = factor.device.type
    if torch.is_autocast_enabled(device):
        return factor.to(torch.get_autocast_dtype(device))
    return in_float32(factor)


def in_float32(x: Tensor) -> Tensor:
    """A tensor in float32, or in float64 where it is."""
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def float32_on_cpu(x: Tensor, weight: Tensor) -> bool:
    """Whether their product is one of float32 on a CPU. A compiler has kernels of its own."""
    same = x.dtype == weight.dtype == torch.float32 and not torch.compiler.is_compiling()
    return same and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def _onednn_multiplies(x: Tensor, weight: Tensor) -> bool:
    return float32_on_cpu(x, weight) and onednn_available()


@cache
def onednn_available() -> bool:
    """Whether oneDNN is the faster one for float32 here."""
    available = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return available and torch.backends.cpu.get_cpu_capability() != "AVX2"


@cache
def _onednn_takes_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU."""
    return onednn_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@cache
def spin_less_when_busy() -> None:
    """From now on let torch's threads spin less while another process takes a core. Nothing where a variable of the
    user says how long they spin, or where torch's threads are not libgomp's.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if library.exists() and not any(name in os.environ for name in OWN_SPINS):
        gomp = ctypes.CDLL(str(library))  # finds what torch is linked with
        if hasattr(gomp, "GOMP_parallel"):
            Thread(target=_watch, args=(gomp,), daemon=True).start()


def _watch(gomp: ctypes.CDLL) -> None:
    while _longest_wait(BUSY_S) < BUSY:
        pass
    gomp.GOMP_parallel(ctypes.CDLL(None).free, None, len(os.sched_getaffinity(0)) + 1, 0)  # each thread: free(NULL)
    while _longest_wait(QUIET_S) > QUIET:
        pass
    Thread(target=_watch, args=(gomp,), daemon=True).start()  # the team ends with the thread that made it


def _longest_wait(period_s: float) -> float:
    """The longest time for which a thread of this process was ready and had no core, as a share of the next seconds."""
    before, start = _waits(), time.perf_counter()
    time.sleep(period_s)
    waited = [seconds - before.get(thread, seconds) for thread, seconds in _waits().items()]
    return max(waited) / (time.perf_counter() - start)


def _waits() -> dict[str, float]:
    """Seconds for which each thread of this process has waited for a core."""
    waits = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            waits[thread] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
        except OSError:  # the thread has ended, or the kernel does not count
            waits[thread] = 0.0
    return waits
