"""Adds train.py and evaluate.py to the package `minrl.scripts` of a wheel. Everything else is in pyproject.toml."""

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithScripts(build_py):
    """The modules of the packages, and the two scripts as modules of `minrl.scripts`."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """(package, module, file) of each module."""
        modules = super().find_package_modules(package, package_dir)
        if package == "minrl.scripts":
            modules += [(package, name, f"{name}.py") for name in ("train", "evaluate")]
        return modules


setup(cmdclass={"build_py": BuildWithScripts})
