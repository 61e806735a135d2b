// A Clone for the browser and for Node (22 or newer): a live copy of a subtree in this program's memory, with awaited sets.
//
//   const clone = await Clone.open(["http://127.0.0.1:8080"], { subtree: "/rates/" });
//   clone.get("/rates/USD");                                   // from memory: never waits
//   clone.watch(({ key, value }) => console.log(key, value));
//   await clone.set("/rates/USD", "1.08", { ifRevision: clone.entry("/rates/USD").revision });
//
// It speaks CHP/2 with the pair over a gateway's WebSocket (SPEC.md, section 37). core.js decides; this file has the
// WebSocket, the clock and the promises. A gateway sends something every 2 s. If a gateway is silent for SILENCE_MS, the
// Clone goes on with the next one. It misses no change, sees none twice, and each set takes effect once.

import { Core, described, numberOf, Refused } from "./core.js";

export { Refused };

const SILENCE_MS = 6000, TICK_MS = 50, ABOUT = 3, DENIED = 1008;
const RETRY_MS = [50, 100, 250, 500, 1000, 2000];
const encoder = new TextEncoder();

/** Return whether revision a ("epoch.sequence") is at least b. Revisions are text: JavaScript does not keep such large numbers exactly. */
export function reaches(a, b) { return numberOf(a) >= numberOf(b); }

/** An error of the gateway or of this machine: no server has answered. */
export class Unanswered extends Error {
  constructor(text) { super(text); this.name = "Unanswered"; }
}

export class Clone {
  #gateways; #subtree; #mount; #token; #core = null; #socket = null; #open = false; #turn = 0; #failures = 0; #heardAt = 0; #tick = null; #again = null;
  #listeners = new Set(); #onState; #timeoutMs; #closed = false; #ready; #settle; #room = []; #why = ""; #pending = new Set();

