// Topics with their groups, clients, and the pair: asked for once a second while the page is visible.

import { $, ask, clock, count, drawLine, facts, keep, make, millis, newLine, pill, size, span } from "./draw.js";

// At most this many clients, groups of a topic, and messages of a topic are shown.
const CLIENTS = 200, GROUPS = 100, MESSAGES = 8;
// A larger lag is coloured.
const LATE_MS = 1000;

const table = (heads, lines) => make("div.wide", [make("table", [make("thead", [make("tr", heads.map((head) => cell("th", head)))]), make("tbody", lines)])]);
const cell = (tag, what) => (typeof what === "string" ? make(tag, what) : make(tag, [what]));
const line = (...cells) => make("tr", cells.map((each) => cell("td", each)));
const two = (text, more) => make("div", [make("b", text), make("small", more)]);

// -- topics

const lags = new Map(), rates = new Map();  // "topic/group" -> {svg, values}; topic -> {next, at, rate}

export async function drawTopics() {
  const [{ topics }, { groups }] = await Promise.all([ask("/v1/topics"), ask("/v1/groups")]);
  forget(new Set(topics.map((topic) => topic.name)));
  const of = Map.groupBy ? Map.groupBy(groups, (group) => group.topic) : grouped(groups);
  $("topics").replaceChildren(...(topics.length ? topics.map((topic) => drawTopic(topic, of.get(topic.name) ?? [])) : [empty()]));
}

// Forget the values that were kept for topics that are gone.
function forget(there) {
  for (const kept of [rates, looked]) for (const name of kept.keys()) if (!there.has(name)) kept.delete(name);
  for (const name of lags.keys()) if (!there.has(name.split("/")[0])) lags.delete(name);
}

function grouped(groups) {
  const found = new Map();
  for (const each of groups) found.set(each.topic, [...(found.get(each.topic) ?? []), each]);
  return found;
}

function empty() {
  return make("section.card", [make("h2", "No topics yet"), make("p.soft", "A topic is a log of messages beside the keys; `chp pub orders hello` makes one.")]);
}

function rateOf({ name, next }) {
  const now = performance.now(), known = rates.get(name);
  const rate = known ? Math.max(0, (1000 * (next - known.next)) / (now - known.at)) : null;
  rates.set(name, { next, at: now });
  return rate;
}

function drawTopic(topic, groups) {
  const { name, first, next, bytes, settings, wall_ms } = topic, rate = rateOf(topic);
  const kept = { size: "the newest by size", time: "the newest by time" }[settings.keep] ?? "all messages";
  const bounds = [["max_messages", count], ["max_bytes", size], ["max_age_s", span]].filter(([bound]) => settings[bound]).map(([bound, show]) => show(settings[bound]));
  const said = [`${count(next - first)} messages`, size(bytes), rate === null ? "" : `${count(Math.round(rate))} a second`, `keeps ${[kept, ...bounds].join(", ")}`];
  const open = make("button.link", "Latest messages", { onclick: (event) => drawMessages(event.target.closest("section"), topic) });
  return make("section.card", [
    make("h2", [make("span", name), make("small", said.filter(Boolean).join(" · "))]),
    groups.length ? drawGroups(groups) : make("p.soft", "No group reads it."),
    next > first ? make("p", [make("small", `offsets ${count(first)} to ${count(next - 1)}${wall_ms ? `, the last at ${clock(wall_ms)}` : ""} `), open]) : null,
    looked.get(name) ?? null,
  ], { id: `topic-${name}` });
}

function drawGroups(groups) {
  const most = Math.max(...groups.map((group) => group.lag), 1);
  return table(["group", "lag", "oldest waits", "members", "two minutes"], groups.slice(0, GROUPS).map((group) => {
    const name = `${group.topic}/${group.group}`, known = lags.get(name) ?? { svg: newLine(`lag of ${name}`), values: [] };
    lags.set(name, known);
    keep(known.values, group.lag);
    drawLine(known.svg, known.values);
    const idle = group.members === 0 && group.lag > 0;
    return line(make("b", group.group), bar(group.lag, most, count(group.lag)), group.lag ? span(group.oldest_s) : "–",
      idle ? pill("nobody", "warn", "messages wait, and no member is connected") : String(group.members), known.svg);
  }));
}

function bar(value, most, text) {
  const made = make("div.bar", [make("span", text), make("i")]);
  made.lastChild.style.width = `${(100 * value) / most}%`;
  return made;
}

