"""A finished run is pushed to a stand-in of the hub's API, with its card; what cannot be pushed is not lost."""

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest
import yaml

from minrl.__main__ import main
from minrl.dataflow import UserError
from minrl.run.folder import RunFolder
from minrl.run.hub import card, require_hub
from minrl.run.run import Run
from minrl.utils.files import read_json, read_record
from tests.conftest import SMALL_RUN
from tests.parsed import sized

TOKEN = "hf_thisIsASecretOfTheTest"


class Hub(BaseHTTPRequestHandler):
    """create_repo, preupload, LFS and commit of the hub, for one repository. `server.files` are its files."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        self.server.asked.append(self.path)
        if self.server.refuses in self.path:
            return self.answer({"error": f"no rights of {TOKEN}"}, 403)
        if self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            return self.answer({"url": f"{self.server.url}/me/sevens"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if self.path == "/api/models/me/sevens/preupload/main":
            modes = {True: "lfs", False: "regular"}
            files = [
                {"path": one["path"], "uploadMode": modes[one["path"].endswith(".safetensors")], "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        if self.path == "/me/sevens.git/info/lfs/objects/batch":
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.server.url}/stored/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return self.answer({"objects": objects, "transfer": "basic"})
        assert self.path == "/api/models/me/sevens/commit/main"
        for line in map(json.loads, body.splitlines()):
            one = line["value"]
            if line["key"] == "file":
                self.server.files[one["path"]] = base64.b64decode(one["content"])
            elif line["key"] == "lfsFile":
                self.server.files[one["path"]] = self.server.stored[one["oid"]]
        url = f"{self.server.url}/me/sevens/commit/0"
        return self.answer({"success": True, "commitUrl": url, "commitOid": "0", "pullRequestUrl": None})

    def do_PUT(self):
        self.server.stored[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({})

    def answer(self, value, status=200):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    """The stand-in, at which huggingface_hub looks for the hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.asked, server.created, server.stored, server.files, server.refuses = [], [], {}, {}, "nothing"
    for name, value in {"ENDPOINT": server.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


PUSHED = ["train", "--resume", "runs/run", "--push-to-hub", "me/sevens", "--no-quiet"]


def test_a_finished_run_is_pushed_with_its_card_and_without_what_only_it_reads(run, hub, capsys):
    assert main(PUSHED) == 0
    folder = run / "checkpoints/run/step_000003"
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {*files} - {*hub.files} == {"optimizer.safetensors", "trainer.json"}
    assert hub.files == {name: files[name] for name in hub.files} and "model.safetensors" in hub.files
    assert hub.created == [{"name": "sevens", "organization": "me"}]  # the hub's own default of who sees it
    facts, text = re.fullmatch(r"---\n(.*?)---\n(.*)", hub.files["README.md"].decode(), re.DOTALL).groups()
    kind = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    assert yaml.safe_load(facts) == {**kind, "tags": ["minrl", "reinforcement-learning"]}  # `model` is a local folder
    summary = read_record(run / "runs/run/summary.json")
    after = summary["eval_after"]
    score = "{:.1%} ({:.1%} to {:.1%})".format(after["pass@1"], *after["ci95"])
    assert f"| after step 3 |\n| --- | --- | --- |\n| sevens | {score_of(run)} | {score} |\n" in text
    assert "\nmodel, trained by MinRL 0.1.0" in text and "`grpo` on the task `sevens`: step 3, the\nbest" in text
    assert 'AutoModelForCausalLM.from_pretrained("me/sevens")' in text
    settings = yaml.safe_load(text.rpartition("defaults\n")[2])
    assert (settings["learning_rate"], settings["schedule"]) == (5e-3, "constant") and "push_to_hub" not in settings
    assert all(str(run).encode() not in content for content in hub.files.values())
    said = capsys.readouterr()
    assert f"pushed checkpoints/run/step_000003 to {hub.url}/me/sevens" in said.err
    assert TOKEN not in said.out + said.err + (run / "runs/run/log.txt").read_text()


def score_of(run):
    """The score before the first step, as the card shows it."""
    before = read_json(run / "runs/run/eval_before.json")["sevens"]
    return "{:.1%} ({:.1%} to {:.1%})".format(before["pass@1"], *before["ci95"])


def test_a_push_that_fails_leaves_the_run_complete_and_says_how_to_push_it(run, hub, capsys):
    hub.refuses = "/commit/"
    assert main(PUSHED) == 1
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "not pushed" in line]
    command = "hf upload me/sevens checkpoints/run/step_000003 . --exclude=optimizer.safetensors --exclude=trainer.json"
    assert warning.endswith(command) and "403" in warning and TOKEN not in warning
    assert TOKEN not in (run / "runs/run/log.txt").read_text()
    summary = RunFolder.open("run").summary
    assert summary["steps"] == 3 and summary["eval_after"] and (run / "checkpoints/run/step_000003/README.md").exists()


