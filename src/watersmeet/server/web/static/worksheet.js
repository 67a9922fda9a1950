// The worksheet: statements in four dialects; results as tables and charts; queries that run until they are stopped.

import { post } from "./api.js";
import { h, mark, say, tabbed } from "./dom.js";
import { clock, count, whole } from "./format.js";
import { clientSession, known, on } from "./live.js";
import { drawable, drawn } from "./chart.js";
import { explanation } from "./plan.js";
import { completing, sidebar } from "./schema.js";
import { colored, statementAt } from "./sql.js";

const KEPT = 1000; // rows of a running query that are shown
const DRAW_MS = 200;
// Text and results stay while other pages are shown, in this tab only. ran, time: the text and the time of the results.
const sheet = { text: "", dialect: null, results: [], busy: false, running: new Map(), ran: "", time: 0 };
let page = null;

/** Events of queries that arrived before the answer with the query's id. */
const early = new Map();

function told(query, act) {
  const running = sheet.running.get(query);
  if (running) act(running);
  else early.set(query, [...(early.get(query) ?? []), act]);
}

on("rows", ({ query, data }) => told(query, (running) => running.add(data)));
on("ended", ({ query, error }) => told(query, (running) => running.end(error)));
on("connected", (there) => {
  if (there) return;
  early.clear();
  for (const running of sheet.running.values()) running.end({ condition: "CONNECTION_LOST", message: "The connection was lost, and the query with it." });
});

export function show(main, query, go) {
  page = new Worksheet(main, go);
  return () => {
    page.end();
    page = null;
  };
}

export function changed() {
  const asked = sessionStorage.getItem("watersmeet.query");
  if (asked && page) {
    sessionStorage.removeItem("watersmeet.query");
    page.write(asked);
  }
}

/** The rows of a running query. */
class Running {
  constructor(query, result) {
    this.query = query;
    this.result = result;
    this.rows = [];
    this.total = 0;
    this.done = false;
    this.listeners = new Set();
  }

  add(data) {
    this.total += data.length;
    this.rows = data.length >= KEPT ? data.slice(-KEPT) : [...this.rows.slice(data.length + this.rows.length > KEPT ? data.length : 0), ...data].slice(-KEPT);
    this.tell();
  }

  end(error) {
    if (this.done) return;
    this.done = true;
    this.error = error;
    sheet.running.delete(this.query);
    this.tell();
    page?.buttons();
  }

  tell() {
    for (const listener of this.listeners) listener();
  }
}

class Worksheet {
  constructor(main, go) {
    this.go = go;
    sheet.dialect ??= known.session.dialect;
    this.back = h("pre", { class: "back", "aria-hidden": "true" });
    this.text = h("textarea", {
      class: "front", spellcheck: "false", autocapitalize: "off", autocomplete: "off", "aria-label": "Statements", rows: 10, value: sheet.text,
      placeholder: "SELECT …   (Ctrl + Space completes)", oninput: () => { this.colors(); this.complete.typed(); }, onscroll: () => this.scrolled(), onkeydown: (e) => this.key(e),
    });
    this.dialect = h("div", { class: "chips", role: "radiogroup", "aria-label": "Dialect" }, known.session.dialects.map((name) =>
      h("label", { class: "chip" }, h("input", { type: "radio", name: "dialect", value: name, checked: name === sheet.dialect, onchange: () => { sheet.dialect = name; } }), name)));
    this.run = h("button", { type: "button", class: "button primary", title: "Ctrl + Enter", onclick: () => this.send("") }, "Run");
    this.explain = h("button", { type: "button", class: "button", onclick: () => this.explained() }, "Explain");
    this.check = h("button", { type: "button", class: "button", title: "List all statements that would be refused", onclick: () => this.checked() }, "Check");
    this.subscribe = h("button", { type: "button", class: "button", title: "Follow the changes of a view", onclick: () => this.follow() }, "Subscribe");
    this.stop = h("button", { type: "button", class: "button", onclick: () => this.halt() }, "Stop");
    this.said = h("span", { class: "quiet", role: "status" });
    this.age = h("p", { class: "age quiet", hidden: true });
    this.results = h("div", { class: "results" });
    this.complete = completing(this.text, this.back, () => this.colors());
    this.schema = sidebar((name) => this.insert(name));
    const names = h("button", { type: "button", class: "button names", "aria-expanded": "false", "aria-controls": "schema", onclick: () => {
      const open = this.schema.element.classList.toggle("open");
      mark(names, "aria-expanded", String(open));
    } }, "Names");
    main.append(h("section", { class: "worksheet" }, h("h1", { class: "unseen" }, "Worksheet"), this.schema.element, h("div", { class: "desk" },
      h("div", { class: "commands" }, this.run, this.check, this.explain, this.subscribe, this.stop, names, this.dialect, this.said),
      h("div", { class: "editing" }, h("div", { class: "editor" }, this.back, this.text), this.complete.element), this.age, this.results)));
    this.colors();
    this.buttons();
    this.show();
    this.text.focus();
  }

