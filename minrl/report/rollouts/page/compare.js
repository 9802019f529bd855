// One example across the steps: a column for each step at which it was sampled, oldest first.

async function openComparison(r) {
  closeDetail();
  state.example = { id: r.example, purpose: r.purpose, role: r.role };
  await Promise.all([...steps.keys()].map(loadStep));
  draw();
  document.getElementById("board").focus();
}

function sameExample(step) {
  const { id, purpose, role } = state.example;
  return (step.rollouts ?? []).filter((r) => r.example === id && r.purpose === purpose && r.role === role);
}

function drawComparison() {
  const element = document.getElementById("board");
  element.className = "comparison";
  element.replaceChildren();
  const found = [...steps.values()].map((step) => [step, sameExample(step)]).filter(([, rollouts]) => rollouts.length);
  const back = el("button", { type: "button", id: "back" }, "← Back to the step");
  const title = el("h2", { class: "text" });
  appendText(title, state.example.id);
  const count = `${found.length} of ${steps.size} steps have this example${found.length < 2 ? ": others drew different ones" : ""}`;
  element.append(el("div", { class: "comparison-head" }, back, title, el("span", { class: "quiet" }, count)));
  element.append(foldedPrompt(found[0][1][0]));
  const columns = el("div", { class: "columns", tabindex: "0", role: "group", "aria-label": "steps side by side" });
  for (const [step, rollouts] of found) columns.append(stepColumn(step, rollouts));
  element.append(columns);
  board.items = [];
  document.getElementById("more").textContent = "";
  document.getElementById("summary").textContent = "The same example across steps";
  highlightMatches();
}

function stepColumn(step, rollouts) {
  const key = SORTS[state.sort][1];
  const scored = rollouts.filter((r) => r.reward !== null);
  const reward = scored.length ? `mean reward ${digits(mean(scored.map((r) => r.reward)))}` : "unscorable";
  const column = el("section", { class: "group", "aria-label": `step ${step.step}` });
  column.append(el("header", {}, el("h3", {}, `Step ${step.step}`), el("span", { class: "quiet" }, reward)));
  column.append(...sortBy(rollouts, key).map((r) => rolloutRow(r)));
  return column;
}
