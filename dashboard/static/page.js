// The page: what is looked at, what it takes to read that once a second, and the keyboard.

import { reaches, states, valueAt } from "./balance.js";
import { bars, mostDenied } from "./bars.js";
import { hatches, html, set, show } from "./draw.js";
import * as lists from "./lists.js";
import { draw, fitting, remember, spans } from "./picture.js";
import { clock, flow, keyName, rule, span, tokens, whole } from "./words.js";

const $ = (id) => document.getElementById(id);
const every = 1000, patience = 10000;
const still = matchMedia("(prefers-reduced-motion: reduce)");

let at = {};                  // what is looked at: a limit's name, a key's id
let page = { from: "", prefix: "" };
let limits = null, keys = null, balance = null, decisions = null;
let chosenSpan = 0;           // 0: whatever fits
let stopped = false, failures = 0, timer = 0, asked = null;
const histories = new Map();  // readings of keys that were looked at, the latest last
const offsets = [];           // between the database's clock and this page's

// now is the database's time. Answers are up to a second old: the freshest of late tells the time best.
const now = () => performance.now() * 1000 + (offsets.length ? Math.max(...offsets) : 0);

function heard(us) {
  offsets.push(us - performance.now() * 1000);
  if (offsets.length > 20) offsets.shift();
}

// ---- where we are

const limitHref = (name) => `#/limit/${encodeURIComponent(name)}`;
const keyHref = (id) => `${limitHref(at.limit)}/key/${encodeURIComponent(id)}`;

function whereabouts() {
  const m = /^#\/limit\/([^/]*)(?:\/key\/([^/]*))?$/.exec(location.hash);
  try {
    return m ? { limit: decodeURIComponent(m[1]), key: m[2] === undefined ? undefined : decodeURIComponent(m[2]) } : {};
  } catch {
    return {};
  }
}

function go() {
  if (location.hash.startsWith("#detail")) return;
  const before = at;
  at = whereabouts();
  if (at.limit !== before.limit) {
    keys = decisions = null;
    page = { from: "", prefix: "" };
    $("prefix").value = "";
    $("key-list").replaceChildren();
  }
  if (at.key !== before.key || at.limit !== before.limit) {
    balance = null;
    chosenSpan = 0;
    said = "";
    $("picture").replaceChildren();
    $("job-list").replaceChildren();
    $("tenant-list").replaceChildren();
  }
  $("main").dataset.view = at.key !== undefined ? "key" : at.limit !== undefined ? "keys" : "limits";
  show($("keys"), at.limit !== undefined);
  show($("detail"), at.key !== undefined);
  show($("skip"), at.key !== undefined);
  if (at.limit !== undefined) $("back").setAttribute("href", limitHref(at.limit));
  document.title = at.limit === undefined ? "Weir" : `${at.limit} - Weir`;
  paint();
  if (before.limit !== undefined || at.limit !== undefined) focusOn(at, before);
  ask();
}

// focusOn keeps the keyboard where the eye is.
function focusOn(is, was) {
  if (is.key !== undefined && was.key === undefined && !seen($("key-list"))) $("detail").focus();
  else if (is.key === undefined && was.key !== undefined) byId($("key-list"), was.key)?.focus();
  else if (is.limit === undefined && was.limit !== undefined) byId($("limit-list"), was.limit)?.focus();
  else if (is.limit !== undefined && was.limit === undefined && !seen($("limit-list"))) $("keys-title").closest("section").querySelector("a").focus();
}

const byId = (ul, id) => [...ul.children].find((li) => li.dataset.id === id)?.firstChild;
const seen = (e) => e.getClientRects().length > 0;

// ---- reading

// read asks for one thing. Keys are people's: they go in fields of the header, so that no log of requests has them.
async function read(what, query, keys, signal) {
  const headers = Object.fromEntries(Object.entries(keys).map(([k, v]) => [`Weir-${k}`, encodeURIComponent(v)]));
  const answer = await fetch(`api/${what}?${new URLSearchParams(query)}`, { headers, signal, cache: "no-store" });
  const body = await answer.json().catch(() => null);
  if (!answer.ok || !body) throw new Error(body?.error ?? `the server answered ${answer.status}`);
  return body;
}

