// The lists of limits and of keys.

import { states, valueAt } from "./balance.js";
import { el, html, set } from "./draw.js";
import { keyName, rule, tokens, whole } from "./words.js";

// list makes what is on the screen that of the items, and leaves alone what stays, or the focus would be lost.
function list(ul, items, id, href, fill) {
  const there = new Map([...ul.children].map((li) => [li.dataset.id, li]));
  items.forEach((item, i) => {
    const name = id(item);
    let li = there.get(name);
    there.delete(name);
    if (!li) {
      li = html("li");
      li.dataset.id = name;
      const a = html("a");
      const bar = el("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
      bar.append(el("rect", { class: "in", height: 10 }), el("rect", { class: "owe", height: 10 }));
      a.append(html("span", "name"), html("span", "value"), bar, html("span", "words"));
      a.setAttribute("href", href(item));
      li.append(a);
    }
    if (ul.children[i] !== li) ul.insertBefore(li, ul.children[i] ?? null);
    fill(li, item);
  });
  for (const li of there.values()) li.remove();
}

// fullness draws a share of the capacity; what is owed grows from the right.
function fullness(li, share) {
  const [into, owe] = li.querySelectorAll("rect");
  const wide = Math.max(0, Math.min(1, share)) * 100, debt = Math.max(0, Math.min(1, -share)) * 100;
  into.setAttribute("width", wide.toFixed(2));
  owe.setAttribute("width", debt.toFixed(2));
  owe.setAttribute("x", (100 - debt).toFixed(2));
}

// words writes words and badges: [class, text]; without a class it is plain text.
function words(li, items) {
  const target = li.querySelector(".words");
  const key = JSON.stringify(items);
  if (target.dataset.of === key) return;
  target.dataset.of = key;
  target.replaceChildren(...items.map(([cls, text]) => html("span", cls && `badge ${cls}`, text)));
}

function current(li, yes) {
  const a = li.firstChild;
  if (yes) a.setAttribute("aria-current", "true");
  else a.removeAttribute("aria-current");
}

export function limits(ul, all, chosen, href) {
  list(ul, all, (l) => l.name, (l) => href(l.name), (li, l) => {
    const [name, value] = li.firstChild.children;
    const keys = `${l.estimated ? "about " : ""}${whole(l.keys)} ${l.keys === 1 ? "key" : "keys"}`;
    set(name, l.name);
    name.title = l.name;
    set(value, l.capacity > 0 ? `${Math.round(l.tightest * 100).toLocaleString()} %`.replace("-", "−") : "");
    value.title = "left of the key that has least";
    fullness(li, l.tightest);
    const r = l.recent;
    words(li, [["", rule(l)], ["", keys],
      ...(l.inDebt ? [["owing", `${whole(l.inDebt)} owing`]] : []),
      ...(l.short > l.inDebt ? [["short", `${whole(l.short - l.inDebt)} short`]] : []),
      ...(l.paused ? [["paused", `${whole(l.paused)} paused`]] : []),
      ...(r && r.denied ? [["denied", `${whole(r.denied)} denied in a minute`]] : []),
      ...(r && r.failed ? [["denied", `${whole(r.failed)} failed in a minute`]] : []),
      ...(l.problems ? [["short", `${whole(l.problems)} broken`]] : []),
    ]);
    current(li, l.name === chosen);
  });
}

export function keys(ul, all, chosen, href) {
  list(ul, all, (k) => k.id, (k) => href(k.id), (li, k) => {
    const [name] = li.firstChild.children;
    set(name, keyName(k));
    name.title = keyName(k);
    li.balance = k;
    current(li, k.id === chosen);
    flowing(li, k.at);
  });
}

// flowing moves a key on to the time now.
export function flowing(li, now) {
  const k = li.balance;
  const value = li.firstChild.children[1];
  if (k.problem) {
    set(value, "?");
    words(li, [["short", "broken"], ["", k.problem]]);
    return;
  }
  const v = valueAt(k, Math.max(now, k.at));
  set(value, `${tokens(v, k.capacity)} of ${tokens(k.capacity)}`);
  fullness(li, k.capacity > 0 ? v / k.capacity : Math.min(0, v));
  words(li, states(k, Math.max(now, k.at)).filter(([cls]) => cls !== "full"));
}
