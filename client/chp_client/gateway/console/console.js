// The console: what a watch of everything tells, drawn once a frame; nothing is asked for twice, and nothing comes from elsewhere.
//
//   EventSource /v1/watch --> entries: Map key -> {value, number, at} --> names: sorted, filtered --> the rows that can be seen
//   /v1/pair, /v1/history, once a second --> servers, epochs
//
// Values of others are only ever text (textContent): never markup.

const ROW = 26, SPARE = 6, FLASH_MS = 1200;
const $ = (id) => document.getElementById(id);
const entries = new Map();
const rows = [];  // elements, used again for whatever can be seen
let names = [], folder = "/", chosen = null, dirty = true, treeDirty = true, mayWrite = false, changes = 0;
const rates = [], SECONDS = 120;  // changes in each of the last seconds
const latest = [], LATEST = 12;  // the changes that came last, the newest first
const versions = [], VERSIONS = 20;  // of the chosen key, seen since it was opened
let treeAt = 0;
let opened = null;  // the revision that the entry had when it was opened for editing

const make = (tag, text = "", className = "") => Object.assign(document.createElement(tag), { textContent: text, className });
const shown = (row) => row.value ?? `base64 ${row.base64}`;
const pathOf = (key) => `/v1/keys?key=${encodeURIComponent(key)}`;

// -- what comes

function take(list, number, flashes) {
  const at = flashes ? performance.now() : -FLASH_MS;
  for (const row of list) {
    if (row.deleted) treeDirty = dirty = entries.delete(row.key) || dirty;
    else {
      if (!entries.has(row.key)) treeDirty = dirty = true;
      entries.set(row.key, { value: shown(row), bytes: row.base64 !== undefined, number: row.revision ?? number, at });
    }
  }
  if (!flashes) return;
  changes += list.length;
  for (const row of list.slice(-LATEST)) latest.unshift(row);
  latest.length = Math.min(latest.length, LATEST);
  for (const row of list) if (row.key === chosen) versions.unshift({ number, text: row.deleted ? "deleted" : shown(row) });
  versions.length = Math.min(versions.length, VERSIONS);
}

function follow() {
  const source = new EventSource("/v1/watch");
  const on = (name, act) => source.addEventListener(name, (event) => { act(JSON.parse(event.data)); soon(); });
  on("snapshot", () => { entries.clear(); dirty = treeDirty = true; });
  on("entries", (data) => take(data.changes, "", false));
  on("change", (data) => { take(data.changes, data.number, true); noteNewer(); });
  source.onerror = () => {
    pill($("state"), "gateway is silent", "bad");
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 1000);
  };
}

// -- what is drawn, at most once a frame

let due = false;
function soon() {
  if (!due) { due = true; requestAnimationFrame(() => { due = false; draw(); }); }
}

function select() {
  const wanted = $("search").value.toLowerCase();
  names = [...entries.keys()].filter((key) => key.startsWith(folder === "/" ? "" : folder) && key.toLowerCase().includes(wanted)).sort();
  $("title").textContent = `${folder}  ${names.length.toLocaleString()} of ${entries.size.toLocaleString()} keys`;
  $("space").style.height = `${names.length * ROW}px`;
  dirty = false;
}

function draw() {
  if (dirty) select();
  const box = $("rows"), first = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
  const n = Math.min(names.length - first, Math.ceil(box.clientHeight / ROW) + 2 * SPARE);
  while (rows.length < n) rows.push(newRow(box));
  rows.forEach((row, i) => (i < n ? fill(row, names[first + i], first + i) : (row.hidden = true)));
  drawLatest();
  if (treeDirty) { treeDirty = false; setTimeout(drawTree, 0); }
}

function newRow(box) {
  const row = make("div", "", "row");
  row.setAttribute("role", "option");
  row.append(make("span"), make("span"), make("small"));
  row.onclick = () => choose(row.dataset.key);
  box.append(row);
  return row;
}

