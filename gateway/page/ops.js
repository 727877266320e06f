// The operator's view: reads /api/ops once a second and shows it. Keeps no key, only a short pass.

import { Pass } from "./pass.js";

const $ = (id) => document.getElementById(id);
const EVERY_MS = 1000;
const KV = [["pinned", "s2"], ["held", "s3"], ["cached", "s1"], ["fenced", "s5"]];
const pass = new Pass({ scopes: ["admin"], seconds: 600 });
let asking = 0;

function element(name, text, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

function since(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

function pairs(rows) {
  return rows.flatMap(([name, value]) => [element("dt", name), element("dd", value)]);
}

function state(words, bad = false) {
  if ($("state").textContent !== words) $("state").textContent = words;
  $("state").toggleAttribute("data-bad", bad);
}

function lastRefusal(decisions) {
  const last = decisions.find(({ taken }) => !taken);
  return last ? `${last.why}, ${since(last.ago_s)} ago` : "–";
}

function showFigures(seen) {
  const rows = [
    ["Calls", `${seen.calls.live} of ${seen.calls.limit}`],
    ["Turned away", String(seen.calls.refused)],
    ["Last turned away", lastRefusal(seen.load.decisions)],
    ["Waiting for a line", String(seen.load.waiting)],
    ["Load has stopped", seen.load.stopped],
    ["An answer takes", `${seen.load.answer_ms} ms`],
    ["With one call more", `${seen.load.with_one_more_ms} ms`],
    ["Early work", seen.early_work],
  ];
  $("figures").replaceChildren(...rows.map(([name, value]) => {
    const box = document.createElement("div");
    box.append(...pairs([[name, value]]));
    return box;
  }));
}

function showMemory(kv) {
  $("kv").hidden = !kv;
  if (!kv) return;
  // pinned blocks are among those cached or held: shown once
  const parts = { ...kv, cached: Math.max(0, kv.cached - kv.pinned) };
  $("blocks").replaceChildren(...KV.map(([name, colour]) => {
    const bar = element("i", "", colour);
    bar.style.width = `${(100 * parts[name]) / kv.total}%`;
    return bar;
  }));
  const words = `${kv.total} blocks: ${kv.free} free, ${kv.cached} cached, ${kv.pinned} pinned for `
    + `callers, ${kv.held} in use, ${kv.fenced} about to be freed.`;
  $("kv-text").textContent = words;
  $("blocks").setAttribute("aria-label", words);
}

// A call that has lost its line says for how long its page may still come back.
function callersPart({ caller, kept_s: kept }) {
  return kept === null ? caller : `line lost, kept ${since(kept)}`;
}

function row(call) {
  const made = document.createElement("tr");
  made.append(
    element("td", call.agent || "…"),
    element("td", call.transport),
    element("td", since(call.age_s)),
    element("td", callersPart(call), call.caller === "speaking" ? "busy" : ""),
    element("td", call.floor, call.floor === "speaking" ? "busy" : ""),
    element("td", String(call.turns)),
    element("td", call.voice_to_voice_ms ? `${Math.round(call.voice_to_voice_ms)} ms` : "–"),
  );
  const act = element("button", "Hang up", "quiet");
  act.type = "button";
  act.setAttribute("aria-label", `Hang up the call of ${since(call.age_s)} with ${call.agent}`);
  act.onclick = () => hangUp(call.id, act);
  const cell = document.createElement("td");
  cell.append(act);
  made.append(cell);
  made.dataset.id = call.id;
  return made;
}

function showCalls(live) {
  $("nobody").hidden = live.length > 0;
  $("live").hidden = !live.length;
  const held = document.activeElement?.closest?.("tr")?.dataset.id;
  $("calls").replaceChildren(...live.map(row));
  if (held) [...$("calls").rows].find((r) => r.dataset.id === held)?.querySelector("button").focus();
}

function showQueue(waiting) {
  $("queue").hidden = !waiting.length;
  $("places").replaceChildren(...waiting.map((one) => {
    const made = document.createElement("tr");
    const wait = one.line_kept ? "a line is kept" : `about ${since(one.wait_s)}`;
    made.append(...[String(one.place), since(one.waited_s), wait].map((text) => element("td", text)));
    return made;
  }));
}

function showStages(stages) {
  $("stages").replaceChildren(...Object.entries(stages).map(([name, numbers]) => {
    const box = document.createElement("section");
    const list = document.createElement("dl");
    list.append(...pairs(Object.entries(numbers).map(([k, v]) => [k.replaceAll("_", " "),
      v.toLocaleString("en", { maximumFractionDigits: 2 })])));
    box.append(element("h3", name), list);
    return box;
  }));
}

function show(seen) {
  state(seen.draining ? "Draining: no new calls" : seen.ready ? "Ready" : "Loading", !seen.ready);
  showFigures(seen);
  showMemory(seen.kv);
  showCalls(seen.live);
  showQueue(seen.waiting);
  showStages(seen.stages);
  $("view").hidden = false;
}

function ask(why) {
  clearTimeout(asking);
  $("view").hidden = true;
  $("key-form").hidden = false;
  if (why) $("key-hint").textContent = why;
  state("A key is needed");
  $("key").focus();
}

async function hangUp(id, button) {
  button.disabled = true;
  await fetch(`api/ops/calls/${encodeURIComponent(id)}/hangup`, {
    method: "POST", headers: pass.headers,
  }).catch(() => {});
}

async function look() {
  clearTimeout(asking);
  try {
    if (!pass.good) await pass.get();
    const answer = await fetch("api/ops", { headers: pass.headers });
    if (answer.status === 401 || answer.status === 403) return ask("");
    if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
    show(await answer.json());
  } catch (error) {
    if (error.kind === "key" || error.kind === "refused") return ask("");
    state(error.kind ? error.message : "The server does not answer.", true);
  }
  asking = setTimeout(look, EVERY_MS);
}

$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  $("key").value = "";
  try {
    await pass.get(key);
  } catch (error) {
    return ask(error.kind === "key" ? "That key is not known here." : error.message);
  }
  $("key-form").hidden = true;
  look();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(asking);
  else look();
});

look();
