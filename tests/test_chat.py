"""Prompts, turns and answers as each kind of tokenizer and chat template writes them, and templates by flag."""

import json
import re
from types import SimpleNamespace

import pytest
from transformers import GenerationConfig

from minrl.config import TrainerConfig
from minrl.dataflow import UserError
from minrl.models import chat_templates
from minrl.models.chat import CHAT_TEMPLATE, ChatTokenizer, as_rollout, text_of
from minrl.models.chat_templates import TEMPLATES, set_chat_template
from minrl.models.loading import save_model, small_qwen3
from minrl.rollout import Plan, rollout
from minrl.run.checkpoint import save_policy
from minrl.run.setup import load_policy
from minrl.utils.cli import from_dict, to_dict
from tests import chat_templates as known
from tests.chat_templates import ANSWERS, QUESTIONS, tokenizer
from tests.parsed import sized

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
    "mistral 3": ("first", known.MISTRAL, INST, "<s>", "</s>", True),
    "gemma": ("never", known.GEMMA, TURNS, "<bos>", "<eos>", True),
    "llama 3": ("bytes", known.LLAMA3, LLAMA3, "<|begin_of_text|>", "<|end_of_text|>", True),
    "r1": ("bytes", known.R1, "<|User|> <|Assistant|>", "<|begin|>", "<|end_of_sentence|>", True),
    "gpt-oss": ("bytes", known.HARMONY, HARMONY, "", "<|return|>", False),
    "chatml in pieces": ("bytes", known.QWEN25, "", "", "</s>", False),
}
ENDS = {
    **{"qwen2.5": "<|im_end|>", "qwen2.5 base": "<|im_end|>", "qwen3": "<|im_end|>", "gemma": "<end_of_turn>"},
    **{"llama 3": "<|eot_id|>", "r1": "<|end_of_sentence|>", "gpt-oss": "<|return|>", "chatml in pieces": None},
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


def difference(chat):
    """How an episode of appended turns goes on where it first differs from the template's rendering, and how that does;
    nothing if it does not. The answers are as the template writes them, with thoughts where it has them."""
    shown, template, closing = chat.render(conversation(QUESTIONS[0])), str(chat.tokenizer.chat_template), chat.closing
    thinks = shown.rstrip().endswith("<think>") or ("</think>" in template and not shown.rstrip().endswith("</think>"))
    messages = conversation(QUESTIONS[0])
    ids = chat.encode_prompt(messages)
    for question, answer in zip(QUESTIONS[1:], ANSWERS, strict=True):
        said, further = "<think>\nLet me see.\n</think>\n\n" * thinks + answer, {"role": "user", "content": question}
        end = [closing.end] if closing.end is not None else chat.encode_text(closing.space + closing.stop)
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
    assert [chat.decode_all([id]) for id in chat.stop_ids] == ([end] if end else [])
    assert chat.stop_strings == (() if end else ("<|im_end|>",))


def test_what_follows_an_answer_depends_on_how_it_ended(name):
    chat = chat_of(name)
    answer = chat.encode_answer(ANSWERS[0], chat=True)
    rendered = chat.render(conversation(QUESTIONS[0], ANSWERS[0], QUESTIONS[1]))
    following = rendered.rpartition(ANSWERS[0])[2]  # its end, the next question, the generation prompt
    cut = chat.encode_next_turn(FURTHER, answer[:-1])
    assert chat.decode_all(cut).strip() == chat.decode_all(ids_of(chat, following)).strip()
    end = next((i for i, id in enumerate(cut) if id in chat.tokenizer.all_special_ids), None)
    if chat.closing.end is not None:  # by the end token, or by the one that the template writes in the history
        assert chat.encode_next_turn(FURTHER, [*answer, chat.closing.end]) == cut[end + 1 :]
        assert chat.encode_next_turn(FURTHER, [*answer, cut[end]]) == cut[end + 1 :]
        assert chat.closing.end not in cut[end + 1 :][:2]
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


@pytest.mark.parametrize("kind", ["bytes", "always", "first", "never"])
def test_a_text_that_goes_on_has_no_space_in_front(kind):
    chat = ChatTokenizer(tokenizer=tokenizer(kind, bos="<s>", adds_bos=True), chat_template_options={})
    for text in ("And half", " And half", "\nAnd half", ""):
        ids = chat.encode_next_turn(text, [7])
        assert chat.decode_all(ids_of(chat, "5.") + ids) == f"5.{text}"
        assert as_rollout(chat, "x", [("5.", text)], 9).ids == [*chat.encode_prompt("5."), *ids, 9]


def told(*roles):
    return [{"role": role, "content": f"said {place}"} for place, role in enumerate(roles)]


def one(content):
    return [{"role": "user", "content": content}]


TEXT, IMAGE = {"type": "text", "text": "x"}, {"type": "image", "url": "x.png"}
MISTRAL7_WITHOUT_ANSWERS = known.MISTRAL7.replace("message['content'] + eos_token", "eos_token")
ADD = {"name": "add", "arguments": {"x": 1}}
CALLED, SERVED = (
    [*QUESTION, {"role": "assistant", "content": "x", "tool_calls": [call]}, *QUESTION]
    for call in (ADD, {"type": "function", "function": {**ADD, "arguments": '{"x": 1}'}})
)
CALLS = "{{ message.content }}{% for call in message.tool_calls %}{{ call.name }}{{ call.arguments }}{% endfor %}"
EACH = "{% for message in messages %}BODY{% endfor %}"
REFUSED = [
    ("gemma", known.GEMMA, [*SYSTEM, *QUESTION], "of system, user: System role not supported; change the task"),
    ("qwen2.5", known.QWEN25, one([TEXT, IMAGE]), "a message of the user holds image: models are trained on text"),
    ("qwen2.5", known.QWEN25, one(5), "holds int:"),
    # A template that writes some messages and not others, as the first Phi-3's.
    ("qwen3", known.R1, told("system", "user"), "leaves out what the system says in a conversation of system, user"),
    ("qwen3", MISTRAL7_WITHOUT_ANSWERS, told("user", "assistant", "user"), "leaves out what the assistant says"),
    ("qwen3", TEMPLATES["chatml"], CALLED, "leaves out what the assistant says"),  # its calls
    ("qwen3", TEMPLATES["chatml"], SERVED, "leaves out what the assistant says"),
    ("qwen3", EACH.replace("BODY", CALLS.replace("{{ call.name }}", "")), CALLED, "leaves out what the assistant says"),
    ("qwen3", EACH.replace("BODY", CALLS.replace("{{ call.arguments }}", "")), CALLED, "leaves out what the assist"),
]


@pytest.mark.parametrize(("name", "template", "messages", "message"), REFUSED)
def test_a_conversation_that_the_template_does_not_write_is_refused_in_one_line(name, template, messages, message):
    chat = chat_with(template, name)
    for ask in (chat.encode_prompt, lambda messages: chat.fits(messages, 100)):
        with pytest.raises(UserError, match=re.escape(message)) as refused:
            ask(messages)
        assert "\n" not in str(refused.value)


def test_every_message_that_a_template_writes_is_taken_in_parts_and_without_text_too():
    before = "{% set system = messages[0].content if messages[0].role == 'system' %}{{ system }} "
    rest = "{% for message in messages if message.role != 'system' %}{{ message.content }}{% endfor %}"
    chat = chat_with(before + rest)
    assert chat.render(told("system", "user")) == "said 0 said 1"
    chat = chat_with(TEMPLATES["chatml"], "qwen2.5")
    assert chat.encode_prompt(one([{**TEXT, "text": "What is"}, {**TEXT, "text": " 2?"}])) == chat.encode_prompt(
        one("What is 2?")
    )
    assert chat.encode_prompt([*told("system", "user"), {"role": "assistant", "content": ""}, *told("user")])
    assert chat_with(CHAT_TEMPLATE).render(told("system", "user")) == "<user> said 1 <assistant>"  # as it is meant
    assert """xadd{"x": 1}""" in chat_with(EACH.replace("BODY", CALLS)).render(CALLED)  # no Python
    named = EACH.replace("BODY", "{% if 'name' in message %}{{ message.name }}{% endif %}{{ message.content }}")
    assert chat_with(named).render([QUESTION[0] | {"name": None}]) == QUESTIONS[0]  # as parquet fills rows
    called = {"role": "assistant", "tool_calls": [ADD]}
    assert text_of(called) == text_of({**called, "content": None}) == ""


WRITTEN = {
    "qwen 2.5": ("{{ call.arguments | tojson }}", '{"x": 1}'),  # JSON text would be a text within JSON
    "qwen 3": (
        "{% if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}",
        '{"x": 1}',
    ),
    "gemma 4": (  # JSON text would have two braces
        "{{ '{' }}{% if call.arguments is mapping %}{% for k, v in call.arguments | dictsort %}"
        "{{ k }}:{{ v }}{% endfor %}{% elif call.arguments is string %}{{ call.arguments }}{% endif %}{{ '}' }}",
        "{x:1}",
    ),
    "glm 4.5": ("{% for k, v in call.arguments.items() %}<arg_key>{{ k }}<arg_value>{{ v }}{% endfor %}", "<arg_key>x"),
    "deepseek v3": ("{{ '```json\\n' + call.arguments + '\\n```' }}", '```json\n{"x": 1}\n```'),  # takes no object
}


@pytest.mark.parametrize("template", WRITTEN)
def test_arguments_of_a_call_are_given_in_the_form_that_the_template_writes(template):
    body, written = WRITTEN[template]
    each = "{% for call in message.tool_calls %}{% set call = call.function %}{{ call.name }}" + body + "{% endfor %}"
    chat = chat_with(EACH.replace("BODY", "{{ message.content }}" + each))
    for arguments in ({"x": 1}, '{"x": 1}'):
        call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        assert f"add{written}" in chat.render([*QUESTION, said, *QUESTION])
        assert call["function"]["arguments"] is arguments  # the row is not changed


def test_arguments_that_are_no_object_are_refused_by_name_where_the_template_takes_one():
    chat = chat_with(EACH.replace("BODY", CALLS.replace("call.arguments", "call.arguments | tojson")))
    said = {"role": "assistant", "content": "x"}
    for given in ("x = 1", "[1]"):
        called = {**said, "tool_calls": [{**ADD, "arguments": given}]}
        with pytest.raises(UserError, match=re.escape(f"call of the tool add must be a JSON object, got '{given}'")):
            chat.render([*QUESTION, called, *QUESTION])
    assert "xadd{}" in chat.render([*QUESTION, {**said, "tool_calls": [{**ADD, "arguments": ""}]}, *QUESTION])


def test_an_end_token_that_an_answer_holds_itself_is_learned_once():
    chat = chat_of("qwen2.5")
    ids = [as_rollout(chat, "x", [(QUESTION, text)], chat.closing.end).ids for text in (" 0", " 0<|im_end|>")]
    assert ids[0] == ids[1] and ids[0][-2:].count(chat.closing.end) == 1


@pytest.mark.parametrize("content", ["42", [TEXT | {"text": "42"}]], ids=["text", "parts"])
def test_the_user_says_what_a_tool_does_where_the_template_has_no_turn_for_it(content):
    tool, said = {"role": "tool", "content": content}, "<tool_response>\n42\n</tool_response>"
    assert chat_of("r1").render([*conversation("2 + 2?", "x"), tool]).count(f"<|User|>{said}") == 1
    chat = chat_of("gemma")
    assert f"user\n{said}" in chat.decode_all(chat.encode_next_turn([tool], []))
    assert "<|im_start|>tool\n42" in chat_with(TEMPLATES["chatml"]).render([*conversation("2 + 2?", "x"), tool])
    assert "None" not in chat_of("r1").render([*conversation("2 + 2?", "x"), tool | {"content": None}])


def test_a_prompt_that_ends_with_an_answer_is_continued_as_transformers_does(name):
    chat, messages = chat_of(name), [*QUESTION, {"role": "assistant", "content": "It is"}]
    ids = chat.encode_prompt(messages)
    if name != "r1":  # whose prompt opens a thought
        text = chat.tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
        assert chat.decode_all(ids) == chat.decode_all(ids_of(chat, text))
    assert ids == ids_of(chat, chat.render(messages)) and chat.decode_all(ids).endswith("It is")
    end = chat.tokenizer.eos_token_id
    assert as_rollout(chat, "x", [(messages, " 5.")], end).ids == [*ids, *chat.encode_text(" 5."), end]


SPECIAL = {"chatml": CHATML, "plain": ""}
END = {"chatml": "<|im_end|>", "plain": "\nQuestion:"}


@pytest.fixture
def model():
    return SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=1))


