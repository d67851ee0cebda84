// A list of rows: new ones come on top unless that would move a row under the pointer or the keyboard; then "n newer".
const rows = document.getElementById("messages");
const body = document.body;

if (rows) {
  const panel = rows.closest(".panel");
  const live = rows.dataset.top === "yes"; // the newest page; an older one only sees its rows change
  let over = false, insist = false;

  const boxes = () => [...rows.querySelectorAll("input[type=checkbox]:checked:not(:disabled)")];
  const busy = () => over || rows.contains(document.activeElement) || boxes().length > 0
    || rows.querySelector("tr.current") !== null || document.querySelector("dialog[open]") !== null || panel.getBoundingClientRect().top < 0;

  panel.addEventListener("pointerenter", () => { over = true; });
  panel.addEventListener("pointerleave", () => { over = false; });

  body.addEventListener("htmx:configRequest", (event) => {
    if (event.target.id !== "refresh") return;
    event.detail.parameters.rows = [...rows.querySelectorAll("tr[data-row]")].slice(0, 200).map((row) => `${row.dataset.row}~${row.dataset.seen}`).join(",");
    if (!live || (busy() && !insist)) event.detail.parameters.hold = "1";
    insist = false;
  });

  const seen = () => new Map([...rows.querySelectorAll("tr[data-message-id]")].map((row) => [row.id, row.dataset.state]));
  let known = seen();
  body.addEventListener("outboard:refreshed", () => {
    for (const row of [...rows.querySelectorAll("tr[data-row]")].slice(200)) row.remove();
    for (const row of rows.querySelectorAll("tr[data-message-id]")) {
      if (known.get(row.id) !== row.dataset.state) row.classList.add("fresh");
    }
    if (rows.querySelector("tr[data-row]")) rows.querySelector("tr.none")?.remove();
    known = seen();
    count();
  });

  body.addEventListener("click", (event) => {
    const link = event.target.closest("#newer a");
    if (!link || !live || Number(link.dataset.count) > 50 || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    insist = true;
    body.dispatchEvent(new CustomEvent("outboard:want"));
  });

  // Selection: only what can still be selected, and the command line that acts on it.
  const bar = document.getElementById("selection");
  const all = document.getElementById("select-all");
  const count = () => {
    const chosen = boxes();
    if (!bar) return;
    bar.hidden = chosen.length === 0;
    bar.querySelector("[data-count]").textContent = String(chosen.length);
    if (all) all.checked = chosen.length > 0 && chosen.length === rows.querySelectorAll("input[type=checkbox]:not(:disabled)").length;
  };
  rows.addEventListener("change", count);
  all?.addEventListener("change", () => {
    for (const box of rows.querySelectorAll("input[type=checkbox]:not(:disabled)")) box.checked = all.checked;
    count();
  });
  bar?.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-command]");
    if (!button) return;
    const ids = boxes().map((box) => `--id ${box.value}`).join(" ");
    await navigator.clipboard?.writeText(`python manage.py outbox_${button.dataset.command} --reason "" ${ids}`);
    body.dispatchEvent(new CustomEvent("outboard:say", { detail: button.dataset.said }));
  });
  count();
}
