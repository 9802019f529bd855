(() => {
"use strict";

// Data. Each step is unpacked once, when it is first shown; the others follow, for the search.

const state = { step: null, colour: "logprob", view: "groups", sort: "mixed", show: "all", query: "" };
const steps = new Map(); // step -> { step, about, load, rollouts (once loaded), episodes, groups }
const $ = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function readPage() {
  for (const script of all("script.step")) {
    const step = Number(script.dataset.step);
    const load = () => (script.textContent ? unpack(script.textContent) : null);
    steps.set(step, { step, about: await unpack(script.dataset.about), load, loading: null });
  }
  return unpack($("run").textContent);
}

function loadStep(number) {
  const step = steps.get(number);
  return (step.loading ??= fill(step));
}

async function fill(step) {
  const data = await step.load();
  step.rollouts = data ? data.rollouts.map((values, index) => readable(values, index, step, data)) : [];
  step.episodes = groupBy(step.rollouts, (r) => r.episodeKey);
  step.groups = groupBy(step.rollouts, (r) => r.groupKey);
  for (const group of step.groups.values()) {
    const spread = spreadOf(group);
    for (const r of group) r.spread = spread;
  }
}

// The standard deviation of a group's rewards. Where all are equal there was nothing to learn.
function spreadOf(group) {
  const rewards = group.filter((r) => r.reward !== null).map((r) => r.reward);
  const middle = mean(rewards);
  return rewards.length ? Math.sqrt(mean(rewards.map((reward) => (reward - middle) ** 2))) : 0;
}

function readable(values, index, step, data) {
  const length = values.pieces.length;
  return {
    ...values,
    index,
    length,
    step: step.step,
    table: data.pieces,
    prompt: values.turns.length ? data.texts[values.turns[0][0]] : [],
    asked: data.texts[values.asked],
    shown: values.turns.map(([text]) => data.texts[text]),
    lengths: values.turns.map(([, tokens]) => tokens),
    meanSurprise: values.surprise.reduce((sum, value) => sum + value, 0) / 1000 / Math.max(1, length),
    truncated: values.finish_reason === "length",
    groupKey: `${values.purpose}/${values.group}`,
    episodeKey: `${values.purpose}/${values.slot}/${values.sample}`,
  };
}

function matches(r) {
  if (!state.query) return true;
  const written = () => r.pieces.map((piece) => r.table[piece][0]).join("");
  r.words ??= [...r.shown.map((text) => text.map(([piece]) => piece).join("")), written(), r.example, r.seed].join("\n").toLowerCase();
  return r.words.includes(state.query.toLowerCase());
}

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  return groups;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Numbers. Three digits, and powers of ten for what is very small or large.

const trimmed = (value) => String(Number(value.toPrecision(3))).replace("-", "−");
const signed = (value) => (value > 0 ? `+${digits(value)}` : digits(value));
const percent = (share) => `${(100 * share).toFixed(share && share < 0.01 ? 2 : 0)} %`;
const within = (low, value, high) => Math.max(low, Math.min(high, value));

function digits(value) {
  if (value === null || value === undefined) return "not known";
  const size = Math.abs(value);
  return size && (size < 0.001 || size >= 1e5) ? value.toExponential(1).replaceAll("-", "−") : trimmed(value);
}

// Colours of tokens. Blue and orange tell apart for every kind of colour vision; each has its number nearby. A scale has
// the value of token i of rollout r (null: not known), and its place between -1 and 1.

const LEVELS = 8;
const SURPRISE_AT_FULL = 6; // nats: a probability of 0.25 %
const largest = (step, size) => step.rollouts.reduce((most, r) => Math.max(most, size(r)), 0);
const largestOf = (r, name) => (r[name] ? Math.max(...r[name].map(Math.abs)) / 1e6 : 0);

const SCALES = {
  logprob: {
    label: "log-probability",
    note: "how likely the engine found each token: the deeper the colour, the more surprising",
    value: (r, i) => -r.surprise[i] / 1000,
    place: (value) => Math.sqrt(Math.min(1, -value / SURPRISE_AT_FULL)),
    range: () => SURPRISE_AT_FULL,
    ticks: () => ["p = 1", "0.22", "≤ 0.0025"],
    sequential: true,
  },
  advantage: {
    label: "advantage",
    note: "how much better than its group, the same for each token of a rollout",
    value: (r) => r.advantage,
    place: (value, range) => value / range,
    range: (step) => largest(step, (r) => Math.abs(r.advantage ?? 0)) || 1,
    ticks: (range) => [signed(-range), "0", signed(range)],
  },
  weight: {
    label: "importance weight",
    note: "policy over engine probability, cut off and masked as in the update; dotted: not computed",
    value: (r, i) => (r.weight ? r.weight[i] / 1e4 : r.gap ? Math.exp(r.gap[i] / 1e6) : null),
    place: (value) => Math.log2(value),
    range: () => 2,
    ticks: () => ["≤ ½", "1", "≥ 2"],
  },
  gap: {
    label: "engine gap",
    note: "the policy's log-probability minus the engine's, nats; dotted: not computed, the rollout had no gradient",
    value: (r, i) => (r.gap ? r.gap[i] / 1e6 : null),
    place: (value, range) => value / range,
    range: (step) => largest(step, (r) => largestOf(r, "gap")) || 1e-6,
    ticks: (range) => [signed(-range), "0", signed(range)],
  },
  moved: {
    label: "moved by the update",
    note:
      "how far the update moved each token's log-probability, nats: the way its advantage points, or against it; without an advantage up, or down; dotted: not computed",
    value: (r, i) => (r.moved ? (r.moved[i] / 1e6) * (Math.sign(r.advantage ?? 0) || 1) : null),
    place: (value, range) => value / range,
    range: (step) => largest(step, (r) => largestOf(r, "moved")) || 1e-6,
    ticks: (range) => [`against ${digits(range)}`, "0", `with ${digits(range)}`],
  },
  none: { label: "no colour", note: "", value: () => null, place: () => 0, range: () => 1, ticks: () => [] },
};

function rangeOf(step) {
  step.ranges ??= {};
  return (step.ranges[state.colour] ??= SCALES[state.colour].range(step));
}

function colourToken(element, r, i, range) {
  const scale = SCALES[state.colour];
  const value = scale.value(r, i);
  const place = value === null ? 0 : within(-1, scale.place(value, range), 1);
  const level = Math.round(Math.abs(place) * LEVELS);
  element.classList.remove("pos", "neg", "seq", "unknown");
  if (value === null && state.colour !== "none") element.classList.add("unknown");
  if (level) element.classList.add(scale.sequential ? "seq" : place > 0 ? "pos" : "neg");
  element.style.setProperty("--level", level);
}

function showLegend(step) {
  const scale = SCALES[state.colour];
  const legend = $("legend");
  legend.replaceChildren();
  legend.title = scale.note;
  const ticks = scale.ticks(rangeOf(step));
  if (!ticks.length) return;
  const swatches = [];
  for (let level = scale.sequential ? 0 : -LEVELS; level <= LEVELS; level += 2) {
    const swatch = el("i", { class: scale.sequential ? "seq" : level > 0 ? "pos" : "neg" });
    swatch.style.setProperty("--level", Math.abs(level));
    swatches.push(swatch);
  }
  const name = `${scale.label}, from ${ticks.join(" over ")}`;
  legend.append(el("span", { class: "ramp", role: "img", "aria-label": name }, ...swatches));
  legend.append(el("span", { class: "ticks" }, ...ticks.map((tick) => el("b", {}, tick))));
}

// Text. All of it comes in as text nodes, so nothing that a model wrote is ever taken for HTML.

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// What would be invisible or rearrange its neighbours: controls (terminal colours), direction marks, line separators,
// half characters. Joiners stay: emoji and Persian need them.
const HIDDEN = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const HIDDEN_OR_LINE_END = new RegExp(`\\n|${HIDDEN.source}`, "gu");

function appendText(parent, text, { lineEnds = false } = {}) {
  let start = 0;
  for (const match of text.matchAll(lineEnds ? HIDDEN_OR_LINE_END : HIDDEN)) {
    parent.append(text.slice(start, match.index), ...mark(match[0]));
    start = match.index + match[0].length;
  }
  parent.append(text.slice(start));
  return parent;
}

function mark(character) {
  if (character === "\n") return [el("span", { class: "newline", "aria-hidden": "true" }, "↵"), "\n"];
  const code = character.codePointAt(0);
  const name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  return [el("span", { class: "hidden-char", title: name }, code < 0x80 ? `\\x${code.toString(16).padStart(2, "0")}` : name)];
}

// What was shown: ordinary text, and special tokens set off from it.
function shownText(runs) {
  const text = el("div", { class: "text shown" });
  for (const [piece, special] of runs) appendText(special ? text.appendChild(el("span", { class: "special" })) : text, piece);
  return text;
}

// Tokens from..to of a rollout, coloured.
function tokenText(r, from = 0, to = r.length) {
  const text = el("div", { class: "text wrote", "data-rollout": r.index });
  const range = rangeOf(steps.get(r.step));
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

// Marks the search's matches where the browser can do so without touching the text.
function highlightMatches() {
  if (!("highlights" in CSS)) return;
  CSS.highlights.delete("match");
  if (!state.query) return;
  const ranges = [];
  for (const text of all("main .text, #detail .text")) {
    ranges.push(...rangesIn(text, state.query.toLowerCase()));
    if (ranges.length > 2000) break;
  }
  CSS.highlights.set("match", new Highlight(...ranges));
}

// A match may begin in one token and end in another: `nodes` are the text nodes with where each begins.
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
  const placeOf = (at) => {
    const [start, node] = nodes.findLast(([first]) => first <= at);
    return [node, at - start];
  };
  for (let at = letters.indexOf(query); at >= 0; at = letters.indexOf(query, at + query.length)) {
    const range = new Range();
    range.setStart(...placeOf(at));
    range.setEnd(...placeOf(at + query.length));
    found.push(range);
  }
  return found;
}

// The board: a step's groups side by side, or its rollouts in one list. Drawn a screenful at a time.

const BATCH = 96; // rollouts that are drawn at once
const board = { items: [], drawn: 0 };

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
const CHOICES = {
  colour: Object.entries(SCALES).map(([name, { label }]) => [name, label]),
  view: [["groups", "groups side by side"], ["list", "one list"]],
  sort: Object.entries(SORTS).map(([name, [label]]) => [name, label]),
  show: Object.entries(SHOWS).map(([name, [label]]) => [name, label]),
};

const isShown = (r) => SHOWS[state.show][1](r) && matches(r);

function sortBy(items, key) {
  return key ? items.map((item) => [key(item), item]).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)).map(([, item]) => item) : items;
}

