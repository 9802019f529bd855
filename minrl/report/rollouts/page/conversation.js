// A rollout as it reads: one completion, or turns with what was shown between them.

const ROLE_SIDES = new Map(); // role -> left or right, in order of appearance

function sideOf(role) {
  if (!ROLE_SIDES.has(role)) ROLE_SIDES.set(role, ROLE_SIDES.size % 2 ? "right" : "left");
  return ROLE_SIDES.get(role);
}

const starts = (r) => r.lengths.map((_, turn) => r.lengths.slice(0, turn).reduce((sum, n) => sum + n, 0));

// What one role wrote, with what it was shown in between. The prompt stands elsewhere.
function completionOf(r) {
  if (r.lengths.length === 1) return [tokenText(r)];
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
  const sides = new Map((steps.get(r.step).episodes.get(r.episodeKey) || [r]).map((one) => [one.role, one]));
  const taken = new Map();
  const several = new Set(r.episode.map(([role]) => role)).size > 1;
  const messages = [];
  for (const [role, seed, finish, text, by] of r.episode) {
    const turn = taken.get(role) || 0;
    taken.set(role, turn + 1);
    messages.push(...turnOf(sides.get(role), { role, turn, seed, finish, text, by }, several));
  }
  return el("div", { class: several ? "conversation several" : "conversation" }, ...messages);
}

function turnOf(player, { role, turn, seed, finish, text, by }, several) {
  const side = several ? sideOf(role) : "left";
  const from = several ? ` to ${role}` : "";
  const facts = el("span", { class: "quiet" }, `${finish === "length" ? "cut off at the limit" : finish} · seed ${seed}`);
  const wrote = el("section", { class: `turn wrote-by ${side}` });
  wrote.append(el("h4", {}, role === "policy" ? "policy" : role, text === null ? null : " (frozen)", " ", facts));
  if (!player) {
    const plain = el("div", { class: "text" });
    appendText(plain, text ?? "(not on this page)");
    wrote.append(plain);
    return [wrote];
  }
  const start = starts(player)[turn];
  const tokens = tokenText(player, start, start + player.lengths[turn]);
  tokens.dataset.rollout = player.index;
  wrote.append(tokens);
  const heading = `${by || (turn === 0 ? "prompt" : "shown")}${from}`;
  const shown = el("section", { class: `turn shown-to ${side}` }, el("h4", {}, heading), shownText(player.shown[turn]));
  return [shown, wrote];
}
