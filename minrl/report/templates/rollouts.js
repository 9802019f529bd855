(() => {
"use strict";

// Data. Each step is unpacked once, when it is first shown; the others follow, for the search.

const state = { step: null, colour: "logprob", view: "groups", sort: "mixed", show: "all", query: "" };
const steps = new Map(); // step -> { step, about, load, rollouts and groups (once loaded) }
const $ = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function readSteps() {
  for (const { dataset, textContent } of all("script.step")) {
    const step = { step: Number(dataset.step), about: await unpack(dataset.about), rollouts: null };
    step.load = () => (step.loading ??= fill(step, textContent));
    steps.set(step.step, step);
  }
}

async function fill(step, packed) {
  const data = packed ? await unpack(packed) : { rollouts: [] };
  step.rollouts = data.rollouts.map((values, index) => readable(values, index, step.step, data));
  step.groups = groupBy(step.rollouts, (r) => `${r.purpose}/${r.group}`);
  const episodes = groupBy(step.rollouts, (r) => `${r.purpose}/${r.slot}/${r.sample}`);
  for (const group of step.groups.values()) for (const r of group) Object.assign(r, { groupOf: group, spread: spreadOf(group) });
  for (const episode of episodes.values()) for (const r of episode) r.players = episode;
}

// The standard deviation of a group's rewards. Where all are equal there was nothing to learn.
function spreadOf(group) {
  const rewards = group.filter((r) => r.reward !== null).map((r) => r.reward);
  const middle = mean(rewards);
  return rewards.length ? Math.sqrt(mean(rewards.map((reward) => (reward - middle) ** 2))) : 0;
}

function readable(values, index, step, { pieces, texts }) {
  let start = 0;
  const turns = values.turns.map(([text, length]) => ({ shown: texts[text], from: start, to: (start += length) }));
  return {
    ...values,
    index,
    step,
    turns,
    pieces: values.pieces.map((piece) => pieces[piece]),
    prompt: turns.length ? turns[0].shown : [],
    asked: texts[values.asked],
    meanSurprise: values.surprise.reduce((sum, value) => sum + value, 0) / 1000 / Math.max(1, values.pieces.length),
    truncated: values.finish_reason === "length",
  };
}

const textOf = (pieces) => pieces.map(([text]) => text).join("");

function matches(r) {
  if (!state.query) return true;
  r.words ??= [...r.turns.map(({ shown }) => textOf(shown)), textOf(r.pieces), r.example, r.seed].join("\n").toLowerCase();
  return r.words.includes(state.query.toLowerCase());
}

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return groups;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Numbers. Three digits, and powers of ten for what is very small or large.

const signed = (value) => (value > 0 ? `+${digits(value)}` : digits(value));
const percent = (share) => `${(100 * share).toFixed(share && share < 0.01 ? 2 : 0)} %`;
const within = (low, value, high) => Math.max(low, Math.min(high, value));

function digits(value) {
  const size = Math.abs(value);
  const text = size && (size < 0.001 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  return text.replaceAll("-", "−");
}

// Colours of tokens. Blue and orange tell apart for every kind of colour vision; each has its number nearby. A scale has
// the value of token i of rollout r (null: not known), and its place between -1 and 1.

const LEVELS = 8;
const SURPRISE_AT_FULL = 6; // nats: a probability of 0.25 %
const MICRO = 1e6;
const largest = (step, size) => step.rollouts.reduce((most, r) => Math.max(most, size(r)), 0);
const largestOf = (r, name) => (r[name] ? Math.max(...r[name].map(Math.abs)) / MICRO : 0);

const SCALES = {
  logprob: {
    label: "log-probability",
    note: "how likely the engine found each token: the deeper the colour, the more surprising",
    value: (r, i) => -r.surprise[i] / 1000,
    place: (value) => Math.sqrt(Math.min(1, -value / SURPRISE_AT_FULL)),
    ticks: () => ["p = 1", "0.22", "≤ 0.0025"],
    sequential: true,
  },
  advantage: {
    label: "advantage",
    note: "how much better than its group, the same for each token of a rollout",
    value: (r) => r.advantage,
    range: (step) => largest(step, (r) => Math.abs(r.advantage ?? 0)) || 1,
  },
  weight: {
    label: "importance weight",
    note: "policy over engine probability, cut off and masked as in the update; dotted: not computed",
    value: (r, i) => (r.weight ? r.weight[i] / 1e4 : r.gap ? Math.exp(r.gap[i] / MICRO) : null),
    place: (value) => Math.log2(value),
    ticks: () => ["≤ ½", "1", "≥ 2"],
  },
  gap: {
    label: "engine gap",
    note: "the policy's log-probability minus the engine's, nats; dotted: not computed, the rollout had no gradient",
    value: (r, i) => (r.gap ? r.gap[i] / MICRO : null),
    range: (step) => largest(step, (r) => largestOf(r, "gap")) || 1e-6,
  },
  moved: {
    label: "moved by the update",
    note:
      "how far the update moved each token's log-probability, nats: the way its advantage points, or against it; without an advantage up, or down; dotted: not computed",
    value: (r, i) => (r.moved ? (r.moved[i] / MICRO) * (Math.sign(r.advantage ?? 0) || 1) : null),
    range: (step) => largest(step, (r) => largestOf(r, "moved")) || 1e-6,
    ticks: (range) => [`against ${digits(range)}`, "0", `with ${digits(range)}`],
  },
  none: { label: "no colour", value: () => 0, ticks: () => [] },
};

function rangeOf(step) {
  step.ranges ??= {};
  return (step.ranges[state.colour] ??= SCALES[state.colour].range?.(step) ?? 1);
}

function colourToken(element, r, i) {
  const { value: valueOf, place: placeOf = (value, range) => value / range, sequential } = SCALES[state.colour];
  const value = valueOf(r, i);
  const place = value === null ? 0 : within(-1, placeOf(value, rangeOf(steps.get(r.step))), 1);
  const level = Math.round(Math.abs(place) * LEVELS);
  element.classList.remove("pos", "neg", "seq", "unknown");
  if (value === null) element.classList.add("unknown");
  if (level) element.classList.add(sequential ? "seq" : place > 0 ? "pos" : "neg");
  element.style.setProperty("--level", level);
}

function showLegend(step) {
  const { note = "", sequential, ticks: ticksOf = (range) => [signed(-range), "0", signed(range)] } = SCALES[state.colour];
  const ticks = ticksOf(rangeOf(step));
  const ramp = el("span", { class: sequential ? "ramp seq" : "ramp" });
  $("legend").title = note;
  $("legend").replaceChildren(...(ticks.length ? [ramp, el("span", { class: "ticks" }, ...ticks.map((tick) => el("b", {}, tick)))] : []));
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

function appendText(parent, text, hidden = HIDDEN) {
  let start = 0;
  for (const { 0: character, index } of text.matchAll(hidden)) {
    parent.append(text.slice(start, index), ...mark(character));
    start = index + character.length;
  }
  parent.append(text.slice(start));
  return parent;
}

function mark(character) {
  if (character === "\n") return [el("span", { class: "newline", "aria-hidden": "true" }, "↵"), "\n"];
  const code = character.codePointAt(0);
  const hex = code.toString(16);
  return [el("span", { class: "hidden-char" }, code < 0x80 ? `\\x${hex.padStart(2, "0")}` : `U+${hex.toUpperCase().padStart(4, "0")}`)];
}

// What was shown: ordinary text, and special tokens set off from it.
function shownText(runs) {
  const text = el("div", { class: "text shown" });
  for (const [piece, special] of runs) appendText(special ? text.appendChild(el("span", { class: "special" })) : text, piece);
  return text;
}

// What one role wrote in a turn: tokens, coloured.
function tokenText(r, { from, to }) {
  const text = el("div", { class: "text wrote", "data-rollout": r.index });
  for (let i = from; i < to; i++) {
    const [piece, special] = r.pieces[i];
    const token = el("span", { class: special ? "t special" : "t", "data-i": i });
    appendText(token, piece, HIDDEN_OR_LINE_END);
    if (!piece) token.append(el("span", { class: "newline", "aria-hidden": "true" }, "·"));
    colourToken(token, r, i);
    text.append(token);
  }
  return text;
}

// Marks the search's matches without touching the text, where the browser can.
function highlightMatches() {
  if (!CSS.highlights) return;
  CSS.highlights.delete("match");
  if (state.query) CSS.highlights.set("match", new Highlight(...all("main .text, #detail .text").flatMap(rangesIn)));
}

// A match may begin in one token and end in another: `nodes` are the text nodes with where each begins.
function rangesIn(element) {
  const [walker, query] = [document.createTreeWalker(element, NodeFilter.SHOW_TEXT), state.query.toLowerCase()];
  const [nodes, found] = [[], []];
  let whole = "";
  while (walker.nextNode()) {
    if (walker.currentNode.parentElement.closest(".newline")) continue;
    nodes.push([whole.length, walker.currentNode]);
    whole += walker.currentNode.data;
  }
  const letters = whole.toLowerCase();
  if (letters.length !== whole.length) return []; // a letter whose small form is longer: places would be wrong
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
  order: ["as sampled", () => 0],
  best: ["reward, best first", (r) => -(r.reward ?? -Infinity)],
  worst: ["reward, worst first", (r) => r.reward ?? Infinity],
  longest: ["length, longest first", (r) => -r.pieces.length],
  surprising: ["surprise, most first", (r) => -r.meanSurprise],
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
const sorted = (items, key) => items.toSorted((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));

// What the board shows of a step: groups, each with its rollouts that are shown, or single rollouts.
function itemsOf(step) {
  const key = SORTS[state.sort][1];
  if (state.view === "list") return sorted(step.rollouts.filter(isShown), key).map((r) => [r]);
  const groups = [...step.groups.values()].map((group) => sorted(group.filter(isShown), key)).filter((group) => group.length);
  return sorted(groups, (group) => mean(group.map(key)));
}

function draw() {
  const step = steps.get(state.step);
  if (!step?.rollouts) return;
  rememberState();
  showMarks();
  showLegend(step);
  $("board").replaceChildren();
  $("board").className = state.view;
  $("board").dataset.step = step.step;
  Object.assign(board, { items: itemsOf(step), drawn: 0 });
  if (!board.items.length) $("board").append(el("p", { class: "note" }, whyEmpty(step)));
  drawMore();
  $("board").querySelector(".rollout")?.setAttribute("tabindex", 0);
  $("summary").textContent = summaryOf(step);
}

function drawMore() {
  for (let rollouts = 0; board.drawn < board.items.length && rollouts < BATCH; ) {
    const item = board.items[board.drawn++];
    rollouts += item.length;
    $("board").append(state.view === "groups" ? groupPanel(item) : rolloutRow(item[0], true));
  }
  const left = board.items.length - board.drawn;
  $("more").textContent = left ? `${left} more below` : "";
  highlightMatches();
}

function whyEmpty({ step, about }) {
  if (about.problem) return `This step is missing: ${about.problem}`;
  const why = state.query ? `has “${state.query}” in it` : `is ${SHOWS[state.show][0]}`;
  return `No rollout of step ${step} ${why}. Esc clears the search and the filter.`;
}

const joined = (facts) => facts.filter(Boolean).join(" · ");

// Mean reward, and how many are solved: of a group as a number, of a step as a share.
function scoresOf(rollouts, solvedIn) {
  const scored = rollouts.filter((r) => r.reward !== null);
  if (!scored.length) return [];
  return [`mean reward ${digits(mean(scored.map((r) => r.reward)))}`, `${solvedIn(scored.filter((r) => r.solved).length)} solved`];
}

function summaryOf({ step, rollouts, about }) {
  const shown = rollouts.filter(isShown);
  const count = (test) => shown.filter(test).length;
  const [truncated, unscorable] = [count((r) => r.truncated), count((r) => r.reward === null)];
  return joined([
    `Step ${step}: ${shown.length} rollouts in ${new Set(shown.map((r) => r.groupOf)).size} groups`,
    ...scoresOf(shown, (solved) => percent(solved / shown.length)),
    truncated && `${truncated} cut off`,
    unscorable && `${unscorable} unscorable`,
    about.shown < about.total && `the page holds ${about.shown} of the ${about.total} rollouts in rollouts/`,
  ]);
}

function groupPanel(rollouts) {
  const [first] = rollouts;
  const { length } = first.groupOf;
  const facts = [
    first.purpose === "train" ? "training" : "held out, followed through the run",
    first.role !== "policy" && `role ${first.role}`,
    ...scoresOf(first.groupOf, (solved) => `${solved} of ${length}`),
    rollouts.length < length && `${rollouts.length} of ${length} shown`,
  ];
  const title = el("header", {}, appendText(el("h3", { class: "text" }), first.example));
  return el("section", { class: "group" }, title, el("p", { class: "quiet" }, joined(facts)), promptOf(first), ...rollouts.map((r) => rolloutRow(r)));
}

// The question; opened, the whole prompt.
function promptOf(r) {
  const asked = shownText(r.asked);
  asked.classList.add("asked");
  return el("details", { class: "prompt" }, el("summary", {}, asked, shownText(r.prompt)));
}

function rolloutRow(r, alone = false) {
  const place = { tabindex: "-1", "data-step": r.step, "data-rollout": r.index };
  const body = el("div", { class: "body" }, alone ? promptOf(r) : null, el("div", { class: "clamp" }, ...completionOf(r)), factsOf(r, alone));
  return el("article", { class: r.solved ? "rollout solved" : "rollout", ...place }, rewardBadge(r), body);
}

function rewardBadge(r) {
  if (r.reward === null) return el("span", { class: "badge unscorable", title: "unscorable: the reward raised, or missed its deadline" }, "—");
  const title = `reward ${digits(r.reward)}${r.solved ? ", solved" : ""}`;
  const badge = el("span", { class: "badge", title }, el("b", {}, r.reward.toFixed(2)), r.solved ? " ✓" : "");
  badge.style.setProperty("--share", within(0, r.reward, 1));
  return badge;
}

function factsOf(r, alone) {
  const facts = [
    alone && ["", r.example],
    ...Object.entries(r.parts).map(([name, value]) => ["part", `${name} ${digits(value)}`, "part of the reward"]),
    alone && r.role !== "policy" && ["", `role ${r.role}`],
    r.truncated ? ["warn", "✂ length", "cut off at the token limit"] : ["", r.finish_reason, "finish reason"],
    ["", `${r.pieces.length} tok`, "sampled tokens"],
    ["", `${r.meanSurprise.toFixed(2)} nats/tok`, "surprise: minus the mean log-probability of its tokens"],
    r.advantage !== null && ["", `adv ${signed(Number(r.advantage.toFixed(3)))}`, "advantage"],
  ];
  const shown = facts.filter(Boolean).flatMap(([kind, text, title = null]) => [el("span", { class: kind, title }, text), " "]);
  return el("p", { class: "facts" }, ...shown);
}

// A rollout as it reads: one completion, or turns with what was shown between them. The prompt stands elsewhere.
function completionOf(r) {
  const own = r.episode.filter(([role]) => role === r.role);
  return r.turns.flatMap((turn, number) => {
    const shownBy = own[number]?.[4];
    const shown = number ? [shownBy ? el("h4", {}, shownBy) : null, shownText(turn.shown)] : [];
    return [...shown.filter(Boolean), tokenText(r, turn)];
  });
}

// The whole episode, each role's turns in the order in which they were played.
function conversationOf(r) {
  const roles = [...new Set(r.episode.map(([role]) => role))];
  const taken = {};
  const conversation = el("div", { class: roles.length > 1 ? "several" : "" });
  const say = (kind, role, head, text) => {
    const side = roles.indexOf(role) % 2 ? "right" : "left";
    conversation.append(el("section", { class: `turn ${kind} ${side}` }, el("h4", {}, ...head), text));
  };
  for (const [role, seed, finish, text, by] of r.episode) {
    const number = (taken[role] = (taken[role] ?? -1) + 1);
    const player = r.players.find((one) => one.role === role);
    const turn = player?.turns[number];
    if (turn) say("shown-to", role, [`${by || (number ? "shown" : "prompt")}${roles.length > 1 ? ` to ${role}` : ""}`], shownText(turn.shown));
    const facts = el("span", { class: "quiet" }, `${finish === "length" ? "cut off at the limit" : finish} · seed ${seed}`);
    const written = turn ? tokenText(player, turn) : appendText(el("div", { class: "text" }), text ?? "(not on this page)");
    say("wrote-by", role, [role, text === null ? "" : " (frozen)", " ", facts], written);
  }
  return conversation;
}

// One rollout in full: every number, its episode as a conversation, and its tokens one by one.

let opened = null;
const rowOf = (r) => document.querySelector(`.rollout[data-step="${r.step}"][data-rollout="${r.index}"]`);

function openDetail(r) {
  if (opened) rowOf(opened)?.classList.remove("open");
  opened = r;
  const title = el("h2", {}, rewardBadge(r), appendText(el("span", { class: "text" }), ` ${r.example}`));
  const close = el("button", { type: "button", id: "close", title: "Close (Esc)" }, "Close");
  const entries = Object.entries(numbersOf(r)).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  $("detail").dataset.step = r.step;
  $("detail").replaceChildren(el("header", {}, title, el("span", { class: "grow" }), close), el("dl", {}, ...entries), conversationOf(r));
  $("detail").hidden = false;
  $("detail").scrollTop = 0;
  document.body.classList.add("with-detail");
  rowOf(r)?.classList.add("open");
  highlightMatches();
}

function closeDetail() {
  if (!opened) return false;
  $("detail").hidden = true;
  document.body.classList.remove("with-detail");
  const row = rowOf(opened);
  row?.classList.remove("open");
  (row ?? $("board")).focus({ preventScroll: true });
  opened = null;
  return true;
}

function rolloutAt(element) {
  const holder = element.closest("[data-rollout]");
  return holder && steps.get(Number(holder.closest("[data-step]").dataset.step)).rollouts[Number(holder.dataset.rollout)];
}

function numbersOf(r) {
  return {
    step: r.step,
    "group, sample": `${r.group}, ${r.sample}`,
    role: r.role,
    reward: r.reward === null ? "unscorable" : `${digits(r.reward)}${r.solved ? " (solved)" : ""}`,
    ...Object.fromEntries(Object.entries(r.parts).map(([name, value]) => [`part ${name}`, digits(value)])),
    advantage: r.advantage === null ? "none: held out" : signed(r.advantage),
    "finish reason": r.truncated ? "length (cut off)" : r.finish_reason,
    tokens: `${r.pieces.length} sampled, prompt ${r.prompt_length}`,
    surprise: `${r.meanSurprise.toFixed(3)} nats/token`,
    "engine gap, largest": r.gap ? digits(largestOf(r, "gap")) : "not computed",
    weights: `version ${r.weight_version}`,
    seed: r.seed,
  };
}

function tokenFacts(r, i) {
  const [logprob, gap, weight] = ["logprob", "gap", "weight"].map((name) => SCALES[name].value(r, i));
  return {
    token: `${i + 1} of ${r.pieces.length}`,
    probability: percent(Math.exp(logprob)),
    "log-probability, engine": digits(logprob),
    "log-probability, policy": gap === null ? "not computed" : digits(logprob + gap),
    "engine gap": gap === null ? "not computed" : signed(gap),
    "importance weight": weight === null ? "not computed" : `${weight.toFixed(4)}${r.weight ? "" : " (not applied)"}`,
    "moved by the update": r.moved ? signed(r.moved[i] / MICRO) : "not computed",
    advantage: r.advantage === null ? "none (not trained on)" : signed(r.advantage),
  };
}

const rowsOf = (entries) => el("table", {}, ...entries.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value))));

// The numbers of a token beside it, for the pointer and for the keyboard alike.
function showTip(token) {
  const r = rolloutAt(token);
  const i = Number(token.dataset.i);
  const tip = $("tip");
  const name = appendText(el("code", { class: "text" }), `“${r.pieces[i][0]}”`, HIDDEN_OR_LINE_END);
  tip.replaceChildren(name, rowsOf(Object.entries(tokenFacts(r, i))));
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
  const bars = [...steps.values()].map(({ step, about }) => {
    const facts = about.problem ? "cannot be read" : about.mean === null ? "no reward" : `mean reward ${digits(about.mean)}, ${percent(about.solved)} solved`;
    const level = el("i", { class: "mean" });
    level.style.setProperty("--share", within(0, about.mean ?? 0, 1));
    const bar = el("span", { class: "bar" }, level, el("i", { class: "found" }));
    const attributes = { type: "button", "data-step": step, title: `Step ${step}: ${facts}`, class: about.problem ? "problem" : null };
    return el("button", attributes, bar, el("span", { class: "number" }, step));
  });
  $("steps").replaceChildren(el("span", { class: "strip-name" }, "mean reward", el("br"), "at step"), ...bars);
}

function showMarks() {
  for (const button of all("#steps button")) {
    const { step, rollouts } = steps.get(Number(button.dataset.step));
    const found = state.query && rollouts ? rollouts.filter(matches).length : null;
    button.setAttribute("aria-pressed", step === state.step);
    button.classList.toggle("without", found === 0);
    button.querySelector(".found").textContent = found || "";
  }
}

async function goToStep(number) {
  state.step = number;
  showMarks();
  document.querySelector("#steps [aria-pressed=true]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  await steps.get(number).load();
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
  const typing = event.target.matches("input, select");
  const action = typing ? event.key === "Escape" && (() => leaveField(event.target)) : ACTIONS[event.key];
  if (!action || (event.key === "Enter" && event.target.matches("button, a, summary"))) return;
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
  const now = rows.indexOf((opened && rowOf(opened)) || document.activeElement.closest(".rollout"));
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
  if (opened) openDetail(rolloutAt(next));
}

function sideways(by) {
  if (!opened) return nextStep(by);
  const tokens = all("#detail .t");
  const now = tokens.indexOf(document.activeElement);
  const next = tokens[now < 0 ? 0 : within(0, now + by, tokens.length - 1)];
  next?.setAttribute("tabindex", -1);
  next?.focus();
}

function openFocused() {
  const r = rolloutAt(document.activeElement);
  if (r) openDetail(r);
}

function cycle(name) {
  $(name).selectedIndex = ($(name).selectedIndex + 1) % $(name).options.length;
  $(name).onchange();
}

function goBack() {
  hideTip();
  if (closeDetail()) return;
  setQuery("");
  state.show = $("show").value = "all";
  draw();
}

function showHelp() {
  const keys = KEYS.map(([names, meaning]) => [el("span", {}, ...names.split("  ").map((key) => el("kbd", {}, key))), meaning]);
  const colours = Object.values(SCALES).filter(({ note }) => note).map(({ label, note }) => el("p", {}, el("b", {}, label), `: ${note}.`));
  const close = el("button", { type: "button" }, "Close");
  close.onclick = () => $("help").close();
  $("help").replaceChildren(el("h2", { id: "help-title" }, "Keys"), rowsOf(keys), el("h2", {}, "Colours"), ...colours, close);
  $("help").showModal();
}

// The page. What is chosen stands in its address, so that a reload, or a link, shows the same.

let typed = 0;

function setQuery(query) {
  clearTimeout(typed);
  state.query = $("search").value = query;
}

const rememberState = () => history.replaceState(null, "", `#${new URLSearchParams(state)}`);

function recallState() {
  const words = new URLSearchParams(location.hash.slice(1));
  for (const [name, options] of Object.entries(CHOICES)) {
    if (options.some(([known]) => known === words.get(name))) state[name] = words.get(name);
  }
  const step = Number(words.get("step") ?? NaN);
  state.step = steps.has(step) ? step : [...steps.keys()].pop();
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
  for (const token of all(".t")) colourToken(token, rolloutAt(token), Number(token.dataset.i));
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

function nothingYet(every) {
  const why = every
    ? `They are written every ${every} steps; this run has not come to the first.`
    : "This run writes none: --rollouts-every is 0.";
  $("bar").hidden = true;
  $("board").append(el("p", { class: "note" }, `No rollouts yet. ${why}`));
}

async function start() {
  await readSteps();
  if (steps.size) {
    recallState();
    fillChoices();
    drawSteps();
    listen();
    await goToStep(state.step);
    performance.mark("opened");
    for (const step of steps.values()) {
      await step.load();
      await new Promise((resume) => setTimeout(resume)); // keys and clicks come first
    }
    showMarks();
  } else nothingYet(Number(document.body.dataset.every));
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
