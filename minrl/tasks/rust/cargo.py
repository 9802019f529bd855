"""A cargo package around one solution: built, linted and tested in the sandbox, offline, from a warm target directory.

Only `src/lib.rs` is the solution's. `Cargo.toml` is ours and names no build script, dependency or procedural macro, so
nothing of the solution runs while it is compiled. The tests are added when the library is built, and removed before
they run.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO

from minrl.sandbox.calls import Limits, Outcome, SandboxError, run
from minrl.system.files import lock
from minrl.types import UserError, require

Passed = Callable[[bytes], set[str]]  # the tests that left evidence in the output
PACKAGE = "solution"
LOCK = f'version = 4\n\n[[package]]\nname = "{PACKAGE}"\nversion = "0.1.0"\n'
REPORTED = (0, 101)
"""Exit statuses of a test program that ended normally: all passed, or some failed."""


@dataclass(frozen=True)
class Package:
    """What a row decides about its package. `allowed_lints` and `features` are off; `files` are others of src/."""

    crate: str
    edition: str = "2024"
    allowed_lints: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    allow_unsafe: bool = False

    def manifest(self) -> str:
        """The `Cargo.toml`."""
        lines = [
            f'[package]\nname = "{PACKAGE}"\nversion = "0.1.0"\nedition = "{self.edition}"\nbuild = false',
            f'[lib]\nname = "{self.crate}"\npath = "src/lib.rs"\nproc-macro = false\ndoctest = false',
            "[workspace]\n[profile.dev]\ndebug = false\nincremental = false",
            "[lints.clippy]",
            *(f"{lint} = 'allow'" for lint in self.allowed_lints),
            "[features]",
            *(f"{feature} = []" for feature in self.features),
        ]
        return "\n".join(lines) + "\n"

    def library(self, solution: str) -> str:
        """The `src/lib.rs`. A lint forbidden in the first line cannot be allowed in a later one."""
        forbidden = ["private_interfaces", "private_bounds", *([] if self.allow_unsafe else ["unsafe_code"])]
        return f"#![forbid({', '.join(forbidden)})]\n{solution}"


@dataclass(frozen=True)
class CargoLimits:
    """Limits for compiling one solution and for running its tests."""

    build: Limits
    tests: Limits


@cache
def toolchain() -> Path:
    """The folder of cargo, rustc and clippy, from the toolchain that rustc names. `UserError` if one is missing or does
    not run: rustup installs these names before any toolchain, and the sandbox runs as another user.
    """
    missing = [name for name in ("cargo", "rustc", "cc") if shutil.which(name) is None]
    require(
        not missing, f"the rust task needs {' and '.join(missing)}: install Rust from https://rustup.rs and a C linker"
    )
    found = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True)
    require(found.returncode == 0, f"rustc does not work ({_first_line(found.stderr)}): run `rustup default stable`")
    programs = Path(found.stdout.strip()) / "bin"
    if not (programs / "cargo").exists():  # a distribution's own: all programs lie in one folder
        programs = Path(shutil.which("cargo") or "").resolve().parent
    clippy = programs / "cargo-clippy"
    require(clippy.exists(), "the rust task needs clippy: run `rustup component add clippy`")
    try:
        ran = run([str(programs / "cargo"), "--version"], readable=[programs.parent])
        reason = "" if ran.status == "ok" else _first_line(ran.stderr.decode(errors="replace")) or ran.status
    except SandboxError as error:  # it could not even be started
        reason = str(error).splitlines()[-1]
    require(
        not reason,
        f"cargo in {programs} does not run in the sandbox ({reason}): install Rust where every user may read it",
    )
    return programs


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip(".")


class Workspace:
    """The folders of one worker: its package and its warm target directory, held by a lock while the process lives."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o755)
        self.folder, self._lock = _free_slot(root)
        self.package, self.target = self.folder / "package", self.folder / "target"
        self.target.mkdir(exist_ok=True)
        entered = run(["sh", "-c", 'cd "$0"', str(self.target)], writable=[self.target])
        require(
            entered.status == "ok",
            f"the sandbox's user cannot enter {self.target} ({_first_line(entered.stderr.decode(errors='replace'))}): "
            "choose a --rust.cache whose folders every user may pass through",
        )

    def put(self, package: Package, solution: str) -> None:
        """Begin a package: the solution and what the row brings, without any tests."""
        shutil.rmtree(self.package, ignore_errors=True)
        for folder in ("deps", ".fingerprint", "build", "incremental"):  # so that nothing stale is ever tested
            shutil.rmtree(self.target / "debug" / folder, ignore_errors=True)
        library = {"src/lib.rs": package.library(solution)}
        self.write({"Cargo.toml": package.manifest(), "Cargo.lock": LOCK, **package.files, **library})

    def write(self, files: Mapping[str, str]) -> None:
        """Put more files into the package, for the sandbox's uid to read. A path that leaves it is refused."""
        for name, text in files.items():
            path = self.package / name
            require(".." not in Path(name).parts and not Path(name).is_absolute(), f"a file outside its row: {name!r}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="replace")
            path.chmod(0o644)
            for folder in (self.package, *path.parents[: len(Path(name).parts) - 1]):
                folder.chmod(0o755)

    def cargo(self, arguments: Sequence[str], limits: CargoLimits) -> Outcome:
        """`cargo` with the arguments, offline, one job. It may change the target directory and nothing else."""
        end = [*arguments, "--"].index("--")
        offline = ["--offline", "--locked", "--quiet", "--jobs", "1"]
        command = [str(toolchain() / "cargo"), *arguments[:end], *offline, *arguments[end:]]
        return self._run(command, limits.build, [self.target])

    def test_programs(self, arguments: Sequence[str], limits: CargoLimits) -> dict[str, Path] | None:
        """The programs of `cargo test --no-run`, by target, moved into the package; None if the tests do not compile.
        Their source is removed.
        """
        ran = self.cargo(["test", "--no-run", "--message-format", "json", *arguments], limits)
        shutil.rmtree(self.package / "tests", ignore_errors=True)
        if ran.status != "ok":
            return None
        messages = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith(b"{")]
        built = {message["target"]["name"]: message["executable"] for message in messages if message.get("executable")}
        programs = {name: self.package / f"test-{name}" for name in built}
        for name, program in programs.items():
            shutil.copyfile(built[name], program)
            program.chmod(0o755)
        return programs

    def run_tests(self, program: Path, names: Sequence[str], passed_in: Passed, limits: CargoLimits) -> set[str]:
        """Which of the named tests left evidence. If the program dies, the rest run one at a time."""
        ran = self._run([str(program), "--include-ignored", "--test-threads=1"], limits.tests, [])
        passed, left = passed_in(ran.stdout) & set(names), limits.tests.wall_s - ran.seconds
        if ran.exit_code in REPORTED:
            return passed
        for name in names:
            if name not in passed and left > 0:
                one = [str(program), "--include-ignored", "--exact", name]
                ran = self._run(one, replace(limits.tests, wall_s=left), [])
                passed, left = passed | passed_in(ran.stdout) & {name}, left - ran.seconds
        return passed

    def _run(self, command: list[str], limits: Limits, writable: list[Path]) -> Outcome:
        programs, linker = toolchain(), Path(shutil.which("cc") or "cc").resolve()
        environment = {
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
            "CARGO_HOME": str(self.target / "cargo-home"),
            "CARGO_TARGET_DIR": str(self.target),
            "RUSTFLAGS": f"-Clinker={linker}",
            "RUST_BACKTRACE": "0",
        }
        return run(
            ["sh", "-c", 'cd "$0" && exec "$@"', str(self.package), *command],
            limits=limits,
            readable=[self.package, programs.parent, linker.parent],
            writable=writable,
            environment=environment,
        )


def _free_slot(root: Path) -> tuple[Path, IO[str]]:
    """The first folder that no living process holds. The kernel releases the lock when its process ends."""
    for number in range(1024):
        folder = root / f"worker-{number}"
        folder.mkdir(exist_ok=True)
        held = lock(folder / "lock")
        if held is not None:
            return folder, held
    raise UserError(f"1024 workers hold {root} already: give another --rust.cache")


@cache
def own_workspace(root: Path) -> Workspace:
    """The workspace of this process, made once."""
    return Workspace(root)


def cache_folder(named: str) -> Path:
    """The folder of the workers' folders: the named one, or one of this user's in the temporary directory."""
    return Path(named) if named else Path(tempfile.gettempdir()) / f"minrl-rust-{os.getuid()}"
