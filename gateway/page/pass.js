// What opens the server: a token of a minute, got for a key or, where none is needed, for nothing.

const SPARE_MS = 5000; // a token so near its end is not used any more

export class Pass {
  #token = "";
  #until = 0;
  #wanted;

  // wanted: the scopes and seconds of the token, where they are not those of a call
  constructor(wanted = {}) {
    this.#wanted = wanted;
  }

  get good() {
    return performance.now() < this.#until;
  }

  get headers() {
    return this.#token ? { authorization: `Bearer ${this.#token}` } : {};
  }

  // The agents that it opens. The key is sent, and kept nowhere.
  async get(key = "") {
    const headers = { "content-type": "application/json" };
    if (key) headers.authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch("api/token", { method: "POST", headers, body: JSON.stringify(this.#wanted) });
    } catch {
      throw new PassError("unreachable", "The server does not answer.");
    }
    const body = await response.json().catch(() => ({}));
    if (!response.ok) {
      const message = body.error?.message || `The server answered ${response.status}.`;
      throw new PassError(response.status === 401 ? "key" : "refused", message);
    }
    this.#token = body.token;
    this.#until = performance.now() + 1000 * body.expires_in - SPARE_MS;
    return body.agents;
  }
}

export class PassError extends Error {
  // kind: key | refused | unreachable
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}
