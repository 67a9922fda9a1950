// The stream of events of this tab, and the newest state of the database.

import { get } from "./api.js";

/**
 * The newest state of the database. metrics: by relation id, objects; they are replaced, never changed.
 * heard: the time of the last event of the server in milliseconds, 0 before the first.
 */
export const known = { session: null, database: null, version: 0, metrics: new Map(), sources: [], sinks: [], connected: false, heard: 0 };

/** Whether there was a connection and is none, so that all values are old. */
export const isLost = () => known.heard > 0 && !known.connected;

/** Sends `snapshot` ({ changed: Set of ids, gone, version }), `connected`, `rows` and `ended`. */
export const bus = new EventTarget();

export let clientSession = "";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10000;
const SILENCE_MS = 16000; // the server sends an event every five seconds
const CHECK_MS = 1000;
let stream = null;
let pause = FIRST_PAUSE_MS;
let again = null;
let askUser = () => null;

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

/** Opens the stream, and again whenever it breaks. loggedOut: called when the server requires a login. */
export function connect(loggedOut) {
  askUser = loggedOut;
  clientSession = randomName();
  stream = new EventSource(`/api/live?session=${clientSession}`);
  stream.addEventListener("snapshot", (e) => { known.heard = Date.now(); update(JSON.parse(e.data)); });
  stream.addEventListener("alive", () => { known.heard = Date.now(); });
  for (const name of ["rows", "ended"]) stream.addEventListener(name, (e) => { known.heard = Date.now(); tell(name, JSON.parse(e.data)); });
  stream.onerror = broken;
}

async function broken() {
  disconnect();
  try {
    if (!(await get("/api/session")).lets_in) {
      known.heard = 0;
      return askUser();
    }
  } catch { /* no answer: try again */ }
  again = setTimeout(retry, pause);
  pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
}

/** Connects again now, unless there is a connection. */
export function retry() {
  clearTimeout(again);
  if (stream === null) connect(askUser);
}

// A server that is cut off closes nothing: silence is the only sign.
setInterval(() => { if (known.connected && Date.now() - known.heard > SILENCE_MS) broken(); }, CHECK_MS);

export function disconnect() {
  stream?.close();
  stream = null;
  known.connected = false;
  tell("connected", false);
}
