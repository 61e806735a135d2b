// A Clone for the browser and for Node: all keys of a prefix in this program's memory, live, with awaited sets.
//
//   const clone = await Clone.open(["http://127.0.0.1:8080"], { prefix: "/rates/" });
//   clone.get("/rates/USD");                                   // from memory: never waits
//   clone.watch(({ key, value }) => console.log(key, value));
//   await clone.set("/rates/USD", "1.08", { ifRevision: clone.entry("/rates/USD").revision });
//
//   GET /v1/watch --> snapshot: gathered beside, takes the copy's place when it is whole ("current")
//                 --> change: one record, applied as a whole; its id is where the next connection goes on
//   PUT, DELETE, POST /v1/batch --> each with one Idempotency-Key for all its tries, so it is done once
//
// A connection that says nothing for SILENCE_MS (a gateway says something each second) is given up, and the next gateway
// asked for what comes behind the last id: over restarts and failovers nothing is missed and nothing seen twice. What a
// gateway can't go on from begins with a snapshot; listeners are then told the difference.

const SILENCE_MS = 5000, RETRY_MS = [50, 100, 250, 500, 1000, 2000], EVENT_MAX = 64 * 1024 * 1024;
const AGAIN = new Set([408, 425, 429, 502, 503, 504]);
const encoder = new TextEncoder();

/** What a gateway refused: `code` is for programs, `revisions` and `now` are there if a condition did not hold. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `the gateway answered ${status}`);
    this.name = "Refused";
    this.status = status;
    this.code = problem.code ?? "";
    this.now = problem.now ?? null;
    this.revisions = problem.revisions ?? null;
  }
}

/** Whether revision a ("epoch.sequence") is at least b; as a number it would be beyond what JavaScript keeps exactly. */
export function reaches(a, b) {
  const [ae, as] = a.split(".").map(Number), [be, bs] = b.split(".").map(Number);
  return ae > be || (ae === be && as >= bs);
}

export class Clone {
  #gateways; #prefix; #at = ""; #number = "0.0"; #turn = 0; #failures = 0;
  #entries = new Map(); #coming = null; #listeners = new Set(); #waiting = new Set();
  #closed = new AbortController(); #ready; #settle; #onState; #state = "connecting"; #timeoutMs;

