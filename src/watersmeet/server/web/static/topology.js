// The topology: boxes and arrows as the server has placed them, with live metrics. Pan, zoom, keys, an overview.

import { get } from "./api.js";
import { h, mark, s, say } from "./dom.js";
import { count, freshness, healthName, rate, short, whole } from "./format.js";
import { isLost, known, on } from "./live.js";
import { overview } from "./overview.js";

const NAMED = 0.5; // below this scale only names can be read, which are larger then
const SEEN = 0.26; // below this scale there are no texts
const READABLE = 0.7; // what a topology of few boxes begins with, also if not all of it can be seen then
const MANY = 120; // with more boxes, only the arrows of the one that is chosen or pointed at are shown, above the boxes
const LEAST = 0.04;
const MOST = 2;
const MARGIN = 24;
const ABOVE = 52;
const AGAIN_MS = 2000;
const CLOSE = 0.55; // a selection is not shown smaller than this, also if not all of its neighbors fit
const ROUND = 8; // the corners of arrows
const NARROW = matchMedia("(max-width: 820px)"); // such screens have the graph from top to bottom
const BESIDE = 18; // between boxes from top to bottom
const BETWEEN = 62; // between their layers

const KINDS = {
  table: "M1 1h12v12H1zM1 5h12M5 5v8",
  source: "M1 7h8M6 3.5 9.5 7 6 10.5M11.500 1v12",
  view: "M7 1 13 4 7 7 1 4zM1 7l6 3 6-3M1 10l6 3 6-3",
  sink: "M13 7H5M8 3.500 4.500 7 8 10.500M2.500 1v12",
  virtual: "M7 4 13 7 7 10 1 7z",
  plain: "M2 7h10",
};

let page = null;

export function show(main, query, go) {
  page = new Topology(main, go);
  page.around = query.get("around");
  page.unfold = query.getAll("unfold");
  page.load();
  const stops = [on("snapshot", (detail) => page.update(detail)), on("connected", (there) => (there ? page.load() : page.fillAll()))];
  return () => {
    stops.forEach((stop) => stop());
    page.end();
    page = null;
  };
}

export function changed(query) {
  if (page === null) return;
  const around = query.get("around");
  const unfold = query.getAll("unfold");
  if (around !== page.around || unfold.join() !== page.unfold.join()) {
    page.around = around;
    page.unfold = unfold;
    page.version = -1;
    page.load();
  }
  page.choose(query.get("relation"));
}

/** The path of an arrow: level and upright lines with round corners; between two heights a curve. */
function way(points) {
  let d = `M${points[0][0]} ${points[0][1]}`;
  for (let i = 1; i < points.length; i += 1) {
    const [[x0, y0], [x1, y1]] = [points[i - 1], points[i]];
    const [x2, y2] = points[i + 1] ?? [x1, y1];
    const middle = (x0 + x1) / 2;
    if (y0 !== y1 && x0 !== x1) d += `C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`;
    else if ((y0 === y1 && x1 === x2 && y1 !== y2) || (x0 === x1 && y1 === y2 && x1 !== x2)) {
      const r = Math.min(ROUND, Math.hypot(x1 - x0, y1 - y0) / 2, Math.hypot(x2 - x1, y2 - y1) / 2);
      d += `L${x1 - r * Math.sign(x1 - x0)} ${y1 - r * Math.sign(y1 - y0)}Q${x1} ${y1} ${x1 + r * Math.sign(x2 - x1)} ${y1 + r * Math.sign(y2 - y1)}`;
    } else d += `L${x1} ${y1}`;
  }
  return d;
}

