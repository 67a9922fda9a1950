// All that is live: one stream of events for this tab, and what is known by it.

import { get } from "./api.js";

/** What is known. metrics: by relation id, objects; they are replaced, never changed. */
export const known = { session: null, database: null, version: 0, metrics: new Map(), sources: [], sinks: [], connected: false };

/** Tells `snapshot` ({ changed: Set of ids, gone, version }), `connected`, `rows` and `ended`. */
export const bus = new EventTarget();

export let clientSession = "";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10000;
let stream = null;
let pause = FIRST_PAUSE_MS;

const tell = (name, detail) => bus.dispatchEvent(new CustomEvent(name, { detail }));

export const on = (name, listener) => {
  const call = (e) => listener(e.detail);
  bus.addEventListener(name, call);
  return () => bus.removeEventListener(name, call);
};

function randomName() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");
}

function update(data) {
  const names = known.session.metrics;
  const changed = new Set();
  if (data.metrics && !known.connected) known.metrics.clear();
  for (const [id, values] of Object.entries(data.metrics ?? {})) {
    known.metrics.set(id, Object.fromEntries(names.map((name, i) => [name, values[i]])));
    changed.add(id);
  }
  for (const id of data.gone ?? []) known.metrics.delete(id);
  for (const name of ["database", "sources", "sinks", "version"]) if (data[name] !== undefined) known[name] = data[name];
  if (!known.connected) {
    known.connected = true;
    pause = FIRST_PAUSE_MS;
    tell("connected", true);
  }
  tell("snapshot", { changed, gone: data.gone ?? [], version: data.version });
}

/** Begins the stream, and again whenever it breaks. `loggedOut` is called when the server wants to know who this is. */
export function connect(loggedOut) {
  clientSession = randomName();
  stream = new EventSource(`/api/live?session=${clientSession}`);
  stream.addEventListener("snapshot", (e) => update(JSON.parse(e.data)));
  for (const name of ["rows", "ended"]) stream.addEventListener(name, (e) => tell(name, JSON.parse(e.data)));
  stream.onerror = async () => {
    disconnect();
    try {
      if (!(await get("/api/session")).lets_in) return loggedOut();
    } catch { /* it is away: try again */ }
    setTimeout(() => { if (stream === null) connect(loggedOut); }, pause);
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  };
}

export function disconnect() {
  stream?.close();
  stream = null;
  known.connected = false;
  tell("connected", false);
}
