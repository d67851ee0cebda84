// Puts times into the viewer's zone, and lets ages tick. The server's text stands where this does not run.
const served = Number(document.querySelector('meta[name="server-now"]')?.content || 0);
const skew = served && Math.abs(served - Date.now()) > 2000 ? served - Date.now() : 0; // a wrong clock here must not age messages
const now = () => Date.now() + skew;
const two = (n) => String(n).padStart(2, "0");
const day = (d) => `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
const clock = (d) => `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "";

const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };

export const duration = (seconds) => {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  const both = (first, rest, unit) => rest ? `${first} ${rest} ${unit}` : first;
  if (s < 3600) return both(`${Math.floor(s / 60)} min`, s % 60, "s");
  if (s < 86400) return both(`${Math.floor(s / 3600)} h`, Math.floor((s % 3600) / 60), "min");
  return both(`${Math.floor(s / 86400)} d`, Math.floor((s % 86400) / 3600), "h");
};

const age = (node) => set(node, duration(Math.abs(now() - Date.parse(node.dateTime)) / 1000));

const localise = (root) => {
  for (const node of root.querySelectorAll("time[datetime]")) {
    const d = new Date(node.dateTime);
    node.title = `${day(d)} ${clock(d)}.${String(d.getMilliseconds()).padStart(3, "0")} ${zone}`;
    if ("when" in node.dataset) set(node, day(d) === day(new Date(now())) ? clock(d) : `${day(d)} ${clock(d).slice(0, 5)}`);
    else age(node);
  }
  for (const node of root.querySelectorAll("[data-axis]")) {
    const d = new Date(node.dataset.axis);
    if (node.textContent.includes(":")) set(node, clock(d).slice(0, 5));
  }
};

localise(document);
document.addEventListener("htmx:oobAfterSwap", (event) => localise(event.target.parentNode ?? document));
document.addEventListener("htmx:afterSwap", (event) => localise(event.target));
setInterval(() => { if (!document.hidden) document.querySelectorAll("time[data-age]").forEach(age); }, 1000);
