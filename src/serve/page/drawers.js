// The two side panels: next to the messages in wide windows, over them in narrow windows.

import { byId } from "./dom.js";
import { runPanel } from "./panel.js";
import { changeSetting, setting } from "./settings.js";

const narrow = matchMedia("(max-width: 56rem)");

function showSidebar(open) {
  byId("sidebar").hidden = !open;
  byId("toggle-sidebar").setAttribute("aria-expanded", String(open));
}

function showPanel(open) {
  byId("panel").hidden = !open;
  byId("toggle-panel").setAttribute("aria-expanded", String(open));
  runPanel(open);
}

export function setUpDrawers() {
  const sidebar = (open) => {
    showSidebar(open);
    if (!narrow.matches) changeSetting("sidebar", open);
    if (open) byId("new-chat").focus();
  };
  const panel = (open) => {
    showPanel(open);
    if (!narrow.matches) changeSetting("panel", open);
    if (open) byId("close-panel").focus();
  };
  byId("toggle-sidebar").addEventListener("click", () => sidebar(byId("sidebar").hidden));
  byId("toggle-panel").addEventListener("click", () => panel(byId("panel").hidden));
  byId("close-sidebar").addEventListener("click", () => {
    sidebar(false);
    byId("toggle-sidebar").focus();
  });
  byId("close-panel").addEventListener("click", () => {
    panel(false);
    byId("toggle-panel").focus();
  });
  // On a phone, close the list when a conversation is chosen.
  byId("sidebar").addEventListener("click", (event) => {
    if (narrow.matches && event.target.closest(".conversation, #new-chat")) showSidebar(false);
  });
  for (const id of ["sidebar", "panel"]) {
    byId(id).addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !narrow.matches) return;
      event.stopPropagation();
      byId(`close-${id}`).click();
    });
  }
  const fit = () => {
    showSidebar(!narrow.matches && setting("sidebar"));
    showPanel(!narrow.matches && setting("panel"));
  };
  narrow.addEventListener("change", fit);
  fit();
}
