"""Prompts, turns and answers as each kind of tokenizer and chat template writes them, and templates by flag."""

import codecs
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig

from minrl.config import CHAT_TEMPLATES, FROM, ModelConfig, TrainerConfig
from minrl.models import templates
from minrl.models.chat import ANSWER, CHAT_TEMPLATE, ChatTokenizer, as_rollout
from minrl.models.loading import save_model, small_qwen3
from minrl.models.templates import TEMPLATES, settle_template
from minrl.rollout import Plan, rollout
from minrl.run.checkpoint import save_policy
from minrl.run.setup import load_policy
from minrl.types import UserError
from minrl.utils.cli import from_dict, to_dict
from tests import chat_templates as known
from tests.chat_templates import ANSWERS, QUESTIONS, tokenizer

CHATML = "<|im_start|> <|im_end|>"
INST = "[INST] [/INST]"
LLAMA3 = "<|start_header_id|> <|end_header_id|> <|eot_id|>"
TURNS = "<start_of_turn> <end_of_turn>"
HARMONY = "<|start|> <|end|> <|message|> <|channel|>"

MODELS = {
    # name: kind of tokenizer, template, its other special tokens, bos, eos, whether bos is put in front of a text
    "qwen2.5": ("bytes", known.QWEN25, CHATML, "", "<|im_end|>", False),
    "qwen2.5 base": ("bytes", known.QWEN25, CHATML, "", "<|endoftext|>", False),
    "qwen3": ("bytes", known.QWEN3, CHATML, "", "<|im_end|>", False),
    "llama 2": ("always", known.LLAMA2, "", "<s>", "</s>", True),
    "llama 2 first": ("first", known.LLAMA2, "", "<s>", "</s>", True),
    "llama 2 unigram": ("unigram", known.LLAMA2, "", "<s>", "</s>", True),
    "llama 2 bytes": ("bytes", known.LLAMA2, "", "<s>", "</s>", False),
    "mistral 3": ("first", known.MISTRAL, INST, "<s>", "</s>", True),
    "mistral 7": ("bytes", known.MISTRAL7, INST, "<s>", "</s>", True),
    "gemma": ("never", known.GEMMA, TURNS, "<bos>", "<eos>", True),
    "llama 3": ("bytes", known.LLAMA3, LLAMA3, "<|begin_of_text|>", "<|end_of_text|>", True),
    "r1": ("bytes", known.R1, "<|User|> <|Assistant|>", "<|begin|>", "<|end_of_sentence|>", True),
    "gpt-oss": ("bytes", known.HARMONY, HARMONY, "", "<|return|>", False),
    "phi 3": ("always", known.PHI3, "<|user|> <|assistant|> <|end|>", "<s>", "<|endoftext|>", False),
    "glm": ("bytes", known.GLM, "[gMASK] <sop> <|user|> <|assistant|>", "", "<|endoftext|>", False),
    "chatml in pieces": ("bytes", known.QWEN25, "", "", "</s>", False),
    "chatml in sentencepieces": ("always", known.QWEN25, "", "<s>", "</s>", False),
    "chatml on sentencepieces": ("first", known.QWEN25, CHATML, "<s>", "</s>", True),
}
ENDS = {
    **{"qwen2.5": "<|im_end|>", "qwen2.5 base": "<|im_end|>", "qwen3": "<|im_end|>", "gemma": "<end_of_turn>"},
    **{"llama 3": "<|eot_id|>", "r1": "<|end_of_sentence|>", "gpt-oss": "<|return|>", "phi 3": "<|end|>"},
    **{"glm": "<|user|>", "chatml in pieces": None, "chatml in sentencepieces": None},
    "chatml on sentencepieces": "<|im_end|>",
}
"""The token that ends the last answer; for the others `</s>`."""

DIFFERING = {
    "qwen3": ("<think>\nLet ", "It is 5."),
    "r1": ("<think>\nLet ", "\n\nIt is 5."),
    "gpt-oss": ("<|return|>", "<|end|>"),
}
"""How appended turns go on where the template first writes something else, and how that does."""

QUESTION = [{"role": "user", "content": QUESTIONS[0]}]
SYSTEM = [{"role": "system", "content": "Be brief."}]
TEXT, IMAGE = {"type": "text", "text": "x"}, {"type": "image", "url": "x.png"}
FURTHER = [{"role": "user", "content": QUESTIONS[1]}]