  /** Connect; use `open` to wait until the copy is there too. `gateways`: a URL or several of the same pair. */
  constructor(gateways, { prefix = "", onState = () => {}, timeoutMs = 30_000 } = {}) {
    this.#gateways = [gateways].flat().map((each) => new URL(each).origin);
    if (!this.#gateways.length) throw new TypeError("a Clone needs a gateway's URL, such as http://127.0.0.1:8080");
    this.#prefix = String(prefix);
    this.#onState = onState;
    this.#timeoutMs = timeoutMs;
    this.#ready = new Promise((resolve, reject) => { this.#settle = { resolve, reject }; });
    this.#ready.catch(() => {});
    this.#run();
  }

  /** A Clone whose copy is there. */
  static async open(gateways, options = {}) {
    const clone = new Clone(gateways, options);
    await clone.synced(options.timeoutMs);
    return clone;
  }

  /** "connecting", "synced", "stale" (the copy is there, and nobody says whether it is current), "closed". */
  get state() { return this.#state; }
  /** The number up to which the copy is known to be complete. */
  get number() { return this.#number; }
  get size() { return this.#entries.size; }

  /** The value: text, or a Uint8Array if it is not UTF-8; undefined if there is none. */
  get(key) { return this.#entries.get(key)?.value; }
  has(key) { return this.#entries.has(key); }
  /** { value, revision }, or undefined. */
  entry(key) { return this.#entries.get(key); }
  keys() { return [...this.#entries.keys()]; }
  [Symbol.iterator]() { return [...this.#entries].map(([key, { value }]) => [key, value])[Symbol.iterator](); }

  /** Call `listener({ key, value, deleted, revision })` for each change; the function that is returned ends it. */
  watch(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Until the copy is there. */
  async synced(timeoutMs = this.#timeoutMs) {
    await within(this.#ready, timeoutMs, () => `no copy within ${timeoutMs} ms from ${this.#gateways.join(", ")}`);
  }

  /** Set a key to text or bytes; { revision, durability } when the pair has it and, under the prefix, so has this copy. */
  set(key, value, { ttl, ifRevision } = {}) {
    const query = ttl === undefined ? "" : `&ttl=${encodeURIComponent(ttl)}`;
    const body = typeof value === "string" ? encoder.encode(value) : value;
    if (!(body instanceof Uint8Array)) throw new TypeError(`a value is text or a Uint8Array, not ${typeof value}`);
    return this.#write("PUT", `/v1/keys?key=${encodeURIComponent(key)}${query}`, body, conditions(ifRevision), [key]);
  }

  /** Delete a key, whether it is there or not. */
  delete(key, { ifRevision } = {}) {
    return this.#write("DELETE", `/v1/keys?key=${encodeURIComponent(key)}`, undefined, conditions(ifRevision), []);
  }

  /** Many in one record: rows { set, value, ttl, if } or { delete, if }; all of it is done, or nothing. */
  batch(rows) {
    const said = rows.map((row) => (row.value instanceof Uint8Array ? { ...row, value: undefined, base64: base64(row.value) } : row));
    const body = encoder.encode(said.map((row) => JSON.stringify(row)).join("\n"));
    const headers = { "Content-Type": "application/x-ndjson" };
    return this.#write("POST", "/v1/batch", body, headers, rows.filter((row) => "set" in row).map((row) => row.set));
  }

  /** The keys in which this copy differs from the gateway's now: none, if nothing is on its way. */
  async verify() {
    const there = new Map();
    for (let after = ""; after !== null;) {
      const query = new URLSearchParams({ prefix: this.#prefix, limit: "10000", after });
      const answer = await this.#ask("GET", `/v1/keys?${query}`, undefined, {});
      const page = await answer.json();
      for (const { key, revision } of page.keys) there.set(key, revision);
      after = page.next;
    }
    const keys = new Set([...there.keys(), ...this.#entries.keys()].filter((key) => !key.startsWith("/.gateway/")));
    return [...keys].filter((key) => there.get(key) !== this.#entries.get(key)?.revision);
  }

  close() {
    if (this.#closed.signal.aborted) return;
    this.#closed.abort();
    this.#become("closed");
    this.#settle.reject(new Error("this Clone was closed"));
    for (const each of this.#waiting) each.resolve();
  }

  // -- the stream

  async #run() {
    while (!this.#closed.signal.aborted) {
      const silence = new AbortController();
      const stop = () => silence.abort();
      this.#closed.signal.addEventListener("abort", stop);
      let alarm = setTimeout(stop, SILENCE_MS);
      try {
        await this.#read(silence.signal, () => { clearTimeout(alarm); alarm = setTimeout(stop, SILENCE_MS); });
      } catch { /* the next one is asked */ } finally {
        clearTimeout(alarm);
        silence.abort();
        this.#closed.signal.removeEventListener("abort", stop);
      }
      this.#coming = null;
      if (this.#state === "synced") this.#become("stale");
      await pause(RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)], this.#closed.signal);
      this.#turn++;
    }
  }

  async #read(signal, heard) {
    const query = new URLSearchParams({ prefix: this.#prefix });
    if (this.#at) query.set("after", this.#at);
    const answer = await fetch(`${this.#gateway()}/v1/watch?${query}`, { signal, cache: "no-store" });
    if (answer.status === 400) this.#settle.reject(new Refused(400, await answer.json()));
    if (!answer.ok) throw new Error(`${answer.status}`);
    const reader = answer.body.getReader(), text = new TextDecoder();
    let parts = [], size = 0;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      const came = text.decode(value, { stream: true }), end = came.lastIndexOf("\n\n");
      parts.push(came);
      if ((size += came.length) > EVENT_MAX) throw new Error("an event without an end");
      if (end < 0 && !parts.join("").includes("\n\n")) continue;
      const events = parts.join("").split("\n\n");
      parts = [events.pop()];
      size = parts[0].length;
      for (const event of events) this.#event(event);
      this.#tell();
    }
  }

  #event(text) {
    const said = { id: "", event: "", data: "" };
    for (const line of text.split("\n")) {
      const at = line.indexOf(": ");
      if (at > 0) said[line.slice(0, at)] = line.slice(at + 2);
      else if (line.startsWith(": ")) this.#reached(line.slice(2));
    }
    if (!said.data) return;
    const data = JSON.parse(said.data);
    if (said.event === "snapshot") this.#coming = new Map();
    else if (said.event === "entries") for (const row of data.changes) this.#coming.set(row.key, { value: valueOf(row), revision: row.revision });
    else if (said.event === "current") this.#replace();
    else if (said.event === "change") this.#apply(data.number, data.changes);
    if (said.id) { this.#at = said.id; this.#reached(said.id); }
  }

  #apply(number, rows) {
    const told = rows.map((row) => {
      if (row.deleted) { this.#entries.delete(row.key); return { key: row.key, value: undefined, deleted: true, revision: number }; }
      const entry = { value: valueOf(row), revision: number };
      this.#entries.set(row.key, entry);
      return { key: row.key, deleted: false, ...entry };
    });
    this.#say(told);
  }

  #replace() {
    const before = this.#entries, now = this.#coming ?? new Map(), told = [];
    this.#entries = now;
    this.#coming = null;
    for (const [key, entry] of now) if (before.get(key)?.revision !== entry.revision) told.push({ key, deleted: false, ...entry });
    for (const key of before.keys()) if (!now.has(key)) told.push({ key, value: undefined, deleted: true, revision: "" });
    this.#say(told);
  }

  #reached(number) {
    if (this.#coming === null && /^\d+\.\d+$/.test(number)) this.#number = number;
  }

  /** What a piece of the stream brought is applied: who waits for it goes on. */
  #tell() {
    if (this.#coming !== null) return;
    this.#failures = 0;
    if (this.#state !== "closed") this.#become("synced");
    this.#settle.resolve();
    for (const each of this.#waiting) if (each.there()) each.resolve();
  }

  #say(changes) {
    for (const listener of this.#listeners) for (const change of changes) try { listener(change); } catch (error) { console.error(error); }
  }

  #become(state) {
    if (state === this.#state) return;
    this.#state = state;
    try { this.#onState(state); } catch (error) { console.error(error); }
  }

  #gateway() { return this.#gateways[this.#turn % this.#gateways.length]; }

  // -- writes

  async #write(method, path, body, headers, keys) {
    const answer = await this.#ask(method, path, body, { ...headers, "Idempotency-Key": crypto.randomUUID() });
    const { revision, durability = "" } = await answer.json();
    const mine = keys.filter((key) => key.startsWith(this.#prefix));
    const there = () => mine.every((key) => reaches(this.#entries.get(key)?.revision ?? this.#number, revision));
    if (mine.length && this.#state === "synced" && !there()) {
      const waits = { there };
      const come = new Promise((resolve) => { waits.resolve = resolve; });
      this.#waiting.add(waits);
      try { await within(come, SILENCE_MS, () => ""); } catch { /* it is done all the same */ } finally { this.#waiting.delete(waits); }
    }
    return { revision, durability };
  }

  async #ask(method, path, body, headers) {
    const until = Date.now() + this.#timeoutMs;
    for (let tries = 0, why = ""; ; tries++) {
      const gateway = this.#gateways[(this.#turn + tries) % this.#gateways.length];
      try {
        const left = AbortSignal.timeout(Math.max(1, until - Date.now()));
        const answer = await fetch(gateway + path, { method, body, headers, signal: left });
        if (answer.ok) return answer;
        const problem = await answer.json().catch(() => ({}));
        if (!AGAIN.has(answer.status)) throw new Refused(answer.status, problem);
        why = problem.detail ?? `${answer.status}`;
      } catch (error) {
        if (error instanceof Refused) throw error;
        why = String(error.cause ?? error);
      }
      if (this.#closed.signal.aborted) throw new Error("this Clone was closed");
      if (Date.now() > until) throw new Error(`no answer within ${this.#timeoutMs} ms; it may have been done; ${why}`);
      await pause(RETRY_MS[Math.min(tries, 4)], this.#closed.signal);
    }
  }
}

function conditions(revision) {
  if (revision === undefined) return {};
  return revision === "0.0" || revision === null ? { "If-None-Match": "*" } : { "If-Match": `"${revision}"` };
}

function valueOf(row) {
  return row.base64 === undefined ? row.value : Uint8Array.from(atob(row.base64), (c) => c.charCodeAt(0));
}

function base64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const alarm = setTimeout(done, ms);
    function done() { clearTimeout(alarm); signal.removeEventListener("abort", done); resolve(); }
    signal.addEventListener("abort", done);
    if (signal.aborted) done();
  });
}

async function within(promise, ms, why) {
  let alarm;
  const late = new Promise((_, reject) => { alarm = setTimeout(() => reject(new Error(why())), ms); });
  try { return await Promise.race([promise, late]); } finally { clearTimeout(alarm); }
}