// What the board shows of a step: groups, each with its rollouts that are shown, or single rollouts.
function itemsOf(step) {
  const key = SORTS[state.sort][1];
  const chosen = step.rollouts.filter(isShown);
  if (state.view === "list") return sortBy(chosen, key).map((r) => ({ rollouts: [r] }));
  const groups = [...groupBy(chosen, (r) => r.groupKey)].map(([name, rollouts]) => ({
    all: step.groups.get(name),
    rollouts: sortBy(rollouts, key),
  }));
  return key ? sortBy(groups, (group) => mean(group.rollouts.map(key))) : groups;
}

function draw() {
  const step = steps.get(state.step);
  if (!step?.rollouts) return;
  rememberState();
  showMarks();
  showLegend(step);
  const element = $("board");
  element.replaceChildren();
  element.className = state.view;
  element.dataset.step = step.step;
  Object.assign(board, { items: itemsOf(step), drawn: 0 });
  if (!board.items.length) element.append(emptyNote(step));
  drawMore();
  const first = element.querySelector(".rollout");
  if (first) first.tabIndex = 0;
  $("summary").textContent = summaryOf(step);
}

function drawMore() {
  for (let rollouts = 0; board.drawn < board.items.length && rollouts < BATCH; ) {
    const item = board.items[board.drawn++];
    rollouts += item.rollouts.length;
    $("board").append(item.all ? groupPanel(item) : rolloutRow(item.rollouts[0], true));
  }
  const left = board.items.length - board.drawn;
  $("more").textContent = left ? `${left} more below` : "";
  highlightMatches();
}

