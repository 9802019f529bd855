"""A run from its command line to its folders: a new one, or the one of --resume.

`open_run` says which run is meant and changes nothing. `owned` claims and locks its folders before anything slow: those
of a free name, or its own with the checkpoint from which it resumes. `begin` writes down whose they are.
"""

import itertools
import os
import re
import shlex
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.config import ENDS, TaskOptions, TrainerConfig, with_absolute_paths
from minrl.models.processes import Processes
from minrl.optimizer import learning_rate
from minrl.run.checkpoint import STATE, by_step, damage, discard_after, newest_complete, step_of
from minrl.run.defaults import differing, full_name
from minrl.run.folder import AT_BEST, CONFIG, OWNER, ROLLOUTS, SUMMARY, RunFolder, model_folder
from minrl.run.provenance import changes, code, provenance
from minrl.tasks import flag_identifier
from minrl.tasks.programs import files_outside
from minrl.types import Prompt, TrainState, UserError, require
from minrl.utils.cli import from_dict, near, to_dict, tool, typed
from minrl.utils.files import LOCK, holder, lock, refusal, write_json
from minrl.utils.settings import flag_of
from minrl.utils.statistics import Evaluation
from minrl.utils.task_names import option_keys, task_key

AUTO = "auto"
"""The --resume that goes on with the run of --run-name if there is one, and else begins it."""


@dataclass(frozen=True)
class Program:
    """A program that makes runs, as config.json names it, and the settings that a resumed run may change."""

    command: str
    extends: tuple[str, ...] = ("steps",)

    @property
    def typed(self) -> str:
        """The command as the user types it here."""
        return typed(self.command)


TRAIN = Program("train")


@dataclass(frozen=True)
class Run:
    """A run's folders, its config, and the checkpoint from which it resumes (None: from the start).

    `named` is the checkpoint that the user named, `stored` the content of config.json (empty: a new run). `models` are
    those of the run beside its policy: for each its path and the hash of its weights.
    """

    name: str
    settings: Any
    options: TaskOptions
    folder: Path
    checkpoints: Path
    checkpoint: Path | None = None
    program: Program = TRAIN
    identity: str = ""
    named: Path | None = None
    stored: Mapping[str, Any] = field(default_factory=dict)
    models: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def config(self) -> TrainerConfig:
        """The settings as a `TrainerConfig`."""
        return self.settings.trainer

    @property
    def had(self) -> dict[str, Any]:
        """The settings of its end before a resume that changes them."""
        had = {name: self.stored.get("config", {}).get(name) for name in self.program.extends}
        return {name: value for name, value in had.items() if value not in (None, getattr(self.settings, name))}

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        return f"{self.program.typed} --resume {shlex.quote(near(self.folder))}"


# Which run is meant


def open_run(settings: Any, options: TaskOptions, flags: Sequence[str], program: Program = TRAIN) -> Run:  # noqa: ANN401
    """A new run, or the one that --resume names, with its stored config and the settings of its end that are given.
    `settings` are those of any program that makes runs; their `trainer` is the config that the run is assembled from.
    """
    changed = {flag.split("=")[0].replace("--no-", "--", 1) for flag in flags}
    if "--resume" in changed and not settings.resume.strip():
        raise UserError(
            "--resume is empty, as an unset variable is: name `latest`, runs/NAME or a checkpoint, or leave it out for "
            "a new run"
        )
    if settings.resume == AUTO:
        settings = _begun_or_new(settings, options, program)
        changed = {*changed, *_ends(program)} - {"--config"}
    if settings.resume:
        return _stored_run(settings, options, changed, program)
    settings = with_absolute_paths(settings)
    options = {name: with_absolute_paths(chosen) for name, chosen in options.items()}
    name = full_name(settings, options, program.extends)
    folder, checkpoints = Path(settings.logging.runs_dir) / name, Path(settings.logging.checkpoints_dir) / name
    return Run(name, settings, options, folder, checkpoints, program=program)


def _begun_or_new(settings: Any, options: TaskOptions, program: Program) -> Any:  # noqa: ANN401
    """The settings, which resume the run of --run-name if it has begun. It keeps its own, so these must be the same."""
    name = settings.logging.run_name
    require(bool(name), "--resume auto goes on with the run of --run-name, or begins it: give --run-name")
    run = RunFolder(Path(settings.logging.runs_dir) / name)
    if not run.exists:
        return replace(settings, resume="")
    differing = _differences(settings, options, run.config)
    refused = [text for flag, text in differing.items() if flag not in _changeable(program)]
    require(
        not refused,
        f"--resume auto found the run {run.path}, which keeps its config, and this command has {'; '.join(refused)}: "
        "give what the run has, or another --run-name",
    )
    return replace(settings, resume=str(run.path))


