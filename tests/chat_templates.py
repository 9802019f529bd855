"""Tokenizers of the usual kinds, made small, and chat templates that write what those of well-known models write."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from minrl.models.chat_templates import TEMPLATES

CHATML = TEMPLATES["chatml"]
QUESTIONS, ANSWERS = ("What is 2 + 3?", "And twice that?", "And half of it?"), ("It is 5.", "That is 10.")
TEXT = [*QUESTIONS, *ANSWERS, "system user assistant model You are a helpful assistant. Question: Answer: [INST] z"]


@cache
def backend(kind: str) -> Tokenizer:
    """bytes: byte-level BPE, as Qwen's, GPT-2's, Llama 3's. The others have a token for each character and byte
    fallback, as SentencePiece's: first and always put a space in front of the text or of each of its parts (Mistral,
    Llama 2), never does not (Gemma).
    """
    if kind == "bytes":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet))
        return made
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *sorted({"\u2581", *"".join(TEXT)})]
    known = {word: index for index, word in enumerate(words)}
    made = Tokenizer(models.BPE(known, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    begun = [normalizers.Prepend("\u2581")] * (kind == "always")
    made.normalizer = normalizers.Sequence([*begun, normalizers.Replace(" ", "\u2581")])
    if kind == "first":
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    strip = [] if kind == "never" else [decoders.Strip(" ", 1, 0)]
    written = decoders.Replace("\u2581", " ")
    made.decoder = decoders.Sequence([written, decoders.ByteFallback(), decoders.Fuse(), *strip])
    return made


def tokenizer(
    kind: str, template: str | None = None, special: str = "", bos: str = "", eos: str = "</s>", adds_bos: bool = False
) -> PreTrainedTokenizerFast:
    """A tokenizer with these special tokens, separated by spaces; `adds_bos`: it puts `bos` in front of a text."""
    own = Tokenizer.from_str(backend(kind).to_str())
    names = dict.fromkeys([*filter(None, (bos, eos)), *special.split()])
    own.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    if adds_bos:
        own.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, own.token_to_id(bos))])
    return PreTrainedTokenizerFast(
        tokenizer_object=own,
        bos_token=bos or None,
        eos_token=eos,
        unk_token=None if kind == "bytes" else "<unk>",
        extra_special_tokens=special.split(),
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


QWEN3 = """{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' %}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1] if '</think>' in content else '' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.last %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
"""Thoughts of the last answer alone, an empty thought where thinking is off."""

QWEN3_THINKING = QWEN3.replace("assistant\\n' }}\n    {%- if enable", "assistant\\n<think>\\n' }}\n    {%- if enable")
"""The thought is begun in the generation prompt, and kept in the last answer."""

LLAMA2 = """{% for message in messages %}
{%- if message.role == 'user' %}{{- bos_token + '[INST] ' + message.content + ' [/INST]' }}
{%- else %}{{- ' ' + message.content + ' ' + eos_token }}{%- endif %}
{%- endfor %}"""
"""A space before the end token, and no generation prompt."""

GEMMA = """{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('Roles alternate') }}{% endif %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<start_of_turn>' + role + '\\n' + message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

R1 = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<|User|>' + message.content }}
    {%- elif message.role == 'assistant' %}
        {{- '<|Assistant|>' + message.content.split('</think>')[-1] + '<|end_of_sentence|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|><think>\\n' }}{%- endif %}"""
"""The thought is begun in the generation prompt, and dropped from every answer."""

DEFAULT = "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}{%- endif %}"
QWEN25 = DEFAULT + CHATML
"""A default system message."""

QWEN_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Tools in the system's turn, their results in the user's (Qwen 2.5 and 3)."""

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' and tools and loop.first %}
        {{- '<|start_header_id|>user<|end_header_id|>\\n\\nGiven the following functions:\\n' }}
        {%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n' }}{%- endfor %}
        {{- message.content | trim + '<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
"""Tools in the first message of the user, their results as `ipython` (Llama 3.1)."""

MISTRAL = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id | length != 9 %}{{- raise_exception('IDs must have length 9!') }}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content + ', "call_id": "' + message.tool_call_id }}
        {{- '"}[/TOOL_RESULTS]' }}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content | trim + eos_token }}
    {%- else %}{{- raise_exception('Only user and assistant roles are supported!') }}{%- endif %}
{%- endfor %}"""
"""Version 3: no space before [/INST], ids of calls, and no system message."""

HARMONY = """{{- '<|start|>system<|message|>You are a helpful assistant.<|end|>' }}
{%- set called = namespace(name=none) %}
{%- if tools %}
    {{- '<|start|>developer<|message|>namespace functions {\\n' }}
    {%- for tool in tools %}{{- 'type ' + tool.function.name + ' = (_: {\\n' }}
        {%- for name, given in tool.function.parameters.properties.items() %}{{- name + ': ' + given.type + ',\\n' }}
        {%- endfor %}{{- '}) => any;\\n' }}{%- endfor %}
    {{- '}<|end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
    {%- elif message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}{%- set called.name = call.name %}
        {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
        {{- call.arguments | tojson + '<|call|>' }}
    {%- elif message.role == 'tool' %}
        {%- if called.name is none %}{{- raise_exception('no call before the message') }}{%- endif %}
        {{- '<|start|>functions.' + called.name + ' to=assistant<|channel|>commentary<|message|>' }}
        {{- message.content | tojson + '<|end|>' }}
    {%- else %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}
        {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""
"""Channels, another token at the end of the last answer than of those before, results behind a call alone (gpt-oss)."""
