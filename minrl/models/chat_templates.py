"""The chat template of a model: its own, or the one of --chat-template, and the tokens with which it ends an answer."""

from functools import cache
from pathlib import Path

from loguru import logger

from minrl.dataflow import CausalModel, UserError, require
from minrl.models.chat import ANSWERED, ChatTokenizer
from minrl.models.lora import base_of

TEXT = """{%- set text = message.content %}
{%- if text is not string %}{%- set text = text | map(attribute='text') | join %}{%- endif %}
"""
"""A message's text, which may come in parts."""

TEMPLATES = {
    "chatml": """{%- for message in messages %}
"""
    + TEXT
    + """{{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
    "plain": """{%- for message in messages %}
"""
    + TEXT
    + """{%- if message.role == 'user' %}{{- 'Question: ' + text | trim + '\\nAnswer:' }}
{%- elif message.role == 'assistant' %}{{- ' ' + text | trim + '\\n\\n' }}
{%- else %}{{- text | trim + '\\n\\n' }}{%- endif %}
{%- endfor %}
""",
}
"""The names that --chat-template takes. `plain` has no special tokens: an answer ends with the tokenizer's end token,
or where the model writes the next question.
"""


def set_chat_template(chat: ChatTokenizer, model: CausalModel, chosen: str, path: str) -> None:
    """Put the chosen template (empty: none) into the tokenizer, with which it is saved, and the token that ends its
    answers into the model's generation config, so that other programs stop there too. What is replaced is said.
    """
    saved = Path(path) / "chat_template.jinja"
    if base_of(path) is not None and saved.exists():  # adapters that were trained with a template
        chat.tokenizer.chat_template = saved.read_text(encoding="utf-8")
    if chosen:
        _replace(chat, chosen, path)
    if chat.closing.end is not None:
        _name_end(model, chat.closing.end)


def _replace(chat: ChatTokenizer, chosen: str, path: str) -> None:
    """Put a template into the tokenizer; refused if it cannot write a question and an answer."""
    name, text = _text_of(chosen)
    first = chat.tokenizer.bos_token_id
    if chosen in TEMPLATES and first is not None and chat.encode_prompt("z")[0] == first:
        text = "{{- bos_token }}" + text
    before, chat.tokenizer.chat_template = chat.tokenizer.chat_template, text
    try:
        chat.render(ANSWERED[:1])
        chat.render(ANSWERED, ask=False)
    except UserError as error:
        raise UserError(f"--chat-template {name}: {error}") from error
    if before and before != text:
        _say_once(f"--chat-template {name} replaces the chat template of {path}")


def _text_of(chosen: str) -> tuple[str, str]:
    """The name and the text of a chosen template: one of `TEMPLATES`, or a file."""
    if chosen in TEMPLATES:
        return chosen, TEMPLATES[chosen]
    try:
        text = Path(chosen).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the chat template {chosen}: {error}") from error
    require("{" in text, f"the chat template in {chosen} writes no message: it has no jinja in it")
    return chosen, text


def _name_end(model: CausalModel, end: int) -> None:
    """Add the end token of the template to those of the generation config."""
    named = model.generation_config.eos_token_id
    ends = named if isinstance(named, list) else [] if named is None else [named]
    if end not in ends:
        model.generation_config.eos_token_id = [*ends, end] if ends else end


@cache
def _say_once(line: str) -> None:
    """Say it once, though a run may load a model several times."""
    logger.warning(line)