// ask reads what is on the screen, and comes again in a second: not while nobody looks.
async function ask() {
  clearTimeout(timer);
  asked?.abort();
  if (stopped || document.hidden) return;
  const mine = (asked = new AbortController());
  const deadline = setTimeout(() => mine.abort(new Error("no answer within ten seconds")), patience);
  const { limit, key } = at;
  const reads = [];
  const one = (what, query, keys, then) => reads.push(read(what, query, keys, mine.signal).then((v) => mine === asked && then(v)));
  if (seen($("limits")) || !limits) one("limits", {}, {}, (v) => { limits = v; heard(v.at); });
  if (limit !== undefined && seen($("keys"))) {
    one("keys", { limit }, { From: page.from, Prefix: page.prefix }, (v) => { keys = v; heard(v.at); });
    if (limits?.counting !== false) one("decisions", { limit }, {}, (v) => { decisions = v; });
  }
  if (key !== undefined) {
    one("balance", { limit }, { Key: key }, (v) => {
      balance = v;
      if (v.balance) {
        heard(v.balance.at);
        remember(historyOf(limit, key), v.balance);
      }
    });
  }
  const ended = await Promise.allSettled(reads);
  clearTimeout(deadline);
  if (mine !== asked) return;
  const bad = ended.find((e) => e.status === "rejected");
  failures = bad ? failures + 1 : 0;
  const reason = bad ? String(bad.reason?.message ?? bad.reason) : "";
  set($("trouble"), bad ? `${offsets.length ? "What is shown is old. " : ""}${reason}${reason.endsWith(".") ? "" : "."} Trying again.` : "");
  show($("trouble"), Boolean(bad));
  paint();
  timer = setTimeout(ask, bad ? Math.min(10000, every * 2 ** failures) : every);
}

function historyOf(limit, key) {
  const name = JSON.stringify([limit, key]);
  let h = histories.get(name);
  if (!h) {
    h = [];
    histories.set(name, h);
    if (histories.size > 20) histories.delete(histories.keys().next().value);
  }
  return h;
}

// ---- painting

function paint() {
  document.body.classList.toggle("stopped", stopped);
  document.body.classList.toggle("lost", failures > 0);
  set($("live"), stopped ? "stopped" : failures ? "no answer" : offsets.length ? `live, ${clock(now())}` : "connecting");
  if (limits) paintLimits();
  if (at.limit !== undefined) paintKeys();
  if (at.key !== undefined) paintDetail();
}

function paintLimits() {
  const wanted = $("filter").value.trim().toLowerCase();
  const shown = limits.limits.filter((l) => l.name.toLowerCase().includes(wanted));
  lists.limits($("limit-list"), shown, at.limit, limitHref);
  show($("limits-none"), shown.length === 0);
  set($("limits-none"), limits.limits.length === 0 ? "No limit has been used yet: a key's row is written on its first use." : `No limit has “${wanted}” in its name.`);
}

function paintKeys() {
  const l = limits?.limits.find((l) => l.name === at.limit);
  set($("keys-title"), at.limit);
  set($("rule"), l ? rule(l) : "");
  show($("prefix-label"), !limits?.hidden);
  if (keys) {
    lists.keys($("key-list"), keys.keys, at.key, keyHref);
    show($("keys-none"), keys.keys.length === 0);
    set($("keys-none"), page.prefix ? `No key begins with “${page.prefix}”.` : "No key has a row: none was used, or all are full and were pruned.");
    show($("next"), Boolean(keys.next));
    show($("first"), page.from !== "");
  }
  show($("decisions"), Boolean(decisions));
  if (decisions && seen($("bars"))) {
    bars($("bars"), $("bars-text"), decisions);
    mostDenied($("denied-most"), $("denied-list"), decisions, keyHref);
  }
}

let said = "";

function paintDetail() {
  const b = balance?.balance;
  set($("detail-title"), b ? keyName(b) : keyName({ id: at.key, key: limits?.hidden ? "" : at.key }));
  show($("numbers"), Boolean(b && !b.problem));
  paintLine();
  if (!b || b.problem) {
    $("badges").replaceChildren(html("span", "none", b?.problem ? `The rows make no balance: ${b.problem}` : balance ? "This key has no row: it was never used, or is full and was pruned." : "Reading."));
    $("badges").dataset.of = "";
    $("picture").replaceChildren();
    return;
  }
  set($("capacity"), tokens(b.capacity));
  set($("flow"), flow(b));
  const ago = now() - b.writtenAt;
  set($("written"), ago < 1e6 ? "just now" : `${span(Math.floor(ago / 1e6) * 1e6)} ago`);
  paintJobs();
  frame(true);
}

