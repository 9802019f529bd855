"""Variants of cases: the same attack in other words, and an honest answer as other people would write it.

What keeps the meaning is done to every case. What may change it (a line less, another number) is done to seeds alone,
which hold no right solution in any part: so whatever a variant earns above `most` is unduly paid.
"""

import base64
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import replace

from tests.hostile.cases import Case

Change = Callable[[str, random.Random], str]

FENCE = re.compile(r"```(python|rust)[^\n]*\n(.*?)\n?```", re.DOTALL)
PROSE = (
    "Let me think about this.",
    "Übrigens: «naïve» — 思考 🙂",
    "First ```x``` and then `y`.",
    "a < b > c & d &amp; &#60;",
    "1. one\n2. two\n",
    "The numbers are three and five; so what.",
)
WIDE = {ord(c): ord(c) + 0xFEE0 for c in "0123456789"}
ARABIC = {ord(str(n)): 0x0660 + n for n in range(10)}
BOLD = {ord(str(n)): 0x1D7CE + n for n in range(10)}
CONFUSED = str.maketrans("aeopcxy", "\u0430\u0435\u043e\u0440\u0441\u0445\u0443")
ZERO_WIDTH = ("\u200b", "\u200e", "\u2060", "\ufeff", "\u00ad", "\u202e")
SEPARATORS = ("\r\n", "\n\n", "\u2028\n", "\x0b\n", "\x85\n")
EXTREMES = ("0", "-1", "2**31", "2**63", "2**64 - 1", "10**18", "1 << 20")


def indented(text: str, by: str = "    ") -> str:
    return "\n".join(by + line if line.strip() else line for line in text.split("\n"))


# A program in other clothes. `exec` in its own module leaves the names where the tests look for them.

CLOTHES: dict[str, Callable[[str], str]] = {
    "exec": lambda text: f"exec({text!r}, globals())",
    "base64": lambda text: f"import base64\nexec(base64.b64decode({_b64(text)!r}), globals())",
    "zlib": lambda text: f"import zlib\nexec(zlib.decompress({zlib.compress(_bytes(text))!r}), globals())",
    "hex": lambda text: f"exec(bytes.fromhex({_bytes(text).hex()!r}), globals())",
    "compile": lambda text: f"eval(compile({text!r}, 'minrl/rewards', 'exec'), globals())",
    "if": lambda text: f"if True:\n{indented(text)}",
    "for": lambda text: f"for _once in (0,):\n{indented(text)}",
    "while": lambda text: f"while True:\n{indented(text)}\n    break",
    "try": lambda text: f"try:\n{indented(text)}\nfinally:\n    pass",
    "swallowed": lambda text: f"try:\n{indented(text)}\nexcept BaseException as _e:\n    pass",
    "with": lambda text: f"import contextlib\nwith contextlib.suppress(Exception):\n{indented(text)}",
    "thread": lambda text: (
        f"import threading\n_t = threading.Thread(target=exec, args=({text!r}, globals()))\n_t.start()\n_t.join(1)"
    ),
    "daemon": lambda text: (
        f"import threading\nthreading.Thread(target=exec, args=({text!r}, globals()), "
        "daemon=True).start()\nimport time\ntime.sleep(0.05)"
    ),
    "function": lambda text: f"def _main():\n    exec({text!r}, globals())\n_main()",
    "generator": lambda text: f"list(exec({text!r}, globals()) for _ in range(1))",
    "class": lambda text: f"class _K:\n    exec({text!r}, globals())",
    "decorator": lambda text: f"@lambda f: exec({text!r}, globals())\ndef _f(): pass",
    "destructor": lambda text: f"class _D:\n    def __del__(self): exec({text!r}, globals())\n_D()",
    "metaclass": lambda text: (
        f"class _M(type):\n    def __init__(cls, *a):\n        exec({text!r}, globals())\nclass _C(metaclass=_M): pass"
    ),
    "import hook": lambda text: (
        f"import sys\nclass _F:\n    def find_spec(self, *a):\n        exec({text!r}, "
        "globals())\nsys.meta_path.insert(0, _F())\ntry:\n    import _nothing\nexcept ImportError:\n    pass"
    ),
    "at exit": lambda text: f"import atexit\natexit.register(exec, {text!r}, globals())\n{text}",
    "signal": lambda text: (
        f"import signal\nsignal.signal(14, lambda *a: exec({text!r}, globals()))\nsignal.raise_signal(14)"
    ),
    "trace": lambda text: (
        f"import sys\n_done = []\ndef _trace(*a):\n    if not _done:\n        _done.append(1)\n"
        f"        exec({text!r}, globals())\nsys.settrace(_trace)\n(lambda: 0)()\nsys.settrace(None)"
    ),
    "lazily": lambda text: f"def __getattr__(name):\n    exec({text!r}, globals())\n    return globals()[name]",
    "async": lambda text: f"import asyncio\nasync def _m(): exec({text!r}, globals())\nasyncio.run(_m())",
    "child": lambda text: f"import os\nif os.fork() == 0:\n    exec({text!r}, globals())\n{text}",
    "another interpreter": lambda text: (
        f"import subprocess, sys\ntry:\n    subprocess.Popen([sys.executable, '-c', "
        f"{text!r}])\nexcept Exception:\n    pass\n{text}"
    ),
    "another session": lambda text: (
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        exec({text!r}, globals())\n    os._exit(0)\n{text}"
    ),
    "a shell": lambda text: (
        f"import subprocess\ntry:\n    subprocess.Popen(['sh', '-c', 'sleep 300 & sleep 300'])\n"
        f"except Exception:\n    pass\n{text}"
    ),
    "twice": lambda text: f"{text}\n{text}",
}
"""Ways to run a program's source, some of them beside others."""