/** The graph from top to bottom, for narrow screens: as many boxes in a row as let it be largest. */
function upright(graph, { width, height }) {
  const columns = new Map();
  for (const box of graph.boxes) columns.set(box.x, [...(columns.get(box.x) ?? []), box]);
  const layers = [...columns.keys()].sort((a, b) => a - b).map((x) => columns.get(x).sort((a, b) => a.y - b.y));
  const wide = Math.max(0, ...graph.boxes.map((b) => b.width));
  const high = Math.max(0, ...graph.boxes.map((b) => b.height));
  const placed = [1, 2, 3].map((most) => {
    const all = most * (wide + BESIDE) - BESIDE;
    const boxes = new Map();
    let y = 0;
    for (const layer of layers) {
      for (let i = 0; i < layer.length; i += most, y += high + BESIDE) {
        const row = layer.slice(i, i + most);
        const left = (all - row.length * (wide + BESIDE) + BESIDE) / 2;
        row.forEach((box, n) => boxes.set(box.id, { ...box, x: left + n * (wide + BESIDE), y, width: wide, height: high }));
      }
      y += BETWEEN - BESIDE;
    }
    return { boxes, width: all, height: y - BETWEEN, scale: Math.min(1, width / all, height / (y - BETWEEN)) };
  }).reduce((a, b) => (b.scale > a.scale ? b : a));
  const side = placed.width + BESIDE;
  const arrows = graph.arrows.map((a) => {
    const [from, to] = [placed.boxes.get(a.from), placed.boxes.get(a.to)];
    const [x0, y0, x1, y1] = [from.x + wide / 2, from.y + high, to.x + wide / 2, to.y];
    const [left, right, gap] = [Math.min(x0, x1), Math.max(x0, x1), BESIDE / 2];
    const blocked = [...placed.boxes.values()].some((b) => b.y > from.y && b.y < to.y && b.x < right && b.x + wide > left);
    // Around the boxes in between, along the right side.
    const around = [[x0, y0 + gap], [side, y0 + gap], [side, y1 - gap], [x1, y1 - gap]];
    return { ...a, label: "", points: [[x0, y0], ...(blocked ? around : []), [x1, y1]] };
  });
  return { ...graph, boxes: graph.boxes.map((b) => placed.boxes.get(b.id)), arrows, width: side, height: placed.height };
}

/** An arrow from above to below. */
function down([[x0, y0], [x1, y1]]) {
  const middle = (y0 + y1) / 2;
  return `M${x0} ${y0}C${x0} ${middle} ${x1} ${middle} ${x1} ${y1}`;
}

