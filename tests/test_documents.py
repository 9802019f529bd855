"""README and docs say what is so: commands parse and files exist."""

import argparse
import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from minrl import algorithms
from minrl.__main__ import main
from minrl.config import TrainerConfig
from minrl.dataflow import UserError
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.tasks import TASK_DEFINITIONS, load_task
from minrl.utils import cli
from minrl.utils.other_names import ALIASES
from minrl.utils.settings import flag_of, settings_of
from tests.runs import Run, write_rows

ROOT = Path(__file__).parent.parent
FILES = (ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"))
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in FILES}

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ELSEWHERE = (
    *("tensorboard", "hf", "vllm", "accelerate", "torchrun", "source", "uv", "bash", "pip", "git", "cd"),
    *("sbatch", "scancel", "modal", "docker"),
)
"""Programs of others: what they are called with is theirs to check, but for the scripts of ours that they start."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
PROGRAM = re.compile(r"^(?:[A-Z_]+=\S+ )*(python|make|accelerate|torchrun|tensorboard) ")


EXAMPLES = {
    name: block
    for page in PAGES.values()
    for language, block in FENCE.findall(page)
    if language == "python"
    for name in re.findall(r"^@task\([^@]*?^def (\w+)", block, re.MULTILINE)
}
"""The tasks that are shown whole, by name."""


def loaded(path: Path) -> ModuleType:
    """A script of ours as a module."""
    spec = importlib.util.spec_from_file_location("started", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


CONFIGURATION = loaded(ROOT / "docs" / "configuration.py")


class Parsed(Exception):
    """The command line was taken; what it would start is not started."""


def commands(page: str) -> Iterator[str]:
    """The shell commands of a page, whole, without comments."""
    for language, block in FENCE.findall(page):
        if language in ("sh", "console"):
            lines = block.replace("\\\n", " ").splitlines()
            if language == "console":  # what was typed, among what was printed
                lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
            yield from (line for line in (line.split("  #")[0].strip() for line in lines) if line)
    for line in FENCE.sub("", page).splitlines():
        if line.startswith("    ") and PROGRAM.match(line.strip()):
            yield line.strip()
    prose = " ".join(FENCE.sub("", page).split())
    yield from (span for span in SPAN.findall(prose) if PROGRAM.match(span))


@pytest.fixture
def stops_when_parsed(monkeypatch):
    """Programs, and scripts with an argparse of their own, raise `Parsed` in place of running."""

    def stop(*_, **__):
        raise Parsed

    def then_stop(parse):
        def parse_and_stop(self, *args, **kwargs):
            parsed = parse(self, *args, **kwargs)
            return parsed if isinstance(self, cli._Parser) else stop()  # ours reads in parts

        return parse_and_stop

    monkeypatch.setattr("minrl.__main__._load", stop)
    for name in ("parse_args", "parse_known_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, then_stop(getattr(argparse.ArgumentParser, name)))


def check_python(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse a command of ours as it would be."""
    if words[:2] == ["-m", "pytest"]:
        check_pytest(words[2:])
        return
    words = [word for word in words if word[:1] != "[" and word[-1:] != "]"]
    programs = {("-m", "minrl"): [], ("train.py",): ["train"], ("evaluate.py",): ["evaluate"]}
    for begin, program in programs.items():
        if tuple(words[: len(begin)]) == begin:
            arguments = [*program, *words[len(begin) :]]
            with pytest.raises(Parsed if arguments and "--help" not in arguments else SystemExit):
                sys.exit(main(arguments))
            return
    path = ROOT / words[0]
    assert path.is_file() or "NAME" in words[0], f"{path}: no such file"
    if "NAME" not in words[0]:
        monkeypatch.syspath_prepend(str(path.parent))
        monkeypatch.setattr(sys, "argv", [str(path), *words[1:]])
        with pytest.raises(SystemExit if "--help" in words else Parsed):
            loaded(path).main()