  end() {
    this.stops?.forEach((stop) => stop());
    this.schema.end();
  }

  insert(name) {
    const { selectionStart: from, selectionEnd: to, value } = this.text;
    const space = (c) => (c === undefined || /[\s(.,]/.test(c) ? "" : " ");
    this.text.setRangeText(`${space(value[from - 1])}${name}`, from, to, "end");
    this.colors();
    this.text.focus();
  }

  write(text) {
    this.text.value = text;
    this.colors();
    this.text.focus();
  }

  colors() {
    sheet.text = this.text.value;
    this.back.replaceChildren(...colored(sheet.text), "\n");
    this.scrolled();
    this.old();
  }

  /** Dims results of an earlier text. */
  old() {
    const old = sheet.results.length > 0 && (sheet.busy || sheet.text.trim() !== sheet.ran.trim());
    this.results.classList.toggle("old", old);
    this.age.hidden = !old;
    say(this.age, old ? `Results of ${clock(sheet.time / 1000)} UTC, ${sheet.busy ? "until the new ones are complete" : "of an earlier text"}` : "");
  }

  scrolled() {
    this.back.scrollTop = this.text.scrollTop;
    this.back.scrollLeft = this.text.scrollLeft;
  }

  key(e) {
    if (this.complete.key(e)) return;
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) {
      e.preventDefault();
      this.send("");
    }
  }

  buttons() {
    for (const button of [this.run, this.check, this.explain, this.subscribe]) button.disabled = sheet.busy;
    this.stop.disabled = !sheet.busy && !sheet.running.size;
  }

  /** The selected text, or the whole text; and where it begins. */
  chosen() {
    const { selectionStart: from, selectionEnd: to, value } = this.text;
    return to > from && value.slice(from, to).trim() ? [value.slice(from, to), from] : [value, 0];
  }

  async send(prefix) {
    const [text, start] = this.chosen();
    if (!text.trim()) return;
    const { dialect } = sheet; // SET may change it
    await this.ask(() => post("/api/run", { session: clientSession, text: prefix + text, dialect }), prefix);
    page?.point(prefix, start);
    await this.rest(text, start, dialect);
  }

  /** After a statement was refused, which undoes the whole text, all statements that would be refused. */
  async rest(text, start, dialect) {
    const failed = sheet.results.at(-1)?.error;
    if (!failed?.span || failed.sql !== text) return;
    const { ran } = sheet;
    const check = await post("/api/check", { session: clientSession, text, dialect }).catch(() => null);
    if (!check || check.findings.length < 2 || sheet.ran !== ran || sheet.busy) return;
    sheet.results.push({ check, start });
    page?.show();
  }

  /** Lists the statements that would be refused, without running any. */
  async checked() {
    const [text, start] = this.chosen();
    if (!text.trim()) return;
    await this.ask(async () => {
      const check = await post("/api/check", { session: clientSession, text, dialect: sheet.dialect });
      return { results: [{ check, start }], dialect: sheet.dialect, transaction: false };
    });
  }

