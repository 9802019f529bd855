"""A finished run is pushed to a stand-in of the hub's API, with its card; what cannot be pushed is not lost."""

import base64
import json
import re

import huggingface_hub
import pytest
import yaml

from minrl.__main__ import main
from minrl.dataflow import UserError
from minrl.run.folder import RunFolder
from minrl.run.hub import card, require_hub
from minrl.run.run import Run
from minrl.utils.files import read_json
from tests.chat_server import ChatServer
from tests.conftest import SMALL_RUN
from tests.parsed import sized

TOKEN = "hf_thisIsASecretOfTheTest"


class Hub(ChatServer):
    """create_repo, preupload and commit of the hub, for one repository, whose files are `files`."""

    def __init__(self):
        super().__init__(None)
        self.address, self.created, self.files, self.refuses = self.url.removesuffix("/v1"), [], {}, "nothing"

    def read(self, text):
        return [json.loads(line) for line in text.splitlines()]

    def respond(self, path, given):
        if self.refuses in path:
            return 403, {}, json.dumps({"error": f"no rights of {TOKEN}"})
        match path:
            case "/api/repos/create":
                self.created += given
                return {"url": f"{self.address}/me/sevens"}
            case "/api/validate-yaml":
                return {"errors": [], "warnings": []}
            case "/api/models/me/sevens/preupload/main":
                modes = {"uploadMode": "regular", "shouldIgnore": False}
                return {"files": [{"path": one["path"], **modes} for one in given[0]["files"]]}
        assert path == "/api/models/me/sevens/commit/main"
        for one in (line["value"] for line in given if line["key"] == "file"):
            self.files[one["path"]] = base64.b64decode(one["content"])
        url = f"{self.address}/me/sevens/commit/0"
        return {"success": True, "commitUrl": url, "commitOid": "0", "pullRequestUrl": None}


@pytest.fixture
def hub(monkeypatch):
    """The stand-in, at which huggingface_hub looks for the hub."""
    server = Hub()
    for name, value in {"ENDPOINT": server.address, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.close()


PUSHED = ["train", "--resume", "runs/run", "--push-to-hub", "me/sevens", "--no-quiet"]


def test_a_finished_run_is_pushed_with_its_card_and_without_what_only_it_reads(run, hub, capsys):
    assert main(PUSHED) == 0
    folder = run / "checkpoints/run/step_000003"
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {*files} - {*hub.files} == {"optimizer.safetensors", "trainer.json"}
    assert hub.files == {name: files[name] for name in hub.files} and "model.safetensors" in hub.files
    assert {headers["Authorization"] for headers in hub.headers} == {f"Bearer {TOKEN}"}
    assert hub.created == [{"name": "sevens", "organization": "me"}]  # the hub's own default of who sees it
    facts, text = re.fullmatch(r"---\n(.*?)---\n(.*)", hub.files["README.md"].decode(), re.DOTALL).groups()
    kind = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    assert yaml.safe_load(facts) == {**kind, "tags": ["minrl", "reinforcement-learning"]}  # `model` is a local folder
    before, after = read_json(run / "runs/run/eval_before.json")["sevens"], RunFolder.open("run").summary["eval_after"]
    scores = ["{:.1%} ({:.1%} to {:.1%})".format(one["pass@1"], *one["ci95"]) for one in (before, after)]
    assert f"| after step 3 |\n| --- | --- | --- |\n| sevens | {scores[0]} | {scores[1]} |\n" in text
    assert 'AutoModelForCausalLM.from_pretrained("me/sevens")' in text
    settings = yaml.safe_load(text.rpartition("defaults\n")[2])
    assert (settings["learning_rate"], settings["schedule"]) == (5e-3, "constant") and "push_to_hub" not in settings
    assert all(str(run).encode() not in content for content in hub.files.values())
    said = capsys.readouterr()
    assert f"pushed checkpoints/run/step_000003 to {hub.address}/me/sevens" in said.err
    assert TOKEN not in said.out + said.err + (run / "runs/run/log.txt").read_text()


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


def test_another_name_or_no_token_or_offline_is_refused_before_anything_is_made(place, hub, monkeypatch):
    with pytest.raises(UserError, match="push_to_hub must be the name of a repository of the hub, such as user/name"):
        main(["train", *SMALL_RUN, "--push-to-hub", "https://hf.co/me/sevens"])
    assert not (place / "runs").exists() and hub.asked == []
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "/nowhere")
    with pytest.raises(UserError, match="finds no token of the hub: log in with `hf auth login`"):
        require_hub("me/sevens")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        require_hub("me/sevens")


def test_the_card_of_adapters_names_base_and_best_step_and_no_folder_or_address_of_this_machine(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"minrl_run": "run", "config": {}, "commit": "c" * 40}))
    (tmp_path / "step_000050").mkdir()
    (tmp_path / "step_000050/adapter_config.json").write_text("{}")
    own = {"judge_model": "j", "judge_base_url": "http://10.0.0.7/v1", "teacher_prompt": "{prompt} /home/me/x.txt"}
    config = sized(task="/home/me/my tasks/mine.py:mine", push_to_hub="me/adapters", model_id="Qwen/Qwen3-0.6B", **own)
    scores = {"pass@1": 0.25, "ci95": [0.125, 0.5], "reward": 0.5}
    summary = {"task": config.task, "algorithm": "/home/me/own.py:row", "steps": 100, "other_tasks": {}}
    summary |= {"eval_before": None, "eval_after": {**scores, "pass@1": 0.5}, "best": {**scores, "step": 50}}
    text = card(Run(tmp_path, tmp_path, config, {}), summary, tmp_path / "step_000050", "Qwen/Qwen3-0.6B")
    facts = yaml.safe_load(text.split("---")[1])
    assert (facts["library_name"], facts["base_model"]) == ("peft", "Qwen/Qwen3-0.6B")
    assert "(commit ccccccc)" in text and "`own.py:row` on the task `mine.py" in text and ": step 50, the\nbest" in text
    assert "| before | after step 100 | step 50 |\n" in text
    assert "\n| mine.py:mine | - | 50.0% (12.5% to 50.0%) | 25.0% (12.5% to 50.0%) |\n" in text
    assert "/home" not in text and "10.0.0.7" not in text
    assert 'AutoPeftModelForCausalLM.from_pretrained("me/adapters")' in text
