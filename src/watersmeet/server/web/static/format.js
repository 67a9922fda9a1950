// Numbers, times and states as people read them. All times are UTC, as in SQL.

import { isLost, known } from "./live.js";

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const whole = (n) => (n === null || n === undefined ? "–" : WHOLE.format(n));

function scaled(n, base, units, digits) {
  let unit = 0;
  while (Math.abs(n) >= base && unit < units.length - 1) { n /= base; unit += 1; }
  return [unit && Math.abs(n) < 100 ? n.toFixed(digits) : n.toFixed(0), units[unit]];
}

/** 950, 12.3 k, 4.5 M. */
export function short(n) {
  if (n === null || n === undefined) return "–";
  if (Math.abs(n) < 1) return n === 0 ? "0" : n.toPrecision(1);
  if (Math.abs(n) < 10 && !Number.isInteger(n)) return n.toFixed(1);
  const [digits, unit] = scaled(n, 1000, ["", "k", "M", "G", "T"], 1);
  return unit ? `${digits} ${unit}` : digits;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const [digits, unit] = scaled(bytes, 1000, ["B", "kB", "MB", "GB", "TB"], 1);
  return `${digits} ${unit}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.round((seconds % 86400) / 3600)} h`;
}

/** A duration that is shown every second: 23 s, 4 min, 2 h 5 min. */
export const age = (seconds) => (seconds < 60 ? `${Math.max(0, Math.round(seconds))} s` : duration(seconds));

export const rate = (n) => `${short(n)} rows/s`;

export const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

/** How far a time of the database is behind the clock, in seconds; null for an infinite one. */
export function behindClock(text) {
  const time = Date.parse(`${text.replace(" ", "T")}Z`);
  return Number.isNaN(time) ? null : Math.max(0, (Date.now() - time) / 1000);
}

/** The class of a health. Without a connection nothing is known. */
export const healthName = (health) => (isLost() ? "unknown" : ["fresh", "late", "stale"][health] ?? "unknown");

/** How fresh a relation is, in words. */
export function freshness(f) {
  if (isLost()) return `unknown since ${clock(known.heard / 1000)}`;
  if (!f) return "not known";
  if (f.state === "filling") return f.progress === null ? "filling" : `filling, ${Math.floor(f.progress * 100)} %`;
  if (f.state !== "running") return f.state;
  if (f.lag_s) return `${duration(f.lag_s)} behind`;
  if (f.backlog) return `${short(f.backlog)} ${f.unit} left`;
  if (f.health === 2) return "held back";
  return "up to date";
}

export const count = (n, one, many = `${one}s`) => `${whole(n)} ${n === 1 ? one : many}`;
