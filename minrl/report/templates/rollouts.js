(() => {
"use strict";

// Data. The files of each step are unpacked once, when it is first shown; the others follow, for the search.

const SCHEMA = 2; // of the lines in rollouts/
const state = { step: null, colour: "logprob", sort: "mixed", show: "all", query: "" };
const steps = new Map(); // step -> { step, mean, solved, load, and once loaded: rollouts, groups, problem, leftOut }
const $ = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];

async function unpack(packed) {
  if (!packed) return [];
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const quoted = text.replace(/"seed": (\d+)/g, '"seed": "$1"'); // 63 bits: more than a number of JavaScript holds
  return quoted.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

function readSteps() {
  for (const { dataset, textContent } of all("script.step")) {
    const [mean, solved] = [dataset.mean, dataset.solved].map((text) => (text === "None" ? null : Number(text)));
    const step = { step: Number(dataset.step), mean, solved, rollouts: null, problem: "", leftOut: 0 };
    step.load = () => (step.loading ??= fill(step, textContent, dataset.evaluations));
    steps.set(step.step, step);
  }
}

async function fill(step, rollouts, evaluations) {
  try {
    const lines = [...(await unpack(rollouts)), ...(await unpack(evaluations))];
    step.leftOut = lines.find((line) => line.left_out)?.left_out ?? 0;
    step.rollouts = lines.filter((line) => !line.left_out).map((line, index) => readable(line, index, step.step));
  } catch (error) {
    [step.rollouts, step.problem] = [[], `its file cannot be read: ${error?.message ?? error}`];
  }
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

// A line of rollouts/ or of evaluations/ as it is shown: pieces are the sampled tokens, each [text, is it special], and
// `surprise`, `gap`, `weight` and `moved` a number for each, or null where the update did not compute the rollout.
function readable(line, index, step) {
  if (line.mode) return evaluated(line, index, step);
  if (line.schema !== SCHEMA) throw new Error(`it has rollouts of schema ${line.schema}; this page reads ${SCHEMA}`);
  const special = new Set(line.special);
  const piece = (i) => [line.tokens[i], special.has(i)];
  const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);
  const sampled = line.turns.flatMap(([from, to]) => range(from, to));
  const engine = sampled.map((i) => line.rollout_logprobs[i]);
  const advantages = [line.advantage].flat(); // one, or one for each turn
  let [before, start] = [0, 0];
  const turns = line.turns.map(([from, to]) => {
    const turn = { shown: joinedPieces(range(before, from).map(piece)), from: start, to: start + to - from };
    [before, start] = [to, turn.to];
    return turn;
  });
  return {
    ...line,
    index,
    step,
    turns,
    example: [line.task, line.example_id].filter(Boolean).join("/"),
    pieces: sampled.map(piece),
    prompt: turns.length ? turns[0].shown : [],
    asked: [[askedOf(line.message || line.prompt), false]],
    credit: line.advantage === null ? null : line.turns.flatMap(([from, to], k) => Array(to - from).fill(advantages[k] ?? advantages[0])),
    surprise: engine.map((logprob) => -logprob),
    gap: line.logprobs && line.logprobs.map((logprob, i) => logprob - engine[i]),
    weight: line.importance_weights ?? null,
    moved: line.moved ?? null,
    meanSurprise: engine.length ? -mean(engine) : 0,
    length: sampled.length,
    truncated: line.finish_reason === "length",
  };
}

// A problem's completion in an evaluation: its text alone, without tokens.
function evaluated(line, index, step) {
  const shown = [[typeof line.prompt === "string" ? line.prompt : line.prompt.map(wordsOf).join("\n\n"), false]];
  return {
    ...line,
    index,
    step,
    purpose: "evaluation",
    group: `${line.task}/${line.example_id}/${line.role}`,
    slot: `${line.task}/${line.example_id}/${line.mode}`,
    example: [line.task, line.example_id].filter(Boolean).join("/"),
    episode: [],
    turns: [{ shown, from: 0, to: 1 }],
    pieces: [[line.completion ?? "", false]],
    prompt: shown,
    asked: [[askedOf(line.prompt), false]],
    surprise: null,
    advantage: null,
    credit: null,
    length: line.tokens,
    finish_reason: line.truncated ? "length" : line.mode,
  };
}

const wordsOf = ({ content }) => (typeof content === "string" ? content : (content ?? []).map((part) => part.text).join(" "));

// The last message of the user.
function askedOf(message) {
  return typeof message === "string" ? message : wordsOf(message.findLast(({ role }) => role === "user") ?? message.at(-1));
}

// Runs of pieces that are special, or not, as one piece each.
function joinedPieces(pieces) {
  const runs = [];
  for (const [text, special] of pieces) {
    if (runs.at(-1)?.[1] === special) runs.at(-1)[0] += text;
    else runs.push([text, special]);
  }
  return runs;
}

const textOf = (pieces) => pieces.map(([text]) => text).join("");

function matches(r) {
  if (!state.query) return true;
  r.words ??= [...r.turns.map(({ shown }) => textOf(shown)), textOf(r.pieces), r.example, r.seed].join("\n").toLowerCase();
  return r.words.includes(state.query.toLowerCase());
}

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) {
    if (!groups.has(key(item))) groups.set(key(item), []);
    groups.get(key(item)).push(item);
  }
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

// Colours of tokens. Blue and orange tell apart for every kind of colour vision. A scale has the value of token i of
// rollout r (null: not known), and its place between -1 and 1.

const LEVELS = 8;
const SURPRISE_AT_FULL = 6; // nats: a probability of 0.25 %
const largest = (step, size) => step.rollouts.reduce((most, r) => Math.max(most, size(r)), 0);
const largestOf = (values) => (values ?? []).reduce((most, value) => Math.max(most, Math.abs(value)), 0);

const SCALES = {
  logprob: {
    label: "log-probability",
    note: "how likely the engine found each token: the deeper the colour, the more surprising; deepest at p ≤ 0.0025",
    value: (r, i) => (r.surprise ? -r.surprise[i] : null),
    place: (value) => Math.sqrt(Math.min(1, -value / SURPRISE_AT_FULL)),
    sequential: true,
  },
  advantage: {
    label: "advantage",
    note: "how much better (blue) or worse (orange) than its group, the same for each token of a rollout, or of a turn",
    value: (r, i) => r.credit && r.credit[i],
    range: (step) => largest(step, (r) => largestOf(r.credit)) || 1,
  },
  weight: {
    label: "importance weight",
    note: "policy over engine probability, cut off and masked as in the update; deepest at ½ and 2; dotted: not computed",
    value: (r, i) => (r.weight ? r.weight[i] : r.gap ? Math.exp(r.gap[i]) : null),
    place: (value) => Math.log2(value),
  },
  gap: {
    label: "engine gap",
    note: "the policy's log-probability minus the engine's, nats; dotted: not computed, the rollout had no gradient",
    value: (r, i) => (r.gap ? r.gap[i] : null),
    range: (step) => largest(step, (r) => largestOf(r.gap)) || 1e-6,
  },
  moved: {
    label: "moved by the update",
    note:
      "how far the update moved each token's log-probability, nats: the way its advantage points (blue), or against it; without an advantage up, or down; dotted: not computed",
    value: (r, i) => (r.moved ? r.moved[i] * (Math.sign(r.credit?.[i] ?? 0) || 1) : null),
    range: (step) => largest(step, (r) => largestOf(r.moved)) || 1e-6,
  },
  none: { label: "no colour", note: "", value: () => 0 },
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
  if (value === null && r.surprise) element.classList.add("unknown");
  if (level) element.classList.add(sequential ? "seq" : place > 0 ? "pos" : "neg");
  element.style.setProperty("--level", level);
}

// Colours change in place: nothing is laid out anew.
function recolour() {
  const range = SCALES[state.colour].range && steps.get(state.step).rollouts ? ` (deepest at ${digits(rangeOf(steps.get(state.step)))})` : "";
  $("note").textContent = SCALES[state.colour].note + range;
  for (const token of all(".t")) colourToken(token, rolloutAt(token), Number(token.dataset.i));
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
const readableText = (text) => text.replace(HIDDEN, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);

// What was shown: ordinary text, and special tokens set off from it.
function shownText(runs) {
  const text = el("div", { class: "text shown" });
  for (const [piece, special] of runs) text.append(special ? el("span", { class: "special" }, readableText(piece)) : readableText(piece));
  return text;
}

// What one role wrote in a turn: tokens, coloured.
function tokenText(r, { from, to }) {
  const text = el("div", { class: "text wrote", "data-step": r.step, "data-rollout": r.index });
  for (let i = from; i < to; i++) {
    const [piece, special] = r.pieces[i];
    const token = el("span", { class: special ? "t special" : "t", "data-i": i }, readableText(piece.replaceAll("\n", "↵\n")));
    colourToken(token, r, i);
    text.append(token);
  }
  return text;
}

// The board: a step's groups side by side, drawn a screenful at a time.

const BATCH = 96; // rollouts that are drawn at once
const board = { groups: [], drawn: 0 };

const SORTS = {
  mixed: ["most mixed first", (r) => -r.spread],
  best: ["reward, best first", (r) => -(r.reward ?? -Infinity)],
  worst: ["reward, worst first", (r) => r.reward ?? Infinity],
  longest: ["length, longest first", (r) => -r.length],
};
const SHOWS = {
  all: ["all", () => true],
  train: ["training", (r) => r.purpose === "train"],
  held_out: ["held-out, followed", (r) => r.purpose !== "train" && r.purpose !== "evaluation"],
  evaluation: ["evaluation", (r) => r.purpose === "evaluation"],
  solved: ["solved", (r) => r.solved === true],
  unsolved: ["not solved", (r) => r.solved === false],
  truncated: ["cut off", (r) => r.truncated],
  unscorable: ["unscorable", (r) => r.reward === null],
};
const KINDS = { train: "training", evaluation: "evaluation" };

const isShown = (r) => SHOWS[state.show][1](r) && matches(r);
const sorted = (items, key) => items.toSorted((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
const joined = (facts) => facts.filter(Boolean).join(" · ");

function draw() {
  const step = steps.get(state.step);
  if (!step?.rollouts) return;
  const key = SORTS[state.sort][1];
  const groups = [...step.groups.values()].map((group) => sorted(group.filter(isShown), key)).filter((group) => group.length);
  Object.assign(board, { groups: sorted(groups, (group) => mean(group.map(key))), drawn: 0 });
  $("board").replaceChildren();
  $("board").dataset.step = step.step;
  const why = step.problem || "nothing to show here: Esc clears the search and the filter";
  if (!groups.length) $("board").append(el("p", { class: "note" }, `Step ${step.step}: ${why}.`));
  drawMore();
  $("summary").textContent = summaryOf(step);
  recolour();
}

function drawMore() {
  for (let rollouts = 0; board.drawn < board.groups.length && rollouts < BATCH; ) {
    const group = board.groups[board.drawn++];
    rollouts += group.length;
    $("board").append(groupPanel(group));
  }
  const left = board.groups.length - board.drawn;
  $("more").hidden = !left;
  $("more").textContent = `${left} more groups`;
}

// Mean reward, and how many are solved.
function scoresOf(rollouts) {
  const scored = rollouts.filter((r) => r.reward !== null);
  if (!scored.length) return [];
  const solved = rollouts.filter((r) => r.solved).length;
  return [`mean reward ${digits(mean(scored.map((r) => r.reward)))}`, `${solved} of ${rollouts.length} solved`];
}

function summaryOf({ step, rollouts, leftOut }) {
  const shown = rollouts.filter(isShown);
  const count = (test) => shown.filter(test).length;
  return joined([
    `Step ${step}: ${shown.length} rollouts in ${new Set(shown.map((r) => r.groupOf)).size} groups`,
    ...scoresOf(shown),
    count((r) => r.truncated) && `${count((r) => r.truncated)} cut off`,
    count((r) => r.reward === null) && `${count((r) => r.reward === null)} unscorable`,
    leftOut && `${leftOut} more are in rollouts/ (--tokens-per-step)`,
  ]);
}

function groupPanel(rollouts) {
  const [first] = rollouts;
  const { length } = first.groupOf;
  const facts = joined([
    KINDS[first.purpose] ?? "held out, followed through the run",
    first.role !== "policy" && `role ${first.role}`,
    ...scoresOf(first.groupOf),
    rollouts.length < length && `${rollouts.length} of ${length} shown`,
  ]);
  const asked = shownText(first.asked);
  asked.classList.add("asked");
  const prompt = el("details", { class: "prompt" }, el("summary", {}, asked, shownText(first.prompt))); // opened, the whole
  const title = el("header", {}, el("h3", { class: "text" }, readableText(first.example)));
  return el("section", { class: "group" }, title, el("p", { class: "quiet" }, facts), prompt, ...rollouts.map(rolloutRow));
}

// A rollout: closed, the beginning of what it says; opened, all of it, and the other roles of its episode.
function rolloutRow(r) {
  const text = el("div", { class: "clamp" }, ...completionOf(r));
  const row = el("details", { class: r.solved ? "rollout solved" : "rollout" }, el("summary", {}, badge(r), el("div", {}, text, factsOf(r))));
  row.ontoggle = () => {
    const others = r.episode.some(({ role }) => role !== r.role);
    if (row.open && others && !row.querySelector(".several")) row.append(conversationOf(r));
  };
  return row;
}

function badge(r) {
  if (r.reward === null) return el("span", { class: "badge unscorable", title: "unscorable: the reward raised, or missed its deadline" }, "—");
  const shown = el("span", { class: "badge", title: `reward ${digits(r.reward)}` }, el("b", {}, r.reward.toFixed(2)), r.solved ? " ✓" : "");
  shown.style.setProperty("--share", within(0, r.reward, 1));
  return shown;
}

function factsOf(r) {
  const facts = [
    ...Object.entries(r.parts ?? {}).map(([name, value]) => ["part", `${name} ${digits(value)}`, "part of the reward"]),
    r.truncated ? ["warn", "✂ length", "cut off at the token limit"] : ["", r.finish_reason, "finish reason"],
    ["", `${r.length} tok`, "sampled tokens"],
    r.surprise && ["", `${r.meanSurprise.toFixed(2)} nats/tok`, "surprise: minus the mean log-probability of its tokens"],
    typeof r.advantage === "number" && ["", advantageText(r.advantage), "advantage"],
  ];
  const shown = facts.filter(Boolean).flatMap(([kind, text, title]) => [el("span", { class: kind, title }, readableText(text)), " "]);
  return el("p", { class: "facts" }, ...shown);
}

const advantageText = (value) => `adv ${signed(Number(value.toFixed(3)))}`;

// What a turn earned itself, and its advantage where each turn has its own; empty where only the episode has them.
function creditOf(r, number) {
  const [earned, advantage] = [r.turn_rewards?.[number], Array.isArray(r.advantage) ? r.advantage[number] : undefined];
  return joined([earned !== undefined && `reward ${digits(earned)}`, advantage !== undefined && advantageText(advantage)]);
}

// A rollout as it reads: one completion, or turns with what was shown between them. The prompt stands elsewhere.
function completionOf(r) {
  const own = r.episode.filter(({ role }) => role === r.role);
  return r.turns.flatMap((turn, number) => {
    const by = own[number]?.shown_by;
    const shown = number ? [by ? el("h4", {}, by) : null, shownText(turn.shown)] : [];
    const credit = creditOf(r, number);
    return [...shown.filter(Boolean), ...(credit ? [el("h4", {}, `turn ${number + 1} · ${credit}`)] : []), tokenText(r, turn)];
  });
}

// The whole episode, each role's turns in the order in which they were played.
function conversationOf(r) {
  const roles = [...new Set(r.episode.map(({ role }) => role))];
  const taken = {};
  const conversation = el("div", { class: "several" });
  for (const { role, finish_reason: finish, text, shown_by: by } of r.episode) {
    const number = (taken[role] = (taken[role] ?? -1) + 1);
    const player = r.players.find((one) => one.role === role);
    const turn = player?.turns[number];
    const side = roles.indexOf(role) % 2 ? "right" : "left";
    const say = (kind, head, said) => conversation.append(el("section", { class: `turn ${kind} ${side}` }, el("h4", {}, head), said));
    if (turn) say("shown-to", `${by || (number ? "shown" : "prompt")} to ${role}`, shownText(turn.shown));
    const written = turn ? tokenText(player, turn) : el("div", { class: "text" }, readableText(text ?? "(not on this page)"));
    say("wrote-by", joined([role + (text === null ? "" : " (frozen)"), finish === "length" ? "cut off at the limit" : finish, turn && creditOf(player, number)]), written);
  }
  return conversation;
}

function rolloutAt(token) {
  const { step, rollout } = token.closest("[data-rollout]").dataset;
  return steps.get(Number(step)).rollouts[Number(rollout)];
}

// The numbers of a token beside it.
function showTip(token) {
  const [r, i, tip] = [rolloutAt(token), Number(token.dataset.i), $("tip")];
  const [logprob, gap, weight] = ["logprob", "gap", "weight"].map((name) => SCALES[name].value(r, i));
  if (logprob === null) return;
  const unknown = "not computed";
  const facts = {
    token: `${i + 1} of ${r.pieces.length}`,
    probability: percent(Math.exp(logprob)),
    "log-probability, engine": digits(logprob),
    "log-probability, policy": gap === null ? unknown : digits(logprob + gap),
    "engine gap": gap === null ? unknown : signed(gap),
    "importance weight": weight === null ? unknown : `${weight.toFixed(4)}${r.weight ? "" : " (not applied)"}`,
    "moved by the update": r.moved ? signed(r.moved[i]) : unknown,
    advantage: r.credit ? signed(r.credit[i]) : "none (not trained on)",
    seed: r.seed,
  };
  const rows = Object.entries(facts).map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)));
  tip.replaceChildren(el("code", { class: "text" }, `“${readableText(r.pieces[i][0])}”`), el("table", {}, ...rows));
  tip.hidden = false;
  const place = token.getBoundingClientRect();
  const above = place.bottom + tip.offsetHeight + 8 > innerHeight;
  tip.style.top = `${above ? Math.max(4, place.top - tip.offsetHeight - 6) : place.bottom + 6}px`;
  tip.style.left = `${within(4, place.left, Math.max(4, innerWidth - tip.offsetWidth - 8))}px`;
}

const hideTip = () => ($("tip").hidden = true);

// The steps as bars: how high the mean reward of training was.

function drawSteps() {
  const bars = [...steps.values()].map(({ step, mean: reward, solved }) => {
    const level = el("i", { class: "mean" });
    level.style.setProperty("--share", within(0, reward ?? 0, 1));
    const facts = reward === null ? "evaluated" : `mean reward ${digits(reward)}, ${percent(solved ?? 0)} solved`;
    const attributes = { type: "button", "data-step": step, title: `Step ${step}: ${facts}` };
    return el("button", attributes, el("span", { class: "bar" }, level), el("span", { class: "number" }, step));
  });
  $("steps").replaceChildren(el("span", { class: "strip-name" }, "mean reward", el("br"), "at step"), ...bars);
}

async function goToStep(number) {
  state.step = number;
  for (const button of all("#steps button")) button.setAttribute("aria-pressed", Number(button.dataset.step) === number);
  document.querySelector("#steps [aria-pressed=true]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  await steps.get(number).load();
  if (state.step === number) draw();
}

function nextStep(by) {
  const numbers = [...steps.keys()];
  const next = numbers[numbers.indexOf(state.step) + by];
  if (next !== undefined) goToStep(next);
}

// The page.

let typed = 0;

function setQuery(query) {
  clearTimeout(typed);
  state.query = $("search").value = query;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    hideTip();
    setQuery("");
    state.show = $("show").value = "all";
    draw();
  } else if (event.target.matches("input, select")) return;
  else if (event.key === "ArrowLeft") nextStep(-1);
  else if (event.key === "ArrowRight") nextStep(1);
  else if (event.key === "/") $("search").select();
  else return;
  event.preventDefault();
}

function listen() {
  for (const [name, options] of Object.entries({ colour: SCALES, sort: SORTS, show: SHOWS })) {
    const labels = Object.entries(options).map(([value, option]) => el("option", { value }, option.label ?? option[0]));
    $(name).append(...labels);
    $(name).value = state[name];
    $(name).onchange = () => {
      state[name] = $(name).value;
      if (name === "colour") recolour();
      else draw();
    };
  }
  document.addEventListener("keydown", onKey);
  document.addEventListener("mouseover", ({ target }) => (target.closest(".t") ? showTip(target.closest(".t")) : hideTip()));
  document.addEventListener("scroll", hideTip, true);
  $("steps").onclick = ({ target }) => target.closest("button") && goToStep(Number(target.closest("button").dataset.step));
  $("more").onclick = drawMore;
  $("search").oninput = () => {
    setQuery($("search").value);
    typed = setTimeout(draw, 120);
  };
  const stayBelow = () => document.body.style.setProperty("--bar", `${$("bar").offsetHeight}px`); // where questions stay
  new ResizeObserver(stayBelow).observe($("bar"));
}

async function start() {
  readSteps();
  if (steps.size) {
    const last = [...steps.keys()].pop();
    await steps.get(last).load();
    if (steps.get(last).rollouts.some(SHOWS.train[1])) state.show = "train"; // the others have no advantages
    drawSteps();
    listen();
    await goToStep(last);
    performance.mark("opened");
    for (const step of steps.values()) {
      await step.load();
      await new Promise((resume) => setTimeout(resume)); // keys and clicks come first
    }
  } else {
    const every = Number(document.body.dataset.every);
    const why = every ? `they are written every ${every} steps` : "--rollouts-every is 0";
    $("bar").hidden = true;
    $("board").append(el("p", { class: "note" }, `No rollouts yet: ${why}.`));
  }
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
