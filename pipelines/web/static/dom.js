// Elements from data. Text always goes in as text, so nothing of the wire is ever read as markup.

/** An element: `h("p", {class: "note"}, "text", child)`. Attributes that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

let panels = 0;

/** A titled section with a body to fill: `{root, body, tools}`. */
export function panel(title, { width = "", note = "" } = {}) {
  const id = `panel-${(panels += 1)}`;
  const tools = h("div", { class: "tools" });
  const body = h("div", { class: "body" });
  const root = h("section", { class: `panel ${width}`, "aria-labelledby": id },
    h("header", {}, h("h2", { id }, title), tools, note && h("p", { class: "note" }, note)), body);
  return { root, body, tools };
}

/** A table from headings and rows of cells (strings or elements); columns in `right` hold numbers. */
export function table(caption, headings, rows, { right = [] } = {}) {
  const side = (at) => (right.includes(at) ? "num" : null);
  return h("div", { class: "scroll", tabindex: rows.length > 8 ? 0 : null, role: "group", "aria-label": caption },
    h("table", {}, h("caption", { class: "sr" }, caption),
      h("thead", {}, h("tr", {}, headings.map((text, at) => h("th", { scope: "col", class: side(at) }, text)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, at) =>
        at === 0 ? h("th", { scope: "row", class: side(at) }, cell) : h("td", { class: side(at) }, cell)))))));
}

/** Radio buttons as one control; calls `chosen(value)`. */
export function choice(label, options, value, chosen) {
  const name = `choice-${(panels += 1)}`;
  return h("fieldset", { class: "choice" }, h("legend", { class: "sr" }, label), options.map(([each, text]) =>
    h("label", {}, h("input", { type: "radio", name, value: each, checked: each === value, onchange: () => chosen(each) }), h("span", {}, text))));
}
