"""A program in a fork ends as in a new interpreter: the same status, the same output."""

import signal
import subprocess
import sys

import pytest

from tests.forked import Forked

PROGRAMS = {
    "words, folder and environment": "import os, sys\nprint(__name__, sys.argv[1:], os.getcwd(), dict(os.environ))",
    "a module beside the script": "import beside\nprint(beside.__name__)",
    "a status": "raise SystemExit(7)",
    "a status above a byte": "raise SystemExit(258)",
    "a line": "import sys\nsys.exit('one line')",
    "an exception": "raise ValueError('wrong')",
    "ends at its exit": "import atexit\natexit.register(print, 'after')\nprint('before')",
    "waits for its threads": "from threading import Timer\nTimer(0.05, print, ['late']).start()",
    "what it reads": "print(input())",
    "killed": "import os\nprint('before', flush=True)\nos.kill(os.getpid(), 9)",
    "interrupted": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
    "ended": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)",
}


def ends(kind, command, folder):
    """Status, output, and the last line of what went to standard error."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with kind(command, cwd=folder, env={"KEPT": "1", "LC_CTYPE": "C.UTF-8"}, text=True, **pipes) as program:
        out, err = program.communicate("a word\n", timeout=60)
    return program.returncode, out, err.splitlines()[-1:]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_it_ends_as_in_an_interpreter_of_its_own(program, tmp_path):
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "beside.py").write_text("")
    command = [sys.executable, str(tmp_path / "program.py"), "--flag", "two words"]
    assert ends(Forked, command, tmp_path) == ends(subprocess.Popen, command, tmp_path)


def test_a_module_runs_in_a_session_of_its_own_and_is_killed(tmp_path):
    (tmp_path / "endless.py").write_text("import os, time\nprint(os.getsid(0), flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "endless"]
    with Forked(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True) as program:
        assert int(program.stdout.readline()) == program.pid
        program.kill()
        assert program.wait(60) == -signal.SIGKILL
