// SVG by hand.

const space = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, text) {
  const e = document.createElementNS(space, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
}

export function html(name, cls = "", text) {
  const e = document.createElement(name);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  return e;
}

// set changes what there is only if it is another: assistive technology hears of each change.
export function set(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

export function show(e, yes) {
  if (e.hidden === yes) e.hidden = !yes;
}

// size is that of an SVG on the screen, which is its system of coordinates as well.
export function size(svg) {
  const { width, height } = svg.getBoundingClientRect();
  const box = `0 0 ${width} ${height}`;
  if (svg.getAttribute("viewBox") !== box) svg.setAttribute("viewBox", box);
  return { width, height, rem: parseFloat(getComputedStyle(document.documentElement).fontSize) };
}

// path joins points on the screen.
export const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// hatches defines the patterns that all pictures share.
export function hatches() {
  const svg = el("svg", { class: "patterns", "aria-hidden": "true" });
  const defs = el("defs");
  for (const [name, turn] of [["owed", 45], ["paused", -45], ["denied", 45]]) {
    const look = name === "denied" ? "owed" : name;
    const step = name === "denied" ? 5 : 8;
    const p = el("pattern", { id: `hatch-${name}`, width: step, height: step, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})` });
    p.append(el("rect", { width: step, height: step, class: `h-${look}-ground` }), el("line", { y2: step, class: `h-${look}`, "stroke-width": name === "denied" ? 5 : 2.5 }));
    defs.append(p);
  }
  svg.append(defs);
  return svg;
}

// legend explains what a picture shows: [class of the swatch, its kind, words].
export function legend(target, items) {
  const key = JSON.stringify(items);
  if (target.dataset.of === key) return;
  target.dataset.of = key;
  target.replaceChildren(...items.map(([cls, kind, words]) => {
    const one = html("span");
    const s = el("svg", { class: "swatch", viewBox: "0 0 22 16", "aria-hidden": "true" });
    s.append(kind === "line" ? el("line", { x1: 1, y1: 8, x2: 21, y2: 8, class: cls }) : el("rect", { width: 22, height: 16, class: cls }));
    one.append(s, words);
    return one;
  }));
}
