"""Prompts, turns and answers as each kind of tokenizer and chat template writes them, and templates by flag."""

import json
import re
from types import SimpleNamespace

import pytest
from transformers import GenerationConfig

from minrl.config import TrainerConfig
from minrl.dataflow import UserError
from minrl.models.chat import CHAT_TEMPLATE, ChatTokenizer, as_rollout
from minrl.models.chat_templates import set_chat_template
from minrl.models.loading import save_model, small_qwen3
from minrl.rollout import Plan, rollout
from minrl.run.checkpoint import save_policy
from minrl.run.setup import load_policy
from minrl.utils.cli import from_dict, to_dict
from tests import chat_templates as known
from tests.chat_templates import ANSWERS, QUESTIONS, tokenizer
from tests.parsed import sized

CHATML = "<|im_start|> <|im_end|>"
TURNS = "<start_of_turn> <end_of_turn>"
HARMONY = "<|start|> <|end|> <|message|> <|channel|>"

MODELS = {
    # name: kind of tokenizer, template, its other special tokens, bos, eos, whether bos is put in front of a text
    "qwen2.5": ("bytes", known.QWEN25, CHATML, "", "<|endoftext|>", False),
    "qwen3": ("bytes", known.QWEN3, CHATML, "", "<|im_end|>", False),
    "llama 2": ("always", known.LLAMA2, "", "<s>", "</s>", True),
    "gemma": ("never", known.GEMMA, TURNS, "<bos>", "<eos>", True),
    "r1": ("bytes", known.R1, "<|User|> <|Assistant|>", "<|begin|>", "<|end_of_sentence|>", True),
    "gpt-oss": ("bytes", known.HARMONY, HARMONY, "", "<|return|>", False),
    "chatml in pieces": ("bytes", known.QWEN25, "", "", "</s>", False),
}
ENDS = {"qwen2.5": "<|im_end|>", "gemma": "<end_of_turn>", "chatml in pieces": None}
"""The token that ends the last answer, where that is not the eos."""

DIFFERING = {
    "qwen3": ("<think>\nLet ", "It is 5."),
    "r1": ("<think>\nLet ", "\n\nIt is 5."),
    "gpt-oss": ("<|return|>", "<|end|>"),
}
"""How appended turns go on where the template first writes something else, and how that does."""

QUESTION = [{"role": "user", "content": QUESTIONS[0]}]
FURTHER = [{"role": "user", "content": QUESTIONS[1]}]


def chat_of(name, template=None, **options):
    """The model's tokenizer, with its own template or another."""
    kind, own, special, bos, eos, adds_bos = MODELS[name]
    made = tokenizer(kind, template or own, special, bos, eos, adds_bos)
    return ChatTokenizer(tokenizer=made, chat_template_options=options)


def ids_of(chat, text):
    return chat.tokenizer(text, add_special_tokens=False)["input_ids"]


def conversation(*texts):
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def test_messages_are_encoded_as_transformers_does_with_one_token_in_front(name):
    chat, (*_, bos, _, adds_bos) = chat_of(name), MODELS[name]
    ids, first = chat.encode_prompt(QUESTION), [chat.tokenizer.bos_token_id]
    own = chat.tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ids == own
    if bos:
        assert ids.count(*first) == 1 and ids[:1] == first
        text = f"{bos}It is 5."  # rendered by a template, which has it already
        assert chat.encode_prompt(text) == ids_of(chat, text)
    assert chat.encode_prompt("It is 5.") == first * adds_bos + ids_of(chat, "It is 5.")  # and no end


