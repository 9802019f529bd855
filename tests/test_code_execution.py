"""The task `code_execution`: the published rewards, where they differ on purpose, and its prompts."""

from minrl.dataflow import Example
from minrl.tasks import load_task
from minrl.tasks.code_execution import TOPICS, CodeExecutionOptions, reward
from tests.runs import write_rows

PATIENT = CodeExecutionOptions(timeout_s=60.0)
"""For programs that end by themselves, however slow the machine."""


def paid(completion, options=PATIENT):
    return reward(completion, Example("", "", {}), options)


ENDS = {
    "print(1); exit()": (1.0, "with_output"),
    "print()": (0.5, "without_output"),
    "This is no program.": (-0.5, "syntax_error"),
    "": (-1.0, "no_program"),
    "print(1); exit(2)": (-1.0, "failed"),
    "print(1, flush=True)\nwhile True: pass": (-1.0, "timeout"),
    # published: -1 for what is on standard error, -0.5 for what names a SyntaxError there
    "import warnings\nwarnings.warn('old')\nprint(1)": (1.0, "with_output"),
    "raise SyntaxError": (-1.0, "failed"),
}


def test_a_program_is_rewarded_for_running():
    for program, (value, end) in ENDS.items():
        options = CodeExecutionOptions(timeout_s=0.3) if "while" in program else PATIENT
        ran = paid(f"```python\n{program}\n```", options)
        assert ran.value == value and ran.solved == (value == 1), program
        assert {name for name, part in ran.parts.items() if part} == {end}, program


def test_the_first_block_of_python_is_the_program():
    blocks = {"text": "no", "python": "print(1)", "py": "raise ValueError"}
    assert paid("\n".join(f"```{language}\n{text}\n```" for language, text in blocks.items())).value == 1.0
    assert paid("```python\nprint(1)").value == 1.0  # published: -0.5, a syntax error in the mark of the fence
    assert paid("<think>```python\nprint(1)\n```</think>").value == -1.0


def test_prompts_are_the_tasks_own_or_those_of_a_file(tmp_path):
    own = load_task("code_execution").dataset
    assert len(own.train) == len(TOPICS) and len(own.held_out) == 0
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write a program."}]
    rows = [{"prompt": text} for text in ("Write a program.", "Write a program.", chat)]
    read = load_task("code_execution", data_path=str(write_rows(tmp_path / "rows.jsonl", *rows))).dataset.train
    assert sorted((one.prompt for one in read), key=len) == [chat, "Write a program."]  # repeated, it is one example
