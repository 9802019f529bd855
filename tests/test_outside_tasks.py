"""Tasks that the package does not hold: in a user's file, or offered by an installed package."""

import json
import sys
from pathlib import Path

import pytest

from minrl.config import BaseModelConfig, TrainerConfig
from minrl.evaluate.config import EvaluateConfig
from minrl.rewards.workers import Workers
from minrl.run.base_model import base_model_path
from minrl.tasks import TASK_DEFINITIONS, find_definition, load_task, option_classes
from minrl.tasks.outside import installed_tasks
from minrl.tasks.programs import files_outside, programs, programs_outside
from minrl.types import Job, UserError
from minrl.utils.cli import from_dict, plain_options, to_dict
from minrl.utils.task_names import task_key
from tests.parsed import parsed

SOURCE = """
from dataclasses import dataclass
from minrl.tasks.task import Task, TaskDefinition, split
from minrl.types import Example, Reward

@dataclass(frozen=True, kw_only=True)
class Options:
    most: int = 50

def reward(completion, example):
    return Reward(float(completion.split() == ["7"] * example["count"]))

def make(options, data_path):
    examples = [Example(str(n), f"sevens {n} :", {"count": n}) for n in range(1, options.most + 1)]
    return Task(split(examples, 0.2), reward)

elevens = TASK = TaskDefinition(Options, make)
other = TaskDefinition(Options, make)
countdown = other
number = 5
"""


@pytest.fixture(autouse=True)
def _imports_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine" / "elevens_task.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package of that name with one module and these entry points, as pip leaves it on the disk."""

    def put(package, source, **entries):
        folder = tmp_path / f"site-{package}"
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{package}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[minrl.tasks]", *lines, ""]))
        monkeypatch.syspath_prepend(str(folder))

    return put


def test_a_task_in_a_file_is_made_with_the_options_that_its_flags_set(file):
    config, options = parsed(["--task", f"{file}:elevens", "--elevens.most", "20"])
    assert config.rollout.task == f"{file}:elevens"
    dataset = load_task(config.rollout.task, options).dataset
    assert len(dataset.train) + len(dataset.held_out) == 20


def test_a_relative_path_is_stored_as_an_absolute_one(file, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for flags in (["--task", "mine/elevens_task.py:elevens"], ["--task=mine/elevens_task.py:elevens"]):
        assert parsed(flags)[0].rollout.task == f"{file}:elevens"
    config, _ = parsed(["--eval-tasks", "hanoi, mine/elevens_task.py:elevens"])
    assert config.evaluation.other_tasks == ["hanoi", f"{file}:elevens"]
    (tmp_path / "settings.yaml").write_text("task: mine/elevens_task.py:elevens\n")
    assert parsed(["--config", "settings.yaml"])[0].rollout.task == f"{file}:elevens"


def test_a_stored_config_finds_the_file_and_its_options_again(file, tmp_path, monkeypatch):
    given = parsed(["--task", f"{file}:elevens", "--elevens.most", "20", "--steps", "3"])
    values = json.loads(json.dumps(to_dict(*given)))
    monkeypatch.chdir("/")
    assert from_dict(values, TrainerConfig) == given
    (tmp_path / "config.json").write_text(json.dumps({"minrl_run": "name", "config": values}))
    stored = ["--config", str(tmp_path / "config.json")]
    assert parsed(stored) == given
    config, options = parsed([*stored, "--elevens.most", "30", "--task", "countdown"])
    assert (config.rollout.task, options["elevens"].most) == ("countdown", 30)
    assert parsed([*stored, "--elevens.most", "30"])[1]["elevens"].most == 30


TYPES = """    most: int = 50
    words: list[str] = field(default_factory=list)
    weights: tuple[float, ...] = (1, 2)
    place: Path = Path("a/b")
    levels: tuple[Literal["easy", "hard"], ...] = ()
    board: tuple[int, int] = (3, 4)
    limit: int | None = None
    strict: bool | None = None