function emptyNote(step) {
  if (step.about.problem) return el("p", { class: "note" }, `This step is missing: ${step.about.problem}`);
  const why = state.query ? `has “${state.query}” in it` : `is ${SHOWS[state.show][0]}`;
  return el("p", { class: "note" }, `No rollout of step ${step.step} ${why}. Esc clears the search and the filter.`);
}

function summaryOf(step) {
  const shown = step.rollouts.filter(isShown);
  const scored = shown.filter((r) => r.reward !== null);
  const truncated = shown.filter((r) => r.truncated).length;
  const solved = scored.filter((r) => r.solved).length;
  return [
    `Step ${step.step}: ${shown.length} rollouts in ${groupBy(shown, (r) => r.groupKey).size} groups`,
    scored.length && `mean reward ${digits(mean(scored.map((r) => r.reward)))}`,
    scored.length && `${percent(solved / shown.length)} solved`,
    truncated && `${truncated} cut off`,
    shown.length > scored.length && `${shown.length - scored.length} unscorable`,
    step.about.shown < step.about.total && `the page holds ${step.about.shown} of the ${step.about.total} rollouts in rollouts/`,
  ].filter(Boolean).join(" · ");
}

function groupPanel({ all, rollouts }) {
  const first = rollouts[0];
  const scored = all.filter((r) => r.reward !== null);
  const facts = [
    first.purpose === "train" ? "training" : "held out, followed through the run",
    first.role !== "policy" && `role ${first.role}`,
    scored.length && `mean reward ${digits(mean(scored.map((r) => r.reward)))}`,
    scored.length && `${scored.filter((r) => r.solved).length} of ${all.length} solved`,
    rollouts.length < all.length && `${rollouts.length} of ${all.length} shown`,
  ];
  const panel = el("section", { class: "group", "aria-label": `group of example ${first.example}` });
  panel.append(el("header", {}, appendText(el("h3", { class: "text" }), first.example)));
  panel.append(el("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")), promptOf(first));
  panel.append(...rollouts.map((r) => rolloutRow(r)));
  return panel;
}

