"""An episode is scored as it was played: what its jobs answered is part of what was said."""

import json
import math
import sys
from dataclasses import dataclass

import pyarrow.parquet as parquet
import pytest

from minrl.evaluate.results import UnknownKindError, packed, unpacked
from minrl.types import Reward, UserError
from tests import evaluated
from tests.evaluated import rows_of, run, summary_of

TASK = '''
"""Say a word; where a file names the example, say another one."""

from dataclasses import dataclass
from pathlib import Path
from minrl.tasks.task import Task, TaskDefinition, split
from minrl.types import Example, Job, Reward, Turn


@dataclass(frozen=True, kw_only=True)
class Options:
    where: str = ""
    """The file."""


@dataclass(frozen=True)
class Verdict:
    name: str


def look(path, name):
    return Verdict("more" if name in Path(path).read_text().split() else "enough")


def reward(said):
    return Reward(float(len(said.split()) % 2 == 0), {"words": float(len(said.split()))})


def make(options, data_path):
    def episode(example, rng):
        said = yield Turn("one", example.prompt)
        verdict = yield Job(look, (options.where, example.id), cheap=True)
        if verdict == Verdict("more"):
            said = yield Turn("other", "numbers 2")
        paid = yield Job(reward, (said,), cheap=True)
        return {"one": paid, **({"other": paid} if verdict.name == "more" else {})}

    examples = [Example(f"e{n}", f"numbers {n}", {}) for n in range(8)]
    return Task(split(examples, 0.5), None, episode=episode)


again = TaskDefinition(Options, make)
'''


@pytest.fixture
def played(tmp_path, monkeypatch):
    """An evaluation in which the file named every example, and the command that scores it."""
    before = list(sys.path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "replay_task.py").write_text(TASK)
    (tmp_path / "named").write_text(" ".join(f"e{n}" for n in range(8)))
    model, _ = evaluated.save_models(tmp_path)
    command = ["--checkpoint", model, "--task", f"{tmp_path}/replay_task.py:again", "--output", tmp_path / "out"]
    command += ["--again.where", str(tmp_path / "named")]
    assert run(*command) == 0
    yield command
    sys.modules.pop("replay_task", None)
    sys.path[:] = before


def test_what_a_job_answered_then_is_what_it_answers_when_the_episode_is_scored(played, tmp_path):
    before = (tmp_path / "out/scores.parquet").read_bytes()
    assert all(row["jobs"]["results"] for row in rows_of("out")) and len(rows_of("out")[0]["turns"]) == 2
    (tmp_path / "named").write_text("")
    assert run(*played, "--force", "score") == 0
    assert (tmp_path / "out/scores.parquet").read_bytes() == before


def test_where_nobody_wrote_it_down_the_rest_is_scored(played, tmp_path, capsys):
    rows = rows_of("out")
    old = [{name: value for name, value in row.items() if name != "jobs"} for row in rows]
    (tmp_path / "out/completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in old))
    (first, *others) = dict.fromkeys(row["example"] for row in rows)
    (tmp_path / "named").write_text(" ".join(others))
    assert run(*played, "--force", "score", flags=[flag for flag in evaluated.FLAGS if flag != "--quiet"]) == 0
    lines = parquet.read_table(tmp_path / "out/scores.parquet").to_pylist()
    lost = [line for line in lines if line["unscorable"]]
    assert {line["example"] for line in lost} == {first}
    assert len(lines) > len(lost) == 2 * (4 + 1) and {line["reward"] for line in lost} == {None}
    assert summary_of("out")["results"][0]["unscorable"] == len(lost)
    assert f"5 of {len(rows)} episodes cannot be scored and count as not solved (of the examples {first})" in (
        capsys.readouterr().err
    )


def test_answers_of_other_programs_are_not_taken(played, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = summary_of("out")["results"][0]["pass@1"]
    changed = TASK.replace("% 2 == 0)", "% 2 == 1)").replace("def look", "def look_")
    changed = changed.replace("Job(look,", "Job(look_,")
    (tmp_path / "replay_task.py").write_text(changed)
    sys.modules.pop("replay_task", None)
    with pytest.raises(UserError, match="again: programs replay_task"):
        run(*played)
    assert run(*played, "--force", "score") == 0
    assert summary_of("out")["results"][0]["pass@1"] == pytest.approx(1 - before)
    (tmp_path / "named").write_text("")  # what it says now is looked up anew
    with pytest.raises(UserError, match=r"asks nothing where its completions answer .* changed since they were gen"):
        run(*played, "--force", "score")


@dataclass
class Point:
    x: float


VALUES = [1, "a", None, True, [1, [2]], {"a": {"b": 1}}, (1, (2, "c")), {"x"}, frozenset({1}), Point(0.5), math.inf]
VALUES += [Reward(1.5, {"a": 0.25}, maximum=2.0, full=True), [Point(-math.inf)]]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_result_is_read_as_it_was_written(value):
    stored = packed([value], {"a": "b"})
    assert unpacked(json.loads(json.dumps(stored, allow_nan=False)), {"a": "b"}) == [value]
    assert unpacked(stored, {"a": "c"}) == unpacked(None, {}) == []


def test_a_row_names_no_other_class():
    assert packed([object()], {}) is None
    for kind in ("os:system", "pathlib:Path", "nowhere:X"):
        stored = {**packed([], {}), "results": [{"__kind__": kind, "value": {}}]}
        with pytest.raises(UnknownKindError, match=f"a row keeps a {kind}"):
            unpacked(stored, {})
