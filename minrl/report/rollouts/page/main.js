// The page: what is chosen stands in its address, so that a reload, or a link, shows the same.

function draw() {
  const step = steps.get(state.step);
  if (!step?.rollouts) return;
  rememberState();
  markSteps();
  showLegend(step);
  if (state.example) return drawComparison();
  drawBoard(step);
  showSummary(step);
}

function showSummary(step) {
  const shown = step.rollouts.filter(wanted);
  const scored = shown.filter((r) => r.reward !== null);
  const facts = [`Step ${step.step}: ${shown.length} rollouts in ${groupBy(shown, (r) => r.groupKey).size} groups`];
  if (scored.length) {
    facts.push(`mean reward ${digits(mean(scored.map((r) => r.reward)))}`, `${percent(scored.filter((r) => r.solved).length / shown.length)} solved`);
  }
  const cut = shown.filter((r) => r.truncated).length;
  const unscorable = shown.length - scored.length;
  if (cut) facts.push(`${cut} cut off`);
  if (unscorable) facts.push(`${unscorable} unscorable`);
  if (step.about.shown < step.about.total) {
    facts.push(`the page holds ${step.about.shown} of the ${step.about.total} rollouts in rollouts/`);
  }
  document.getElementById("summary").textContent = facts.join(" · ");
}

// Colours change in place: nothing is laid out anew, and what has the focus keeps it.
function recolour() {
  const step = steps.get(state.step);
  showLegend(step);
  rememberState();
  for (const token of document.querySelectorAll(".t")) {
    const r = rolloutAt(token);
    colourToken(token, r, Number(token.dataset.i), rangeOf(steps.get(r.step), state.colour));
  }
}

const CHOICES = {
  colour: Object.entries(SCALES).map(([name, { label }]) => [name, label]),
  view: Object.entries(VIEWS),
  sort: Object.entries(SORTS).map(([name, [label]]) => [name, label]),
  show: Object.entries(SHOWS).map(([name, [label]]) => [name, label]),
};

function setChoice(name, value) {
  state[name] = value;
  document.getElementById(name).value = value;
}

const typing = { timer: 0 };

function setQuery(query) {
  clearTimeout(typing.timer);
  state.query = query;
  document.getElementById("search").value = query;
}

function fillChoices() {
  for (const [name, options] of Object.entries(CHOICES)) {
    const select = document.getElementById(name);
    select.append(...options.map(([value, label]) => el("option", { value }, label)));
    select.value = state[name];
    select.onchange = () => {
      state[name] = select.value;
      if (name === "colour") recolour();
      else draw();
    };
  }
}

function rememberState() {
  const { step, colour, view, sort, show, query } = state;
  const words = new URLSearchParams({ step, colour, view, sort, show });
  if (query) words.set("query", query);
  history.replaceState(null, "", `#${words}`);
}

function recallState() {
  const words = new URLSearchParams(location.hash.slice(1));
  for (const [name, options] of Object.entries(CHOICES)) {
    const value = words.get(name);
    if (options.some(([known]) => known === value)) state[name] = value;
  }
  state.query = words.get("query") ?? "";
  const asked = Number(words.get("step"));
  state.step = words.has("step") && steps.has(asked) ? asked : [...steps.keys()].pop();
}

const THEMES = ["light", "dark"];

// A page in a file may be refused its storage; the theme is then the system's at each visit.
function storedTheme(value) {
  try {
    if (value) localStorage.setItem("minrl-theme", value);
    return localStorage.getItem("minrl-theme");
  } catch {
    return value;
  }
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = storedTheme(dark ? "light" : "dark") ?? (dark ? "light" : "dark");
}

function listen() {
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  document.addEventListener("mouseover", (event) => (event.target.closest(".t") ? showTip(event.target.closest(".t")) : hideTip()));
  document.addEventListener("focusin", (event) => (event.target.matches(".t") ? showTip(event.target) : hideTip()));
  document.addEventListener("scroll", hideTip, true);
  const search = document.getElementById("search");
  search.oninput = () => {
    state.query = search.value;
    clearTimeout(typing.timer);
    typing.timer = setTimeout(draw, 120);
  };
  new IntersectionObserver(([entry]) => entry.isIntersecting && drawMore(), { rootMargin: "600px" }).observe(document.getElementById("more"));
}

function onClick(event) {
  const { target } = event;
  const step = target.closest("#steps button");
  if (step) return goToStep(Number(step.dataset.step));
  if (target.closest("#theme")) return switchTheme();
  if (target.closest("#keys")) return showHelp();
  if (target.closest("#close, #back")) return goBack();
  const across = target.closest(".across");
  if (across) return openComparison(detail.rollout && across.closest("#detail") ? detail.rollout : rolloutAt(across.closest(".group").querySelector(".rollout")));
  const row = target.closest("#board .rollout");
  if (row && !target.closest("summary") && !String(getSelection())) openDetail(rolloutAt(row), row);
}

function showRun(run) {
  document.getElementById("name").textContent = run.name;
  const model = run.model_id || "embedded base model";
  const facts = [run.task, run.algorithm, model, run.commit && `commit ${run.commit.slice(0, 7)}`].filter(Boolean);
  if (run.steps_shown < run.steps_written) facts.push(`${run.steps_shown} of ${run.steps_written} logged steps`);
  document.getElementById("facts").textContent = facts.join(" · ");
}

function nothingYet(run) {
  const every = run.rollouts_every
    ? `They are written every ${run.rollouts_every} steps; this run has not come to the first.`
    : "This run writes none: --rollouts-every is 0.";
  clearBoard();
  document.getElementById("bar").hidden = true;
  document.getElementById("board").append(el("p", { class: "note" }, `No rollouts yet. ${every}`));
  document.body.dataset.ready = "all";
}

async function start() {
  const theme = storedTheme();
  if (THEMES.includes(theme)) document.documentElement.dataset.theme = theme;
  const run = await readPage();
  showRun(run);
  if (!steps.size) return nothingYet(run);
  document.getElementById("bar").hidden = false;
  recallState();
  fillChoices();
  setQuery(state.query);
  drawSteps();
  listen();
  await goToStep(state.step);
  document.body.dataset.ready = "first";
  performance.mark("opened");
  await loadTheRest();
}

// Whatever goes wrong is said on the page: a blank one would leave the reader guessing.
function tell(error) {
  document.getElementById("board").prepend(el("p", { class: "note problem" }, `This page has a fault: ${error?.message ?? error}`));
}

addEventListener("error", (event) => tell(event.error ?? event.message));
addEventListener("unhandledrejection", (event) => tell(event.reason));
start();