def chat_of(name, **options):
    kind, template, special, bos, eos, adds_bos = MODELS[name]
    return ChatTokenizer(
        tokenizer=tokenizer(kind, template, special, bos, eos, adds_bos), chat_template_options=options
    )


def ids_of(chat, text):
    return chat.tokenizer(text, add_special_tokens=False)["input_ids"]


def conversation(*texts):
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def test_messages_are_encoded_as_transformers_does_with_one_token_in_front(name):
    chat, (*_, bos, _, _) = chat_of(name), MODELS[name]
    ids = chat.encode_prompt(QUESTION)
    own = chat.tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ids == own
    if bos and "bos_token" in MODELS[name][1]:
        assert ids.count(chat.tokenizer.bos_token_id) == 1 and ids[0] == chat.tokenizer.bos_token_id


def test_a_text_has_the_tokenizers_first_token_once_and_no_end(name):
    chat, (*_, bos, _, adds_bos) = chat_of(name), MODELS[name]
    first = [chat.tokenizer.bos_token_id] * adds_bos
    assert chat.encode_prompt("It is 5.") == first + ids_of(chat, "It is 5.")
    if bos:  # a text that was rendered by a template has it already
        assert chat.encode_prompt(f"{bos}It is 5.") == ids_of(chat, f"{bos}It is 5.")


def test_an_end_token_that_the_tokenizer_adds_is_not_put_behind_a_prompt():
    chat = chat_of("qwen2.5")
    end = chat.tokenizer.eos_token_id
    adding = TemplateProcessing(single="$A <|im_end|>", special_tokens=[("<|im_end|>", end)])
    chat.tokenizer.backend_tokenizer.post_processor = adding
    assert chat.tokenizer("5")["input_ids"] == [*ids_of(chat, "5"), end]
    assert chat.encode_prompt("5") == ids_of(chat, "5")


def difference(chat):
    """How an episode of appended turns goes on where it first differs from the template's rendering, and how that does;
    nothing if it does not. The answers are as the template writes them, with thoughts where it has them."""
    shown, template = chat.frame.shown, str(chat.tokenizer.chat_template)
    thinks = shown.rstrip().endswith("<think>") or ("</think>" in template and not shown.rstrip().endswith("</think>"))
    messages = conversation(QUESTIONS[0])
    ids = chat.encode_prompt(messages)
    for question, answer in zip(QUESTIONS[1:], ANSWERS, strict=True):
        said, further = "<think>\nLet me see.\n</think>\n\n" * thinks + answer, {"role": "user", "content": question}
        end = [chat.frame.end] if chat.frame.end is not None else chat.encode_text(chat.frame.space + chat.frame.stop)
        completion = chat.encode_answer(said, chat=True) + end
        ids += completion + chat.encode_next_turn([further], completion)
        messages += [{"role": "assistant", "content": said}, further]
    whole = ids_of(chat, chat.render(messages))
    place = next((n for n in range(len(ids)) if ids[: n + 1] != whole[: n + 1]), None)
    return () if ids == whole else (chat.decode_all(ids[place:]), chat.decode_all(whole[place:]))


def test_an_episode_of_three_turns_is_what_the_template_writes_or_differs_as_is_known(name):
    found, known_ones = difference(chat_of(name)), DIFFERING.get(name, ())
    assert len(found) == len(known_ones)
    assert all(text.startswith(begun) for text, begun in zip(found, known_ones, strict=True))


def test_the_template_says_which_token_ends_an_answer(name):
    chat, end = chat_of(name), ENDS.get(name, "</s>")
    assert [chat.decode_all([id]) for id in chat.template_ends] == ([end] if end else [])
    assert chat.stop_strings == (() if end else ("<|im_end|>",))