  /** The plan of the statement at the caret: as a tree, and as EXPLAIN prints it. */
  async explained() {
    const { selectionStart: from, selectionEnd: to, value } = this.text;
    const [text, start] = to > from ? this.chosen() : statementAt(value, from);
    if (!text.trim()) return;
    const run = (prefix) => post("/api/run", { session: clientSession, text: prefix + text, dialect: sheet.dialect });
    const prefix = /^\s*explain\b/i.test(text) ? "" : "EXPLAIN ";
    await this.ask(async () => {
      const found = await run(prefix);
      const [result] = found.results;
      if (prefix && !result.error) {
        const tree = (await run("EXPLAIN (FORMAT JSON) ")).results[0];
        result.tree = tree.error ? [] : tree.data.map(([line]) => line);
      }
      return found;
    }, "EXPLAIN ");
    page?.point(prefix, start);
  }

  /** Shows the results of a request. */
  async ask(request, prefix = "") {
    if (sheet.busy) return;
    sheet.busy = true;
    const ran = sheet.text;
    this.buttons();
    this.old();
    say(this.said, "running …");
    const began = performance.now();
    let said = "";
    try {
      const found = await request();
      sheet.results = found.results.map((result) => this.taken(result, prefix));
      sheet.dialect = found.dialect;
      const seconds = ((performance.now() - began) / 1000).toFixed(2);
      said = `${count(found.results.length, "result")} in ${seconds} s${found.transaction ? " · a transaction is open" : ""}`;
    } catch (cause) {
      sheet.results = [{ error: cause.said }];
    }
    sheet.busy = false;
    [sheet.ran, sheet.time] = [ran, Date.now()];
    if (!page) return;
    page.buttons();
    say(page.said, said);
    for (const input of page.dialect.querySelectorAll("input")) input.checked = input.value === sheet.dialect;
    page.show();
  }

  taken(result, prefix) {
    if (result.query) {
      result.running = new Running(result.query, result);
      sheet.running.set(result.query, result.running);
      for (const act of early.get(result.query) ?? []) act(result.running);
      early.delete(result.query);
    }
    return { ...result, plan: prefix !== "" && result.columns?.length === 1 };
  }

  /** Subscribes to the named views: names, or a query of one view. */
  follow() {
    const text = this.chosen()[0].trim().replace(/;\s*$/, "");
    const name = '(?:"(?:[^"]|"")+"|\\w+)(?:\\.(?:"(?:[^"]|"")+"|\\w+))?';
    const found = text.match(new RegExp(`^(?:select\\s[\\s\\S]*?\\sfrom\\s+(${name})(?:\\s[\\s\\S]*)?|(?:subscribe\\s+)?(${name}(?:\\s*,\\s*${name})*))$`, "i"));
    const names = (found?.[1] ?? found?.[2])?.match(new RegExp(name, "g"));
    if (names) this.ask(() => post("/api/follow", { session: clientSession, names }));
    else {
      sheet.results = [{ error: { condition: "SUBSCRIPTION", message: "Name a view to follow.", hint: "Write its name, or several with commas, or SELECT … FROM it, and press Subscribe." } }];
      [sheet.ran, sheet.time] = [sheet.text, Date.now()];
      this.show();
    }
  }

  async halt() {
    const asked = sheet.busy ? [null] : [...sheet.running.keys()];
    await Promise.all(asked.map((query) => post("/api/stop", { session: clientSession, query }).catch(() => null)));
  }

  /** Selects the place of an error in the text. */
  point(prefix, start) {
    const { span, sql } = sheet.results.at(-1)?.error ?? {};
    if (span && sql !== null) this.select(span, start - prefix.length);
  }

  select(span, start) {
    const from = Math.max(0, start + span.start);
    this.text.focus();
    this.text.setSelectionRange(from, Math.max(from, start + span.end));
  }

  show() {
    this.stops?.forEach((stop) => stop());
    this.stops = [];
    this.results.replaceChildren(...sheet.results.map((result, i) => this.result(result, i)));
    this.old();
  }

