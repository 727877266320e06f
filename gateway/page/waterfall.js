// One turn's latency as bars on a common axis: 0 ms is the caller's last sound.

import { t } from "./words.js";

const STAGES = [
  ["End of turn", "speech_end", "commit", "your last sound, until we were sure you had finished"],
  ["Transcript", "pause", "transcript", "recognising the last words"],
  ["Thinking", "llm_submit", "llm_first_text", "the first word of the answer"],
  ["First clause", "llm_first_text", "first_clause", "enough words to speak"],
  ["Voice", "first_clause", "tts_first_audio", "the first sound made"],
  ["Playout", "tts_first_audio", "first_sound", "until it left for you"],
];

const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

export function spans(marks) {
  return STAGES.filter(([, from, to]) => from in marks && to in marks)
    .map(([name, from, to, why]) => ({ name, from: marks[from], to: marks[to], why }));
}

// What else the turn's record tells, in words.
export function notes(trace) {
  const lines = [];
  const ended = (trace.decisions ?? []).findLast((d) => d.what === "commit")?.why;
  if (ended?.silence_ms !== undefined) {
    lines.push(`The turn ended after ${ended.silence_ms} ms of silence (limit ${ended.timeout_ms} ms, ` +
      `${Math.round(100 * ended.p_complete)} % sure)`);
  }
  if (trace.prompt_tokens) {
    lines.push(`${trace.cached_tokens} of ${trace.prompt_tokens} prompt tokens were cached`);
  }
  const unheard = (trace.wasted_voice_ms + trace.unheard_voice_ms) / 1000;
  if (trace.wasted_tokens || unheard) {
    lines.push(`Made and not heard: ${trace.wasted_tokens} tokens, ${unheard.toFixed(1)} s of voice`);
  }
  if (trace.model) {
    const instead = trace.fallback ? `, because ${trace.fallback}` : "";
    lines.push(`${trace.model}${instead}; prompt ${trace.prompt_version}`);
  }
  return lines;
}

export function waterfall(trace) {
  const bars = spans(trace.marks);
  const total = trace.voice_to_voice_ms;
  if (!bars.length || total == null) return null;
  const start = Math.min(0, ...bars.map((b) => b.from));
  const end = Math.max(total, ...bars.map((b) => b.to));
  const percent = (ms) => `${(100 * (ms - start)) / (end - start || 1)}%`;

  const details = make("details", "trace");
  const summary = make("summary");
  summary.append(
    make("b", "", `${Math.round(total)} ms`), make("span", "", ` ${t("from_you")}`),
  );
  const strip = make("span", "strip");
  strip.setAttribute("aria-hidden", "true");
  summary.append(strip);

  const table = make("table");
  table.append(make("caption", "unseen", "Where the time went, in milliseconds"));
  const body = make("tbody");
  bars.forEach((bar, index) => {
    const bit = make("i", `s${index}`);
    bit.style.left = percent(bar.from);
    bit.style.width = `${(100 * (bar.to - bar.from)) / (end - start || 1)}%`;
    strip.append(bit);

    const row = make("tr");
    const head = make("th", "", bar.name);
    head.scope = "row";
    head.title = bar.why;
    const lane = make("td", "lane");
    const fill = bit.cloneNode();
    fill.style.left = bit.style.left;
    fill.style.width = bit.style.width;
    lane.append(fill);
    row.append(head, lane, make("td", "ms", `${Math.round(bar.to - bar.from)}`));
    body.append(row);
  });
  table.append(body);
  details.append(summary, table);
  for (const line of notes(trace)) details.append(make("p", "hint", line));
  return details;
}