def test_what_follows_an_answer_depends_on_how_it_ended(name):
    chat = chat_of(name)
    answer = chat.encode_answer(ANSWERS[0], chat=True)
    rendered = chat.render(conversation(QUESTIONS[0], ANSWERS[0], QUESTIONS[1]))
    following = rendered.rpartition(ANSWERS[0])[2]  # its end, the next question, the generation prompt
    cut = chat.encode_next_turn(FURTHER, answer[:-1])
    assert chat.decode_all(cut).strip() == chat.decode_all(ids_of(chat, following)).strip()
    end = next((i for i, id in enumerate(cut) if id in chat.tokenizer.all_special_ids), None)
    if chat.frame.end is not None:  # by the end token, or by the one that the template writes in the history
        assert chat.encode_next_turn(FURTHER, [*answer, chat.frame.end]) == cut[end + 1 :]
        assert chat.encode_next_turn(FURTHER, [*answer, cut[end]]) == cut[end + 1 :]
        assert chat.frame.end not in cut[end + 1 :][:2] or name == "glm"
    else:
        stopped = [*answer, *chat.encode_text("<|im_end|>")]
        assert chat.decode_all(chat.encode_next_turn(FURTHER, stopped)) == following.removeprefix("<|im_end|>")
        stopped += ids_of(chat, "\n")[-1:]  # sampled with the last piece of the text
        assert chat.decode_all(chat.encode_next_turn(FURTHER, stopped)) == following.removeprefix("<|im_end|>\n")
        assert chat.decode(stopped) == chat.decode(answer)
    other = chat.tokenizer.convert_tokens_to_ids("\u0120" if MODELS[name][0] == "bytes" else "\u2581")
    for ended in ([*answer, other], answer, []):  # another stop token, a stop string, nothing at all
        assert chat.encode_next_turn(FURTHER, ended) == cut


def test_thinking_off_is_an_empty_thought_in_the_prompt_that_the_history_lacks():
    chat = chat_of("qwen3", enable_thinking=False)
    assert chat.decode_all(chat.encode_prompt(QUESTION)).endswith("assistant\n<think>\n\n</think>\n\n")
    assert chat.encode_answer("It is 5.", chat=True) == ids_of(chat, "It is 5.")
    assert [text.split()[0] for text in difference(chat)] == ["<think>", "It"]


def test_an_answer_with_thoughts_is_encoded_as_the_template_arranges_it():
    chat = chat_of("qwen3")
    assert chat.decode_all(chat.encode_answer("It is 5.", chat=True)) == "<think>\n\n</think>\n\nIt is 5."
    own = "<think>\nhm\n</think>\n\nIt is 5."
    assert chat.decode_all(chat.encode_answer(own, chat=True)) == own
    dropped = chat_of("r1")  # its template leaves out the thoughts of every answer
    assert dropped.decode_all(dropped.encode_answer("hm</think>5", chat=True)) == "hm</think>5"


@pytest.mark.parametrize("kind", ["bytes", "always", "first", "unigram", "never"])
def test_a_text_that_goes_on_has_no_space_in_front(kind):
    chat = ChatTokenizer(tokenizer=tokenizer(kind, bos="<s>", adds_bos=True), chat_template_options={})
    for text in ("And half", " And half", "\nAnd half", ""):
        ids = chat.encode_next_turn(text, [7])
        assert chat.decode_all(ids_of(chat, "5.") + ids) == f"5.{text}"
        assert as_rollout(chat, "x", [("5.", text)], 9).ids == [*chat.encode_prompt("5."), *ids, 9]


def test_an_answer_is_encoded_as_it_stands_behind_its_prompt():
    # <|im_start|>assistant\n ends in a text, so that no space precedes the answer.
    chat = chat_of("chatml on sentencepieces")
    pieces = chat.tokenizer.convert_ids_to_tokens(chat.encode_answer("And half", chat=True))
    assert "".join(pieces) == "And\u2581half"
    rollout = as_rollout(chat, "x", [(QUESTION, "And half"), (FURTHER, "again.")], chat.frame.end)
    whole = chat.render(conversation(QUESTIONS[0], "And half", QUESTIONS[1], "again."), ask=False)
    assert rollout.ids == ids_of(chat, whole)[: len(rollout.ids)]
    assert chat.decode_all(ids_of(chat, whole)[len(rollout.ids) :]).strip() == ""