  result(result, i) {
    if (result.error) return problem(result.error);
    if (result.check) return findings(result.check, this.text.value.slice(0, result.start).split("\n").length - 1, (span) => this.select(span, result.start));
    const notices = result.notices.map((text) => h("p", { class: "remark" }, text));
    if (result.running) return h("article", { class: "result live" }, notices, this.running(result));
    if (!result.columns) return h("article", { class: "result" }, notices, h("p", { class: "tag" }, result.tag || "nothing to do"));
    if (result.plan) {
      const text = () => h("pre", { class: "code", tabindex: "0" }, result.data.map(([line]) => line).join("\n"));
      const tree = result.tree ? explanation(result.tree) : null;
      return h("article", { class: "result" }, notices, tree ? tabbed("Plan", [["tree", "Plan", () => tree], ["text", "Text", text]]) : text());
    }
    const cut = result.rows > result.data.length ? `, the first ${whole(result.data.length)} of them here` : "";
    const title = h("p", { class: "tag" }, `${count(result.rows, "row")}${cut}`);
    const pages = [["table", "Table", () => grid(result.columns, result.data)]];
    if (drawable(result.columns) && result.data.length) pages.push(["chart", "Chart", () => drawn(result.columns, result.data, `Chart of result ${i + 1}`)]);
    return h("article", { class: "result" }, notices, title, pages.length > 1 ? tabbed(`Result ${i + 1}`, pages) : grid(result.columns, result.data));
  }

  running(result) {
    const { running } = result;
    const title = h("p", { class: "tag", role: "status" });
    const rows = h("div", {});
    let asked = null;
    const draw = () => {
      asked = null;
      say(title, `${running.done ? "ended" : "running"} · ${count(running.total, "row")}${running.total > running.rows.length ? `, the newest ${whole(running.rows.length)} of them here` : ""}`);
      rows.replaceChildren(...(running.error ? [problem(running.error)] : []), grid(result.columns, [...running.rows].reverse(), result.sign));
    };
    const soon = () => { asked ??= setTimeout(draw, DRAW_MS); };
    running.listeners.add(soon);
    this.stops.push(() => { running.listeners.delete(soon); clearTimeout(asked); });
    draw();
    const end = h("button", { type: "button", class: "button", onclick: () => post("/api/stop", { session: clientSession, query: running.query }).catch(() => running.end(null)) }, "Stop this query");
    running.listeners.add(() => { end.hidden = running.done; });
    end.hidden = running.done;
    return [h("div", { class: "spread" }, title, end), rows];
  }
}

function problem(error) {
  return h("div", { class: "result failed", role: "alert" }, h("p", {}, h("b", {}, error.condition), error.sqlstate ? h("span", { class: "quiet" }, ` ${error.sqlstate}`) : null),
    h("p", { class: "said" }, error.message), error.detail ? h("p", {}, error.detail) : null, error.hint ? h("p", { class: "hint" }, error.hint) : null);
}

/** The statements that would be refused. lines: before the checked text. select: shows the place of an error. */
function findings({ statements, findings: found }, lines, select) {
  const refused = found.filter((f) => f.checked);
  const following = refused.filter((f) => f.follows !== null).length;
  const unknown = found.length - refused.length;
  const title = `${count(statements, "statement")}: ${refused.length || "none"} would be refused${following ? `, ${following} of them because of another one` : ""}`
    + (unknown ? `; ${unknown} can't be checked without another system` : "");
  return h("article", { class: "result check", role: "status" }, h("p", { class: "tag" }, title), h("ol", {}, found.map(({ error, line, checked, follows }) =>
    h("li", { class: follows !== null || !checked ? "quiet" : null },
      h("button", { type: "button", class: "place", onclick: () => select(error.span) }, `Line ${lines + line}`),
      h("div", {}, h("p", {}, h("b", {}, error.condition), ` ${error.message}`),
        follows === null ? [error.detail ? h("p", {}, error.detail) : null, error.hint ? h("p", { class: "hint" }, error.hint) : null]
          : h("p", {}, `It follows from line ${lines + found[follows].line}.`))))));
}

/** Rows as a table. sign: the column that is 1 for inserted and -1 for deleted rows. */
function grid(columns, rows, sign = null) {
  const number = columns.map((c) => /^(smallint|integer|bigint|real|double|numeric)/.test(c.type));
  return h("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Rows" }, h("table", { class: "list grid" },
    h("thead", {}, h("tr", {}, columns.map((c, i) => h("th", { scope: "col", class: number[i] ? "number" : null }, c.name, h("span", { class: "type" }, c.type))))),
    h("tbody", {}, rows.map((row) => h("tr", { class: sign === null ? null : row[sign].startsWith("-") ? "went" : "came" },
      row.map((value, i) => h("td", { class: value === null ? "null" : number[i] ? "number" : null }, value ?? "NULL")))))));
}
