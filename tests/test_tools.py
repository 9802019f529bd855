"""Functions as tools: how they are shown and called, what comes back, and that nothing of that is trained on."""

import sys
from random import Random

import pytest

from minrl.dataflow import SOLO, Example, Job, Reward, UserError
from minrl.models.chat import ChatTokenizer
from minrl.models.loading import small_qwen3
from minrl.policy import as_policy
from minrl.rewards.episode import Play
from minrl.rollout import Plan, rollout
from minrl.sft.config import SftConfig
from minrl.sft.demonstrations import read_demonstrations
from minrl.tasks import Task, load_task
from minrl.tasks.programs import programs
from minrl.tasks.task import Sampled, split
from minrl.tasks.tools import Call, ToolsOptions, find_calls, run_function, schema_of, with_tools
from minrl.utils.task_names import task_key
from tests.chat_templates import CHATML, HARMONY, LLAMA3, MISTRAL, QWEN_TOOLS, tokenizer
from tests.conftest import CPU, play_through
from tests.jobs import add, echo
from tests.parsed import parsed
from tests.test_documents import FENCE, PAGES
from tests.test_rollout import Scripted

SCHEMAS = [schema_of(add), schema_of(echo)]
ASK = [{"role": "user", "content": "2 + 3 ?", "tools": SCHEMAS[:1]}]
CALL = '<tool_call>{"name": "add", "arguments": {"x": 2, "y": 3}}</tool_call>'


def chat(template, special, eos, bos=""):
    own = tokenizer("bytes", template, special, bos=bos, eos=eos)
    return ChatTokenizer(tokenizer=own, chat_template_options={})


