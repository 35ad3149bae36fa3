// The live view of the engine's neurons. Values that the server does not report are "not known".

import { events, getJson } from "./api.js";
import { cellValues, firedSummary, skipsNeurons } from "./cells.js";
import { byId, bytes, el, number, percent } from "./dom.js";
import { deviceColor, drawPicture, layerAt, layerText } from "./picture.js";
import { showPlan } from "./plan.js";

/** Time until the next attempt after an error, in milliseconds. */
const RETRY = 3000;
/** Time after the last event at which rates are shown as zero, in milliseconds. */
const IDLE = 1500;
/** Decay of a layer's trail: the fraction of its value that is kept per event. */
const TRAIL = 0.85;

/** Fields of an event that come from the neuron counters. */
const COUNTER_FIELDS = [
  "density", "active", "active_off_cpu", "cpu_waited", "devices_waited", "layer_density", "layer_off_cpu",
];

/** Purposes of a device's memory, as itemised by the planner. */
const MEMORY_PARTS = [
  ["neurons", "neurons"],
  ["frames", "attention and norms"],
  ["cache", "KV cache and state"],
  ["ends", "embedding and head"],
  ["scratch", "scratch"],
  ["hand_offs", "hand-offs"],
];

const state = { facts: null, event: null, trail: [], selected: null, connection: null, timer: 0, idle: 0 };

/** Connects if the panel is open, otherwise disconnects. */
export function runPanel(open) {
  state.connection?.abort();
  clearTimeout(state.timer);
  clearTimeout(state.idle);
  state.connection = null;
  if (open) connect();
}

/** Redraws the panel, for example after a theme change. With `reconnect`, reconnects with a new API key. */
export function redrawPanel(reconnect) {
  if (byId("panel").hidden) return;
  if (reconnect) runPanel(true);
  else if (state.facts) showFacts();
}

