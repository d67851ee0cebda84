// Dialogs for acts, toasts, and copying.
const body = document.body;
const place = document.getElementById("dialogs");
let opener = null;

const raise = () => {
  const dialog = document.getElementById("operation");
  if (!dialog) return;
  if (dialog.matches(":modal")) return;
  dialog.removeAttribute("open");
  dialog.showModal();
  (dialog.querySelector("[autofocus]") ?? dialog.querySelector("textarea"))?.focus();
};
const dismiss = () => {
  document.getElementById("operation")?.close();
  place?.replaceChildren();
  const url = new URL(location.href);
  if (url.searchParams.has("dialog")) { url.searchParams.delete("dialog"); history.replaceState(null, "", url); }
  const back = opener?.id && document.getElementById(opener.id) || opener;
  if (back?.isConnected) back.focus({ preventScroll: true });
  opener = null;
};

raise();
body.addEventListener("htmx:beforeRequest", (event) => { if (event.target.matches("[data-verb]")) opener = event.target; });
body.addEventListener("htmx:afterSwap", (event) => { if (event.target === place) raise(); });
body.addEventListener("click", (event) => {
  if (event.target.closest("#operation [data-close]")) { event.preventDefault(); dismiss(); }
  const copy = event.target.closest("[data-copy]");
  if (copy) navigator.clipboard?.writeText(document.getElementById(copy.dataset.copy)?.textContent ?? "").then(() => say(copy.dataset.said));
});
place?.addEventListener("cancel", (event) => { event.preventDefault(); dismiss(); }, true);
body.addEventListener("outboard:acted", () => { dismiss(); body.dispatchEvent(new CustomEvent("outboard:want")); });

// A request that failed without an answer that could be shown says so: silence would look like success.
const say = (text, level = "ok") => {
  const toast = document.createElement("p");
  toast.className = `toast ${level}`;
  toast.textContent = text;
  document.getElementById("toasts")?.append(toast);
};
body.addEventListener("outboard:say", (event) => say(event.detail));
for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
  body.addEventListener(name, (event) => {
    if (event.target.id === "refresh") return;
    const status = event.detail.xhr?.status;
    say(document.getElementById("toasts").dataset[status === 401 || status === 403 ? "denied" : "failed"], "bad");
  });
}
const toasts = document.getElementById("toasts");
if (toasts) new MutationObserver((changes) => {
  for (const change of changes) for (const node of change.addedNodes) {
    if (node.nodeType === Node.ELEMENT_NODE) setTimeout(() => node.remove(), node.classList.contains("bad") ? 12000 : 6000);
  }
}).observe(toasts, { childList: true });

document.getElementById("help")?.addEventListener("click", () => document.getElementById("keys")?.showModal());
body.addEventListener("input", (event) => {
  const shown = document.getElementById(event.target.dataset.shows ?? "");
  if (shown) shown.textContent = event.target.value;
});
