// The picture of one balance: what it was, since somebody watches; what it is; and how it goes on if nobody takes.

import { borders, course, joined, pauses, reaches, valueAt } from "./balance.js";
import { el, legend, path, size } from "./draw.js";
import { span, tokens } from "./words.js";

const second = 1e6;
export const spans = [30, 120, 600, 3600, 6 * 3600, 86400, 7 * 86400].map((s) => s * second);
const past = 0.55; // of the width
const kept = 3000; // readings

// fitting is the span in which what is to come can be seen.
export function fitting(b, jobs) {
  const last = jobs.length ? jobs.at(-1).until - b.at : 0;
  const want = Math.max(reaches(b, b.capacity) - b.at, Math.min(b.period, 86400 * second) / 2, last, (b.pausedUntil || 0) - b.at);
  return spans.find((s) => s * (1 - past) >= want * 1.08) ?? spans.at(-1);
}

// remember adds a reading to those of a key, in the order of the clock.
export function remember(history, b) {
  const last = history.at(-1);
  if (last && b.at <= last.at) return;
  history.push(b);
  if (history.length > kept) history.splice(0, history.length - kept);
}

// steps are round distances between marks on an axis.
function step(range, most) {
  const raw = range / most;
  const ten = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((n) => n * ten).find((s) => s >= raw) ?? raw;
}

const timeSteps = [1, 2, 5, 10, 15, 20, 30, 40, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400].map((s) => s * second);

export function draw(svg, { history, now, range, jobs, caption }) {
  const { width, height, rem } = size(svg);
  const b = history.at(-1);
  if (!b || width < 50) return;
  const from = now - range * past;
  const to = now + range * (1 - past);
  const lane = jobs.length ? 2.6 * rem : 0;
  const left = 3.4 * rem, right = width - 0.6 * rem, top = 1.2 * rem, foot = height - 1.7 * rem, bottom = foot - lane;
  const x = (t) => left + ((t - from) / range) * (right - left);

  // the line
  let first = history.findIndex((r) => r.at > from);
  first = Math.max(0, first < 0 ? history.length - 1 : first - 1);
  let been = [];
  for (let i = first; i + 1 < history.length; i++) been.push(...joined(history[i], history[i + 1]));
  been.push(...course(b, b.at, Math.max(b.at, now)));
  been = clip(been, from);
  const coming = course(b, Math.max(now, b.at), to);

  let low = 0, high = b.capacity;
  for (const [, v] of been) { low = Math.min(low, v); high = Math.max(high, v); }
  if (high <= low) high = low + 1;
  const margin = (high - low) * 0.06;
  const y = (v) => bottom - ((v - (low < 0 ? low - margin : 0)) / (high + margin - (low < 0 ? low - margin : 0))) * (bottom - top);
  const place = (points) => points.map(([t, v]) => [x(t), y(v)]);

  const out = [];
  const under = (points, edge, cls) => {
    const p = place(points);
    if (p.length < 2) return;
    out.push(el("path", { d: `${path(p)}L${p.at(-1)[0].toFixed(1)} ${y(edge).toFixed(1)}L${p[0][0].toFixed(1)} ${y(edge).toFixed(1)}Z`, class: cls }));
  };

  // pauses first, behind everything
  for (const [f, t] of pauses(history.slice(first))) {
    const x1 = Math.max(left, x(f)), x2 = Math.min(right, x(t));
    if (x2 > x1) out.push(el("rect", { x: x1, y: top, width: x2 - x1, height: bottom - top, class: "halt" }));
  }
  // the area, in two: what is there, and what is owed
  under(been.map(([t, v]) => [t, Math.max(0, v)]), 0, "fill");
  if (low < 0) {
    under(cross(been).map(([t, v]) => [t, Math.min(0, v)]), 0, "debt");
    under(cross(coming).map(([t, v]) => [t, Math.min(0, v)]), 0, "debt");
  }

  // the axes
  const marks = step(high - low, Math.max(2, (bottom - top) / (2.6 * rem)));
  for (let v = Math.ceil(low / marks) * marks; v <= high + 1e-9; v += marks) {
    if (Math.abs(v) < marks / 1e6) v = 0;
    out.push(el("line", { x1: left, x2: right, y1: y(v), y2: y(v), class: v === 0 ? "zero" : "grid" }));
    if (Math.abs(y(v) - y(b.capacity)) > rem || v === b.capacity)
      out.push(el("text", { x: left - 0.4 * rem, y: y(v) + 0.28 * rem, "text-anchor": "end", class: v === b.capacity ? "strong" : "" }, tokens(v, marks)));
  }
  out.push(el("line", { x1: left, x2: right, y1: y(0), y2: y(0), class: "zero" }));
  out.push(el("line", { x1: left, x2: right, y1: y(b.capacity), y2: y(b.capacity), class: "top" }));
  out.push(el("text", { x: left - 0.4 * rem, y: y(b.capacity) + 0.28 * rem, "text-anchor": "end", class: "strong" }, tokens(b.capacity)));
  const tick = timeSteps.find((s) => (s / range) * (right - left) > 4.2 * rem) ?? timeSteps.at(-1);
  for (let d = Math.ceil((from - now) / tick) * tick; d <= to - now; d += tick) {
    const at = x(now + d);
    const edge = Math.min(right - at, at - left);
    if (d !== 0 && edge >= 0) {
      out.push(el("line", { x1: at, x2: at, y1: bottom, y2: bottom + 0.3 * rem, class: "grid" }));
      if (edge > 1.2 * rem) out.push(el("text", { x: at, y: height - 0.45 * rem, "text-anchor": "middle" }, (d > 0 ? "+" : "−") + span(Math.abs(d))));
    }
  }

  for (const t of borders(b, from, to, (right - left) / 6)) {
    if (x(t) > left) out.push(el("line", { x1: x(t), x2: x(t), y1: top, y2: bottom, class: "border" }));
  }
  if (x(history[0].at) > left + 1) {
    const at = x(history[0].at);
    out.push(el("line", { x1: at, x2: at, y1: top, y2: bottom, class: "grid" }));
    if (at - left > 7 * rem) out.push(el("text", { x: at - 0.4 * rem, y: bottom - 0.5 * rem, "text-anchor": "end" }, "not watched yet"));
  }
  out.push(el("path", { d: path(place(coming)), class: "coming" }));
  out.push(el("path", { d: path(place(been)), class: "line", id: "line" }));

  // now
  const v = valueAt(b, now);
  out.push(el("line", { x1: x(now), x2: x(now), y1: top, y2: foot, class: "now" }));
  out.push(el("text", { x: x(now), y: height - 0.45 * rem, "text-anchor": "middle", class: "strong" }, "now"));
  out.push(el("circle", { cx: x(now), cy: y(v), r: 0.38 * rem, class: "here" }));
  const full = reaches(b, b.capacity);
  if (full > now && full < to) {
    const at = x(full), fits = right - at > 5 * rem;
    out.push(el("circle", { cx: at, cy: y(b.capacity), r: 0.22 * rem, class: "here" }));
    out.push(el("text", { x: at + (fits ? 0.4 : -0.4) * rem, y: y(b.capacity) - 0.4 * rem, "text-anchor": fits ? "start" : "end" }, `full in ${span(full - now)}`));
  }
  const even = reaches(b, 0);
  if (v < 0 && even > now && even < to) {
    const at = x(even);
    out.push(el("text", { x: Math.min(at + 0.4 * rem, right - 6 * rem), y: y(0) + 1.1 * rem }, `repaid in ${span(even - now)}`));
  }
  if (b.pausedUntil > now) {
    const at = Math.min(x(b.pausedUntil), right);
    out.push(el("text", { x: at - 0.4 * rem, y: top + 1.1 * rem, "text-anchor": "end", class: "strong" }, `paused for ${span(b.pausedUntil - now)}`));
  }
  if (lane) out.push(...line(jobs, now, x, left, right, bottom + 0.5 * rem, foot - 0.1 * rem, rem));
  svg.replaceChildren(...out);

  legend(caption, [
    ["line", "line", "left"], ["coming", "line", "if nobody takes"], ["top", "line", "capacity"],
    ...(low < 0 ? [["debt", "box", "owed"]] : []),
    ...(history.some((r) => r.pausedUntil) ? [["halt", "box", "paused"]] : []),
    ...(b.windowed ? [["border", "line", "a window ends"]] : []),
    ...(jobs.length ? [["job", "box", "reserved jobs, by their start"]] : []),
  ]);
}