export function setUpPanel() {
  const canvas = byId("picture");
  canvas.addEventListener("pointermove", (event) => {
    const layer = layerAt(canvas, event.offsetY, state.facts);
    if (layer !== null && layer !== state.selected) select(layer);
  });
  canvas.addEventListener("keydown", (event) => {
    const last = (state.facts?.layers.length ?? 0) - 1;
    const at = state.selected ?? -1;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    select(Math.min(Math.max(to, 0), last));
  });
  new ResizeObserver(() => draw()).observe(byId("picture-wrap"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redrawPanel(false));
  byId("panel").querySelector("details").addEventListener("toggle", showTable);
}

function select(layer) {
  state.selected = layer;
  byId("picture-layer").textContent = layerText(state.facts, state.event, layer);
  draw();
}

async function connect() {
  const controller = new AbortController();
  state.connection = controller;
  const { signal } = controller;
  try {
    state.facts = await getJson("thermocline", signal);
    state.trail = state.facts.layers.map(() => 0);
    showFacts();
    await events("thermocline/events", { signal }, showEvent);
  } catch (error) {
    if (signal.aborted) return;
    const missing = error.status === 404 || error.status === 501;
    byId("panel-state").textContent = missing ? "This server does not report its activity." : error.message;
    if (missing || error.status === 401) return;
  }
  if (!signal.aborted) state.timer = setTimeout(connect, RETRY);
}

function showEvent(event) {
  // Counters are read periodically. An event without counters keeps the previous values.
  const kept = event.neurons > 0 ? [] : COUNTER_FIELDS.map((name) => [name, state.event?.[name] ?? null]);
  // The neurons of the last token stay in the picture until the next one.
  const fired = event.fired ?? state.event?.fired ?? null;
  state.event = { ...event, ...Object.fromEntries(kept), fired };
  const shares = event.layer_density ?? [];
  state.trail = state.trail.map((before, i) => Math.max(shares[i] ?? 0, before * TRAIL));
  if (Number.isFinite(event.density)) state.facts.density = event.density;
  // Events are sent only while something runs, so without new events the rates are zero.
  clearTimeout(state.idle);
  if (event.running === 0) state.idle = setTimeout(showIdle, IDLE);
  showCaption();
  showGauges();
  showDevices();
  byId("picture").setAttribute("aria-label", pictureLabel());
  showTable();
  draw();
}

/** Shows that nothing runs. The picture keeps the state of the last token. */
function showIdle() {
  state.event = { ...state.event, tokens_per_second: 0, prompt_tokens_per_second: 0 };
  showGauges();
}

function showFacts() {
  const { facts } = state;
  byId("panel-state").textContent = stateText(facts);
  showCaption();
  byId("picture").setAttribute("aria-label", pictureLabel());
  showGauges();
  showLegend();
  showDevices();
  showPlan(byId("plan"), facts);
  showTable();
  draw();
}

function onlyCpu(facts) {
  return facts.devices.length < 2;
}

function stateText(facts) {
  const skipping = facts.is_sparse
    ? facts.predicts
      ? "A predictor chooses the neurons that are computed."
      : "Neurons that do not fire are skipped."
    : "This model uses all neurons for every token.";
  const where = onlyCpu(facts)
    ? "Only the CPU computes, so all neurons are resident there."
    : `The CPU and ${facts.devices.length - 1} other ${facts.devices.length > 2 ? "devices" : "device"} compute.`;
  return `${facts.model}: ${facts.layers.length} layers. ${where} ${skipping}`;
}

function captionText({ facts, event }) {
  const sorted = facts.layers.some((layer) => layer.use)
    ? "A row shows a layer's neurons from hot (left) to cold (right); hot neurons are drawn stronger."
    : "A row shows a layer's neurons; without a profile, it is not known which are hot.";
  if (!skipsNeurons(facts)) return `${sorted} All neurons fire for every token.`;
  if (event?.fired_refused) {
    return `${sorted} The bar in a row is the share of neurons that fired just now. `
      + `The server does not count which neurons fired: ${event.fired_refused}.`;
  }
  if (!event?.fired) return `${sorted} The next token that the model writes marks the neurons that fire for it.`;
  const cell = facts.layers.some((layer) => layer.n_experts) ? "experts" : "groups of neurons";
  return `${sorted} The marks are the ${cell} that fired for the token just written: the stronger a mark, the more of it fired.`;
}

function showCaption() {
  const text = captionText(state);
  const caption = byId("picture-caption");
  if (caption.textContent !== text) caption.textContent = text;
}

function pictureLabel() {
  const { facts, event } = state;
  const density = percent(facts.density);
  const fired = skipsNeurons(facts) ? firedSummary(facts, event?.fired) : "";
  return `Layers with their neurons by device. Density ${density}. ${fired} Arrow keys read the layers one by one.`;
}

function draw() {
  if (state.facts && !byId("panel").hidden) drawPicture(byId("picture"), state);
}

function showGauges() {
  const { facts, event } = state;
  const gauges = [
    ["Density", percent(event?.density ?? facts.density), "active neurons of all"],
    ["Decode", rate(event?.tokens_per_second), "tokens/s, all streams"],
    ["Prefill", rate(event?.prompt_tokens_per_second), "tokens/s"],
    ["KV blocks", event?.blocks ? `${event.blocks_used} of ${event.blocks}` : "not known", "in use"],
    ["Requests", event ? `${event.running} + ${event.queued}` : "not known", "running + queued"],
  ];
  if (!onlyCpu(facts)) {
    const off = event && event.active > 0 ? event.active_off_cpu / event.active : null;
    gauges.push(["Off the CPU", percent(off), "of active neurons"]);
  }
  // Devices wait for each other only in split layers.
  if (facts.layers.some((layer) => layer.neurons.filter((count) => count > 0).length > 1)) {
    gauges.push(
      ["CPU waited", percent(event?.cpu_waited), "for hand-offs"],
      ["Devices waited", percent(event?.devices_waited), "for hand-offs"]);
    if (Number.isFinite(event?.exchanged)) gauges.push(["Exchanged", number(event.exchanged), "neurons since load"]);
  }
  const list = byId("gauges");
  if (list.childElementCount !== gauges.length) {
    list.replaceChildren(...gauges.map(([name, , unit]) => el("div", {},
      el("dt", { textContent: name }), el("dd", { className: "value" }), el("dd", { className: "unit", textContent: unit }))));
  }
  gauges.forEach(([, value], i) => {
    list.children[i].querySelector(".value").textContent = value;
  });
}

function rate(value) {
  return Number.isFinite(value) ? (value === 0 ? "0" : number(value)) : "not known";
}

function showLegend() {
  const { facts } = state;
  const entries = facts.devices.map((device, i) => [deviceColor(i), `resident on ${device.name}`]);
  if (skipsNeurons(facts)) entries.push(["var(--fired)", "fired for the token just written"]);
  if (facts.layers.some((layer) => layer.use)) entries.push(["var(--line)", "left of the line: 80 % of activations"]);
  byId("legend").replaceChildren(...entries.map(([color, text]) => {
    const swatch = el("span", { className: "swatch", "aria-hidden": "true" });
    swatch.style.background = color;
    return el("li", {}, swatch, text);
  }));
}

/** A bar per device: its memory, itemised if the planner reports it. */
function showDevices() {
  const { facts, event } = state;
  const shown = JSON.stringify([facts.devices, event?.devices]);
  if (byId("devices").dataset.shown === shown) return;
  byId("devices").dataset.shown = shown;
  const nodes = facts.devices.map((device, i) => {
    const used = event?.devices?.[i] ?? device.used_bytes;
    const limit = device.budget_bytes ?? Math.max(used, device.peak_bytes);
    const bar = el("div", { className: "memory", "aria-hidden": "true" });
    const parts = device.parts ? MEMORY_PARTS.filter(([name]) => device.parts[name] > 0) : [];
    const known = parts.reduce((sum, [name]) => sum + device.parts[name], device.driver_bytes ?? 0);
    const all = Math.max(limit, known, 1);
    parts.forEach(([name, label], at) => bar.append(memoryPart(device.parts[name] / all, label, i, at)));
    if (parts.length === 0) bar.append(memoryPart(used / all, "in use", i, 0));
    const budget = device.budget_bytes === null ? "no limit"
      : `budget ${bytes(device.budget_bytes)}, of which the driver has about ${bytes(device.driver_bytes ?? 0)}`;
    const details = parts.map(([name, label]) => `${label} ${bytes(device.parts[name])}`).join(", ");
    return el("div", { className: "device" },
      el("p", {}, el("strong", { textContent: device.name }), ` ${bytes(used)} in use, ${budget}`),
      bar,
      details ? el("p", { className: "hint", textContent: details }) : null);
  });
  byId("devices").replaceChildren(...nodes);
}

function memoryPart(share, title, device, at) {
  const part = el("span", { title });
  part.style.width = `${Math.min(share, 1) * 100}%`;
  part.style.background = deviceColor(device);
  part.style.opacity = String(1 - 0.13 * at);
  return part;
}

function firedCells(layer) {
  const values = cellValues(state.event?.fired, layer);
  return values ? `${values.filter((value) => value > 0).length} of ${values.length}` : "not known";
}

function showTable() {
  const { facts, event } = state;
  if (!facts || !byId("panel").querySelector("details").open) return;
  const header = ["Layer", "Home", ...facts.devices.map((device) => `Neurons on ${device.name}`), "Density", "Fired"];
  const cell = (tag, text) => el(tag, { textContent: text, ...(tag === "th" ? { scope: "col" } : {}) });
  const rows = facts.layers.map((layer, i) => {
    const values = [i, facts.devices[layer.home]?.name ?? layer.home, ...layer.neurons, percent(event?.layer_density?.[i]), firedCells(i)];
    return el("tr", {}, ...values.map((value) => cell("td", String(value))));
  });
  byId("layer-table").replaceChildren(el("table", {},
    el("thead", {}, el("tr", {}, ...header.map((text) => cell("th", text)))), el("tbody", {}, ...rows)));
}