def _stored_run(settings: Any, options: TaskOptions, changed: set[str], program: Program) -> Run:  # noqa: ANN401
    """The run that --resume names, with its stored settings except those of the flags `changed` that may change."""
    run, kept, named = _named_run(settings, program)
    differing = {**_differences(settings, options, run.config), "--config": "--config"}
    refused = [text for flag, text in differing.items() if flag in changed - _changeable(program)]
    if refused:
        *others, last = _ends(program)
        raise UserError(
            f"a resumed run keeps its config and only {', '.join(others)} and {last} may change, got "
            f"{'; '.join(refused)}"
        )
    stored: Any
    stored, options = from_dict(run.config, type(settings))
    given = with_absolute_paths(settings)
    if any(f"--{name}" in changed for name in program.extends):  # all of them: of two one wins
        stored = replace(stored, **{name: getattr(given, name) for name in program.extends})
    early = {name: getattr(given.evaluation, name) for name in ENDS if flag_of(name) in changed}
    places = {name: getattr(given.engine, name) for name in PLACES if flag_of(name) in changed}
    name = run.record["minrl_run"]
    own = Path(given.logging.checkpoints_dir) / name
    checkpoints = own if "--checkpoints-dir" in changed else kept or run.checkpoints
    stored = replace(
        stored,
        evaluation=replace(stored.evaluation, **early),
        engine=replace(stored.engine, **places),
        logging=replace(
            stored.logging,
            runs_dir=str(run.path.parent),
            checkpoints_dir=str(checkpoints.parent),
            quiet=settings.logging.quiet or stored.logging.quiet,
        ),
    )
    return Run(
        name,
        stored,
        options,
        run.path,
        checkpoints,
        program=program,
        identity=run.record.get("id") or uuid.uuid4().hex,
        named=named,
        stored=run.record,
        models=run.record.get("models", {}),
    )


def _named_run(settings: Any, program: Program) -> tuple[RunFolder, Path | None, Path | None]:  # noqa: ANN401
    """Absolute paths: the run of --resume, and the folder of checkpoints and the checkpoint if one was named."""
    name, runs = settings.resume, Path(os.path.abspath(settings.logging.runs_dir))
    if name == "latest":
        found = [run for run in map(RunFolder, runs.glob("*/")) if run.exists and run.program == program.command]
        require(bool(found), f"--resume latest finds no run in {runs}/: start one with {program.typed}")
        return max(found, key=lambda run: run.last_written), None, None
    run, kept, checkpoint = RunFolder.find(name, runs), None, None
    if run is None:
        for path in (Path(name), runs / name):
            require(not (path / CONFIG).exists() or (path / STATE).exists(), f"{path / CONFIG} is damaged: put it back")
        folder = model_folder(name, runs)
        if folder is None:
            raise UserError(f"--resume {name}: no run and no checkpoint there; use `latest`, runs/NAME or a checkpoint")
        if (folder / STATE).exists():
            checkpoint = folder.resolve()
            named = re.fullmatch(r"step_\d+", checkpoint.name) is not None
            require(named, f"--resume {name}: a checkpoint is a folder step_000123, rename it back")
        kept = checkpoint.parent if checkpoint else Path(os.path.abspath(folder))
        run = RunFolder.of_checkpoints(kept)
        if run is None:
            raise UserError(
                f"the checkpoints in {kept} belong to a run that is not there: put its folder back, or start a new run "
                f"from their weights with --model-id {shlex.quote(str(checkpoint or kept))}"
            )
    run = RunFolder(Path(os.path.abspath(run.path)))
    if run.program != program.command:
        command = f"{typed(run.program)} --resume {shlex.quote(str(run.path))}"
        raise UserError(f"run {run.path} is not one of minrl {program.command}: continue it with {command}")
    return run, kept, checkpoint


# The settings that a resumed run may change: its end, and where its files and servers are

PLACES = ("engine_urls", "engine_weights_dir")
"""Where the servers of --engine vllm-server are, which may have moved when a run goes on."""


def _ends(program: Program) -> list[str]:
    return [flag_of(name) for name in (*program.extends, *ENDS)]


