// A sign of life of this page, every few seconds while somebody looks at it. The shop answers with the visit to name next time.

const { signUrl, signEvery } = document.body.dataset;
const choice = document.querySelector("[data-signs]");

async function sign() {
  if (document.hidden || sessionStorage.getItem("silent")) return;
  try {
    const answer = await fetch(signUrl, {
      method: "POST",
      headers: { Accept: "application/json" },
      body: new URLSearchParams({ visit: sessionStorage.getItem("visit") ?? "" }),
      signal: AbortSignal.timeout(8000),
    });
    if (answer.ok) sessionStorage.setItem("visit", (await answer.json()).visit);
  } catch {
    // The next sign comes soon; pages that show what may be out of date say so themselves.
  }
}

if (choice) {
  const box = choice.querySelector("input");
  box.checked = !sessionStorage.getItem("silent");
  box.addEventListener("change", () => {
    if (box.checked) sessionStorage.removeItem("silent");
    else sessionStorage.setItem("silent", "yes");
    sign();
  });
  choice.hidden = false;
}

document.addEventListener("visibilitychange", sign);
setInterval(sign, Number(signEvery) * 1000);
sign();