  /**
   * Connect. Use `open` to wait for the copy too. `gateways` is a URL, or several of the same pair. If the gateways
   * serve several pairs, `mount` names one of these.
   */
  constructor(gateways, { subtree = "", mount = "", onState = () => {}, timeoutMs = 30_000, token = "" } = {}) {
    this.#gateways = [gateways].flat().map((each) => new URL(each).origin);
    if (!this.#gateways.length) throw new TypeError("a Clone needs a gateway's URL, such as http://127.0.0.1:8080");
    if (typeof subtree !== "string" || (subtree && !/^\/.*\/$/s.test(subtree))) throw new TypeError('a subtree is "" or begins and ends with a slash, such as "/rates/"');
    if (typeof WebSocket === "undefined") throw new TypeError("there is no WebSocket here; use Node 22 or newer");
    this.#subtree = subtree;
    this.#mount = mount ? `?mount=${encodeURIComponent(mount)}` : "";
    this.#onState = onState;
    this.#timeoutMs = timeoutMs;
    this.#token = token;
    this.#ready = new Promise((resolve, reject) => { this.#settle = { resolve, reject }; });
    this.#ready.catch(() => {});
    this.#begin();
  }

  /** Return a Clone whose copy is complete. */
  static async open(gateways, options = {}) {
    const clone = new Clone(gateways, options);
    try { await clone.synced(options.timeoutMs); } catch (error) { clone.close(); throw error; }
    return clone;
  }

  /** "connecting", "synced", "stale" (the copy is complete, but may not be current) or "closed". */
  get state() { return this.#closed ? "closed" : (this.#core?.state ?? "connecting"); }
  /** The number up to which the copy is known to be complete. */
  get number() { return described(this.#core?.at ?? 0n); }
  /** The last number at which a server's count, sums and digest were equal to this copy's. */
  get comparedAt() { return described(this.#core?.comparedAt ?? 0n); }
  get size() { return this.#core?.entries.size ?? 0; }
  get stats() { return { ...this.#core?.stats }; }

  /** Return the value: text, or a Uint8Array if it is not UTF-8; undefined for an absent key. */
  get(key) { const entry = this.#core?.entries.get(key); return entry && shown(entry.bytes); }
  has(key) { return this.#core?.entries.has(key) ?? false; }
  /** Return { value, revision }, or undefined for an absent key. */
  entry(key) { const entry = this.#core?.entries.get(key); return entry && { value: shown(entry.bytes), revision: described(entry.revision) }; }
  keys() { return [...(this.#core?.entries.keys() ?? [])]; }
  *[Symbol.iterator]() { for (const key of this.keys()) yield [key, this.get(key)]; }

  /** Call `listener({ key, value, deleted, revision })` for each change. Return a function that ends the watch. */
  watch(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Wait until the copy is complete. */
  async synced(timeoutMs = this.#timeoutMs) {
    await within(this.#ready, timeoutMs, () => `no copy within ${timeoutMs} ms from ${this.#gateways.join(", ")}; ${this.#why || this.#core?.refusal || "no server is heard"}`);
  }

  /**
   * Set a key to text or bytes. Resolve to { revision, durability } when the pair has the set. If the key is in the
   * subtree, wait until this copy has the set too.
   */
  set(key, value, { ttl, ifRevision } = {}) { return this.batch([{ set: key, value, ttl, if: ifRevision }]); }

  /** Delete a key, present or absent. */
  delete(key, { ifRevision } = {}) { return this.batch([{ delete: key, if: ifRevision }]); }

  /** Change several keys in one record: rows { set, value, ttl, if } or { delete, if }. `if` is a revision, or null for an absent key. */
  async batch(rows) {
    const { keys, values, extras } = columns(rows);
    if (this.#closed) throw new Unanswered("this Clone was closed");
    const until = Date.now() + this.#timeoutMs;
    const late = () => `no answer within ${this.#timeoutMs} ms; it may still be done: look before you set it again; ${this.#why}`;
    while (!this.#core || this.#core.full) await within(new Promise((resolve, reject) => this.#room.push({ resolve, reject })), until - Date.now(), late);
    if (this.#closed) throw new Unanswered("this Clone was closed");
    const handle = {};
    const done = new Promise((resolve, reject) => Object.assign(handle, { resolve, reject }));
    done.catch(() => {});
    this.#pending.add(handle);
    this.#core.submit(keys, values, extras, handle, performance.now());
    this.#perform();
    try { return await within(done, until - Date.now(), late); } finally { this.#pending.delete(handle); }
  }

  /** Compute the sum of the copy anew. Return whether it equals the sum that is compared with each heartbeat. */
  verify() { return this.#core?.verify() ?? false; }

  close() {
    if (this.#closed) return;
    this.#closed = true;
    clearInterval(this.#tick);
    clearTimeout(this.#again);
    this.#socket?.close(1000);
    const error = new Unanswered("this Clone was closed");
    this.#settle.reject(error);
    for (const each of [...this.#pending, ...this.#room]) each.reject(error);
    this.#tellState("closed");
  }

  // -- the WebSocket

  async #begin() {
    const session = new Uint8Array(16);
    crypto.getRandomValues(session.subarray(0, 12));
    const named = new Uint8Array([...encoder.encode("chp session"), ...session.subarray(0, 12)]);
    const publicId = new Uint8Array(16);
    publicId.set(new Uint8Array(await crypto.subtle.digest("SHA-256", named)).subarray(0, 12));
    if (this.#closed) return;
    this.#core = new Core({ session, publicId, subtree: this.#subtree, chance: Math.random });
    this.#tick = setInterval(() => this.#onTick(), TICK_MS);
    for (const each of this.#room.splice(0)) each.resolve();
    this.#connect();
  }

  #connect() {
    const gateway = this.#gateways[this.#turn++ % this.#gateways.length];
    const socket = (this.#socket = new WebSocket(`${gateway.replace(/^http/, "ws")}/v1/clone${this.#mount}`, this.#token ? ["chp", `bearer.${this.#token}`] : []));
    socket.binaryType = "arraybuffer";
    this.#heardAt = performance.now();
    socket.onmessage = ({ data }) => { if (socket === this.#socket) this.#came(new Uint8Array(data)); };
    socket.onclose = ({ code, reason }) => { if (socket === this.#socket) this.#lost(code, reason || `${gateway} is not there, or closed the connection`); };
    socket.onerror = () => {};
  }

  #lost(code, why) {
    const now = performance.now();
    this.#socket = null;
    this.#open = false;
    this.#why = why;
    if (this.#closed) return;
    if (code === DENIED) this.#denied(why);
    this.#core.closed(now);
    this.#perform();
    this.#again = setTimeout(() => this.#connect(), RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)]);
  }

  // The gateway refused to pass a message on: reject the promises that wait for it, and do not send it again.
  #denied(why) {
    const error = new Refused("access", why);
    this.#settle.reject(error);
    for (const each of this.#pending) each.reject(error);
    this.#core.forget();
  }

  #came(message) {
    const now = performance.now(), [server, port] = message, frames = [];
    this.#heardAt = now;
    const view = new DataView(message.buffer, message.byteOffset);
    for (let at = 2; at < message.length;) {
      const size = view.getUint32(at);
      frames.push(message.subarray(at + 4, at + 4 + size));
      at += 4 + size;
    }
    if (port !== ABOUT) this.#core.receive(server, port, frames, now);
    else if (!this.#open) { this.#open = true; this.#core.opened(server, now); }
    this.#perform();
  }

  #onTick() {
    const now = performance.now();
    if (this.#socket && now - this.#heardAt > SILENCE_MS) {
      const socket = this.#socket;
      this.#socket = null;
      socket.close();
      this.#lost(0, "the gateway said nothing");
      return;
    }
    this.#core.timer(now);
    this.#perform();
  }

  #perform() {
    const { send, settled, changes, states } = this.#core.take();
    if (this.#open) for (const each of send) this.#socket.send(message(each));
    for (const { key, bytes, deleted, revision } of changes) {
      if (!this.#listeners.size) break;
      const change = { key, value: deleted ? undefined : shown(bytes), deleted, revision: described(revision) };
      for (const listener of this.#listeners) try { listener(change); } catch (error) { console.error(error); }
    }
    for (const state of states) {
      if (state === "synced") { this.#failures = 0; this.#settle.resolve(); }
      this.#tellState(state);
    }
    for (const [handle, result] of settled) if (result instanceof Error) handle.reject(result); else handle.resolve(result);
    if (this.#room.length && !this.#core.full) for (const each of this.#room.splice(0)) each.resolve();
  }

  #tellState(state) { try { this.#onState(state); } catch (error) { console.error(error); } }
}

function message([server, port, frames]) {
  const made = new Uint8Array(frames.reduce((size, frame) => size + 4 + frame.length, 2)), view = new DataView(made.buffer);
  made[0] = server;
  made[1] = port;
  let at = 2;
  for (const frame of frames) {
    view.setUint32(at, frame.length);
    made.set(frame, at + 4);
    at += 4 + frame.length;
  }
  return made;
}

function columns(rows) {
  const keys = [], values = [], gone = [], ttls = [[], []], conditions = [[], []];
  rows.forEach((row, i) => {
    const key = row.set ?? row.delete, value = row.set === undefined ? "" : row.value;
    const bytes = typeof value === "string" ? encoder.encode(value) : value;
    if (typeof key !== "string" || key === "") throw new TypeError("a key is text, and not empty");
    if (!(bytes instanceof Uint8Array)) throw new TypeError(`the value of ${key} is text or a Uint8Array, not ${typeof value}`);
    if (row.set === undefined) gone.push(i);
    if (row.ttl !== undefined) {
      if (!(row.ttl > 0) || !Number.isFinite(row.ttl)) throw new RangeError(`a ttl is seconds above 0, not ${row.ttl}`);
      ttls[0].push(i);
      ttls[1].push(Math.max(1, Math.round(row.ttl * 1000)));
    }
    if (row.if !== undefined) { conditions[0].push(i); conditions[1].push(row.if === null || row.if === "0" ? 0n : numberOf(row.if)); }
    keys.push(key);
    values.push(bytes);
  });
  if (!keys.length) throw new TypeError("a batch has a row at least");
  const extras = {};
  if (gone.length) extras.d = gone;
  if (ttls[0].length) extras.t = ttls;
  if (conditions[0].length) extras.c = conditions;
  return { keys, values, extras: Object.keys(extras).length ? extras : null };
}

const decoder = new TextDecoder("utf-8", { fatal: true });
function shown(bytes) { try { return decoder.decode(bytes); } catch { return bytes; } }

async function within(promise, ms, why) {
  let alarm;
  const late = new Promise((_, reject) => { alarm = setTimeout(() => reject(new Unanswered(why())), Math.max(0, ms)); });
  try { return await Promise.race([promise, late]); } finally { clearTimeout(alarm); }
}
