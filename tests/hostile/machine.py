"""Programs that attack the machine: memory without bound, ways out, what stays behind, what is read.

Each prints what it got. Where all is refused it prints `held` at its end, or its call ends with the limit that it
exceeded. `most_mib` is what the machine may lose to it while it runs.
"""

from dataclasses import dataclass

PROGRAM = r"""
import ctypes, errno, os, resource, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MIB = 2**20
def granted(name, *arguments):
    ctypes.set_errno(0)
    return getattr(libc, name)(*arguments) != -1
def possible(action, *arguments):
    try: action(*arguments)
    except (OSError, MemoryError, ValueError): return False
    return True
def say(name, escaped):
    if escaped: print('GOT', name, flush=True)
def crowd(number, action):
    # `number` processes that each do it and then wait to be counted.
    for _ in range(number):
        try: pid = os.fork()
        except OSError: break
        if pid == 0:
            try: action()
            except OSError: pass
            time.sleep(600)
    time.sleep(600)
"""


@dataclass(frozen=True)
class Attack:
    """A program, what its call must end with, and where it can be tried."""

    family: str
    name: str
    source: str
    status: str = "ok"
    """How the call ends. `ok`: the program itself saw that all of it was refused."""
    needs_filter: bool = True
    most_mib: int = 600
    """The machine's memory while it runs: the call's limit of 256 MiB, and what is held before a look finds it."""


PAGES_IN_PIPES = """
reading, writing = os.pipe()
block = bytearray(4096)
vector = struct.pack('PN', ctypes.addressof(ctypes.c_char.from_buffer(block)), len(block))
say('vmsplice', granted('vmsplice', writing, vector, 1, 8))
file = os.open('main.py', os.O_RDONLY)
say('splice', possible(os.splice, file, writing, 100) if hasattr(os, 'splice') else False)
other_reading, other_writing = os.pipe()
os.write(writing, b'x')
say('tee', granted('tee', reading, other_writing, 1, 0))
say('sendfile', possible(os.sendfile, writing, file, 0, 100))
import fcntl
say('larger pipe', possible(fcntl.fcntl, writing, 1031, MIB))
"""

SHARED_PAGES = """
say('shared anonymous', libc.mmap(None, MIB, 3, 0x21, -1, 0) != ctypes.c_void_p(-1).value)
say('shared, checked', libc.mmap(None, MIB, 3, 0x23, -1, 0) != ctypes.c_void_p(-1).value)
say('/dev/zero', possible(os.open, '/dev/zero', os.O_RDWR))
say('standard input', possible(os.ftruncate, 0, MIB) or possible(os.write, 0, b'x'))
for name in ('/dev/shm/x', '/dev/mqueue/x', '/dev/hugepages/x'): say(name, possible(open, name, 'w'))
for name, arguments in {
    'memfd_create': (b'x', 0), 'shmget': (0, MIB, 0o1666), 'mq_open': (b'/x', 0o102, 0o666, None)
}.items():
    say(name, granted(name, *arguments))
say('memfd_secret', granted('syscall', 447, 0))
"""

KERNEL_OBJECTS = """
for name, arguments in {
    'inotify_init': (), 'inotify_init1': (0,), 'fanotify_init': (0, 0), 'semget': (0, 1, 0o1666), 'msgget': (0, 0o1666),
    'setxattr': (b'main.py', b'user.x', b'y' * 4000, 4000, 0), 'lsetxattr': (b'main.py', b'user.x', b'y', 1, 0),
}.items():
    say(name, granted(name, *arguments))
for name, number in {'io_uring_setup': 425, 'landlock_create_ruleset': 444, 'landlock_add_rule': 445}.items():
    say(name, granted('syscall', number, None, 0, 1))
say('a filter of its own', granted('prctl', 22, 2, None, 0, 0) or ctypes.get_errno() != errno.EPERM)
events = ctypes.create_string_buffer(64)
timers = 0
while timers < 100000 and libc.timer_create(0, None, events) == 0: timers += 1
say('timers', timers > 2000)
"""

NAMESPACES = """
X86 = os.uname().machine == 'x86_64'
for flags in (0x10000000, 0x20000, 0x10020000): say(f'unshare {flags}', granted('unshare', flags))
child = libc.syscall(56 if X86 else 220, 0x10000000 | 17, 0, 0, 0, 0)
if child == 0: os._exit(0)
say('clone', child > 0 or ctypes.get_errno() != errno.EPERM)
say('clone3', libc.syscall(435, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS)
say('a key', libc.syscall(248 if X86 else 217, b'user', b'minrl', b'left', 4, ctypes.c_int(-4)) != -1)
import subprocess, threading
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
subprocess.run(['true'], check=True)
for path in [__file__ + '/../new', '/usr/new', '/etc/new', '/new', '/dev/new', '/proc/sys/kernel/hostname', '../new']:
    say(path, possible(open, path, 'w'))
"""

