// All relations as a table: filtered, sorted, live.

import { get } from "./api.js";
import { h, mark, say } from "./dom.js";
import { freshness, healthName, short, size, whole } from "./format.js";
import { known, on } from "./live.js";

/** Columns: name, title, text of a cell, and what it is sorted by; those with numbers stand at the right. */
const COLUMNS = [
  ["name", "Name", (box) => box.name, (box) => box.name],
  ["what", "Kind", (box) => box.what, (box) => box.what],
  ["state", "Freshness", (box, f) => (box.kind === "virtual" ? "computed by its readers" : f?.note ? `${freshness(f)} – ${f.note}` : freshness(f)), (box, f) => [f?.health ?? -1, f?.lag_s ?? 0]],
  ["rows_in", "Rows in/s", (box, f) => (f ? short(f.rows_in) : ""), (box, f) => f?.rows_in ?? -1],
  ["rows_out", "Rows out/s", (box, f) => (f && box.kind === "view" ? short(f.rows_out) : ""), (box, f) => f?.rows_out ?? -1],
  ["rows", "Rows", (box, f) => (f ? short(f.rows) : ""), (box, f) => f?.rows ?? -1],
  ["size", "Size", (box, f) => (f && f.size_bytes !== null ? size(f.size_bytes) : ""), (box, f) => f?.size_bytes ?? -1],
  ["late", "Late", (box, f) => (f?.late ? short(f.late) : ""), (box, f) => f?.late ?? 0],
  ["errors", "Errors", (box, f) => (f?.errors ? short(f.errors) : ""), (box, f) => f?.errors ?? 0],
  ["verified", "Verified", (box, f) => f?.verified ?? "", (box, f) => f?.verified ?? ""],
  ["watermark", "Event time", (box, f) => f?.watermark ?? (f?.held_back_by ? `waits for ${f.held_back_by}` : ""), (box, f) => f?.watermark ?? ""],
];
const NUMBERS = new Set(["rows_in", "rows_out", "rows", "size", "late", "errors"]);

const FILTERS = [
  ["all", "All", () => true],
  ["problems", "Problems", (box, f) => f && (f.health === 2 || f.errors > 0 || f.late > 0)],
  ["behind", "Behind", (box, f) => f && (f.health === 1 || f.health === 2)],
  ["filling", "Filling", (box, f) => f?.state === "filling"],
  ["view", "Views", (box) => box.kind === "view" || box.kind === "virtual"],
  ["table", "Tables", (box) => box.kind === "table"],
  ["source", "Sources", (box) => box.kind === "source"],
  ["sink", "Sinks", (box) => box.kind === "sink"],
];

let page = null;

export function show(main, query, go) {
  page = new Relations(main, go);
  const stops = [on("snapshot", (detail) => page.update(detail)), on("connected", (there) => (there ? page.load() : page.draw()))];
  page.load();
  return () => {
    stops.forEach((stop) => stop());
    page = null;
  };
}

export function changed(query) {
  page?.choose(query.get("relation"));
}

function compared(a, b) {
  if (Array.isArray(a)) return compared(a[0], b[0]) || compared(a[1], b[1]);
  return a < b ? -1 : a > b ? 1 : 0;
}

class Relations {
  constructor(main, go) {
    this.go = go;
    this.boxes = [];
    this.rows = new Map();
    this.text = "";
    this.filter = "all";
    this.sort = ["state", -1];
    this.version = -1;
    this.input = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", oninput: (e) => { this.text = e.target.value.toLowerCase(); this.draw(); } });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Which relations" }, FILTERS.map(([name, title]) =>
      h("button", { type: "button", class: "chip", "data-name": name, onclick: () => { this.filter = name; this.draw(); } }, title)));
    this.said = h("span", { class: "quiet", role: "status" });
    this.head = h("tr", {}, COLUMNS.map(([name, title]) => h("th", { scope: "col", "data-name": name, class: NUMBERS.has(name) ? "number" : null },
      h("button", { type: "button", onclick: () => { this.sort = this.sort[0] === name ? [name, -this.sort[1]] : [name, NUMBERS.has(name) || name === "state" ? -1 : 1]; this.draw(); } }, title))));
    this.body = h("tbody", {});
    main.append(h("section", { class: "sheet" }, h("h1", { class: "unseen" }, "Relations"), h("div", { class: "filters" }, this.input, this.chips, this.said),
      h("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Relations" }, h("table", { class: "list" }, h("thead", {}, this.head), this.body))));
  }

  async load() {
    try {
      const graph = await get("/api/topology?unfold=*");
      this.version = graph.version;
      this.boxes = graph.boxes.filter((b) => b.kind !== "plain");
      this.rows.clear(); // what has another name now is written anew
    } catch (cause) {
      say(this.said, cause.message);
      return;
    }
    this.draw();
  }

  update({ changed, version }) {
    if (version !== undefined && version !== this.version) this.load();
    for (const id of changed) this.fill(id);
  }

  draw() {
    const [, , fits] = FILTERS.find(([name]) => name === this.filter);
    const [name, direction] = this.sort;
    const [, , , key] = COLUMNS.find(([n]) => n === name);
    const found = this.boxes.filter((b) => b.name.toLowerCase().includes(this.text) && fits(b, known.metrics.get(b.id)))
      .map((box) => [key(box, known.metrics.get(box.id)), box])
      .sort(([a, x], [b, y]) => direction * compared(a, b) || compared(x.name, y.name)).map(([, box]) => box);
    for (const th of this.head.children) mark(th, "aria-sort", th.dataset.name === name ? (direction > 0 ? "ascending" : "descending") : null);
    for (const chip of this.chips.children) mark(chip, "aria-pressed", chip.dataset.name === this.filter);
    this.body.replaceChildren(...found.map((box) => (this.rows.get(box.id) ?? this.row(box)).row));
    for (const box of found) this.fill(box.id);
    say(this.said, `${whole(found.length)} of ${whole(this.boxes.length)}`);
    this.choose(this.chosen);
  }

  row(box) {
    const cells = COLUMNS.map(([column]) => h("td", { class: NUMBERS.has(column) ? "number" : `${column} text` }));
    const dot = h("span", { class: "dot" });
    const link = h("a", { href: "", onclick: (e) => { e.preventDefault(); this.go(null, { relation: box.name }); } }, box.name);
    cells[0].append(dot, link);
    const row = h("tr", { "data-id": box.id, onclick: (e) => !e.target.closest("a") && this.go(null, { relation: box.name }) }, cells);
    this.rows.set(box.id, { box, row, cells, dot });
    return this.rows.get(box.id);
  }

  fill(id) {
    const drawn = this.rows.get(id);
    if (!drawn) return;
    const f = known.metrics.get(id);
    COLUMNS.forEach(([, , text], i) => { if (i) say(drawn.cells[i], text(drawn.box, f)); });
    mark(drawn.dot, "class", `dot ${healthName(f?.health)}`);
    mark(drawn.cells[2], "title", f?.note);
    mark(drawn.cells[8], "class", f?.errors ? "number bad" : "number");
  }

  choose(name) {
    this.chosen = name;
    for (const { box, row } of this.rows.values()) mark(row, "aria-selected", box.name === name ? "true" : null);
  }
}