@pytest.fixture(autouse=True)
def said_before():
    chat_templates._say_once.cache_clear()


def settled(model, chosen, kind="bytes", template=None, special="", bos="<s>", adds_bos=True):
    chat = ChatTokenizer(tokenizer=tokenizer(kind, template, special, bos, adds_bos=adds_bos), chat_template_options={})
    set_chat_template(chat, model, chosen, "mine")
    return chat


@pytest.mark.parametrize(
    ("template", "kind", "adds_bos"),
    [("chatml", "bytes", False), ("chatml", "never", True), ("plain", "always", False)],
)
def test_a_template_by_name_is_round_with_one_token_in_front_and_a_token_at_the_end(
    template, kind, adds_bos, model, said
):
    chat = settled(model, template, kind, special=SPECIAL[template], adds_bos=adds_bos)
    ids = chat.encode_prompt(QUESTION)
    assert ids.count(chat.tokenizer.bos_token_id) == adds_bos == (ids[0] == chat.tokenizer.bos_token_id)
    assert difference(chat) == ()
    if SPECIAL[template]:
        assert chat.stop_ids == {chat.tokenizer.convert_tokens_to_ids(END[template])}
        assert model.generation_config.eos_token_id == [1, *chat.stop_ids]  # for other programs
        assert said == []
    else:
        assert (chat.stop_strings, model.generation_config.eos_token_id) == ((END[template],), 1)


