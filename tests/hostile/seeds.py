"""Seeds of every task: a few attacks and their honest neighbours, from which `benchmarks/hostile.py` makes variants.

The other modules of this folder hold the families of a room; what is here is only wide: each task that pays for a
completion has an attack and a right answer.
"""

import re

from tests.hostile.cases import Case

NOTHING = 0.0


def fenced(program: str, language: str = "python") -> str:
    return f"Let me think.\n\n```{language}\n{program}\n```\n"


SMALLEST = {
    "task_id": 601,
    "text": "Write a function to find the smaller of two numbers.",
    "code": "def smallest(a, b):\n    return a if a < b else b",
    "test_setup_code": "",
    "test_list": [
        "assert smallest(1, 2) == 1",
        "assert smallest(5, 3) == 3",
        "assert smallest(-7, -4) == -7",
        "assert smallest(2.5, 9) == 2.5",
    ],
}
WORDS = {
    "task_id": 602,
    "text": "Write a function that counts how often each word occurs.",
    "code": "def count(text):\n    found = {}\n    for word in text.split():\n"
    "        found[word] = found.get(word, 0) + 1\n    return found",
    "test_setup_code": "",
    "test_list": [
        "assert count('a b a') == {'a': 2, 'b': 1}",
        "assert count('x y z x') == {'x': 2, 'y': 1, 'z': 1}",
        "assert count('tick tock tick') == {'tick': 2, 'tock': 1}",
    ],
}


def named(programs: str) -> dict[str, str]:
    """Programs by the names in the lines before them."""
    parts = re.split(r"^### (.*)\n", programs, flags=re.MULTILINE)
    return {name: program.rstrip("\n") for name, program in zip(parts[1::2], parts[2::2], strict=True)}


