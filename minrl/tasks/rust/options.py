"""The settings of the rust task: what is paid, and what building and testing may take."""

import time
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from minrl.config import PATH
from minrl.sandbox.calls import Limits
from minrl.tasks.rust.compiler import BUILD, Budget
from minrl.tasks.rust.quality import QualityWeights
from minrl.types import require


@dataclass(frozen=True, kw_only=True)
class RustOptions(QualityWeights):
    """What is paid, and what building and testing may take."""

    build_weight: float = 0.05
    """Weight of a solution that builds and that the hidden tests compile against."""
    test_weight: float = 0.75
    """Weight of the share of hidden tests that pass."""
    clippy_weight: float = 0.1
    """Weight of no warning of clippy; paid only where every hidden test passed."""
    own_test_weight: float = 0.05
    """Weight of passing tests of the solution's own with real assertions; paid only where every hidden test passed."""
    quality_weight: float = 0.05
    """Weight of the mean of the quality scores; paid only where every hidden test passed."""
    own_tests_wanted: int = 3
    """How many own tests with real assertions make the part whole."""
    unsafe_rows: Literal["left out", "allowed"] = "left out"
    """Rows whose reference needs `unsafe`: left out, or kept, with solutions that may use it."""
    held_out_share: float = 0.2
    """Share of the problems that is never trained on, where the rows have no split of their own."""
    build_seconds: float = 5.0
    """Limit for each compilation of one solution, in seconds of processor time."""
    test_seconds: float = 15.0
    """Limit for running a file of tests, in seconds of processor time; by the clock four times as many, for busy
    machines."""
    seconds: float = 120.0
    """Limit for all of one solution, in seconds by the clock: what ends it on a machine that is too busy. The reward's
    deadline is later, whatever --reward-deadline-s says."""
    build_memory_mib: int = 4096
    """Memory (address space) for the compiler, in MiB."""
    test_memory_mib: int = 1024
    """Memory (address space) for the tests, in MiB."""
    cache: str = field(default="", metadata=PATH)
    """Folder in which test programs lie while they run; empty: the temporary directory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = (self.build_weight, self.clippy_weight, self.own_test_weight, self.quality_weight)
        require(min(weights) >= 0, f"rust weights must be at least 0, got {weights}")
        require(self.test_weight > sum(weights), f"rust.test_weight must outweigh the others, got {self.test_weight}")
        require(0 < self.held_out_share < 1, f"rust.held_out_share must be in (0, 1), got {self.held_out_share}")
        for name in [named.name for named in fields(self) if named.name.endswith(("_wanted", "seconds", "_mib"))]:
            require(getattr(self, name) > 0, f"rust.{name} must be above 0, got {getattr(self, name)}")

    def budget(self) -> Budget:
        """What one solution may take from now on."""
        build_s, test_s, all_s = self.build_seconds, self.test_seconds, self.seconds
        build = replace(BUILD, wall_s=all_s, cpu_s=build_s, memory_mib=self.build_memory_mib)
        tests = Limits(wall_s=min(4 * test_s, all_s), cpu_s=test_s, memory_mib=self.test_memory_mib, output_bytes=2**23)
        return Budget(build, tests, time.monotonic() + all_s)
