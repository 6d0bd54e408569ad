// Pages that keep themselves fresh: every element with data-live is replaced by its newer self when that differs. Nothing else is touched.

import { draw, get, poll, sync } from "./live.js";

const clock = document.querySelector("[data-now]");

async function ask() {
  const sentAt = performance.now();
  const text = await (await get(location.href)).text();
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const newer = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (newer && newer.innerHTML !== part.dataset.seen) {
      part.dataset.seen = newer.innerHTML;
      part.replaceChildren(...newer.childNodes);
    }
  }
  if (clock) sync(Number(fresh.querySelector("[data-now]").dataset.now), sentAt);
  return 2000;
}

if (clock) {
  sync(Number(clock.dataset.now));
  setInterval(() => document.hidden || draw(), 100);
}
poll(ask);
