// Pages that keep themselves fresh: every element with data-live is replaced by its newer self when that differs. Nothing else is touched.

import { draw, get, now, poll, sync } from "./live.js";

const clock = document.querySelector("[data-now]");
const every = Number(clock?.dataset.every ?? 2000);
const parts = document.querySelectorAll("[data-live]");
const news = document.querySelector("[data-news]");
const seen = new Map();

/** What a part says, without what is drawn anew ten times a second. */
function essence(part) {
  const copy = part.cloneNode(true);
  for (const element of copy.querySelectorAll("[data-until]")) {
    element.removeAttribute("value");
    element.textContent = "";
  }
  return copy.innerHTML;
}

/** Shows the newer part, and says what is new to those who listen instead of looking. */
function renew(part, newer) {
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  part.replaceChildren(...newer.childNodes);
  if (focused) document.getElementById(focused)?.focus();
  const state = part.querySelector(".state");
  if (news && state) news.textContent = `${part.querySelector("h2")?.textContent ?? ""} ${state.textContent}`.trim();
}

async function ask() {
  const sentAt = performance.now();
  const text = await (await get(location.href)).text();
  const fresh = new DOMParser().parseFromString(text, "text/html");
  if (clock) sync(Number(fresh.querySelector("[data-now]").dataset.now), sentAt);
  for (const part of parts) {
    const newer = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (!newer) continue;
    const says = essence(newer);
    if (says !== seen.get(part)) renew(part, newer);
    seen.set(part, says);
  }
  return every;
}

for (const part of parts) seen.set(part, essence(part));
const askNow = poll(ask);
if (clock) {
  sync(Number(clock.dataset.now));
  let lastEnd = 0;
  setInterval(() => {
    if (document.hidden) return;
    // Time is up: what waited for it happens within milliseconds, so look a moment later instead of at the next turn.
    if (draw() <= 0 && now() - lastEnd > 0.5) {
      lastEnd = now();
      setTimeout(askNow, 150);
    }
  }, 100);
}
