// The board: a step's groups side by side, or its rollouts in one list. Drawn a screenful at a time.

const BATCH = 96; // rollouts that are drawn at once

const SORTS = {
  mixed: ["most mixed first", (r) => -r.spread],
  order: ["as sampled", null],
  best: ["reward, best first", (r) => -(r.reward ?? -Infinity)],
  worst: ["reward, worst first", (r) => r.reward ?? Infinity],
  longest: ["length, longest first", (r) => -r.length],
  shortest: ["length, shortest first", (r) => r.length],
  surprising: ["surprise, most first", (r) => -r.meanSurprise],
  expected: ["surprise, least first", (r) => r.meanSurprise],
};

const SHOWS = {
  all: ["all", () => true],
  train: ["training", (r) => r.purpose === "train"],
  held_out: ["held-out", (r) => r.purpose !== "train"],
  solved: ["solved", (r) => r.solved === true],
  unsolved: ["not solved", (r) => r.solved === false],
  truncated: ["cut off", (r) => r.truncated],
  unscorable: ["unscorable", (r) => r.reward === null],
};

const VIEWS = { groups: "groups side by side", list: "one list" };

const board = { items: [], drawn: 0 };

const wanted = (r) => SHOWS[state.show][1](r) && matches(r);

function sortBy(items, key) {
  return key ? items.map((item) => [key(item), item]).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)).map(([, item]) => item) : items;
}

// What the board shows of a step: groups, each with those of its rollouts that are wanted, or single rollouts.
function itemsOf(step) {
  const key = SORTS[state.sort][1];
  const chosen = step.rollouts.filter(wanted);
  if (state.view === "list") return sortBy(chosen, key).map((r) => ({ rollouts: [r] }));
  const groups = [...groupBy(chosen, (r) => r.groupKey).entries()].map(([name, rollouts]) => ({
    all: step.groups.get(name),
    rollouts: sortBy(rollouts, key),
  }));
  return key ? sortBy(groups, (group) => mean(group.rollouts.map(key))) : groups;
}

function drawBoard(step) {
  const element = document.getElementById("board");
  element.replaceChildren();
  element.className = state.view;
  element.dataset.step = step.step;
  board.items = itemsOf(step);
  board.drawn = 0;
  if (!board.items.length) element.append(emptyNote(step));
  drawMore();
  const first = element.querySelector(".rollout");
  if (first) first.tabIndex = 0;
}

function clearBoard() {
  for (const id of ["board", "more", "summary"]) document.getElementById(id).replaceChildren();
  Object.assign(board, { items: [], drawn: 0 });
}

function drawMore() {
  const element = document.getElementById("board");
  let rollouts = 0;
  while (board.drawn < board.items.length && rollouts < BATCH) {
    const item = board.items[board.drawn++];
    rollouts += item.rollouts.length;
    element.append(item.all ? groupPanel(item) : rolloutRow(item.rollouts[0], { withPrompt: true }));
  }
  const left = board.items.length - board.drawn;
  const more = document.getElementById("more");
  more.textContent = left ? `${left} more below` : "";
  highlightMatches();
}

function emptyNote(step) {
  if (step.about.problem) return el("p", { class: "note" }, `This step is missing: ${step.about.problem}`);
  const why = state.query ? `has “${state.query}” in it` : `is ${SHOWS[state.show][0]}`;
  return el("p", { class: "note" }, `No rollout of step ${step.step} ${why}. Esc clears the search and the filter.`);
}

function groupPanel({ all, rollouts }) {
  const first = rollouts[0];
  const panel = el("section", { class: "group", "aria-label": `group of example ${first.example}` });
  const head = el("header", {}, el("h3", { class: "text" }), el("span", { class: "grow" }), acrossButton());
  appendText(head.firstChild, first.example);
  panel.append(head, groupFacts(all, rollouts), foldedPrompt(first));
  panel.append(...rollouts.map((r) => rolloutRow(r)));
  return panel;
}

function acrossButton() {
  return el("button", { type: "button", class: "across", title: "The same example at every step (x)" }, "Across steps");
}

function groupFacts(all, rollouts) {
  const first = rollouts[0];
  const scored = all.filter((r) => r.reward !== null);
  const facts = [first.purpose === "train" ? "training" : "held out, followed through the run"];
  if (first.role !== "policy") facts.push(`role ${first.role}`);
  if (scored.length) {
    facts.push(`mean reward ${digits(mean(scored.map((r) => r.reward)))}`);
    facts.push(`${scored.filter((r) => r.solved).length} of ${all.length} solved`);
  }
  if (rollouts.length < all.length) facts.push(`${rollouts.length} of ${all.length} shown`);
  return el("p", { class: "quiet" }, facts.join(" · "));
}

// The question; opened, the whole prompt.
function foldedPrompt(r) {
  const asked = shownText(r.asked);
  asked.classList.add("asked");
  return el("details", { class: "prompt" }, el("summary", {}, asked, shownText(r.prompt)));
}

function rolloutRow(r, { withPrompt = false } = {}) {
  const row = el("article", {
    class: r.solved ? "rollout solved" : "rollout",
    tabindex: "-1",
    "data-step": r.step,
    "data-rollout": r.index,
    "aria-label": `${rewardWords(r)}, ${r.length} tokens`,
  });
  const body = el("div", { class: "body" });
  if (withPrompt) body.append(foldedPrompt(r));
  body.append(el("div", { class: "clamp" }, ...completionOf(r)), factsOf(r, withPrompt));
  row.append(rewardBadge(r), body);
  return row;
}

const rewardWords = (r) => (r.reward === null ? "unscorable" : `reward ${digits(r.reward)}${r.solved ? ", solved" : ""}`);

function rewardBadge(r) {
  if (r.reward === null) return el("span", { class: "badge unscorable", title: "the reward raised, or missed its deadline" }, "—");
  const badge = el("span", { class: "badge", title: rewardWords(r) }, el("b", {}, r.reward.toFixed(2)), r.solved ? " ✓" : "");
  badge.style.setProperty("--share", Math.max(0, Math.min(1, r.reward)));
  return badge;
}

function factsOf(r, withExample) {
  const facts = el("p", { class: "facts" });
  const add = (text, title, kind) => facts.append(el("span", { title, class: kind }, text), " ");
  if (withExample) add(r.example, "the example's identity", "example");
  for (const [name, value] of Object.entries(r.parts)) add(`${name} ${digits(value)}`, "part of the reward", "part");
  if (withExample && r.role !== "policy") add(`role ${r.role}`, "who wrote this");
  if (r.truncated) add("✂ length", "finish reason: cut off at the token limit", "warn");
  else add(r.finish_reason, "finish reason");
  add(`${r.length} tok`, "sampled tokens");
  add(`${r.meanSurprise.toFixed(2)} nats/tok`, "surprise: minus the mean log-probability of its tokens");
  if (r.advantage !== null) add(`adv ${signed(Number(r.advantage.toFixed(3)))}`, "advantage");
  return facts;
}