SOCKETS = """
for family in range(46):
    for kind in (1, 2, 3, 4, 5, 10):
        say(f'socket {family} {kind}', possible(socket.socket, family, kind))
        pair = (family, kind) not in ((1, 1), (1, 5)) and possible(socket.socketpair, family, kind)
        say(f'pair {family} {kind}', pair)
for flags in (0x800, 0x80000, 0x80800):
    say(f'datagrams {flags}', possible(socket.socketpair, 1, 2 | flags))
    say(f'raw {flags}', possible(socket.socketpair, 1, 3 | flags))
a, b = socket.socketpair(1, 5)
say('packets to a name', possible(a.connect, '/dev/log'))
a, b = socket.socketpair()
say('larger buffers', possible(a.setsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, MIB))
say('a filter on a socket', possible(a.setsockopt, socket.SOL_SOCKET, 26, b'x' * 16))
say('descriptors sent', possible(a.sendmsg, [b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('i', 1))]))
say('bind', possible(a.bind, 'name') or possible(a.bind, b'\\0name'))
say('connect', possible(a.connect, '/dev/log'))
say('listen', possible(a.listen))
a.send(b'pairs of streams work'); say('no stream', b.recv(30) != b'pairs of streams work')
"""

OTHERS_MEMORY = """
def read_some(path):
    if not open(path, 'rb').read(1): raise OSError('nothing there')  # as of the kernel's own threads
child = os.fork()
if child == 0: time.sleep(600); os._exit(0)
block = ctypes.create_string_buffer(8)
vector = struct.pack('PN', ctypes.addressof(block), 8)
say('ptrace', granted('ptrace', 16, child, 0, 0))
say('process_vm_readv', granted('process_vm_readv', child, vector, 1, vector, 1, 0))
say('process_vm_writev', granted('process_vm_writev', child, vector, 1, vector, 1, 0))
pidfd = os.pidfd_open(child) if hasattr(os, 'pidfd_open') else -1
say('pidfd_getfd', granted('syscall', 438, pidfd, 0, 0))
say('perf', granted('syscall', 298 if os.uname().machine == 'x86_64' else 241, block, 0, -1, -1, 0))
for pid in os.listdir('/proc'):
    if pid.isdigit() and int(pid) not in (os.getpid(), child):
        for name in ('mem', 'environ', 'maps', 'root/etc/passwd', 'fd/0'):
            path = f'/proc/{pid}/{name}'
            if name == 'fd/0': got = possible(os.readlink, path)
            else: got = possible(read_some, path)
            say(path, got)
        for memory in (f'/proc/{pid}/mem', f'/proc/{pid}/task/{pid}/mem'):
            say(f'{memory}, to write', possible(os.open, memory, os.O_RDWR))
os.kill(child, 9)
"""

CHANGES_OF_OTHERS = """
child = os.fork()
if child == 0: time.sleep(600); os._exit(0)
X86 = os.uname().machine == 'x86_64'
none, attributes = ctypes.create_string_buffer(16), struct.pack('IIQiIQQQ', 48, 3, 0, 0, 0, 0, 0, 0)
CHANGES = {  # of a process that it may change by all other rules: its own child
    'prlimit64': (302 if X86 else 261, child, resource.RLIMIT_NOFILE, struct.pack('QQ', 9, 9), None),
    'the upper half': (302 if X86 else 261, child + 2**32, resource.RLIMIT_CPU, None, none),
    'sched_setaffinity': (203 if X86 else 122, child, 8, b'\\1' + bytes(7)),
    'sched_setscheduler': (144 if X86 else 119, child, 3, bytes(4)),
    'sched_setparam': (142 if X86 else 118, child, bytes(4)),
    'sched_setattr': (314 if X86 else 274, child, attributes, 0),
    'setpriority': (141 if X86 else 140, 0, child, 5),
    'setpriority of a group': (141 if X86 else 140, 1, 0, 5),
    'setpriority of a user': (141 if X86 else 140, 2, 0, 5),
    'ioprio_set': (251 if X86 else 30, 1, child, 3 << 13),
    'ioprio_set of a user': (251 if X86 else 30, 3, 0, 3 << 13),
}
for name, (number, *arguments) in CHANGES.items():
    arguments = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    say(name, granted('syscall', number, *arguments))
for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
    say(f'limits of {pid}', pid != os.getpid() and possible(resource.prlimit, pid, resource.RLIMIT_CORE, (0, 0)))
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)), os.nice(1)
os.sched_setaffinity(0, os.sched_getaffinity(0)), resource.prlimit(0, resource.RLIMIT_CORE)
os.kill(child, 9)
"""

