// A second click on a button that has already sent its form does nothing.

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "yes";
});

// Coming back by the browser's back button may show the page as it was left.
addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});