def test_a_model_keeps_its_own_template_and_learns_where_it_ends(model):
    chat = chat_of("qwen2.5 base")
    set_chat_template(chat, model, "", "mine")
    assert chat.tokenizer.chat_template == known.QWEN25
    (end,) = ids_of(chat, "<|im_end|>")
    assert model.generation_config.eos_token_id == [1, end]
    set_chat_template(chat, model, "", "mine")
    assert model.generation_config.eos_token_id == [1, end]
    model.generation_config.eos_token_id = None
    set_chat_template(chat, model, "", "mine")
    assert model.generation_config.eos_token_id == end


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.jinja"
    path.write_text(known.MISTRAL7)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% for m in messages %}{{ m.content }}", "does not take a conversation of user: Unexpected end of template"),
        ("{{ messages[0].content }}", "leaves out what the assistant says in a conversation of user, assistant"),
        ("hello", "writes no message"),
        (None, "cannot read the chat template"),
    ],
)
def test_a_template_that_writes_no_conversation_is_refused_in_one_line(file, model, text, message):
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        settled(model, sized(chat_template=str(file)).chat_template)
    assert str(file) in str(refused.value) and "\n" not in str(refused.value)


def test_a_template_is_saved_with_the_model_and_a_resumed_run_needs_no_file(tmp_path, file, processes):
    own = tokenizer("bytes", special=CHATML, eos="<|endoftext|>")
    save_model(small_qwen3(own, 64, 2, 2, 0), own, tmp_path / "base")
    (end,) = own("<|im_end|>")["input_ids"]
    file.write_text(known.QWEN25)
    config = sized(model_id="base", chat_template=str(file), device="cpu", threads=1)
    policy = load_policy(str(tmp_path / "base"), config, processes)
    assert policy.stop_ids == {end, own.eos_token_id}
    save_policy(policy, tmp_path / "saved")
    file.unlink()
    assert from_dict(json.loads(json.dumps(to_dict(config, {}))), TrainerConfig)[0] == config  # a resumed run's
    again = load_policy(str(tmp_path / "saved"), config.with_settings(chat_template=""), processes)
    assert again.tokenizer.chat_template == known.QWEN25  # for evaluate.py, vLLM and other programs
    assert GenerationConfig.from_pretrained(tmp_path / "saved").eos_token_id == [own.eos_token_id, end]
    assert again.stop_ids == policy.stop_ids
    resumed = load_policy(str(tmp_path / "saved"), config, processes, tmp_path / "saved")
    assert resumed.tokenizer.chat_template == known.QWEN25


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


