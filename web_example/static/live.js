// The server's clock as seen from here, countdowns drawn by it, and asking the server again and again while somebody looks.

let ahead = null;

/** Takes over the server's clock: `serverNow` in epoch seconds, read about half-way between `sentAt` (of performance.now) and now. */
export function sync(serverNow, sentAt = performance.now()) {
  ahead = serverNow - (sentAt + performance.now()) / 2000;
}

/** Epoch seconds by the server's clock. It runs on performance.now, so a wrong or stepped clock of this machine does not matter. */
export function now() {
  return performance.now() / 1000 + ahead;
}

/** "1:16" for 75.2 seconds: the last shown second lasts until zero. From an hour on "1:00:16". */
export function spell(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  const minutes = whole < 3600 ? Math.floor(whole / 60) : `${Math.floor(whole / 3600)}:${two((whole % 3600) / 60)}`;
  return `${minutes}:${two(whole % 60)}`;
}

/** Writes what is left into every visible element with data-until. Returns the smallest, or Infinity. */
export function draw() {
  let least = Infinity;
  for (const element of document.querySelectorAll("[data-until]")) {
    if (element.closest("[hidden]")) continue;
    const left = Number(element.dataset.until) - now();
    least = Math.min(least, left);
    if (element instanceof HTMLProgressElement) {
      element.value = Math.max(0, left);
    } else {
      const text = spell(left);
      if (element.textContent !== text) element.textContent = text;
    }
  }
  return least;
}

/**
 * Calls `ask` now and again after the milliseconds it resolves to; null ends it until the tab is looked at anew. Nothing is asked
 * while the tab is hidden. When `ask` fails the element with data-lost is shown and five seconds pass. Returns a function that asks at once.
 */
export function poll(ask) {
  const lost = document.querySelector("[data-lost]");
  let timer = 0;
  let asking = false;
  async function turn() {
    clearTimeout(timer);
    if (asking || document.hidden) return;
    asking = true;
    let wait = 5000;
    try {
      wait = await ask();
      if (lost) lost.hidden = true;
    } catch {
      if (lost) lost.hidden = false;
    }
    asking = false;
    if (wait !== null) timer = setTimeout(turn, wait);
  }
  document.addEventListener("visibilitychange", turn);
  turn();
  return turn;
}

/** The answer to a GET of `url`; fails unless it is a good one and comes within eight seconds. */
export async function get(url) {
  const answer = await fetch(url, { signal: AbortSignal.timeout(8000) });
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer;
}
