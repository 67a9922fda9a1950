// Charts: lines over the last hour, and lines or bars of a result. Plain SVG, in the colors of the theme.

import { h, s, say } from "./dom.js";
import { clock, short } from "./format.js";

const WIDTH = 480;
const HEIGHT = 72;
const TOP = 6;
const BOTTOM = 1;
const LEAST_STEPS = 60;

/** A round number that is not below `most`, for the top of an axis. */
export function top(most) {
  if (!(most > 0)) return 1;
  const step = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 2.5, 5, 10].map((f) => f * step).find((t) => t >= most * 0.999);
}

/** The parts of a line between gaps, as paths. */
export function paths(points) {
  const found = [];
  let path = "";
  for (const point of points) {
    if (point === null) {
      if (path) found.push(path);
      path = "";
    } else path += `${path ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
  }
  if (path) found.push(path);
  return found.map((p) => (p.includes("L") ? p : `${p}h1`));
}

/** A chart of a series of `/history`: title, unit as a function of a number, and the element that shows it. */
export function hour(title, shown) {
  const value = h("output", {});
  const graph = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "graph", role: "img" });
  const axis = h("div", { class: "axis", "aria-hidden": "true" });
  const element = h("figure", { class: "chart" }, h("figcaption", {}, title, value), h("div", { class: "plot" }, axis, graph));
  let series = [];
  let end = 0;
  let step = 10;

  function draw(all, end_s, step_s) {
    // Unknown steps at the start are left out, but at least ten minutes are shown.
    const first = all.findIndex((v) => v !== null);
    const values = all.slice(Math.min(first < 0 ? all.length : first, all.length - LEAST_STEPS));
    [series, end, step] = [values, end_s, step_s];
    const there = values.filter((v) => v !== null);
    const most = top(Math.max(0, ...there));
    const x = (i) => (i / (values.length - 1)) * WIDTH;
    const y = (v) => HEIGHT - BOTTOM - (v / most) * (HEIGHT - TOP - BOTTOM);
    const line = paths(values.map((v, i) => (v === null ? null : [x(i), y(v)])));
    graph.replaceChildren(
      ...[0, 1].map((part) => s("line", { x1: 0, x2: WIDTH, y1: y(most * part), y2: y(most * part), class: "grid" })),
      ...line.map((d) => s("path", { d: `${d}V${y(0)}H${d.slice(1).split(/[ LHVh]/)[0]}Z`, class: "area" })),
      ...line.map((d) => s("path", { d, class: "line" })),
      s("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }));
    const minutes = Math.round((values.length * step_s) / 60);
    axis.replaceChildren(
      h("span", { class: "most" }, there.length ? shown(most) : ""), h("span", { class: "least" }, there.length ? "0" : ""),
      h("span", { class: "from" }, `${minutes} min ago`), h("span", { class: "to" }, "now"));
    const last = there.at(-1);
    say(value, there.length ? shown(last) : "no data yet");
    graph.setAttribute("aria-label", there.length
      ? `${title}: now ${shown(last)}, at most ${shown(Math.max(...there))} in the last hour` : `${title}: no data yet`);
  }

  graph.addEventListener("pointermove", (e) => {
    const box = graph.getBoundingClientRect();
    const part = (e.clientX - box.left) / box.width;
    const i = Math.round(Math.max(0, Math.min(1, part)) * (series.length - 1));
    const cross = graph.querySelector(".cross");
    if (!cross || !series.length) return;
    const x = (i / (series.length - 1)) * WIDTH;
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.setAttribute("visibility", "visible");
    const time = clock(end - (series.length - 1 - i) * step);
    say(value, series[i] === null ? `${time}: no data` : `${time}: ${shown(series[i])}`);
  });
  graph.addEventListener("pointerleave", () => draw(series, end, step));
  return { element, draw };
}

const COLORS = 6;

/** A number, or NaN: texts of the database, and times as milliseconds. */
function number(text) {
  if (text === null || text === "") return NaN;
  const n = Number(text);
  return Number.isNaN(n) && /^\d{4}-\d\d-\d\d/.test(text) ? Date.parse(`${text.replace(" ", "T").slice(0, 23)}Z`) : n;
}

const NUMERIC = /^(smallint|integer|bigint|real|double|numeric)/;
const TIMES = /^(date|timestamp)/;

/** The columns of a chart of a result: x, and up to six y; null if no column has numbers. */
export function drawable(columns) {
  const numbers = columns.flatMap((c, i) => (NUMERIC.test(c.type) ? [i] : []));
  const time = columns.findIndex((c) => TIMES.test(c.type));
  const name = columns.findIndex((c) => !NUMERIC.test(c.type));
  const x = time >= 0 ? time : name >= 0 ? name : numbers.length > 1 ? numbers[0] : -1;
  const y = numbers.filter((i) => i !== x).slice(0, COLORS);
  return y.length ? { x, y, lines: time >= 0 || (name < 0 && numbers.length > 1) } : null;
}

/** A chart of the rows of a result: lines along times and numbers, bars along names. */
export function drawn(columns, rows, label) {
  const what = drawable(columns);
  if (what === null || !rows.length) return h("p", { class: "quiet" }, "Nothing to draw: a chart needs a column of numbers and a row.");
  const width = Math.min(1200, Math.max(320, window.innerWidth - 90));
  const [height, left, bottom] = [320, 64, 40];
  const most = what.lines ? 2000 : 40;
  let taken = rows.slice(0, most);
  if (what.lines) taken = [...taken].sort((a, b) => number(a[what.x]) - number(b[what.x]));
  const values = what.y.map((i) => taken.map((row) => number(row[i])));
  const all = values.flat().filter(Number.isFinite);
  const high = top(Math.max(0, ...all));
  const low = Math.min(0, ...all) < 0 ? -top(-Math.min(...all)) : 0;
  const y = (v) => 10 + ((high - v) / (high - low || 1)) * (height - 10 - bottom);
  const inner = width - left - 10;
  const graph = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "drawn", role: "img", "aria-label": label });
  for (let part = 0; part <= 4; part += 1) {
    const v = low + ((high - low) * part) / 4;
    graph.append(s("line", { x1: left, x2: width - 10, y1: y(v), y2: y(v), class: "grid" }),
      s("text", { x: left - 8, y: y(v) + 4, class: "label", "text-anchor": "end" }, short(v)));
  }
  if (what.lines) {
    const along = taken.map((row) => number(row[what.x]));
    const [first, last] = [along[0], along.at(-1)];
    const x = (v) => left + ((v - first) / (last - first || 1)) * inner;
    values.forEach((series, n) => {
      for (const d of paths(series.map((v, i) => (Number.isFinite(v) && Number.isFinite(along[i]) ? [x(along[i]), y(v)] : null))))
        graph.append(s("path", { d, class: `line c${n}` }));
    });
    for (const [v, anchor] of [[0, "start"], [taken.length - 1, "end"]])
      graph.append(s("text", { x: x(along[v]), y: height - bottom + 18, class: "label", "text-anchor": anchor }, taken[v][what.x] ?? "NULL"));
  } else {
    const step = inner / taken.length;
    const bar = Math.min(46, (step * 0.8) / values.length);
    taken.forEach((row, i) => {
      values.forEach((series, n) => {
        if (!Number.isFinite(series[i])) return;
        const x = left + step * (i + 0.5) + bar * (n - values.length / 2);
        graph.append(s("rect", { x, y: Math.min(y(series[i]), y(0)), width: Math.max(1, bar - 2), height: Math.max(1, Math.abs(y(series[i]) - y(0))), class: `column c${n}` },
          s("title", {}, `${what.x < 0 ? "" : `${row[what.x] ?? "NULL"}, `}${columns[what.y[n]].name}: ${row[what.y[n]]}`)));
      });
      const name = what.x < 0 ? String(i + 1) : (row[what.x] ?? "NULL");
      const room = Math.max(3, Math.floor(step / 6.5));
      if (step > 14) graph.append(s("text", { x: left + step * (i + 0.5), y: height - bottom + 18, class: "label", "text-anchor": "middle" }, name.length > room ? `${name.slice(0, room - 1)}…` : name));
    });
  }
  const legend = h("ul", { class: "legend" }, what.y.map((i, n) => h("li", { class: `c${n}` }, columns[i].name)));
  const left_out = rows.length > taken.length ? h("p", { class: "quiet" }, `The first ${taken.length} of ${rows.length} rows.`) : null;
  return h("div", {}, graph, legend, left_out);
}