// The question; opened, the whole prompt.
function promptOf(r) {
  const asked = shownText(r.asked);
  asked.classList.add("asked");
  return el("details", { class: "prompt" }, el("summary", {}, asked, shownText(r.prompt)));
}

function rolloutRow(r, alone = false) {
  const row = el("article", {
    class: r.solved ? "rollout solved" : "rollout",
    tabindex: "-1",
    "data-step": r.step,
    "data-rollout": r.index,
    "aria-label": `${rewardWords(r)}, ${r.length} tokens`,
  });
  const clamp = el("div", { class: "clamp" }, ...completionOf(r));
  row.append(rewardBadge(r), el("div", { class: "body" }, alone ? promptOf(r) : null, clamp, factsOf(r, alone)));
  return row;
}

const rewardWords = (r) => (r.reward === null ? "unscorable" : `reward ${digits(r.reward)}${r.solved ? ", solved" : ""}`);

function rewardBadge(r) {
  if (r.reward === null) return el("span", { class: "badge unscorable", title: "the reward raised, or missed its deadline" }, "—");
  const badge = el("span", { class: "badge", title: rewardWords(r) }, el("b", {}, r.reward.toFixed(2)), r.solved ? " ✓" : "");
  badge.style.setProperty("--share", within(0, r.reward, 1));
  return badge;
}

function factsOf(r, alone) {
  const facts = el("p", { class: "facts" });
  const add = (text, title, kind = null) => facts.append(el("span", { title, class: kind }, text), " ");
  if (alone) add(r.example, "the example's identity");
  for (const [name, value] of Object.entries(r.parts)) add(`${name} ${digits(value)}`, "part of the reward", "part");
  if (alone && r.role !== "policy") add(`role ${r.role}`, "who wrote this");
  if (r.truncated) add("✂ length", "finish reason: cut off at the token limit", "warn");
  else add(r.finish_reason, "finish reason");
  add(`${r.length} tok`, "sampled tokens");
  add(`${r.meanSurprise.toFixed(2)} nats/tok`, "surprise: minus the mean log-probability of its tokens");
  if (r.advantage !== null) add(`adv ${signed(Number(r.advantage.toFixed(3)))}`, "advantage");
  return facts;
}

