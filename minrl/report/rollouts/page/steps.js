// The steps as bars: how high the mean reward was, and how many rollouts the search finds.

function drawSteps() {
  const strip = document.getElementById("steps");
  const bars = [...steps.values()].map((step) => {
    const { mean: reward, solved, problem } = step.about;
    const said = problem ? "cannot be read" : reward === null ? "no reward" : `mean reward ${digits(reward)}`;
    const bar = el("span", { class: "bar" }, el("i", { class: "mean" }), el("i", { class: "found" }));
    bar.firstChild.style.setProperty("--share", Math.max(0, Math.min(1, reward ?? 0)));
    const more = solved === null || solved === undefined ? "" : `, ${percent(solved)} solved`;
    return el(
      "button",
      { type: "button", "data-step": step.step, title: `Step ${step.step}: ${said}${more}`, class: problem ? "problem" : null },
      bar,
      el("span", { class: "number" }, String(step.step)),
    );
  });
  strip.replaceChildren(el("span", { class: "strip-name" }, "mean reward", el("br"), "at step"), ...bars);
}

function markSteps() {
  showMarks();
  document.querySelector("#steps button[aria-pressed=true]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// Which step is shown, and what the search finds at each.
function showMarks() {
  for (const button of document.querySelectorAll("#steps button")) {
    const number = Number(button.dataset.step);
    const step = steps.get(number);
    button.setAttribute("aria-pressed", String(number === state.step));
    const found = state.query && step.rollouts ? step.rollouts.filter(matches).length : 0;
    button.classList.toggle("without", Boolean(state.query && step.rollouts && !found));
    button.querySelector(".found").textContent = found ? String(found) : "";
  }
}

async function goToStep(number) {
  if (!steps.has(number)) return;
  state.step = number;
  state.example = null;
  markSteps();
  await loadStep(number);
  if (state.step === number) draw();
}

function nextStep(by) {
  const numbers = [...steps.keys()];
  const next = numbers[numbers.indexOf(state.step) + by];
  if (next !== undefined) goToStep(next);
}

// Once the first step is on the screen the others are loaded too, for the search and the comparison.
async function loadTheRest() {
  for (const number of [...steps.keys()]) {
    if (!steps.has(number)) continue; // cut away by a resume
    await loadStep(number);
    await new Promise((resume) => setTimeout(resume));
  }
  showMarks();
  document.body.dataset.ready = "all";
}
