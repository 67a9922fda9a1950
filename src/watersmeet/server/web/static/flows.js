// Sources and sinks: states, rates, offsets, backlogs, problems.

import { h, mark, say } from "./dom.js";
import { behindClock, duration, healthName, rate, short, size, whole } from "./format.js";
import { isLost, known, on } from "./live.js";

const backlog = (x) => (x.backlog_messages != null ? `${short(x.backlog_messages)} messages` : x.backlog_bytes != null ? size(x.backlog_bytes) : "–");

function offsets(x) {
  if (x.offsets?.length) return x.offsets.map(([p, o]) => `${p}: ${whole(o)}`).join("   ");
  return x.files === undefined ? "" : `${whole(x.files)} files`;
}

const SOURCES = [
  ["Source", (x) => x.name], ["Connector", (x) => x.connector?.connector ?? "table"], ["State", (x) => (isLost() ? "unknown" : x.state ?? "running")],
  ["Rows/s", (x, f) => (f ? short(f.rows_in) : ""), true], ["Rows read", (x) => short(x.rows), true], ["Left to read", backlog, true],
  ["Dead letters", (x) => whole(x.dead), true], ["Late", (x) => whole(x.late), true],
  ["Event time", (x) => (x.watermark ? `${x.watermark} (${duration(behindClock(x.watermark))} ago)${x.idle ? ", idle" : ""}` : "")], ["Offsets", offsets], ["Problem", (x) => x.reason ?? x.problem ?? ""],
];
const SINKS = [
  ["Sink", (x) => x.name], ["Connector", (x) => x.connector], ["State", (x) => (isLost() ? "unknown" : x.state ?? "unknown")], ["Rows delivered", (x) => (x.delivered_rows === null ? "–" : short(x.delivered_rows)), true],
  ["Commits behind", (x) => (x.commits_behind === null ? "–" : whole(x.commits_behind)), true], ["Rows left", (x) => (x.rows_behind === null ? "–" : short(x.rows_behind)), true],
  ["Lag", (x) => (x.lag_seconds === null ? "–" : duration(x.lag_seconds)), true], ["Delivered commit", (x) => (x.delivered_commit === null ? "–" : whole(x.delivered_commit)), true], ["Problem", (x) => x.detail ?? ""],
];

let page = null;

export function show(main, query, go) {
  page = [table("Sources", SOURCES, "There is no source.", go), table("Sinks", SINKS, "There is no sink.", go)];
  main.append(h("section", { class: "sheet padded" }, page.map((t) => t.element)));
  const draw = () => {
    page[0].draw(known.sources);
    page[1].draw(known.sinks);
  };
  draw();
  const stops = [on("snapshot", draw), on("connected", draw)];
  return () => { stops.forEach((stop) => stop()); page = null; };
}

function table(title, columns, nothing, go) {
  const body = h("tbody", {});
  const empty = h("p", { class: "quiet" }, nothing);
  const total = h("span", { class: "quiet" });
  const list = h("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": title },
    h("table", { class: "list" }, h("thead", {}, h("tr", {}, columns.map(([name, , number]) => h("th", { scope: "col", class: number ? "number" : null }, name)))), body));
  const rows = new Map();
  function made(x) {
    const cells = columns.map(([, , number]) => h("td", { class: number ? "number" : null }));
    const dot = h("span", { class: "dot" });
    const link = h("a", { href: "", onclick: (e) => { e.preventDefault(); go(null, { relation: x.name }); } });
    cells[0].append(dot, link);
    return { row: h("tr", { "data-id": x.id }, cells), cells, dot, link };
  }
  function draw(found) {
    for (const id of rows.keys()) if (!found.some((x) => x.id === id)) { rows.get(id).row.remove(); rows.delete(id); }
    for (const x of found) {
      if (!rows.has(x.id)) { rows.set(x.id, made(x)); body.append(rows.get(x.id).row); }
      const { cells, dot, link } = rows.get(x.id);
      const f = known.metrics.get(x.id);
      columns.forEach(([, text], i) => say(i ? cells[i] : link, text(x, f)));
      mark(dot, "class", `dot ${healthName(f?.health)}`);
    }
    empty.hidden = found.length > 0;
    list.hidden = !found.length;
    say(total, found.length ? `${whole(found.length)}, ${rate(found.reduce((sum, x) => sum + (known.metrics.get(x.id)?.rows_in ?? 0), 0))}` : "");
    total.hidden = title !== "Sources";
  }
  return { element: h("section", {}, h("h1", {}, title, " ", total), empty, list), draw };
}