// line is the jobs on their time line: those that start together stand on each other.
function line(jobs, now, x, left, right, top, foot, rem) {
  const out = [el("line", { x1: left, x2: right, y1: foot, y2: foot, class: "lane" })];
  out.push(el("text", { x: left - 0.4 * rem, y: foot - 0.4 * rem, "text-anchor": "end" }, "jobs"));
  const wide = Math.max(5, 0.4 * rem), piles = new Map();
  for (const j of jobs) {
    const at = Math.floor((x(Math.max(j.until, now)) - x(now)) / wide);
    if (x(now) + at * wide + wide > right) continue;
    const pile = piles.get(at) ?? [0, false];
    piles.set(at, [pile[0] + 1, pile[1] || j.paused]);
  }
  const most = Math.max(4, ...[...piles.values()].map(([n]) => n));
  for (const [at, [n, paused]] of piles) {
    const high = Math.max(4, (n / most) * (foot - top));
    out.push(el("rect", { x: x(now) + at * wide, y: foot - high, width: wide - 1, height: high, class: paused ? "job paused" : "job" }));
  }
  const beyond = jobs.length - [...piles.values()].reduce((sum, [n]) => sum + n, 0);
  if (beyond > 0) out.push(el("text", { x: right, y: top + 0.2 * rem, "text-anchor": "end" }, `${beyond} later →`));
  return out;
}

// clip drops what was before an instant.
function clip(points, from) {
  const i = points.findIndex(([t]) => t >= from);
  if (i <= 0) return points;
  const [t0, v0] = points[i - 1], [t1, v1] = points[i];
  return [[from, t1 === t0 ? v1 : v0 + ((v1 - v0) * (from - t0)) / (t1 - t0)], ...points.slice(i)];
}

// cross adds the points at which a line meets zero.
function cross(points) {
  const out = [];
  points.forEach(([t, v], i) => {
    const before = points[i - 1];
    if (before && before[1] * v < 0) out.push([before[0] + ((t - before[0]) * before[1]) / (before[1] - v), 0]);
    out.push([t, v]);
  });
  return out;
}
