// Elements. Texts stay texts: no function accepts HTML.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/** An element of HTML with attributes, listeners (`onclick`) and children. */
export const h = (tag, properties, ...children) => filled(document.createElement(tag), properties, children);

/** An element of SVG. */
export const s = (tag, properties, ...children) => filled(document.createElementNS(SVG, tag), properties, children);

/** Sets a text if it differs, so that equal texts are not drawn again. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets an attribute if it differs; null removes it. */
export function mark(node, name, value) {
  if (value === null || value === undefined) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** A row of tabs and the panel below it. pages: [name, title, () => content]; `count` may follow the title. */
export function tabbed(label, pages, chosen, choose) {
  const panel = h("div", { class: "panel", role: "tabpanel", tabindex: "0" });
  const buttons = pages.map(([name, title, , count]) =>
    h("button", {
      role: "tab", type: "button", "data-name": name, onclick: () => show(name, true),
      onkeydown: (e) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
        if (!step) return;
        e.preventDefault();
        const next = buttons[(buttons.findIndex((b) => b.dataset.name === name) + step + buttons.length) % buttons.length];
        show(next.dataset.name, true);
        next.focus();
      },
    }, title, count ? h("span", { class: "count" }, count) : null));
  function show(name, said) {
    const page = pages.find((p) => p[0] === name) ?? pages[0];
    for (const b of buttons) {
      mark(b, "aria-selected", b.dataset.name === page[0]);
      b.tabIndex = b.dataset.name === page[0] ? 0 : -1;
    }
    panel.setAttribute("aria-label", page[1]);
    panel.replaceChildren(page[2]());
    if (said) choose?.(page[0]);
  }
  show(chosen ?? pages[0][0], false);
  return h("div", { class: "tabbed" }, h("div", { class: "tabs", role: "tablist", "aria-label": label }, buttons), panel);
}