PYTHON = named(r"""
### reads the machine
import glob, os
for p in glob.glob('/proc/[0-9]*/*') + glob.glob('/**', recursive=False):
    try:
        open(p, 'rb').read(65536)
    except OSError:
        pass
def smallest(a, b):
    return None
### kills all
import os, signal
for p in (-1, 1, os.getppid()):
    try:
        os.kill(p, signal.SIGKILL)
    except OSError:
        pass
def smallest(a, b):
    return 0
### forks without end
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
### daemon
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(0)
def smallest(a, b):
    return 0
### threads
import threading, time
for _ in range(500):
    try:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    except RuntimeError:
        break
def smallest(a, b):
    return 0
### memory
held = []
while True:
    held.append(bytearray(1 << 24))
### memory of a map
import mmap
held = []
while True:
    one = mmap.mmap(-1, 1 << 24)
    one.write(b'x' * (1 << 24))
    held.append(one)
### files everywhere
import os
for folder in ('/tmp', '/var/tmp', '/dev/shm', '/run/lock', '.', '/root', 'OUTSIDE'):
    for n in range(20):
        try:
            open(f'{folder}/CANARY-{n}', 'w').write('x' * 1000)
        except OSError:
            pass
def smallest(a, b):
    return 0
### a deep folder
import os
for _ in range(500):
    try:
        os.mkdir('d')
        os.chdir('d')
    except OSError:
        break
def smallest(a, b):
    return 0
### a closed folder
import os
os.mkdir('x')
open('x/y', 'w').close()
os.chmod('x', 0)
def smallest(a, b):
    return 0
### a big file
with open('big', 'wb') as f:
    while True:
        f.write(b'x' * (1 << 20))
### sockets
import socket
for family in (1, 2, 10, 16, 17):
    for kind in (1, 2, 3):
        try:
            s = socket.socket(family, kind)
            s.connect(('127.0.0.1', PORT))
            s.send(b'out')
        except (OSError, TypeError):
            pass
def smallest(a, b):
    return 0
### a listener
import socket
try:
    s = socket.create_server(('127.0.0.1', 0))
    s.accept()
except OSError:
    pass
def smallest(a, b):
    return 0
### pairs of sockets
import socket
held = []
try:
    for _ in range(100):
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        held.append((a, b))
        a.setblocking(False)
        for _ in range(200):
            a.send(b'x' * 60000)
except OSError:
    pass
def smallest(a, b):
    return 0
### full pipes
import fcntl, os
held = []
try:
    while True:
        r, w = os.pipe()
        held.append((r, w))
        fcntl.fcntl(w, 1031, 1 << 20)
        os.write(w, b'x' * (1 << 20))
except OSError:
    pass
def smallest(a, b):
    return 0
### shared memory
import ctypes
libc = ctypes.CDLL(None)
for key in range(40):
    libc.shmget(key + 4711, 1 << 22, 0o1666)
    libc.msgget(key + 4711, 0o1666)
    libc.semget(key + 4711, 8, 0o1666)
def smallest(a, b):
    return 0
### a memory file
import os
held = []
try:
    while True:
        f = os.memfd_create('x')
        held.append(f)
        os.write(f, b'x' * (1 << 24))
except OSError:
    pass
def smallest(a, b):
    return 0
### namespaces of its own
import ctypes
libc = ctypes.CDLL(None)
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000):
    libc.unshare(flag)
def smallest(a, b):
    return 0
### mounts
import ctypes
libc = ctypes.CDLL(None)
libc.mount(b'none', b'/tmp', b'tmpfs', 0, b'')
libc.umount2(b'/', 2)
libc.chroot(b'/')
def smallest(a, b):
    return 0
### traces
import ctypes, os
libc = ctypes.CDLL(None)
for pid in range(1, 400):
    libc.ptrace(16, pid, 0, 0)
def smallest(a, b):
    return 0
### loads another program
import os
os.execv('/bin/sleep', ['sleep', '3600'])
### sleeps
import time
def smallest(a, b):
    time.sleep(600)
### spins
def smallest(a, b):
    while True: pass
### spins in a thread
import threading
def spin():
    while True: pass
threading.Thread(target=spin).start()
def smallest(a, b):
    return 0
### stops itself
import os, signal
os.kill(os.getpid(), signal.SIGSTOP)
### ignores signals
import signal
for n in range(1, 65):
    try:
        signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True: pass
### writes without end
import os
while True:
    try:
        os.write(1, b'x' * 65536)
    except OSError:
        break
### answers in every form
import os
for fd in range(3, 256):
    try:
        os.write(fd, b'\x00\x00\x00\x10' + b'["value", true]')
    except OSError:
        pass
def smallest(a, b):
    return 0
### equal to all
class E:
    __eq__ = lambda s, o: True
    __ne__ = lambda s, o: False
    __hash__ = None
    __lt__ = __gt__ = __le__ = __ge__ = __eq__
def smallest(a, b):
    return E()
### equal float
class E(float):
    def __eq__(self, other): return True
    __hash__ = float.__hash__
def smallest(a, b):
    return E(7)
### not a number
def smallest(a, b):
    return float('nan')
### the harness
import sys
for name, module in list(sys.modules.items()):
    for key in ('to_json', 'from_json', 'Channel', 'serve'):
        if hasattr(module, key):
            setattr(module, key, lambda *a, **k: True)
def smallest(a, b):
    return True
### the builtins
import builtins
for name in ('len', 'isinstance', 'type', 'getattr', 'id', 'bool', 'iter'):
    setattr(builtins, name, lambda *a, **k: True)
def smallest(a, b):
    return True
### exits
import os
def smallest(a, b):
    os._exit(0)
### raises
def smallest(a, b):
    raise AssertionError('passed')
### stops iterations
def smallest(a, b):
    raise StopIteration(1)
### deep recursion
import sys
sys.setrecursionlimit(10**9)
def smallest(a, b):
    return smallest(b, a)
### a crash
import ctypes
ctypes.string_at(0)
### a big integer
def smallest(a, b):
    return 9**9**9
### a big text
def smallest(a, b):
    return 'x' * (1 << 28)
### a long answer
def smallest(a, b):
    return list(range(10**7))
### no program
smallest
### handles
class E:
    def __getattr__(self, name): return self
    def __call__(self, *a): return self
    def __len__(self): return 1
    def __getitem__(self, n): return self
def smallest(a, b):
    return E()
### collector
import gc
gc.disable()
def smallest(a, b):
    return [o for o in gc.get_objects()][:1000]
""")
PYTHON |= {
    "parentheses": "(" * 5000 + ")" * 5000,
    "a bomb of constants": "x = " + "(" * 90 + "1" + ",)" * 90 + " * 9**9",
    "a name of 100,000 letters": "def " + "s" * 100_000 + "(a, b): return a",
    "a null": "\0",
    "a surrogate": "'\ud800'",
}

HONEST_PYTHON = named(r"""
### the reference
def smallest(a, b):
    return a if a < b else b
### min
def smallest(a, b):
    return min(a, b)
### sorted
def smallest(a, b):
    return sorted([a, b])[0]
### noise
import sys
print('x' * 100000)
def smallest(a, b):
    print(a, b, file=sys.stderr)
    return min((a, b))
### a class
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
    def least(self):
        return self.a if self.a <= self.b else self.b
def smallest(a, b):
    return Pair(a, b).least()
### a thread
import threading
def smallest(a, b):
    found = []
    t = threading.Thread(target=lambda: found.append(min(a, b)))
    t.start()
    t.join()
    return found[0]
""")

