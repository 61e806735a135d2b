// Folders and keys: the entries that a watch brings, drawn at most once a frame.
//
//   EventSource /v1/watch --> entries: Map key -> {value, number, at} --> names: sorted, filtered --> the rows that can be seen

import { $, clock, count, drawLine, keep, make, size } from "./draw.js";

const ROW = 28, SPARE = 6, FLASH_MS = 1200, LATEST = 14, FOLDERS = 500;
// With more than MANY keys, the list is sorted at most every SELECT_MS. Folders are drawn at most every TREE_MS, and at
// least every SIZES_MS.
const MANY = 20_000, SELECT_MS = 200, TREE_MS = 500, SIZES_MS = 5000;
export const entries = new Map();
export const selected = { key: null };
// `rows` has the elements that are used again and again for the keys in view.
const rows = [], rates = [], latest = [];
const hooks = { open: () => {}, changed: () => {}, silent: () => {} };
let names = [], folder = "/", dirty = true, treeDirty = true, treeAt = 0, selectedAt = 0, changes = 0, due = false;

export const shown = (row) => row.value ?? `base64 ${row.base64}`;

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
  const now = Date.now();
  for (const row of list.slice(-LATEST)) latest.unshift({ row, now });
  latest.length = Math.min(latest.length, LATEST);
  for (const row of list) hooks.changed(row, number);
}

// A user who may not read everything opens /?prefix=/part/ with a part that the user may read.
const PREFIX = new URLSearchParams(location.search).get("prefix") ?? "";
// The reason why the watch is refused; "" if it is not.
let refused = "";

export function follow(given) {
  Object.assign(hooks, given);
  const source = new EventSource(`/v1/watch?prefix=${encodeURIComponent(PREFIX)}`);
  const on = (name, act) => source.addEventListener(name, (event) => { act(JSON.parse(event.data)); soon(); });
  on("snapshot", () => { entries.clear(); refused = ""; dirty = treeDirty = true; });
  on("entries", (data) => take(data.changes, "", false));
  on("change", (data) => take(data.changes, data.number, true));
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) whyClosed().finally(() => setTimeout(follow, refused ? 10_000 : 1000, {}));
    else hooks.silent();
  };
}

// Find out why the watch was closed, as an EventSource does not tell it.
async function whyClosed() {
  const answer = await fetch(`/v1/keys?limit=1&prefix=${encodeURIComponent(PREFIX)}`).catch(() => null);
  refused = answer?.status === 403 ? `${(await answer.json()).detail}. The page of a part is /?prefix=/part/` : "";
  if (!refused) hooks.silent();
  dirty = true;
  soon();
}

// -- what is drawn, at most once a frame

export function soon() {
  if (!due) { due = true; requestAnimationFrame(() => { due = false; draw(); }); }
}

function select(now) {
  if (entries.size > MANY && now - selectedAt < SELECT_MS) return void setTimeout(soon, SELECT_MS);
  const wanted = $("search").value.toLowerCase(), inside = folder === "/" ? "" : folder;
  names = [...entries.keys()].filter((key) => key.startsWith(inside) && key.toLowerCase().includes(wanted)).sort();
  $("title").textContent = `${folder === "/" ? "All keys" : folder}`;
  $("count").textContent = `${count(names.length)} of ${count(entries.size)} keys`;
  $("space").style.height = `${names.length * ROW}px`;
  $("nothing").hidden = names.length > 0;
  if (!names.length) $("nothing").textContent = nothing();
  dirty = false;
  selectedAt = now;
}

function nothing() {
  const wanted = $("search").value;
  if (refused) return refused;
  if (!entries.size) return "There are no keys yet.";
  if (!wanted) return "No key begins so.";
  return `No key contains “${wanted}”.${$("make").hidden || !wanted.startsWith("/") ? "" : " Enter makes one of this name."}`;
}

function draw() {
  const now = performance.now();
  if (dirty) select(now);
  const box = $("rows"), first = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
  const n = Math.min(names.length - first, Math.ceil(box.clientHeight / ROW) + 2 * SPARE);
  while (rows.length < n) rows.push(newRow(box));
  rows.forEach((row, i) => (i < n ? fill(row, names[first + i], first + i, now) : (row.hidden = true)));
  drawLatest();
  if (treeDirty && now - treeAt > TREE_MS) { treeDirty = false; treeAt = now; setTimeout(drawTree, 0); }
  else if (treeDirty) setTimeout(soon, TREE_MS);
}

