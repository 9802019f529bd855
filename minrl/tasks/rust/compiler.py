"""rustc and clippy in the sandbox: a solution becomes a library, and its tests become a program.

Nothing of a solution runs while it is compiled: rustc is called for one file, without cargo, build scripts,
dependencies or procedural macros. A call sees its own source alone, in a folder that is gone after it. What rustc made
comes out as an archive and is kept in this process.

What the source causes, such as a compiler without end, is a `Failed`. What the machine causes raises SandboxError.
"""

import io
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from minrl.sandbox.calls import Limits, Outcome, SandboxError, run
from minrl.types import require

TRIAL = """#[test] fn runs() {
    let mut heard = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(3) };
    std::io::Write::write_all(&mut heard, b"ran\\n").unwrap();
}
"""
BUILD = Limits(memory_mib=4096, processes=128, file_mib=256, wall_s=120.0, cpu_s=120.0, output_bytes=2**26)
"""What a compiler may take whose source is known."""
AGAIN_S = 600.0
"""Seconds after which a compiler that built something is tried again before it is believed that a source is wrong."""
PER_SIGNAL = 128
"""A shell's exit status of a command that a signal ended is this and the signal's number."""
COULD_NOT_RUN = (126, 127)
"""A shell's exit statuses of a command that it could not run."""
LIMITED = (signal.SIGXCPU, signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGXFSZ, signal.SIGBUS)
"""How a compiler ends that has no processor time, memory or stack left."""


@dataclass(frozen=True)
class Package:
    """What a row decides about its package. `allowed_lints` and `features` are off; `files` are others of src/."""

    crate: str
    edition: str = "2024"
    allowed_lints: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    allow_unsafe: bool = False

    def flags(self) -> list[str]:
        """rustc's for every target of the package. Cargo gives the same in the profile `dev`."""
        features = ", ".join(f'"{name}"' for name in self.features)
        known = ["--check-cfg", "cfg(docsrs,test)", "--check-cfg", f"cfg(feature, values({features}))"]
        code = ["-Ccodegen-units=1", "-Cembed-bitcode=no", "-Flong_running_const_eval"]
        return ["--edition", self.edition, *known, *code]

    def library_flags(self) -> list[str]:
        """rustc's for the solution alone. What the command line forbids no attribute allows."""
        forbidden = ["private_interfaces", "private_bounds", *([] if self.allow_unsafe else ["unsafe_code"])]
        checked = ["-Copt-level=1", "-Cdebug-assertions=on"]  # as `dev` checks, in a fraction of the time
        return [*self.flags(), *checked, "--crate-name", self.crate, *(f"-F{lint}" for lint in forbidden)]

    def sources(self, solution: str) -> dict[str, str]:
        """The solution with the row's other files."""
        return {**self.files, "src/lib.rs": solution}


@dataclass(frozen=True)
class Failed:
    """The source did not compile; `limited` if it took more than a compiler may take."""

    limited: bool = False
    said: str = ""


class TooSlow(SandboxError):
    """The clock ended a compiler that had processor time left."""


@dataclass(frozen=True)
class Made:
    """What rustc made of a target: the library or program, its object code, and the files that it read."""

    linked: bytes
    objects: bytes
    read: frozenset[str]


@dataclass(frozen=True)
class Budget:
    """What one solution may take: each compilation, each test program, and `ends`, the end by the clock of all."""

    build: Limits
    tests: Limits
    ends: float

    def left(self) -> float:
        """Seconds until the end."""
        return self.ends - time.monotonic()


@cache
def toolchain() -> Path:
    """The folder of rustc and clippy-driver, of the toolchain that rustc names. `UserError` if one is missing: rustup
    installs these names before any toolchain.
    """
    missing = [name for name in ("rustc", "cc") if shutil.which(name) is None]
    require(
        not missing, f"the rust task needs {' and '.join(missing)}: install Rust from https://rustup.rs and a C linker"
    )
    found = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True)
    require(found.returncode == 0, f"rustc does not work ({first_line(found.stderr)}): run `rustup default stable`")
    programs = Path(found.stdout.strip()) / "bin"
    if not (programs / "rustc").exists():  # a distribution's own: all programs lie in one folder
        programs = Path(shutil.which("rustc") or "").resolve().parent
    require((programs / "clippy-driver").exists(), "the rust task needs clippy: run `rustup component add clippy`")
    return programs


def try_out() -> bytes:
    """Build and lint an empty package, with a test that reports itself: the program. Raises SandboxError where that
    fails.
    """
    package, empty = Package("empty"), "//! Nothing.\n"
    budget = Budget(BUILD, Limits(), time.monotonic() + BUILD.wall_s)
    program = _made(package, empty, (), budget)
    if isinstance(program, Made):
        program = _test_program(package, "t.rs", {"t.rs": TRIAL}, program.linked, budget)
    if isinstance(program, Failed) or not lint(package, empty, budget):
        reason = program.said if isinstance(program, Failed) else "clippy fails"
        raise SandboxError(f"an empty package does not build: {reason}")
    return program.linked


def first_line(text: str) -> str:
    """The first line, to stand within a sentence."""
    return text.strip().partition("\n")[0].rstrip(".")