// A rollout as it reads: one completion, or turns with what was shown between them.

const starts = (r) => r.lengths.map((_, turn) => r.lengths.slice(0, turn).reduce((sum, n) => sum + n, 0));

// What one role wrote, with what it was shown in between. The prompt stands elsewhere.
function completionOf(r) {
  const from = starts(r);
  const own = r.episode.filter(([role]) => role === r.role);
  return r.lengths.flatMap((length, turn) => [
    ...(turn && own[turn]?.[4] ? [el("h4", {}, own[turn][4])] : []),
    ...(turn ? [shownText(r.shown[turn])] : []),
    tokenText(r, from[turn], from[turn] + length),
  ]);
}

// The whole episode, each role's turns in the order in which they were played.
function conversationOf(r) {
  const players = new Map((steps.get(r.step).episodes.get(r.episodeKey) || [r]).map((one) => [one.role, one]));
  const roles = [...new Set(r.episode.map(([role]) => role))];
  const taken = new Map();
  const conversation = el("div", { class: roles.length > 1 ? "conversation several" : "conversation" });
  for (const [role, seed, finish, text, by] of r.episode) {
    const turn = taken.get(role) ?? 0;
    taken.set(role, turn + 1);
    const side = roles.indexOf(role) % 2 ? "right" : "left";
    const player = players.get(role);
    if (player) {
      const heading = `${by || (turn ? "shown" : "prompt")}${roles.length > 1 ? ` to ${role}` : ""}`;
      conversation.append(el("section", { class: `turn shown-to ${side}` }, el("h4", {}, heading), shownText(player.shown[turn])));
    }
    const facts = el("span", { class: "quiet" }, `${finish === "length" ? "cut off at the limit" : finish} · seed ${seed}`);
    const start = player && starts(player)[turn];
    const written = player ? tokenText(player, start, start + player.lengths[turn]) : appendText(el("div", { class: "text" }), text ?? "(not on this page)");
    const head = el("h4", {}, role, text === null ? null : " (frozen)", " ", facts);
    conversation.append(el("section", { class: `turn wrote-by ${side}` }, head, written));
  }
  return conversation;
}

// One rollout in full: every number, its episode as a conversation, and its tokens one by one.

const detail = { rollout: null };
const rowOf = (r) => document.querySelector(`.rollout[data-step="${r.step}"][data-rollout="${r.index}"]`);

function openDetail(r) {
  detail.rollout = r;
  const panel = $("detail");
  const title = el("h2", {}, rewardBadge(r), appendText(el("span", { class: "text" }), ` ${r.example}`));
  const close = el("button", { type: "button", id: "close", title: "Close (Esc)" }, "Close");
  panel.dataset.step = r.step;
  panel.dataset.rollout = r.index;
  panel.replaceChildren(el("header", {}, title, el("span", { class: "grow" }), close), numbersOf(r), partsOf(r), conversationOf(r));
  panel.hidden = false;
  panel.scrollTop = 0;
  document.body.classList.add("with-detail");
  for (const row of all(".rollout.open")) row.classList.remove("open");
  rowOf(r)?.classList.add("open");
  highlightMatches();
}

function closeDetail() {
  if (!detail.rollout) return false;
  $("detail").hidden = true;
  document.body.classList.remove("with-detail");
  for (const row of all(".rollout.open")) row.classList.remove("open");
  (rowOf(detail.rollout) ?? $("board")).focus();
  detail.rollout = null;
  return true;
}

function rolloutAt(element) {
  const holder = element.closest("[data-rollout]");
  const step = holder?.closest("[data-step]");
  return holder && steps.get(Number(step.dataset.step)).rollouts[Number(holder.dataset.rollout)];
}

function numbersOf(r) {
  const numbers = {
    step: r.step,
    "group, sample": `${r.group}, ${r.sample}`,
    role: r.role,
    reward: r.reward === null ? "unscorable" : `${digits(r.reward)}${r.solved ? " (solved)" : ""}`,
    advantage: r.advantage === null ? "none: held out" : signed(r.advantage),
    "finish reason": r.truncated ? "length (cut off)" : r.finish_reason,
    tokens: `${r.length} sampled, prompt ${r.prompt_length}`,
    surprise: `${r.meanSurprise.toFixed(3)} nats/token`,
    "engine gap, largest": r.gap ? digits(largestOf(r, "gap")) : "not computed",
    weights: `version ${r.weight_version}`,
    seed: r.seed,
  };
  const entries = Object.entries(numbers).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  return el("dl", {}, ...entries);
}

