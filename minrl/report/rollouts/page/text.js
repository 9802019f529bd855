// Text on the page. All of it comes in as text nodes, so nothing that a model wrote is ever taken for HTML.

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// What would be invisible or rearrange its neighbours: controls (terminal colours), direction marks, line separators,
// half characters. Joiners stay: emoji and Persian need them.
const HIDDEN = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

function appendText(parent, text, { lineEnds = false } = {}) {
  let start = 0;
  for (const match of text.matchAll(lineEnds ? new RegExp(`\\n|${HIDDEN.source}`, "gu") : HIDDEN)) {
    if (match.index > start) parent.append(text.slice(start, match.index));
    start = match.index + match[0].length;
    parent.append(...mark(match[0]));
  }
  if (start < text.length) parent.append(text.slice(start));
}

function mark(character) {
  if (character === "\n") return [el("span", { class: "newline", "aria-hidden": "true" }, "↵"), "\n"];
  const code = character.codePointAt(0);
  const name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  const short = code < 0x80 ? `\\x${code.toString(16).padStart(2, "0")}` : name;
  return [el("span", { class: "hidden-char", title: name }, short)];
}

// What was shown: ordinary text, and special tokens set off from it.
function shownText(runs) {
  const text = el("div", { class: "text shown" });
  for (const [piece, special] of runs) {
    const target = special ? text.appendChild(el("span", { class: "special" })) : text;
    appendText(target, piece);
  }
  return text;
}

// Tokens from..to of a rollout, coloured.
function tokenText(r, from = 0, to = r.length) {
  const text = el("div", { class: "text wrote" });
  const range = rangeOf(steps.get(r.step), state.colour);
  for (let i = from; i < to; i++) {
    const [piece, special] = r.table[r.pieces[i]];
    const token = el("span", { class: special ? "t special" : "t", "data-i": i });
    appendText(token, piece, { lineEnds: true });
    if (!piece) token.append(el("span", { class: "newline", "aria-hidden": "true" }, "·"));
    colourToken(token, r, i, range);
    text.append(token);
  }
  return text;
}

// The numbers behind a token, as [name, value] pairs.
function tokenFacts(r, i) {
  const logprob = SCALES.logprob.value(r, i);
  const gap = SCALES.gap.value(r, i);
  const weight = SCALES.weight.value(r, i);
  return [
    ["token", `${i + 1} of ${r.length}`],
    ["probability", logprob === null ? "not known" : percent(Math.exp(logprob))],
    ["log-probability, engine", digits(logprob)],
    ["log-probability, policy", gap === null ? "not computed" : digits(logprob + gap)],
    ["engine gap", gap === null ? "not computed" : signed(gap)],
    ["importance weight", weight === null ? "not computed" : `${weight.toFixed(4)}${r.weight ? "" : " (not applied)"}`],
    ["moved by the update", r.moved ? signed(r.moved[i] / 1e6) : "not computed"],
    ["advantage", r.advantage === null ? "none (not trained on)" : signed(r.advantage)],
  ];
}

function tokenName(r, i) {
  const name = el("code", { class: "text" });
  appendText(name, `“${r.table[r.pieces[i]][0]}”`, { lineEnds: true });
  return name;
}

// Marks the search's matches where the browser can do so without touching the text.
function highlightMatches() {
  if (!("highlights" in CSS)) return;
  CSS.highlights.delete("match");
  if (!state.query) return;
  const ranges = [];
  for (const text of document.querySelectorAll("main .text, #detail .text")) {
    ranges.push(...rangesIn(text, state.query.toLowerCase()));
    if (ranges.length > 2000) break;
  }
  CSS.highlights.set("match", new Highlight(...ranges));
}

function rangesIn(element, query) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const nodes = [];
  let whole = "";
  while (walker.nextNode()) {
    if (walker.currentNode.parentElement.closest(".newline")) continue;
    nodes.push([whole.length, walker.currentNode]);
    whole += walker.currentNode.data;
  }
  const found = [];
  const letters = whole.toLowerCase();
  if (letters.length !== whole.length) return found; // a letter whose small form is longer: places would be wrong
  for (let at = letters.indexOf(query); at >= 0; at = letters.indexOf(query, at + query.length)) {
    const range = new Range();
    range.setStart(...placeOf(nodes, at));
    range.setEnd(...placeOf(nodes, at + query.length));
    found.push(range);
  }
  return found;
}

function placeOf(nodes, at) {
  let low = 0;
  let high = nodes.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (nodes[middle][0] < at) low = middle;
    else high = middle - 1;
  }
  return [nodes[low][1], at - nodes[low][0]];
}
