"""What each task pays for references, for trivial answers and for tricks, on real rows, and how fast it grades them.

    python benchmarks/tasks.py --task code --data-path mbpp.jsonl
    python benchmarks/tasks.py --task math --data-path math500.json --cases grading_cases.jsonl

Every row of the file (or of the hub's dataset, without --data-path) is answered in each way of the table and graded by
the task's reward in worker processes, as in training. `--cases` are rows of gold, pred, equal and kind: how often
math agrees with them, its comparison alone and its paid reward with each prompt, and every row where it does not.
"""

import argparse
import ast
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import doing
from rewrites import FORMS, agree

from minrl.rewards.workers import Failure, Workers
from minrl.tasks import load_task
from minrl.tasks.answers import boxed
from minrl.tasks.connections import groups_of
from minrl.tasks.data import load_rows
from minrl.tasks.math import MathOptions, reward
from minrl.types import Example, Job

Answer = Callable[[Example], str]


def parse() -> argparse.Namespace:
    """Which task, on what."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(ANSWERS), required=True)
    parser.add_argument("--data-path", default="", help="a local copy of the task's rows")
    parser.add_argument("--cases", type=Path, help="cases for math's comparison")
    parser.add_argument("--limit", type=int, default=0, help="only so many examples; 0: all")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--answers", nargs="+", help="only these ways to answer")
    return parser.parse_args()


def main() -> None:
    """Print a table, a line for each way to answer."""
    options = parse()
    doing(f"loading {options.task}")
    task = load_task(options.task, data_path=options.data_path)
    for note in task.notes():
        print(note)
    examples = [*task.dataset.train, *task.dataset.held_out]
    examples = examples[: options.limit or len(examples)]
    sizes = f"{len(task.dataset.train)} + {len(task.dataset.held_out)}"
    print(f"{options.task}: {sizes} examples to train on and held out, {options.workers} workers\n")
    print(
        "| answers | graded | mean reward | highest | solved | unscorable | examples/s |\n|---|---|---|---|---|---|---|"
    )
    workers = Workers(options.workers, 300.0)
    answers = ANSWERS[options.task](options)
    workers.run([Job(task.reward, (answers["reference"](examples[0]), examples[0]))] * 8)  # warm
    missed: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if options.answers and name not in options.answers:
            continue
        jobs = [Job(task.reward, (answer(example), example), cheap=task.cheap) for example in examples]
        doing(f"{options.task}: grading {len(jobs)} answers, {name}")
        started = time.perf_counter()
        results = workers.run(jobs)
        seconds = time.perf_counter() - started
        paid = [result for result in results if not isinstance(result, Failure)]
        values = [result.value for result in paid] or [float("nan")]
        print(
            f"| {name} | {len(jobs)} | {sum(values) / len(values):.4f} | {max(values):.3f} | "
            f"{sum(result.solved for result in paid)} | {len(jobs) - len(paid)} | {len(jobs) / seconds:,.1f} |",
            flush=True,
        )
        solved = [not isinstance(result, Failure) and result.solved for result in results]
        missed[name] = [example.id for example, good in zip(examples, solved, strict=True) if not good]
    workers.close()
    if "reference" in missed:
        print(f"\nreferences that do not solve their example: {', '.join(missed['reference']) or 'none'}")
    if options.cases:
        doing(f"comparing {options.cases}")
        agreement(options.cases)


def code(_: argparse.Namespace) -> dict[str, Answer]:
    """MBPP's references, without their bodies, and what knows the shown assert only."""
    return {
        "reference": lambda example: f"```python\n{example['code']}\n```",
        "bodies replaced by pass": lambda example: f"```python\n{without_bodies(example['code'])}\n```",
        "the shown assert alone": only_the_shown,
        "the prompt copied back": lambda example: example.prompt[-1]["content"],
        "empty": lambda _: "",
    }


def without_bodies(program: str) -> str:
    """The program with `pass` for all that its functions do."""
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [ast.Pass()]
    return ast.unparse(tree)


def only_the_shown(example: Example) -> str:
    """A program that gives the value of the shown assert to everybody who asks."""
    names = [node.name for node in ast.parse(example["code"]).body if isinstance(node, ast.FunctionDef)]
    compared = [node for node in ast.walk(ast.parse(example["test_list"][0])) if isinstance(node, ast.Compare)]
    value = ast.unparse(compared[0].comparators[0]) if compared else "True"
    return "```python\n" + "\n".join(f"def {name}(*a, **k): return {value}" for name in names) + "\n```"


def rust(options: argparse.Namespace) -> dict[str, Answer]:
    """Exercism's references and stubs, and what only looks like a solution."""
    from minrl.tasks.rust import SOURCE, _name, reference

    rows = {_name(row): row for part in load_rows(SOURCE, options.data_path).values() for row in part}
    vacuous = "/// Nothing.\npub fn f() {}\n#[cfg(test)] mod tests { #[test] fn t() { assert!(true); } }"
    return {
        "reference": lambda example: f"```rust\n{reference(rows[example.id])}\n```",
        "stub": lambda example: f"```rust\n{example['stub']}\n```",
        "vacuous": lambda _: f"```rust\n{vacuous}\n```",
        "stub that exits": lambda example: f"```rust\n{example['stub']}\nfn f() {{ std::process::exit(0) }}\n```",
        "empty": lambda _: "",
    }


