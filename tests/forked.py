"""Programs of the project in forks of the tests' process, which has imported what they need.

A new interpreter takes seconds of a core to import torch and transformers. What only a new one shows (its imports, what
the tests' own settings hide) keeps its tests with `subprocess`.
"""

import atexit
import gc
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path

from loguru import logger

MOST_DESCRIPTORS = 4096


class Forked(subprocess.Popen):
    """`subprocess.Popen` for `[sys.executable, SCRIPT, ...]` and `[sys.executable, "-m", MODULE, ...]`: its streams,
    folder, environment, session, signals and exit status are those of a new interpreter.
    """

    def _execute_child(self, args, *more):
        (_, _, _, _, cwd, env, _, _, _, *descriptors) = more
        streams, new_session = descriptors[:6], descriptors[-2]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or the fork writes it again
        self.pid = os.fork()
        if not self.pid:
            try:
                _prepare((streams[0], streams[3], streams[5]), cwd, env, new_session)
                status = _run(args[1:])
                _end()
            except BaseException:
                traceback.print_exc()
                status = 1
            finally:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                os._exit(status)
        self._child_created = True
        self._close_pipe_fds(*streams)


def _prepare(streams, cwd, env, new_session):
    """Make the fork what an interpreter is at its start, but for the modules that it has."""
    gc.freeze()  # nothing of the tests is collected here, which would close descriptors that are used anew
    logger.remove()
    atexit._clear()
    if "accelerate" in sys.modules:  # which knows the tests' process to be alone
        sys.modules["accelerate"].PartialState._reset_state()
    if new_session:
        os.setsid()
    for number, descriptor in enumerate(streams):
        if descriptor != -1:
            os.dup2(descriptor, number)
    os.closerange(3, MOST_DESCRIPTORS)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False)  # noqa: SIM115 - as long as the process
        for number, mode in enumerate("rww")
    )
    logger._core.handlers_count = 0  # the default handler is number 0
    logger.add(sys.stderr)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    warnings.resetwarnings()
    os.chdir(cwd or ".")
    if env is not None:
        os.environ.clear()
        os.environ.update(env)


def _run(words):
    """The exit status of a script or module that is run with these words, as the interpreter's."""
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 0


def _end():
    threading._shutdown()
    atexit._run_exitfuncs()
