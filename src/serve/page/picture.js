// The picture of all layers. A row shows the neurons of a layer, hot neurons left and cold neurons
// right, coloured by the device where they are resident.

import { cellValues, drawCells, firedText, skipsNeurons } from "./cells.js";
import { percent } from "./dom.js";

/** Share of the activations that is left of the line. */
const LINE_SHARE = 0.8;
/** Pixels left and right of the rows, for layer numbers and densities. */
const LEFT_MARGIN = 30;
const RIGHT_MARGIN = 50;
/** Limits on the height of a row, in pixels. */
const MAX_ROW = 22;
const MIN_ROW = 7;
/** Total height of all rows in pixels, unless a row reaches its minimum or maximum height. */
const HEIGHT = 460;

export function deviceColor(index) {
  return `var(--device-${index === 0 ? 0 : ((index - 1) % 4) + 1})`;
}

function rowHeight(n) {
  return Math.min(MAX_ROW, Math.max(MIN_ROW, Math.floor(HEIGHT / Math.max(n, 1))));
}

/** The layer at a height in the picture; null outside. */
export function layerAt(canvas, y, facts) {
  if (!facts) return null;
  const layer = Math.floor(y / rowHeight(facts.layers.length));
  return layer >= 0 && layer < facts.layers.length ? layer : null;
}

export function layerText(facts, event, index) {
  const layer = facts.layers[index];
  const experts = layer.n_experts ? layer.n_neurons / layer.n_experts : null;
  const held = layer.neurons
    .map((count, device) => [count, facts.devices[device]?.name ?? `device ${device}`])
    .filter(([count]) => count > 0)
    .map(([count, name]) => {
      const amount = experts ? `${Math.round(count / experts)} experts` : `${count.toLocaleString("en")} neurons`;
      return `${amount} on ${name}`;
    });
  const parts = [`Layer ${index}`];
  if (layer.mixer) parts.push(layer.mixer.replaceAll("_", " "));
  if (facts.devices.length > 1) parts.push(`home ${facts.devices[layer.home]?.name}`);
  parts.push(held.length > 0 ? held.join(", ") : "no feed-forward neurons");
  if (layer.n_experts_used) parts.push(`${layer.n_experts_used} experts per token`);
  const density = event?.layer_density?.[index];
  if (Number.isFinite(density)) parts.push(`${percent(density)} active`);
  const off = event?.layer_off_cpu?.[index];
  if (Number.isFinite(off) && facts.devices.length > 1) parts.push(`${percent(off)} of them off the CPU`);
  const fired = skipsNeurons(facts) ? firedText(facts, event?.fired, index) : "";
  if (fired) parts.push(fired);
  return parts.join(" \u00b7 ");
}

/** Devices of a layer, the CPU last, because the other devices have the hot neurons. */
function sortedDevices(layer) {
  const devices = layer.neurons.map((count, device) => ({ count, device })).filter(({ count }) => count > 0);
  return devices.sort((a, b) => (a.device === 0) - (b.device === 0) || a.device - b.device);
}

/** Position, as a share of the row, left of which are 80 % of the activations; null without a profile. */
function linePosition(use) {
  const all = use.reduce((sum, value) => sum + value, 0);
  if (all === 0) return null;
  let sum = 0;
  for (const [i, value] of use.entries()) {
    if (sum + value >= LINE_SHARE * all) return (i + (LINE_SHARE * all - sum) / value) / use.length;
    sum += value;
  }
  return 1;
}

export function drawPicture(canvas, { facts, event, trail, selected }) {
  const n = facts.layers.length;
  const row = rowHeight(n);
  const width = Math.max(200, canvas.parentElement.clientWidth);
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(n * row * scale);
  canvas.style.height = `${n * row}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const space = {
    context,
    color,
    left: LEFT_MARGIN,
    width: width - LEFT_MARGIN - RIGHT_MARGIN,
    row,
    devices: facts.devices.map((_, i) => color(deviceColor(i).slice(4, -1))),
  };
  const line = [];
  for (const [i, layer] of facts.layers.entries()) {
    const y = i * row;
    drawResidents(space, layer, y);
    const cells = skipsNeurons(facts) ? cellValues(event?.fired, i) : null;
    if (cells) drawCells(space, cells, y);
    else drawActive(space, i, y, event, trail[i] ?? 0);
    drawLabels(space, i, y, event, i === selected);
    const at = layer.use ? linePosition(layer.use) : null;
    if (at !== null) line.push([space.left + at * space.width, y + row / 2]);
  }
  drawLine(space, line);
}

function drawResidents({ context, devices, left, width, row }, layer, y) {
  const height = row - 1;
  let from = 0;
  for (const { count, device } of sortedDevices(layer)) {
    const to = from + count / layer.n_neurons;
    context.fillStyle = devices[device];
    if (!layer.use) {
      context.globalAlpha = 0.6;
      context.fillRect(left + from * width, y, (to - from) * width, height);
    } else {
      drawByUse(context, layer.use, [from, to], (share) => left + share * width, y, height);
    }
    from = to;
  }
  context.globalAlpha = 1;
}

/** Draws the part of a profile between two positions, stronger where neurons are used more. */
function drawByUse(context, use, [from, to], x, y, height) {
  for (const [i, value] of use.entries()) {
    const begin = Math.max(from, i / use.length);
    const end = Math.min(to, (i + 1) / use.length);
    if (end <= begin) continue;
    context.globalAlpha = 0.16 + 0.84 * Math.sqrt(Math.min(1, value));
    // Round to whole pixels, so that no gaps appear between neighbours.
    const left = Math.round(x(begin));
    context.fillRect(left, y, Math.round(x(end)) - left, height);
  }
}

/** Draws the share of neurons that fired, if the server does not report which ones. */
function drawActive({ context, color, left, width, row }, index, y, event, trail) {
  context.fillStyle = color("--fired");
  const height = Math.max(2, Math.round(row / 3));
  const top = y + Math.floor((row - 1 - height) / 2);
  context.globalAlpha = 0.35;
  context.fillRect(left, top, Math.min(1, trail) * width, height);
  context.globalAlpha = 1;
  context.fillRect(left, top, Math.min(1, event?.layer_density?.[index] ?? 0) * width, height);
}

function drawLabels({ context, color, left, width, row }, index, y, event, selected) {
  const every = Math.ceil(11 / row);
  context.font = `${Math.min(11, row + 2)}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.fillStyle = color("--muted");
  if (index % every === 0) {
    context.textAlign = "right";
    context.fillText(String(index), left - 6, y + row / 2);
    const density = event?.layer_density?.[index];
    context.textAlign = "left";
    if (Number.isFinite(density)) context.fillText(percent(density), left + width + 6, y + row / 2);
  }
  if (selected) {
    context.strokeStyle = color("--text");
    context.strokeRect(left - 0.5, y - 0.5, width + 1, row);
  }
}

function drawLine({ context, color }, points) {
  if (points.length < 2) return;
  context.strokeStyle = color("--line");
  context.lineWidth = 2;
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.stroke();
}
