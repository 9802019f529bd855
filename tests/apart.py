"""Tests in a process of their own: limits of memory and processor time hold for all threads of a process."""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def apart(test: Callable[P, None]) -> Callable[P, None]:
    """Run the test in a fork, which is quick; it fails where the fork ends otherwise than well."""

    @functools.wraps(test)
    def run(*arguments: P.args, **keywords: P.kwargs) -> None:
        child = os.fork()
        if child == 0:
            try:
                test(*arguments, **keywords)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "see what it wrote"

    return run