"""


def test_every_type_that_is_allowed_goes_to_config_json_and_back(file):
    imports = "from dataclasses import field\nfrom pathlib import Path\nfrom typing import Literal\n"
    file.write_text(imports + SOURCE.replace("    most: int = 50\n", TYPES))
    flags = [
        "words",
        "a,b",
        "weights",
        "0.5",
        "place",
        "c",
        "levels",
        "hard,easy",
        "board",
        "5,6",
        "limit",
        "7",
    ]
    given = [
        w for name, value in zip(flags[::2], flags[1::2], strict=True) for w in (f"--elevens.{name}", *value.split(","))
    ]
    named = ["--task", f"{file}:elevens"]
    for arguments in (named, [*named, *given, "--no-elevens.strict"]):
        config = parsed(arguments)
        assert from_dict(json.loads(json.dumps(to_dict(*config))), TrainerConfig) == config
    options = config[1]["elevens"]
    assert json.dumps(plain_options(options))  # an evaluation's settings.json holds it too
    assert (options.words, options.weights, options.place) == (["a", "b"], (0.5,), Path("c"))
    assert (options.levels, options.board, options.limit) == (("hard", "easy"), (5, 6), 7)
    assert options.strict is False
    with pytest.raises(UserError, match=r"elevens.board must be a list of 2: an integer, an integer, got"):
        parsed([*named, "--elevens.board", "5"])
    for value, message in (
        ({"board": [5]}, "a list of 2: an integer, an integer"),
        ({"levels": ["mild"]}, "one of easy, hard"),
    ):
        with pytest.raises(UserError, match=f"must be {message}, got"):
            from_dict({"task": f"{file}:elevens", "tasks": {"elevens": value}}, TrainerConfig)


def test_evaluate_takes_the_same_names_and_flags(file):
    flags = ["--task", f"{file}:elevens", "--elevens.most", "20", "--completions", "rows.jsonl"]
    config, options = parsed(flags, EvaluateConfig)
    assert (config.task, options["elevens"].most) == (f"{file}:elevens", 20)


def test_a_run_is_named_after_the_task_and_not_its_path(file):
    for name, expected in ((f"{file}:elevens", "elevens"), (f"{file}:TASK", "elevens_task"), ("hanoi", "hanoi")):
        assert parsed(["--task", name])[0].what == f"{expected}-grpo"


def test_rewards_of_a_file_are_computed_in_workers(file, tmp_path, monkeypatch):
    decoy = tmp_path / "elsewhere"
    decoy.mkdir()
    (decoy / file.name).write_text("raise RuntimeError('the wrong file')")
    monkeypatch.chdir(decoy)  # where a worker starts must not decide which file it imports
    task = load_task(f"{file}:elevens")
    workers = Workers(1, 120.0)
    try:
        example = task.dataset.train[0]
        right = " ".join(["7"] * example["count"])
        (paid, unpaid) = workers.run([Job(task.reward, (text, example)) for text in (right, right + " 7")])
    finally:
        workers.close()
    assert (paid.value, unpaid.value) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        (":nothing", r"nothing is not there; of TaskDefinitions .*elevens_task\.py has elevens, TASK, other"),
        (":number", "number is no TaskDefinition but int"),
        ("", r"say which of its attributes is the task, such as .*elevens_task\.py:TASK"),
        (":", r"say which of its attributes is the task, such as .*elevens_task\.py:TASK"),
        (":countdown", r"flags --countdown\.\* would be those of both 'countdown' and '.*elevens_task\.py:countdown'"),
    ],
)
def test_an_attribute_that_is_no_task_is_refused(file, attribute, message):
    with pytest.raises(UserError, match=message) as refused:
        parsed(["--task", f"{file}{attribute}"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("absent.py", None, "no file /.*absent.py"),
        ("two-words.py", SOURCE, "must be named as a Python module is, got two-words.py: rename it"),
        ("json.py", SOURCE, r"has the name of another module, .*json.*: rename the file"),
        ("math.py", SOURCE, "has the name of another module"),
        ("pytest.py", SOURCE, "has the name of another module"),
        ("__main__.py", SOURCE, r"__main__\.py has the name of"),
        ("raising_task.py", "raise RuntimeError('two\\nlines')", "cannot be imported: RuntimeError: two lines"),
        ("broken_task.py", "def", r"cannot be imported: SyntaxError: invalid syntax"),
        ("leaving_task.py", "import sys; sys.exit('enough')", "cannot be imported: SystemExit: enough"),
        ("empty_task.py", "", "TASK is not there; of TaskDefinitions .* has none: make one, as in README"),
        ("plain_task.py", SOURCE.replace("@dataclass(frozen=True, kw_only=True)", ""), "options must be a dataclass"),
        (
            "any_task.py",
            SOURCE.replace("int = 50", '"Any" = 20'),
            "types of Options cannot be resolved: NameError: .*Any",
        ),
        (
            "mapping_task.py",
            SOURCE.replace("int = 50", "dict = None"),
            r"Options\.most is of type .*dict.*, which no flag",
        ),
        (
            "union_task.py",
            SOURCE.replace("int = 50", "int | str = 5"),
            r"Options\.most is of type int \| str, which no",
        ),
        ("nested_task.py", SOURCE.replace("int = 50", "list[list[int]] = ()"), r"Options\.most is of type list\[list"),
        (
            "bare_task.py",
            SOURCE.replace("int = 50", "tuple = ()"),
            r"Options\.most is of type .*tuple.*, which no flag",
        ),
        ("needy_task.py", SOURCE.replace(" = 50", ""), r"needs a default, Options\.most has none"),
    ],
)
def test_a_file_that_cannot_be_a_task_is_refused_in_one_line(tmp_path, name, source, message):
    if source is not None:
        (tmp_path / name).write_text(source)
    with pytest.raises(UserError, match=message) as refused:
        parsed(["--task", f"{tmp_path / name}:TASK"])
    assert "\n" not in str(refused.value)


def test_a_package_beside_the_file_that_would_be_imported_in_its_place_is_refused(file):
    (file.parent / file.stem).mkdir()
    (file.parent / file.stem / "__init__.py").write_text("")
    with pytest.raises(UserError, match="has the name of another module"):
        load_task(f"{file}:TASK")


def test_two_files_of_one_name_are_refused(file, tmp_path):
    twin = tmp_path / "yours" / file.name
    twin.parent.mkdir()
    twin.write_text(SOURCE)
    load_task(f"{file}:elevens")
    with pytest.raises(UserError, match=f"{twin} has the name of another module, {file}"):
        load_task(f"{twin}:other")


def test_two_tasks_whose_flags_would_be_the_same_are_refused(file, tmp_path):
    twin = tmp_path / "yours" / "another_task.py"
    twin.parent.mkdir()
    twin.write_text(SOURCE)
    flags = ["--task", f"{file}:elevens", "--eval-tasks"]
    assert set(parsed([*flags, f"{file}:other"])[1]) == {"elevens", "other"}
    with pytest.raises(UserError, match=r"flags --elevens\.\* would be those of both"):
        parsed([*flags, f"{twin}:elevens"])


def test_a_task_that_is_named_nearly_as_a_built_in_one_does_not_name_that(file, capsys):
    file.write_text(SOURCE + "\ncountdowns = other\n")
    _, options = parsed(["--task", f"{file}:countdowns", "--countdowns.most", "9"])
    assert set(options) == {"countdowns"} and options["countdowns"].most == 9
    with pytest.raises(SystemExit):
        parsed(["--task", f"{file}:countdowns", "--help"])
    page = capsys.readouterr().out
    assert "\ntask countdowns:\n  --countdowns.most INT" in page and "--countdown.max-number" not in page


def test_a_mistyped_flag_of_a_files_task_gets_a_suggestion(file):
    with pytest.raises(UserError, match=r"unknown flag --elevens\.mst: did you mean --elevens.most"):
        parsed(["--task", f"{file}:elevens", "--elevens.mst", "20"])
    with pytest.raises(UserError, match="no task 'elevens'"):
        from_dict({"tasks": {"elevens": {"most": 20}}}, TrainerConfig)


def test_an_option_without_a_type_is_named(file):
    file.write_text(SOURCE.replace("most: int = ", "most = "))
    with pytest.raises(
        UserError, match=r"unknown flag --elevens\.most: most has no type: write it as in `most: int = "
    ):
        parsed(["--task", f"{file}:elevens", "--elevens.most", "20"])


def test_an_installed_package_offers_tasks_by_entry_points(install):
    install("elevens_package", SOURCE, **{"elevens": "elevens_package:TASK", "more-elevens": "elevens_package:other"})
    assert set(installed_tasks()) == {"elevens", "more-elevens"}
    config, options = parsed(["--task", "more-elevens", "--more-elevens.most", "9"])
    assert config.what == "more-elevens-grpo"
    assert len(load_task("more-elevens", options).dataset.train) < 9
    values = json.loads(json.dumps(to_dict(config, options)))
    assert from_dict(values, TrainerConfig) == (config, options)
    # What is installed may be set in a file, whichever task is trained.
    assert from_dict({"tasks": {"elevens": {"most": 4}}}, TrainerConfig)[1]["elevens"].most == 4


@pytest.mark.parametrize(
    ("source", "entry", "message"),
    [
        (SOURCE, "shop:number", "of shop must be a minrl.tasks.TaskDefinition, got int"),
        (SOURCE, "shop:nothing", "cannot be imported: AttributeError"),
        ("raise RuntimeError('closed')", "shop:TASK", "entry point wares = 'shop:TASK' of shop .*RuntimeError: closed"),
    ],
)
def test_an_entry_point_that_is_no_task_is_refused(install, source, entry, message):
    install("shop", source, wares=entry)
    assert parsed(["--task", "hanoi"])  # what is not asked for is not loaded
    with pytest.raises(UserError, match=message) as refused:
        load_task("wares")
    assert "\n" not in str(refused.value)


def test_an_entry_point_with_a_built_in_tasks_name_is_refused(install):
    install("impostor", SOURCE, hanoi="impostor:TASK")
    with pytest.raises(UserError, match="impostor offers a task 'hanoi', which is a built-in one's name: uninstall it"):
        load_task("hanoi")
    load_task("countdown")


def test_two_packages_that_offer_one_name_are_refused(install):
    install("first_shop", SOURCE, wares="first_shop:TASK")
    install("second_shop", SOURCE, wares="second_shop:TASK")
    with pytest.raises(UserError, match=r"(first|second)_shop and (first|second)_shop offer a task 'wares' each"):
        load_task("wares")


@pytest.mark.parametrize("entry", ["class", "_main", "two words", "a.b"])
def test_a_name_that_cannot_begin_a_flag_is_refused(install, entry):
    install("oddly_named", SOURCE, **{entry: "oddly_named:TASK"})
    with pytest.raises(UserError, match="cannot begin a flag"):
        parsed(["--task", entry])


def test_an_unknown_name_gets_a_suggestion_and_the_list(install):
    install("elevens_package", SOURCE, elevens="elevens_package:TASK")
    names = ", ".join([*TASK_DEFINITIONS, "reasoning_gym/NAME", "elevens"])
    with pytest.raises(
        UserError, match=rf"no task 'elven': did you mean elevens\? choose one of {names}, or name a file"
    ):
        load_task("elven")
    with pytest.raises(UserError, match=r"no task 'mine\.txt:TASK': choose one of"):
        load_task("mine.txt:TASK")


def test_the_base_model_of_a_changed_file_is_another_one(file):
    name, beside, place = f"{file}:elevens", Path(file).parent / "elevens_of.py", Path(file)
    place.write_text(SOURCE + "\n\ndef later():\n    import elevens_of\n    return elevens_of\n")
    beside.write_text("HOW_MANY = 11\n")
    options = find_definition(name).options()

    def found():
        shown = str(programs_outside(name))
        return base_model_path(BaseModelConfig(), "elevens", options, ["7"], "checkpoints", shown)

    before = found()
    assert files_outside(name) == [beside, place] and before == found()
    beside.write_text("HOW_MANY = 12\n")
    changed = found()
    place.write_text(place.read_text() + "#")
    assert len({before, changed, found()}) == 3
    assert programs_outside("hanoi") == {} and files_outside("hanoi") == []


def test_options_are_those_of_built_in_tasks_and_of_the_tasks_named(file):
    assert "elevens" not in option_classes([])
    assert option_classes([f"{file}:elevens"])["elevens"].__name__ == "Options"
    assert task_key(f"{file}:elevens") == "elevens"
    assert Path(file).exists()


def test_a_function_of_trls_form_is_a_program_of_its_task(tmp_path):
    (tmp_path / "program_of_trl.py").write_text(
        "def reward(completions, **columns):\n    return [1.0] * len(completions)\n"
    )
    name = f"{tmp_path}/program_of_trl.py:reward"
    assert files_outside(name) == [tmp_path / "program_of_trl.py"]
    assert list(programs_outside(name)) == ["program_of_trl"] and "minrl.tasks.columns" in programs(name)
