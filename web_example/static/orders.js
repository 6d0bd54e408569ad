// My orders: countdowns, and states that change without a reload. The page holds a block for every state; this file only chooses which is shown.

import { draw, get, now, poll, sync } from "./live.js";

const list = document.querySelector("[data-url]");
const news = document.querySelector("[data-news]");

/** Shows the block for `state` in one order's card and says so to those who listen instead of looking. */
function show(card, state) {
  if (card.dataset.state === state) return;
  card.dataset.state = state;
  for (const block of card.querySelectorAll("[data-when]")) {
    block.hidden = block.dataset.when !== state;
    if (!block.hidden) news.textContent = `Order ${card.dataset.order}: ${block.querySelector(".state").textContent}`;
  }
}

async function ask() {
  const sentAt = performance.now();
  const answer = await (await get(list.dataset.url)).json();
  sync(answer.now, sentAt);
  let waiting = false;
  for (const order of answer.orders) {
    const card = document.getElementById(`order-${order.id}`);
    if (card) show(card, order.state);
    else location.reload(); // made in another tab
    waiting ||= order.state === "reserved";
  }
  return waiting ? 1000 : null;
}

if (list) {
  sync(Number(list.dataset.now));
  const askNow = poll(ask);
  let lastEnd = 0;
  setInterval(() => {
    if (document.hidden) return;
    const least = draw();
    // Time is up: the order ends within milliseconds, so look a moment later instead of at the next turn.
    if (least <= 0 && now() - lastEnd > 0.5) {
      lastEnd = now();
      setTimeout(askNow, 150);
    }
  }, 100);
}
