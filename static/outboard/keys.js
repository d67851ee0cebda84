// The keyboard. Keys work where nobody types and no dialog is open.
const all = () => [...document.querySelectorAll("tbody[data-rows] > tr[data-href]")];
const current = () => document.querySelector("tr.current");

const move = (by) => {
  const rows = all();
  if (!rows.length) return;
  const at = rows.indexOf(current());
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))];
  current()?.classList.remove("current");
  next.classList.add("current");
  (next.querySelector("a[id]") ?? next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
};

const actions = {
  "/": () => { const box = document.getElementById("search"); box?.focus(); box?.select(); },
  j: () => move(1),
  k: () => move(-1),
  x: () => { current()?.querySelector("input[type=checkbox]:not(:disabled)")?.click(); },
  Enter: () => { if (current()) location.assign(current().dataset.href); },
  r: () => { (current() ?? document).querySelector('a[data-verb="retry"], a[data-verb="redispatch"]')?.click(); },
  n: () => document.querySelector("#newer a")?.click(),
  p: () => document.body.dispatchEvent(new CustomEvent("outboard:pause")),
  "?": () => document.getElementById("keys")?.showModal(),
  Escape: () => { current()?.classList.remove("current"); document.activeElement?.blur(); },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]")) return;
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
  if (typing) { if (event.key === "Escape") event.target.blur(); return; }
  if (event.key === "Enter" && event.target.closest("a, button, summary, input")) return;
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
