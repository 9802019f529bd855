// One rollout in full: its episode as a conversation, every number, and its tokens one by one.

const detail = { rollout: null, opener: null };

function openDetail(r, opener) {
  detail.rollout = r;
  detail.opener = opener ?? detail.opener;
  const panel = document.getElementById("detail");
  const close = el("button", { type: "button", id: "close", title: "Close (Esc)" }, "Close");
  const title = el("h2", {}, rewardBadge(r), el("span", { class: "text" }));
  appendText(title.lastChild, ` ${r.example}`);
  panel.dataset.step = r.step;
  panel.dataset.rollout = r.index;
  const head = el("header", {}, title, el("span", { class: "grow" }), acrossButton(), close);
  panel.replaceChildren(head, numbersOf(r), partsOf(r), conversationOf(r));
  panel.hidden = false;
  document.body.classList.add("with-detail");
  const token = panel.querySelector(".t");
  if (token) token.tabIndex = 0;
  for (const row of document.querySelectorAll(".rollout.open")) row.classList.remove("open");
  rowOf(r)?.classList.add("open");
  panel.scrollTop = 0;
  highlightMatches();
}

function closeDetail() {
  const panel = document.getElementById("detail");
  if (panel.hidden) return false;
  panel.hidden = true;
  document.body.classList.remove("with-detail");
  for (const row of document.querySelectorAll(".rollout.open")) row.classList.remove("open");
  (rowOf(detail.rollout) ?? document.getElementById("board")).focus();
  detail.rollout = null;
  return true;
}

const rowOf = (r) => document.querySelector(`.rollout[data-step="${r.step}"][data-rollout="${r.index}"]`);

function rolloutAt(element) {
  const holder = element.closest("[data-rollout]");
  const step = holder?.closest("[data-step]");
  return holder && steps.get(Number(step.dataset.step)).rollouts[Number(holder.dataset.rollout)];
}

function numbersOf(r) {
  const list = el("dl", {});
  const add = (name, value) => list.append(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  add("step", String(r.step));
  add("group, sample", `${r.group}, ${r.sample}`);
  add("role", r.role);
  add("reward", r.reward === null ? "unscorable" : `${digits(r.reward)}${r.solved ? " (solved)" : ""}`);
  add("advantage", r.advantage === null ? "none: held out" : signed(r.advantage));
  add("finish reason", r.truncated ? "length (cut off)" : r.finish_reason);
  add("tokens", `${r.length} sampled, prompt ${r.prompt_length}`);
  add("surprise", `${r.meanSurprise.toFixed(3)} nats/token`);
  add("engine gap, largest", r.gap ? digits(Math.max(...r.gap.map(Math.abs)) / 1e6) : "not computed");
  add("weights", `version ${r.weight_version}`);
  add("seed", r.seed);
  return list;
}

function partsOf(r) {
  const parts = Object.entries(r.parts);
  if (!parts.length) return el("p", { class: "quiet" }, "The reward has no parts.");
  const rows = parts.map(([name, value]) => {
    const bar = el("span", { class: "share" });
    bar.style.setProperty("--share", Math.max(0, Math.min(1, value)));
    return el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, bar), el("td", {}, digits(value)));
  });
  return el("table", { class: "parts" }, el("caption", {}, "Reward parts"), el("tbody", {}, ...rows));
}

// The numbers of a token beside it, for the pointer and for the keyboard alike.
function showTip(token) {
  const r = rolloutAt(token);
  const tip = document.getElementById("tip");
  const i = Number(token.dataset.i);
  const rows = tokenFacts(r, i).map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)));
  tip.replaceChildren(tokenName(r, i), el("table", {}, el("tbody", {}, ...rows)));
  tip.hidden = false;
  const place = token.getBoundingClientRect();
  const above = place.bottom + tip.offsetHeight + 8 > innerHeight;
  tip.style.top = `${above ? Math.max(4, place.top - tip.offsetHeight - 6) : place.bottom + 6}px`;
  tip.style.left = `${Math.max(4, Math.min(place.left, innerWidth - tip.offsetWidth - 8))}px`;
  token.setAttribute("aria-describedby", "tip");
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

// Left and right walk through the tokens of the open rollout.
function walkTokens(by) {
  const tokens = [...document.querySelectorAll("#detail .t")];
  if (!tokens.length) return;
  const now = tokens.indexOf(document.activeElement);
  const next = tokens[now < 0 ? 0 : Math.max(0, Math.min(tokens.length - 1, now + by))];
  for (const token of tokens) token.tabIndex = token === next ? 0 : -1;
  next.focus();
}