// For each topic whose messages the user has opened, the list of messages.
const looked = new Map();
async function drawMessages(card, { name, first, next }) {
  if (looked.has(name)) { looked.get(name).remove(); looked.delete(name); return; }
  const list = make("ol.messages");
  looked.set(name, list);
  card.append(list);
  const after = next - MESSAGES - 1, from = after >= first ? `&after=${after}` : "";
  try {
    const { messages } = await ask(`/v1/topics/${encodeURIComponent(name)}/messages?max=${MESSAGES}${from}`);
    const shown = (each) => make("li", [make("small", `${each.offset}`), make("time", clock(1000 * each.time)), make("b", each.key ?? ""), make("span", (each.value ?? `base64 ${each.base64}`).slice(0, 300))]);
    list.replaceChildren(...(messages.length ? messages.reverse().map(shown) : [make("li.soft", "no messages")]));
  } catch (error) { list.replaceChildren(make("li.bad", error.message)); }
}

// -- clients: the client that is furthest behind comes first

export function drawClients({ clients, count: all }) {
  const late = clients.sort((a, b) => b.lag_ms - a.lag_ms || b.batches - a.batches || a.place - b.place);
  const most = Math.max(...late.map((client) => client.lag_ms), 100);
  $("connected").textContent = count(all);
  $("clients").replaceChildren(
    make("h2", [make("span", "Clients"), make("small", late.length < all || late.length > CLIENTS ? `the first ${Math.min(late.length, CLIENTS)} of ${count(all)}` : `${count(all)} tell the active server that they are connected`)]),
    late.length ? table(["client", "holds", "lag", "unacknowledged", "healed", "heard"], late.slice(0, CLIENTS).map((client) => drawClient(client, most)))
      : make("p.soft", "Nobody has told that it is connected."),
  );
}

function drawClient(c, most) {
  const held = c.subtrees.map((each) => each || "everything").join(" ") || "nothing, it only writes";
  const where = `${c.program} on ${c.host}, pid ${c.pid}${c.user ? `, as ${c.user}` : ""}${c.mount ? `, mount ${c.mount}` : ""}`;
  const first = two(c.name || c.program, where);
  first.title = `${c.address}, version ${c.version}, ${c.state}, since ${span(c.since_s)}, at ${c.number}`;
  const healed = c.holes + c.mismatches, lag = bar(c.lag_ms, most, millis(c.lag_ms));
  if (c.lag_ms > LATE_MS) lag.classList.add("late");
  const state = c.state === "SYNCED" ? null : pill(c.state, "warn");
  return line(first, make("div", [two(held, `${count(c.keys)} keys`), state]), lag, c.batches ? two(`${count(c.batches)} batches`, size(c.bytes)) : "none",
    `${healed ? `${healed} gaps` : "no gaps"}${c.failovers ? `, ${c.failovers} failovers` : ""}`, `${span(c.heard_s)} ago`);
}

// -- the pair

const CAUSES = {
  peer_behind: "both were there, and it was the one to begin",
  vote_peer_silent: "its peer was silent, and a client asked to be served",
  alone: "nobody else was there",
  handover: "an operator had the other hand over",
  forced: "an operator forced it",
};
const KINDS = { active: "good", unreachable: "bad" };
const means = new Map(), charts = { turn: [], sync: [], seen: [] };  // server -> {turns, seconds}

export function drawServers(servers) {
  $("servers").replaceChildren(...servers.map((each) => pill(`${titleOf(each)} ${stateOf(each)}`, KINDS[each.state] ?? "", address(each))));
}