function partsOf(r) {
  const rows = Object.entries(r.parts).map(([name, value]) => {
    const bar = el("span", { class: "share" });
    bar.style.setProperty("--share", within(0, value, 1));
    return el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, bar), el("td", {}, digits(value)));
  });
  if (!rows.length) return el("p", { class: "quiet" }, "The reward has no parts.");
  return el("table", { class: "parts" }, el("caption", {}, "Reward parts"), el("tbody", {}, ...rows));
}

function tokenFacts(r, i) {
  const [logprob, gap, weight] = ["logprob", "gap", "weight"].map((name) => SCALES[name].value(r, i));
  return [
    ["token", `${i + 1} of ${r.length}`],
    ["probability", percent(Math.exp(logprob))],
    ["log-probability, engine", digits(logprob)],
    ["log-probability, policy", gap === null ? "not computed" : digits(logprob + gap)],
    ["engine gap", gap === null ? "not computed" : signed(gap)],
    ["importance weight", weight === null ? "not computed" : `${weight.toFixed(4)}${r.weight ? "" : " (not applied)"}`],
    ["moved by the update", r.moved ? signed(r.moved[i] / 1e6) : "not computed"],
    ["advantage", r.advantage === null ? "none (not trained on)" : signed(r.advantage)],
  ];
}

// The numbers of a token beside it, for the pointer and for the keyboard alike.
function showTip(token) {
  const r = rolloutAt(token);
  const i = Number(token.dataset.i);
  const tip = $("tip");
  const name = appendText(el("code", { class: "text" }), `“${r.table[r.pieces[i]][0]}”`, { lineEnds: true });
  const rows = tokenFacts(r, i).map(([fact, value]) => el("tr", {}, el("th", { scope: "row" }, fact), el("td", {}, value)));
  tip.replaceChildren(name, el("table", {}, el("tbody", {}, ...rows)));
  tip.hidden = false;
  const place = token.getBoundingClientRect();
  const above = place.bottom + tip.offsetHeight + 8 > innerHeight;
  tip.style.top = `${above ? Math.max(4, place.top - tip.offsetHeight - 6) : place.bottom + 6}px`;
  tip.style.left = `${within(4, place.left, Math.max(4, innerWidth - tip.offsetWidth - 8))}px`;
  token.setAttribute("aria-describedby", "tip");
}

const hideTip = () => ($("tip").hidden = true);

// The steps as bars: how high the mean reward was, and how many rollouts the search finds.

function drawSteps() {
  const bars = [...steps.values()].map((step) => {
    const { mean: reward, solved, problem } = step.about;
    const facts = problem ? "cannot be read" : reward === null ? "no reward" : `mean reward ${digits(reward)}, ${percent(solved)} solved`;
    const bar = el("span", { class: "bar" }, el("i", { class: "mean" }), el("i", { class: "found" }));
    bar.firstChild.style.setProperty("--share", within(0, reward ?? 0, 1));
    const attributes = { type: "button", "data-step": step.step, title: `Step ${step.step}: ${facts}`, class: problem ? "problem" : null };
    return el("button", attributes, bar, el("span", { class: "number" }, step.step));
  });
  $("steps").replaceChildren(el("span", { class: "strip-name" }, "mean reward", el("br"), "at step"), ...bars);
}

function showMarks() {
  for (const button of all("#steps button")) {
    const step = steps.get(Number(button.dataset.step));
    const searched = state.query && step.rollouts;
    const found = searched ? step.rollouts.filter(matches).length : 0;
    button.setAttribute("aria-pressed", step.step === state.step);
    button.classList.toggle("without", Boolean(searched && !found));
    button.querySelector(".found").textContent = found || "";
  }
}

