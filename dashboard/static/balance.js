// How a balance goes on if nobody takes: what the rule says of one that was read. All times are in microseconds.

// since is when time begins to run for it.
const since = (b) => Math.max(b.at, b.pausedUntil || 0);

// border numbers the window that t falls into.
const border = (b, t) => Math.floor((t - b.windowEnds) / b.period);

// valueAt is the tokens left at t.
export function valueAt(b, t) {
  const from = since(b);
  if (t <= from) return b.value;
  if (b.windowed) return Math.min(b.capacity, b.value + b.rate * (border(b, t) - border(b, from)));
  return Math.min(b.capacity, b.value + (b.rate * (t - from)) / b.period);
}

// reaches is when it has n tokens, if it has not yet.
export function reaches(b, n) {
  if (b.value >= n) return b.at;
  if (n > b.capacity) return Infinity;
  const from = since(b);
  if (b.windowed) return b.windowEnds + (border(b, from) + Math.ceil((n - b.value) / b.rate)) * b.period;
  return from + ((n - b.value) / b.rate) * b.period;
}

// borders are the ends of windows between two instants, the first most of them.
export function borders(b, from, to, most = 400) {
  const list = [];
  if (!b.windowed) return list;
  for (let k = border(b, from) + 1; list.length < most; k++) {
    const t = b.windowEnds + k * b.period;
    if (t > to) break;
    list.push(t);
  }
  return list;
}

// course is the line from one instant to another: points between which it is straight.
export function course(b, from, to) {
  const points = [[from, valueAt(b, from)]];
  if (b.windowed) {
    for (const t of borders(b, Math.max(from, since(b)), Math.min(to, reaches(b, b.capacity)))) {
      if (t > from) points.push([t, points.at(-1)[1]], [t, valueAt(b, t)]);
    }
  } else {
    for (const t of [since(b), reaches(b, b.capacity)]) {
      if (t > from && t < to) points.push([t, valueAt(b, t)]);
    }
  }
  points.push([to, valueAt(b, to)]);
  return points;
}

// joined is the line that led from one reading to the next: by the rule until it was written last, and from there back from what was read.
export function joined(a, b) {
  const resumed = resume(a, b);
  if (resumed) return [[a.at, a.value], [resumed, a.value], [b.at, b.value]];
  const wrote = b.writtenAt > a.at && b.writtenAt <= b.at && b.writtenAt > (a.pausedUntil || 0);
  const sudden = wrote ? b.writtenAt : b.at;
  const points = course(a, a.at, sudden);
  if (wrote && b.value < b.capacity) {
    const grown = b.windowed ? b.rate * (border(b, b.at) - border(b, sudden)) : (b.rate * (b.at - sudden)) / b.period;
    points.push([sudden, b.pausedUntil ? b.value : b.value - grown]);
    if (b.windowed) for (const t of borders(b, sudden, b.at)) points.push([t, points.at(-1)[1]]);
  }
  points.push([b.at, b.value]);
  return points;
}

// resume is when a pause ended early between two readings, if it did: that leaves no time in the row, but what has flowed in since tells.
export function resume(a, b) {
  if (!(a.pausedUntil > b.at) || b.pausedUntil || b.writtenAt > a.at) return 0;
  if (b.windowed) return b.at;
  return Math.max(a.at, b.at - ((b.value - a.value) * b.period) / b.rate);
}

// pauses are the times in which it was paused, of readings in their order.
export function pauses(history) {
  const list = [];
  let before = null;
  for (const r of history) {
    const open = before?.pausedUntil ? list.at(-1) : null;
    if (!r.pausedUntil) {
      if (open) open[1] = Math.min(open[1], resume(before, r) || (r.writtenAt > before.at ? r.writtenAt : r.at));
    } else if (open && open[1] >= r.at) open[1] = r.pausedUntil;
    else list.push([before && r.writtenAt > before.at && r.writtenAt < r.at ? r.writtenAt : r.at, r.pausedUntil]);
    before = r;
  }
  return list;
}

// states are what a balance is called, the gravest first.
export function states(b, t) {
  const v = valueAt(b, t);
  const list = [];
  if (v < 0) list.push(["owing", "owes"]);
  else if (v < b.capacity / 10) list.push(["short", "short"]);
  else if (v >= b.capacity) list.push(["full", "full"]);
  if (b.pausedUntil > t) list.push(["paused", "paused"]);
  return list;
}
