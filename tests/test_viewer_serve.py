"""A page that follows a run: what the server reads, what it answers, whom it refuses, how it ends."""

import gzip
import http.client
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest
from rollout_runs import many, write_run

from minrl.__main__ import main
from minrl.report.rollouts import build
from minrl.report.rollouts.build import PAGE, Limits, make_page
from minrl.report.rollouts.chunk import encode, read_lines
from minrl.report.rollouts.serve import Follower, open_server, progress
from minrl.types import UserError
from minrl.utils.loopback import LOOPBACK

STEP = "rollouts/step_{:06d}.jsonl.gz"


@pytest.fixture
def read(monkeypatch):
    """The names of the files of rollouts that were read."""
    names = []
    monkeypatch.setattr(build, "read_lines", lambda path: names.append(path.name) or read_lines(path))
    return names


@pytest.fixture
def serve(tmp_path):
    """Serves a run with these steps; yields a function that asks for a path."""
    servers = []

    def ask(path, host="localhost", method="GET"):
        server = servers[-1]
        connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=60)
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer, answer.read()

    def started(steps):
        servers.append(open_server(write_run(tmp_path / "run", steps), Limits(), 0))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return ask

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def listed(news):
    return [one["step"] for one in news["steps"]]


def test_a_file_is_read_once_however_often_a_page_asks(tmp_path, read):
    folder = write_run(tmp_path / "run", {10: many(2, 2), 20: many(2, 2)})
    follower = Follower(folder, Limits())
    first = follower.news()
    assert listed(first) == [10, 20] and sorted(read) == ["step_000010.jsonl.gz", "step_000020.jsonl.gz"]
    assert follower.news() == first and len(read) == 2
    write_run(folder, {30: many(2, 2)})
    news = follower.news()
    assert listed(news) == [10, 20, 30] and read[2:] == ["step_000030.jsonl.gz"]
    assert news["version"] != first["version"] and news["steps"][:2] == first["steps"]
    make_page(folder)
    read.clear()
    assert listed(Follower(folder, Limits()).news()) == [10, 20, 30] and not read  # the page that the run makes helps


def test_a_request_packs_for_about_a_second_and_the_newest_step_comes_first(tmp_path, read):
    folder = write_run(tmp_path / "run", {step: many(1, 2) for step in (10, 20, 30, 40)})
    clock = itertools.count(step=0.6)  # each look at it 0.6 s later
    follower = Follower(folder, Limits(), lambda: next(clock))
    for expected in (([30, 40], True), ([10, 20, 30, 40], False)):
        news = follower.news()
        assert (listed(news), news["more"]) == expected
    assert read == [f"step_0000{step}.jsonl.gz" for step in (40, 30, 20, 10)]


def test_what_a_resume_cuts_away_or_writes_anew_is_seen(tmp_path):
    folder = write_run(tmp_path / "run", {10: many(2, 2), 20: many(2, 2)})
    follower = Follower(folder, Limits())
    before = follower.news()["steps"]
    write_run(folder, {20: many(3, 2)})
    after = follower.news()["steps"]
    assert after[0] == before[0] and after[1]["source"] != before[1]["source"] and after[1]["about"]["total"] == 6
    (folder / STEP.format(20)).unlink()
    assert listed(follower.news()) == [10] and follower.data(20) is None
    (folder / "config.json").write_text("{")  # while it is written anew
    assert follower.news()["run"]["task"] == "countdown"
    shutil.rmtree(folder)
    news = follower.news()
    assert listed(news) == [] and news["run"]["step"] is None


def test_torn_files_cost_only_what_they_lack(tmp_path):
    folder = write_run(tmp_path / "run", {10: many(2, 2), 20: many(2, 2)})
    whole = (folder / STEP.format(20)).read_bytes()
    (folder / STEP.format(20)).write_bytes(whole[:100])
    (folder / "metrics.jsonl").write_bytes(b'{"step": 19}\n{"step": 20}\n{"st')
    follower = Follower(folder, Limits())
    news = follower.news()
    assert "cannot be read" in news["steps"][1]["about"]["problem"] and news["run"]["step"] == 20
    assert follower.data(10) is not None and follower.data(20) is None
    (folder / STEP.format(20)).write_bytes(whole)  # a copy that went on
    assert "problem" not in follower.news()["steps"][1]["about"] and follower.data(20) is not None


