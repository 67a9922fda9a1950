// Finds a relation by a part of its name.

import { get } from "./api.js";
import { h, mark } from "./dom.js";
import { freshness, healthName } from "./format.js";
import { known } from "./live.js";

const MOST = 12;

/** The boxes whose names fit best: those that begin with the text come first. */
export function found(boxes, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return boxes.slice(0, MOST);
  const ranked = boxes
    .map((box) => [box.name.toLowerCase().indexOf(wanted), box])
    .filter(([at]) => at >= 0)
    .sort(([a, x], [b, y]) => a - b || x.name.length - y.name.length || (x.name < y.name ? -1 : 1));
  return ranked.slice(0, MOST).map(([, box]) => box);
}

export async function openSearch(go) {
  if (document.querySelector("dialog.search")) return;
  let boxes = [];
  let rows = [];
  let at = 0;
  const list = h("ul", { class: "hits", id: "hits", role: "listbox", "aria-label": "Relations" });
  const input = h("input", {
    type: "text", placeholder: "Find a table, source, view or sink", "aria-label": "Find a relation", role: "combobox",
    "aria-expanded": "true", "aria-controls": "hits", autocomplete: "off", spellcheck: "false", oninput: () => { at = 0; draw(); },
    onkeydown: (e) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
      if (step) { at = Math.max(0, Math.min(rows.length - 1, at + step)); draw(); }
      else if (e.key === "Enter" && rows[at]) choose(rows[at]);
      else return;
      e.preventDefault();
    },
  });
  const dialog = h("dialog", { class: "search", "aria-label": "Find a relation", onclick: (e) => e.target === dialog && dialog.close(), onclose: () => dialog.remove() }, input, list);

  function choose(box) {
    dialog.close();
    go(null, { relation: box.name });
  }

  function draw() {
    rows = found(boxes, input.value);
    list.replaceChildren(...rows.map((box, i) => {
      const f = known.metrics.get(box.id);
      return h("li", { id: `hit${i}`, role: "option", "aria-selected": String(i === at), onclick: () => choose(box) },
        h("span", { class: `dot ${healthName(f?.health)}` }), h("span", { class: "name" }, box.name),
        h("span", { class: "quiet" }, box.what), h("span", { class: "quiet end" }, box.kind === "virtual" ? "" : freshness(f)));
    }));
    if (!rows.length) list.append(h("li", { class: "quiet" }, boxes.length ? "Nothing has that name." : "…"));
    mark(input, "aria-activedescendant", rows.length ? `hit${at}` : null);
    list.children[at]?.scrollIntoView({ block: "nearest" });
  }

  document.body.append(dialog);
  dialog.showModal();
  draw();
  input.focus();
  boxes = (await get("/api/topology?unfold=*").catch(() => ({ boxes: [] }))).boxes.filter((b) => b.kind !== "plain");
  draw();
}
