// The planner's estimates: the current plan, and a slider over other budgets.

import { bytes, el, number, percent } from "./dom.js";

function perSecond(value) {
  return Number.isFinite(value) ? `${number(value)} tokens/s` : "not known";
}

function rows(pairs) {
  return el("dl", { className: "pairs" }, ...pairs.flatMap(([name, value]) => [
    el("dt", { textContent: name }), el("dd", { textContent: value }),
  ]));
}

function currentPlan(plan, facts) {
  const pairs = [
    ["Estimated decode", perSecond(plan.tokens_per_second)],
    ["Layers on devices", `${plan.layers_on_devices} of ${facts.layers.length}`],
    ["Used neurons off the CPU", percent(plan.used_neurons_off_cpu)],
  ];
  const parts = [["CPU", plan.seconds_cpu], ["devices", plan.seconds_devices], ["hand-offs", plan.seconds_hand_offs]];
  const known = parts.filter(([, seconds]) => Number.isFinite(seconds));
  if (known.length > 0) {
    pairs.push(["Time of a token", known.map(([name, s]) => `${name} ${number(s * 1000)} ms`).join(", ")]);
  }
  return rows(pairs);
}

/** Draws the decode speed over the budgets, with a mark at the chosen budget. */
function drawCurve(canvas, budgets, chosen) {
  const scale = window.devicePixelRatio || 1;
  const width = Math.max(200, canvas.parentElement.clientWidth);
  const height = 90;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const most = Math.max(...budgets.map((budget) => budget.tokens_per_second));
  const x = (i) => 6 + (i / Math.max(1, budgets.length - 1)) * (width - 12);
  const y = (budget) => height - 6 - (budget.tokens_per_second / most) * (height - 14);
  context.strokeStyle = style.getPropertyValue("--accent");
  context.lineWidth = 2;
  context.beginPath();
  budgets.forEach((budget, i) => context.lineTo(x(i), y(budget)));
  context.stroke();
  context.fillStyle = style.getPropertyValue("--accent");
  context.beginPath();
  context.arc(x(chosen), y(budgets[chosen]), 5, 0, 2 * Math.PI);
  context.fill();
}

function nearest(budgets, wanted) {
  let best = 0;
  budgets.forEach((budget, i) => {
    const distance = Math.abs(budget.budget_bytes - wanted);
    if (distance < Math.abs(budgets[best].budget_bytes - wanted)) best = i;
  });
  return best;
}

function slider(plans, facts) {
  const { budgets } = plans;
  const now = plans.current_bytes === null ? budgets.length - 1 : nearest(budgets, plans.current_bytes);
  const canvas = el("canvas", { "aria-hidden": "true" });
  const wrap = el("div", { className: "curve" }, canvas);
  const output = el("div", { id: "budget-estimate", "aria-live": "polite" });
  const input = el("input", {
    type: "range",
    id: "budget",
    min: 0,
    max: budgets.length - 1,
    step: 1,
    value: now,
    "aria-describedby": "budget-estimate",
  });
  const show = () => {
    const at = Number(input.value);
    const budget = budgets[at];
    input.setAttribute("aria-valuetext", bytes(budget.budget_bytes));
    const change = budget.tokens_per_second / budgets[now].tokens_per_second;
    const compared = at === now || plans.assumed ? "" : ` (${number(change)}x of the current budget)`;
    output.replaceChildren(rows([
      ["Budget", bytes(budget.budget_bytes) + (at === now && !plans.assumed ? " (current)" : "")],
      ["Estimated decode", perSecond(budget.tokens_per_second) + compared],
      ["Estimated prefill", perSecond(budget.prompt_tokens_per_second)],
      ["Layers on the device", `${budget.layers_on_devices} of ${facts.layers.length}, ${budget.layers_split ?? 0} split`],
      ["Used neurons off the CPU", percent(budget.used_neurons_off_cpu)],
    ]));
    if (wrap.isConnected) drawCurve(canvas, budgets, at);
  };
  input.addEventListener("input", show);
  const subject = plans.assumed ? `an assumed device, ${plans.device}` : plans.device;
  const node = el("div", {},
    el("label", { for: "budget", textContent: `Memory budget of ${subject}, including the driver's memory` }), input, wrap, output);
  requestAnimationFrame(show);
  show();
  return node;
}

export function showPlan(target, facts) {
  const nodes = [];
  if (facts.plan) nodes.push(currentPlan(facts.plan, facts));
  if (facts.plans?.budgets?.length > 1) nodes.push(slider(facts.plans, facts));
  else if (facts.devices.length < 2) {
    nodes.push(el("p", { className: "hint" },
      "Only the CPU computes here: there is no device memory to plan. ",
      el("code", { textContent: "thermocline plan --assume" }), " estimates the speed with a device."));
  } else nodes.push(el("p", { className: "hint", textContent: "The server sent no estimates for other budgets." }));
  target.replaceChildren(...nodes);
}