def _changeable(program: Program) -> set[str]:
    names = ("resume", "runs_dir", "checkpoints_dir", "quiet", *PLACES)
    return {*_ends(program), *map(flag_of, names)}


def _differences(settings: Any, options: TaskOptions, stored: Mapping[str, Any]) -> dict[str, str]:  # noqa: ANN401
    """The settings and options that differ from those of the stored run, by flag, such as `--seed 1 (it has 0)`."""
    given = _byflag(with_absolute_paths(settings), {name: with_absolute_paths(own) for name, own in options.items()})
    kept = _byflag(*from_dict(stored, type(settings)))  # with the defaults of flags that are newer than the run
    found = {flag: (value, kept.get(flag)) for flag, value in given.items() if value != kept.get(flag)}
    return {flag: f"{flag} {_short(value)} (it has {_short(had)})" for flag, (value, had) in found.items()}


def _short(value: object) -> str:
    """A value in one line; a chat template of a file is long."""
    return " ".join(str(value).split())[:200]


def _byflag(settings: Any, options: TaskOptions) -> dict[str, Any]:  # noqa: ANN401 - of any program
    values = to_dict(settings, options)
    tasks = values.pop("tasks")
    values |= {f"{flag_identifier(key)}.{name}": value for key, own in tasks.items() for name, value in own.items()}
    return {flag_of(name): value for name, value in values.items()}


# Folders of its own


@contextmanager
def owned(run: Run, processes: Processes) -> Iterator[Run]:
    """The run with its folders, locked until the caller is done. A claim is released if the run ends before it wrote
    anything. The main process decides for all.
    """
    with ExitStack() as held:
        yield processes.on_main(lambda: (_go_on if run.stored else claim)(run, held))


def claim(run: Run, held: ExitStack) -> Run:
    """The run under the name that the user gave it, which must be free, or the first free of NAME, NAME-2, ..."""
    given = run.settings.logging.run_name
    numbered = (f"{run.name}-{number}" for number in itertools.count(2))
    for name in [given] if given else itertools.chain([run.name], numbered):
        claimed = replace(
            run,
            name=name,
            folder=run.folder.with_name(name),
            checkpoints=run.checkpoints.with_name(name),
            identity=uuid.uuid4().hex,
        )
        with ExitStack() as taken:
            if all(_take(path, taken) for path in _folders(claimed)):
                held.enter_context(taken.pop_all())
                return claimed
    raise UserError(
        f"a run {given} is there already, in {run.folder} or {run.checkpoints}: choose another --run-name, or go on "
        f"with {run.resume_command}"
    )


def _folders(run: Run) -> Iterable[Path]:
    """The folders that the run owns: two, or one if runs and checkpoints are kept in the same place."""
    return {path.resolve(): path for path in (run.folder, run.checkpoints)}.values()


def _take(folder: Path, taken: ExitStack) -> bool:
    """Lock a folder that is new, or that a killed run left before it wrote anything. Returns whether that succeeded."""
    if _is_used(folder):
        return False
    made = [folder, *(above for above in folder.parents if not above.exists())]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make {folder}: {refusal(error)}; choose others with --runs-dir and --checkpoints-dir"
        ) from error
    try:
        file = lock(folder / LOCK)
    except UserError:
        with suppress(OSError):  # what others have put there meanwhile stays
            folder.rmdir()
        raise
    if file is None:
        return False
    taken.enter_context(file)
    taken.callback(_give_back, made)
    return not _is_used(folder)  # somebody may have written there between the look and the lock


def _is_used(folder: Path) -> bool:
    """Whether there is a file of this name, or a folder with more than a lock in it."""
    if not folder.is_dir():
        return folder.exists()
    return bool({*os.listdir(folder)} - {LOCK})


