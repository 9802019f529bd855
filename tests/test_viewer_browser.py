"""The rollouts page in a real browser: a headless Chromium opens the file and is driven by keys and clicks."""

import re
import shutil
import time

import pytest
from rollout_runs import line, many, write_run

from minrl.report.rollouts import Limits, make_page
from minrl.types import PlayedTurn, Reward

pytestmark = pytest.mark.browser

HOSTILE = [
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", "&lt;b&gt;", "\u2028", "\ud800", "\x1b[31m",
    "\u202egnp.exe", "x" * 3000, "\r\n", "", "👩‍👩‍👧", "<end>",
]  # fmt: skip


@pytest.fixture(scope="module")
def chromium():
    """One browser for all tests, from the packages chromium and chromium-driver."""
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("needs Chromium and chromedriver (apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs Chromium and selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_page_load_timeout(120)
    yield browser
    browser.quit()


class Page:
    """What a reader does and sees."""

    def __init__(self, browser, address):
        self.browser = browser
        browser.get("about:blank")  # a change of the address after # alone would load nothing
        browser.get(address)
        self.wait("return document.body.dataset.ready === 'all'")

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def wait(self, script, seconds=120):
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"not within {seconds} s: {script}\n{self.text('body')}"
            time.sleep(0.02)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def count(self, selector):
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def keys(self, *keys):
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.browser).send_keys(key).perform()

    def choose(self, name, value):
        script = "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.onchange()"
        self.run(script, name, value)


@pytest.fixture
def open_page(chromium):
    """Opens a page, and at the end sees that the browser had nothing to complain about and asked nobody."""
    pages = []

    def opened(path, words="", width=1280, dark=False):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        pages.append(Page(chromium, path.as_uri() + words))
        return pages[-1]

    yield opened
    if pages:
        assert pages[-1].run("return performance.getEntriesByType('resource').map((e) => e.name)") == []
    assert [entry["message"] for entry in chromium.get_log("browser")] == []


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Three steps: three rollouts of one group that can be told apart, and a held-out example at each step."""
    steps = {}
    for step in (10, 20, 30):
        group = [
            line([[" first", " of", f" {step}"]], sample=0, reward=Reward(0.0, {"format": 0.0}), advantage=-1.0),
            line([[" second", "<end>"]], sample=1, reward=Reward(1.0, {"format": 1.0}), advantage=2.0),
            line([[" third", " cut"]], sample=2, reward=Reward(0.5), finish_reason="length", advantage=0.0),
        ]
        # Mean surprise: 0.25, 3, 1 nats; log-probabilities of the policy differ from the engine's by 1e-4.
        group[1]["rollout_logprobs"], group[1]["logprobs"] = [0.0, -6.0, -0.0], [-6.0001, -0.0001]
        group[2]["rollout_logprobs"], group[2]["logprobs"] = [0.0, -1.0, -1.0], None
        group[0]["importance_weights"] = [2.0, 0.5, 1.0]
        group[0]["moved"], group[1]["moved"], group[2]["moved"] = [-0.01, 0.02, 0.0], [0.04, -0.04], None
        kept = line([[f" held at {step}"]], purpose="held_out", example_id="kept", prompt="what is kept")
        steps[step] = [*group, kept]
    return write_run(tmp_path_factory.mktemp("runs") / "three", steps)


@pytest.fixture
def page(run_folder, open_page):
    return open_page(make_page(run_folder))


ROWS = "#board .rollout .wrote"
ESCAPE, ENTER, LEFT, RIGHT, DOWN = "\ue00c", "\ue007", "\ue012", "\ue014", "\ue015"


def test_nothing_that_a_model_wrote_becomes_html(tmp_path, open_page):
    one = line([HOSTILE], prompt="<b>bold</b></script>", example_id="<i>id</i>", shown="<u>")
    two = line([HOSTILE, HOSTILE], group=1, slot=1, roles=("<script>alert(3)</script>",))
    page = open_page(make_page(write_run(tmp_path / "run", {10: [one, two]})))
    scripts = page.count("script")
    assert page.count("#board img, #board b b, #board i, #board u, #board script") == 0
    (text, *_) = page.texts(ROWS)
    for expected in (*HOSTILE[:3], "U+2028", "U+D800", r"\x1b[31m", "U+202Egnp.exe", "x" * 3000, r"\x0d", "👩‍👩‍👧"):
        assert expected in text
    assert "<b>bold</b></script>" in page.texts(".prompt .shown")
    page.keys("j", ENTER)
    assert page.text("#detail h2 .text").strip() == "<i>id</i>"
    assert page.count("script") == scripts
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")  # long tokens are broken


def test_the_question_is_seen_before_the_prompt_is_opened_and_the_whole_prompt_after(tmp_path, open_page):
    system, question = "You are a helpful assistant. " * 20, "What is 3 + 5?"
    prompt = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    message = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    lines = [line([[" 8"]], prompt=prompt, message=message), line([[" 9"]], prompt="numbers 3 5", group=1, slot=1)]
    page = open_page(make_page(write_run(tmp_path / "run", {10: lines})))
    assert [page.text(f".group:nth-of-type({n}) .prompt").strip() for n in (1, 2)] == [question, "numbers 3 5"]
    page.run("document.querySelector('.prompt summary').click()")
    assert page.text(".prompt").strip() == prompt.strip()


def test_script_that_gets_into_the_page_is_not_run(tmp_path, open_page, chromium):
    """The second wall: were a text put in as HTML after all, the page's policy would refuse it."""
    path = make_page(write_run(tmp_path / "run", {10: [line([[" a"]])]}))
    page = open_page(path)
    page.run("document.body.insertAdjacentHTML('beforeend', '<img src onerror=\"window.broken = 1\">')")
    page.run("const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s)")
    time.sleep(0.2)
    assert page.run("return window.broken") is None
    refused = chromium.get_log("browser")
    assert refused and all("Content Security Policy" in entry["message"] for entry in refused)


def test_a_step_is_picked_by_click_and_by_key(page):
    assert page.texts("#steps .number") == ["10", "20", "30"]
    assert " first of 30" in page.texts(ROWS)
    page.run("document.querySelector('#steps button').click()")
    page.wait("return document.querySelector('#summary').textContent.startsWith('Step 10')")
    assert " first of 10" in page.texts(ROWS)
    page.keys("]")
    page.wait("return document.querySelector('#summary').textContent.startsWith('Step 20')")
    page.keys(LEFT)
    page.wait("return document.querySelector('#summary').textContent.startsWith('Step 10')")
    assert page.run("return document.querySelector('#steps [aria-pressed=true]').dataset.step") == "10"
    page.browser.refresh()  # the address remembers what was looked at
    page.wait("return document.body.dataset.ready === 'all'")
    assert " first of 10" in page.texts(ROWS)


def test_groups_stand_side_by_side_with_all_that_is_known(page):
    boxes = page.run("return [...document.querySelectorAll('.group')].map((e) => e.getBoundingClientRect().toJSON())")
    assert len(boxes) == 2 and boxes[0]["top"] == boxes[1]["top"] and boxes[0]["right"] < boxes[1]["left"]
    assert page.texts(".group > .quiet")[0] == "training · mean reward 0.5 · 1 of 3 solved"
    facts = page.texts("#board .facts")
    for expected in ("format 0", "stop", "3 tok", "0.25 nats/tok", "adv −1"):
        assert expected in facts[0]
    assert "seed" not in facts[0]  # of 19 digits, which the rollout in full has
    assert "✂ length" in facts[2] and page.texts("#board .badge")[:3] == ["0.00", "1.00 ✓", "0.50"]


ROWS_BY = {
    "order": ["first of 30", "second<end>", "third cut"],
    "best": ["second<end>", "third cut", "first of 30"],
    "worst": ["first of 30", "third cut", "second<end>"],
    "longest": ["first of 30", "second<end>", "third cut"],
    "surprising": ["second<end>", "third cut", "first of 30"],
}


def test_rollouts_are_sorted_and_kinds_of_them_shown_alone(page):
    for show, count in {"train": 3, "held_out": 1, "solved": 1, "truncated": 1, "unscorable": 0}.items():
        page.choose("show", show)
        assert page.count("#board .rollout") == count
    page.choose("show", "train")
    for view in ("groups", "list"):
        page.choose("view", view)
        for sort, expected in ROWS_BY.items():
            page.choose("sort", sort)
            assert [text.strip() for text in page.texts(ROWS)] == expected


def colours(page, row):
    script = """return [...document.querySelectorAll('#board .rollout')[arguments[0]].querySelectorAll('.t')].map((t) =>
        [[...t.classList].find((c) => ['pos', 'neg', 'seq', 'unknown'].includes(c)) ?? '',
         Number(t.style.getPropertyValue('--level'))])"""
    return [tuple(one) for one in page.run(script, row)]


def test_tokens_are_coloured_by_each_number(page):
    # Log-probability: level 8 * sqrt(surprise / 6), so 0.25 -> 1.6, 1 -> 3.3, 6 -> 8.
    assert [colours(page, row) for row in range(3)] == [[("seq", 2)] * 3, [("seq", 8), ("", 0)], [("seq", 3)] * 2]
    assert page.texts("#legend .ticks b") == ["p = 1", "0.22", "≤ 0.0025"]
    page.keys("c")  # advantage: the largest of the step, 2, is level 8
    assert colours(page, 0)[0] == ("neg", 4) and colours(page, 1)[0] == ("pos", 8)
    assert colours(page, 2)[0][0] == "" and page.texts("#legend .ticks b") == ["−2", "0", "+2"]
    page.keys("c")  # importance weight: on a scale of powers of two from one half to two
    assert colours(page, 0) == [("pos", 8), ("neg", 8), ("", 0)]
    assert colours(page, 2) == [("unknown", 0), ("unknown", 0)]
    page.keys("c")  # engine gap: the largest of the step is 1e-4
    assert [one[0] for one in colours(page, 0) + colours(page, 2)] == ["neg"] * 3 + ["unknown"] * 2
    assert page.texts("#legend .ticks b") == ["−1.0e−4", "0", "+1.0e−4"]
    page.keys(
        "c"
    )  # moved by the update: with the advantage, of the first rollout below 0, or against it; 0.04 is level 8
    assert colours(page, 0) == [("pos", 2), ("neg", 4), ("", 0)]
    assert colours(page, 1) == [("pos", 8), ("neg", 8)] and colours(page, 2) == [("unknown", 0)] * 2
    assert page.texts("#legend .ticks b") == ["against 0.04", "0", "with 0.04"]
    page.keys("c")
    assert {one[0] for row in range(3) for one in colours(page, row)} == {""}


def test_the_most_mixed_group_comes_first(tmp_path, open_page):
    rewards = {"solved": (1.0, 1.0), "half": (0.0, 1.0), "near": (0.4, 0.6), "lost": (None, None), "failed": (0.0, 0.0)}
    lines = [
        line([[f" {name}"]], group=n, slot=n, sample=m, example_id=name, reward=None if one is None else Reward(one))
        for n, (name, pair) in enumerate(rewards.items())
        for m, one in enumerate(pair)
    ]
    page = open_page(make_page(write_run(tmp_path / "run", {10: lines})))
    assert page.texts(".group h3") == ["half", "near", "solved", "lost", "failed"]  # and then as sampled
    page.choose("sort", "order")
    assert page.texts(".group h3") == list(rewards)


def test_the_search_narrows_and_counts_at_every_step(page):
    page.keys("/", *"Second")
    page.wait("return document.querySelectorAll('#board .rollout').length === 1")
    assert page.texts(ROWS) == [" second<end>"]
    assert page.texts("#steps .found") == ["1", "1", "1"]
    assert page.run("return [...CSS.highlights.get('match')].map(String)") == ["second"]
    page.keys(ESCAPE)
    page.wait("return document.querySelectorAll('#board .rollout').length === 4")
    page.keys("/", *"of 20")
    page.wait("return document.querySelectorAll('#board .note').length === 1")
    assert "No rollout of step 30 has “of 20” in it" in page.text("#board")
    assert page.texts("#steps .found") == ["", "1", ""] and page.count("#steps .without") == 2
    page.keys(ESCAPE)


def test_everything_is_reached_by_keys(page):
    page.keys("j", "j")
    assert "second" in page.run("return document.activeElement.textContent")
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keys(ENTER)
    assert page.run("return !document.getElementById('detail').hidden")
    page.keys(RIGHT)
    assert page.run("return !document.getElementById('tip').hidden")
    tip = page.text("#tip")
    assert "1 of 2" in tip and "−6" in tip and "0.25 %" in tip and "−1.0e−4" in tip and "+2" in tip
    page.keys(RIGHT)
    assert "2 of 2" in page.text("#tip")
    page.keys(DOWN)
    assert "third" in page.text("#detail") and str(2**62 + 1) in page.text("#detail")
    page.keys(ESCAPE, "?")
    assert page.run("return document.getElementById('help').open")
    page.keys(ESCAPE)
    assert not page.run("return document.getElementById('help').open")
    page.keys("v")
    assert page.run("return document.getElementById('view').value") == "list"
    page.keys("k", ENTER, ESCAPE)
    assert page.run("return document.activeElement.classList.contains('rollout')")


def test_two_players_read_as_a_conversation(tmp_path, open_page):
    turns = [("x", "stop", None), ("o", "stop", None), ("gm", "stop", "said by a frozen one"), ("x", "length", None)]
    episode = [PlayedTurn(role, n, finish, text) for n, (role, finish, text) in enumerate(turns)]
    lines = []
    for sample in (0, 1):
        same = {"episode": episode, "sample": sample}
        lines.append(line([[f" x1 {sample}"], [" x2"]], roles=("x",), prompt="board for x", **same))
        lines.append(line([[f" o1 {sample}"]], roles=("o",), prompt="board for o", group=1, **same))
    page = open_page(make_page(write_run(tmp_path / "run", {10: lines})))
    assert page.texts(".group > .quiet")[1].startswith("training · role o")
    page.keys("j", "j", ENTER)
    assert page.texts("#detail .turn .text") == [
        "board for x", " x1 1", "board for o", " o1 1", "said by a frozen one", "<shown>", " x2",
    ]  # fmt: skip
    heads = page.texts("#detail .turn h4")
    assert heads[0] == "prompt to x" and heads[1] == "x stop · seed 0" and heads[4] == "gm (frozen) stop · seed 2"
    assert heads[6] == "x cut off at the limit · seed 3"


def test_what_a_tool_printed_has_a_heading(tmp_path, open_page):
    episode = [PlayedTurn("policy", 1, "stop"), PlayedTurn("policy", 2, "stop", shown_by="tool")]
    episode.append(PlayedTurn("policy", 3, "stop"))
    one = line([["a call"], ["an answer"], ["another"]], episode=episode)
    page = open_page(make_page(write_run(tmp_path / "run", {10: [one]})))
    assert page.texts(".rollout .clamp h4") == ["tool"]
    page.keys("j", ENTER)
    heads = page.texts("#detail .turn h4")
    assert [head.split(" stop")[0] for head in heads] == ["prompt", "policy", "tool", "policy", "shown", "policy"]


LUMINANCE = """
const [selector, property] = arguments;
const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const behind = (e) => [...(e.parentElement ? behind(e.parentElement) : []), getComputedStyle(e).backgroundColor];
const light = (colours) => {
  for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
return [...document.querySelectorAll(selector)].map((e) => {
  const [a, b] = [light(behind(e)), light([...behind(e), getComputedStyle(e).color])];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
});
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_is_readable_on_every_colour(run_folder, open_page, dark):
    """A contrast of at least 4.5 to 1 (WCAG 2.2, 1.4.3), on the deepest colours too."""
    page = open_page(make_page(run_folder), dark=dark)
    for colour in ("logprob", "advantage", "weight"):
        page.choose("colour", colour)
        contrasts = page.run(
            LUMINANCE, "#board .t:not(.special), .facts span, .badge, #summary, .group > .quiet, #facts"
        )
        assert min(contrasts) >= 4.5
    dark_page = "return getComputedStyle(document.body).backgroundColor"
    before = page.run(dark_page)
    page.keys("t")
    assert page.run(dark_page) != before
    page.keys("t")
    assert page.run(dark_page) == before


def test_a_narrow_window_scrolls_in_one_direction(run_folder, open_page):
    page = open_page(make_page(run_folder), width=360)
    page.keys("j", ENTER)
    assert page.run("return document.documentElement.scrollWidth") <= 360
    assert page.run("return document.getElementById('detail').getBoundingClientRect().width") <= 360


def test_what_is_missing_is_said(tmp_path, open_page):
    folder = write_run(tmp_path / "run", {})
    assert "No rollouts yet. They are written every 10 steps" in open_page(make_page(folder)).text("#board")
    write_run(folder, {10: many(3, 2), 20: many(3, 2)}, rollouts_every=0)
    torn = folder / "rollouts" / "step_000020.jsonl.gz"
    torn.write_bytes(torn.read_bytes()[:100])
    page = open_page(make_page(folder, None, Limits(tokens_per_step=1)))
    assert re.search(r"This step is missing: step_000020.jsonl.gz cannot be read", page.text("#board"))
    page.keys("[")
    page.wait("return document.querySelectorAll('#board .rollout').length === 2")
    assert "the page holds 2 of the 6 rollouts in rollouts/" in page.text("#summary")


@pytest.mark.slow
def test_ten_thousand_rollouts_open_without_being_drawn_all(tmp_path, open_page, chromium):
    """In some two seconds of the page's own thread, of which a slow machine may need many more."""
    path = make_page(write_run(tmp_path / "run", {10: many(1250, 8)}), None, Limits(tokens_per_step=0))
    chromium.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    page = open_page(path)
    metrics = {one["name"]: one["value"] for one in chromium.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
    chromium.execute_cdp_cmd("Performance.disable", {})
    assert page.run("return performance.measure('open', undefined, 'opened').duration") > 0
    assert metrics["TaskDuration"] < 60
    assert 0 < page.count("#board .rollout") < 400
    assert page.text("#summary").startswith("Step 10: 10000 rollouts")
    page.run("scrollTo(0, document.body.scrollHeight)")
    page.wait("return document.querySelectorAll('#board .rollout').length > 150")  # more is drawn as one scrolls