def chat_with(template, name="qwen3"):
    chat = chat_of(name)
    chat.tokenizer.chat_template = template
    return chat


WHOLE, NO_SPACE = "<think>\nhm\n</think>\n\nIt is 5.", "<think>hm</think>5"
ENCODED = [
    # The template's space around a thought, and its empty thought, where there is none.
    ("qwen3", known.QWEN3, "It is 5.", "<think>\n\n</think>\n\nIt is 5."),
    ("qwen3", known.QWEN3, WHOLE, WHOLE),
    ("qwen3", known.QWEN3, NO_SPACE, NO_SPACE),
    # A prompt that opens the thought.
    ("qwen3", known.QWEN3_THINKING, "It is 5.", "\n</think>\n\nIt is 5."),
    ("qwen3", known.QWEN3_THINKING, NO_SPACE, "hm\n</think>\n\n5"),
    ("r1", known.R1, NO_SPACE, "hm</think>5"),
    # A template that drops thoughts, or cannot arrange them.
    ("r1", known.R1.replace("<think>\\n", ""), NO_SPACE, NO_SPACE),
    ("qwen3", known.QWEN3_THINKING, "<think>\nhm", "hm"),
    # White space around an answer.
    ("llama 3", known.LLAMA3, "It is 5.\n", "It is 5."),
]


@pytest.mark.parametrize(("name", "template", "text", "encoded"), ENCODED)
def test_an_answer_is_encoded_as_the_template_arranges_it(name, template, text, encoded):
    chat = chat_with(template, name)
    assert chat.decode_all(chat.encode_answer(text, chat=True)) == encoded