@pytest.mark.parametrize(
    ("model", "messages", "message"),
    [
        ("gemma", [*SYSTEM, *QUESTION], "of system, user: System role not supported; change the task's messages"),
        ("gemma", QUESTION * 2, "of user, user: Conversation roles must alternate"),
        ("mistral 3", SYSTEM, "of system: Only user and assistant roles are supported!"),
        ("qwen2.5", [{"role": "user", "content": [TEXT]}], "of user: can only concatenate str"),
        (
            "qwen2.5",
            [{"role": "user", "content": [TEXT, IMAGE]}],
            "a message of the user holds image: models are trained on text alone; give its content as a text",
        ),
        ("qwen2.5", [{"role": "user", "content": ["x.png"]}], "holds str:"),
        ("qwen2.5", [{"role": "user", "content": [{"type": "image", "image": object()}]}], "holds image:"),
        ("qwen2.5", [{"role": "user", "content": 5}], "holds int:"),
    ],
)
def test_a_conversation_that_the_template_does_not_take_is_refused_in_one_line(model, messages, message):
    for ask in (lambda chat: chat.encode_prompt(messages), lambda chat: chat.fits(messages, 100)):
        with pytest.raises(UserError, match=re.escape(message)) as refused:
            ask(chat_of(model))
        assert "\n" not in str(refused.value)


def test_a_further_turn_that_the_template_does_not_take_is_refused():
    with pytest.raises(UserError, match="of user, assistant, system: Only user and assistant roles"):
        chat_of("mistral 3").encode_next_turn(SYSTEM, [7])
    chat = chat_of("qwen2.5")
    chat.tokenizer.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(UserError, match="leaves out what the user says in a conversation of user, assistant, user"):
        chat.encode_next_turn(FURTHER, [7])


def told(*roles):
    return [{"role": role, "content": f"said {place}"} for place, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("template", "roles", "left_out"),
    [
        (known.R1, ("system", "user"), "system"),  # as the first Phi-3's
        (
            known.GLM.replace("messages %}", "messages if message.role != 'developer' %}"),
            ("developer", "user"),
            "developer",
        ),
        (known.R1, ("user", "assistant", "tool"), "tool"),
        (
            known.MISTRAL7.replace("message['content'] + eos_token", "eos_token"),
            ("user", "assistant", "user"),
            "assistant",
        ),
        ("{{ messages[-1].content }}", ("user", "assistant", "user"), "user"),
    ],
)
def test_a_template_that_leaves_out_a_message_is_refused_in_one_line(template, roles, left_out):
    chat = chat_with(template)
    message = f"leaves out what the {left_out} says in a conversation of {', '.join(roles)}: change the task's messages"
    for ask in (chat.encode_prompt, lambda messages: chat.fits(messages, 100)):
        with pytest.raises(UserError, match=re.escape(message)) as refused:
            ask(told(*roles))
        assert "\n" not in str(refused.value)


def test_every_message_that_a_template_writes_is_taken_in_parts_and_without_text_too():
    chat = chat_with(TEMPLATES["gemma"], "gemma")  # which puts the system's in front of the user's
    assert "said 0\n\nsaid 1" in chat.decode_all(chat.encode_prompt(told("system", "user")))
    chat = chat_with(TEMPLATES["chatml"], "qwen2.5")
    assert chat.encode_prompt([*told("system", "user"), {"role": "assistant", "content": ""}, *told("user")])
    assert chat_with(CHAT_TEMPLATE).render(told("system", "user")) == "<user> said 1 <assistant>"  # as it is meant


def test_a_prompt_that_ends_with_an_answer_is_continued_as_transformers_does(name):
    chat, messages = chat_of(name), [*QUESTION, {"role": "assistant", "content": "It is"}]
    ids = chat.encode_prompt(messages)
    if name != "r1":  # whose prompt opens a thought
        text = chat.tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
        assert chat.decode_all(ids) == chat.decode_all(ids_of(chat, text))
    assert ids == ids_of(chat, chat.render(messages)) and chat.decode_all(ids).endswith("It is")
    end = chat.tokenizer.eos_token_id
    assert as_rollout(chat, "x", [(messages, " 5.")], end).ids == [*ids, *chat.encode_text(" 5."), end]


def test_a_thought_that_a_prompt_begins_is_continued():
    for name in ("qwen3", "r1"):  # the prompt of the latter opens it
        ids = chat_of(name).encode_prompt([*QUESTION, {"role": "assistant", "content": "<think>\nhm"}])
        assert re.search(r"ssistant(\|>|\n)<think>\nhm$", chat_of(name).decode_all(ids))


