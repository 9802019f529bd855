"""The chat template of a model: its own, or the one of --chat-template, and the tokens with which it ends an answer."""

from functools import cache
from pathlib import Path

from loguru import logger

from minrl.config import FROM_FILE
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
    "llama3": """{%- for message in messages %}
"""
    + TEXT
    + """{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + text | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
""",
    "gemma": """{%- set before = namespace(text='') %}
{%- for message in messages %}
"""
    + TEXT
    + """{%- if message.role == 'system' %}{%- set before.text = text | trim + '\\n\\n' %}
{%- else %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- before.text + text | trim + '<end_of_turn>\\n' }}
{%- set before.text = '' %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
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

BOS = "{{- bos_token }}"


def settle_template(chat: ChatTokenizer, model: CausalModel, chosen: str, path: str) -> None:
    """Put the chosen template (empty: none) into the tokenizer, with which it is saved, and the token that ends its
    answers into the model's generation config, so that other programs stop there too. What is replaced is said.
    """
    saved = Path(path) / "chat_template.jinja"
    if base_of(path) is not None and saved.exists():  # adapters that were trained with a template
        chat.tokenizer.chat_template = saved.read_text(encoding="utf-8")
    if chosen:
        _replace(chat, chosen, path)
    if chat.frame.end is not None:
        _name_end(model, chat.frame.end)
    elif chat.frame.stop:
        _check_stop(chat, path)


def _replace(chat: ChatTokenizer, chosen: str, path: str) -> None:
    """Put a template into the tokenizer; refused if it cannot write a question and an answer."""
    name, text = _text_of(chosen)
    first = chat.first_of_text
    if chosen in TEMPLATES and first is not None:
        text = BOS + text
    before, chat.tokenizer.chat_template = chat.tokenizer.chat_template, text
    try:
        chat.render(ANSWERED[:1])
        chat.render(ANSWERED, ask=False)
    except UserError as error:
        raise UserError(f"--chat-template {name}: {error}") from error
    if before and before != text:
        _say_once(f"--chat-template {name} replaces the chat template of {path}")
    if first is not None and chat.encode_first_turn(list(ANSWERED[:1]))[:1] != [first]:
        _say_once(
            f"--chat-template {name} does not write {chat.decode_all([first])}, with which the tokenizer of {path} "
            f"begins every text: chats begin without it; begin the template with {BOS} if the model expects it"
        )


def _text_of(chosen: str) -> tuple[str, str]:
    """The name and the text of a chosen template, which the config has read from its file."""
    if chosen in TEMPLATES:
        return chosen, TEMPLATES[chosen]
    found = FROM_FILE.match(chosen)
    assert found is not None, "the config reads the files"
    return found[1], chosen[found.end() :]


def _name_end(model: CausalModel, end: int) -> None:
    """Add the end token of the template to those of the generation config."""
    named = model.generation_config.eos_token_id
    ends = named if isinstance(named, list) else [] if named is None else [named]
    if end not in ends:
        model.generation_config.eos_token_id = [*ends, end] if ends else end


def _check_stop(chat: ChatTokenizer, path: str) -> None:
    """Say that a text, and no token, ends an answer; refuse it if the tokenizer cannot write it."""
    stop = chat.frame.stop
    ids = chat.encode_text(stop)
    require(
        chat.decode_all(ids).strip() == stop.strip(),
        f"the chat template of {path} ends an answer with {stop!r}, which its tokenizer cannot write: choose another "
        "with --chat-template",
    )
    _say_once(
        f"the chat template of {path} ends an answer with {stop!r}, which is {len(ids)} tokens and none of its own: "
        "completions end where this text is sampled, which the end token of the tokenizer does too"
    )


@cache
def _say_once(line: str) -> None:
    """Say it once, though a run may load a model several times."""
    logger.warning(line)