async function goToStep(number) {
  state.step = number;
  showMarks();
  document.querySelector("#steps [aria-pressed=true]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  await loadStep(number);
  if (state.step === number) draw();
}

function nextStep(by) {
  const numbers = [...steps.keys()];
  const next = numbers[numbers.indexOf(state.step) + by];
  if (next !== undefined) goToStep(next);
}

// Keys: everything that the mouse can do.

const KEYS = [
  ["j  k", "next, previous rollout (also ↓ ↑)", { j: () => walkRows(1), k: () => walkRows(-1), ArrowDown: () => walkRows(1), ArrowUp: () => walkRows(-1) }],
  ["Enter", "the rollout in full", { Enter: () => openFocused() }],
  ["←  →", "previous, next step; in an open rollout: token by token", { ArrowLeft: () => sideways(-1), ArrowRight: () => sideways(1) }],
  ["[  ]", "previous, next step", { "[": () => nextStep(-1), "]": () => nextStep(1) }],
  ["c", "colour tokens by the next number", { c: () => cycle("colour") }],
  ["s", "sort by the next number", { s: () => cycle("sort") }],
  ["f", "show the next kind of rollout", { f: () => cycle("show") }],
  ["v", "groups side by side, or one list", { v: () => cycle("view") }],
  ["/", "search", { "/": () => $("search").select() }],
  ["t", "light or dark", { t: () => switchTheme() }],
  ["Esc", "close, clear the search and the filter", { Escape: () => goBack() }],
  ["?", "this list", { "?": () => showHelp() }],
];
const ACTIONS = Object.assign({}, ...KEYS.map(([, , actions]) => actions));

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const { target } = event;
  const typing = target.matches("input, select, textarea");
  const leaving = typing && event.key === "Escape";
  const action = leaving ? () => leaveField(target) : ACTIONS[event.key];
  if (!action || (typing && !leaving) || (event.key === "Enter" && target.matches("button, a, summary"))) return;
  event.preventDefault();
  action();
}

function leaveField(field) {
  if (field.id === "search") setQuery("");
  field.blur();
  draw();
  $("board").focus({ preventScroll: true });
}

function walkRows(by) {
  const rows = all("#board .rollout");
  const now = rows.indexOf((detail.rollout && rowOf(detail.rollout)) || document.activeElement.closest(".rollout"));
  if (now + by >= rows.length && board.drawn < board.items.length) {
    drawMore();
    return walkRows(by);
  }
  const bar = $("bar").getBoundingClientRect().bottom;
  const visible = Math.max(0, rows.findIndex((row) => row.getBoundingClientRect().bottom > bar)); // where the eyes are
  const next = rows[now < 0 ? visible : within(0, now + by, rows.length - 1)];
  if (!next) return;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
  if (detail.rollout) openDetail(rolloutAt(next));
}

function walkTokens(by) {
  const tokens = all("#detail .t");
  const now = tokens.indexOf(document.activeElement);
  const next = tokens[now < 0 ? 0 : within(0, now + by, tokens.length - 1)];
  if (!next) return;
  next.tabIndex = -1;
  next.focus();
}

function openFocused() {
  const r = rolloutAt(document.activeElement);
  if (r) openDetail(r);
}

const sideways = (by) => (detail.rollout ? walkTokens(by) : nextStep(by));

function cycle(name) {
  const select = $(name);
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.onchange();
}

function goBack() {
  hideTip();
  if (closeDetail()) return;
  setQuery("");
  state.show = $("show").value = "all";
  draw();
}

function showHelp() {
  const rows = KEYS.map(([keys, meaning]) => {
    const shown = keys.split("  ").map((key) => el("kbd", {}, key));
    return el("tr", {}, el("th", { scope: "row" }, ...shown), el("td", {}, meaning));
  });
  const close = el("button", { type: "button" }, "Close");
  close.onclick = () => $("help").close();
  const noted = Object.values(SCALES).filter(({ note }) => note);
  const colours = noted.map(({ label, note }) => el("p", {}, el("b", {}, label), `: ${note}.`));
  $("help").replaceChildren(el("h2", { id: "help-title" }, "Keys"), el("table", {}, el("tbody", {}, ...rows)), el("h2", {}, "Colours"), ...colours, close);
  $("help").showModal();
}

