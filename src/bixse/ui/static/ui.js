// Keys of the page for labelling; every one presses a button or moves the focus, so that nothing needs them.
"use strict";

// What stays at the top of the screen hides what is under it.
const stay = document.querySelector(".stay");
const current = document.querySelector(".top [aria-current]");
const measure = () => {
  document.documentElement.style.setProperty("--stay", `${stay.offsetHeight}px`);
  if (current) current.parentElement.scrollLeft = current.offsetLeft - 48; // on a phone the pages are one long line
};
const space = () => innerHeight - stay.offsetHeight;
const inSight = (card) => {
  const { top, bottom, height } = card.getBoundingClientRect();
  return Math.min(bottom, innerHeight) - Math.max(top, stay.offsetHeight) >= Math.min(height, space()) / 2;
};
const go = (card) => {
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: card.offsetHeight < space() ? "nearest" : "start" });
};
measure();
addEventListener("resize", measure);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("textarea, input, select");
  if (typing) {
    if (event.key === "Escape") (typing.closest("[data-card]") || document.body).focus();
    return;
  }
  const cards = [...document.querySelectorAll("[data-card]")];
  const here = document.activeElement.closest("[data-card]") || cards.find((card) => "open" in card.dataset) || cards[0];
  const step = { j: 1, k: -1 }[event.key];
  const within = `[data-key="${CSS.escape(event.key)}"]`;
  const button = here?.querySelector(within) || document.querySelector(`${within}:not([data-card] *)`);
  const next = step ? cards[cards.indexOf(here) + step] : button && here?.contains(button) && !inSight(here) && here;
  if (step || button) event.preventDefault();
  if (next) go(next); // a card out of sight comes back first: nobody should grade what they do not see
  else if (!button) return;
  else if (button.tagName === "TEXTAREA") {
    button.closest("details").open = true;
    button.focus();
  } else button.click();
});

// One press, one label: a form that was sent is not sent again, and its name makes a second one no new event anyway.
document.addEventListener("submit", (event) => {
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
});
addEventListener("pageshow", () => document.querySelectorAll("form").forEach((form) => delete form.dataset.sent));

// A press on the picture of a batch, or the mouse resting on it, names an entry: the form below shows it.
let resting;
const entryAt = (event) => {
  const picture = event.target.closest("[data-entries]");
  if (!picture) return;
  const box = picture.getBoundingClientRect(), { width, height } = picture.viewBox.baseVal;
  const at = (part, count) => Math.min(count, Math.max(1, Math.ceil(part * count)));
  document.getElementById("row").value = at((event.clientY - box.top) / box.height, height);
  document.getElementById("column").value = at((event.clientX - box.left) / box.width, width);
  document.getElementById("entry-form").requestSubmit();
};
document.addEventListener("click", entryAt);
document.addEventListener("pointermove", (event) => {
  clearTimeout(resting);
  if (event.pointerType === "mouse") resting = setTimeout(entryAt, 150, event);
});

// A slider says its number while it is moved.
document.addEventListener("input", (event) => {
  const shown = event.target.dataset.shows && document.getElementById(event.target.dataset.shows);
  if (shown) shown.textContent = event.target.value;
  if (!("inAddress" in event.target.dataset)) return;
  const { name, value } = event.target;
  const moved = (address) => { // the address, the links and the forms of the page keep the slider
    const url = new URL(address, location.href);
    url.searchParams.set(name, value);
    return url;
  };
  history.replaceState(null, "", moved(location.href));
  document.querySelectorAll("a[data-address]").forEach((link) => { link.href = moved(link.href); });
  document.querySelectorAll(`[data-follows="${CSS.escape(name)}"]`).forEach((field) => { field.value = value; });
});
