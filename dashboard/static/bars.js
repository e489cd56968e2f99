// The decisions of the last five minutes, as bars.

import { el, legend, set, size } from "./draw.js";
import { whole } from "./words.js";

const kinds = [["granted", "granted", "granted"], ["ahead", "ahead", "reserved ahead"], ["denied", "denied-bar", "denied"], ["failed", "failed-bar", "failed"]];

export function bars(svg, caption, d) {
  const { width, height, rem } = size(svg);
  if (width < 20) return;
  const seconds = d.seconds.length;
  const each = [1, 2, 5, 10, 15, 30].find((n) => (width - 3 * rem) / (seconds / n) >= 4) ?? 60;
  const groups = [];
  for (let i = 0; i < seconds; i += each) {
    groups.push(kinds.map(([of]) => d.seconds.slice(i, i + each).reduce((sum, s) => sum + s[of], 0)));
  }
  const most = Math.max(1, ...groups.map((g) => g.reduce((a, b) => a + b, 0)));
  const left = 3 * rem, foot = height - 1.2 * rem, top = 0.5 * rem, wide = (width - left) / groups.length;
  const out = [
    el("line", { x1: left, x2: width, y1: foot, y2: foot, class: "zero" }),
    el("text", { x: left - 0.4 * rem, y: top + 0.5 * rem, "text-anchor": "end" }, whole(most)),
    el("text", { x: left - 0.4 * rem, y: foot, "text-anchor": "end" }, "0"),
    el("text", { x: left, y: height - 0.15 * rem }, "−5 min"),
    el("text", { x: width, y: height - 0.15 * rem, "text-anchor": "end" }, `now, each bar ${each} s`),
  ];
  groups.forEach((g, i) => {
    let y = foot;
    g.forEach((n, k) => {
      const high = (n / most) * (foot - top);
      if (n > 0) out.push(el("rect", { x: left + i * wide + 0.5, y: y - high, width: Math.max(1, wide - 1), height: high, class: kinds[k][1] }));
      y -= high;
    });
  });
  svg.replaceChildren(...out);
  const sum = kinds.map(([of]) => d.seconds.reduce((s, t) => s + t[of], 0));
  legend(caption, kinds.map(([, cls, words], k) => [cls, "box", `${whole(sum[k])} ${words}`]).filter((_, k) => k === 0 || k === 2 || sum[k] > 0));
}

// mostDenied lists the keys that were denied most.
export function mostDenied(box, list, d, href) {
  box.hidden = d.most.length === 0;
  while (list.children.length > d.most.length) list.lastChild.remove();
  d.most.forEach((k, i) => {
    let li = list.children[i];
    if (!li) {
      li = document.createElement("li");
      li.append(document.createElement("a"), document.createElement("span"));
      list.append(li);
    }
    set(li.firstChild, k.id === "" ? "all callers" : k.key);
    if (li.firstChild.getAttribute("href") !== href(k.id)) li.firstChild.setAttribute("href", href(k.id));
    set(li.lastChild, whole(k.times));
  });
}
