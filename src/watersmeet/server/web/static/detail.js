// The details of one relation: metrics, the last hour, its SQL, its plan, its dead letters.

import { get } from "./api.js";
import { h, mark, say, tabbed } from "./dom.js";
import { behindClock, count, duration, freshness, healthName, rate, short, size, whole } from "./format.js";
import { known, on } from "./live.js";
import { hour } from "./chart.js";
import { planned } from "./plan.js";
import { colored, quoted } from "./sql.js";

const HISTORY_MS = 10000;
const LISTED = 8; // of the relations that it reads, or that read it; the others are folded

let opened = null;

export function openDetail(drawer, name, go) {
  if (opened?.name === name) return;
  const before = opened?.tab;
  opened?.end();
  opened = new Detail(drawer, name, go, before);
  opened.load();
}

export function closeDetail(drawer) {
  if (!opened) return;
  const { id } = opened;
  opened.end();
  opened = null;
  drawer.hidden = true;
  document.querySelector(`.node[data-id="${CSS.escape(id)}"], tr[data-id="${CSS.escape(id)}"] a`)?.focus({ preventScroll: true });
}

const link = (go, relation) => h("a", { href: "", class: "relation", onclick: (e) => { e.preventDefault(); go(null, { relation: relation.name }); } }, relation.name);

/** The newest result of VERIFY. */
function verified(v) {
  if (!v) return null;
  const why = v.outcome === "differs" ? `: ${count(v.missing, "row")} missing, ${whole(v.extra)} wrong` : v.reason ? `: ${v.reason}` : "";
  return [h("h3", {}, "Verified"), h("p", { class: v.outcome === "differs" ? "problem" : "" }, `${v.outcome} at commit ${whole(v.commit)}${why}`),
    h("p", { class: "quiet" }, `${new Date(v.time_us / 1000).toLocaleString()}, ${v.outcome === "not provable" ? "nothing to sign" : v.signed_by ? `signed by ${v.signed_by.slice(0, 16)}…` : "unsigned"}`)];
}

class Detail {
  constructor(drawer, name, go, tab) {
    this.drawer = drawer;
    this.name = name;
    this.id = null;
    this.go = go;
    this.tab = tab;
    this.charts = [
      ["rows_in", hour("Rows in", rate)], ["rows_out", hour("Rows out", rate)], ["rows", hour("Content", (n) => `${short(n)} rows`)],
      ["lag_s", hour("Lag", duration)], ["size_bytes", hour("Size", size)],
    ];
    this.stops = [on("connected", () => this.fill()), on("snapshot", ({ changed, gone }) => (gone.includes(this.id) ? this.gone() : changed.has(this.id) && this.fill()))];
    this.timer = setInterval(() => this.history(), HISTORY_MS);
    this.state = h("p", { class: "state" });
    this.facts = h("dl", { class: "facts" });
    this.time = h("p", { class: "eventtime" });
    this.title = h("h2", { tabindex: "-1" }, "…");
    this.what = h("p", { class: "quiet" });
    this.content = h("div", { class: "content" });
    drawer.hidden = false;
    drawer.replaceChildren(
      h("div", { class: "head" }, h("div", {}, this.title, this.what),
        h("div", { class: "actions" },
          h("button", { type: "button", class: "button", onclick: () => go("topology", { around: name, relation: name }) }, "Lineage"),
          h("button", { type: "button", class: "button", onclick: () => this.query() }, "Query"),
          h("button", { type: "button", class: "icon", "aria-label": "Close", title: "Close (Esc)", onclick: () => go(null, { relation: null }) }, "×"))),
      this.state, this.content);
    drawer.onkeydown = (e) => { if (e.key === "Escape" && !document.querySelector("dialog[open]")) { e.stopPropagation(); go(null, { relation: null }); } };
  }

  end() {
    this.stops.forEach((stop) => stop());
    clearInterval(this.timer);
    this.ended = true;
  }

  gone() {
    say(this.state, "It was dropped.");
    mark(this.state, "class", "state unknown");
  }

  async load() {
    let found;
    try {
      found = await get(`/api/relations/${encodeURIComponent(this.name)}`);
    } catch (cause) {
      if (this.ended) return;
      say(this.title, this.name);
      this.content.replaceChildren(h("p", { class: "problem", role: "alert" }, cause.message));
      return;
    }
    if (this.ended) return;
    this.relation = found;
    this.id = found.id;
    say(this.title, found.name);
    say(this.what, found.what);
    const letters = found.source?.dead ?? this.deadOf(found);
    const pages = [["overview", "Overview", () => this.overview()], ["sql", "SQL", () => this.sql()]];
    if (found.plan) pages.push(["plan", "Plan", () => planned(found.plan)]);
    if (found.source || found.captured) pages.push(["source", "Source", () => this.source()]);
    pages.push(["letters", "Dead letters", () => this.letters(), letters ? short(letters) : null]);
    this.content.replaceChildren(tabbed(found.name, pages, this.tab, (name) => { this.tab = name; }));
    this.fill();
    this.history();
    this.title.focus({ preventScroll: true });
  }

  /** The number of dead letters of the sources that it reads. */
  deadOf(found) {
    const reads = new Set(found.reads.map((r) => r.id));
    return known.sources.filter((x) => reads.has(x.id)).reduce((sum, x) => sum + x.dead, 0);
  }

