// The hand-over: the user has to confirm it, as all sets wait while it lasts; then the page shows the result.

import { $, ask, millis } from "./draw.js";

let from = null, to = null;
const nameOf = (server) => server.name ?? server.server;

/** Offer the hand-over to a user who may do it, or tell why it is not possible now.
 *  For several pairs it is hidden: an operator uses `chp switch --mount`. */
export function offer({ servers, gateway }) {
  const pair = servers.filter((server) => server.role !== "replica");
  from = pair.find((server) => server.state === "active") ?? null;
  to = pair.find((server) => server.state === "passive") ?? null;
  const why = !from ? "no server is active" : !to ? "there is no passive server" : !from.in_sync ? "the passive server is not in sync" : "";
  $("hand").hidden = !(gateway.write && gateway.hand_over) || pair.length < 2 || gateway.mounts !== undefined;
  $("hand").disabled = Boolean(why);
  $("hand").title = why ? `not now: ${why}` : `${nameOf(to)} serves instead of ${nameOf(from)}`;
}

function consider() {
  $("sure-what").textContent = `${nameOf(to)} then serves instead of ${nameOf(from)}. Nothing is lost; sets wait until it does, for some milliseconds as a rule.`;
  $("sure-yes").dataset.from = from.server;
  say("");
  show(true);
  $("sure").showModal();
  $("sure-no").focus();
}

async function act() {
  show(false);
  say("Handing over …");
  try {
    const { active, seconds } = await ask(`/v1/pair/switch?from=${encodeURIComponent($("sure-yes").dataset.from)}`, { method: "POST" });
    say(`Done: ${to && to.server === active ? nameOf(to) : active.replace(/^tcp:\/\//, "")} serves, after ${millis(1000 * seconds)}.`, "good");
  } catch (error) {
    say(error.status ? error.message : "The gateway is silent: it may be done or not. See who serves before you ask again.", "bad");
  }
  $("sure-no").focus();
}

function show(asking) { $("sure-yes").hidden = !asking; $("sure-no").textContent = asking ? "Cancel" : "Close"; }
function say(text, kind = "") { $("sure-said").textContent = text; $("sure-said").className = kind; }

$("hand").onclick = consider;
$("sure-yes").onclick = act;
$("sure-no").onclick = () => $("sure").close();
