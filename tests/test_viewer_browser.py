"""The rollouts page in a real browser: a headless Chromium opens the file and is driven by keys and clicks."""

import shutil
import time

import pytest
from rollout_runs import line, write_run

from minrl.dataflow import Reward
from minrl.report.rollouts import RolloutsConfig, write_page
from minrl.run.folder import RunFolder
from minrl.utils.files import write_packed

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

    def wait(self, script):
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.browser, 120, poll_frequency=0.02).until(lambda browser: self.run(script), script)

    def hover(self, token):
        """What is shown of the first token with this text."""
        self.run("[...document.querySelectorAll('.t')].find((t) => t.textContent === arguments[0])"
                 ".dispatchEvent(new MouseEvent('mouseover', { bubbles: true }))", token)  # fmt: skip
        return self.text("#tip")

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).innerText", selector).strip()

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def keys(self, *keys):
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.browser).send_keys(key).perform()


@pytest.fixture
def open_page(chromium, tmp_path):
    """Opens the page of a run with these rollouts, and at the end sees that the browser had nothing to complain about
    and asked nobody.
    """

    def opened(steps, evaluated=()):
        folder = write_run(tmp_path / "run", steps)
        if evaluated:
            write_packed(folder / "evaluations/step_000030.jsonl.gz", evaluated)
        return Page(chromium, write_page(RunFolder(folder), RolloutsConfig()).as_uri())

    yield opened
    assert chromium.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)") == []
    assert [entry["message"] for entry in chromium.get_log("browser")] == []


@pytest.fixture
def page(open_page):
    """Three steps: two rollouts of one group and a held-out one at each, and a row of an evaluation."""
    steps = {}
    for step in (10, 20, 30):
        first = line([[" first", " of", f" {step}"]], reward=Reward(0.0, {"format": 0.0}), advantage=-1.0)
        second = line([[" second", "<end>"]], sample=1, reward=Reward(1.0, {"format": 1.0}), advantage=2.0)
        second["rollout_logprobs"] = [0.0, -6.0, -0.0]
        steps[step] = [first, second, line([[f" held at {step}"]], purpose="held_out", example_id="kept")]
    asked = [{"role": "system", "content": "brief"}, {"role": "user", "content": "evaluated?"}]
    row = {"task": "countdown", "example_id": "e", "role": "policy", "mode": "greedy", "sample": 0, "prompt": asked}
    row |= {"completion": "said when evaluated", "tokens": 3, "truncated": False, "reward": 1.0, "solved": True}
    return open_page(steps, [row | {"parts": {"format": 1.0}}])


ROWS = "#board .rollout .wrote"
ESCAPE, RIGHT = "\ue00c", "\ue014"


def test_nothing_that_a_model_wrote_becomes_html(open_page):
    one = line([HOSTILE], prompt="<b>bold</b></script>", example_id="<i>id</i>", shown="<u>")
    two = line([HOSTILE, HOSTILE], group=1, slot=1, roles=("<script>alert(3)</script>",))
    page = open_page({10: [one, two]})
    scripts = page.texts("script")
    assert page.texts("#board img, #board b b, #board i, #board u, #board script") == []
    (text, *_) = page.texts(ROWS)
    written = [r"\u{2028}", r"\u{d800}", r"\u{1b}[31m", r"\u{202e}gnp.exe", "x" * 3000, r"\u{d}", "👩‍👩‍👧"]
    assert [one for one in (*HOSTILE[:3], *written) if one not in text] == []
    assert "<b>bold</b></script>" in page.texts(".prompt .shown")
    assert "<i>id</i>" in page.texts(".group h3")
    page.run("document.querySelectorAll('.rollout > summary').forEach((row) => row.click())")
    assert page.texts("script") == scripts
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")  # long tokens are broken


def test_script_that_gets_into_the_page_is_not_run(open_page, chromium):
    """The second wall: were a text put in as HTML after all, the page's policy would refuse it."""
    page = open_page({10: [line([[" a"]])]})
    page.run("document.body.insertAdjacentHTML('beforeend', '<img src onerror=\"window.broken = 1\">')")
    page.run("const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s)")
    time.sleep(0.2)
    assert page.run("return window.broken") is None
    refused = chromium.get_log("browser")
    assert refused and all("Content Security Policy" in entry["message"] for entry in refused)


def test_steps_are_picked_by_click_and_key_and_searched_and_an_evaluation_is_read_like_them(page):
    assert page.texts("#steps .number") == ["10", "20", "30"] and " first of 30" in page.texts(ROWS)
    page.run("document.querySelector('#steps button').click()")
    page.wait("return document.querySelector('#summary').textContent.startsWith('Step 10')")
    assert " first of 10" in page.texts(ROWS)
    page.keys(RIGHT)
    page.wait("return document.querySelector('#summary').textContent.startsWith('Step 20')")
    page.keys("/", *"second")
    page.wait("return document.querySelectorAll('#board .rollout').length === 1")
    assert page.texts(ROWS) == [" second<end>"]
    page.keys(ESCAPE)
    page.wait("return document.querySelectorAll('#board .rollout').length === 3")
    page.run("[...document.querySelectorAll('#steps button')].at(-1).click()")
    page.wait("return document.querySelector('#summary').textContent.startsWith('Step 30')")
    page.run("const show = document.getElementById('show'); show.value = 'evaluation'; show.onchange()")
    assert page.texts(ROWS) == ["said when evaluated"]
    page.wait("return document.querySelector('.prompt').innerText.trim() === 'evaluated?'")
    assert "greedy" in page.text(".facts") and "evaluation · " in page.text(".group p")


def test_a_token_has_its_numbers(page):
    tip = page.hover(" second")
    assert "1 of 2" in tip and "−6" in tip and str(2**62 + 1) in tip and "+2" in tip
    page.keys(ESCAPE)
    assert page.run("return document.getElementById('tip').hidden")


def test_a_turn_shows_its_reward_and_its_advantage_where_it_has_its_own(open_page):
    turns = [[" one", " two"], [" three"]]
    own = line(turns, advantage=[0.5, -0.125], turn_rewards=[0.25, 0.0])
    summed = line(turns, group=1, slot=1, advantage=2.0, turn_rewards=[0.25, 0.0])
    page = open_page({10: [own, summed]})
    heads = ["turn 1 · reward 0.25 · adv +0.5", "turn 2 · reward 0 · adv −0.125"]
    assert page.texts("#board .rollout h4") == [*heads, "turn 1 · reward 0.25", "turn 2 · reward 0"]
    assert "−0.125" in page.hover(" three")
