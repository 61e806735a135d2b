// One entry and its versions. It is read when it is opened, and set only if it has not changed since.
//
//   GET /v1/keys?key= --> opened {etag, text} --> PUT with If-Match --> done, or refused: present value, difference
//   /v1/versions?key= --> versions, the newest first; later changes are put before them

import { $, ask, clock, count, drawDifference, drawLine, KEPT, make, newLine, size } from "./draw.js";
import { entries, selected, shown, soon } from "./keys.js";

const VERSIONS = 200, SURE_MS = 3000;
const state = { mayWrite: false, etag: null, text: "", clients: new Map() };
let versions = [], complete = false, sure = -Infinity;

const pathOf = (key) => `/v1/keys?key=${encodeURIComponent(key)}`;

export function may(write, clients) {
  state.mayWrite = write;
  if (clients) state.clients = clients;
  $("make").hidden = !write;
}

// -- opening

export async function open(key) {
  selected.key = key;
  versions = [];
  complete = false;
  soon();
  // A key that is not in `entries` is absent, so there is nothing to ask for.
  const answer = entries.has(key) ? await fetch(pathOf(key)) : { status: 404, headers: new Headers() };
  const text = answer.ok ? await answer.text() : "";
  if (selected.key !== key) return;
  state.etag = answer.headers.get("ETag");
  state.text = entries.get(key)?.bytes ? entries.get(key).value : text;
  $("entry").hidden = false;
  $("key").textContent = key;
  $("value").value = state.text;
  const missing = answer.status === 404 ? (state.mayWrite ? "There is no such key yet." : "There is no such key.") : "";
  say(answer.ok || missing ? missing : `The gateway says ${answer.status}.`, Boolean(missing));
  drawMeta(answer.headers.get("CHP-TTL"));
  noteNewer();
  drawVersions();
  if ($("past").open) readVersions();
}

function drawMeta(ttl) {
  const bytes = Boolean(entries.get(selected.key)?.bytes), text = state.text;
  $("value").readOnly = !state.mayWrite || bytes;
  $("actions").hidden = !state.mayWrite;
  $("save").disabled = bytes;
  $("remove").disabled = state.etag === null;
  $("value").rows = Math.min(14, Math.max(3, text.split("\n").length, Math.ceil(text.length / 38)));
  const kind = bytes ? "bytes" : isJson(text) ? "JSON" : "text";
  const said = [`revision ${state.etag?.replaceAll('"', "") ?? "none"}`, state.etag ? `${kind}, ${size(new Blob([text]).size)}` : null, ttl ? `gone in ${Math.round(ttl)} s` : null];
  $("revision").textContent = said.filter(Boolean).join(" · ");
}

