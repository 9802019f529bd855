"""README and docs say what is so: commands parse and files exist."""

import argparse
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from minrl import algorithms
from minrl.__main__ import main
from minrl.config import TrainerConfig
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.run.folder import RunFolder
from minrl.tasks import TASK_DEFINITIONS, load_task
from minrl.utils import cli
from minrl.utils.other_names import ALIASES
from minrl.utils.settings import flag_of, settings_of
from tests.conftest import SMALL_RUN
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


def blocks_of(page: str, language: str) -> list[str]:
    """The blocks of a page that are marked so."""
    return [block for one, block in FENCE.findall(PAGES[page]) if one == language]


EXAMPLES = {
    name: block
    for page in PAGES
    for block in blocks_of(page, "python")
    for name in re.findall(r"^@task\([^@]*?^def (\w+)", block, re.MULTILINE)
}
"""The tasks that are shown whole, by name."""


CONFIGURATION = SimpleNamespace(**runpy.run_path(str(ROOT / "docs/configuration.py")))


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
    words = [word for word in words if word[:1] != "[" and word[-1:] != "]"]
    programs = {("-m", "minrl"): [], ("train.py",): ["train"], ("evaluate.py",): ["evaluate"]}
    for begin, program in programs.items():
        if tuple(words[: len(begin)]) == begin:
            arguments = [*program, *words[len(begin) :]]
            with pytest.raises(Parsed if arguments and "--help" not in arguments else SystemExit):
                sys.exit(main(arguments))
            return
    path = ROOT / words[0]
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr(sys, "argv", [str(path), *words[1:]])
    with pytest.raises(SystemExit if "--help" in words else Parsed):
        runpy.run_path(str(path))["main"]()


def check_make(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    target, *settings = words
    values = dict(setting.split("=", 1) for setting in settings)
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"make {target}: no such target"
    assert values.get("EXTRA", "mcp") in PROJECT["project"]["optional-dependencies"], values
    if target == "train":
        check_python(["train.py", *shlex.split(values.get("ARGS", ""))], monkeypatch)


@pytest.fixture
def beside_the_example(tmp_path, monkeypatch, own_imports):
    """A working directory in which the example tasks of all pages lie where the commands look for them."""
    (tmp_path / "path/to").mkdir(parents=True)
    files = {f"path/to/{name}": source for name, source in EXAMPLES.items()} | {"beads": EXAMPLES["beads"]}
    files["path/to/accuracy"], *_ = blocks_of("docs/tasks.md", "py")
    files["path/to/numbers_game"], *_ = blocks_of("docs/tools.md", "py")
    for name, source in files.items():
        (tmp_path / f"{name}.py").write_text(source)
    for name in ("configs", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("products", None)  # of docs/


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
            if words[1:] not in own_test and words[1:3] != ["-m", "pytest"]:
                check_python([word for word in words[1:] if word != "RUN" or "..." not in one], monkeypatch)
        else:
            assert words[0] in ELSEWHERE, f"{page}: {command}"
            if "train.py" in words:
                check_python(words[words.index("train.py") :], monkeypatch)


@pytest.mark.parametrize("name", PAGES)
def test_each_file_that_is_named_exists(name):
    page = PAGES[name]
    prose, blocks = " ".join(FENCE.sub("", page).split()), FENCE.findall(page)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page) if "://" not in link]
    missing = [link for link in links if not (ROOT / name).parent.joinpath(link).exists()]
    listed = [line.split()[0] for language, block in blocks if not language for line in block.splitlines() if line]
    ours = re.compile(r"(minrl|tests|benchmarks|docs|configs|requirements)/[\w/.*-]*")
    named = [path for path in [*SPAN.findall(prose), *listed] if ours.fullmatch(path)]
    assert missing + [path for path in named if not list(ROOT.glob(path.replace("NAME", "*")))] == []


def test_each_claim_names_a_test_that_exists():
    rows = re.findall(r"^\| .* \| `([\w/]+\.py)::(test_\w+)` \|$", PAGES["CONTRIBUTING.md"], re.MULTILINE)
    files = {file: ROOT / "tests" / file for file, _ in rows}
    there = {file: path.read_text() if path.exists() else "" for file, path in files.items()}
    assert len(rows) > 40 and [row for row in rows if f"def {row[1]}(" not in there[row[0]]] == []


@pytest.mark.house
def test_the_code_that_readme_shows_is_that_of_the_package():
    (loop,) = (block for block in blocks_of("README.md", "python") if "session.steps" in block)
    (changes,) = blocks_of("README.md", "diff")
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
    if name in ("quiz", "shop"):
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


@pytest.mark.slow
def test_the_algorithm_of_the_guide_has_an_option_and_a_curve(sevens_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (source,) = (block for block in blocks_of("docs/algorithms.md", "python") if "ToprOptions" in block)
    Path("topr.py").write_text(source)
    assert main(["train", *SMALL_RUN, "--algorithm", "topr.py:topr", "--topr.taper", "0.3"]) == 0
    assert all(line["policy/tapered_frac"] > 0 for line in RunFolder(Path("runs/run")).metrics if line["step"])


@pytest.mark.slow
def test_the_notebook_of_the_guide_trains_plots_and_samples(sevens_model, tmp_path, monkeypatch):
    (source,) = (block for block in blocks_of("docs/runs.md", "python") if "minrl.load" in block)
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
    for task, one in TASK_DEFINITIONS.items():
        flags |= {flag_of(f"{task}.{name}") for name in settings_of(one.options_class)}
    rows = [line.split(" | ") for line in PAGES["docs/coming_from.md"].splitlines() if line.startswith("| ")]
    told = re.findall(r"--[a-z][\w.-]*", "\n".join(cells[-1] for cells in rows))
    told = {flag.replace("--no-", "--") for flag in told}
    assert len(told) > 50 and sorted(told - flags - {"--config", "--models"}) == []
    same = [cells[0] for cells in rows if cells[-1].startswith("the same, or")]
    taken = {name for cell in same for name in re.findall(r"`(\w+)`", cell)}
    assert len(taken) > 15 and taken - {*ALIASES, *settings_of(TrainerConfig)} == set()