class Topology {
  constructor(main, go) {
    this.go = go;
    this.version = -1;
    this.boxes = new Map();
    this.arrows = new Map();
    this.view = { x: 0, y: 0, scale: 1 };
    this.fitted = false;
    this.chosen = null;
    this.unfold = [];
    this.homes = new Map(); // the box of each relation by its id: its own, or that of its group
    this.names = new Map(); // the same by name
    this.waiting = null;
    this.graph = { boxes: [], arrows: [], width: 0, height: 0 };
    this.scene = s("g", {});
    this.svg = s("svg", { class: "topology", role: "group", "aria-label": "Topology: tables, sources, views and sinks" },
      s("defs", {}, s("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0 0.500 8 4 0 7.500z" }))),
      this.scene);
    this.empty = h("div", { class: "empty", hidden: true });
    this.scope = h("div", { class: "scope", hidden: true });
    this.counts = h("div", { class: "counts" });
    this.overview = overview((x, y) => this.centre(x, y));
    main.append(h("section", { class: "stage" }, h("h1", { class: "unseen" }, "Topology"), this.svg, this.empty, this.scope, this.counts, this.overview.element,
      h("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
        h("button", { type: "button", class: "icon", "aria-label": "Zoom in", onclick: () => this.zoom(1.3) }, "+"),
        h("button", { type: "button", class: "icon", "aria-label": "Zoom out", onclick: () => this.zoom(1 / 1.3) }, "−"),
        h("button", { type: "button", class: "icon", "aria-label": "Show all", title: "Show all", onclick: () => this.fit(true) }, "⤢"))));
    this.listen();
    this.resized = new ResizeObserver(() => {
      if (!this.fitted) this.fit();
      this.moved();
      this.keep();
      if (this.version >= 0 && this.narrow !== NARROW.matches) this.load();
    });
    this.resized.observe(this.svg);
  }

  end() {
    this.resized.disconnect();
    clearTimeout(this.waiting);
  }

  async load() {
    const { around, unfold } = this;
    let graph;
    try {
      graph = await get(`/api/topology?${new URLSearchParams([...(around ? [["around", around]] : []), ...unfold.map((name) => ["unfold", name])])}`);
    } catch (cause) {
      if (!this.graph.boxes.length) this.say(cause.message);
      return;
    }
    if (page !== this || around !== this.around || unfold !== this.unfold) return;
    const first = this.version < 0;
    this.version = graph.version;
    this.narrow = NARROW.matches;
    if (this.narrow && graph.boxes.length <= MANY) graph = upright(graph, { width: innerWidth - 2 * MARGIN, height: innerHeight - 3 * ABOVE });
    if (JSON.stringify(graph.boxes) === JSON.stringify(this.graph.boxes) && JSON.stringify(graph.arrows) === JSON.stringify(this.graph.arrows)) return;
    this.graph = graph;
    this.draw();
    if (first) this.fit();
    else this.moved();
    this.keep();
  }

  /** Loads the graph after a change of the catalog, with a delay, as more changes may follow. */
  update({ changed, version }) {
    if (version !== undefined && version !== this.version && !this.waiting) {
      this.waiting = setTimeout(() => { this.waiting = null; this.load(); }, AGAIN_MS);
    }
    for (const home of new Set([...changed].map((id) => this.homes.get(id)))) if (home) this.fill(home);
    this.count();
    if (changed.size) this.overview.draw(this.graph, this.view, this.svg);
  }

  say(text) {
    this.empty.hidden = !text;
    this.empty.replaceChildren(...[text].flat().filter(Boolean));
  }

  draw() {
    this.boxes.clear();
    const arrows = this.graph.arrows.map((a) => s("g", { class: "arrow", "data-from": a.from, "data-to": a.to },
      s("path", { d: this.narrow && a.points.length === 2 ? down(a.points) : way(a.points), "marker-end": "url(#head)" }),
      a.label ? s("text", { x: a.points.at(-1)[0] - 12, y: a.points.at(-1)[1] - 5, "text-anchor": "end" }, a.label) : null));
    this.arrows = new Map();
    for (const arrow of arrows) for (const id of new Set([arrow.dataset.from, arrow.dataset.to])) this.arrows.set(id, [...(this.arrows.get(id) ?? []), arrow]);
    this.homes.clear();
    this.names.clear();
    for (const box of this.graph.boxes) {
      for (const one of box.members.length ? box.members : [box]) {
        this.homes.set(one.id, box.id);
        if (box.kind !== "plain") this.names.set(one.name, box.id);
      }
    }
    const nodes = this.graph.boxes.map((box) => this.box(box));
    this.scene.replaceChildren(...arrows, ...nodes);
    this.svg.classList.toggle("many", nodes.length > MANY);
    this.say(this.graph.boxes.length ? "" : [h("h2", {}, "No relations yet"), h("p", {}, "Tables, sources, views and sinks appear here as they are created."), h("a", { class: "button", href: "#/worksheet" }, "Open a worksheet")]);
    this.scope.hidden = !this.around && !this.unfold.length;
    this.scope.replaceChildren(...(this.around ? [h("span", {}, `Upstream and downstream of ${this.around}`), h("button", { type: "button", class: "button", onclick: () => this.go(null, { around: null }) }, "Show all")] : []),
      ...(this.unfold.length ? [h("button", { type: "button", class: "button", onclick: () => this.go(null, { unfold: null }) }, "Fold groups")] : []));
    this.fillAll();
    this.choose(this.chosen, true);
  }

  box(box) {
    const group = box.members.length > 0;
    const open = () => (group ? this.go(null, { unfold: [...this.unfold, box.members[0].name] }) : box.kind !== "plain" && this.go(null, { relation: box.name }));
    const parts = {
      health: s("rect", { x: 0.500, y: 0.500, width: 5, height: box.height - 1, class: "health", rx: 2 }),
      metrics: s("text", { x: 16, y: box.height / 2 + 19, class: "metrics" }),
      done: s("rect", { x: 6, y: box.height - 4, width: 0, height: 3, class: "done" }),
      glyph: s("path", { d: KINDS[box.kind] ?? KINDS.plain, transform: `translate(${box.width - 26} ${box.height / 2 - 20})`, class: "glyph" }),
    };
    const node = s("g", {
      class: `node ${box.kind}${group ? " group" : ""}`, transform: `translate(${box.x} ${box.y})`, tabindex: "-1", role: "button", "data-id": box.id,
      onclick: open, onkeydown: (e) => this.key(e, box, open), onfocus: () => this.reveal(box),
      onpointerenter: () => this.near("pointed", box.id), onpointerleave: () => this.near("pointed", null),
    },
    ...(group ? [8, 4].map((by) => s("rect", { x: by, y: by, width: box.width, height: box.height, rx: 7, class: "frame" })) : []),
    s("rect", { width: box.width, height: box.height, rx: 7, class: "frame" }), parts.health, parts.done,
    // The spaces separate the words for screen readers.
    s("text", { x: 16, y: box.height / 2 - 11, class: "name" }, box.name), " ",
    s("text", { x: 16, y: box.height / 2 + 4, class: "what" }, box.what), " ", parts.metrics, parts.glyph,
    s("text", { x: 18, y: box.height / 2 + 9, class: "big", "font-size": Math.min(26, Math.round((box.width - 34) / (box.name.length * 0.62))), "aria-hidden": "true" }, box.name));
    this.boxes.set(box.id, { box, node, ...parts });
    return node;
  }

  fillAll() {
    for (const box of this.graph.boxes) this.fill(box.id);
    this.count();
    this.overview.draw(this.graph, this.view, this.svg);
  }

  fill(id) {
    const drawn = this.boxes.get(id);
    if (drawn?.box.members.length) this.fillGroup(drawn);
    if (drawn?.box.kind === "virtual") this.note(drawn, "computed by its readers", null);
    const f = known.metrics.get(id);
    if (!drawn || !f) return;
    const fresh = freshness(f);
    const { kind } = drawn.box;
    const held = f.backlog && f.state === "running" ? `${short(f.backlog)} ${f.unit} left` : fresh;
    const text = {
      table: `${rate(f.rows_in)}  ·  ${short(f.rows)} rows`,
      source: f.state === "running" ? `${rate(f.rows_in)}  ·  ${held}` : f.state,
      sink: f.lag_s === null ? f.state : `${short(f.rows)} rows  ·  ${fresh}`,
    }[kind] ?? (f.state === "running" ? `${rate(f.rows_in)}  ·  ${fresh}` : fresh);
    const said = isLost() ? fresh : f.errors ? `${text}  ·  ${count(f.errors, "error")}` : text;
    this.note(drawn, said, healthName(f.health), f.note);
    mark(drawn.node, "data-state", f.state);
    mark(drawn.done, "width", f.progress === null ? 0 : Math.round((drawn.box.width - 12) * f.progress));
  }

  /** A group has the worst health of its members. */
  fillGroup(drawn) {
    const found = drawn.box.members.map((m) => known.metrics.get(m.id)).filter(Boolean);
    const of = (health) => found.filter((f) => f.health === health && f.state !== "filling").length;
    const [late, stale] = [of(1), of(2)];
    const parts = [[stale, "stopped or stale"], [late, "behind"], [found.filter((f) => f.state === "filling").length, "filling"]].filter(([n]) => n);
    const rows = found.reduce((sum, f) => sum + f.rows_in, 0);
    const fine = found.every((f) => f.health === 0) ? "up to date" : `${whole(of(0))} up to date`;
    const text = isLost() ? freshness(found[0] ?? null) : [rate(rows), ...(parts.length ? parts.map(([n, what]) => `${whole(n)} ${what}`) : [fine])].join("  ·  ");
    this.note(drawn, text, healthName(stale ? 2 : late ? 1 : found.some((f) => f.health === null) ? null : 0), "unfold");
  }

  /** Writes a box: its line of metrics, its color, its name for screen readers. */
  note(drawn, text, health, more) {
    say(drawn.metrics, text);
    mark(drawn.node, "data-health", health);
    mark(drawn.node, "aria-label", `${drawn.box.name} ${drawn.box.what} ${text}${more ? `, ${more}` : ""}`);
  }

  /** The numbers of relations with problems, as buttons that go to the first one. */
  count() {
    const found = { stale: [], late: [], filling: [] };
    for (const [id, home] of this.homes) {
      const f = known.metrics.get(id);
      if (!f || isLost()) continue;
      const { box } = this.boxes.get(home);
      if (f.state === "filling") found.filling.push(box);
      else if (f.health === 2) found.stale.push(box);
      else if (f.health === 1) found.late.push(box);
    }
    const shown = [["stale", "stopped or stale"], ["late", "behind"], ["filling", "filling"]].filter(([name]) => found[name].length);
    const text = [this.homes.size, ...shown.map(([name]) => `${name}${found[name].length}`)].join();
    if (this.counted === text) return;
    this.counted = text;
    this.counts.replaceChildren(
      h("span", { class: "quiet" }, count(this.names.size, "relation")),
      ...shown.map(([name, what]) => h("button", { type: "button", class: `chip ${name}`, onclick: () => {
        const box = found[name][0];
        this.boxes.get(box.id).node.focus();
        this.centre(box.x + box.width / 2, box.y + box.height / 2, Math.max(this.view.scale, 0.9));
      } }, `${whole(found[name].length)} ${what}`)));
  }

  /** Marks a relation and its neighbors. */
  choose(name, drawn = false) {
    if (this.chosen === name && !drawn) return;
    this.chosen = name;
    const id = this.names.get(name) ?? null;
    const near = this.neighbors(id);
    mark(this.scene, "class", id && this.boxes.has(id) ? "chosen" : null);
    for (const [boxId, { node }] of this.boxes) {
      node.classList.toggle("here", boxId === id);
      node.classList.toggle("near", near.has(boxId));
      node.tabIndex = -1;
    }
    this.near("near", id);
    const here = this.boxes.get(id);
    const first = here ?? this.boxes.values().next().value;
    if (first) first.node.tabIndex = 0;
    if (here && !drawn) this.keep();
  }

  /** A box with the boxes that it reads or feeds, by id. */
  neighbors(id) {
    const near = new Set([id]);
    for (const a of this.graph.arrows) {
      if (a.from === id) near.add(a.to);
      if (a.to === id) near.add(a.from);
    }
    return near;
  }

  /** Moves the view so that the chosen box is in it with its neighbors: smaller if they need that, down to `CLOSE`. */
  keep() {
    const here = this.boxes.get(this.names.get(this.chosen))?.box;
    if (!here) return;
    const { width, height } = this.room;
    const boxes = [...this.neighbors(here.id)].map((id) => this.boxes.get(id).box);
    const [left, upper] = [Math.min(...boxes.map((b) => b.x)), Math.min(...boxes.map((b) => b.y))];
    const [right, lower] = [Math.max(...boxes.map((b) => b.x + b.width)), Math.max(...boxes.map((b) => b.y + b.height))];
    const { x, y, scale } = this.view;
    if (left * scale + x >= 0 && upper * scale + y >= ABOVE && right * scale + x <= width && lower * scale + y <= height && scale >= NAMED) return;
    const fits = Math.min((width - 2 * MARGIN) / (right - left), (height - ABOVE - MARGIN) / (lower - upper));
    const next = Math.max(Math.min(CLOSE, this.least), Math.min(Math.max(scale, CLOSE), fits));
    // As much as possible of the neighbors, and all of the box itself.
    const middle = (from, to, low, high, room) => Math.min(low + room / 2, Math.max(high - room / 2, (from + to) / 2));
    const across = width / next - 2 * MARGIN;
    const down = (height - ABOVE) / next - 2 * MARGIN;
    this.view = { scale: next, x: width / 2 - middle(left, right, here.x, here.x + here.width, across) * next,
      y: ABOVE + (height - ABOVE) / 2 - middle(upper, lower, here.y, here.y + here.height, down) * next };
    this.moved();
  }

  /** The least scale at which a selection is shown: lower on narrow screens. */
  get least() {
    return NARROW.matches ? 0.34 : CLOSE;
  }

  /** Marks the arrows of a box. With many boxes, they are drawn above the boxes. */
  near(name, id) {
    for (const arrow of this.scene.querySelectorAll(`.arrow.${name}`)) arrow.classList.remove(name);
    for (const arrow of this.arrows.get(id) ?? []) {
      arrow.classList.add(name);
      if (this.boxes.size > MANY) this.scene.append(arrow);
    }
  }

  key(e, box, open) {
    const next = { ArrowRight: () => this.along(box, "from", "to"), ArrowLeft: () => this.along(box, "to", "from"),
      ArrowDown: () => this.beside(box, 1), ArrowUp: () => this.beside(box, -1) }[e.key];
    if (e.key === "Enter" || e.key === " ") open();
    else if (next) next()?.node.focus();
    else if (e.key === "+" || e.key === "=") this.zoom(1.3);
    else if (e.key === "-") this.zoom(1 / 1.3);
    else if (e.key === "0") this.fit(true);
    else return;
    e.preventDefault();
    e.stopPropagation();
  }

  along(box, here, there) {
    const near = this.graph.arrows.filter((a) => a[here] === box.id).map((a) => this.boxes.get(a[there]));
    return near.sort((a, b) => Math.abs(a.box.y - box.y) - Math.abs(b.box.y - box.y))[0];
  }

  beside(box, step) {
    const column = [...this.boxes.values()].filter((d) => d.box.x === box.x).sort((a, b) => a.box.y - b.box.y);
    return column[column.findIndex((d) => d.box.id === box.id) + step];
  }

  listen() {
    let held = null;
    this.svg.addEventListener("pointerdown", (e) => {
      if (e.button === 0 && !e.target.closest(".node")) {
        held = { x: e.clientX, y: e.clientY };
        this.svg.setPointerCapture(e.pointerId);
      }
    });
    this.svg.addEventListener("pointermove", (e) => {
      if (!held) return;
      this.view.x += e.clientX - held.x;
      this.view.y += e.clientY - held.y;
      held = { x: e.clientX, y: e.clientY };
      this.moved();
    });
    for (const name of ["pointerup", "pointercancel"]) this.svg.addEventListener(name, () => { held = null; });
    this.svg.addEventListener("wheel", (e) => {
      e.preventDefault();
      const box = this.svg.getBoundingClientRect();
      if (e.ctrlKey || e.metaKey) this.zoom(Math.exp(-e.deltaY / 200), e.clientX - box.left, e.clientY - box.top);
      else {
        this.view.x -= e.shiftKey ? e.deltaY : e.deltaX;
        this.view.y -= e.shiftKey ? 0 : e.deltaY;
        this.moved();
      }
    }, { passive: false });
    this.svg.addEventListener("dblclick", (e) => {
      const box = this.svg.getBoundingClientRect();
      this.zoom(1.6, e.clientX - box.left, e.clientY - box.top);
    });
  }

  get room() {
    return { width: this.svg.clientWidth || 1, height: this.svg.clientHeight || 1 };
  }

  zoom(factor, x = this.room.width / 2, y = this.room.height / 2) {
    const scale = Math.min(MOST, Math.max(LEAST, this.view.scale * factor));
    const ratio = scale / this.view.scale;
    this.view = { scale, x: x - (x - this.view.x) * ratio, y: y - (y - this.view.y) * ratio };
    this.moved();
  }

  fit(whole = false) {
    const { width, height } = this.room;
    if (!this.graph.width || width < 2) return;
    this.fitted = true;
    const all = Math.min((width - 2 * MARGIN) / this.graph.width, (height - ABOVE - MARGIN) / this.graph.height);
    const scale = Math.min(1.1, Math.max(whole || this.boxes.size > MANY ? LEAST : Math.min(READABLE, this.least), all));
    this.view = { scale, x: Math.max(MARGIN, (width - this.graph.width * scale) / 2), y: Math.max(ABOVE, (height - this.graph.height * scale) / 2) };
    this.moved();
  }

  centre(x, y, scale = this.view.scale) {
    const { width, height } = this.room;
    this.view = { scale, x: width / 2 - x * scale, y: height / 2 - y * scale };
    this.moved();
  }

  /** Moves the view so that a box is in it. */
  reveal(box) {
    const { width, height } = this.room;
    const { x, y, scale } = this.view;
    const [left, upper] = [box.x * scale + x, box.y * scale + y];
    const [right, lower] = [left + box.width * scale, upper + box.height * scale];
    if (left < 0 || upper < 0 || right > width || lower > height) this.centre(box.x + box.width / 2, box.y + box.height / 2);
  }

  moved() {
    const { x, y, scale } = this.view;
    this.scene.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
    this.svg.classList.toggle("mid", scale < NAMED && scale >= SEEN);
    this.svg.classList.toggle("far", scale < SEEN);
    this.overview.draw(this.graph, this.view, this.svg);
  }
}
