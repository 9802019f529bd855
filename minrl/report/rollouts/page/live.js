// A page that a server sent follows its run: it asks for what is new, and leaves the reader where they are.

const ASK_EVERY_MS = 2000;

const live = { version: "", run: null, opened: false, visited: 0 };

const pause = (milliseconds) => new Promise((resume) => setTimeout(resume, milliseconds));

// Until there are rollouts there is nothing to open.
follow.start = async function (run) {
  live.run = run;
  for (;;) {
    await lookForNews();
    if (steps.size) break;
    nothingYet(live.run);
    await pause(ASK_EVERY_MS);
  }
  live.opened = true;
  live.visited = newestStep();
};

follow.go = async function () {
  for (;;) {
    const more = await lookForNews();
    await pause(more ? 0 : ASK_EVERY_MS);
  }
};

// The server's answer; null where it gave none, or only a part: it may end, or the line to it break, at any moment.
async function ask(path) {
  try {
    const answer = await fetch(path);
    return { status: answer.status, body: answer.status === 200 ? await answer.json() : null };
  } catch {
    return null;
  }
}

// Takes in what is new. True if the server has more to pack.
async function lookForNews() {
  const answer = await ask(`news?seen=${live.version}`);
  if (answer?.status !== 200) {
    sayLive(answer?.status === 204);
    return false;
  }
  const { run, steps: listed, written, version, more } = answer.body;
  Object.assign(live, { run, version });
  showRun(run);
  const lost = takeSteps(listed, new Set(written));
  sayLive(true);
  if (live.opened) await showNews(lost);
  return more;
}

// Steps that are as before stay as they are. Returns the others: gone, or written anew. A step that is left out
// because there are many stays while it is being read.
function takeSteps(listed, written) {
  const before = new Map(steps);
  const now = new Map(listed.map((one) => [one.step, before.get(one.step)?.source === one.source ? before.get(one.step) : stepOf(one)]));
  const here = before.get(state.step);
  if (here && !now.has(here.step) && written.has(here.step)) now.set(here.step, here);
  steps.clear();
  for (const number of [...now.keys()].sort((a, b) => a - b)) steps.set(number, now.get(number));
  return [...before.values()].filter((step) => steps.get(step.step) !== step);
}

function stepOf(one) {
  const load = async () => {
    for (;;) {
      const answer = await ask(`step/${one.step}`);
      if (answer) return answer.body; // null: cut away a moment ago
      sayLive(false);
      await pause(ASK_EVERY_MS);
    }
  };
  return { ...one, load: one.about.shown ? load : () => null, rollouts: null, loading: null };
}

async function showNews(lost) {
  const gone = new Set(lost.map((step) => step.step));
  if (detail.rollout && gone.has(detail.rollout.step)) closeDetail();
  redrawSteps();
  if (!steps.size) {
    Object.assign(state, { step: null, example: null });
    return nothingYet(live.run);
  }
  document.getElementById("bar").hidden = false;
  const stale = !steps.has(state.step) || gone.has(state.step) || (state.example && gone.size);
  if (stale) await drawAnew();
  await loadTheRest();
}

// What was on the screen was cut away or written anew by a resume: the reader gets what is there now.
async function drawAnew() {
  clearBoard();
  if (!steps.has(state.step)) return goToStep(nearest(state.step));
  await Promise.all([...steps.keys()].map(loadStep));
  if (state.example && ![...steps.values()].some((step) => sameExample(step).length)) state.example = null;
  draw();
}

// The strip of steps keeps the focus and its place.
function redrawSteps() {
  const strip = document.getElementById("steps");
  const focused = document.activeElement.closest("#steps button")?.dataset.step;
  const place = strip.scrollLeft;
  drawSteps();
  showMarks();
  strip.scrollLeft = place;
  if (focused) strip.querySelector(`button[data-step="${focused}"]`)?.focus({ preventScroll: true });
}

const newestStep = () => Math.max(...steps.keys());
const nearest = (number) => [...steps.keys()].filter((step) => number === null || step <= number).pop() ?? steps.keys().next().value;

// How far the run is. A step newer than any that was looked at is offered, not shown.
function sayLive(answered) {
  const words = answered ? liveWords(live.run) : "the server does not answer";
  const element = document.getElementById("live");
  if (element.textContent !== words) element.textContent = words;
  element.classList.toggle("lost", !answered);
  const newest = steps.size ? newestStep() : 0;
  live.visited = Math.max(Math.min(live.visited, newest), state.step ?? 0);
  const button = document.getElementById("newest");
  button.hidden = !live.opened || newest <= live.visited;
  button.textContent = `New: step ${newest}`;
  button.onclick = () => goToStep(newest).then(() => sayLive(answered));
}

function liveWords({ step, at, ended, steps: last }) {
  if (step === null || step === undefined) return "before the first step";
  const time = new Date(at * 1000).toLocaleTimeString([], { hour12: false });
  return `step ${step}${last ? ` of ${last}` : ""}, ${ended ? "ended" : "written"} ${time}`;
}
