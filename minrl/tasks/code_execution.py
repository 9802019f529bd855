"""Python programs that are rewarded for running: no tests, no right answer.

    Write a complete Python program about prime numbers ...    ->    ```python
                                                                     print([n for n in range(2, 50) if ...])
                                                                     ```

| the program                                | reward |
| ends with exit status 0, with output       |  1     |
| ends with exit status 0, without output    |  0.5   |
| has a syntax or indentation error          | -0.5   |
| ends otherwise, takes too long, or is none | -1     |

The numbers are those of rl_coding_games (github.com/hansgundlach/rl_coding_games, grpo_code_execution.py). The program
is the first block fenced with ```python, else the first fenced block, else all of the text outside the thoughts, and a
program of comments runs without output, as there. Departures: a warning on standard error is no failure, a program that
raises SyntaxError while it runs has failed, and a block that the limit of tokens cut off is judged as what is there.
Programs have the standard library alone.

It says little about what a policy can do, so evaluate another task: `--eval-tasks code`.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from minrl.dataflow import Example, Reward
from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import Limits
from minrl.tasks.code import START, extract_program, notes
from minrl.tasks.data import Row
from minrl.tasks.task import HeldOut, TaskOptions
from minrl.utils.settings import Bound, Positive

TOPICS = (
    "prime numbers", "sorting a list", "counting the words of a text", "a bank account as a class", "recursion",
    "dates and days of the week", "matrices as lists of lists", "a queue of customers", "reversing and comparing texts",
    "a game of chance with a fixed seed", "unit conversions", "generators",
)  # fmt: skip
PROMPT = (
    "Write a complete Python program that demonstrates {topic}. It must run by itself, read nothing, and print what it "
    "finds. Answer with the program in one ```python block."
)
ENDS = ("with_output", "without_output", "syntax_error", "failed", "timeout", "no_program")


@dataclass(frozen=True, kw_only=True)
class CodeExecutionOptions(TaskOptions):
    """Which prompts, and what a program may use."""

    prefix = "code_execution."
    timeout_s: Positive = 3.0
    """Seconds of processor time that a program has; by the clock it has twice as many."""
    memory_mib: Annotated[int, Bound(least=64)] = 1024
    """Memory that a program may use."""
    held_out_share: HeldOut = 0.0
    """Share of the prompts that is never trained on. 0: none, as another task is evaluated (--eval-tasks code)."""

    @property
    def limits(self) -> Limits:
        """What one program may use."""
        return Limits(wall_s=2 * self.timeout_s, cpu_s=self.timeout_s, memory_mib=self.memory_mib)


def reward(completion: str, _: Example, options: CodeExecutionOptions) -> Reward:
    """What became of the program. Its syntax is checked by an interpreter that does not run it, so that it cannot fake
    the result.
    """
    program = extract_program(completion, 0)
    if not program.strip():
        return _ended(-1.0, "no_program")
    files = {"program.py": program.encode(errors="replace")}
    outcome = sandbox.run([*sandbox.python(), "-c", START], files, options.limits)
    if outcome.status == "ok":
        return _ended(1.0, "with_output") if outcome.stdout.strip() else _ended(0.5, "without_output")
    check = "compile(open('program.py', 'rb').read(), 'program.py', 'exec')"
    if sandbox.run([*sandbox.python(), "-c", check], files, options.limits).status != "ok":
        return _ended(-0.5, "syntax_error")
    return _ended(-1.0, "timeout" if outcome.status == "timeout" else "failed")


def _ended(value: float, end: str) -> Reward:
    return Reward(value, {name: float(name == end) for name in ENDS})


def dataset() -> list[Row]:
    """A prompt for each topic."""
    return [{"prompt": [{"role": "user", "content": PROMPT.format(topic=topic)}]} for topic in TOPICS]


def more(_: CodeExecutionOptions) -> dict[str, Any]:
    """What is shown at the start of a run, and the lowest reward."""
    return {"notes": notes, "worst": -1.0}
