// Numbers and times in words.

const second = 1e6; // all times are in microseconds

// tokens writes a number of tokens with as many digits as tell something, and never more than there are.
export function tokens(n, capacity = n) {
  const size = Math.max(Math.abs(n), Math.abs(capacity));
  const digits = size >= 1000 ? 0 : size >= 20 ? 1 : 2;
  if (size >= 1e7) return n.toLocaleString(undefined, { notation: "compact", maximumFractionDigits: 2 });
  return (Math.floor(n * 10 ** digits + 1e-9) / 10 ** digits).toLocaleString(undefined, { maximumFractionDigits: digits }).replace("-", "−");
}

export const whole = (n) => (n >= 1e5 ? n.toLocaleString(undefined, { notation: "compact", maximumFractionDigits: 1 }) : n.toLocaleString());

const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

// span writes a length of time: "1 h 20 min", "4.2 s".
export function span(us) {
  let s = us / second;
  if (s < 0) return "−" + span(-us);
  if (us > 0 && us < 1000) return `${Math.ceil(us)} µs`;
  if (s < 1) return `${Math.ceil(s * 1000)} ms`;
  if (s < 10) return `${(Math.ceil(s * 10) / 10).toLocaleString()} s`;
  s = Math.ceil(s);
  if (s > 400 * 86400) return `${Math.round(s / 86400 / 365.25).toLocaleString()} years`;
  const parts = [];
  for (const [name, size] of units) {
    const n = Math.floor(s / size);
    s -= n * size;
    if (n > 0) parts.push(`${n} ${name}`);
    if (parts.length === 2 || (parts.length === 1 && n === 0)) break;
  }
  return parts.join(" ");
}

const every = new Map([[second, "a second"], [60 * second, "a minute"], [3600 * second, "an hour"], [86400 * second, "a day"]]);

// flow is the rule's rate in words.
export function flow(b) {
  const per = every.get(b.period) ?? `every ${span(b.period)}`;
  const rate = b.rate < 1 ? b.rate.toLocaleString(undefined, { maximumSignificantDigits: 3 }) : tokens(b.rate);
  return `${rate} ${per}${b.windowed ? ", at once" : ""}`;
}

// rule is all of it.
export function rule(l) {
  const up = l.capacity === l.rate ? "" : `, up to ${tokens(l.capacity)}`;
  const kind = l.windowed ? "Fixed window" : "Token bucket";
  return `${kind}: ${flow(l)}${up}${l.shards > 1 ? `, in ${l.shards} shards` : ""}`;
}

// clock is the time of day of an instant.
export const clock = (us) => new Date(us / 1000).toLocaleTimeString();

export const keyName = (k) => (k.id === "" ? "all callers" : k.key);