def build_library(package: Package, solution: str, budget: Budget) -> Made | Failed:
    """The solution as a library, without any tests."""
    return _believed(_made(package, solution, (), budget))


def build_own_tests(package: Package, solution: str, budget: Budget) -> Made | Failed:
    """The solution's own tests as a program."""
    return _believed(_made(package, solution, ("--test",), budget))


def build_tests(package: Package, name: str, files: Mapping[str, str], library: Made, budget: Budget) -> Made | Failed:
    """The file of that name as a program of tests, against the library, beside the other files."""
    return _believed(_test_program(package, name, files, library.linked, budget))


def _made(package: Package, solution: str, kind: Sequence[str], budget: Budget) -> Made | Failed:
    arguments = [*package.library_flags(), *(kind or ("--crate-type", "lib")), "src/lib.rs"]
    linked = package.crate if kind else f"lib{package.crate}.rlib"
    return _rustc(arguments, package.sources(solution), package.crate, linked, budget)


def _test_program(
    package: Package, name: str, files: Mapping[str, str], library: bytes, budget: Budget
) -> Made | Failed:
    arguments = ["--test", *package.flags(), "--crate-name", "hidden", "--extern", f"{package.crate}=library.rlib"]
    return _rustc([*arguments, "-Cstrip=symbols", name], {**files, "library.rlib": library}, "hidden", "hidden", budget)


def _rustc(
    arguments: list[str], files: Mapping[str, str | bytes], crate: str, linked: str, budget: Budget
) -> Made | Failed:
    """Compile. No other program is in the call, and of the files it makes these three come back."""
    results = [linked, f"{crate}.o", f"{crate}.d"]
    command = [str(toolchain() / "rustc"), *arguments, "--emit=link,obj,dep-info", f"-Clinker={_linker()}"]
    ran = _compile(["sh", "-c", '"$@" && exec tar -cf - -- ' + " ".join(results), "sh", *command], files, budget)
    if ran.status != "ok":
        return _failed(ran, budget.build.cpu_s)
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as archive:
        found = {name: _content(archive, name) for name in results}
    said = found[f"{crate}.d"].decode(errors="replace")
    read = re.findall(r"^((?:\\.|[^:\\\n])+):[ ]*$", said, re.MULTILINE)
    variables = re.findall(r"^# env-dep:(\w+)", said, re.MULTILINE)
    foreign = {*read, *(f"${name}" for name in variables)} - set(files)
    return Made(found[linked], found[f"{crate}.o"], frozenset(foreign))


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, "rustc makes plain files"
    return file.read()


def lint(package: Package, solution: str, budget: Budget) -> bool:
    """Whether clippy reports nothing."""
    allowed = [f"-Aclippy::{lint}" for lint in package.allowed_lints]
    arguments = [*package.library_flags(), "--crate-type", "lib", "--emit=metadata", "-Dwarnings", *allowed]
    command = [str(toolchain() / "clippy-driver"), *arguments, "src/lib.rs"]
    ran = _compile(command, package.sources(solution), budget)
    if ran.exit_code in COULD_NOT_RUN:
        raise SandboxError(f"clippy could not run: {first_line(ran.stderr.decode(errors='replace'))}")
    return ran.status == "ok"


def _compile(command: list[str], files: Mapping[str, str | bytes], budget: Budget) -> Outcome:
    limits = replace(budget.build, wall_s=max(1.0, budget.left()))
    texts = {name: text.encode("utf-8", "replace") if isinstance(text, str) else text for name, text in files.items()}
    return run(command, texts, limits, readable=[toolchain().parent, _linker().parent], environment=_environment())


def _failed(ran: Outcome, cpu_s: float) -> Failed:
    """Why a compiler made nothing. A compiler that could not run, or that the machine gave no time, is no verdict; one
    that had half of its `cpu_s` when the clock ended it had enough for a source that ends.
    """
    code = ran.exit_code
    if ran.status in ("memory", "output") or (ran.status == "timeout" and ran.processor_s >= cpu_s / 2):
        return Failed(limited=True)
    if code is None:
        raise TooSlow("the compiler got too little of the processor: leave the machine more, or raise --rust.seconds")
    if (-code if code < 0 else code - PER_SIGNAL) in LIMITED:
        return Failed(limited=True)
    said = first_line(ran.stderr.decode(errors="replace")) or f"exit status {code}"
    if code not in (1, 101):  # an error, the compiler's own panic
        raise SandboxError(f"the compiler could not run: {said}")
    return Failed(said=said)


def _believed(made: Made | Failed) -> Made | Failed:
    """What was made. A failure counts only while the compiler still builds an empty package."""
    if isinstance(made, Failed) and not made.limited:
        _still_works(int(time.monotonic() // AGAIN_S))
    return made


@cache
def _still_works(interval: int) -> None:
    try_out()


def _linker() -> Path:
    return Path(shutil.which("cc") or "cc").resolve()


def _environment() -> dict[str, str]:
    return {"PATH": f"{toolchain()}:/usr/local/bin:/usr/bin:/bin", "RUST_BACKTRACE": "0"}
