// A small picture of the whole topology, with the visible part and the colors of all boxes.

import { h } from "./dom.js";
import { healthName } from "./format.js";
import { known } from "./live.js";

const WIDTH = 176;
const HEIGHT = 128;

/** element: to be shown; draw(graph, view, svg). move(x, y): called with the position of the pointer. */
export function overview(move) {
  const canvas = h("canvas", { class: "overview", width: WIDTH * 2, height: HEIGHT * 2, "aria-hidden": "true", hidden: true });
  const context = canvas.getContext("2d");
  // Elements with the colors of the theme, as a canvas has no style sheets.
  const probes = Object.fromEntries(["fresh", "late", "stale", "unknown", "ink"].map((name) => [name, h("i", { class: `probe ${name}` })]));
  let placed = { scale: 1, left: 0, upper: 0 };
  let asked = 0;

  function point(e) {
    const box = canvas.getBoundingClientRect();
    move((e.clientX - box.left - placed.left) / placed.scale, (e.clientY - box.top - placed.upper) / placed.scale);
  }
  canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); point(e); });
  canvas.addEventListener("pointermove", (e) => { if (e.buttons & 1) point(e); });

  function paint(graph, view, svg) {
    asked = 0;
    const room = { width: svg.clientWidth, height: svg.clientHeight };
    // It is hidden while all boxes are visible and readable.
    canvas.hidden = graph.width * view.scale <= room.width && graph.height * view.scale <= room.height && view.scale >= 0.5;
    if (canvas.hidden || !graph.width) return;
    const colors = Object.fromEntries(Object.entries(probes).map(([name, probe]) => [name, getComputedStyle(probe).color]));
    const scale = Math.min((WIDTH - 8) / graph.width, (HEIGHT - 8) / graph.height);
    placed = { scale, left: (WIDTH - graph.width * scale) / 2, upper: (HEIGHT - graph.height * scale) / 2 };
    context.setTransform(2, 0, 0, 2, 0, 0);
    context.clearRect(0, 0, WIDTH, HEIGHT);
    for (const box of graph.boxes) {
      context.fillStyle = colors[healthName(known.metrics.get(box.id)?.health)];
      context.fillRect(placed.left + box.x * scale, placed.upper + box.y * scale, Math.max(2, box.width * scale), Math.max(1, box.height * scale));
    }
    context.strokeStyle = colors.ink;
    context.lineWidth = 1;
    context.strokeRect(placed.left + (-view.x / view.scale) * scale, placed.upper + (-view.y / view.scale) * scale,
      (room.width / view.scale) * scale, (room.height / view.scale) * scale);
  }

  return {
    element: h("div", { class: "overviewed" }, canvas, Object.values(probes)),
    draw(graph, view, svg) {
      cancelAnimationFrame(asked);
      asked = requestAnimationFrame(() => paint(graph, view, svg));
    },
  };
}