  fill() {
    const f = known.metrics.get(this.id);
    if (!this.relation) return;
    this.state.hidden = !f;
    if (!f) return;
    mark(this.state, "class", `state ${healthName(f.health)}`);
    const why = this.relation.error ? `${this.relation.error.condition}: ${this.relation.error.message}` : f.note;
    say(this.state, why ? `${freshness(f)} – ${why}` : freshness(f));
    const isView = this.relation.plan !== null;
    const facts = [
      ["Rows in", rate(f.rows_in)], isView && ["Rows out", rate(f.rows_out)], ["Rows", short(f.rows), whole(f.rows)],
      f.size_bytes !== null && [isView ? "State" : "Size", size(f.size_bytes)], f.backlog !== null && ["Backlog", `${short(f.backlog)} ${f.unit}`],
      ["Errors", whole(f.errors)], (f.late > 0 || f.held_back_by) && ["Late rows", whole(f.late)],
    ].filter(Boolean);
    if (this.facts.children.length !== facts.length) this.facts.replaceChildren(...facts.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}))));
    facts.forEach(([, text, title], i) => {
      const dd = this.facts.children[i].lastChild;
      say(dd, text);
      mark(dd, "title", title);
    });
    this.eventTime(f);
  }

  eventTime(f) {
    this.time.hidden = !f.watermark && !f.held_back_by;
    if (this.time.hidden) return;
    const behind = f.watermark ? behindClock(f.watermark) : null;
    const holder = [...known.sources].find((x) => x.name === f.held_back_by);
    this.time.replaceChildren(
      f.watermark ? h("span", {}, "Event time has reached ", h("b", {}, f.watermark), behind === null ? "" : `, ${duration(behind)} behind the clock`) : h("span", {}, "Event time has not begun"),
      f.held_back_by ? h("span", {}, f.watermark ? "; held back by " : ": it waits for ", holder ? link(this.go, holder) : h("b", {}, f.held_back_by)) : "", ".");
  }

  async history() {
    const found = await get(`/api/relations/${encodeURIComponent(this.name)}/history`).catch(() => null);
    if (!found || this.ended) return;
    for (const [name, chart] of this.charts) {
      const has = found[name].some((v) => v !== null);
      chart.element.hidden = !known.metrics.has(this.id) || (name !== "rows_in" && (!has || (name === "rows_out" && !this.relation?.plan)));
      chart.draw(found[name], found.end_s, found.step_s);
    }
  }

  overview() {
    const found = this.relation;
    const links = (relations) => h("p", { class: "listed" }, relations.map((r) => link(this.go, r)));
    const listed = (title, relations) => (relations.length === 0 ? null : [h("h3", {}, title), links(relations.slice(0, LISTED)),
      relations.length > LISTED ? h("details", {}, h("summary", {}, `${whole(relations.length - LISTED)} more`), links(relations.slice(LISTED))) : null]);
    return h("div", {}, this.facts, this.time, h("div", { class: "charts" }, this.charts.map(([, chart]) => chart.element)),
      verified(found.verified), listed("Reads", found.reads), listed("Read by", found.read_by),
      h("h3", {}, "Columns"), h("table", { class: "plain" }, h("tbody", {}, found.columns.map((c) => h("tr", {}, h("td", {}, c.name), h("td", { class: "quiet" }, c.type), h("td", { class: "quiet" }, [c.nullable ? "" : "not null", found.key.includes(c.name) ? "key" : ""].filter(Boolean).join(", ")))))));
  }

  sql() {
    const { sql, dialect, connector } = this.relation;
    const options = Object.entries(connector);
    return h("div", {}, h("p", { class: "quiet" }, `In the dialect ${dialect}.`), h("pre", { class: "code", tabindex: "0" }, sql ? colored(sql) : "It has no SQL."),
      options.length ? [h("h3", {}, "Connector"), h("table", { class: "plain" }, h("tbody", {}, options.map(([name, value]) => h("tr", {}, h("td", {}, name), h("td", { class: "mono" }, String(value))))))] : null);
  }

  source() {
    const said = this.relation.source ?? {};
    const rows = [];
    const offsets = said.offsets ?? [];
    for (const [name, value] of [...Object.entries(said), ...Object.entries(this.relation.captured ?? {})]) {
      if (name === "offsets" || !value || (Array.isArray(value) && !value.length)) continue;
      rows.push(h("tr", {}, h("td", {}, name.replaceAll("_", " ")), h("td", { class: "mono" }, typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? whole(value) : String(value))));
    }
    return h("div", {}, h("table", { class: "plain" }, h("tbody", {}, rows)),
      offsets.length ? [h("h3", {}, count(offsets.length, "partition")), h("table", { class: "plain" }, h("thead", {}, h("tr", {}, h("th", {}, "Partition"), h("th", { class: "number" }, "Next offset"))), h("tbody", {}, offsets.map(([partition, next]) => h("tr", {}, h("td", {}, partition), h("td", { class: "number" }, whole(next))))))] : null);
  }

  letters() {
    const list = h("div", {}, h("p", { class: "quiet" }, "…"));
    get(`/api/relations/${encodeURIComponent(this.name)}/letters`).then(({ letters }) => {
      list.replaceChildren(...(letters.length ? letters.map((l) => h("article", { class: "letter" },
        h("p", {}, h("b", {}, l.place), l.number === null ? "" : l.is_message ? `, offset ${whole(l.number)}` : `, line ${whole(l.number)}`, h("span", { class: "quiet" }, ` · ${l.source}`)),
        h("p", { class: "reason" }, l.reason), l.text ? h("pre", { class: "code small", tabindex: "0" }, l.text) : null)) : [h("p", { class: "quiet" }, "There are no dead letters.")]));
    }, (cause) => list.replaceChildren(h("p", { class: "problem" }, cause.message)));
    return list;
  }

  query() {
    if (!this.relation) return;
    sessionStorage.setItem("watersmeet.query", `SELECT * FROM ${quoted(this.relation.name)} LIMIT 100`);
    this.go("worksheet", { relation: null });
  }
}
