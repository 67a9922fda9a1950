// The frame of the console: login, pages, the bar, keys.

import { get, login, post, ApiError } from "./api.js";
import { h, mark, say } from "./dom.js";
import { age, clock, duration, whole } from "./format.js";
import { bus, connect, disconnect, isLost, known, on, retry } from "./live.js";
import { closeDetail, openDetail } from "./detail.js";
import { openSearch } from "./search.js";
import * as topology from "./topology.js";
import * as relations from "./relations.js";
import * as flows from "./flows.js";
import * as worksheet from "./worksheet.js";

const PAGES = [
  ["topology", "Topology", topology],
  ["relations", "Relations", relations],
  ["flows", "Sources and sinks", flows],
  ["worksheet", "Worksheet", worksheet],
];
const THEMES = ["auto", "light", "dark"];

const $ = (id) => document.getElementById(id);
let leave = null;
let shown = null;

/** The page and the selection, from the address: `#/topology?relation=orders`. */
export function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const page = PAGES.find(([name]) => name === path) ?? PAGES[0];
  return { page, query: new URLSearchParams(query ?? "") };
}

/** Goes to a page, or changes the selection on this one. changes: by parameter a name, several, or null for none. */
export function go(page, changes = {}) {
  const here = place();
  const query = page && page !== here.page[0] ? new URLSearchParams() : here.query;
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    for (const one of value === null ? [] : [value].flat()) query.append(name, one);
  }
  const text = query.toString();
  location.hash = `#/${page ?? here.page[0]}${text ? `?${text}` : ""}`;
}

function route() {
  const { page: [name, title, module], query } = place();
  if (shown !== name) {
    leave?.();
    shown = name;
    document.title = `${title} – Watersmeet`;
    $("main").replaceChildren();
    leave = module.show($("main"), query, go);
    for (const link of $("pages").children) mark(link, "aria-current", link.dataset.name === name ? "page" : null);
  }
  module.changed?.(query);
  const relation = query.get("relation");
  if (relation) openDetail($("drawer"), relation, go);
  else closeDetail($("drawer"));
}

function pulse() {
  const d = known.database;
  if (!known.connected || !d) {
    mark($("pulse"), "class", "pulse unknown");
    say($("pulse"), isLost() ? "no connection" : "connecting …");
    return banner();
  }
  const health = d.state !== "running" ? "stale" : d.lag_s >= 60 ? "stale" : d.lag_s >= 1 ? "late" : "fresh";
  mark($("pulse"), "class", `pulse ${health}`);
  const parts = [d.state === "stopped" ? "no process writes" : d.state];
  if (d.state === "running") parts.push(d.lag_s ? `${duration(d.lag_s)} behind` : "up to date");
  parts.push(`epoch ${whole(d.epoch)}`);
  say($("pulse"), parts.join("  ·  "));
  mark($("pulse"), "title", `The newest epoch read ${whole(d.rows)} rows in ${duration(d.duration_us / 1e6)}. Commit ${whole(d.commit)}.`);
  banner();
}

/** Above all pages: the age of values that are old, or why the database has stopped. */
function banner() {
  const d = known.database;
  const stands = d?.state === "stopped" && !d.error;
  const [kind, text, since] = isLost()
    ? ["lost", `The server does not answer. These are the values of ${clock(known.heard / 1000)} UTC, they are`, known.heard]
    : d?.error ? ["failed", `${d.error.condition}: ${d.error.message}. ${d.error.hint ?? ""}`]
    : stands ? ["lost", "No process writes this database. Its newest commit is", d.time_us / 1000] : ["", ""];
  document.documentElement.classList.toggle("lost", isLost());
  mark($("notice"), "class", `notice ${kind}`);
  $("notice").hidden = !text;
  say($("why"), text);
  $("age").hidden = !since;
  mark($("age"), "data-since", since ?? null);
  $("again").hidden = !isLost();
  tick();
}

function tick() {
  const since = Number($("age").dataset.since);
  if (since) say($("age"), `${age((Date.now() - since) / 1000)} old.`);
}

function theme() {
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "auto") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("watersmeet.theme");
  } else {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("watersmeet.theme", next);
  }
  named();
  bus.dispatchEvent(new CustomEvent("theme"));
}

