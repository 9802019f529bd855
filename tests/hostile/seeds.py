"""Seeds of every task: a few attacks and their honest neighbours, from which `benchmarks/hostile.py` makes variants.

The other modules of this folder hold the families of a room; what is here is only wide: each task that pays for a
completion has an attack and a right answer.
"""

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

ANSWER = "def smallest(a, b):\n    "

PYTHON = {
    "reads the machine": "import glob, os\nfor p in glob.glob('/proc/[0-9]*/*') + glob.glob('/**', recursive=False):\n"
    "    try:\n        open(p, 'rb').read(65536)\n    except OSError:\n        pass\n" + ANSWER + "return None",
    "kills all": "import os, signal\nfor p in (-1, 1, os.getppid()):\n    try:\n        os.kill(p, signal.SIGKILL)\n"
    "    except OSError:\n        pass\n" + ANSWER + "return 0",
    "forks without end": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "daemon": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(3600)\n"
    "    os._exit(0)\n" + ANSWER + "return 0",
    "threads": "import threading, time\nfor _ in range(500):\n    try:\n"
    "        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    "    except RuntimeError:\n        break\n" + ANSWER + "return 0",
    "memory": "held = []\nwhile True:\n    held.append(bytearray(1 << 24))",
    "memory of a map": "import mmap\nheld = []\nwhile True:\n    one = mmap.mmap(-1, 1 << 24)\n"
    "    one.write(b'x' * (1 << 24))\n    held.append(one)",
    "files everywhere": "import os\nfor folder in ('/tmp', '/var/tmp', '/dev/shm', '/run/lock', '.', '/root', 'OUTSIDE'):\n"
    "    for n in range(20):\n        try:\n            open(f'{folder}/CANARY-{n}', 'w').write('x' * 1000)\n"
    "        except OSError:\n            pass\n" + ANSWER + "return 0",
    "a deep folder": "import os\nfor _ in range(500):\n    try:\n        os.mkdir('d')\n        os.chdir('d')\n"
    "    except OSError:\n        break\n" + ANSWER + "return 0",
    "a closed folder": "import os\nos.mkdir('x')\nopen('x/y', 'w').close()\nos.chmod('x', 0)\n" + ANSWER + "return 0",
    "a big file": "with open('big', 'wb') as f:\n    while True:\n        f.write(b'x' * (1 << 20))",
    "sockets": "import socket\nfor family in (1, 2, 10, 16, 17):\n    for kind in (1, 2, 3):\n        try:\n"
    "            s = socket.socket(family, kind)\n            s.connect(('127.0.0.1', PORT))\n            s.send(b'out')\n"
    "        except (OSError, TypeError):\n            pass\n" + ANSWER + "return 0",
    "a listener": "import socket\ntry:\n    s = socket.create_server(('127.0.0.1', 0))\n    s.accept()\n"
    "except OSError:\n    pass\n" + ANSWER + "return 0",
    "pairs of sockets": "import socket\nheld = []\ntry:\n    for _ in range(100):\n"
    "        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n        held.append((a, b))\n"
    "        a.setblocking(False)\n        for _ in range(200):\n            a.send(b'x' * 60000)\n"
    "except OSError:\n    pass\n" + ANSWER + "return 0",
    "full pipes": "import fcntl, os\nheld = []\ntry:\n    while True:\n        r, w = os.pipe()\n        held.append((r, w))\n"
    "        fcntl.fcntl(w, 1031, 1 << 20)\n        os.write(w, b'x' * (1 << 20))\nexcept OSError:\n    pass\n"
    + ANSWER
    + "return 0",
    "shared memory": "import ctypes\nlibc = ctypes.CDLL(None)\nfor key in range(40):\n"
    "    libc.shmget(key + 4711, 1 << 22, 0o1666)\n    libc.msgget(key + 4711, 0o1666)\n"
    "    libc.semget(key + 4711, 8, 0o1666)\n" + ANSWER + "return 0",
    "a memory file": "import os\nheld = []\ntry:\n    while True:\n        f = os.memfd_create('x')\n        held.append(f)\n"
    "        os.write(f, b'x' * (1 << 24))\nexcept OSError:\n    pass\n" + ANSWER + "return 0",
    "namespaces of its own": "import ctypes\nlibc = ctypes.CDLL(None)\nfor flag in (0x10000000, 0x20000, 0x20000000, "
    "0x40000000):\n    libc.unshare(flag)\n" + ANSWER + "return 0",
    "mounts": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mount(b'none', b'/tmp', b'tmpfs', 0, b'')\n"
    "libc.umount2(b'/', 2)\nlibc.chroot(b'/')\n" + ANSWER + "return 0",
    "traces": "import ctypes, os\nlibc = ctypes.CDLL(None)\nfor pid in range(1, 400):\n    libc.ptrace(16, pid, 0, 0)\n"
    + ANSWER
    + "return 0",
    "loads another program": "import os\nos.execv('/bin/sleep', ['sleep', '3600'])",
    "sleeps": "import time\n" + ANSWER + "time.sleep(600)",
    "spins": ANSWER + "while True: pass",
    "spins in a thread": "import threading\ndef spin():\n    while True: pass\n"
    "threading.Thread(target=spin).start()\n" + ANSWER + "return 0",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "ignores signals": "import signal\nfor n in range(1, 65):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
    "    except (OSError, ValueError):\n        pass\nwhile True: pass",
    "writes without end": "import os\nwhile True:\n    try:\n        os.write(1, b'x' * 65536)\n    except OSError:\n"
    "        break",
    "answers in every form": "import os\nfor fd in range(3, 256):\n    try:\n        os.write(fd, b'\\x00\\x00\\x00\\x10' + "
    "b'[\"value\", true]')\n    except OSError:\n        pass\n" + ANSWER + "return 0",
    "equal to all": "class E:\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n    __hash__ = None\n"
    "    __lt__ = __gt__ = __le__ = __ge__ = __eq__\n" + ANSWER + "return E()",
    "equal float": "class E(float):\n    def __eq__(self, other): return True\n    __hash__ = float.__hash__\n"
    + ANSWER
    + "return E(7)",
    "not a number": ANSWER + "return float('nan')",
    "the harness": "import sys\nfor name, module in list(sys.modules.items()):\n    for key in ('to_json', 'from_json', "
    "'Channel', 'serve'):\n        if hasattr(module, key):\n            setattr(module, key, lambda *a, **k: True)\n"
    + ANSWER
    + "return True",
    "the builtins": "import builtins\nfor name in ('len', 'isinstance', 'type', 'getattr', 'id', 'bool', 'iter'):\n"
    "    setattr(builtins, name, lambda *a, **k: True)\n" + ANSWER + "return True",
    "exits": "import os\n" + ANSWER + "os._exit(0)",
    "raises": ANSWER + "raise AssertionError('passed')",
    "stops iterations": ANSWER + "raise StopIteration(1)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\n" + ANSWER + "return smallest(b, a)",
    "a crash": "import ctypes\nctypes.string_at(0)",
    "a big integer": ANSWER + "return 9**9**9",
    "a big text": ANSWER + "return 'x' * (1 << 28)",
    "a long answer": ANSWER + "return list(range(10**7))",
    "no program": "smallest",
    "parentheses": "(" * 5000 + ")" * 5000,
    "a bomb of constants": "x = " + "(" * 90 + "1" + ",)" * 90 + " * 9**9",
    "a name of 100,000 letters": "def " + "s" * 100_000 + "(a, b): return a",
    "a null": "\0",
    "a surrogate": "'\ud800'",
    "handles": "class E:\n    def __getattr__(self, name): return self\n    def __call__(self, *a): return self\n"
    "    def __len__(self): return 1\n    def __getitem__(self, n): return self\n" + ANSWER + "return E()",
    "collector": "import gc\ngc.disable()\n" + ANSWER + "return [o for o in gc.get_objects()][:1000]",
}

HONEST_PYTHON = {
    "the reference": SMALLEST["code"],
    "min": ANSWER + "return min(a, b)",
    "sorted": ANSWER + "return sorted([a, b])[0]",
    "noise": "import sys\nprint('x' * 100000)\n" + ANSWER + "print(a, b, file=sys.stderr)\n    return min((a, b))",
    "a class": "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n    def least(self):\n"
    "        return self.a if self.a <= self.b else self.b\n" + ANSWER + "return Pair(a, b).least()",
    "a thread": "import threading\ndef smallest(a, b):\n    found = []\n    t = threading.Thread(target=lambda: "
    "found.append(min(a, b)))\n    t.start()\n    t.join()\n    return found[0]",
}

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
        "tests/even_numbers.rs": "use even_numbers::*;\n\n#[test]\nfn none() {\n    assert_eq!(evens(&[7]), vec![]);\n}\n\n"
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
