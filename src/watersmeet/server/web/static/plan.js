// Plans as trees: of a view with the metrics of its operators, and of EXPLAIN.

import { h } from "./dom.js";
import { count, short, size } from "./format.js";

/** Operators are called by what they do: `StreamHashJoin` and `HASH_JOIN` are a hash join. */
export const called = (name) => name.replace(/^(Stream|Batch|Logical)/, "").replace(/([a-z])([A-Z])/g, "$1 $2").replaceAll("_", " ").trim().toLowerCase();

const milliseconds = (us) => `${short(us / 1000)} ms`;

function metrics(f, most) {
  const parts = [];
  if (f.us_per_epoch !== undefined) parts.push(h("span", { class: "time", title: `${(100 * f.share).toFixed(1)} % of the epochs' time` }, milliseconds(f.us_per_epoch)));
  if (f.rows_in || (f.rows_in === 0 && !f.rows_out)) parts.push(h("span", {}, `${short(f.rows_in)} in`));
  if (f.rows_out !== undefined) parts.push(h("span", { title: f.rows_out_per_second === undefined ? "" : `${short(f.rows_out_per_second)} rows/s` }, `${short(f.rows_out)} out`));
  if (f.fan_out > 1) parts.push(h("span", { class: "fan", title: "Rows out for each row in" }, `× ${short(f.fan_out)}`));
  if (f.state_rows) parts.push(h("span", {}, `keeps ${short(f.state_rows)}, ${size(f.state_bytes)}`));
  if (f.expression_errors) parts.push(h("span", { class: "bad" }, count(f.expression_errors, "error")));
  const part = most && f.took_us !== undefined ? Math.max(0.01, f.took_us / most) : 0;
  return h("div", { class: "work" }, h("meter", { class: "share", min: 0, max: 1, value: part, "aria-label": "Time, against the operator that takes most" }), parts);
}

function node(tree, most) {
  const fields = Object.entries(tree.fields);
  const flags = [...tree.flags.map((f) => f.replaceAll("_", " ")), ...(tree.shown_before ? ["shown above"] : [])];
  return h("li", {},
    h("div", { class: "operator" }, h("p", {}, h("b", {}, called(tree.name)), flags.map((f) => h("span", { class: "flag" }, f)),
      tree.shared_with.length ? h("span", { class: "flag", title: "Its state also serves these relations" }, `shared with ${tree.shared_with.join(", ")}`) : null),
      fields.length ? h("dl", {}, fields.map(([name, value]) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, value)])) : null,
      Object.keys(tree.metrics).length ? metrics(tree.metrics, most) : null),
    tree.inputs.length ? h("ul", {}, tree.inputs.map((i) => node(i, most))) : null);
}

function summary(plan) {
  if (!plan.epochs) return "No epoch has run yet.";
  const each = milliseconds(plan.duration_us / plan.epochs);
  const own = plan.share === null ? "" : `, of which these operators have ${(100 * plan.share).toFixed(plan.share < 0.1 ? 1 : 0)} %`;
  return `Rows over the last ${count(plan.epochs, "epoch")}, time of one of them. An epoch takes ${each}${own}. State is as of the newest.`;
}

export function planned(plan) {
  const all = (tree) => [tree, ...tree.inputs.flatMap(all)];
  const most = Math.max(0, ...all(plan.root).map((t) => t.metrics.took_us ?? 0));
  return h("div", { class: "plan" }, h("p", { class: "quiet" }, summary(plan)), h("ul", {}, node(plan.root, most)));
}

/** A tree of EXPLAIN (FORMAT JSON) for `node`. */
function explained(tree) {
  // DuckDB packs values before it sorts and groups them, and reorders columns: projections that nobody has written.
  const projected = [tree.extra_info?.Projections ?? []].flat();
  const own = tree.name.trim() === "PROJECTION" && projected.every((p) => /^#\d+$/.test(p) || p.includes("__internal_"));
  if (own && tree.children.length === 1) return explained(tree.children[0]);
  const fields = tree.fields ?? Object.fromEntries(Object.entries(tree.extra_info ?? {}).filter(([name, value]) => name !== "Type" && !/^(#\d+(, )?)+$/.test([value].flat().join(", ")))
    .map(([name, value]) => (name === "Estimated Cardinality" ? ["about", `${value} rows`] : [name.toLowerCase(), [value].flat().join(", ")])));
  return { name: tree.name, fields, flags: tree.flags ?? [], shared_with: [], metrics: {}, inputs: tree.children.map(explained) };
}

/** The lines of EXPLAIN (FORMAT JSON) as a tree; null if they are something else. */
export function explanation(lines) {
  try {
    const found = JSON.parse(lines.join("\n"));
    return h("div", { class: "plan" }, h("ul", {}, [found.plan ?? found].flat().map((tree) => node(explained(tree), 0))));
  } catch {
    return null;
  }
}