def difference(chat):
    """How an episode of appended turns goes on where it first differs from the template's rendering, and how that does;
    nothing if it does not. The answers are as the template writes them, with thoughts where it has them."""
    shown, template, closing = chat.render(QUESTION), str(chat.tokenizer.chat_template), chat.closing
    thinks = shown.rstrip().endswith("<think>") or ("</think>" in template and not shown.rstrip().endswith("</think>"))
    messages, ids = QUESTION, chat.encode_prompt(QUESTION)
    for question, answer in zip(QUESTIONS[1:], ANSWERS, strict=True):
        said, further = "<think>\nLet me see.\n</think>\n\n" * thinks + answer, {"role": "user", "content": question}
        end = [closing.end] if closing.end is not None else chat.encode_text(closing.space + closing.stop)
        completion = chat.encode_answer(said, chat=True) + end
        ids += completion + chat.encode_next_turn([further], completion)
        messages = [*messages, {"role": "assistant", "content": said}, further]
    whole = ids_of(chat, chat.render(messages))
    place = next((n for n in range(len(ids)) if ids[: n + 1] != whole[: n + 1]), None)
    return () if ids == whole else (chat.decode_all(ids[place:]), chat.decode_all(whole[place:]))


def test_an_episode_of_three_turns_is_what_the_template_writes_or_differs_as_is_known(name):
    found, begun = difference(chat_of(name)), DIFFERING.get(name, ())
    assert len(found) == len(begun) and all(map(str.startswith, found, begun))


def test_what_follows_an_answer_depends_on_how_it_ended(name):
    chat, end = chat_of(name), ENDS.get(name, MODELS[name][4])
    assert [chat.decode_all([id]) for id in chat.stop_ids] == ([end] if end else [])
    assert chat.stop_strings == (() if end else ("<|im_end|>",))
    answer = chat.encode_answer(ANSWERS[0], chat=True)
    rendered = chat.render(conversation(QUESTIONS[0], ANSWERS[0], QUESTIONS[1]))
    following = rendered.rpartition(ANSWERS[0])[2]  # its end, the next question, the generation prompt
    cut = chat.encode_next_turn(FURTHER, answer[:-1])
    assert chat.decode_all(cut).strip() == chat.decode_all(ids_of(chat, following)).strip()
    if end:  # by the end token, or by the one that the template writes in the history
        place = next(i for i, id in enumerate(cut) if id in chat.tokenizer.all_special_ids)
        for ended in (chat.closing.end, cut[place]):
            assert chat.encode_next_turn(FURTHER, [*answer, ended]) == cut[place + 1 :]
        assert chat.closing.end not in cut[place + 1 :][:2]
    else:
        stopped = [*answer, *chat.encode_text("<|im_end|>")]
        assert chat.decode_all(chat.encode_next_turn(FURTHER, stopped)) == following.removeprefix("<|im_end|>")
        stopped += ids_of(chat, "\n")[-1:]  # sampled with the last piece of the text
        assert chat.decode_all(chat.encode_next_turn(FURTHER, stopped)) == following.removeprefix("<|im_end|>\n")
        assert chat.decode(stopped) == chat.decode(answer)
    assert chat.encode_next_turn(FURTHER, answer) == chat.encode_next_turn(FURTHER, []) == cut  # by a stop string


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


def test_a_prompt_that_ends_with_an_answer_is_continued_as_transformers_does(name):
    chat, messages = chat_of(name), [*QUESTION, {"role": "assistant", "content": "It is"}]
    ids = chat.encode_prompt(messages)
    if name != "r1":  # whose prompt opens a thought
        text = chat.tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
        assert chat.decode_all(ids) == chat.decode_all(ids_of(chat, text))
    assert ids == ids_of(chat, chat.render(messages)) and chat.decode_all(ids).endswith("It is")
    end = chat.tokenizer.eos_token_id
    assert as_rollout(chat, "x", [(messages, " 5.")], end).ids == [*ids, *chat.encode_text(" 5."), end]


NO_SPACE = "<think>hm</think>5"
ENCODED = [
    # The template's space around a thought, and its empty thought, where there is none.
    ("qwen3", known.QWEN3, "It is 5.", "<think>\n\n</think>\n\nIt is 5."),
    # A prompt that opens the thought.
    ("qwen3", known.QWEN3_THINKING, "It is 5.", "\n</think>\n\nIt is 5."),
    ("qwen3", known.QWEN3_THINKING, NO_SPACE, "hm\n</think>\n\n5"),
    # A template that drops thoughts, or cannot arrange them.
    ("r1", known.R1.replace("<think>\\n", ""), NO_SPACE, NO_SPACE),
    ("qwen3", known.QWEN3_THINKING, "<think>\nhm", "hm"),
    # White space around an answer.
    ("gemma", known.GEMMA, "It is 5.\n", "It is 5."),
]