function paintJobs() {
  const { jobs, jobsError, more } = balance;
  show($("ahead"), Boolean(jobs || jobsError));
  const list = jobs ?? [];
  show($("ahead-none"), list.length === 0 || Boolean(more));
  set($("ahead-none"), jobsError ? jobsError : list.length ? `The first ${list.length}; there are more.` : "No reserved job waits for this key.");
  const ol = $("job-list");
  const shown = list.slice(0, 24);
  while (ol.children.length > shown.length) ol.lastChild.remove();
  shown.forEach((j, i) => {
    const li = ol.children[i] ?? ol.appendChild(html("li"));
    if (!li.children.length) li.append(html("span", "kind"), html("span", "when"));
    set(li.firstChild, `${j.kind} ${j.id}`);
    set(li.lastChild, `${j.paused ? "after the pause, " : ""}${clock(j.until)}`);
  });
}

// paintLine lists the tenants in a fair line, and why they have their places.
function paintLine() {
  const { line, lineError, lineMore } = balance ?? {};
  const list = line ?? [];
  show($("turns"), Boolean(lineError || list.length));
  const shown = list.slice(0, 24);
  const notes = [...(list.length > shown.length ? [`The first ${shown.length} of ${list.length} tenants.`] : []),
    ...(lineMore ? ["Only the next few hundred jobs are counted."] : [])];
  set($("turns-none"), lineError ?? notes.join(" "));
  show($("turns-none"), $("turns-none").textContent !== "");
  const ol = $("tenant-list");
  while (ol.children.length > shown.length) ol.lastChild.remove();
  shown.forEach((t, i) => {
    const li = ol.children[i] ?? ol.appendChild(html("li"));
    if (!li.children.length) li.append(html("span", "kind"), html("span", "when"));
    set(li.firstChild, `${t.tenant}: ${t.jobs === 1 ? "1 job" : `${whole(t.jobs)} jobs`}, next ${t.nextKind} ${t.nextID}`);
    li.firstChild.title = li.firstChild.textContent;
    const had = t.charged > 0 ? `has had ${tokens(t.charged)} more` : "has had least";
    set(li.lastChild, t.passedOver ? `passed over: too few ${t.passedOver}` : `${had}${t.turn ? `, turn ${whole(t.turn)}` : ""}`);
  });
}

// frame is what moves between readings.
let drawn = 0, lastNumbers = 0;

function frame(data) {
  const b = balance?.balance;
  if (at.key === undefined || !b || b.problem) return;
  const t = Math.max(now(), b.at);
  const history = historyOf(at.limit, at.key);
  const jobs = balance.jobs ?? [];
  const range = chosenSpan || fitting(b, jobs);
  const perPixel = range / Math.max(200, $("picture").clientWidth);
  if (data || t - drawn > perPixel / 3) {
    drawn = t;
    draw($("picture"), { history, now: t, range, jobs, caption: $("picture-text") });
  }
  if (!data && performance.now() - lastNumbers < 100) return;
  lastNumbers = performance.now();
  const v = valueAt(b, t);
  set($("left-word"), v < 0 ? "Owed" : "Left");
  set($("left"), tokens(Math.abs(v), b.capacity));
  $("left").parentNode.classList.toggle("owing", v < 0);
  const full = reaches(b, b.capacity), even = reaches(b, 0);
  set($("until-word"), v < 0 ? "Repaid in" : "Full in");
  set($("until"), v < 0 ? span(even - t) : full > t ? span(Math.max(full, b.shards > 1 ? b.fullAt : 0) - t) : "is full");
  const list = states(b, t);
  if (b.pausedUntil > t) set($("until"), `${$("until").textContent} (paused)`);
  const words = [...list, ["kind", b.windowed ? "fixed window" : "token bucket"], ...(b.shards > 1 ? [["kind", `${b.shards} shards`]] : []), ...(at.limit.endsWith(" (shadow)") ? [["shadow", "never denies"]] : [])];
  const key = JSON.stringify([at, words]);
  if ($("badges").dataset.of !== key) {
    $("badges").dataset.of = key;
    $("badges").replaceChildren(...words.map(([cls, text]) => html("span", `badge ${cls}`, text)));
  }
  for (const s of $("spans").children) s.setAttribute("aria-pressed", String(Number(s.dataset.span) === range));
  speak(b, v, list);
}