def test_parts_of_text_are_joined_as_the_template_does():
    chat = chat_of("qwen2.5")
    chat.tokenizer.chat_template = TEMPLATES["chatml"]
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " 2?"}]
    prompt = chat.encode_prompt([{"role": "user", "content": parts}])
    assert prompt == chat.encode_prompt([{"role": "user", "content": "What is 2?"}])


SPECIAL = {"chatml": CHATML, "llama3": LLAMA3, "gemma": TURNS, "plain": ""}
END = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "gemma": "<end_of_turn>", "plain": "\nQuestion:"}


@pytest.fixture
def model():
    return SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=1))


@pytest.fixture(autouse=True)
def said_before():
    templates._say_once.cache_clear()


def settled(model, chosen, kind="bytes", template=None, special="", bos="<s>", adds_bos=True):
    chat = ChatTokenizer(tokenizer=tokenizer(kind, template, special, bos, adds_bos=adds_bos), chat_template_options={})
    settle_template(chat, model, chosen, "mine")
    return chat


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("kind", ["bytes", "always", "never"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_by_name_is_round_with_one_token_in_front_and_a_token_at_the_end(
    template, kind, adds_bos, model, said
):
    chat = settled(model, template, kind, special=SPECIAL[template], adds_bos=adds_bos)
    ids = chat.encode_prompt(QUESTION)
    assert ids.count(chat.tokenizer.bos_token_id) == adds_bos == (ids[0] == chat.tokenizer.bos_token_id)
    assert difference(chat) == ()
    if SPECIAL[template]:
        assert chat.template_ends == {chat.tokenizer.convert_tokens_to_ids(END[template])}
        assert model.generation_config.eos_token_id == [1, *chat.template_ends]  # for other programs
        assert said == []
    else:
        assert (chat.stop_strings, model.generation_config.eos_token_id) == ((END[template],), 1)


@pytest.mark.parametrize("template", TEMPLATES)
def test_an_end_that_is_no_token_of_the_tokenizer_is_a_stop_string_and_that_is_said(template, model, said):
    chat = settled(model, template)
    assert (chat.stop_strings, chat.template_ends) == ((END[template],), frozenset())
    assert model.generation_config.eos_token_id == 1 and difference(chat) == ()
    (line,) = said
    tokens = len(ids_of(chat, END[template]))
    assert f"the chat template of mine ends an answer with {END[template]!r}, which is {tokens} tokens" in line


def test_an_end_that_the_tokenizer_cannot_write_is_refused(policy, model):
    with pytest.raises(
        UserError, match=re.escape("ends an answer with '<|im_end|>', which its tokenizer cannot write")
    ):
        settle_template(policy, model, "chatml", "mine")


def test_what_is_replaced_is_said_once(model, said):
    for _ in range(2):
        chat = settled(model, "chatml", template=known.GEMMA, special=CHATML)
    assert said == ["--chat-template chatml replaces the chat template of mine\n"]
    before = chat.tokenizer.chat_template
    settle_template(chat, model, "chatml", "its checkpoint")  # which has it already
    assert chat.tokenizer.chat_template == before and len(said) == 1


def test_a_model_keeps_its_own_template_and_learns_where_it_ends(model):
    chat = chat_of("qwen2.5 base")
    settle_template(chat, model, "", "mine")
    assert chat.tokenizer.chat_template == known.QWEN25
    (end,) = ids_of(chat, "<|im_end|>")
    assert model.generation_config.eos_token_id == [1, end]
    settle_template(chat, model, "", "mine")
    assert model.generation_config.eos_token_id == [1, end]
    model.generation_config.eos_token_id = None
    settle_template(chat, model, "", "mine")
    assert model.generation_config.eos_token_id == end


def test_adapters_keep_the_template_that_they_were_trained_with(model, tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    (tmp_path / "chat_template.jinja").write_text(known.QWEN25)
    chat = ChatTokenizer(tokenizer=tokenizer("bytes", known.GEMMA, CHATML), chat_template_options={})
    settle_template(chat, model, "", str(tmp_path))  # its tokenizer is the base model's
    assert chat.tokenizer.chat_template == known.QWEN25


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.jinja"
    path.write_text(known.MISTRAL7)
    return path


def test_a_template_of_a_file_is_kept_as_it_was(file, model, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = ModelConfig(chat_template=file.name).chat_template
    assert chosen == f"{FROM}{file} #}}\n{known.MISTRAL7}"
    assert ModelConfig(chat_template=chosen).chat_template == chosen  # from config.json
    assert ModelConfig(chat_template=chosen).template_name.startswith(f"{file} (sha256 ")
    assert settled(model, chosen, special=INST).tokenizer.chat_template == known.MISTRAL7
    assert said == []
    file.write_text(known.MISTRAL)
    assert settled(model, chosen, special=INST).tokenizer.chat_template == known.MISTRAL7
    assert said == [f"--chat-template {file} was edited or removed since: the template as it was then is used\n"]
    assert ModelConfig(chat_template=str(file)).template_name != ModelConfig(chat_template=chosen).template_name


def test_the_mark_with_which_windows_begins_a_file_is_no_part_of_a_template(file, model, said):
    file.write_bytes(codecs.BOM_UTF8 + known.MISTRAL7.encode())
    chosen = ModelConfig(chat_template=str(file)).chat_template
    assert settled(model, chosen, special=INST).tokenizer.chat_template == known.MISTRAL7
    assert said == []


def test_a_template_without_the_first_token_of_a_text_is_said(file, model, said):
    file.write_text(known.QWEN25)
    settled(model, ModelConfig(chat_template=str(file)).chat_template, special=CHATML)
    (line,) = said
    assert f"--chat-template {file} does not write <s>, with which the tokenizer of mine begins every text" in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% for m in messages %}{{ m.content }}", "does not take a conversation of user: Unexpected end of template"),
        ("{{ missing.content }}", "does not take a conversation of user: 'missing' is undefined"),
        ("{{ 'hello' }}", "leaves out what the user says in a conversation of user"),
        ("{{ messages[0].content }}", "leaves out what the assistant says in a conversation of user, assistant"),
    ],
)
def test_a_broken_template_is_refused_in_one_line(file, model, text, message):
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        settled(model, ModelConfig(chat_template=str(file)).chat_template)
    assert str(refused.value).startswith(f"--chat-template {file}") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "content", "message"),
    [
        ("chatlm", None, "one of chatml, llama3, gemma, plain, got 'chatlm': No such file or directory: did you mean"),
        ("x.jinja", None, "got 'x.jinja': No such file or directory"),
        (".", None, "got '.': Is a directory"),
        ("x.jinja", b"\xff{{", "it is not UTF-8"),
        ("x.jinja", b"hello", "the chat template in x.jinja writes no message"),
        ("{# from x", None, "got '{# from x': No such file or directory"),
    ],
)
def test_a_template_that_is_not_there_is_refused_with_the_names_that_are(
    given, content, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / given).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)):
        ModelConfig(chat_template=given)


