// The client's side of CHP/2 without sockets or clocks, written from the specification alone (sections 12 to 18, 37 and 39).
//
//   opened(servers, now), closed(now)       the connection to the pair has opened, or closed
//   receive(server, port, frames, now)      take a message of a server
//   submit(columns, handle, now)            take a batch of own sets
//   timer(now)                              call this now and then; all times are milliseconds
//   take()                                  return { send: [server, port, frames], settled, changes, states } since the last call
//
// The core follows one server (the table of section 39) and holds one subtree. It notices gaps and differences and heals them
// (section 16). It keeps own batches until they are answered, over failovers and other gateways (section 14).

import { Malformed, pack, unpack } from "./msgpack.js";

export const P = 0, UPDATES = 1, COLLECTOR = 2;
const [GREETING, BATCH, HEARTBEAT, SYNC, RECORDS, KTHXBAI, ACK, REFUSED] = [0, 1, 2, 3, 4, 5, 6, 7];
const ACTIVE = 3, VERSION = 6, VERSION_MIN = 3, CREDIT = 16, GRANT = 8;
const SILENCE_MS = 1000, VOTE_MS = 200, SYNC_MS = 2000, REFUSED_MS = 1000, RESEND_MS = 2000, LATEST_MS = 30_000, MEND_MS = 100, UNTOLD_MS = 30_000;
const WINDOW_BATCHES = 4096, WINDOW_BYTES = 64 << 20, UNANSWERED = 1000, HELD_BYTES = 256 << 20;
// OLDEST_HELD marks the oldest batch that the client holds. If a server refuses that batch more than
// SKIPS_MAX times, a new session begins.
const OLDEST_HELD = Uint8Array.of(1), SKIPS_MAX = 2;
const NOTHING = new Uint8Array(0), RESERVED = Uint8Array.of(2, 3), DURABILITY = ["applied", "journaled", "replicated"];
const encoder = new TextEncoder(), decoder = new TextDecoder();