// speak says what has changed in kind, not each number.
function speak(b, v, list) {
  const is = JSON.stringify([at, list.map(([cls]) => cls)]);
  if (is === said) return;
  said = is;
  set($("said"), `${at.limit}, ${keyName(b)}: ${v < 0 ? "owes" : "has"} ${tokens(Math.abs(v), b.capacity)} of ${tokens(b.capacity)}${list.map(([, w]) => `, ${w}`).join("")}.`);
}

let lastLists = 0;

function move() {
  if (!stopped && !document.hidden && !still.matches) {
    if (failures < 3) frame(false);
    if (performance.now() - lastLists > 250 && failures < 3) {
      lastLists = performance.now();
      for (const li of $("key-list").children) if (li.balance) lists.flowing(li, now());
    }
  }
  requestAnimationFrame(move);
}

// ---- keyboard and buttons

function rows() {
  const here = document.activeElement?.closest?.(".list");
  const there = [$("key-list"), $("limit-list")].filter(seen);
  const ul = here ?? (at.limit === undefined ? $("limit-list") : there[0] ?? $("limit-list"));
  return [...ul.querySelectorAll("a")];
}

function stepRow(by) {
  const all = rows();
  const i = all.indexOf(document.activeElement);
  const next = i < 0 ? all.findIndex((a) => a.getAttribute("aria-current")) : i + by;
  all[Math.max(0, Math.min(all.length - 1, next))]?.focus();
}

function back() {
  const is = whereabouts(); // which may have changed, and go not been called yet
  if (is.key !== undefined) location.hash = limitHref(is.limit);
  else if (is.limit !== undefined) location.hash = "#/";
}

function zoom(by) {
  const b = balance?.balance;
  if (!b) return;
  const is = spans.indexOf(chosenSpan || fitting(b, balance.jobs ?? []));
  chosenSpan = spans[Math.max(0, Math.min(spans.length - 1, is + by))];
  frame(true);
}

function stop() {
  stopped = !stopped;
  $("stop").setAttribute("aria-pressed", String(stopped));
  set($("stop"), stopped ? "Go on" : "Stop");
  paint();
  ask();
}

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || $("help").open) return;
  const typing = e.target.matches("input");
  if (typing && e.key === "Escape") {
    e.target.value = "";
    e.target.dispatchEvent(new Event("input"));
    e.target.blur();
    return;
  }
  if (typing && e.key === "ArrowDown") {
    e.preventDefault();
    e.target.blur();
    (e.target.id === "prefix" ? $("key-list") : $("limit-list")).querySelector("a")?.focus();
    return;
  }
  if (typing) return;
  const inList = Boolean(e.target.closest(".list"));
  const act = {
    j: () => stepRow(1), ArrowDown: () => stepRow(1), k: () => stepRow(-1), ArrowUp: () => stepRow(-1),
    ArrowRight: inList && (() => e.target.closest("a")?.click()), ArrowLeft: back, Escape: back,
    "/": () => (seen($("prefix")) && at.limit !== undefined ? $("prefix") : $("filter")).focus(),
    "+": () => zoom(-1), "=": () => zoom(-1), "-": () => zoom(1), p: stop, "?": () => $("help").showModal(),
  }[e.key];
  if (!act) return;
  if ((e.key === "ArrowDown" || e.key === "ArrowUp") && !inList && at.key !== undefined && !seen($("key-list"))) return; // the page scrolls
  e.preventDefault();
  act();
});

$("filter").addEventListener("input", () => limits && paintLimits());
let typed = 0;
$("prefix").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => { page = { from: "", prefix: $("prefix").value }; ask(); }, 200);
});
$("next").addEventListener("click", () => { page.from = keys.next; ask(); });
$("first").addEventListener("click", () => { page.from = ""; ask(); });
$("stop").addEventListener("click", stop);
$("ask").addEventListener("click", () => $("help").showModal());
$("skip").addEventListener("click", (e) => { e.preventDefault(); $("detail").focus(); });
for (const s of spans) {
  const button = html("button", "", span(s));
  button.type = "button";
  button.dataset.span = s;
  button.addEventListener("click", () => { chosenSpan = s; frame(true); });
  $("spans").append(button);
}
document.body.append(hatches());
new ResizeObserver(() => paint()).observe($("main"));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return ask();
  asked?.abort();
  asked = null;
});
addEventListener("hashchange", go);
go();
requestAnimationFrame(move);