def test_the_names_of_the_flag_are_the_templates():
    assert tuple(TEMPLATES) == CHAT_TEMPLATES


def test_the_own_base_model_keeps_its_template():
    with pytest.raises(UserError, match="chat_template is for a --model-id"):
        TrainerConfig(model=ModelConfig(chat_template="chatml"))


def test_a_template_is_saved_with_the_model_and_config_json_keeps_its_text(tmp_path, file, processes, said):
    own = tokenizer("bytes", special=CHATML, eos="<|endoftext|>")
    save_model(small_qwen3(own, 64, 2, 2, 0), own, tmp_path / "base")
    (end,) = own("<|im_end|>")["input_ids"]
    file.write_text(known.QWEN25)
    config = TrainerConfig(model=ModelConfig(model_id="base", chat_template=str(file), device="cpu", threads=1))
    policy = load_policy(str(tmp_path / "base"), config.model, processes)
    assert policy.stop_ids == {end, own.eos_token_id}
    save_policy(policy, tmp_path / "saved")
    file.unlink()
    assert from_dict(json.loads(json.dumps(to_dict(config, {}))), TrainerConfig)[0] == config  # a resumed run's
    again = load_policy(str(tmp_path / "saved"), replace(config.model, chat_template=""), processes)
    assert again.tokenizer.chat_template == known.QWEN25  # for evaluate.py, vLLM and other programs
    assert GenerationConfig.from_pretrained(tmp_path / "saved").eos_token_id == [own.eos_token_id, end]
    assert again.stop_ids == policy.stop_ids
    resumed = load_policy(str(tmp_path / "saved"), config.model, processes)
    assert resumed.tokenizer.chat_template == known.QWEN25
    assert ["edited or removed" in line for line in said] == [True]