function fill(row, key, place) {
  const entry = entries.get(key), [name, value, number] = row.children;
  row.hidden = entry === undefined;
  if (!entry) return;
  row.style.top = `${place * ROW}px`;
  if (row.dataset.key !== key) { row.dataset.key = key; name.textContent = name.title = key; value.classList.remove("flash"); }
  const flash = performance.now() - entry.at < FLASH_MS;
  if (flash && row.dataset.number !== entry.number) { value.classList.remove("flash"); void value.offsetWidth; value.classList.add("flash"); }
  row.dataset.number = entry.number;
  const text = entry.value.slice(0, 300);
  if (value.textContent !== text) value.textContent = text;
  number.textContent = entry.number;
  row.setAttribute("aria-selected", key === chosen);
}

function drawLatest() {
  const line = (row) => {
    const made = make("li", row.deleted ? `${row.key} deleted` : `${row.key} = ${shown(row).slice(0, 80)}`);
    made.onclick = () => choose(row.key);
    return made;
  };
  $("latest").replaceChildren(...latest.map(line));
  $("seen").replaceChildren(...versions.map(({ number, text }) => make("li", `${number}  ${text.slice(0, 80)}`)));
}

function drawRate() {
  rates.push(changes);
  if (rates.length > SECONDS) rates.shift();
  const most = Math.max(...rates, 1), x = (i) => 120 - (rates.length - 1 - i) * (120 / SECONDS);
  $("line").setAttribute("points", rates.map((n, i) => `${x(i).toFixed(1)},${(29 - 28 * n / most).toFixed(1)}`).join(" "));
  $("rate").textContent = changes.toLocaleString();
  $("most").textContent = `at most ${most.toLocaleString()} in the last two minutes`;
  changes = 0;
}

function size(bytes) {
  for (const unit of ["B", "kB", "MB"]) { if (bytes < 1000) return `${Math.round(bytes)} ${unit}`; bytes /= 1000; }
  return `${bytes.toFixed(1)} GB`;
}

function drawTree() {
  const counts = new Map(), sizes = new Map();
  for (const [key, entry] of entries) {
    if (!key.startsWith(folder)) continue;
    const end = key.indexOf("/", folder.length);
    if (end < 0) continue;
    const path = key.slice(0, end + 1);
    counts.set(path, (counts.get(path) ?? 0) + 1);
    sizes.set(path, (sizes.get(path) ?? 0) + key.length + entry.value.length);
  }
  const parts = folder.split("/").slice(0, -1);
  const above = parts.map((_, i) => `${parts.slice(0, i + 1).join("/")}/`);
  const button = (path, label, count) => {
    const made = make("button", label);
    if (count) made.append(make("small", ` ${count.toLocaleString()}, ${size(sizes.get(path))}`));
    if (path === folder) made.setAttribute("aria-current", "true");
    made.onclick = () => { folder = path; $("rows").scrollTop = 0; dirty = treeDirty = true; soon(); };
    return made;
  };
  const found = [...counts].sort().slice(0, 500).map(([path, count]) => button(path, path.slice(folder.length), count));
  $("tree").replaceChildren(make("h2", "Folders"), ...above.map((path) => button(path, path)), ...found);
}

// -- one entry: read when it is opened, set only if it is still that

async function choose(key) {
  chosen = key;
  versions.length = 0;
  soon();
  const answer = await fetch(pathOf(key));
  if (chosen !== key) return;
  $("entry").hidden = false;
  $("key").textContent = key;
  say(answer.ok ? "" : (await answer.json()).detail);
  opened = answer.headers.get("ETag");
  const binary = entries.get(key)?.bytes;
  $("value").value = answer.ok ? (binary ? entries.get(key).value : await answer.text()) : "";
  $("value").readOnly = !mayWrite || Boolean(binary);
  $("actions").hidden = !mayWrite;
  $("save").disabled = Boolean(binary);
  $("revision").textContent = `revision ${opened ?? "none"}`;
  noteNewer();
}

