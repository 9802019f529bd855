"""What the processes of a run tell each other."""

import pytest
from crew import crew

from minrl.dataflow import UserError
from minrl.models.distributed import Processes
from tests.parsed import sized


class Unreadable(Exception):
    """Pickled, it cannot be made again."""

    def __init__(self, *, code):
        super().__init__(f"code {code}")


def decided():
    """What each process makes of the main one's decisions."""
    with Processes(sized(device="cpu", threads=1), lambda: {"packages": "the same"}).open() as processes:
        found = [processes.on_main(lambda: ("decided by", processes.rank))]
        for error in (UserError("a wrong use"), Unreadable(code=7)):

            def fail(error=error):
                raise error

            with pytest.raises(Exception) as raised:
                processes.on_main(fail)
            found.append((type(raised.value).__name__, str(raised.value)))
        return processes.rank, found


def test_what_the_main_process_decides_or_raises_all_have():
    found = [("decided by", 0), ("UserError", "a wrong use"), ("RuntimeError", "Unreadable: code 7")]
    assert crew(3, decided) == [(rank, found) for rank in range(3)]