def check_pytest(words: list[str]) -> None:
    markers = {line.split(":")[0] for line in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    if "-m" in words:
        assert set(re.findall(r"\w+", words[words.index("-m") + 1])) - {"and", "or", "not"} <= markers
    for word in words:
        assert not word.startswith(("tests", "minrl")) or (ROOT / word).exists(), word


def check_make(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    target, *settings = words
    values = dict(setting.split("=", 1) for setting in settings)
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}: no such target"
    extra, arguments = values.pop("EXTRA", ""), shlex.split(values.pop("ARGS", ""))
    assert not extra or extra in PROJECT["project"]["optional-dependencies"], f"no extra {extra}"
    assert not set(values) - set(re.findall(r"^(\w+) [?:]?= ", makefile, re.MULTILINE)), values
    if target == "train":
        check_python(["train.py", *arguments], monkeypatch)
    elif target == "test":
        check_pytest(arguments)


@pytest.fixture
def beside_the_example(tmp_path, monkeypatch):
    """A working directory in which the example tasks of all pages lie where the commands look for them."""
    (tmp_path / "path/to").mkdir(parents=True)
    for name, source in EXAMPLES.items():
        (tmp_path / f"path/to/{name}.py").write_text(source)
    (tmp_path / "beads.py").write_text(EXAMPLES["beads"])
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (accuracy,) = (block for language, block in FENCE.findall(PAGES["docs/tasks.md"]) if language == "py")
    (tmp_path / "path/to/accuracy.py").write_text(accuracy)
    game = next(block for language, block in FENCE.findall(PAGES["docs/tools.md"]) if language == "py")
    (tmp_path / "path/to/numbers_game.py").write_text(game)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [*EXAMPLES, "accuracy", "numbers_game", "products"]:
        sys.modules.pop(name, None)


ALL_COMMANDS = sorted({(name, command) for name, page in PAGES.items() for command in commands(page)})


@pytest.mark.parametrize(("page", "command"), ALL_COMMANDS)
@pytest.mark.usefixtures("stops_when_parsed", "beside_the_example")
def test_each_command_parses(page, command, monkeypatch):
    for one in command.split(" && "):
        words = [word for word in shlex.split(one) if not re.match(r"^[A-Z_]+=", word) or one.startswith("make")]
        words = ["python", "-m", *words] if words[0] == "minrl" else words
        if words[0] == "make":
            check_make(words[1:], monkeypatch)
        elif words[0] == "python":
            own_test = ["benchmarks/NAME.py"], ["docs/configuration.py"]
            if words[1:] not in own_test:
                check_python([word for word in words[1:] if word != "RUN"] if "..." in one else words[1:], monkeypatch)
        else:
            assert words[0] in ELSEWHERE, f"{page}: {command}"
            if "train.py" in words:
                check_python(words[words.index("train.py") :], monkeypatch)


def spans(page: str) -> list[str]:
    return SPAN.findall(" ".join(FENCE.sub("", page).split()))


@pytest.mark.parametrize("name", PAGES)
def test_each_file_that_is_named_exists(name):
    page = PAGES[name]
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page) if "://" not in link]
    missing = [link for link in links if not (ROOT / name).parent.joinpath(link).exists()]
    listed = [
        line.split()[0]
        for language, block in FENCE.findall(page)
        if not language
        for line in block.splitlines()
        if line
    ]
    ours = re.compile(r"(minrl|tests|benchmarks|docs|configs|requirements)/[\w/.*-]*")
    named = [path for path in [*spans(page), *listed] if ours.fullmatch(path)]
    assert missing + [path for path in named if not list(ROOT.glob(path.replace("NAME", "*")))] == []


def test_each_claim_names_a_test_that_exists():
    rows = re.findall(r"^\| .* \| `([\w/]+\.py)::(test_\w+)` \|$", PAGES["CONTRIBUTING.md"], re.MULTILINE)
    missing = [
        f"{file}::{name}"
        for file, name in rows
        if not (ROOT / "tests" / file).exists() or f"def {name}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert len(rows) > 40 and missing == []


@pytest.mark.house
def test_the_code_that_readme_shows_is_that_of_the_package():
    blocks = FENCE.findall(PAGES["README.md"])
    (loop,) = (block for language, block in blocks if language == "python" and "session.steps" in block)
    (changes,) = (block for language, block in blocks if language == "diff")
    shown = [line.split("  #")[0].strip() for line in loop.splitlines()]
    there = [line.split("  #")[0].strip() for line in (ROOT / "minrl/trainer.py").read_text().splitlines()]
    assert [line for line in there if line in shown] == shown
    for part in changes.split("\n\n"):
        file, *lines = part.splitlines()
        source = (ROOT / file.removeprefix(" # ").split(":")[0]).read_text().splitlines()
        assert [line for line in lines if line[0] != "+" and line[1:] not in source] == []
    (row,) = (line[1:] for line in changes.splitlines() if line.startswith('+    "mine"'))
    assert isinstance(eval(f"{{{row}\n}}", vars(algorithms))["mine"], algorithms.Algorithm)


@pytest.mark.house
def test_the_page_of_all_settings_is_written_from_the_settings():
    assert CONFIGURATION.page() == PAGES["docs/configuration.md"], "run python docs/configuration.py"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "quiz")) for name in EXAMPLES])