function noteNewer() {
  const entry = entries.get(chosen), number = entry?.number ?? "";
  const newer = chosen !== null && opened && (!entry || `"${number}"` !== opened);
  $("newer").hidden = !newer;
  if (newer) $("newer").textContent = entry ? `now ${number}: ${entry.value.slice(0, 60)}` : "deleted meanwhile";
}

async function write(method, body) {
  const headers = opened ? { "If-Match": opened } : { "If-None-Match": "*" };
  const answer = await fetch(pathOf(chosen), { method, body, headers });
  const told = await answer.json();
  if (!answer.ok) return say(answer.status === 412 ? `not done: it was changed meanwhile; now ${told.now?.value ?? "it is not there"}` : told.detail);
  opened = method === "PUT" ? answer.headers.get("ETag") : null;
  $("revision").textContent = `revision ${opened ?? "none"}`;
  say(`done, ${told.durability}`, true);
  noteNewer();
}

function say(text, good = false) { $("said").textContent = text; $("said").className = good ? "good" : ""; }

// -- the pair

function pill(element, text, kind) { element.textContent = text; element.className = `pill ${kind}`; return element; }

async function look() {
  try {
    const { servers, gateway } = await (await fetch("/v1/pair")).json();
    mayWrite = gateway.write;
    pill($("state"), gateway.state + (gateway.state === "SYNCED" ? "" : ` ${gateway.staleness_s ?? "?"} s old`), gateway.state === "SYNCED" ? "good" : "warn");
    const kind = (server) => ({ active: "good", unreachable: "bad" })[server.state] ?? "";
    $("servers").replaceChildren(...servers.map((s) => pill(make("span"), `${s.server.replace(/^tcp:\/\//, "")} ${s.state}`, kind(s))));
    $("pair").replaceChildren(...servers.map((s) => make("div", s.problem ? `${s.server}: ${s.problem}` : `${s.name}: ${s.state}, epoch ${s.epoch}, ${s.keys} keys${s.in_sync ? ", in sync" : ""}`)));
    const { epochs } = await (await fetch("/v1/history")).json();
    const line = (e) => `${new Date(e.wall_ms).toLocaleTimeString()}  epoch ${e.epoch}: ${e.name}, ${e.because}`;
    $("epochs").replaceChildren(...epochs.slice(0, 50).map((e) => make("li", line(e))));
  } catch {
    pill($("state"), "gateway is silent", "bad");
  }
  drawRate();
  if (Date.now() - treeAt > 5000) { treeAt = Date.now(); treeDirty = true; soon(); }  // sizes change where keys do not
}

// -- keyboard: / filters, arrows and pages move, Enter opens, Escape leaves

function move(by) {
  const at = Math.min(names.length - 1, Math.max(0, names.indexOf(chosen) + by)), box = $("rows");
  if (!names.length) return;
  chosen = names[at];
  box.scrollTop = Math.min(at * ROW, Math.max(box.scrollTop, (at + 1) * ROW - box.clientHeight));
  soon();
}

$("rows").addEventListener("keydown", (event) => {
  const page = Math.floor($("rows").clientHeight / ROW);
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
  if (by !== undefined) move(by);
  else if (event.key === "Enter" && chosen !== null) choose(chosen);
  else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !["INPUT", "TEXTAREA"].includes(event.target.tagName)) { $("search").focus(); event.preventDefault(); }
  if (event.key === "Escape") $("rows").focus();
});
$("search").oninput = () => { dirty = true; $("rows").scrollTop = 0; soon(); };
$("rows").onscroll = soon;
addEventListener("resize", soon);
$("save").onclick = () => write("PUT", $("value").value);
$("remove").onclick = () => write("DELETE");

follow();
look();
setInterval(look, 1000);
