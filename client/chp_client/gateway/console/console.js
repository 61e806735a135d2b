// The console: a live view of what the gateway knows. It asks only the gateway, stores only the choice of colours, and
// has no library.
//
//   keys.js    folders and keys, by a watch     entry.js   one entry, its editor and its versions
//   views.js   topics, clients, the pair        hand.js    the hand-over       draw.js    functions of all views
//
// The views are parts of one page (#keys, #topics, #clients, #pair). A hidden page asks for nothing but the watch.

import { $, ask, make } from "./draw.js";
import { changed, close, may, open } from "./entry.js";
import { offer } from "./hand.js";
import { drawRate, entries, follow, meant, move, page, selected, soon } from "./keys.js";
import { drawClients, drawEpochs, drawPair, drawServers, drawTopics } from "./views.js";

const VIEWS = ["keys", "topics", "clients", "pair"], LOOK_MS = 1000;
let view = "keys", mayWrite = false;

// -- which view

function show() {
  const wanted = location.hash.slice(1);
  view = VIEWS.includes(wanted) ? wanted : "keys";
  for (const name of VIEWS) {
    $(`view-${name}`).hidden = name !== view;
    $(`to-${name}`).toggleAttribute("aria-current", name === view);
  }
  soon();
  look();
}

// -- questions once a second

function state(text, kind) { $("state").textContent = text; $("state").className = `pill ${kind}`; }

let looking = false;
async function look() {
  if (looking || document.hidden) return;
  looking = true;
  try {
    const [first, ...others] = ["/v1/pair", "/v1/history", "/v1/clients"].map(told), rest = Promise.all(others);
    // If the gateway is silent, `first` fails too, and `silent` is called for it.
    rest.catch(() => {});
    const pair = await first;
    if (pair instanceof Error) await ofOthers(pair);
    // The pair is drawn at once; the other answers may have to wait for a server that is gone.
    else ofPair(pair);
    const [history, clients] = await rest;
    if (clients instanceof Error) $("clients").replaceChildren(make("p.soft", clients.message));
    else drawClients(clients);
    may(mayWrite, clients instanceof Error ? null : new Map(clients.clients.map((each) => [each.client, each])));
    if (view === "pair" && !(history instanceof Error)) drawEpochs(history.epochs);
    if (view === "topics") await drawTopics().catch((error) => $("topics").replaceChildren(make("p.bad", error.message)));
  } catch { silent(); }
  looking = false;
}

// A path that this user may not see is asked for again after DENIED_MS.
const denied = new Map(), DENIED_MS = 30_000;
async function told(path) {
  if (performance.now() - (denied.get(path)?.at ?? -Infinity) < DENIED_MS) return denied.get(path).error;
  return ask(path).catch((error) => {
    if (error.status !== 403) throw error;
    denied.set(path, { error, at: performance.now() });
    return error;
  });
}

function ofPair(pair) {
  mayWrite = pair.gateway.write;
  freshness(pair.gateway);
  drawServers(pair.servers);
  drawPair(pair);
  offer(pair);
}

// A user who may not see the pair may still see keys.
async function ofOthers(why) {
  const ready = await ask("/ready").catch((error) => { if (error.status) return { problem: error.message }; throw error; });
  mayWrite = ready.write === true;
  if (ready.problem) state(ready.problem, "warn");
  else freshness({ state: "SYNCED" });
  $("pair").replaceChildren(make("section.card", [make("p.soft", why.message)]));
}

function freshness({ state: at, staleness_s: old }) {
  if (at === "SYNCED") state("live", "good");
  else state(`${at.toLowerCase()}${old === null ? "" : `, ${old.toFixed(0)} s old`}`, "warn");
  document.body.classList.remove("silent");
}

function silent() {
  state("the gateway is silent", "bad");
  document.body.classList.add("silent");
}

// -- light and dark: the setting of the system, or the choice of the user

const SCHEMES = { "": "◐", light: "☀", dark: "☾" };
function scheme(wanted) {
  const name = wanted in SCHEMES ? wanted : "";
  document.documentElement.dataset.scheme = name;
  $("scheme").textContent = SCHEMES[name];
  $("scheme").title = `colours: ${name || "as the system has them"} (t)`;
}
function nextScheme() {
  const names = Object.keys(SCHEMES), name = names[(names.indexOf(document.documentElement.dataset.scheme) + 1) % names.length];
  localStorage.setItem("scheme", name);
  scheme(name);
}

// -- the keyboard

const MOVES = { ArrowDown: () => 1, ArrowUp: () => -1, PageDown: page, PageUp: () => -page(), Home: () => -Infinity, End: () => Infinity };
const KEYS = {
  "/": () => { location.hash = "keys"; show(); $("search").focus(); $("search").select(); },
  "?": () => $("help").showModal(),
  t: nextScheme,
  e: () => $("entry").hidden || $("value").focus(),
  h: () => { if (!$("entry").hidden) $("past").open = !$("past").open; },
  ...Object.fromEntries(VIEWS.map((name, i) => [String(i + 1), () => { location.hash = name; }])),
};

function onRows(event) {
  const by = MOVES[event.key];
  if (by) move(by());
  else if (event.key === "Enter" && selected.key !== null) open(selected.key);
  else return;
  event.preventDefault();
}

function onKey(event) {
  const writing = ["INPUT", "TEXTAREA"].includes(event.target.tagName);
  if ($("sure").open) return;
  if (event.key === "Escape") return escape(event);
  if (writing || event.ctrlKey || event.metaKey || event.altKey || $("help").open || !(event.key in KEYS)) return;
  KEYS[event.key]();
  event.preventDefault();
}

function escape(event) {
  const from = event.target;
  if (from === document.body || from === $("rows")) close();
  // Otherwise the search box would empty itself, and the list would not follow.
  if (from === $("search")) event.preventDefault();
  $("rows").focus();
}

function onSearch(event) {
  if (event.key === "ArrowDown") $("rows").focus();
  else if (event.key === "Enter") {
    const key = meant(mayWrite);
    if (key !== null) open(key).then(() => entries.has(key) || $("value").focus());
    else $("rows").focus();
  } else return;
  event.preventDefault();
}

$("rows").addEventListener("keydown", onRows);
$("search").addEventListener("keydown", onSearch);
document.addEventListener("keydown", onKey);
$("scheme").onclick = nextScheme;
$("make").onclick = () => { $("search").focus(); $("search").select(); };
$("ask").onclick = () => $("help").showModal();
$("done").onclick = () => $("help").close();
addEventListener("hashchange", show);

scheme(localStorage.getItem("scheme") ?? "");
follow({ open, changed, silent });
show();
setInterval(() => { look(); drawRate(); }, LOOK_MS);
