// Settings: sampling parameters, system prompt, API key, theme. Empty fields use the server's
// defaults.

import { setKey } from "./api.js";
import { byId, el, number } from "./dom.js";
import { loadKey, loadSettings, saveKey, saveSettings } from "./store.js";

// Name in the request, label, range, step and description.
const NUMBERS = [
  ["temperature", "Temperature", 0, 5, 0.05, "0 always takes the most likely token"],
  ["top_k", "Top k", 0, 1000, 1, "samples from the k most likely tokens; 0 is off"],
  ["top_p", "Top p", 0, 1, 0.01, "samples from the most likely tokens with this total probability; 1 is off"],
  ["min_p", "Min p", 0, 1, 0.01, "drops tokens below this fraction of the highest probability; 0 is off"],
  ["repeat_penalty", "Repeat penalty", 0.1, 3, 0.01, "1 is off"],
  ["max_tokens", "Maximum tokens", 1, 1_000_000, 1, "of an answer"],
  ["seed", "Seed", 0, 4294967295, 1, "the same seed gives the same answer"],
];
const MAX_STOPS = 8;

const state = {
  theme: "system",
  system: "",
  stop: "",
  panel: window.innerWidth >= 1200,
  sidebar: true,
  model: "",
  ...loadSettings(),
};

export function setting(name) {
  return state[name];
}

export function changeSetting(name, value) {
  state[name] = value;
  saveSettings(state);
}

export function parameters() {
  const chosen = {};
  for (const [name] of NUMBERS) {
    if (Number.isFinite(state[name])) chosen[name] = state[name];
  }
  const stops = state.stop.split("\n").filter((line) => line !== "").map(unescape);
  if (stops.length > 0) chosen.stop = stops.slice(0, MAX_STOPS);
  return chosen;
}

/** Replaces the escapes `\n` and `\t` that users type in a field. */
function unescape(text) {
  return text.replaceAll("\\n", "\n").replaceAll("\\t", "\t");
}

export function applyTheme() {
  const { theme } = state;
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function field(id, label, control, hint) {
  control.id = id;
  const parts = [el("label", { for: id, textContent: label }), control];
  if (hint) {
    control.setAttribute("aria-describedby", `${id}-hint`);
    parts.push(el("span", { id: `${id}-hint`, className: "hint", textContent: hint }));
  }
  return el("div", { className: "field" }, ...parts);
}

function numberField([name, label, min, max, step, hint]) {
  const input = el("input", {
    type: "number",
    min,
    max,
    step: step === 1 ? 1 : "any",
    placeholder: "server default",
    value: Number.isFinite(state[name]) ? state[name] : "",
    oninput: () => {
      const value = input.valueAsNumber;
      const valid = Number.isFinite(value) && value >= min && value <= max;
      input.setAttribute("aria-invalid", String(input.value !== "" && !valid));
      changeSetting(name, valid ? value : null);
    },
  });
  return field(`set-${name}`, label, input, hint);
}

/** Shows the server's parameters in empty fields. */
export function showDefaults(params) {
  for (const [name] of NUMBERS) {
    // Without a fixed seed, the server uses a new random seed for each request.
    const value = name === "seed" ? null : params[name];
    const shown = typeof value === "number" && Number.isFinite(value) && value >= 0;
    byId(`set-${name}`).placeholder = shown ? `${number(value)} (server)` : "server default";
  }
}

function themeField(onTheme) {
  const options = [["system", "System"], ["light", "Light"], ["dark", "Dark"]];
  const select = el("select", {
    onchange: () => {
      changeSetting("theme", select.value);
      applyTheme();
      onTheme();
    },
  }, ...options.map(([value, text]) => el("option", { value, textContent: text })));
  select.value = state.theme;
  return field("set-theme", "Appearance", select);
}

/**
 * Fills the dialog. `handlers`: `system()` and `setSystem(text)` of the current conversation,
 * `connected()` after a new API key, `theme()` after a new theme, `clear()` deletes all conversations.
 */
export function setUpSettings(handlers) {
  const dialog = byId("settings");
  const system = el("textarea", {
    rows: 4,
    oninput: () => {
      changeSetting("system", system.value);
      handlers.setSystem(system.value);
    },
  });
  const stop = el("textarea", { rows: 2, value: state.stop, oninput: () => changeSetting("stop", stop.value) });
  const key = el("input", {
    type: "password",
    autocomplete: "off",
    value: loadKey(),
    onchange: () => {
      setKey(key.value);
      saveKey(key.value.trim());
      handlers.connected();
    },
  });
  setKey(key.value);
  const clear = el("button", {
    type: "button",
    className: "text-button danger",
    textContent: "Delete all conversations",
    onclick: handlers.clear,
  });
  byId("settings-body").append(
    field("set-system", "System prompt", system, "for this conversation and new ones"),
    el("h3", { textContent: "Sampling" }),
    el("div", { className: "fields" }, ...NUMBERS.map(numberField)),
    field("set-stop", "Stop strings", stop, "one per line; \\n stands for a line break"),
    el("h3", { textContent: "This browser" }),
    themeField(handlers.theme),
    field("set-key", "API key", key, "kept until this tab is closed"),
    clear,
  );
  byId("open-settings").addEventListener("click", () => {
    system.value = handlers.system();
    dialog.showModal();
  });
  byId("close-settings").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}

/** Asks the user to confirm; resolves to the answer. */
export function confirmed(text, action = "Delete") {
  const dialog = byId("confirm");
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = action;
  return new Promise((resolve) => {
    let answer = false;
    const yes = () => {
      answer = true;
      dialog.close();
    };
    const no = () => dialog.close();
    byId("confirm-yes").addEventListener("click", yes);
    byId("confirm-no").addEventListener("click", no);
    dialog.addEventListener("close", () => {
      byId("confirm-yes").removeEventListener("click", yes);
      byId("confirm-no").removeEventListener("click", no);
      resolve(answer);
    }, { once: true });
    dialog.showModal();
  });
}
