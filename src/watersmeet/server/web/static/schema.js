// The relations that statements can read, with their columns: a list beside the worksheet, and completion of names.

import { get } from "./api.js";
import { h, mark, say } from "./dom.js";
import { known, on } from "./live.js";
import { WORDS, isProse, quoted, statementAt } from "./sql.js";

const MOST = 10;
const LEAST_TYPED = 2; // letters before suggestions open by themselves

let relations = [];
let version = -1;

async function load(done) {
  version = known.version;
  relations = await get("/api/columns").catch(() => relations);
  done();
}

/** The list of relations: a click on a name calls insert(name), the arrow before it shows the columns. */
export function sidebar(insert) {
  const list = h("ul", { class: "relations" });
  const nothing = h("p", { class: "quiet" });
  const filter = h("input", { type: "search", placeholder: "Filter relations", "aria-label": "Filter relations and columns", oninput: () => draw() });
  const opened = new Set();

  function item(relation, open) {
    const columns = h("ul", { class: "columns", hidden: !open }, relation.columns.map((c) =>
      h("li", {}, h("button", { type: "button", class: "insert", onclick: () => insert(quoted(c.name)) }, c.name), h("span", { class: "quiet", title: c.type }, c.type))));
    const toggle = h("button", { type: "button", class: "toggle", "aria-expanded": String(open), "aria-label": `Columns of ${relation.name}`, onclick: () => {
      columns.hidden = !columns.hidden;
      mark(toggle, "aria-expanded", String(!columns.hidden));
      if (columns.hidden) opened.delete(relation.name);
      else opened.add(relation.name);
    } });
    return h("li", {}, h("div", { class: "row" }, toggle, h("button", { type: "button", class: "insert", title: relation.what, onclick: () => insert(quoted(relation.name)) }, relation.name)), columns);
  }

  function draw() {
    const wanted = filter.value.trim().toLowerCase();
    const has = (name) => name.toLowerCase().includes(wanted);
    const found = relations.filter((r) => has(r.name) || r.columns.some((c) => has(c.name)));
    list.replaceChildren(...found.map((r) => item(r, opened.has(r.name) || (wanted !== "" && !has(r.name)))));
    say(nothing, found.length ? "" : relations.length ? "No relation or column has that name." : "There are no relations yet.");
    nothing.hidden = found.length > 0;
  }

  const refresh = () => { if (known.version !== version) load(draw); };
  const stop = on("snapshot", refresh);
  draw();
  refresh();
  return { element: h("aside", { class: "schema", id: "schema", "aria-label": "Relations and columns" }, filter, nothing, list), end: stop };
}

