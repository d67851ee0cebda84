// Runs before the page is drawn, so that a chosen theme never flashes.
(() => {
  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const show = (theme) => { if (theme === "light" || theme === "dark") root.dataset.theme = theme; else delete root.dataset.theme; };
  show(stored());
  addEventListener("storage", (event) => { if (event.key === "theme") show(event.newValue); });
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme")?.addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      const next = dark ? "light" : "dark";
      show(next);
      try { localStorage.setItem("theme", next); } catch { /* private mode: it holds for this page */ }
    });
  });
})();
