"""A few prompts with their completions and rewards, for TensorBoard's tab TEXT and the tables of other boards."""

from collections.abc import Iterable, Mapping, Sequence
from textwrap import TextWrapper
from typing import Any

from minrl.models.chat import shown
from minrl.utils.text import cut, printable

PROMPTS, COMPLETIONS = 4, 4
"""Prompts that are shown at a time, and completions of each."""

LONGEST = 2000
"""Characters of a text that are shown, half of them from its end, where the answer is."""

WRAPPER = TextWrapper(120, expand_tabs=False, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False)

COLUMNS = ("prompt", "mode", "completion", "reward", "solved", "parts")

Row = tuple[str, str, str, float | None, bool | None, str]
"""The values of `COLUMNS`. A completion that could not be scored has neither reward nor verdict."""


def sample_rows(lines: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The first completions of the first prompts, of `minrl.evaluation.result_line`."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for line in lines:
        key = line["example_id"], line["role"]
        if len(groups) == PROMPTS and key not in groups:
            continue
        rows = groups.setdefault(key, [])
        if len(rows) < COMPLETIONS:
            parts = ", ".join(f"{name} {value:.4g}" for name, value in line["parts"].items())
            texts = cut(shown(line["prompt"]), LONGEST), line["mode"], cut(line["completion"] or "", LONGEST)
            rows.append((*texts, line["reward"], line["solved"], parts))
    return [row for rows in groups.values() for row in rows]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as Markdown: each prompt once, then its completions. Texts are indented blocks of code, in which nothing
    is a mark of Markdown or HTML and line ends stay.
    """
    parts, before = list[str](), None
    for prompt, mode, completion, reward, solved, of_reward in rows:
        if prompt != before:
            parts += ["### Prompt", code(prompt)]
            before = prompt
        verdict = "not scored" if reward is None else f"reward {reward:.4g}{', solved' if solved else ''}"
        about = plain_text(f"{mode}, {verdict}{f' ({of_reward})' if of_reward else ''}")
        parts += [f"**Completion** {about}", code(completion)]
    return "\n\n".join(parts)


def settings_table(settings: Mapping[str, Any]) -> str:
    """Settings as a table of Markdown."""
    rows = (f"| {name} | {plain_text(str(value))} |" for name, value in settings.items())
    return "\n".join(["| setting | value |", "| --- | --- |", *rows])


def code(text: str) -> str:
    """A text as a block of code, which TensorBoard does not wrap."""
    lines = (text if text.strip() else "(empty)").split("\n")
    return "\n".join(f"    {part}" for line in lines for part in WRAPPER.wrap(line) or [""])


def plain_text(text: str) -> str:
    """A line of text with escapes for all that is a mark of Markdown or HTML."""
    return "".join(f"&#{ord(one)};" if one in "\\`*_{}[]<>()#+-.!|&~" else one for one in printable(text))