@pytest.mark.parametrize(("name", "template", "text", "encoded"), ENCODED)
def test_an_answer_is_encoded_as_the_template_arranges_it(name, template, text, encoded):
    chat = chat_of(name, template)
    assert chat.decode_all(chat.encode_answer(text, chat=True)) == encoded


def test_an_end_token_that_an_answer_holds_itself_is_learned_once():
    chat = chat_of("qwen2.5")
    ids = [as_rollout(chat, "x", [(QUESTION, text)], chat.closing.end).ids for text in (" 0", " 0<|im_end|>")]
    assert ids[0] == ids[1] and ids[0][-2:].count(chat.closing.end) == 1


SYSTEM = {"role": "system", "content": "Be brief."}
TEXT, IMAGE = {"type": "text", "text": "x"}, {"type": "image", "url": "x.png"}
ADD = {"name": "add", "arguments": {"x": 1}}
CALLED = [*QUESTION, {"role": "assistant", "content": "x", "tool_calls": [ADD]}, *QUESTION]
CALLS = "{{ message.content }}{% for call in message.tool_calls %}{{ call.name }}{{ call.arguments }}{% endfor %}"
EACH = "{% for message in messages %}BODY{% endfor %}"
REFUSED = [
    (known.GEMMA, [SYSTEM, *QUESTION], "of system, user: System role not supported; change the task"),
    (known.CHATML, [{"role": "user", "content": [TEXT, IMAGE]}], "holds image: models are trained on text"),
    # A template that writes some messages and not others, as the first Phi-3's.
    (known.R1, [SYSTEM, *QUESTION], "leaves out what the system says in a conversation of system, user"),
    (known.CHATML, CALLED, "leaves out what the assistant says"),
    (EACH.replace("BODY", CALLS.replace("{{ call.name }}", "")), CALLED, "leaves out what the assistant says"),
    (EACH.replace("BODY", CALLS.replace("{{ call.arguments }}", "")), CALLED, "leaves out what the assistant says"),
]


@pytest.mark.parametrize(("template", "messages", "message"), REFUSED)
def test_a_conversation_that_the_template_does_not_write_is_refused_in_one_line(template, messages, message):
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        chat_of("qwen3", template).encode_prompt(messages)
    assert "\n" not in str(refused.value)


def test_every_message_that_a_template_writes_is_taken_in_parts_and_without_text_too():
    chat = chat_of("qwen2.5")
    parts = [{**TEXT, "text": "What is"}, {**TEXT, "text": " 2 + 3?"}]
    assert chat.encode_prompt([{"role": "user", "content": parts}]) == chat.encode_prompt(QUESTION)
    assert chat.encode_prompt([SYSTEM, *QUESTION, {"role": "assistant", "content": ""}, *QUESTION])
    assert chat_of("qwen3", CHAT_TEMPLATE).render([SYSTEM, *QUESTION]) == f"<user> {QUESTIONS[0]} <assistant>"
    named = EACH.replace("BODY", "{% if 'name' in message %}{{ message.name }}{% endif %}{{ message.content }}")
    assert chat_of("qwen3", named).render([QUESTION[0] | {"name": None}]) == QUESTIONS[0]  # as parquet fills rows
    tool, said = {"role": "tool", "content": [TEXT]}, "<|User|><tool_response>\nx\n</tool_response>"
    assert said in chat_of("r1").render([*conversation("2 + 2?", "x"), tool])  # which has no turn for it


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("{{ call.arguments }}", 'add{"x": 1}'),  # not as Python writes an object
        ("{{ call.arguments | tojson }}", 'add{"x": 1}'),  # JSON text would be a text within JSON
        ("{{ '```json\\n' + call.arguments + '\\n```' }}", 'add```json\n{"x": 1}\n```'),  # takes no object
    ],
)
def test_arguments_of_a_call_are_given_in_the_form_that_the_template_writes(body, written):
    each = "{% for call in message.tool_calls %}{% set call = call.function %}{{ call.name }}" + body + "{% endfor %}"
    chat = chat_of("qwen3", EACH.replace("BODY", "{{ message.content }}" + each))
    for arguments in ({"x": 1}, '{"x": 1}'):
        call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        assert written in chat.render([*QUESTION, said, *QUESTION])
        assert call["function"]["arguments"] is arguments  # the row is not changed