// The page. What is chosen stands in its address, so that a reload, or a link, shows the same.

let typed = 0;

function setQuery(query) {
  clearTimeout(typed);
  state.query = $("search").value = query;
}

function rememberState() {
  const words = new URLSearchParams(state);
  history.replaceState(null, "", `#${words}`);
}

function recallState() {
  const words = new URLSearchParams(location.hash.slice(1));
  for (const [name, options] of Object.entries(CHOICES)) {
    if (options.some(([known]) => known === words.get(name))) state[name] = words.get(name);
  }
  const step = Number(words.get("step"));
  state.step = words.has("step") && steps.has(step) ? step : [...steps.keys()].pop();
  setQuery(words.get("query") ?? "");
}

function fillChoices() {
  for (const [name, options] of Object.entries(CHOICES)) {
    const select = $(name);
    select.append(...options.map(([value, label]) => el("option", { value }, label)));
    select.value = state[name];
    select.onchange = () => {
      state[name] = select.value;
      if (name === "colour") recolour();
      else draw();
    };
  }
}

// Colours change in place: nothing is laid out anew, and what has the focus keeps it.
function recolour() {
  rememberState();
  showLegend(steps.get(state.step));
  for (const token of all(".t")) {
    const r = rolloutAt(token);
    colourToken(token, r, Number(token.dataset.i), rangeOf(steps.get(r.step)));
  }
}

function switchTheme() {
  const { dataset } = document.documentElement;
  const dark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = dark ? "light" : "dark";
}

function listen() {
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  document.addEventListener("mouseover", ({ target }) => (target.closest(".t") ? showTip(target.closest(".t")) : hideTip()));
  document.addEventListener("focusin", ({ target }) => (target.matches(".t") ? showTip(target) : hideTip()));
  document.addEventListener("scroll", hideTip, true);
  $("search").oninput = () => {
    setQuery($("search").value);
    typed = setTimeout(draw, 120);
  };
  new IntersectionObserver(([entry]) => entry.isIntersecting && drawMore(), { rootMargin: "600px" }).observe($("more"));
  const stayBelow = () => document.body.style.setProperty("--bar", `${$("bar").offsetHeight}px`); // where questions stay
  new ResizeObserver(stayBelow).observe($("bar"));
}

function onClick({ target }) {
  const step = target.closest("#steps button");
  const row = target.closest("#board .rollout");
  if (step) goToStep(Number(step.dataset.step));
  else if (target.closest("#theme")) switchTheme();
  else if (target.closest("#keys")) showHelp();
  else if (target.closest("#close")) goBack();
  else if (row && !target.closest("summary") && !String(getSelection())) openDetail(rolloutAt(row));
}

function showRun(run) {
  $("name").textContent = run.name;
  const facts = [run.task, run.algorithm, run.model_id || "embedded base model", run.commit && `commit ${run.commit.slice(0, 7)}`];
  if (run.steps_shown < run.steps_written) facts.push(`${run.steps_shown} of ${run.steps_written} logged steps`);
  $("facts").textContent = facts.filter(Boolean).join(" · ");
}

function nothingYet(run) {
  const every = run.rollouts_every
    ? `They are written every ${run.rollouts_every} steps; this run has not come to the first.`
    : "This run writes none: --rollouts-every is 0.";
  $("bar").hidden = true;
  $("board").append(el("p", { class: "note" }, `No rollouts yet. ${every}`));
}

async function start() {
  const run = await readPage();
  showRun(run);
  if (steps.size) {
    recallState();
    fillChoices();
    drawSteps();
    listen();
    await goToStep(state.step);
    performance.mark("opened");
    for (const number of steps.keys()) {
      await loadStep(number);
      await new Promise((resume) => setTimeout(resume)); // keys and clicks come first
    }
    showMarks();
  } else nothingYet(run);
  document.body.dataset.ready = "all";
}

// Whatever goes wrong is said on the page: a blank one would leave the reader guessing.
function tell(error) {
  $("board").prepend(el("p", { class: "note problem" }, `This page has a fault: ${error?.message ?? error}`));
}

addEventListener("error", (event) => tell(event.error ?? event.message));
addEventListener("unhandledrejection", (event) => tell(event.reason));
start();
})();
