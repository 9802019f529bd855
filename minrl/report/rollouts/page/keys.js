// Everything that the mouse can do, by keys.

const KEYS = [
  ["j  k", "next, previous rollout (also ↓ ↑)", { j: () => walkRows(1), k: () => walkRows(-1), ArrowDown: () => walkRows(1), ArrowUp: () => walkRows(-1) }],
  ["Enter", "the rollout in full", { Enter: () => openFocused() }],
  ["←  →", "previous, next step; in an open rollout: token by token", { ArrowLeft: () => sideways(-1), ArrowRight: () => sideways(1) }],
  ["[  ]", "previous, next step", { "[": () => nextStep(-1), "]": () => nextStep(1) }],
  ["c", "colour tokens by the next number", { c: () => cycle("colour") }],
  ["s", "sort by the next number", { s: () => cycle("sort") }],
  ["f", "show the next kind of rollout", { f: () => cycle("show") }],
  ["v", "groups side by side, or one list", { v: () => cycle("view") }],
  ["x", "the same example across steps", { x: () => compareFocused() }],
  ["/", "search", { "/": () => document.getElementById("search").select() }],
  ["t", "light or dark", { t: () => switchTheme() }],
  ["Esc", "close, go back, clear the search and the filter", { Escape: () => goBack() }],
  ["?", "this list", { "?": () => showHelp() }],
];

const ACTIONS = Object.assign({}, ...KEYS.map(([, , actions]) => actions));

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("help").open) return;
  const target = event.target;
  const typing = target.matches("input, select, textarea");
  if (typing && event.key === "Escape") return leaveField(event, target);
  if (typing || (event.key === "Enter" && target.matches("button, a, summary"))) return;
  const action = ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function leaveField(event, field) {
  event.preventDefault();
  if (field.id === "search" && field.value) setQuery("");
  field.blur();
  draw();
  document.getElementById("board").focus({ preventScroll: true });
}

function walkRows(by) {
  const rows = [...document.querySelectorAll("#board .rollout")];
  const open = detail.rollout && rowOf(detail.rollout);
  const now = rows.indexOf(open || document.activeElement.closest(".rollout"));
  if (now + by >= rows.length && board.drawn < board.items.length) {
    drawMore();
    return walkRows(by);
  }
  const next = rows[now < 0 ? firstInSight(rows) : Math.max(0, Math.min(rows.length - 1, now + by))];
  if (!next) return;
  for (const row of rows) row.tabIndex = row === next ? 0 : -1;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
  if (detail.rollout) openDetail(rolloutAt(next), next);
}

// The first row that is not above the screen, so that keys begin where the eyes are.
function firstInSight(rows) {
  const bar = document.getElementById("bar").getBoundingClientRect().bottom;
  const found = rows.findIndex((row) => row.getBoundingClientRect().bottom > bar);
  return Math.max(0, found);
}

function focused() {
  const row = document.activeElement.closest("[data-rollout]");
  return detail.rollout ?? (row && rolloutAt(row));
}

function openFocused() {
  const r = focused();
  if (r) openDetail(r, document.activeElement);
}

function compareFocused() {
  const r = focused();
  if (r) openComparison(r);
}

const sideways = (by) => (detail.rollout ? walkTokens(by) : nextStep(by));

function cycle(name) {
  const select = document.getElementById(name);
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.dispatchEvent(new Event("change"));
}

function goBack() {
  hideTip();
  if (closeDetail()) return;
  if (state.example) {
    state.example = null;
  } else {
    setQuery("");
    setChoice("show", "all");
  }
  draw();
}

function showHelp() {
  const help = document.getElementById("help");
  const rows = KEYS.map(([keys, meaning]) => {
    const shown = keys.split("  ").map((key) => el("kbd", {}, key));
    return el("tr", {}, el("th", { scope: "row" }, ...shown), el("td", {}, meaning));
  });
  const close = el("button", { type: "button" }, "Close");
  close.onclick = () => help.close();
  const words = Object.entries(NOTES).filter(([, note]) => note);
  const colours = words.map(([name, note]) => el("p", {}, el("b", {}, SCALES[name].label), `: ${note}.`));
  help.replaceChildren(el("h2", { id: "help-title" }, "Keys"), el("table", {}, el("tbody", {}, ...rows)), el("h2", {}, "Colours"), ...colours, close);
  help.showModal();
}
