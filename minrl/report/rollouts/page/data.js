// The data in the page: unpacked step by step, each once.

const state = { step: null, colour: "logprob", view: "groups", sort: "mixed", show: "all", query: "", example: null };

const steps = new Map(); // step -> { step, about, load, rollouts: null until loaded }

async function unpack(packed) {
  const letters = atob(packed);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function readPage() {
  for (const script of document.querySelectorAll("script.step")) {
    const about = await unpack(script.dataset.about);
    const step = Number(script.dataset.step);
    const load = () => (script.textContent ? unpack(script.textContent) : null);
    steps.set(step, { step, about, load, rollouts: null, loading: null });
  }
  return unpack(document.getElementById("run").textContent);
}

// The step with its rollouts. Asked for twice it is loaded once.
async function loadStep(number) {
  const step = steps.get(number);
  if (!step.loading) step.loading = fill(step);
  await step.loading;
  return step;
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

// How mixed a group is: the standard deviation of its rewards. Where all are equal there was nothing to learn.
function spreadOf(group) {
  const rewards = group.filter((r) => r.reward !== null).map((r) => r.reward);
  if (!rewards.length) return 0;
  const middle = mean(rewards);
  return Math.sqrt(mean(rewards.map((reward) => (reward - middle) ** 2)));
}

function readable(values, index, step, data) {
  const total = values.surprise.reduce((sum, value) => sum + value, 0);
  return {
    ...values,
    index,
    step: step.step,
    table: data.pieces,
    prompt: values.turns.length ? data.texts[values.turns[0][0]] : [],
    asked: data.texts[values.asked],
    shown: values.turns.map(([text]) => data.texts[text]),
    lengths: values.turns.map(([, length]) => length),
    length: values.pieces.length,
    meanSurprise: total / 1000 / Math.max(1, values.pieces.length),
    truncated: values.finish_reason === "length",
    groupKey: `${values.purpose}/${values.group}`,
    episodeKey: `${values.purpose}/${values.slot}/${values.sample}`,
  };
}

// What the search looks through, in small letters.
function searchable(r) {
  if (r.words === undefined) {
    const shown = r.shown.map((text) => text.map(([piece]) => piece).join(""));
    const wrote = r.pieces.map((piece) => r.table[piece][0]).join("");
    r.words = [...shown, wrote, r.example, r.seed].join("\n").toLowerCase();
  }
  return r.words;
}

const matches = (r) => !state.query || searchable(r).includes(state.query.toLowerCase());

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