function isJson(text) {
  if (!/^\s*[[{]/.test(text)) return false;
  try { JSON.parse(text); return true; } catch { return false; }
}

export function close() {
  $("entry").hidden = true;
  selected.key = null;
  soon();
}

// -- changes by others

export function changed(row, number) {
  if (row.key !== selected.key || $("entry").hidden) return;
  versions.unshift({ revision: number, wall_ms: Date.now(), deleted: row.deleted, expired: row.expired, value: row.value, base64: row.base64 });
  versions.length = Math.min(versions.length, VERSIONS);
  noteNewer();
  drawVersions();
}

function noteNewer() {
  const entry = entries.get(selected.key), newer = state.etag ? !entry || `"${entry.number}"` !== state.etag : Boolean(entry);
  $("newer").hidden = !newer;
  if (!newer) return;
  const what = make("p", entry ? `Somebody changed it: revision ${entry.number}. ` : "Somebody deleted it. ");
  what.append(make("button.link", "Take what is there", { onclick: () => open(selected.key) }));
  $("newer").replaceChildren(what, ...(entry ? [drawDifference(state.text, entry.value)] : []));
}

// -- writing

async function write(method, body) {
  const key = selected.key, headers = state.etag ? { "If-Match": state.etag } : { "If-None-Match": "*" };
  let answer, told;
  try {
    answer = await fetch(pathOf(key), { method, body, headers });
    told = await answer.json();
  } catch { return say("The gateway is silent: it may be done or not. Look before you try again."); }
  if (selected.key !== key) return;
  if (!answer.ok) return say(answer.status === 412 ? `Not done: it was changed meanwhile; now ${told.now?.value ?? "it is not there"}` : told.detail);
  state.etag = method === "PUT" ? answer.headers.get("ETag") : null;
  state.text = method === "PUT" ? body : "";
  drawMeta(null);
  say(`Done: ${told.durability}, revision ${told.revision}`, true);
  noteNewer();
}

// Delete the entry at the second click, as only its versions can bring the value back.
function remove() {
  if (performance.now() - sure > SURE_MS) {
    sure = performance.now();
    $("remove").textContent = "Really delete?";
    setTimeout(() => { $("remove").textContent = "Delete"; }, SURE_MS);
  } else {
    sure = -Infinity;
    $("remove").textContent = "Delete";
    write("DELETE");
  }
}

function say(text, good = false) { $("said").textContent = text; $("said").className = good ? "good" : ""; }

// -- the versions

async function readVersions() {
  const key = selected.key;
  if (complete || key === null) return;
  $("seen").replaceChildren(make("li.soft", "reading the log …"));
  try {
    const told = await ask(`/v1/versions?limit=${VERSIONS}&key=${encodeURIComponent(key)}`);
    if (selected.key !== key) return;
    const known = new Set(told.versions.map((each) => each.revision));
    versions = [...versions.filter((each) => !known.has(each.revision)), ...told.versions].slice(0, VERSIONS);
    complete = true;
    drawVersions();
  } catch (error) { $("seen").replaceChildren(make("li.bad", error.message)); }
}

function who(version) {
  if (!version.by) return version.expired ? "its time was over" : "";
  const client = state.clients.get(version.by);
  return client ? `by ${client.name || client.program}` : `by client ${version.by.slice(0, 8)}`;
}

const textOf = (version) => (version.deleted ? (version.expired ? "expired" : "deleted") : shown(version));

function drawVersions() {
  const lines = versions.map((each, i) => {
    const head = make("div", [make("time", clock(each.wall_ms)), make("small", ` ${each.revision} ${who(each)}`)], { title: each.by ?? "" });
    const before = versions[i + 1], both = before && !before.deleted && !each.deleted;
    const body = both ? drawDifference(shown(before), shown(each)) : make(`div.difference${each.deleted ? ".soft" : ""}`, textOf(each).slice(0, 2000));
    return make("li", [head, body], { tabIndex: 0, title: "click: take this value into the editor", onclick: () => putBack(each) });
  });
  if (complete && !lines.length) lines.push(make("li.soft", "The log no longer has a set of this key."));
  $("seen").replaceChildren(...lines);
  $("versions").textContent = versions.length ? ` ${count(versions.length)}` : "";
  drawNumbers();
}

function putBack(version) {
  if (!state.mayWrite || version.deleted || version.base64 !== undefined) return;
  $("value").value = version.value;
  say(`The value of revision ${version.revision} is in the editor; nothing is set yet.`, true);
}

// Draw the versions as a line if all of them are numbers.
function drawNumbers() {
  const values = versions.filter((each) => !each.deleted).slice(0, KEPT).map((each) => Number(shown(each)));
  const least = Math.min(...values), most = Math.max(...values);
  const numbers = values.length > 2 && values.every(Number.isFinite) && most > least;
  $("numbers").hidden = !numbers;
  if (!numbers) return;
  if (!$("numbers").firstChild) $("numbers").append(newLine("what it was, as a line"), make("small"));
  drawLine($("numbers").firstChild, values.reverse().map((n) => n - least), most - least, values.length);
  $("numbers").lastChild.textContent = `from ${least} to ${most}`;
}

$("save").onclick = () => write("PUT", $("value").value);
$("remove").onclick = remove;
$("close").onclick = close;
$("past").ontoggle = () => { if ($("past").open) readVersions(); };
$("value").onkeydown = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && state.mayWrite) $("save").click(); };