const epochOf = (number) => number >> 48n;
const hex = (bytes) => Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
/** Return a number as the text "epoch.sequence". */
export const described = (number) => `${number >> 48n}.${number & 0xffffffffffffn}`;
/** Return the number that the text "epoch.sequence" means. */
export function numberOf(text) {
  const found = /^(\d{1,5})\.(\d{1,15})$/.exec(text);
  if (!found) throw new TypeError(`a revision is such as "1.42", not ${JSON.stringify(text)}`);
  return (BigInt(found[1]) << 48n) | BigInt(found[2]);
}

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => { for (let i = 0; i < 8; i++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1; return n >>> 0; });
/** Return the CRC-32 of bytes, continued from `crc`. */
export function crc32(bytes, crc = 0) {
  crc = ~crc;
  for (let i = 0; i < bytes.length; i++) crc = TABLE[(crc ^ bytes[i]) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}
/** Return the digest of a channel after one more BATCH body (section 16). */
export function linked(digest, body) {
  const sum = crc32(body);
  return crc32(Uint8Array.of(sum >>> 24, (sum >>> 16) & 255, (sum >>> 8) & 255, sum & 255), digest);
}

/** The refusal of an own batch by a server: `code` and `detail` are those of section 18. */
export class Refused extends Error {
  constructor(code, detail) {
    const more = typeof detail === "string" ? `: ${detail}` : "";
    super(code === "revision" ? "the condition does not hold: somebody else was first" : `refused (${code})${more}`);
    this.name = "Refused";
    this.code = code;
    this.detail = detail;
    this.revisions = code === "revision" && detail && typeof detail === "object"
      ? Object.fromEntries(Object.entries(detail).map(([key, n]) => [key, described(BigInt(n))])) : null;
  }
}

// What the core knows of one server.
class Link {
  greeted = new Set(); beats = 0; up = false; sent = 0; heardAt = -Infinity; paceMs = 250; server = ""; wanted = 0; wantedAt = -Infinity; skips = 0; skipsTo = 0;
  skippedAt = -Infinity;
  // `votedAt` is the time of the first vote since the link came up. `lowerSince` is the time since which the
  // server says that it is ACTIVE in an epoch below ours.
  votedAt = Infinity; lowerSince = Infinity;
}

export class Core {
  entries = new Map();  // key -> { bytes, revision }
  stats = { gaps: 0, mismatches: 0, snapshots: 0, resumes: 0, failovers: 0, sessions: 1, garbage: 0, compared: 0 };
  at = 0n; state = "connecting"; refusal = "";
  #links = []; #active = null; #epoch = 0n; #ourEpochAt = 0; #heardAt = -Infinity; #votedAt = -Infinity; #subscribedAt = 0;
  #live = false; #synced = false; #sync = null; #lastId = 0; #proof = [NOTHING, NOTHING]; #since = 0n; #digest = 0; #sum = 0n;
  #parts = null; #held = []; #heldBytes = 0; #mends = 0; #askAt = Infinity;
  #session; #publicId; #subtree; #chance; #channel; #own;
  #last = 0; #outbox = new Map(); #bytes = 0; #answeredAt = 0; #resendMs = RESEND_MS; #waiting = [];
  #out = { send: [], settled: [], changes: [], states: [] };

  /** `session` is 12 random bytes and 4 zero bytes. `publicId` is computed from `session` as section 14 says. */
  constructor({ session, publicId, subtree = "", chance = () => 0.5 }) {
    this.#session = session.slice();
    this.#publicId = publicId.slice();
    this.#subtree = subtree;
    this.#chance = chance;
    this.#channel = Uint8Array.of(2, ...encoder.encode(subtree), 3);
    this.#own = this.#ownTopic();
  }

  take() {
    const out = this.#out;
    this.#out = { send: [], settled: [], changes: [], states: [] };
    return out;
  }

  /** Whether the batches without an answer are as many, or as large, as they may be. */
  get full() { return this.#outbox.size >= WINDOW_BATCHES || this.#bytes >= WINDOW_BYTES; }
  /** The last number at which a HEARTBEAT showed that this copy equals the contents of the server. */
  comparedAt = 0n;

  /** Compute the sum of the revisions anew. Return whether it equals the sum that is compared with each HEARTBEAT. */
  verify() {
    let sum = 0n;
    for (const { revision } of this.entries.values()) sum += revision;
    return BigInt.asUintN(64, sum) === this.#sum;
  }

  // -- the connection to the pair

  opened(servers, now) {
    this.#links = Array.from({ length: servers }, () => new Link());
    this.#active = null;
    this.#sync = null;
    this.#live = false;
    this.#parts = null;
    this.#subscribedAt = this.#ourEpochAt = now;
    this.#links.forEach((_, i) => { this.#subscribe(i, this.#channel); this.#subscribe(i, this.#own); });
    this.#update(now);
  }

  closed(now) {
    this.#links = [];
    this.#active = this.#sync = this.#parts = null;
    this.#live = false;
    this.#update(now);
  }

  receive(server, port, frames, now) {
    try {
      const link = this.#links[server];
      if (!link) return;
      if (port === COLLECTOR) this.#onLink(link, frames[0]?.[0] === 1, now);
      else if (frames.length !== 5 || frames[1].length !== 8) throw new Malformed("it has five frames, the second of 8 bytes");
      else {
        const number = new DataView(frames[1].buffer, frames[1].byteOffset).getBigUint64(0);
        const body = unpack(frames[4]);
        if (!Array.isArray(body) || !Array.isArray(body[0]) || !Number.isInteger(body[0][0])) throw new Malformed("a body begins with a header");
        const [header, ...items] = body;
        if (port === UPDATES) this.#onUpdate(link, frames[0], number, header, items, frames[4], now);
        else this.#onReply(link, number, header, items, now);
      }
    } catch (error) {
      if (!(error instanceof Malformed || error instanceof TypeError || error instanceof RangeError || error instanceof SyntaxError)) throw error;
      // A bad message is counted and dropped. If an update was in it, the gap shows later.
      this.stats.garbage++;
    }
    this.#update(now);
  }

  #send(link, port, frames) { this.#out.send.push([typeof link === "number" ? link : this.#links.indexOf(link), port, frames]); }
  #subscribe(link, topic) { this.#send(link, UPDATES, topic === this.#own ? [Uint8Array.of(1, ...topic), this.#session.slice()] : [Uint8Array.of(1, ...topic)]); }
  #unsubscribe(link, topic) { this.#send(link, UPDATES, [Uint8Array.of(0, ...topic)]); }
  #subscribeAgain(link, topic) { this.#unsubscribe(link, topic); this.#subscribe(link, topic); }
  #ownTopic() { return Uint8Array.of(2, ...encoder.encode(`@${hex(this.#publicId)}`), 3); }

  // -- P+1

  #onUpdate(link, topic, number, header, items, body, now) {
    const where = decoder.decode(topic), channel = where === decoder.decode(this.#channel), own = where === decoder.decode(this.#own);
    const [kind] = header;
    if (kind === GREETING) this.#onGreeting(link, where, header, now);
    else if (channel && kind === HEARTBEAT) {
      const [, , told, last, count, revsum, beatMs, , since, digest] = header;
      this.#greetedByHeartbeat(link, where, beatMs, now);
      this.#told(link, ACTIVE, BigInt(told), false, now);
      if (link === this.#active) this.#hear(link, now, { kind, number: BigInt(told), last: BigInt(last), count, revsum: BigInt(revsum), since: BigInt(since), digest });
    } else if (channel && kind === BATCH) {
      const [, prev, first, last, , , more] = header;
      if (epochOf(BigInt(last)) > this.#epoch) this.#told(link, ACTIVE, BigInt(last), false, now);
      if (link === this.#active) this.#hear(link, now, { kind, prev: BigInt(prev), first: BigInt(first), last: BigInt(last), more: more === true, items: segments(items), body });
    } else if (own && kind === ACK && epochOf(number) >= this.#epoch) {
      // Only an active acknowledges, and a server of a lower epoch lacks what it acknowledges.
      if (epochOf(number) > this.#epoch) this.#told(link, ACTIVE, number, false, now);
      this.#acked(header, number, now);
    } else if (own && kind === REFUSED && epochOf(number) >= this.#epoch) this.#refused(link, header, number, now);
    else if (kind === REFUSED && channel) this.#askAt = Math.min(this.#askAt, now + REFUSED_MS);
  }

  #onGreeting(link, where, [, version, state, number, beatMs, server], now) {
    if (!(version >= VERSION_MIN)) return;
    const id = hex(server), restarted = link.server !== "" && link.server !== id;
    if (restarted) { link.greeted.clear(); link.beats = 0; }
    link.server = id;
    link.paceMs = Math.max(1, beatMs);
    const news = !link.greeted.has(where);
    link.greeted.add(where);
    this.#told(link, state, BigInt(number), restarted, now);
    if (link === this.#active && where === decoder.decode(this.#channel) && (news || !this.#sync) && !this.#live) this.#ask(this.at, now);
    this.#pump(now);
  }

  // A GREETING may be lost. So a HEARTBEAT counts as the GREETING of its channel, and a second HEARTBEAT also
  // counts as the GREETING of the reply channel.
  #greetedByHeartbeat(link, where, beatMs, now) {
    link.greeted.add(where);
    link.paceMs = Math.max(1, beatMs);
    const own = decoder.decode(this.#own);
    if (!link.greeted.has(own) && ++link.beats >= 2) { link.greeted.add(own); this.#pump(now); }
  }

  #hear(link, now, said) {
    link.heardAt = this.#heardAt = now;
    if (!this.#sync && !this.#live && this.#askAt === Infinity) this.#ask(this.at, now);
    if (this.#sync || !this.#live) { this.#hold(said, now); return; }
    this.#look(said, now);
  }

  #hold(said, now) {
    // Without a pending question, hold nothing: the answer to the next question will have these updates.
    if (!this.#sync) return;
    if (said.kind === BATCH && (this.#heldBytes += said.body.length) > HELD_BYTES) { this.#ask(0n, now); return; }
    if (said.kind === BATCH || !this.#held.length || this.#held.at(-1).kind === BATCH) this.#held.push(said);
    else this.#held[this.#held.length - 1] = said;
  }

  // This is the table of section 16: the first line that fits counts.
  #look(said, now) {
    const number = said.kind === BATCH ? said.last : said.number;
    if (epochOf(number) < epochOf(this.at)) return;
    if (epochOf(number) > epochOf(this.at)) this.#ask(this.at, now);
    else if (said.kind === BATCH) this.#onBatch(said, now);
    else if (said.last > this.at) this.#gap(now);
    else if (said.number >= this.at) this.#compare(said, now);
  }

  #onBatch(said, now) {
    const upto = this.#parts ? this.#parts.last : this.at;
    if (said.last <= upto) return;
    if (said.prev > upto) { this.#gap(now); return; }
    this.#digest = linked(this.#digest, said.body);
    this.#gather(said);
  }

  #gather({ first, last, more, items }) {
    if (!this.#parts) this.#parts = { first, items: [] };
    for (const each of items) this.#parts.items.push(each);
    this.#parts.last = last;
    if (more) return;
    const { first: revision, items: all } = this.#parts;
    this.#parts = null;
    for (const each of all) this.#apply(each, revision);
    this.at = last;
  }

  #gap(now) { this.stats.gaps++; this.#ask(this.at, now); }

  #compare({ number, count, revsum, since, digest }, now) {
    const known = since === this.#since && since !== 0n;
    if (count !== this.entries.size || revsum !== this.#sum || (known && digest !== this.#digest)) { this.#mend(now); return; }
    if (!known) { this.#since = since; this.#digest = digest; }
    this.at = number > this.at ? number : this.at;
    this.comparedAt = number;
    this.stats.compared++;
    this.#mends = 0;
  }

  // Ask at once the first time, and then after longer and longer waits. So a difference that cannot be healed
  // causes no loop of questions.
  #mend(now) {
    this.stats.mismatches++;
    this.#live = false;
    this.#proof = [NOTHING, NOTHING];
    const wait = this.#mends++ === 0 ? 0 : Math.min(LATEST_MS, MEND_MS * 2 ** Math.min(this.#mends - 2, 20)) * (0.5 + this.#chance());
    if (wait === 0) this.#ask(0n, now); else this.#askAt = now + wait;
  }

  #apply([keys, values, extras], revision) {
    const gone = new Set(extras?.d ?? []);
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i], before = this.entries.get(key);
      if (!key.startsWith(this.#subtree)) continue;
      if (before) this.#sum -= before.revision;
      if (gone.has(i)) this.entries.delete(key);
      else { this.entries.set(key, { bytes: values[i], revision }); this.#sum += revision; }
      if (before || !gone.has(i)) this.#out.changes.push({ key, bytes: gone.has(i) ? undefined : values[i], deleted: gone.has(i), revision });
    }
    this.#sum = BigInt.asUintN(64, this.#sum);
  }

  // -- which server to follow: the table of section 39

  #silenceMs(link) { return Math.max(SILENCE_MS, 4 * link.paceMs); }
  #isSilent(now) { return this.#active === null || now - this.#active.heardAt > this.#silenceMs(this.#active); }

  #told(link, state, number, restarted, now) {
    const epoch = epochOf(number), free = this.#isSilent(now);
    link.lowerSince = state === ACTIVE && epoch < this.#epoch ? Math.min(link.lowerSince, now) : Infinity;
    if (state !== ACTIVE) {
      if (link === this.#active) { this.#active = this.#sync = this.#parts = null; this.#live = false; }
      return;
    }
    if (link === this.#active) {
      if (epoch > this.#epoch) this.#follow(link, epoch, false, now);
      else if (restarted) this.#follow(link, epoch, true, now);
      else if (epoch === this.#epoch) link.heardAt = this.#ourEpochAt = now;
      return;
    }
    const late = now - this.#ourEpochAt > 3 * (this.#active ? this.#silenceMs(this.#active) : SILENCE_MS);
    if (epoch > this.#epoch || (epoch === this.#epoch && free)) this.#follow(link, epoch, false, now);
    else if (epoch === this.#epoch) this.#ourEpochAt = now;
    // A server that hears of our epoch by a vote opens a higher epoch, so give it SILENCE_MS after a vote. If no vote
    // can be sent, follow the server after UNTOLD_MS.
    else if (late && free && (now - link.votedAt > SILENCE_MS || now - link.lowerSince > UNTOLD_MS)) this.#follow(link, epoch, true, now);
  }

  #follow(link, epoch, anew, now) {
    if (this.#epoch !== 0n && epoch !== this.#epoch) this.stats.failovers++;
    this.#active = link;
    this.#epoch = epoch;
    this.#ourEpochAt = link.heardAt = this.#heardAt = now;
    this.#live = false;
    this.#sync = this.#parts = null;
    // Every batch without an answer is sent again.
    for (const each of this.#links) each.sent = 0;
    if (anew) { this.at = 0n; this.#proof = [NOTHING, NOTHING]; this.#settleAll(); }
    if (link.greeted.has(decoder.decode(this.#channel))) this.#ask(this.at, now);
    this.#pump(now);
  }

  // -- P

  #ask(from, now) {
    if (!this.#active) return;
    this.#live = false;
    this.#parts = null;
    this.#held = [];
    this.#heldBytes = 0;
    this.#askAt = Infinity;
    this.#sync = { id: ++this.#lastId, link: this.#active, from, next: 0, progressAt: now, rows: new Map(), records: [], kind: null };
    this.#question(this.#active, this.#sync.id, from, CREDIT);
  }

  #question(link, id, from, credit) {
    const options = { chp: VERSION, id, from, proof: this.#proof, session: this.#publicId, credit };
    this.#send(link, P, [encoder.encode("ICANHAZ?"), encoder.encode(this.#subtree), pack(options)]);
  }

  #onReply(link, number, header, items, now) {
    const [kind, id] = header, sync = this.#sync;
    if (![SYNC, RECORDS, KTHXBAI, REFUSED].includes(kind)) return;
    if (!sync || id !== sync.id || link !== sync.link) {
      if (kind === REFUSED && link === this.#active && header[2] === "passive") this.#told(link, header[3], 0n, false, now);
      // Only the active server answers.
      else if (kind !== REFUSED) this.#told(link, ACTIVE, number, false, now);
      return;
    }
    link.heardAt = this.#heardAt = now;
    if (kind === REFUSED) {
      this.#sync = null;
      if (header[2] === "passive") this.#told(link, header[3], 0n, false, now);
      else { this.refusal = `${header[2]}: ${header[3]}`; this.#askAt = now + REFUSED_MS; }
    } else if (kind === KTHXBAI) this.#end(sync, header, now);
    else this.#chunk(sync, header, items, now);
  }

  #chunk(sync, [kind, id, index], items, now) {
    if (index !== sync.next || (sync.kind !== null && sync.kind !== kind)) { this.#ask(this.at, now); return; }
    sync.next++;
    sync.kind = kind;
    sync.progressAt = now;
    if (kind === RECORDS) for (const [header, ...parts] of items) sync.records.push({ prev: BigInt(header[1]), first: BigInt(header[2]), last: BigInt(header[3]), more: header[6] === true, items: segments(parts) });
    else for (const [keys, values, extras] of segments(items)) {
      let i = 0;
      for (const [revision, n] of extras.r) for (const end = i + n; i < end; i++) sync.rows.set(keys[i], { bytes: values[i], revision: BigInt(revision) });
      if (i !== keys.length) throw new Malformed("the runs of r add up to the keys");
    }
    if (sync.next % GRANT === 0) this.#send(sync.link, P, [encoder.encode("ICANHAZ?"), encoder.encode(this.#subtree), pack({ chp: VERSION, id, more: GRANT })]);
  }

  #end(sync, [, , number, count, revsum, , resumed, since, digest, proof], now) {
    this.#sync = null;
    if (resumed) {
      this.stats.resumes++;
      for (const each of sync.records) {
        const upto = this.#parts ? this.#parts.last : this.at;
        if (each.last <= upto) continue;
        if (each.prev > upto) { this.#ask(0n, now); return; }
        this.#gather(each);
      }
      this.#parts = null;
    } else { this.stats.snapshots++; this.#replace(sync.rows); }
    this.at = BigInt(number);
    this.#since = BigInt(since);
    this.#digest = digest;
    this.#proof = proof;
    if (count !== this.entries.size || BigInt(revsum) !== this.#sum) { this.#mend(now); return; }
    this.#live = this.#synced = true;
    this.refusal = "";
    const held = this.#held;
    this.#held = [];
    this.#heldBytes = 0;
    for (const said of held) if (this.#live) this.#look(said, now); else this.#hold(said, now);
  }

  #replace(rows) {
    const before = this.entries;
    this.entries = rows;
    this.#sum = 0n;
    for (const [key, { bytes, revision }] of rows) {
      this.#sum += revision;
      if (before.get(key)?.revision !== revision) this.#out.changes.push({ key, bytes, deleted: false, revision });
    }
    this.#sum = BigInt.asUintN(64, this.#sum);
    for (const key of before.keys()) if (!rows.has(key)) this.#out.changes.push({ key, bytes: undefined, deleted: true, revision: 0n });
  }

  // -- own sets: section 14

  /** Send the segment of a batch; values are bytes. Settle `handle` with { revision, durability } or a `Refused`. */
  submit(keys, values, extras, handle, now) {
    const body = pack([keys, values, extras]);
    if (this.#outbox.size === 0) this.#answeredAt = now;
    this.#outbox.set(++this.#last, { body, handle, mine: keys.some((key) => key.startsWith(this.#subtree)) });
    this.#bytes += body.length;
    this.#pump(now);
  }

  /** Forget all batches without an answer, so that they are not sent again. */
  forget() { this.#outbox.clear(); this.#bytes = 0; this.#waiting = []; }

  #onLink(link, up, now) { link.up = up; link.sent = 0; link.votedAt = Infinity; this.#pump(now); }

  #pump(now) {
    const own = decoder.decode(this.#own);
    for (const link of this.#links) {
      if (!link.up || !link.greeted.has(own)) continue;
      let room = UNANSWERED;
      const first = this.#outbox.keys().next().value;
      for (const [no, { body }] of this.#outbox) {
        if (room-- === 0) break;
        if (no <= link.sent) continue;
        const frame = new Uint8Array(8);
        new DataView(frame.buffer).setBigUint64(0, BigInt(no));
        this.#send(link, COLLECTOR, [RESERVED, frame, this.#session, no === first && no === link.skipsTo ? OLDEST_HELD : NOTHING, body]);
        link.sent = no;
      }
    }
  }

  #answered(no, upto, result, now) {
    const batch = this.#outbox.get(no);
    if (!batch) return;
    this.#outbox.delete(no);
    this.#bytes -= batch.body.length;
    this.#answeredAt = now;
    this.#resendMs = RESEND_MS;
    if (batch.mine) this.#waiting.push({ upto, handle: batch.handle, result });
    else this.#out.settled.push([batch.handle, result]);
  }

  #acked([, runs, durability], number, now) {
    for (const [first, last, revision] of runs) {
      const known = BigInt(revision), upto = known === 1n ? number : known;
      for (const no of [...this.#outbox.keys()]) {
        if (no > last) break;
        if (no >= first) this.#answered(no, upto, { revision: described(known), durability: DURABILITY[durability] ?? "" }, now);
      }
    }
    this.#pump(now);
  }

  #refused(link, [, no, code, detail], number, now) {
    if (code === "expected" || code === "session") {
      const first = this.#outbox.keys().next().value;
      if (first === undefined) return;
      const wanted = code === "session" ? 1 : Number(detail);
      if (first > wanted) { this.#skip(link, no, first, now); return; }
      if (link.wanted === wanted && now - link.wantedAt < RESEND_MS) return;
      link.wanted = wanted;
      link.wantedAt = now;
      link.sent = wanted - 1;
      this.#pump(now);
      return;
    }
    const told = code === "revision" ? Object.values(detail).map(BigInt) : [];
    this.#answered(no, told.reduce((a, b) => (a > b ? a : b), 0n), new Refused(code, detail), now);
    this.#pump(now);
  }

  // Another server answered batches that this server lacks. Mark the oldest batch that is held, so that this server
  // skips the batches before it. The refusal of a later batch does not count, because it may be older than the mark.
  #skip(link, no, first, now) {
    const told = link.skipsTo === first;
    if (!told || (no === first && now - link.skippedAt >= RESEND_MS)) { link.skips = told ? link.skips + 1 : 1; link.skippedAt = now; }
    if (link.skips > SKIPS_MAX) { this.#newSession(now); return; }
    if (told && now - link.wantedAt < RESEND_MS) return;
    link.skipsTo = first;
    link.wantedAt = now;
    link.sent = first - 1;
    this.#pump(now);
  }

  // This server does not know the session: open the next one, and number the batches from 1.
  #newSession(now) {
    this.stats.sessions++;
    const count = new DataView(this.#session.buffer, 12);
    count.setUint32(0, count.getUint32(0) + 1);
    this.#publicId.set(this.#session.subarray(12), 12);
    const before = this.#own;
    this.#own = this.#ownTopic();
    const batches = [...this.#outbox.values()];
    this.#outbox = new Map(batches.map((batch, i) => [i + 1, batch]));
    this.#last = batches.length;
    this.#links.forEach((link, i) => {
      link.sent = link.beats = link.skipsTo = 0;
      link.greeted.delete(decoder.decode(before));
      this.#unsubscribe(i, before);
      this.#subscribe(i, this.#own);
    });
    this.#pump(now);
  }

  #settle() {
    if (!this.#live || this.#sync) return;
    this.#waiting = this.#waiting.filter(({ upto, handle, result }) => {
      if (upto > this.at) return true;
      this.#out.settled.push([handle, result]);
      return false;
    });
  }

  // Settle everything: in another history the awaited numbers may never come.
  #settleAll() {
    for (const { handle, result } of this.#waiting) this.#out.settled.push([handle, result]);
    this.#waiting = [];
  }

  // -- time

  timer(now) {
    const active = this.#active;
    if (this.#sync && now - this.#sync.progressAt > SYNC_MS) this.#ask(this.#sync.from, now);
    else if (!this.#sync && now >= this.#askAt) { this.#askAt = Infinity; this.#subscribeAgain(active ?? 0, this.#channel); this.#ask(this.#mends ? 0n : this.at, now); }
    if (this.#isSilent(now) && now - this.#votedAt >= VOTE_MS) {
      this.#votedAt = now;
      this.#links.forEach((link, i) => {
        if (link === active) return;
        this.#question(i, ++this.#lastId, this.at, 1);
        if (link.up) link.votedAt = Math.min(link.votedAt, now);
      });
    }
    if (active && now - Math.max(this.#heardAt, this.#subscribedAt) > 0.75 * this.#silenceMs(active)) {
      this.#subscribedAt = now;
      this.#subscribeAgain(active, this.#channel);
    }
    if (active && this.#outbox.size && now - this.#answeredAt > this.#resendMs) {
      this.#answeredAt = now;
      this.#resendMs = Math.min(LATEST_MS, this.#resendMs * 2);
      this.#subscribeAgain(active, this.#own);
      active.sent = 0;
      this.#pump(now);
    }
    this.#update(now);
  }

  #update(now) {
    this.#settle();
    const current = this.#live && !this.#sync && !this.#isSilent(now);
    const state = current ? "synced" : this.#synced ? "stale" : "connecting";
    if (state !== this.state) this.#out.states.push((this.state = state));
  }
}

function segments(items) {
  for (const each of items) {
    if (!Array.isArray(each) || !Array.isArray(each[0]) || !Array.isArray(each[1]) || each[0].length !== each[1].length) throw new Malformed("a segment has as many values as keys");
    for (const key of each[0]) if (typeof key !== "string") throw new Malformed("a key is text");
    for (const value of each[1]) if (!(value instanceof Uint8Array)) throw new Malformed("a value is bytes");
  }
  return items;
}