/** Return the name of a server, after the name of its mount if there are several pairs. */
const titleOf = (server) => `${server.mount ? `${server.mount} ` : ""}${server.name ?? address(server)}`;
/** Return the state of a server. A replica that serves says `active`, but is shown as a replica. */
const stateOf = ({ state, role }) => (state === "active" && role === "replica" ? "replica" : state);
const address = (server) => server.server.replace(/^tcp:\/\//, "");

export function drawPair({ servers, gateway }) {
  const means = measure(servers, gateway);
  if (!$("pair").offsetParent) return;
  $("pair").replaceChildren(...servers.map(drawServer), drawGateway(gateway));
  const said = { turn: means.turn, sync: means.sync, seen: gateway.lag_ms };
  for (const [name, values] of Object.entries(charts)) {
    drawLine($(`line-${name}`), values);
    $(`now-${name}`).textContent = said[name] === null ? "no journal" : millis(said[name]);
    $(`most-${name}`).textContent = `at most ${millis(Math.max(...values, 0))}`;
  }
}

// Measure the last second at the active server; for several pairs, take the slowest active server.
function measure(servers, gateway) {
  const found = servers.filter((server) => server.state === "active" && server.role !== "replica").map(measureOne);
  const turns = found.map((each) => each.turn).filter((turn) => turn !== null), syncs = found.map((each) => each.sync).filter((sync) => sync !== null);
  const turn = turns.length ? Math.max(...turns) : charts.turn.at(-1) ?? 0, sync = syncs.length ? Math.max(...syncs) : null;
  keep(charts.turn, turn);
  keep(charts.sync, sync ?? 0);
  keep(charts.seen, gateway.lag_ms);
  return { turn, sync };
}

function measureOne({ server, turns, syncs_ms: syncs }) {
  const before = means.get(server), n = turns && before ? turns.turns - before.turns : 0;
  means.set(server, turns);
  return { turn: n > 0 ? (1000 * (turns.seconds - before.seconds)) / n : null, sync: syncs?.last ?? null };
}

function drawServer(server) {
  const { turns, syncs_ms: syncs, room } = server;
  const head = make("h2", [make("span", titleOf(server)), pill(stateOf(server), KINDS[server.state] ?? "")]);
  if (server.problem) return make("section.card", [head, make("p.bad", server.problem), facts([["address", address(server)]])]);
  const long = turns?.above_50_ms ?? 0;
  return make("section.card", [head, facts([
    ["address", address(server)],
    ["number", `${server.epoch}.${server.sequence}`],
    ["keys", count(server.keys)],
    ["in sync", server.in_sync ? "yes" : server.waits_for ? `no: ${server.waits_for}` : "no", server.in_sync ? "" : "warn"],
    server.replica && ["replica", `${server.replica.hops} from the pair, ${millis(server.replica.age)} old`],
    server.replica && ["readers", `${count(server.replica.readers)}, ${Math.round(server.replica.cpu / 10)} % of a core`],
    server.replicas && ["replicas", server.replicas.map((each) => `${each.name}: ${count(each.readers)} ${each.readers === 1 ? "reader" : "readers"}`).join(", ")],
    [`${server.state} for`, span(server.since_s)],
    ["running for", span(server.uptime_s)],
    turns?.turns && ["longest turn", `${millis(turns.longest_ms)}${long ? `, ${long} above 50 ms` : ""}`],
    syncs?.p50 !== undefined && ["journal, a sync", `${millis(syncs.p50)}, 99 % ${millis(syncs.p99)}`],
    room.memory !== undefined && ["memory", size(room.memory)],
    room.disk_free && ["disk free", size(room.disk_free)],
    room.full && ["room", `none: ${room.why}`, "bad"],
  ])]);
}

function drawMount({ mount, number, state }) {
  return [mount ? `mount ${mount}` : "number", state === "SYNCED" ? number : `${number}, ${state.toLowerCase()}`, state === "SYNCED" ? "" : "warn"];
}

function drawGateway(gateway) {
  const took = (name, about) => gateway.answers[name] && [about, `half within ${millis(gateway.answers[name].p50_ms)}, 99 % within ${millis(gateway.answers[name].p99_ms)}`];
  return make("section.card", [make("h2", [make("span", "this gateway"), pill(gateway.state, gateway.state === "SYNCED" ? "good" : "warn")]), facts([
    ...(gateway.mounts ?? [{ mount: "", number: gateway.number, state: "SYNCED" }]).map(drawMount),
    ["keys", count(gateway.keys)],
    ["readers of changes", count(gateway.readers)],
    took("read", "a read"), took("write", "a write"), took("batch", "a batch"),
    ["pages may write", gateway.write ? "yes" : "no (--write)"],
  ])]);
}

// -- failovers: which server served when, and why

let drawn = "";
export function drawEpochs(epochs) {
  const mounts = [...new Set(epochs.map((each) => each.mount))], of = (mount) => epochs.filter((each) => each.mount === mount);
  // The timeline can show one pair only.
  drawTimeline(mounts.length > 1 ? [] : epochs);
  const said = JSON.stringify(epochs.map((each) => [each.mount, each.epoch, each.name]));
  if (said === drawn) return;
  drawn = said;
  $("epochs").replaceChildren(...mounts.flatMap((mount) => of(mount).map(drawEpoch)));
}

function drawTimeline(epochs) {
  const now = Date.now(), ends = (i) => (i ? epochs[i - 1].wall_ms : now);
  const names = [...new Set(epochs.map((each) => each.name))].sort();
  $("timeline").hidden = !epochs.length;
  $("timeline").replaceChildren(...epochs.map((each, i) => {
    const part = make(`i.part.s${names.indexOf(each.name) % 4}`, each.name, { title: `epoch ${each.epoch}: ${each.name}, ${span((ends(i) - each.wall_ms) / 1000)}` });
    part.style.flexGrow = Math.max(1, ends(i) - each.wall_ms);
    return part;
  }).reverse());
}

function drawEpoch(each, i, epochs) {
  const cause = CAUSES[each.because] ?? each.because.replaceAll("_", " "), over = epochs[i + 1] && epochs[i + 1].name !== each.name;
  const kind = !over ? null : each.because === "handover" ? pill("hand-over") : pill("failover", "warn");
  const what = `${each.mount ? `mount ${each.mount}: ` : ""}${each.name} serves, epoch ${each.epoch}`;
  return make("li", [make("time", clock(each.wall_ms)), make("div", [make("b", what), kind, make("small", cause)])]);
}