def _give_back(made: Sequence[Path]) -> None:
    """Remove a claimed folder in which nothing was written, and those above that were made for it."""
    if made[0].exists() and not _is_used(made[0]):
        (made[0] / LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # another process is about to claim it, or something else is there
            for path in made:
                path.rmdir()


def _go_on(run: Run, held: ExitStack) -> Run:
    """The locked run with the checkpoint from which it resumes: the last one."""
    if not RunFolder(run.folder).owns(run.checkpoints):
        raise UserError(
            f"run {run.folder} has no checkpoints of its own in {run.checkpoints}: name the folder that holds "
            f"{run.name} with --checkpoints-dir"
        )
    owner = RunFolder.of_checkpoints(run.checkpoints)
    require(
        owner is None or owner.path.samefile(run.folder),
        f"{run.checkpoints} holds the checkpoints of {owner and owner.path}, of which {run.folder} is a copy: name the "
        "folder with its own by --checkpoints-dir",
    )
    for folder in _folders(run):
        file = lock(folder / LOCK)
        if file is None:
            raise UserError(f"run {run.folder} is going on ({holder(folder / LOCK)}): wait for its end, or stop it")
        held.enter_context(file)
    last = newest_complete(run.checkpoints)
    if last is None:
        _require_a_clean_start(run)
        return run
    if run.named is not None and run.named.name != last.name:
        fork = f"{typed('verify')} --fork {shlex.quote(near(run.folder))}@{step_of(run.named)}"
        raise UserError(
            damage(run.named)
            or f"{run.named} is not the last checkpoint of run {run.folder}, which went on to {last.name}: a resume "
            f"continues from that; to begin a new run at step {step_of(run.named)}: {fork}"
        )
    for name in run.program.extends:
        asked = getattr(run.settings, name)
        if isinstance(asked, int) and 0 < asked < step_of(last):
            raise UserError(f"--{name} is {asked}, and run {run.folder} has gone on to {last}: raise it")
    return replace(run, checkpoint=last)


def _require_a_clean_start(run: Run) -> None:
    """Refuse a run without a whole checkpoint, unless it never had one: then its first steps are repeated."""
    problems = "; ".join(f"{path.name}: {damage(path)}" for path in by_step(run.checkpoints))
    if problems:
        raise UserError(
            f"no checkpoint of run {run.folder} in {run.checkpoints} is whole ({problems}): put one back, or start a "
            "new run"
        )
    if any("files" in hashes for hashes in RunFolder(run.folder).fingerprints.values()):
        raise UserError(
            f"run {run.folder} has saved checkpoints, and {run.checkpoints} has none: put them back, name the folder "
            f"that holds {run.name} with --checkpoints-dir, or start a new run"
        )
    logger.info(f"run {run.name} was stopped before its first checkpoint: starting it again from step 1")


# Its records


def begin(run: Run, steps: int, prompt: Prompt | None = None) -> int | None:
    """Record whose folders these are, and discard what lies beyond the checkpoint from which the run resumes. Returns
    the step after which its files are cut: -1 cuts all, None nothing.
    """
    write_config(run, prompt)
    write_json(run.checkpoints / OWNER, {"minrl_run": run.name, "id": run.identity, "folder": str(run.folder)})
    if not run.stored:
        return None
    if RunFolder(run.folder).summary.get("steps", steps) != steps:
        (run.folder / SUMMARY).unlink()  # of an earlier end
    cut_after = step_of(run.checkpoint) if run.checkpoint else -1
    discard_after(run.checkpoints, cut_after)
    optimizer = run.config.optimizer
    if run.checkpoint and run.had.keys() & {"steps", "epochs"} and optimizer.schedule != "constant":
        rate = learning_rate(optimizer, cut_after + 1, steps)
        logger.warning(
            f"the {optimizer.schedule} schedule of the learning rate now ends at step {steps}: step {cut_after + 1} "
            f"has {rate:.3g} (peak {optimizer.learning_rate:g})"
        )
    return cut_after


def in_common(run: Run) -> dict[str, Any]:
    """What all processes of the run must have in common: the run, its settings, code and packages."""
    flags = {flag_of(name): value for name, value in to_dict(run.settings, run.options).items()}
    facts = code()
    return {"the run": run.name, **flags, "MinRL's code": facts["sources"][:12], **facts["packages"]}


def write_config(run: Run, prompt: Prompt | None = None) -> None:
    """Write config.json: every setting, the models, and what else the numbers depend on, at the start and at each
    resume, and a `prompt` of the trained task. Changes since the start are reported.
    """
    now = provenance(_outside_files(run))
    record: dict[str, Any] = {
        "minrl_run": run.name,
        **now,
        **run.stored,
        "id": run.identity,
        "program": run.program.command,
        "not_default": differing(run.settings, run.options),
        "config": to_dict(run.settings, run.options),
        "models": run.models,
        **({} if prompt is None else {"prompt": prompt}),
    }
    if run.stored:
        step = step_of(run.checkpoint) if run.checkpoint else 0
        record["resumed"] = with_resume(run.stored.get("resumed", []), now, step, run.had)
        changed = changes(run.stored, now)
        if changed:
            logger.warning(f"changed since the run began, so its numbers may be others: {'; '.join(changed)}")
    write_json(run.folder / CONFIG, record)


def with_resume(
    resumed: Sequence[Mapping[str, Any]], now: Mapping[str, Any], step: int, had: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The entries of all resumes with the one of now, after `step`, with the settings of its end that it `had` before:
    the learning rate falls towards it. What was resumed later was cut away with its steps.

    >>> with_resume([{"after": 6, "had": {"steps": 6}}], {}, 4, {"steps": 8})
    [{'after': 4, 'had': {'steps': 6}}, {'after': 4, 'had': {'steps': 8}}]
    """
    kept = [{**one, "after": min(one["after"], step)} if "after" in one else one for one in resumed]
    return [*kept, {**now, "after": step, "had": dict(had)} if had else dict(now)]


def _outside_files(run: Run) -> list[Path]:
    """The files outside MinRL that examples, rewards and the algorithm come from, and a data file or folder."""
    files = [path for name in run.config.task_names for path in files_outside(name)]
    files += [Path(run.config.algorithm.algorithm.rpartition(":")[0])]
    data = (run.config.data_of(task_key(name)) for name in run.config.task_names)
    files += map(Path, filter(None, [*data, run.config.data_path]))  # rows need no task
    return [path for path in dict.fromkeys(files) if path.name and path.exists()]


def hyperparameters(run: Run) -> dict[str, Any]:
    """Every setting by its flag's name; options of the trained and evaluated tasks as `task.option`. First come those
    of this run that are not the default, then those that are given most, then the options of its tasks.
    """
    values = to_dict(run.settings, run.options)
    tasks, names = values.pop("tasks"), {key for name in run.config.task_names for key in option_keys(name)}
    own = {f"{name}.{k}": v for name in sorted(names) for k, v in tasks.get(name, {}).items()}
    values |= own
    often = [name for name in run.settings.often if name != "resume"]
    chosen = differing(run.settings, run.options)
    first = [name for name in (*often, *values) if name in chosen]
    return {name: values[name] for name in dict.fromkeys([*first, *often, *own, *values])}


def write_summary(
    run: Run,
    state: TrainState,
    weights_sha256: str,
    final: Path,
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Evaluation],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Write summary.json: before and after, speed, the hash of the weights, and the program's own entries in `more`."""
    task = task_key(run.config.rollout.task)
    ends = {name: {"eval_before": before.get(name), "eval_after": new.to_json()} for name, new in after.items()}
    # Fine-tuning on rows samples no training rollouts.
    speed = {"tokens_per_s": round(state.sampled_tokens / max(state.seconds, 1e-9), 1)} if state.sampled_tokens else {}
    summary = {
        "run": run.name,
        "task": task,
        "algorithm": run.config.algorithm.algorithm,
        "seed": run.config.seed,
        **ends.pop(task, {}),
        "other_tasks": ends,
        "steps": state.step,
        "seconds": round(state.seconds, 3),
        **speed,
        "final_checkpoint": str(final),
        "weights_sha256": weights_sha256,
        **more,
    }
    write_json(run.folder / SUMMARY, summary)
    return summary


def next_steps(run: Run, last: Path, best: Path | None = None, ended_by: str = "") -> Iterator[str]:
    """What can be done with a finished run, a line for each: its purpose, a colon, the command. What is done with a
    model is done with the best one.
    """
    folder, model = near(run.folder), near(last)  # the last may be the start model
    if last.parent == run.checkpoints:
        model = folder if best in (None, last) else f"{folder}{AT_BEST}"
    folder = shlex.quote(folder)
    yield f"curves: {shlex.quote(tool('tensorboard'))} --logdir {shlex.quote(near(run.folder.parent))}"
    yield f"report: {typed('report')} {folder}"
    if (run.folder / ROLLOUTS).exists():  # not with --rollouts-every 0
        yield f"rollouts: {typed('rollouts')} {folder}"
    if run.config.rollout.task:
        chosen = shlex.join(["--checkpoint", model, "--task", run.config.rollout.task])
        yield f"evaluate: {typed('evaluate')} {chosen}"
    yield f"chat: {typed('serve')} {shlex.quote(model)} --chat"
    extended = {name: getattr(run.settings, name) for name in run.program.extends}
    name, value = next((name, value) for name, value in extended.items() if value)
    further = f"{flag_of(ended_by)} 0" if ended_by else f"--{name} {2 * value:.12g}"
    yield f"continue: {run.resume_command} {further}"