def test_the_text_that_ends_an_answer_stops_the_engine(policy, engine, workers, sevens, monkeypatch):
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace(
        "<end>", "7"
    )  # no token of the tokenizer's own
    asked, generate = [], engine.generate
    monkeypatch.setattr(
        engine,
        "generate",
        lambda requests, sampling, **named: asked.append(sampling) or generate(requests, sampling, **named),
    )
    plan = Plan(8, 8, 1.0, 0, "test", 0, stop_strings=("5",))
    played = rollout(policy, engine, workers, sevens, sevens.dataset.train[:2], plan).rollouts
    assert asked[0].stop_strings == ("5", "7")
    (seven,) = policy.tokenizer("7")["input_ids"]
    for one in played:
        sampled = one.ids[one.prompt_length :]
        assert seven not in sampled[:-1] and not one.text.endswith("7")
    assert any(one.ids[-1] == seven for one in played)


def test_a_text_ends_an_answer_though_a_token_follows_it():
    template = known.QWEN25.replace("'<|im_end|>' + '\\n'", "'<|im_end|>' + eos_token")
    chat = ChatTokenizer(tokenizer=tokenizer("bytes", template), chat_template_options={})
    assert (chat.frame.end, chat.frame.stop) == (None, "<|im_end|>")


def test_thoughts_that_the_template_drops_from_an_answer_are_encoded_all_the_same():
    chat = chat_of("r1")
    chat.tokenizer.chat_template = known.R1.replace("<think>\\n", "")
    assert chat.decode_all(chat.encode_answer("<think>hm</think>5", chat=True)) == "<think>hm</think>5"


def chat_with(template, name="qwen3"):
    chat = chat_of(name)
    chat.tokenizer.chat_template = template
    return chat


THOUGHTS = ["<think>\nhm\n</think>\n\nIt is 5.", "<think>\nhm\n</think>\nIt is 5.\n", "<think>hm</think>It is 5."]


@pytest.mark.parametrize("text", THOUGHTS)
@pytest.mark.parametrize(
    ("name", "template"), [("qwen3", known.QWEN3), ("qwen3", known.QWEN3_THINKING), ("r1", known.R1)]
)
def test_a_response_with_a_thought_is_shown_with_that_thought_alone(name, template, text, said):
    chat = chat_with(template, name)
    whole = chat.decode_all(chat.encode_prompt(QUESTION) + chat.encode_answer(text, chat=True))
    answer = whole[whole.index("<think>") :]
    assert (answer.count("<think>"), answer.count("</think>")) == (1, 1)
    assert re.split(r"\s*</?think>\s*", answer.strip()) == ["", "hm", "It is 5."]
    if name == "qwen3":  # whose white space is the template's
        assert answer.removesuffix("\n") == THOUGHTS[0]
    assert said == []


@pytest.mark.parametrize("template", [known.QWEN3, known.QWEN3_THINKING])
@pytest.mark.parametrize("text", ["<think>\nhm", "Well<think>hm</think>5"])
def test_thoughts_that_the_template_cannot_arrange_get_no_empty_thought_in_front(template, text):
    chat = chat_with(template)
    answer = chat.decode_all(chat.encode_answer(text, chat=True))
    opened = template == known.QWEN3_THINKING and text.startswith("<think>")
    assert answer == (text.removeprefix("<think>\n") if opened else text)


def test_an_answer_without_a_thought_behind_a_prompt_that_opens_one_is_said_once(said):
    chat = chat_with(known.QWEN3_THINKING)
    for _ in range(2):
        assert chat.decode_all(chat.encode_answer("It is 5.", chat=True)) == "\n</think>\n\nIt is 5."
    (line,) = said
    assert "responses without </think>: they are put behind an empty thought" in line
    chat = chat_of("r1")
    assert chat.decode_all(chat.encode_answer("It is 5.", chat=True)) == "It is 5."
    assert "they are learned as thoughts" in said[1]


