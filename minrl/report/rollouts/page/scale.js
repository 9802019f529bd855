// Numbers as colours. Blue and orange tell apart for every kind of colour vision; each colour has its number nearby.

const LEVELS = 8;
const SURPRISE_AT_FULL = 6; // nats: a probability of 0.25 %

// Each scale: the value of token i of rollout r (null: not known), and where it lies between -1 and 1.
const SCALES = {
  logprob: {
    label: "log-probability",
    value: (r, i) => (r.surprise[i] === null ? null : -r.surprise[i] / 1000),
    place: (value) => Math.sqrt(Math.min(1, -value / SURPRISE_AT_FULL)),
    range: () => SURPRISE_AT_FULL,
    ticks: () => ["p = 1", "0.22", "≤ 0.0025"],
    sequential: true,
  },
  advantage: {
    label: "advantage",
    value: (r) => r.advantage,
    place: (value, range) => value / range,
    range: (step) => largest(step, (r) => Math.abs(r.advantage ?? 0)) || 1,
    ticks: (range) => [signed(-range), "0", signed(range)],
  },
  weight: {
    label: "importance weight",
    value: (r, i) => (r.weight ? r.weight[i] / 1e4 : r.gap ? Math.exp(r.gap[i] / 1e6) : null),
    place: (value) => Math.log2(value),
    range: () => 2,
    ticks: () => ["≤ ½", "1", "≥ 2"],
  },
  gap: {
    label: "engine gap",
    value: (r, i) => (r.gap ? r.gap[i] / 1e6 : null),
    place: (value, range) => value / range,
    range: (step) => largest(step, (r) => (r.gap ? Math.max(...r.gap.map(Math.abs)) / 1e6 : 0)) || 1e-6,
    ticks: (range) => [signed(-range), "0", signed(range)],
  },
  moved: {
    label: "moved by the update",
    value: (r, i) => (r.moved ? (r.moved[i] / 1e6) * (Math.sign(r.advantage ?? 0) || 1) : null),
    place: (value, range) => value / range,
    range: (step) => largest(step, (r) => (r.moved ? Math.max(...r.moved.map(Math.abs)) / 1e6 : 0)) || 1e-6,
    ticks: (range) => [`against ${digits(range)}`, "0", `with ${digits(range)}`],
  },
  none: { label: "no colour", value: () => null, place: () => 0, range: () => 1, ticks: () => [] },
};

const NOTES = {
  logprob: "how likely the engine found each token: the deeper the colour, the more surprising",
  advantage: "how much better than its group, the same for each token of a rollout",
  weight: "policy over engine probability, cut off and masked as in the update; dotted: not computed",
  gap: "the policy's log-probability minus the engine's, nats; dotted: not computed, the rollout had nothing to teach",
  moved:
    "how far the update moved each token's log-probability, nats: the way its advantage points, or against it; without an advantage up, or down; dotted: not computed",
  none: "",
};

function largest(step, size) {
  let most = 0;
  for (const r of step.rollouts) most = Math.max(most, size(r));
  return most;
}

// Remembered for each step and scale: a maximum over all its tokens.
function rangeOf(step, name) {
  step.ranges ??= {};
  return (step.ranges[name] ??= SCALES[name].range(step));
}

function colourToken(element, r, i, range) {
  const scale = SCALES[state.colour];
  const value = scale.value(r, i);
  element.classList.remove("pos", "neg", "seq", "unknown");
  element.style.removeProperty("--level");
  if (value === null) {
    element.classList.toggle("unknown", state.colour !== "none");
    return;
  }
  const place = Math.max(-1, Math.min(1, scale.place(value, range)));
  const level = Math.round(Math.abs(place) * LEVELS);
  if (level) {
    element.classList.add(scale.sequential ? "seq" : place > 0 ? "pos" : "neg");
    element.style.setProperty("--level", level);
  }
}

function showLegend(step) {
  const legend = document.getElementById("legend");
  const scale = SCALES[state.colour];
  legend.replaceChildren();
  legend.title = NOTES[state.colour];
  const [low, middle, high] = scale.ticks(step ? rangeOf(step, state.colour) : 1);
  if (low === undefined) return;
  const swatches = [];
  for (let level = scale.sequential ? 0 : -LEVELS; level <= LEVELS; level += 2) {
    const swatch = el("i", { class: scale.sequential ? "seq" : level > 0 ? "pos" : "neg" });
    swatch.style.setProperty("--level", Math.abs(level));
    swatches.push(swatch);
  }
  const name = `${scale.label}, from ${low} over ${middle} to ${high}`;
  const ticks = el("span", { class: "ticks" }, el("b", {}, low), el("b", {}, middle), el("b", {}, high));
  legend.append(el("span", { class: "ramp", role: "img", "aria-label": name }, ...swatches), ticks);
}

// Three digits, and powers of ten for what is very small or large.
function digits(value) {
  if (value === null || value === undefined) return "not known";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 0.001 || size >= 1e5 ? value.toExponential(1).replaceAll("-", "−") : trimmed(value);
}

const trimmed = (value) => String(Number(value.toPrecision(3))).replace("-", "−");
const signed = (value) => (value > 0 ? `+${digits(value)}` : digits(value));
const percent = (share) => `${(100 * share).toFixed(share && share < 0.01 ? 2 : 0)} %`;