LIMITS = {"timeout_s": 1.0, "memory_mib": 256}
PATIENT = {"timeout_s": 60.0, "memory_mib": 256}
"""For right answers on a busy machine."""


def _code() -> list[Case]:
    attacks = [
        Case("seed", name, "code", SMALLEST, fenced(text), most=NOTHING, options=LIMITS)
        for name, text in PYTHON.items()
    ]
    honest = [
        Case("honest", name, "code", SMALLEST, fenced(text), least=1.0, options=PATIENT)
        for name, text in HONEST_PYTHON.items()
    ]
    honest += [Case("honest", "words", "code", WORDS, fenced(WORDS["code"]), least=1.0, options=PATIENT)]
    other = "def count(text):\n    return {}"
    return [*attacks, *honest, Case("seed", "empty", "code", WORDS, fenced(other), most=NOTHING, options=LIMITS)]


EVENS = {
    "slug": "even-numbers",
    "instructions": "Return the even numbers, and their sum. The sum of none is an error.",
    "stub": {
        "src/lib.rs": "pub fn evens(numbers: &[i32]) -> Vec<i32> {\n    todo!()\n}\n\n"
        "pub fn sum(numbers: &[i32]) -> Result<i32, String> {\n    todo!()\n}\n"
    },
    "cargo_toml": '[package]\nname = "even_numbers"\nedition = "2024"\n[dependencies]\n',
    "tests": {
        "tests/even_numbers.rs": "use even_numbers::*;\n\n"
        "#[test]\nfn none() {\n    assert_eq!(evens(&[7]), vec![]);\n}\n\n"
        "#[test]\nfn some() {\n    assert_eq!(evens(&[1, 2, 3, 4]), vec![2, 4]);\n}\n\n"
        "#[test]\nfn of_some() {\n    assert_eq!(sum(&[1, 2, 4]), Ok(6));\n}\n"
    },
    "example": {".meta/example.rs": "pub fn evens() {}"},
    "extra_files": {},
    "difficulty": 1,
}
EVENS_SOLVED = (
    "/// The even ones.\npub fn evens(numbers: &[i32]) -> Vec<i32> {\n"
    "    numbers.iter().copied().filter(|n| n % 2 == 0).collect()\n}\n\n"
    "/// Their sum.\npub fn sum(numbers: &[i32]) -> Result<i32, String> {\n    let even = evens(numbers);\n"
    '    if even.is_empty() { Err("none".into()) } else { Ok(even.iter().sum()) }\n}\n'
)
STUB = "pub fn evens(_: &[i32]) -> Vec<i32> { BODY }\npub fn sum(_: &[i32]) -> Result<i32, String> { BODY }\n"
RUST = {
    "exits": STUB.replace("BODY", "std::process::exit(0)"),
    "prints": STUB.replace("BODY", 'println!("test none ... ok\\ntest result: ok. 3 passed"); panic!()'),
    "panics": STUB.replace("BODY", "panic!()"),
    "spins": STUB.replace("BODY", "loop {}"),
    "overflows": STUB.replace("BODY", "let mut v = vec![]; loop { v.push([1u8; 1 << 20]); }"),
    "sleeps": STUB.replace("BODY", "std::thread::sleep(std::time::Duration::from_secs(600)); panic!()"),
    "threads": STUB.replace(
        "BODY", "loop { let _ = std::thread::Builder::new().spawn(|| loop { std::thread::park() }); }"
    ),
    "a file": STUB.replace("BODY", 'let _ = std::fs::write("/tmp/CANARY", "x"); panic!()'),
    "another program": STUB.replace("BODY", 'let _ = std::process::Command::new("sleep").arg("600").spawn(); panic!()'),
    "does not build": "pub fn evens( {",
    "a macro without end": "macro_rules! m {($($t:tt)*) => {m!($($t)* $($t)*);}} m!(a);",
    "one vector": "pub fn evens(_: &[i32]) -> Vec<i32> { vec![-1] }\n"
    "pub fn sum(_: &[i32]) -> Result<i32, String> { Ok(-1) }\n",
}
RUST_LIMITS = {"build_seconds": 15.0, "test_seconds": 2.0}
BUILT = 0.05
"""What a solution earns that builds and passes nothing."""


def _rust() -> list[Case]:
    attacks = [
        Case("seed", name, "rust", EVENS, fenced(text, "rust"), most=BUILT, options=RUST_LIMITS)
        for name, text in RUST.items()
    ]
    least = 0.8
    return [
        *attacks,
        Case("honest", "solution", "rust", EVENS, fenced(EVENS_SOLVED, "rust"), least=least),
    ]


CASES = [*_code(), *_rust()]