/** The relations that a statement names, by the names and aliases under which it uses them. */
function used(statement) {
  const found = new Map();
  for (const [, name, alias] of statement.matchAll(/\b(?:from|join|into|update)\s+([\w."]+)(?:\s+(?:as\s+)?(\w+))?/gi)) {
    const relation = relations.find((r) => r.name.toLowerCase() === name.replaceAll('"', "").toLowerCase());
    if (!relation) continue;
    found.set(relation.name.toLowerCase(), relation);
    if (alias && !WORDS.has(alias.toUpperCase())) found.set(alias.toLowerCase(), relation);
  }
  return found;
}

/** Suggestions at the caret: { from, options: [{ text, shown, what }] }. asked: also with nothing typed. */
export function suggestions(text, caret, asked) {
  const none = { from: caret, options: [] };
  if (isProse(text, caret)) return none;
  const [, qualifier, typed] = text.slice(0, caret).match(/(?:([\w]+)\.)?([\w]*)$/);
  if (!asked && !qualifier && typed.length < LEAST_TYPED) return none;
  const [statement, start] = statementAt(text, caret);
  const names = used(statement);
  const before = text.slice(start, caret - typed.length).trimEnd();
  const column = (relation) => (c) => ({ text: quoted(c.name), shown: c.name, what: `${c.type}, ${relation.name}` });
  const columns = (relation) => relation.columns.map(column(relation));
  const tables = relations.map((r) => ({ text: quoted(r.name), shown: r.name, what: r.what }));
  const words = [...WORDS].map((word) => ({ text: word, shown: word, what: "keyword" }));
  const all = qualifier
    ? (names.has(qualifier.toLowerCase()) ? columns(names.get(qualifier.toLowerCase())) : [])
    : /\b(from|join|into|table|view|subscribe)$/i.test(before) ? [...tables, ...words]
      : [...[...new Set(names.values())].flatMap(columns), ...tables, ...words];
  const fits = all.filter((o) => o.shown.toLowerCase().startsWith(typed.toLowerCase()));
  const options = [...new Map(fits.map((o) => [o.text, o])).values()].slice(0, MOST);
  if (options.length === 1 && options[0].text.toLowerCase() === typed.toLowerCase()) return none;
  return { from: caret - typed.length, options };
}

/** A list of suggestions below the caret of a text field. back: the element that shows its text in the same places. */
export function completing(field, back, changed) {
  const list = h("ul", { class: "suggestions", id: "suggestions", role: "listbox", "aria-label": "Suggestions", hidden: true });
  let shown = { from: 0, options: [] };
  let at = 0;
  let moved = false;

  function close() {
    list.hidden = true;
    mark(field, "aria-activedescendant", null);
  }

  function place() {
    let left = shown.from;
    const walker = document.createTreeWalker(back, NodeFilter.SHOW_TEXT);
    while (walker.nextNode() && left >= walker.currentNode.length) left -= walker.currentNode.length;
    const range = document.createRange(); // of the next character: an empty range has no place at the start of a line
    range.setStart(walker.currentNode, left);
    range.setEnd(walker.currentNode, left + 1);
    const [[spot], room] = [range.getClientRects(), list.parentElement.getBoundingClientRect()];
    list.style.left = `${Math.max(0, Math.min(spot.left - room.left, room.width - list.offsetWidth))}px`;
    list.style.top = `${spot.bottom - room.top + 4}px`;
  }

  function draw() {
    list.replaceChildren(...shown.options.map((o, i) => h("li", { id: `suggestion${i}`, role: "option", "aria-selected": String(i === at), onmousedown: (e) => { e.preventDefault(); take(o); } },
      h("span", { class: "name" }, o.shown), h("span", { class: "quiet" }, o.what))));
    list.hidden = !shown.options.length;
    mark(field, "aria-activedescendant", shown.options.length ? `suggestion${at}` : null);
    if (!list.hidden) place();
  }

  function open(asked = false) {
    [at, moved] = [0, asked];
    shown = field.selectionStart === field.selectionEnd ? suggestions(field.value, field.selectionStart, asked) : { from: 0, options: [] };
    draw();
  }

  function take(option) {
    field.setRangeText(option.text, shown.from, field.selectionStart, "end");
    close();
    changed();
    field.focus();
  }

  mark(field, "aria-autocomplete", "list");
  mark(field, "aria-controls", "suggestions");
  field.addEventListener("blur", close);
  field.addEventListener("click", close);
  return {
    element: list,
    typed: () => open(),
    /** Whether a key was meant for the list. Enter takes a suggestion only after an arrow key, so that it ends lines. */
    key(e) {
      if (e.key === " " && e.ctrlKey) open(true);
      else if (list.hidden) return false;
      else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
        at = (at + (e.key === "ArrowDown" ? 1 : -1) + shown.options.length) % shown.options.length;
        moved = true;
        draw();
      } else if (e.key === "Tab" || (e.key === "Enter" && moved && !e.ctrlKey && !e.metaKey)) take(shown.options[at]);
      else if (e.key === "Escape") close();
      else {
        if (/^(Arrow|Home|End|Page)/.test(e.key)) close();
        return false;
      }
      e.preventDefault();
      return true;
    },
  };
}