@pytest.fixture
def model():
    return SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=1))


@pytest.mark.parametrize(("template", "kind", "adds_bos"), [("chatml", "never", True), ("plain", "always", False)])
def test_a_template_by_name_is_round_with_one_token_in_front_and_a_token_at_the_end(template, kind, adds_bos, model):
    own = tokenizer(kind, None, CHATML if template == "chatml" else "", "<s>", adds_bos=adds_bos)
    chat = ChatTokenizer(tokenizer=own, chat_template_options={})
    set_chat_template(chat, model, template, "mine")
    ids = chat.encode_prompt(QUESTION)
    assert ids.count(own.bos_token_id) == adds_bos == (ids[0] == own.bos_token_id)
    assert difference(chat) == ()
    if template == "chatml":
        assert chat.stop_ids == {own.convert_tokens_to_ids("<|im_end|>")}
        assert model.generation_config.eos_token_id == [1, *chat.stop_ids]  # for other programs
    else:
        assert (chat.stop_strings, model.generation_config.eos_token_id) == (("\nQuestion:",), 1)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.jinja"
    path.write_text(known.QWEN25)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ messages[0].content }}", "leaves out what the assistant says in a conversation of user, assistant"),
        ("hello", "writes no message"),
        (None, "cannot read the chat template"),
    ],
)
def test_a_template_that_writes_no_conversation_is_refused_in_one_line(file, model, text, message):
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        set_chat_template(chat_of("qwen3"), model, str(file), "mine")
    assert str(file) in str(refused.value) and "\n" not in str(refused.value)


def test_a_template_is_saved_with_the_model_and_a_resumed_run_needs_no_file(tmp_path, file, processes):
    own = tokenizer("bytes", special=CHATML, eos="<|endoftext|>")
    save_model(small_qwen3(own, 64, 2, 2, 0), own, tmp_path / "base")
    (end,) = own("<|im_end|>")["input_ids"]
    config = sized(model_id="base", chat_template=str(file), device="cpu", threads=1)
    policy = load_policy(str(tmp_path / "base"), config, processes)
    assert policy.stop_ids == {end, own.eos_token_id}
    save_policy(policy, tmp_path / "saved")
    file.unlink()
    assert from_dict(json.loads(json.dumps(to_dict(config, {}))), TrainerConfig)[0] == config  # a resumed run's
    again = load_policy(str(tmp_path / "saved"), config, processes, tmp_path / "saved")  # with its end already there
    assert again.tokenizer.chat_template == known.QWEN25 and again.stop_ids == policy.stop_ids
    assert GenerationConfig.from_pretrained(tmp_path / "saved").eos_token_id == [own.eos_token_id, end]  # for vLLM


def test_the_text_that_ends_an_answer_stops_the_engine(policy, engine, workers, sevens):
    template = policy.tokenizer.chat_template
    policy.tokenizer.chat_template = template.replace("<end>", "7")  # no token of the tokenizer's own
    plan = Plan(8, 8, 1.0, 0, "test", 0, stop_strings=("5",))
    played = rollout(policy, engine, workers, sevens, sevens.dataset.train[:2], plan).rollouts
    ends = set()
    for one in played:
        *before, last = policy.decode_all(one.ids[one.prompt_length :]).split()
        assert not {"5", "7"} & {*before} and not one.text.endswith("7")
        ends.add(last)
    assert {"5", "7"} <= ends