READABLE = """
for path in ('/usr', '/usr/src', '/usr/local', '/usr/local/share', '/usr/share', '/usr/share/doc', '/home', '/root',
             '/etc', '/var', '/opt', '/srv', '/mnt', '/run', '/sys', '/boot', '/lost+found', '/media'):
    try: names = set(os.listdir(path))
    except OSError: continue
    say(f'{path} with {names - ALLOWED}', bool(names - ALLOWED))
for path in ('/etc/passwd', '/etc/hostname', '/etc/shadow', '/proc/kcore', '/proc/kmsg', OPEN + '/file'):
    say(path, possible(open, path))
"""

LEFT_BEHIND = """
def folders(top, depth):
    yield top
    try: entries = list(os.scandir(top)) if depth else []
    except OSError: return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False): yield from folders(entry.path, depth - 1)
for folder in {*folders('/dev', 1), *folders('/run', 2), '/tmp', '/var/tmp', '/run/lock', '/dev/shm', '/var/crash',
               OPEN}:
    if os.path.realpath(folder).startswith(os.getcwd()): continue
    for made in (lambda path: open(path, 'w').close(), os.mkdir, os.mkfifo, lambda path: os.symlink('x', path),
                 lambda path: os.link('main.py', path), lambda path: os.rename('main.py', path)):
        say(f'made in {folder}', possible(made, f'{folder}/minrl-left-behind'))
say('a file changed', possible(open, OPEN + '/file', 'a') or possible(os.truncate, OPEN + '/file', 0))
say('a file removed', possible(os.remove, OPEN + '/file'))
"""

LOCKS = """
import fcntl
file = os.open('locked', os.O_RDWR | os.O_CREAT)
lock = struct.pack('hhqqi4x', 1, 0, 2, 1, 0)
for command in (6, 7, 37, 38): say(f'lock {command}', possible(fcntl.fcntl, file, command, lock))
say('lease', possible(fcntl.fcntl, file, 1024, 0))
fcntl.flock(file, fcntl.LOCK_EX)  # one for each open file, and compilers need it
copies = [os.dup(file) for _ in range(200)]
crowd(16, lambda: None)
"""

HOARDS = {
    "its own pages": "x = bytearray(b'x') * (60 * MIB)",
    "page tables": """
resource.getrlimit(resource.RLIMIT_AS)
for n in range(12000):
    if libc.mmap(0x100000000000 + n * 2**30, 4096, 3, 0x100022, -1, 0) % 2**64 == 2**64 - 1: break
    ctypes.memset(0x100000000000 + n * 2**30, 1, 1)
""",
    "socket buffers": """
pairs = []
while len(pairs) < 60:
    pairs.append(socket.socketpair())
    for end in pairs[-1]:
        end.setblocking(False)
        try:
            while True: end.send(b'x' * 65536)
        except BlockingIOError: pass
""",
    "polled descriptors": """
import select
poll = select.epoll()
for n in range(3, 200):
    try: poll.register(os.dup(0) if n < 100 else n)
    except OSError: pass
""",
}


def _each(action: str) -> str:
    """A program of 16 processes that each do it."""
    lines = [*action.strip().splitlines(), "kept.append(locals())"]
    return "\n".join(["kept = []", "def action():", *(f"    {line}" for line in lines), "crowd(16, action)"])


ATTACKS = [
    Attack("uncounted memory", "pages in pipes", PAGES_IN_PIPES),
    Attack("uncounted memory", "shared pages", SHARED_PAGES),
    Attack("uncounted memory", "kernel objects", KERNEL_OBJECTS),
    *(Attack("memory of many", name, _each(action), "memory") for name, action in HOARDS.items()),
    Attack(
        "memory of many",
        "files without content",
        "number = 0\nwhile possible(os.symlink, 'x' * 100, str(number)): number += 1",
        "memory",
    ),
    Attack("memory of many", "locks of files", LOCKS, "memory"),
    Attack("namespaces", "namespaces of its own, keys and files", NAMESPACES),
    Attack("sockets", "every family and kind", SOCKETS),
    Attack("others", "other processes' memory", OTHERS_MEMORY),
    Attack("others", "other processes' limits and priorities", CHANGES_OF_OTHERS),
    Attack("files", "what is read", READABLE),
    Attack("files", "what stays behind", LEFT_BEHIND),
]