@pytest.mark.usefixtures("beside_the_example")
def test_the_tasks_of_the_guide_are_played_and_trained_on(name, tmp_path, monkeypatch):
    base = "--base-steps 8 --base-hidden-size 64 --base-heads 2 --base-layers 1 "
    if name in ("quiz", "shortest", "shop"):
        questions = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(9) for b in range(9)]
        write_rows(Path("path/to/questions.jsonl"), *questions)
        tokenizer = word_tokenizer(["+", "=", *map(str, range(17))])
        for part in (small_qwen3(tokenizer, 64, 1, 2, 0), tokenizer):
            part.save_pretrained("path/to/model")
        base = "--model-id path/to/model --learning-rate 1e-3"
    sizes = "--steps 2 --prompts-per-step 4 --group-size 8 --max-tokens 4 --eval-examples 4 --eval-samples 1"
    flags = f"--task path/to/{name}.py:{name} {base} {sizes} --no-eval-first --threads 1 --device cpu --quiet"
    run = Run(tmp_path, flags.split())
    assert run.here() == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # the file of the task and its data are found from any folder
    sys.modules.pop(name, None)
    assert run.resume("--steps", 3) == 0
    assert [line["reward/unscorable_frac"] for line in run.metrics if "reward/mean" in line] == [0.0] * 3
    assert ("reward/role/hider" in run.metrics[-1]) == (name == "seek")
    dataset = load_task(f"{tmp_path}/path/to/{name}.py:{name}").dataset
    assert not {str(one.prompt) for one in dataset.train} & ({str(one.prompt) for one in dataset.held_out} - {""})


def test_the_row_of_the_guide_in_task_definitions_is_a_task():
    (source,) = (block for _, block in FENCE.findall(PAGES["docs/tasks.md"]) if "TASK_DEFINITIONS[" in block)
    exec(source.rpartition("minrl.train")[0], {})
    task = load_task("sums")
    example = task.dataset.train[0]
    assert [task.reward(said, example) for said in (f" {example['answer']}", "x")] == [True, False]
    assert sum(task.dataset.sizes()) == 400 and task.cheap


@pytest.mark.slow
def test_the_row_of_a_file_of_the_guide_has_an_option_and_a_curve(sevens_model, tmp_path, monkeypatch, capsys):
    (source,) = (block for _, block in FENCE.findall(PAGES["docs/algorithms.md"]) if "ToprOptions" in block)
    (tmp_path / "topr.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    flags = """--task sevens --model-id model --prompts-per-step 4 --group-size 4 --max-tokens 4 --steps 2 --threads 1
        --passes-per-step 2 --learning-rate 3e-2 --warmup-steps 0 --device cpu --eval-every 0 --no-preflight --quiet
        --algorithm topr.py:topr"""
    runs = {taper: Run(tmp_path, [*flags.split(), "--topr.taper", taper], name=taper) for taper in ("0.3", "9")}
    tapered = {}
    for taper, run in runs.items():
        assert run.here() == 0
        tapered[taper] = [line["policy/tapered_frac"] for line in run.metrics if "policy/tapered_frac" in line]
    assert min(tapered["0.3"]) > 0 and set(tapered["9"]) == {0.0}  # ratios are near 1
    assert runs["0.3"].here("--resume", "0.3", "--steps", "3") == 0
    last = runs["0.3"].metrics[-1]
    assert last["step"] == 3 and last["policy/tapered_frac"] > 0  # it keeps its option
    with pytest.raises(SystemExit):
        main(["train", *flags.split(), "--help"])
    assert re.search(r"--topr\.taper FLOAT +Largest weight of a token", capsys.readouterr().out)
    with pytest.raises(UserError, match=r"unknown flag --topr\.tapper: did you mean --topr\.taper"):
        main(["train", *flags.split(), "--topr.tapper", "1"])


@pytest.mark.slow
def test_the_notebook_of_the_guide_trains_plots_and_samples(sevens_model, tmp_path, monkeypatch):
    (source,) = (block for _, block in FENCE.findall(PAGES["docs/runs.md"]) if "minrl.load" in block)
    sizes = "steps=2, prompts_per_step=2, group_size=2, max_tokens=4, eval_examples=2, eval_samples=1, threads=1"
    small = f'task="sevens", model_id="model", {sizes}, device="cpu", quiet=True, preflight=False'
    *lines, last = source.replace('task="countdown", steps=20', small).strip().splitlines()
    monkeypatch.chdir(tmp_path)
    exec("\n".join(lines), names := {})
    assert [step for step, _ in names["curve"]] == [1, 2] and Path("runs/nb/reward.png").stat().st_size > 5000
    (texts,) = eval(last, names)
    assert len(texts) == 4 and all(isinstance(text, str) for text in texts)


def test_every_flag_and_alias_that_a_newcomer_is_told_of_is_one():
    flags = {flag_of(name) for cls in CONFIGURATION.PROGRAMS.values() for name in settings_of(cls)}
    flags |= {
        flag_of(f"{task}.{name}") for task, one in TASK_DEFINITIONS.items() for name in settings_of(one.options_class)
    }
    rows = [line.split(" | ") for line in PAGES["docs/coming_from.md"].splitlines() if line.startswith("| ")]
    told = re.findall(r"--[a-z][\w.-]*", "\n".join(cells[-1] for cells in rows))
    told = [flag.replace("--no-", "--") for flag in told]
    assert len(told) > 80 and sorted(set(told) - flags - {"--config", "--models"}) == []
    taken = [
        name for cells in rows if cells[-1].startswith("the same, or") for name in re.findall(r"`(\w+)`", cells[0])
    ]
    assert len(taken) > 15 and [name for name in taken if name not in {*ALIASES, *settings_of(TrainerConfig)}] == []