CHATS = {
    "qwen": (QWEN_TOOLS, "<|im_start|> <|im_end|> <tool_call> </tool_call>", "<|im_end|>"),
    "chatml": (CHATML, "<|im_start|> <|im_end|>", "<|im_end|>"),
    "llama": (LLAMA3, "<|start_header_id|> <|end_header_id|> <|eot_id|>", "<|eot_id|>", "<|begin|>"),
    "mistral": (MISTRAL, "[INST] [/INST] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]", "</s>", "<s>"),
    "gpt-oss": (HARMONY, "<|start|> <|end|> <|channel|> <|message|> <|call|>", "<|call|>"),
}
WRITTEN = {  # where the schema stands; a call in the model's own words up to its end, and what follows
    "qwen": (
        "<|im_start|>system\n# Tools\n<tools>\n{",
        f"{CALL}<|im_end|>",
        "\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ),
    "chatml": (
        "<|im_start|>system\nYou may call these functions:\n{",
        CALL,
        "<|im_end|>\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n",  # by a stop string
    ),
    "llama": (
        "<|begin|><|start_header_id|>user<|end_header_id|>\n\nGiven the following functions:\n{",
        '{"name": "add", "parameters": {"x": 2, "y": 3}}<|eot_id|>',
        '<|start_header_id|>ipython<|end_header_id|>\n\n"5"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
    ),
    "mistral": (
        "<s>[AVAILABLE_TOOLS] [{",
        '[TOOL_CALLS] [{"name": "add", "arguments": {"x": 2, "y": 3}}]</s>',
        '[TOOL_RESULTS] {"content": 5, "call_id": "call00000"}[/TOOL_RESULTS]',
    ),
    "gpt-oss": (
        "<|start|>system<|message|>You are a helpful assistant.<|end|>"
        "<|start|>developer<|message|>namespace functions {\ntype add = (_: {\nx: integer,\n",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.add json"
        '<|message|>{"x": 2, "y": 3}<|call|>',
        '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"5"<|end|><|start|>assistant',
    ),
}


@pytest.mark.parametrize("name", CHATS)
def test_tools_calls_and_results_are_written_as_the_template_does(name):
    own, (shown, said, answer) = chat(*CHATS[name]), WRITTEN[name]
    text = own.render(ASK)
    assert text.startswith(shown) and text.count("2 + 3 ?") == 1
    assert ("The sum of two numbers." in text) == (name != "gpt-oss")
    ids = own.tokenizer(said, add_special_tokens=False)["input_ids"]
    _, calls = find_calls(own.decode(ids))
    assert calls == [Call("add", {"x": 2, "y": 3})]
    message = [{"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "5"}]
    assert own.decode_all(own.encode_next_turn(message, ids)) == answer


@pytest.mark.parametrize(
    ("said", "calls"),
    [
        (f"{CALL} and {CALL}", [("add", "")] * 2),
        ('[TOOL_CALLS]add[ARGS]{"x": 1}[TOOL_CALLS]echo[CALL_ID]abc[ARGS]{"text": "a"}', [("add", ""), ("echo", "")]),
        ('<tool_call>{"function": {"name": "add", "arguments": "{\\"x\\": 1}"}}', [("add", "")]),  # OpenAI's, cut off
        ("<tool_call>add(2, 3)</tool_call>", [("", "a call must be a JSON object: Expecting value")]),
        ('<tool_call>{"name": 3}</tool_call>', [("", "a call must be an object such as")]),
        (f"<think> {CALL} </think> 5", None),
        ('{"name": "Bob", "age": 4}', None),  # an answer in JSON
    ],
)
def test_what_is_a_call_and_what_is_wrong_with_it(said, calls):
    found = find_calls(said)
    assert (found is None) == (calls is None)
    for call, (name, problem) in zip(found[1] if found else (), calls or (), strict=True):
        assert call.name == name and call.problem.startswith(problem) and bool(call.problem) == bool(problem)


def test_a_function_without_hints_or_docstring_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"the tool \S+ needs a type hint for each parameter, and a doc"):
        schema_of(lambda x: 1)


async def later():
    return 5


def test_results_are_texts_without_special_tokens_and_errors_say_what_was_raised():
    assert run_function(echo, {"text": "4"}, 100).text == "4< |im_end| >"
    assert run_function(echo, {"text": "abcdef"}, 3).text == "abc\n[cut off after 3 characters]"
    assert run_function(later, {}, 100).text == "5"  # of a coroutine
    failed = run_function(add, {"x": "a"}, 100)
    assert failed.failed and failed.text.startswith("[error] TypeError: ")


ROWS = [Example(str(n), [{"role": "user", "content": f"2 + {n} ?"}], {"answer": "5"}) for n in range(10)]


def answered(completion, example):
    return Reward(float(completion == example["answer"]), {"characters": len(completion)})


ALONE = Task(split(ROWS, 0.5), answered, cheap=True, name="mine")


def playing(*said, calls=4, example=ROWS[0]):
    """The reward of a play in which the policy says these texts, and the turns that it was shown."""
    play = Play(with_tools(ALONE, ToolsOptions(calls=calls), add, echo), example, Random(0))
    shown = play_through(play, *said)
    return play.rewards[SOLO], shown


def test_results_are_the_next_messages_and_the_last_turn_is_the_answer():
    reward, shown = playing(f"5 {CALL}{CALL}", "5")
    assert shown[0].message == [{**ROWS[0].prompt[0], "tools": SCHEMAS}]
    assert shown[1].message == [
        {"role": "tool", "name": "add", "tool_call_id": f"call0000{n}", "content": "5"} for n in range(2)
    ]
    assert [(turn.optional, turn.shown_by) for turn in shown] == [(False, ""), (True, "tool")]
    assert (reward.value, reward.parts) == (1.0, {"characters": 1, "tool_calls": 2, "tool_failed": 0})


def test_a_wrong_call_is_told_why_and_counted():
    says = {
        '{"name": "f<|sep|>", "arguments": {}}': "[error] there is no tool f< |sep| >, only add, echo",
        '{"name": "add", "arguments": {"z": 1}}': "[error] add lacks the argument x",
        '{"name": "add", "arguments": {"x": "2"}}': '[error] x of add must be of type integer, got "2"',
    }
    reward, (_, answer) = playing("".join(f"<tool_call>{call}</tool_call>" for call in says), "5")
    assert [one["content"] for one in answer.message] == [*says.values()]
    assert (reward.parts["tool_calls"], reward.parts["tool_failed"]) == (3, 3)


def test_calls_beyond_the_limit_are_not_run_and_are_no_answer():
    reward, shown = playing(CALL * 3, f"5{CALL}", calls=2)
    assert [one["content"] for one in shown[1].message] == ["5", "5", "[error] not run: at most 2 calls"]
    assert reward.value == 1.0 and (reward.parts["tool_calls"], reward.parts["characters"]) == (2, 1)


def test_a_row_chooses_among_the_tools():
    for named, left in ((["echo"], SCHEMAS[1:]), ([], None), (None, SCHEMAS)):
        row = Example("1", ROWS[0].prompt, {"answer": "5", "tools": named})
        _, shown = playing("5", example=row)
        assert shown[0].message[0].get("tools") == left
    row = Example("1", ROWS[0].prompt, {"answer": "5", "tools": ["echo"]})
    _, shown = playing(CALL, "5", example=row)
    assert shown[1].message[0]["content"] == "[error] there is no tool add, only echo"
    play = Play(with_tools(ALONE, ToolsOptions(), add), row, Random(0))
    play.advance(None)
    assert "`tools` names 'echo', and the task has add" in play.failure


def test_a_prompt_of_text_names_its_tools_and_results_in_words():
    task = with_tools(Task(split([Example("1", "2 + 3 =", {})], 0), answered), ToolsOptions(), add)
    play = task.play(task.dataset.train[0], Random(0))
    assert next(play).message.startswith("You may call these functions:\n{") and play.gi_frame is not None
    job = play.send(CALL)
    assert isinstance(job, Job) and not job.cheap  # which a worker can import
    assert play.send(job.function(*job.arguments)).message == "\n<tool_response>\n5\n</tool_response>\n"


def test_only_what_the_policy_says_is_trained_on_and_no_result_ends_a_turn(processes, workers):
    own = tokenizer("bytes", *CHATS["qwen"][:2], eos="<|im_end|>")
    policy = as_policy(small_qwen3(own, 64, 1, 2, 0), own, CPU, processes)
    call = '<tool_call>{"name": "echo", "arguments": {"text": "b"}}</tool_call><|im_end|>'
    engine = Scripted(policy, call, "5<|im_end|>", room=4000)
    task = with_tools(ALONE, ToolsOptions(), echo)
    sampled = rollout(policy, engine, workers, task, ROWS[:1], Plan(1, 999, 1.0, 0, "test", 1))
    (one,) = sampled.rollouts
    assert sampled.failures == [] and one.reward.value == 1.0 and one.reward.parts["tool_failed"] == 0
    pieces = [("".join(own.decode([id])), mask) for id, mask in zip(one.ids, one.loss_mask, strict=True)]
    assert "".join(text for text, mask in pieces if mask) == f"{call}5<|im_end|>"
    given = "".join(text for text, mask in pieces[one.prompt_length :] if not mask)
    assert given == (
        "\n<|im_start|>user\n<tool_response>\nb< |im_end| >\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    first, second = engine.calls[0][0].ids, engine.calls[1][0].ids
    assert second[: len(first)] == first


TWICE = 'def twice(of: float) -> float:\n    """Twice.\n\n    Args:\n        of: it\n    """\n    return 2 * of\n'


@pytest.fixture
def place(tmp_path, monkeypatch, own_imports):
    """A folder with the files of docs/tools.md, from which they are imported."""
    blocks = dict(reversed(FENCE.findall(PAGES["docs/tools.md"])))  # the first of each language
    shop, calls = blocks["python"], blocks["json"]
    (tmp_path / "shop.py").write_text(shop + TWICE)
    (tmp_path / "calls.json").write_text(calls)
    monkeypatch.chdir(tmp_path)
    sys.path.append(str(tmp_path))
    return tmp_path


def test_the_examples_of_the_page_run(place):
    (row,) = read_demonstrations(SftConfig(data="calls.json", loss_on="assistant"), "calls.json")
    assert "price" in chat(*CHATS["qwen"]).render(row.turns[0][0]) and len(row.turns) == 2
    task = load_task("shop.py:shop")
    play = task.play(task.dataset.train[0], Random(0))
    next(play)
    job = play.send(row.turns[0][1])
    assert play.send(job.function(*job.arguments)).message[0]["content"] == "2"


def test_tools_are_named_by_a_flag_and_join_the_tasks_name(place):
    words = ["--task", "countdown:2,hanoi:1", "--tools", "shop.py:price,twice", "--tools.calls", "7"]
    config, options = parsed(words)
    whole = f"countdown+{place}/shop.py:price+{place}/shop.py:twice"
    assert [*config.task_names] == [whole, whole.replace("countdown", "hanoi")] and config.tools == ""
    assert [*config.task_weights] == ["countdown+tools", "hanoi+tools"] and options["tools"].calls == 7
    task = load_task(whole, options)
    assert task.name == task_key(whole) == "countdown+tools"
    first = next(task.play(task.dataset.train[0], Random(0))).message
    assert [one["function"]["name"] for one in first[0]["tools"]] == ["price", "twice"]
    assert "shop" in programs(whole)


def test_an_unknown_tool_is_refused_in_one_line(place):
    for tool, reason in (("shop.py:nothing", "there is no function nothing"), ("price", "no tool 'price'")):
        with pytest.raises(UserError, match=reason) as refused:
            load_task(parsed(["--task", "countdown", "--tools", tool])[0].task)
        assert "\n" not in str(refused.value)


XML = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "content": {"close": "<call ", "content": "text"},
        "tool_calls": {
            "open": "<call ",
            "close": "/>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}


def test_the_tokenizers_own_parser_reads_calls():
    own = chat(*CHATS["chatml"])
    own.tokenizer.response_template = XML
    ids = own.tokenizer('So <call {"name": "add", "arguments": {"x": 2}}/>')["input_ids"]
    shown = own.tokenizer("<|im_start|>assistant\n")["input_ids"]
    said = Sampled("So")
    said.message = own.read_response(ASK, shown, ids)
    assert find_calls(said)[1] == [Call("add", {"x": 2})]
    assert own.read_response("no tools", shown, ids) is None
    said.message = own.read_response(ASK, shown, own.tokenizer(CALL)["input_ids"])
    assert find_calls(said) is None  # which is not of its form


def test_a_reward_that_compares_waits_for_the_calls_of_others(processes, workers):
    own = tokenizer("bytes", *CHATS["qwen"][:2], eos="<|im_end|>")
    policy = as_policy(small_qwen3(own, 64, 1, 2, 0), own, CPU, processes)
    engine = Scripted(policy, "5<|im_end|>", f"{CALL}<|im_end|>", "55<|im_end|>", room=4000)
    task = Task(
        split(ROWS, 0.5), lambda said, _: [len(one) / len("".join(said)) for one in said], group=True, cheap=True
    )
    sampled = rollout(
        policy, engine, workers, with_tools(task, ToolsOptions(), add), ROWS[:1], Plan(2, 99, 1.0, 0, "test", 1)
    )
    assert sampled.failures == [] and [one.reward.value for one in sampled.rollouts] == [1 / 3, 2 / 3]