def gsm8k(_: argparse.Namespace) -> dict[str, Answer]:
    """The written solutions, and guesses."""

    def numbers(example: Example) -> list[str]:
        return [word for word in example.prompt[-1]["content"].replace("$", " ").split() if word.isdigit()]

    return {
        "reference": lambda example: example["answer"],
        "#### 0": lambda _: "#### 0",
        "every number up to 300": lambda _: " ".join(f"#### {n}" for n in range(300)),
        "the question's last number": lambda example: f"#### {(numbers(example) or ['0'])[-1]}",
        "the prompt copied back": lambda example: example.prompt[-1]["content"],
        "empty": lambda _: "",
    }


def math(_: argparse.Namespace) -> dict[str, Answer]:
    """The answers, boxed, and guesses."""
    return {
        "reference": lambda example: rf"\boxed{{{example['answer']}}}",
        "0": lambda _: r"\boxed{0}",
        "0 to 300 in one box": lambda _: rf"\boxed{{{', '.join(map(str, range(301)))}}}",
        "2 or 3": lambda _: r"\boxed{2 \text{ or } 3}",
        "the problem in a box": lambda example: rf"\boxed{{{example['problem']}}}",
        "9**9**9": lambda _: r"\boxed{9^{9^{9}}}",
        "100 kB of braces": lambda _: r"\boxed{" + "{" * 50_000 + "1" + "}" * 50_000 + "}",
        "empty": lambda _: "",
    }


def connections(_: argparse.Namespace) -> dict[str, Answer]:
    """The groups, and the two answers that an earlier trainer paid for."""

    def written(groups: list[list[str]]) -> str:
        return "\n".join(f"<group>{', '.join(group)}</group>" for group in groups)

    def across(example: Example) -> str:
        return written([list(words) for words in zip(*groups_of(example.fields), strict=True)])

    def shown(example: Example) -> str:
        words = example.prompt[-1]["content"].split("\n")
        return written([words[start : start + 4] for start in range(0, 16, 4)])

    return {
        "reference": lambda example: written(groups_of(example.fields)),
        "one right group alone": lambda example: written(groups_of(example.fields)[:1]),
        "one word of each group in each": across,
        "the words as they stand": shown,
        "the right group four times": lambda example: written(groups_of(example.fields)[:1] * 4),
        "the prompt copied back": lambda example: example.prompt[-1]["content"],
        "empty": lambda _: "",
    }


ANSWERS: dict[str, Callable[[argparse.Namespace], dict[str, Answer]]] = {
    "code": code,
    "rust": rust,
    "gsm8k": gsm8k,
    "math": math,
    "connections": connections,
}


def agreement(path: Path) -> None:
    """How often math agrees with the cases, by kind and by who is asked, and the cases where it does not."""
    rows = [json.loads(line) for line in path.read_text().split("\n") if line]
    agreed: Counter[tuple[str, str]] = Counter()
    disagreed = []
    for row in rows:
        for judge in JUDGES:
            if is_equal(row, judge) == row["equal"]:
                agreed[row["kind"], judge] += 1
            else:
                disagreed.append(
                    (judge, row["kind"], row["id"], str(row["gold"])[-60:], row["pred"][-100:], row["equal"])
                )
    print(f"\n| kind | cases | {' | '.join(JUDGES)} |\n|---|---|{'---|' * len(JUDGES)}")
    for kind, count in Counter(row["kind"] for row in rows).items():
        print(f"| {kind} | {count} | {' | '.join(f'{agreed[kind, judge] / count:.3f}' for judge in JUDGES)} |")
    for line in disagreed:
        print(*line, sep=" | ")


JUDGES = ("answers_agree", "boxed", "r1_zero")
"""Who is asked: the comparison alone, or the paid reward with each prompt."""


def is_equal(row: dict[str, Any], judge: str) -> bool:
    """The verdict on a case, any of whose golds is right."""
    golds, given = row["gold"] if isinstance(row["gold"], list) else [row["gold"]], str(row["pred"])
    if row["kind"].startswith("response"):  # a whole completion, which is paid in the form that it has
        prompt = "boxed" if boxed(given) or "<answer>" not in given else "r1_zero"
        completion = (
            given if prompt == "boxed" or "</think>" in given else given.replace("<answer>", "</think><answer>", 1)
        )
    elif judge == "answers_agree":
        return any(agree(str(gold), given) for gold in golds)
    else:
        prompt, completion = judge, given if judge == "boxed" and boxed(given) else FORMS[judge].format(given)
    options = MathOptions(prompt=prompt, timeout_s=60.0)
    examples = [Example("", "", {"problem": "", "answer": str(gold)}) for gold in golds]
    return any(reward(completion, example, options).parts["answer"] == 1 for example in examples)


if __name__ == "__main__":
    main()