function named() {
  const now = document.documentElement.dataset.theme ?? "auto";
  const button = $("theme");
  button.textContent = { auto: "◐", light: "☀", dark: "☾" }[now];
  const text = `Theme: ${{ auto: "as the system", light: "light", dark: "dark" }[now]}`;
  button.title = text;
  button.setAttribute("aria-label", `${text}. Change it.`);
}

function help() {
  const keys = [
    ["1 … 4", "the pages"], ["/", "find a relation"], ["arrows", "from box to box of the topology, along the arrows"],
    ["Enter", "open a relation"], ["Esc", "close it"], ["+  −  0", "zoom in, out, show all"],
    ["Ctrl + Enter", "run the worksheet"], ["?", "this list"],
  ];
  const dialog = h("dialog", { class: "help", "aria-label": "Keys", onclick: (e) => e.target === dialog && dialog.close(), onclose: () => dialog.remove() },
    h("h2", {}, "Keys"),
    h("dl", {}, keys.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("form", { method: "dialog" }, h("button", { class: "button" }, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}

function bar() {
  $("pages").replaceChildren(...PAGES.map(([name, title]) => h("a", { href: `#/${name}`, "data-name": name }, title)));
  const session = known.session;
  $("tools").replaceChildren(
    h("button", { class: "find", type: "button", onclick: () => openSearch(go) }, "Find", h("kbd", {}, "/")),
    h("button", { class: "icon", id: "theme", type: "button", onclick: theme }),
    h("button", { class: "icon", type: "button", title: "Keys", "aria-label": "Keys", onclick: help }, "?"),
    ...(session.needs_users ? [h("button", { class: "who", type: "button", title: "Log out", onclick: logout }, session.user, h("span", { class: "quiet" }, " log out"))] : []));
  named();
  $("bar").hidden = false;
}

async function logout() {
  disconnect();
  await post("/api/logout").catch(() => null);
  location.reload();
}

function askUser() {
  leave?.();
  leave = shown = null;
  $("bar").hidden = true;
  closeDetail($("drawer"));
  const said = h("p", { class: "problem", role: "alert" });
  const user = h("input", { id: "user", name: "username", autocomplete: "username", required: true });
  const password = h("input", { id: "password", name: "password", type: "password", autocomplete: "current-password", required: true });
  const form = h("form", { class: "login", onsubmit: async (e) => {
    e.preventDefault();
    say(said, "");
    try {
      await login(user.value, password.value);
      await begin();
    } catch (cause) {
      say(said, cause.status === 401 ? "User or password is wrong." : cause.message);
      password.select();
    }
  } },
  h("img", { src: "mark.svg", alt: "", width: 40, height: 40 }), h("h1", {}, "Watersmeet"),
  h("label", { for: "user" }, "User"), user, h("label", { for: "password" }, "Password"), password, said,
  h("button", { class: "button primary" }, "Log in"));
  $("main").replaceChildren(form);
  user.focus();
}

function keys(e) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName);
  if (typing || e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]") || $("bar").hidden) return;
  const page = PAGES[Number(e.key) - 1];
  if (page) go(page[0]);
  else if (e.key === "/") openSearch(go);
  else if (e.key === "?") help();
  else if (e.key === "Escape" && place().query.get("relation")) go(null, { relation: null });
  else return;
  e.preventDefault();
}

async function begin() {
  try {
    known.session = await get("/api/session");
  } catch (cause) {
    $("main").replaceChildren(h("p", { class: "problem", role: "alert" }, cause instanceof ApiError ? cause.message : String(cause)));
    setTimeout(begin, 2000);
    return;
  }
  if (!known.session.lets_in) {
    askUser();
    return;
  }
  $("main").replaceChildren();
  bar();
  pulse();
  connect(askUser);
  shown = null;
  route();
}

window.addEventListener("hashchange", () => { if (!$("bar").hidden) route(); });
window.addEventListener("keydown", keys);
$("again").addEventListener("click", retry);
setInterval(tick, 1000);
on("snapshot", pulse);
on("connected", pulse);
begin();
