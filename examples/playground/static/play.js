// The panel: it fires calls, and leads the dashboard beside it to where they go.
const $ = (id) => document.getElementById(id);
const sums = { granted: 0, ahead: 0, denied: 0 };
let kinds = [], kind = null;

function look() {
  const key = kind.key ? encodeURIComponent($("key").value.trim()) : "";
  const hash = `#/limit/${encodeURIComponent(kind.name)}/key/${key}`;
  const w = $("picture").contentWindow;
  if (w.location.hash !== hash) w.location.hash = hash;
}

async function post(verb, n = 0) {
  const limit = kind.name;
  const answer = await fetch("fire", { method: "POST", body: JSON.stringify({ limit, key: $("key").value, verb, n }) });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

const seconds = (s) => (s < 10 ? `${s.toFixed(1)} s` : `${Math.round(s)} s`);

function log(text, denied) {
  const li = document.createElement("li");
  const time = document.createElement("time");
  time.textContent = `${new Date().toLocaleTimeString()} `;
  li.append(time, text);
  if (denied) li.className = "denied";
  $("log").prepend(li);
  while ($("log").children.length > 40) $("log").lastChild.remove();
}

function told(r) {
  for (const of of ["granted", "ahead", "denied"]) {
    sums[of] += r[of];
    $(of).textContent = sums[of].toLocaleString();
  }
}

function say(r, n) {
  const parts = [];
  if (r.granted) parts.push(`${r.granted} granted`);
  if (r.ahead) parts.push(`${r.ahead} reserved, the last runs in ${seconds(r.runsIn)}`);
  if (r.denied) parts.push(`${r.denied} denied, retry after ${seconds(r.retryIn)}`);
  if (r.shadow) parts.push(`the shadow would have denied ${r.shadow}`);
  log(`${n === 1 ? "" : `${n} calls: `}${parts.join("; ")}`, r.denied > 0);
}

async function fire(n) {
  try {
    const r = await post("fire", n);
    told(r);
    return r;
  } catch (e) {
    log(e.message, true);
  }
}

function choose(k) {
  kind = k;
  $("words").textContent = k.words;
  $("key-label").hidden = !k.key;
  look();
}

for (const b of document.querySelectorAll("button[data-n]")) {
  b.addEventListener("click", async () => {
    look();
    const n = Number(b.dataset.n), r = await fire(n);
    if (r) say(r, n);
  });
}
for (const b of document.querySelectorAll("button[data-verb]")) {
  b.addEventListener("click", () => post(b.dataset.verb).then(() => log(`${b.textContent}: done`), (e) => log(e.message, true)));
}
$("pace").addEventListener("input", () => { $("pace-out").textContent = $("pace").value; });
$("key").addEventListener("change", look);

// What is held is fired four times a second, and not while the last is under way. What became of it is said once a second.
let owed = 0, busy = false, held = null, heldCalls = 0, ticks = 0;
setInterval(async () => {
  if (++ticks % 4 === 0 && heldCalls) {
    say(held, heldCalls);
    held = null;
    heldCalls = 0;
  }
  const pace = Number($("pace").value);
  owed = Math.min(owed + pace / 4, 60);
  const n = Math.floor(owed);
  if (busy || n < 1 || pace === 0) return;
  owed -= n;
  busy = true;
  const r = await fire(n);
  busy = false;
  if (!r) return;
  heldCalls += n;
  held = held
    ? { granted: held.granted + r.granted, ahead: held.ahead + r.ahead, denied: held.denied + r.denied, shadow: held.shadow + r.shadow, retryIn: r.retryIn || held.retryIn, runsIn: Math.max(r.runsIn, held.runsIn) }
    : r;
}, 250);

kinds = await (await fetch("kinds")).json();
for (const k of kinds) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  input.type = "radio";
  input.name = "kind";
  input.checked = k === kinds[0];
  input.addEventListener("change", () => choose(k));
  label.append(input, k.name);
  $("kinds").append(label);
}
$("picture").addEventListener("load", look);
choose(kinds[0]);
