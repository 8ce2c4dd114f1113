// Keys of the page for labelling; every one presses a button or moves the focus, so that nothing needs them.
"use strict";

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("textarea, input, select");
  if (typing) {
    if (event.key === "Escape") (typing.closest("[data-card]") || document.body).focus();
    return;
  }
  const cards = [...document.querySelectorAll("[data-card]")];
  if (!cards.length && event.key !== "u") return;
  const here = document.activeElement.closest("[data-card]") || cards.find((card) => "open" in card.dataset) || cards[0];
  const move = (step) => {
    const next = cards[cards.indexOf(here) + step];
    if (next) next.focus();
  };
  const press = (within, key) => {
    const button = within && within.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (!button) return false;
    if (button.tagName === "TEXTAREA") {
      button.closest("details").open = true;
      button.focus();
    } else {
      button.click();
    }
    return true;
  };
  let done = true;
  if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else done = press(here, event.key) || press(document, event.key);
  if (done) event.preventDefault();
});

// One press, one label: a form that was sent is not sent again, and its name makes a second one no new event anyway.
document.addEventListener("submit", (event) => {
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
});
addEventListener("pageshow", () => document.querySelectorAll("form").forEach((form) => delete form.dataset.sent));

// A slider says its number while it is moved.
document.addEventListener("input", (event) => {
  const shown = event.target.dataset.shows && document.getElementById(event.target.dataset.shows);
  if (shown) shown.textContent = event.target.value;
});

// A page that has news says so to the element that shows them.
for (const element of document.querySelectorAll("[data-news]")) {
  const source = new EventSource(element.dataset.news);
  source.addEventListener("message", () => htmx.trigger(element, "news"));
  addEventListener("pagehide", () => source.close());
}
