// Highlighting of SQL: keywords, texts, numbers, comments. It needs no grammar, so it fits all dialects.

export const WORDS = new Set(("ADD AFTER ALL ALTER AND ANY APPEND AS ASC ASOF BEGIN BETWEEN BY CASCADE CASE CAST CHANGELOG COMMIT CONNECTION COPY CREATE CROSS DATABASE DEFAULT "
  + "DELETE DESC DESCRIBE DICTIONARY DISTINCT DROP ELSE EMIT ENCODE END EXCEPT EXISTS EXPLAIN EXTERNAL FALSE FETCH FILTER FLUSH FOR FORMAT FROM FULL GRANT GROUP HAVING HOP IF IN "
  + "INDEX INNER INSERT INTERSECT INTERVAL INTO IS JOIN KEY KILL LATERAL LATEST LEFT LIKE LIMIT MATERIALIZED MERGE NATURAL NOT NULL OF OFFSET ON ONLY OR ORDER OUTER OVER "
  + "PARTITION PRIMARY PROCESSOR PROCTIME PROGRESS PUMP QUERY RANGE REPLACE REVOKE RIGHT ROLLBACK ROW ROWS SCHEMA SECRET SELECT SET SETTINGS SHOW SINK SNAPSHOT SOURCE "
  + "STREAM STREAMING SUBSCRIBE SYSTEM_TIME TABLE THEN TO TOPIC TRUE TUMBLE UNION UNIQUE UP UPDATE USING VALUES VIEW WATERMARK WHEN WHERE WINDOW WITH WITHIN").split(" "));

const TOKEN = /(--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|('(?:[^']|'')*(?:'|$))|("(?:[^"]|"")*(?:"|$)|`[^`]*(?:`|$))|(\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b)|([A-Za-z_][A-Za-z0-9_$]*)/g;
const CLASSES = ["comment", "text", "quoted", "number", "word"];

/** The parts of a text: [class or "", text]. */
export function parts(text) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > end) found.push(["", text.slice(end, match.index)]);
    const kind = CLASSES[match.slice(1).findIndex((g) => g !== undefined)];
    found.push([kind === "word" && !WORDS.has(match[0].toUpperCase()) ? "" : kind, match[0]]);
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push(["", text.slice(end)]);
  return found;
}

/** The highlighted text, as nodes. */
export function colored(text) {
  return parts(text).map(([kind, part]) => {
    if (!kind) return document.createTextNode(part);
    const span = document.createElement("span");
    span.className = `sql-${kind}`;
    span.textContent = part;
    return span;
  });
}

/** The statement at a place of a text, and where it begins. */
export function statementAt(text, place) {
  let [start, end] = [0, 0];
  for (const [kind, part] of parts(text)) {
    for (let i = kind ? -1 : part.indexOf(";"); i >= 0; i = part.indexOf(";", i + 1)) {
      if (end + i >= place) return [text.slice(start, end + i), start];
      if (text.slice(end + i + 1).trim()) start = end + i + 1;
    }
    end += part.length;
  }
  return [text.slice(start), start];
}

/** Whether a place is inside of a comment or a text in quotes. */
export function isProse(text, place) {
  let end = 0;
  for (const [kind, part] of parts(text.slice(0, place))) {
    end += part.length;
    if (end === place) return kind === "comment" || (kind === "text" && (part.length === 1 || !part.endsWith("'")));
  }
  return false;
}

/** A name as a statement needs it. */
export const quoted = (name) =>
  name.split(".").map((part) => (/^[a-z_][a-z0-9_]*$/.test(part) && !WORDS.has(part.toUpperCase()) ? part : `"${part.replaceAll('"', '""')}"`)).join(".");