function newRow(box) {
  const row = make("div.row", [make("span"), make("span"), make("small")], { role: "option" });
  row.onclick = () => hooks.open(row.dataset.key);
  box.append(row);
  return row;
}

function fill(row, key, place, now) {
  const entry = entries.get(key), [name, value, number] = row.children;
  row.hidden = entry === undefined;
  if (!entry) return;
  row.style.top = `${place * ROW}px`;
  if (row.dataset.key !== key) { row.dataset.key = key; name.textContent = name.title = key; value.classList.remove("flash"); }
  const flash = now - entry.at < FLASH_MS;
  if (flash && row.dataset.number !== entry.number) { value.classList.remove("flash"); void value.offsetWidth; value.classList.add("flash"); }
  row.dataset.number = entry.number;
  const text = entry.value.slice(0, 300);
  if (value.textContent !== text) value.textContent = text;
  if (number.textContent !== entry.number) number.textContent = entry.number;
  row.setAttribute("aria-selected", key === selected.key);
}

function drawLatest() {
  // The list is not drawn while it is hidden.
  if (!$("latest").offsetParent) return;
  $("latest").replaceChildren(...latest.map(({ row, now }) => {
    const value = row.deleted ? make("em", row.expired ? "expired" : "deleted") : make("span", shown(row).slice(0, 80));
    return make("li", [make("time", clock(now)), make("b", row.key, { title: row.key }), value], { onclick: () => hooks.open(row.key) });
  }));
}

/** Draw the rate of changes; called once a second. */
export function drawRate() {
  keep(rates, changes);
  drawLine($("spark"), rates);
  $("rate").textContent = count(changes);
  $("most").textContent = `at most ${count(Math.max(...rates))}`;
  changes = 0;
  // The sizes of folders can change while the set of keys stays the same.
  if (performance.now() - treeAt > SIZES_MS) { treeDirty = true; soon(); }
}

// -- folders: the path to the present folder, and the folders in it

function weigh() {
  const found = new Map();
  for (const [key, entry] of entries) {
    if (!key.startsWith(folder)) continue;
    const end = key.indexOf("/", folder.length);
    if (end < 0) continue;
    const path = key.slice(0, end + 1), sum = found.get(path) ?? { keys: 0, bytes: 0 };
    sum.keys++;
    sum.bytes += key.length + entry.value.length;
    found.set(path, sum);
  }
  return [...found].sort(([a], [b]) => (a < b ? -1 : 1));
}

function drawTree() {
  const parts = folder.split("/").slice(0, -1), depth = parts.length;
  const above = parts.map((part, i) => folderButton(`${parts.slice(0, i + 1).join("/")}/`, part ? `${part}/` : "All keys", null, i));
  const found = weigh(), more = found.length - FOLDERS;
  const inside = found.slice(0, FOLDERS).map(([path, sum]) => folderButton(path, path.slice(folder.length), sum, depth));
  $("folders").replaceChildren(...above, ...inside, ...(more > 0 ? [make("small", `and ${count(more)} more`)] : []));
}

function folderButton(path, label, sum, depth) {
  const made = make("button", [make("span", label)], { title: path });
  if (sum) made.append(make("small", `${count(sum.keys)} · ${size(sum.bytes)}`, { title: `${count(sum.keys)} keys, ${size(sum.bytes)}` }));
  if (path === folder) made.setAttribute("aria-current", "true");
  made.style.paddingLeft = `${8 + 12 * depth}px`;
  made.onclick = () => { folder = path; $("rows").scrollTop = 0; treeAt = 0; dirty = treeDirty = true; soon(); };
  return made;
}

// -- moving about

export function move(by) {
  if (!names.length) return;
  const at = Math.min(names.length - 1, Math.max(0, names.indexOf(selected.key) + by)), box = $("rows");
  selected.key = names[at];
  box.scrollTop = Math.min(at * ROW, Math.max(box.scrollTop, (at + 1) * ROW - box.clientHeight));
  soon();
}

export const page = () => Math.max(1, Math.floor($("rows").clientHeight / ROW) - 1);

/** Return the key that Enter in the filter opens: an exact match, a key to be made, or the only match; else null. */
export function meant(mayWrite) {
  const wanted = $("search").value;
  if (entries.has(wanted) || (mayWrite && !names.length && wanted.startsWith("/"))) return wanted;
  return names.length === 1 ? names[0] : null;
}

$("search").oninput = () => { dirty = true; selectedAt = 0; $("rows").scrollTop = 0; soon(); };
$("rows").onscroll = soon;
addEventListener("resize", soon);
