"""What object code calls is read from its symbols and sections, here of ELF files made by hand."""

import struct

import pytest

from minrl.tasks.rust.objects import foreign

SYMBOLS, STRINGS = 2, 3  # <elf.h>: SHT_SYMTAB, SHT_STRTAB

MATHEMATICS = """sincos sincosf fma fmaf exp2f exp10 expm1 log1pf cbrt hypotf sinhf atanh tgammaf lgamma_r
lgammaf_r frexp nearbyint rintf llrint lroundf roundevenf fmaximum_num fminf128 __udivti3 __muloti4 __floattidf
__truncdfhf2 __gnu_h2f_ieee __extendhfsf2 __multf3 __powidf2 memchr bcmp"""


def elf(symbols=(), sections=(), extended=False):
    """An object file with these symbols (name, whether defined) and empty sections. `extended` puts the number of
    sections where it stands if there are too many for the header.
    """
    names = [b"", *(name.encode() for name in sections), *(name.encode() for name, _ in symbols)]
    starts = [sum(len(name) + 1 for name in names[:index]) for index in range(len(names))]
    strings = b"\0".join([*names, b""])
    table = b"".join(
        struct.pack("<IBBHQQ", start, 0, 0, int(defined), 0, 0)
        for start, (_, defined) in zip(starts[1 + len(sections) :], symbols, strict=True)
    )
    count = 3 + len(sections)
    at = 64 + 64 * count
    headers = [
        (0, 0, 0, 0, 0, count if extended else 0, 0, 0, 0, 0),
        (0, STRINGS, 0, 0, at, len(strings), 0, 0, 0, 0),
        (0, SYMBOLS, 0, 0, at + len(strings), len(table), 1, 0, 0, 0),
        *((start, 1, 0, 0, 0, 0, 0, 0, 0, 0) for start in starts[1 : 1 + len(sections)]),
    ]
    head = bytearray(64)
    struct.pack_into("<Q", head, 40, 64)
    struct.pack_into("<HHH", head, 58, 64, 0 if extended else count, 1)
    return bytes(head) + b"".join(struct.pack("<IIQQQQIIQQ", *header) for header in headers) + strings + table


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("_ZN3std7process4exit17h0123456789abcdefE", "std_process"),
        ("_RNvNtCs1234_3std7process4exit", "std_process"),
        ("_ZN86_$LT$std..fs..File$u20$as$u20$std..io..Read$GT$4read17h0123456789abcdefE", "std_fs"),
        ("_ZN3std7process5abort17h0123456789abcdefE", ""),
        ("_ZN3std6thread5spawn17h0123456789abcdefE", ""),
        ("system", "symbol"),
        ("memcpy", ""),
        ("sincos_of_mine", "symbol"),
        *((name, "") for name in MATHEMATICS.split()),
    ],
)
def test_what_is_called_decides(name, reason, extended):
    assert foreign(elf([("memcpy", False), (name, False)], extended=extended)) == reason


def test_what_the_row_names_what_the_caller_allows_and_what_is_defined_may_be_called():
    process, system = elf([("_ZN3std7process4exit17hE", False)]), elf([("system", False)])
    assert foreign(process, "std::process::id()") == "" and foreign(process, "processes") == "std_process"
    assert foreign(system, plain=("system",)) == "" and foreign(elf([("system", True)])) == ""


@pytest.mark.parametrize(("section", "reason"), [(".init_array.5", "section"), (".fini", "section"), (".text", "")])
def test_sections_that_run_by_themselves_are_refused(section, reason):
    assert foreign(elf(sections=[".data", section])) == reason