def test_white_space_around_an_answer_is_trimmed_as_the_template_does():
    chat = chat_of("llama 3")
    assert chat.encode_answer("It is 5.\n", chat=True) == ids_of(chat, "It is 5.")
    assert chat_of("qwen2.5").encode_answer("It is 5.\n", chat=True) == ids_of(chat, "It is 5.\n")


def test_a_token_for_white_space_does_not_end_an_answer():
    chat = chat_with(known.GEMMA.replace("<end_of_turn>\\n", "\\n\\n<end_of_turn>"), "gemma")
    chat.tokenizer.add_tokens([AddedToken("\n\n", normalized=False, special=False)])
    assert [chat.decode_all([id]) for id in chat.template_ends] == ["<end_of_turn>"]
    assert difference(chat) == ()


def test_an_end_token_that_is_added_without_being_special_is_no_text():
    chat = chat_of("chatml in pieces")
    chat.tokenizer.add_tokens(["<|im_end|>"])
    (end,) = chat.template_ends
    assert chat.tokenizer.decode([end], skip_special_tokens=True) == "<|im_end|>"
    assert chat.decode([*chat.encode_answer("It is 5.", chat=True), end]) == "It is 5."


@pytest.mark.parametrize(
    ("template", "last", "begun"),
    [(TEMPLATES["plain"], ":**", ""), (known.QWEN25, "><", ""), (known.QWEN25, ">\n<", "\n<")],
)
def test_what_the_last_token_holds_beside_the_text_that_ends_an_answer_is_no_part_of_it(template, last, begun):
    chat = ChatTokenizer(tokenizer=tokenizer("bytes", template), chat_template_options={})
    stop = chat.frame.stop
    answer, opening = chat.encode_answer("It is 5.", chat=True), chat.encode_text(stop[:-1])
    following = chat.decode_all(chat.encode_next_turn(FURTHER, [*answer, *chat.encode_text(stop)]))
    chat.tokenizer.add_tokens([AddedToken(last, normalized=False, special=False)])
    (last_id,) = ids_of(chat, last)
    said = [*answer, *opening, last_id]
    assert chat.decode(said) == chat.decode(answer)
    assert chat.decode([*said, *said]) == chat.decode([*said, *answer])  # of several turns the last one
    assert begun + chat.decode_all(chat.encode_next_turn(FURTHER, said)) == following
    goes_on = [*said, *chat.encode_text("5")]
    assert chat.decode(goes_on) == chat.decode_all(goes_on)


def test_a_message_may_hold_the_text_by_which_the_answer_is_found():
    chat = chat_of("qwen2.5")
    (end,) = chat.template_ends
    turn = chat.encode_next_turn([{"role": "user", "content": f"What is {ANSWER}?"}], [7, end])
    assert chat.decode_all(turn) == f"\n<|im_start|>user\nWhat is {ANSWER}?<|im_end|>\n<|im_start|>assistant\n"


def test_an_empty_template_is_none():
    chat = chat_with("")
    assert chat.encode_prompt("It is 5.") and chat.frame.shown == ""
    with pytest.raises(UserError, match="the tokenizer has no chat template"):
        chat.encode_prompt(QUESTION)


def test_a_half_of_a_surrogate_pair_is_refused_in_one_line():
    chat = chat_of("qwen2.5")
    message = [{"role": "user", "content": "5 \ud83d"}]
    with pytest.raises(UserError, match="of user holds a lone half of a surrogate pair") as refused:
        chat.encode_prompt(message)
    assert "\n" not in str(refused.value) and not chat.fits(message, 100)
    assert chat.encode_prompt([{"role": "user", "content": "5 \U0001f600"}])


def test_a_template_by_flag_replaces_that_of_adapters_and_that_is_said(model, tmp_path, said):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES["chatml"])
    settle_template(chat_with(known.GEMMA), model, "chatml", str(tmp_path))  # the same as theirs, as in a resume
    assert said == []
    settle_template(chat_with(None), model, "gemma", str(tmp_path))
    assert said[0] == f"--chat-template gemma replaces the chat template of {tmp_path}\n"
