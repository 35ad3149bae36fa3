// The neurons that fired for the tokens just written. A layer has a row of cells, from hot to cold;
// a cell is a group of neighbouring neurons or experts, and its value the share that fired.

/** The value of a cell whose neurons all fired. */
const ALL_FIRED = 15;

/** The values of a row's cells, 0 to 1; null if the server reports none for the layer. */
export function cellValues(fired, layer) {
  const row = fired?.layers?.[layer];
  if (typeof row !== "string" || !/^[0-9a-f]+$/.test(row)) return null;
  return Array.from(row, (digit) => Number.parseInt(digit, 16) / ALL_FIRED);
}

/** Whether the model skips some neurons or experts for a token. */
export function skipsNeurons(facts) {
  return facts.is_sparse || facts.layers.some((layer) => layer.n_experts);
}

/** The noun for the `n` cells of `layer`, in the plural. */
function cellName(layer, n) {
  if (layer.n_experts && layer.n_experts <= n) return "experts";
  return layer.n_neurons <= n ? "neurons" : layer.n_experts ? "groups of experts" : "groups of neurons";
}

function count(values) {
  return values.filter((value) => value > 0).length;
}

function tokens(fired) {
  return fired.tokens === 1 ? "the token" : `the ${fired.tokens} tokens`;
}

/** The number of cells that fired in a layer, as a text; empty if not known. */
export function firedText(facts, fired, index) {
  const layer = facts.layers[index];
  const values = cellValues(fired, index);
  if (!values) return "";
  const text = `${count(values)} of ${values.length} ${cellName(layer, values.length)} fired for ${tokens(fired)} just written`;
  if (!layer.use || values.length < 4) return text;
  const quarter = Math.floor(values.length / 4);
  const hot = count(values.slice(0, quarter));
  const cold = count(values.slice(-quarter));
  return `${text}: ${hot} of the ${quarter} hottest, ${cold} of the ${quarter} coldest`;
}

/** The number of cells that fired in all layers, as a text; empty if not known. */
export function firedSummary(facts, fired) {
  const rows = facts.layers.map((_, i) => cellValues(fired, i)).filter((values) => values !== null);
  if (rows.length === 0) return "";
  const sum = (number) => rows.reduce((all, values) => all + number(values), 0);
  return `${sum(count)} of ${sum((values) => values.length)} groups fired for ${tokens(fired)} just written.`;
}

/** Draws the cells over a row: the more of a cell fired, the stronger its mark. */
export function drawCells({ context, color, left, width, row }, values, y) {
  const x = (i) => Math.round(left + (i / values.length) * width);
  const top = y + Math.floor(row / 4);
  const height = Math.max(3, row - 1 - 2 * Math.floor(row / 4));
  context.fillStyle = color("--fired");
  for (const [i, value] of values.entries()) {
    if (value === 0) continue;
    context.globalAlpha = 0.25 + 0.75 * value;
    context.fillRect(x(i), top, Math.max(1, x(i + 1) - x(i) - (width > 4 * values.length ? 1 : 0)), height);
  }
  context.globalAlpha = 1;
}