@pytest.mark.parametrize(
    "text", ["[]", "5", '{"schema": 2}', '{"schema": 2, "purpose": "train", "slot": 0}', "[" * 9999]
)
def test_a_file_of_anything_else_costs_its_own_step(tmp_path, text):
    folder = write_run(tmp_path / "run", {10: many(2, 2), 20: []})
    with gzip.open(folder / STEP.format(20), "wt") as file:
        file.write(f"{text}\n")
    follower = Follower(folder, Limits())
    kept, lost = (one["about"] for one in follower.news()["steps"])
    assert kept["total"] == 4 and follower.data(10) is not None and follower.data(20) is None
    assert lost["problem"].startswith(("step_000020.jsonl.gz is damaged: ", "step_000020.jsonl.gz has rollouts of"))
    make_page(folder)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("", None),
        ('{"st', None),
        ('{"step": 1}\n', 1),
        ('{"step": 1}\nno JSON\n[]\n', 1),
        ('{"step": 1}\n{"step": Infinity}\n' + "[" * 9999 + "\n", 1),
        (f'{{"x": "{"y" * 99999}"', None),
    ],
)
def test_how_far_a_run_is_stands_in_its_last_whole_line(tmp_path, text, step):
    (tmp_path / "metrics.jsonl").write_text(text)
    about = progress(tmp_path)
    assert (about["step"], about["ended"]) == (step, False) and about["at"] > 0
    (tmp_path / "summary.json").write_text("{}")
    assert progress(tmp_path)["ended"]


def test_a_page_its_news_and_its_steps_are_served(serve):
    ask = serve({10: many(2, 2), 20: []})
    answer, page = ask("/")
    assert answer.status == 200 and answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert b"connect-src 'self'" in page and b"default-src 'none'" in page and b"unsafe" not in page
    answer, body = ask("/news")
    news = json.loads(body)
    assert listed(news) == [10, 20] and news["run"]["name"] == "run"
    answer, body = ask(f"/news?seen={news['version']}")
    assert (answer.status, body) == (204, b"")
    answer, body = ask("/step/10")
    assert answer.getheader("Content-Encoding") == "gzip"
    assert json.loads(gzip.decompress(body)) == json.loads(json.dumps(encode(many(2, 2))))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.2"])
def test_a_page_of_another_name_is_told_nothing(serve, host):
    ask = serve({10: many(1, 2)})
    for path in ("/", "/news", "/step/10"):
        answer, body = ask(path, host=host)
        assert answer.status == 403 and b"rollouts" not in body
    for own in ("localhost", "localhost:9", "127.0.0.1:9"):  # a port that is forwarded may be another
        assert ask("/news", host=own)[0].status == 200


def test_no_path_leads_out_of_the_page(serve):
    ask = serve({10: many(1, 2)})
    assert ask("/news")[0].status == ask("/step/10")[0].status == 200
    paths = ["/../config.json", "/step/../config.json", "/step/%2e%2e/config.json", "/step/10/..", "/config.json"]
    paths += [
        "/step/",
        "/step/11",
        "/step/-10",
        "/step/1e1",
        "/step/%D9%A3",
        "/step/" + "1" * 9999,
        "/step/0000000101",  # whose first nine digits are a step's
        "//[",
        "http://[/",
        "/page/main.js",
    ]
    for path in paths:
        answer, body = ask(path)
        assert (answer.status, body) == (404, b"there is no such page\n"), path
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
    for method in ("POST", "PUT", "DELETE"):
        assert ask("/news", method=method)[0].status == 501


def test_only_this_machine_is_answered(serve, tmp_path):
    serve({})
    server = open_server(tmp_path / "run", Limits(), 0)
    assert server.server_address[0] == "127.0.0.1"
    server.server_close()


def test_a_port_that_is_taken_is_one_line(tmp_path):
    folder = write_run(tmp_path / "run", {})
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"^port {port} of 127.0.0.1 cannot be had \(Address already in use\): name"
        ):
            main(["rollouts", str(folder), "--serve", "--port", str(port)])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--serve", "--port", "65536"], "port must be 0 .any free one., or from 1 to 65535, got 65536"),
        (["--serve", "--output", "x.html"], "--serve writes no file"),
        (["--port", "6006"], "--port is where --serve listens: add --serve"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path, flags, said):
    folder = write_run(tmp_path / "run", {})
    with pytest.raises(UserError, match=said):
        main(["rollouts", str(folder), *flags])
    with pytest.raises(UserError, match=r"holds no config\.json"):
        open_server(tmp_path, Limits(), 0)


def test_ctrl_c_ends_it_in_one_line(tmp_path):
    folder = write_run(tmp_path / "run", {10: many(1, 2)})
    command = [sys.executable, "-m", "minrl", "rollouts", str(folder), "--serve", "--port", "0"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert f"/ follows {folder}; Ctrl-C ends it" in program.stdout.readline()
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=60)
    assert (program.returncode, said) == (130, "interrupted\n")
    assert not (folder / PAGE).exists()