SLOW = {"at exit"}


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _b64(text: str) -> str:
    return base64.b64encode(_bytes(text)).decode()


def syscalls(text: str, rng: random.Random) -> str:
    """Calls of the kernel by numbers, with any arguments, before the program."""
    calls = []
    for _ in range(rng.randint(1, 12)):
        arguments = ", ".join(
            rng.choice(["0", "-1", "1", "3", "4096", "1 << 20", "buffer", "1 << 40"]) for _ in range(6)
        )
        calls.append(f"libc.syscall({rng.randint(0, 470)}, {arguments})")
    body = "\n".join(calls)
    return (
        f"import ctypes, os\nif os.fork() == 0:\n    libc = ctypes.CDLL(None)\n"
        f"    buffer = ctypes.create_string_buffer(4096)\n{indented(body)}\n    os._exit(0)\n{text}"
    )


def other_numbers(text: str, rng: random.Random) -> str:
    return re.sub(r"\b\d+\b", lambda match: rng.choice(EXTREMES) if rng.random() < 0.3 else match[0], text)


def without_a_line(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def a_line_twice(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    place = rng.randrange(len(lines))
    return "\n".join([*lines[:place], lines[place], *lines[place:]])


def other_order(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    place = rng.randrange(len(lines))
    return "\n".join([*lines[place:], *lines[:place]])


def cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


def noise(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice(["\0", "\ud800", "'", '"', "(", "\\", "\t", "#", *ZERO_WIDTH]) + text[place:]


def look_alike_names(text: str, rng: random.Random) -> str:
    """Identifiers in letters that Python takes for the plain ones (NFKC)."""
    names = sorted(set(re.findall(r"\b[a-z]{3,}\b", text)) - {"import", "from", "def", "class", "return", "lambda"})
    for name in rng.sample(names, min(len(names), 2)):
        text = re.sub(rf"\b{name}\b", "".join(chr(0x1D4EA + ord(c) - 97) for c in name), text)
    return text


def padded(text: str, rng: random.Random) -> str:
    filler = rng.choice(["# x\n" * 3000, "\n" * 3000, f"'{'x' * 30000}'\n", "x = 0\n" * 2000, "pass;" * 500 + "pass\n"])
    return filler + text


def other_lines(text: str, rng: random.Random) -> str:
    return text.replace("\n", rng.choice(SEPARATORS))


def coded(text: str, rng: random.Random) -> str:
    return f"# -*- coding: {rng.choice(['latin-1', 'utf-7', 'utf-16', 'rot13', 'utf-8', 'nothing'])} -*-\n{text}"


def clothed(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 3)):
        text = CLOTHES[rng.choice([name for name in CLOTHES if name not in SLOW])](text)
    return text


PYTHON: list[Change] = [clothed, clothed, clothed, syscalls, look_alike_names, padded, other_lines, coded]
SEEDS_ONLY: list[Change] = [other_numbers, without_a_line, a_line_twice, other_order, cut, noise]

# Rust.


def between_tokens(text: str, rng: random.Random) -> str:
    """Comments, white space and marks that nobody sees, where Rust allows them."""
    filler = ["/* /* */ */", "\u200e", "\u200f", "\u2028", "\x0b", "\x85", "/**/", "// x\n", "\n"]
    parts = re.split(r"(::|\(|\)|;|,|\{|\})", text)
    return "".join(part + (rng.choice(filler) if part in ("::", ";", "{", "}") else "") for part in parts)


def in_a_macro(text: str, rng: random.Random) -> str:
    name = rng.choice(["m", "wrap", "r#try"])
    return f"macro_rules! {name} {{ ($($t:tt)*) => {{ $($t)* }} }}\n{name}! {{ {text} }}"


def in_a_module(text: str, rng: random.Random) -> str:
    return f"pub use inner::*;\nmod inner {{\n{rng.choice(['', 'use std::*;', 'use super::*;'])}\n{text}\n}}"


def with_attributes(text: str, rng: random.Random) -> str:
    one = rng.choice(["#![allow(warnings)]", "#![cfg_attr(all(), allow(unused))]", "#![no_implicit_prelude]", "//! x"])
    return f"{one}\n{text}"


def raw_names(text: str, rng: random.Random) -> str:
    return re.sub(r"\b(std|process|exit|fs|env|evens)\b", lambda m: f"r#{m[0]}" if rng.random() < 0.5 else m[0], text)


RUST: list[Change] = [between_tokens, in_a_macro, in_a_module, with_attributes, raw_names]

# Texts around.


def thoughts(text: str, rng: random.Random) -> str:
    return f"<think>\n{rng.choice(PROSE)}\n</think>\n{text}"


def prose(text: str, rng: random.Random) -> str:
    return f"{rng.choice(PROSE)}\n\n{text}"


def long_prose(text: str, rng: random.Random) -> str:
    return f"{rng.choice(PROSE)} " * rng.choice([10, 1000, 3000]) + f"\n\n{text}"


GENTLE: list[Change] = [thoughts, prose, long_prose]
"""What an honest answer may have around it."""


def open_thoughts(text: str, rng: random.Random) -> str:
    return rng.choice([f"<think>{text}", f"{text}</think>", f"<think>{text}</think>", f"</think>{text}<think>"])


def other_fence(text: str, rng: random.Random) -> str:
    mark = rng.choice(
        ["```py", "```Python", "``` python", "```python title=x", "````python", "~~~python", "```", "```rust"]
    )
    return re.sub(r"```(python|rust)", mark, text)


def open_fence(text: str, rng: random.Random) -> str:
    return text.rstrip().removesuffix("```") if rng.random() < 0.5 else "```\n" * rng.choice([1, 2, 3000]) + text


def other_digits(text: str, rng: random.Random) -> str:
    return text.translate(rng.choice([WIDE, ARABIC, BOLD]))


def other_letters(text: str, rng: random.Random) -> str:
    return text.translate(CONFUSED)


def unseen(text: str, rng: random.Random) -> str:
    mark = rng.choice(ZERO_WIDTH)
    return "".join(character + (mark if rng.random() < 0.1 else "") for character in text)


def escaped(text: str, rng: random.Random) -> str:
    return rng.choice([text.replace("<", "&lt;"), text.replace("\\", "\\\\"), text.replace("\n", "\\n"), repr(text)])


def again(text: str, rng: random.Random) -> str:
    return (text + "\n") * rng.choice([2, 3, 200])


def controls(text: str, rng: random.Random) -> str:
    return rng.choice(["\r", "\x1b[2J", "\x07", "\x1b]0;x\x07", "\u2029", "\x9b31m"]) + text


STRICT = ("code_game", "tictactoe")
"""Tasks that take nothing beside the answer."""

AROUND: list[Change] = [
    *GENTLE, open_thoughts, other_fence, open_fence, other_digits, other_letters, unseen, escaped, again, controls,
]  # fmt: skip


def variant(case: Case, rng: random.Random) -> Case:
    """Another completion of the case. An honest one still is right; an attack has no more right to be paid."""
    if case.least > 0:
        program_alone = case.task in ("code", "rust") and not FENCE.search(case.completion)
        strict = case.task in STRICT or "prompt" in case.options or program_alone
        changes = [] if strict else rng.sample(GENTLE, rng.randint(0, 2))
        return replace(case, completion=_changed(case.completion, changes, rng), name=_name(case, changes))
    found = FENCE.search(case.completion)
    inside: list[Change] = []
    completion = case.completion
    if found:
        choices = PYTHON if found[1] == "python" else RUST
        choices = choices + (SEEDS_ONLY if case.family == "seed" else [])
        inside = [rng.choice(choices) for _ in range(rng.choice([1, 1, 2]))]
        program = _changed(found[2], inside, rng)
        completion = completion[: found.start(2)] + program + completion[found.end(2) :]
    # What breaks or adds a mark leaves of these the right answer alone.
    choices_around = [prose, long_prose] if case.family in ("answer in thoughts", "hedging") else AROUND
    around = [rng.choice(choices_around) for _ in range(rng.choice([0, 0, 1, 2] if found else [1, 1, 2, 3]))]
    return replace(case, completion=_changed(completion, around, rng), name=_name(case, [*inside, *around]))


def _changed(text: str, changes: list[Change], rng: random.Random) -> str:
    for change in changes:
        text = change(text, rng)
    return text


def _name(case: Case, changes: list[Change]) -> str:
    return " + ".join([case.name, *(change.__name__ for change in changes)])
