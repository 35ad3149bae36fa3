// Small helpers over the DOM. Text always goes through textContent, never through HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Makes an element. `props` are properties (`className`, `textContent`, ...), `on*` handlers,
 * `data`, and attributes whose name contains a dash or is `role` or `for`.
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "data") Object.assign(node.dataset, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role" || name === "for") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function byId(id) {
  return document.getElementById(id);
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Outlines on a 16 x 16 grid.
const ICONS = {
  copy: "M5.5 5.5V2.5h8v8h-3M2.5 5.5h8v8h-8z",
  edit: "M3 13l.6-2.9L10.8 3l2.2 2.2-7.1 7.2zM9.5 4.3l2.2 2.2",
  again: "M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3",
  trash: "M3 4.5h10M6.5 4.5v-2h3v2M4.3 4.5l.7 9h6l.7-9",
  left: "M10 3L5 8l5 5",
  right: "M6 3l5 5-5 5",
  close: "M4 4l8 8M12 4l-8 8",
  download: "M8 2v8M4.5 7L8 10.5 11.5 7M3 13.5h10",
};

/** An icon, hidden from assistive technology because its button has a label. */
export function icon(name) {
  const path = svg("path", { d: ICONS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, path);
}

/** A button with an icon and a label that is read aloud and shown as a tooltip. */
export function iconButton(name, label, onclick, props = {}) {
  const button = el("button", { type: "button", className: "icon-button", title: label, onclick, ...props });
  button.setAttribute("aria-label", label);
  button.append(icon(name));
  return button;
}

/** Announces `text` to screen readers. */
export function say(text) {
  const live = byId("announce");
  live.textContent = "";
  // A change in the next frame is announced even if the text is the same.
  requestAnimationFrame(() => {
    live.textContent = text;
  });
}

/** Shows a message that stays until it is closed or `hideError` is called. */
export function showError(text) {
  byId("error-text").textContent = text;
  byId("error").hidden = false;
}

export function hideError() {
  byId("error").hidden = true;
}

/** Copies a text. Without the clipboard API, copies it from a selection. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { value: text, className: "off-screen", readOnly: true });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A number of bytes with a binary unit. */
export function bytes(n) {
  if (n === null || n === undefined) return "not known";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = n;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

/** A number with three significant digits; "not known" for null. */
export function number(n) {
  if (n === null || n === undefined || !Number.isFinite(n)) return "not known";
  if (n >= 1000) return Math.round(n).toLocaleString("en");
  return String(Number(n.toPrecision(3)));
}

export function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return "not known";
  const value = share * 100;
  return `${value >= 10 || value === 0 ? Math.round(value) : value.toPrecision(2)} %`;
}
