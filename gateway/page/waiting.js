// The line for a line: a caller who was refused asks for their place until one is kept for them.

import { CallError } from "./call.js";
import { t } from "./words.js";

// {ticket, place (0: call now, with the ticket), wait_s, ask_s}; a CallError where there is no place.
export async function askForPlace(ticket, headers) {
  const path = `rtc/line?${new URLSearchParams({ ticket })}`;
  const response = await fetch(path, { method: "POST", headers }).catch(() => null);
  if (response === null) throw new CallError("unreachable", "The server does not answer.");
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  const kind = response.status === 503 ? "full" : "refused";
  const message = body.error?.message || `The server answered ${response.status}.`;
  throw new CallError(kind, message, Number(response.headers.get("retry-after")) || 10);
}

export function placeInWords({ place, wait_s }) {
  const [name, wait] = wait_s < 90 ? ["in_line_s", wait_s] : ["in_line_min", Math.ceil(wait_s / 60)];
  return t(name, { n: place, wait: Math.max(1, wait) });
}
