"""Writes docs/architectures.md: which architectures train, and how, from what the tests found (docs/models.json).

    python docs/architectures.py

`tests/test_models.py` compares the table with what each architecture does, and the page with the table.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE, TABLE, VLLM = (Path(__file__).with_name(name) for name in ("architectures.md", "models.json", "models_vllm.json"))

Row = Mapping[str, Any]


def page() -> str:
    """The whole page."""
    table = json.loads(TABLE.read_text())
    vllm = json.loads(VLLM.read_text()) if VLLM.exists() else {}
    rows: dict[str, Row] = table["architectures"]
    outcomes = Counter(row["outcome"] for row in rows.values())
    right = {name: row for name, row in rows.items() if row["outcome"] == "right"}
    return TEXT.format(
        version=table["transformers"],
        architectures=len(rows) - sum("," in name for name in rows),
        settings=sum("," in name for name in rows),
        right=outcomes["right"],
        packed=sum(row["how"] == "packed" for row in right.values()),
        rows=sum(row["how"] == "rows" for row in right.values()),
        refused=outcomes["refused"],
        not_made=outcomes["not made"],
        works="\n".join(_works(right, vllm)),
        vllm="vLLM: on a CPU, by [its own comparison](vllm.md); empty where it was not tried.\n" if vllm else "",
        refusals="\n".join(_reasons(rows, "refused")),
        others="\n".join(_reasons(rows, "not made")),
    )


def _works(rows: Mapping[str, Row], vllm: Mapping[str, Any]) -> Iterator[str]:
    titles = ["architecture", "update", "embedded engine", "LoRA", *(["vLLM"] if vllm else [])]
    yield from (_row(*titles), _row(*["---"] * len(titles)))
    for name, row in rows.items():
        cells = [f"`{name}`", row["how"], row["decoder"], row["lora"], str(vllm.get(name, "")).partition(":")[0]]
        yield _row(*cells[: len(titles)])


def _reasons(rows: Mapping[str, Row], outcome: str) -> Iterator[str]:
    """A reason in each row, with all that it holds for."""
    names: dict[str, list[str]] = {}
    for name, row in rows.items():
        if row["outcome"] == outcome:
            names.setdefault(row["reason"], []).append(f"`{name}`")
    yield from (_row("architectures", "reason"), _row("---", "---"))
    for reason, found in sorted(names.items(), key=lambda item: -len(item[1])):
        yield _row(", ".join(found), reason.replace("|", "\\|"))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


TEXT = """# Architectures

Which architectures of transformers {version} train, and how. Of the {architectures} that transformers lists with a
causal language model head, multimodal ones included, all but {not_made} are made small with random weights, some of
them with further settings too ({settings}). What MinRL computes is compared with plain transformers (one sequence at
a time, eager attention, all logits, in float32): the log-probabilities and gradients of an update, and the
log-probabilities with which the embedded engine samples. They agree to 1e-4 nats and 1e-4 of a gradient's largest
element, or the model is refused. This page is written by `python docs/architectures.py`.

- right: {right}, {packed} of them with packed updates and {rows} with padded rows
- refused on load: {refused}
- not tried: {not_made}

## What trains

Update: `packed` computes a prompt once for all its completions, and nothing for padding; `rows` computes each
completion behind its own copy of the prompt, padded to the longest, which takes longer. Embedded engine:
`own` is MinRL's decoder, for Llama, Mistral, Qwen2 and Qwen3 without sliding windows; `cached` is transformers'
forward pass with its cache, which takes 1.2 to 2 times as long; `recomputed` uses no cache and takes much
longer. LoRA: adapters on every
linear layer, saved and merged, give what plain transformers gives with the merged weights. Of an encoder with
a decoder, such as BART, the decoder alone was tried.
{vllm}
{works}

## What is refused

`some` stands for a number.

{refusals}

## What was not tried

{others}

## Another version of transformers

`python -m tests.zoo_check --write` checks every architecture again and keeps what it finds; the tests check one of each
kind. Then `python docs/architectures.py` writes this page.
"""


if __name__ == "__main__":
    PAGE.write_text(page())