@pytest.mark.slow
def test_the_best_checkpoint_is_pushed(place, hub):
    # Steps this small change no score, and of equal ones the first is the best.
    flags = [*SMALL_RUN, "--eval-every", "1", "--push-to-hub", "me/sevens"]
    assert main(["train", *("1e-9" if flag == "5e-3" else flag for flag in flags)]) == 0
    assert [path.parent.name for path in place.glob("checkpoints/run/*/README.md")] == ["step_000001"]
    text = hub.files["README.md"].decode()
    assert "step 1, the\nbest of the run" in text and " | before | after step 3 | step 1 |" in text


@pytest.mark.parametrize("name", ["sevens", "me/my/sevens", "me/sev ens", "me/-sevens", "https://hf.co/me/sevens"])
def test_a_name_that_the_hub_does_not_take_is_refused_before_anything_is_made(name, place, hub):
    with pytest.raises(UserError) as refused:
        main(["train", *SMALL_RUN, "--push-to-hub", name])
    assert (
        str(refused.value)
        == f"push_to_hub must be the name of a repository of the hub, such as user/name, got {name!r}"
    )
    assert not (place / "runs").exists() and hub.asked == []


def test_without_a_token_or_offline_it_is_refused(hub, monkeypatch):
    require_hub("me/sevens")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "/nowhere")
    with pytest.raises(UserError, match="finds no token of the hub: log in with `hf auth login`"):
        require_hub("me/sevens")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        require_hub("me/sevens")
    require_hub("")


def test_the_card_of_adapters_names_library_and_base_and_no_folder_or_address_of_this_machine(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"minrl_run": "run", "config": {}, "commit": "c" * 40}))
    (tmp_path / "step_000050").mkdir()
    (tmp_path / "step_000050/adapter_config.json").write_text("{}")
    config = sized(
        task="/home/me/my tasks/mine.py:mine", lora_rank=8, push_to_hub="me/adapters", judge_model="j",
        judge_base_url="http://10.0.0.7/v1", model_id="Qwen/Qwen3-0.6B", teacher_prompt="{prompt} as in /home/me/x.txt",
    )  # fmt: skip
    run = Run(tmp_path, tmp_path, config, {})
    scores = {"pass@1": 0.25, "ci95": [0.125, 0.5], "reward": 0.5}
    summary = {
        "task": config.task,
        "algorithm": "/home/me/own.py:row",
        "steps": 100,
        "other_tasks": {"hanoi": {"eval_after": scores}},
    }
    summary |= {"eval_before": None, "eval_after": {**scores, "pass@1": 0.5}, "best": {**scores, "step": 50}}
    text = card(run, summary, tmp_path / "step_000050", "Qwen/Qwen3-0.6B")
    facts = yaml.safe_load(text.split("---")[1])
    assert (facts["library_name"], facts["base_model"]) == ("peft", "Qwen/Qwen3-0.6B")
    assert (
        "Adapters of Qwen/Qwen3-0.6B, trained by MinRL 0.1.0 (commit ccccccc) with\n`own.py:row` on the task `mine.py"
        in text
    )
    assert ": step 50, the\nbest of the run by its held-out score.\n" in text
    interval = "(12.5% to 50.0%)"
    assert (
        "| held-out pass@1 (95 % interval) | before | after step 100 | step 50 |\n| --- | --- | --- | --- |\n"
        f"| mine.py:mine | - | 50.0% {interval} | 25.0% {interval} |\n| hanoi | - | 25.0% {interval} | - |\n\n" in text
    )
    assert "/home" not in text and "10.0.0.7" not in text and "lora_rank: 8" in text
    assert 'AutoPeftModelForCausalLM.from_pretrained("me/adapters")' in text
