// The plan of a view as a tree, with what its operators did.

import { h } from "./dom.js";
import { count, short, size } from "./format.js";

/** Operators are called by what they do: `StreamHashJoin` is a hash join. */
export const called = (name) => name.replace(/^Stream/, "").replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();

/** What an operator had to do with: rows in, or of one that reads, rows out. */
const rows = (f) => Math.max(f.rows_in ?? 0, f.rows_in ? 0 : f.rows_out ?? 0);

function figures(f, most) {
  const parts = [];
  if (f.rows_in !== undefined) {
    if (f.rows_in || !f.rows_out) parts.push(h("span", {}, `${short(f.rows_in)} in`));
    parts.push(h("span", {}, `${short(f.rows_out)} out`));
    if (f.rows_in > 0 && f.rows_out > f.rows_in) parts.push(h("span", { class: "fan", title: "Rows out for each row in" }, `× ${short(f.rows_out / f.rows_in)}`));
  }
  if (f.state_rows) parts.push(h("span", {}, `keeps ${short(f.state_rows)}, ${size(f.state_bytes)}`));
  if (f.expression_errors) parts.push(h("span", { class: "bad" }, count(f.expression_errors, "error")));
  const share = most ? Math.max(0.01, rows(f) / most) : 0;
  return h("div", { class: "work" }, h("meter", { class: "share", min: 0, max: 1, value: share, "aria-label": "Rows, against the operator with the most" }), parts);
}

function node(tree, most) {
  const fields = Object.entries(tree.fields);
  return h("li", {},
    h("div", { class: "operator" }, h("p", {}, h("b", {}, called(tree.name)), tree.flags.map((f) => h("span", { class: "flag" }, f.replaceAll("_", " ")))),
      fields.length ? h("dl", {}, fields.map(([name, value]) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, value)])) : null,
      Object.keys(tree.figures).length ? figures(tree.figures, most) : null),
    tree.inputs.length ? h("ul", {}, tree.inputs.map((i) => node(i, most))) : null);
}

export function planned(plan) {
  const all = (tree) => [tree, ...tree.inputs.flatMap(all)];
  const most = Math.max(0, ...all(plan.root).map((t) => rows(t.figures)));
  return h("div", { class: "plan" }, h("p", { class: "quiet" }, plan.epochs ? `Rows in and out over the last ${count(plan.epochs, "epoch")}; what is kept is as of the newest.` : "No epoch has run yet."), h("ul", {}, node(plan.root, most)));
}
