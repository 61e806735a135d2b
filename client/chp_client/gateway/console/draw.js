// The functions with which all views draw. Data of other programs is only set as text (textContent), never as markup.

export const $ = (id) => document.getElementById(id);

/** Return a new element with properties: `make("li", "text")` or `make("div.card", [children])`. */
export function make(what, inside = "", properties = {}) {
  const [tag, ...classes] = what.split("."), made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  if (Array.isArray(inside)) made.append(...inside.filter((each) => each !== null));
  else made.textContent = inside;
  for (const [name, value] of Object.entries(properties)) name in made ? (made[name] = value) : made.setAttribute(name, value);
  return made;
}

export function pill(text, kind = "", title = "") { return make(`span.pill${kind ? `.${kind}` : ""}`, text, { title }); }

/** Return a list of names, each with its value beside it. */
export function facts(rows) {
  return make("dl", rows.filter(Boolean).flatMap(([name, value, kind]) => [make("dt", name), make(`dd${kind ? `.${kind}` : ""}`, value)]));
}

export const count = (n) => n.toLocaleString("en");

export function size(bytes) {
  for (const unit of ["B", "kB", "MB"]) { if (bytes < 1000) return `${Math.round(bytes)} ${unit}`; bytes /= 1000; }
  return `${bytes.toFixed(1)} GB`;
}

export function millis(ms) {
  if (ms >= 10_000) return span(ms / 1000);
  return ms >= 1000 ? `${(ms / 1000).toFixed(1)} s` : `${ms >= 10 ? Math.round(ms) : Number(ms.toPrecision(2))} ms`;
}

export function span(seconds) {
  for (const [unit, most] of [["s", 120], ["min", 120], ["h", 48]]) {
    if (seconds < most) return `${Math.round(seconds)} ${unit}`;
    seconds /= unit === "h" ? 24 : 60;
  }
  return `${Math.round(seconds)} days`;
}

/** Return a moment as text: the time, and before it the date if the moment is not today. */
export function clock(wallMs) {
  const at = new Date(wallMs), time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

/** At most this many values of a line are kept. */
export const KEPT = 120;
export function keep(values, value) {
  values.push(value);
  if (values.length > KEPT) values.shift();
}

const SVG = $("spark").namespaceURI;
export function drawLine(svg, values, most = Math.max(...values, 0), places = KEPT) {
  if (!svg.firstChild) {
    svg.setAttribute("preserveAspectRatio", "none");
    svg.append(document.createElementNS(SVG, "polygon"), document.createElementNS(SVG, "polyline"));
  }
  svg.setAttribute("viewBox", `0 0 ${places - 1} 32`);
  const place = (n, i) => `${places - values.length + i},${(31 - (29 * n) / (most || 1)).toFixed(1)}`;
  const points = values.map(place).join(" ");
  svg.lastChild.setAttribute("points", points);
  svg.firstChild.setAttribute("points", values.length ? `${places - values.length},32 ${points} ${places - 1},32` : "");
}
export function newLine(label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  svg.setAttribute("class", "line");
  return svg;
}

/** Return how a text changed: the common beginning, the removed part, the added part, the common end. */
export function difference(before, after) {
  const least = Math.min(before.length, after.length);
  let head = 0, tail = 0;
  while (head < least && before[head] === after[head]) head++;
  while (tail < least - head && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail++;
  const cut = (text) => [text.slice(0, head), text.slice(head, text.length - tail), text.slice(text.length - tail)];
  return [cut(after)[0], cut(before)[1], cut(after)[1], cut(after)[2]];
}

// Around a difference at most NEAR equal characters are shown. Texts of at most SHORT characters are shown whole.
const NEAR = 60, SHORT = 40;
export function drawDifference(before, after) {
  if (Math.max(before.length, after.length) <= SHORT && before !== after) {
    return make("div.difference", [make("del", before), " → ", make("ins", after)]);
  }
  const [head, gone, come, tail] = difference(before, after);
  const short = (text, end) => (text.length <= NEAR ? text : end ? `…${text.slice(-NEAR)}` : `${text.slice(0, NEAR)}…`);
  const most = (text) => (text.length > 2000 ? `${text.slice(0, 2000)}…` : text);
  return make("div.difference", [
    short(head, true), gone ? make("del", most(gone)) : null, come ? make("ins", most(come)) : null, short(tail, false),
  ]);
}

/** Return the JSON of a path; throw an Error with the detail and the status if the gateway refuses the request. */
export async function ask(path, how) {
  const answer = await fetch(path, how);
  const told = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(told.detail ?? `${path}: ${answer.status}`), { status: answer.status });
  return told;
}
