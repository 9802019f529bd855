"""What object code calls: names as the compiler resolved them, after macros, aliases and re-exports.

A solution needs values, memory and threads. It needs no files, programs, sockets, arguments or end of the process, and
nothing of the C library by name. What it would call of these stands in its object code, however the source spelled it.
"""

import re
import struct
from collections.abc import Iterator

MODULES = ("process", "fs", "net", "env", "backtrace")
OF_STD = re.compile(rf"3std\d+({'|'.join(MODULES)})(?![a-z_])|std\.\.({'|'.join(MODULES)})\.\.")
"""A name below one of std's modules, in either way of the compiler to write it."""
HARMLESS = re.compile(
    r"3std3env\d+_*var_os|std\.\.process\.\.(?:Termination|ExitCode)"
    r"|3std7process(?:5abort|(?:Nt\w{1,4}_)?(?:11Termination|8ExitCode))"
)
"""What std's own inline functions call: threads read the environment for their stack's size, tests have a status."""
PLAIN = re.compile(
    r"_?GLOBAL_OFFSET_TABLE_|_Unwind_Resume|rust_eh_personality|__rust_\w+|__tls_get_addr|mem(?:cpy|move|set|cmp|chr|rchr)|bcmp|"
    r"strlen|malloc|calloc|realloc|free|posix_memalign|abort|close|fcntl|__errno_location|(?:f(?:mod|ma|min|max|abs|dim|minimum|maximum)(?:_num)?|pow|exp(?:2|10|m1)?|log(?:2|10|1p)?|sincos|"
    r"a?(?:sin|cos|tan)h?|atan2|cbrt|hypot|copysign|ceil|floor|trunc|l?l?r(?:int|ound)|roundeven|nearbyint|sqrt|erfc?|"
    r"[tl]gamma|lgamma_r|lgammaf_r|ldexp|frexp|modf)(?:f|l|f16|f128)?|__\w+[sdthx][if]\d?|__gnu_(?:f2h|h2f)_ieee"
)
"""Functions that the compiler and std's inline functions call: memory, panics, floating point, wide integers."""


def foreign(objects: bytes, given: str = "", plain: tuple[str, ...] = ()) -> str:
    """What the object code calls that no solution needs: a module of std, or `symbol`; empty if nothing.

    A module that the row's own Rust (`given`) names is allowed, and so are the `plain` functions of the caller.
    """
    words = set(re.findall(r"\w+", given))
    for name, defined in symbols(objects):
        if name.startswith(("_R", "_ZN")):
            found = next((m[1] or m[2] for m in OF_STD.finditer(HARMLESS.sub("", name))), "")
            if found and found not in words:
                return f"std_{found}"
        elif not defined and name not in plain and not PLAIN.fullmatch(name):
            return "symbol"
    return "section" if any(name.startswith(STARTS) for name in sections(objects)) else ""


STARTS = (".init", ".preinit", ".ctors", ".fini", ".dtors")
"""Sections whose functions run before and after the program's own."""


def symbols(objects: bytes) -> Iterator[tuple[str, bool]]:
    """The names in the symbol table of a 64-bit ELF file, each with whether it is defined there."""
    headers = _headers(objects)
    for kind, offset, size, link in ((h[1], h[4], h[5], h[6]) for h in headers):
        if kind == SYMBOL_TABLE:
            names = headers[link][4]
            for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", objects[offset : offset + size]):
                if name:
                    yield _text(objects, names + name), section != 0


def sections(objects: bytes) -> list[str]:
    """The names of its sections."""
    headers = _headers(objects)
    names = headers[struct.unpack_from("<H", objects, 62)[0]][4]
    return [_text(objects, names + header[0]) for header in headers]


SYMBOL_TABLE = 2  # <elf.h>: SHT_SYMTAB


def _headers(objects: bytes) -> list[tuple[int, ...]]:
    """The section headers: name, type, flags, address, offset, size, link, ..."""
    start, (size, count) = struct.unpack_from("<Q", objects, 40)[0], struct.unpack_from("<HH", objects, 58)
    if count == 0:  # more than the header has room for: the first section says how many
        count = struct.unpack_from("<IIQQQQIIQQ", objects, start)[5]
    return [struct.unpack_from("<IIQQQQIIQQ", objects, start + index * size) for index in range(count)]


def _text(objects: bytes, start: int) -> str:
    return objects[start : objects.index(b"\0", start)].decode("utf-8", "replace")
