// The live view: ticks come over the socket, the page's live parts come over HTTP.
// body[data-live] is live, paused, reconnecting or denied. Other modules hear of nothing but DOM events.
const body = document.body;
const refresh = document.getElementById("refresh");
const socketElement = document.getElementById("live");
const NET = 10_000; // ms: without any tick, look all the same
const OWN = [1006, 1011, 1012, 1013]; // the codes after which the ws extension reconnects by itself

const PATIENCE = 4; // sockets that fail before the page says that there is none here

let failed = 0;
let open = false, paused = false, denied = false;
let running = false, wanted = false, timer = 0;
let started = 0, finished = 0, behind = 0, asked = 0;

const show = () => {
  body.dataset.live = denied ? "denied" : paused || document.hidden ? "paused" : open ? "live" : "reconnecting";
  const button = document.getElementById("pause");
  if (button) {
    button.textContent = paused ? button.dataset.resume : button.dataset.pause;
    button.setAttribute("aria-pressed", String(paused));
  }
};

const deny = () => {
  denied = true;
  document.getElementById("stale")?.removeAttribute("hidden");
  show();
};

// One request at a time, and pauses as long as a request takes: a slow server is not pressed harder.
const want = (age = 0) => {
  if (!wanted) { asked = performance.now(); behind = age; }
  wanted = true;
  if (running || timer || paused || denied || document.hidden) return;
  const pause = Math.min(2000, Math.max(0, finished - started));
  timer = setTimeout(() => {
    timer = 0;
    if (running || !wanted || paused || denied || document.hidden) return;
    running = true; wanted = false; started = performance.now();
    htmx.trigger(refresh, "outboard:refresh");
  }, Math.max(0, finished + pause - performance.now()));
};

const done = (event) => {
  if (event.target !== refresh) return;
  running = false;
  finished = performance.now();
  const status = event.detail.xhr?.status ?? 0;
  if (status === 401 || status === 403) return deny();
  if (status === 404) return location.reload(); // what the page shows is gone: let it say so
  if (status >= 200 && status < 300) {
    const lag = document.getElementById("lag");
    if (lag) lag.textContent = `${((finished - asked + behind) / 1000).toFixed(1)} s`;
    body.dispatchEvent(new CustomEvent("outboard:refreshed"));
  }
  if (wanted) want(behind);
};

const toggle = () => {
  paused = !paused;
  show();
  if (!paused) want();
};

// What is pressed stays until it is released: an element that is replaced between the two gets no click.
let pressed = null, held = false;
const press = (event) => { pressed = event.target; };
const release = () => setTimeout(() => {
  pressed = null;
  if (held) { held = false; want(); }
});

// What the viewer has opened, ticked or focused in a part goes over into its new version.
const texts = new Map();
let focused = "";
const plain = (node) => {
  const copy = node.cloneNode(true);
  for (const time of copy.querySelectorAll("time")) time.replaceChildren();
  return copy.outerHTML;
};
const beforeSwap = (event) => {
  const { target, fragment } = event.detail;
  const fresh = fragment.firstElementChild;
  if (!target.id || fragment.children.length !== 1 || fresh?.id !== target.id) return;
  if (pressed && target.contains(pressed)) { held = true; event.detail.shouldSwap = false; return; }
  const text = plain(fresh);
  if (texts.get(target.id) === text) { event.detail.shouldSwap = false; return; }
  texts.set(target.id, text);
  for (const node of target.querySelectorAll("details[open][id]")) fresh.querySelector(`#${CSS.escape(node.id)}`)?.setAttribute("open", "");
  for (const node of target.querySelectorAll("input:checked[id]")) {
    const box = fresh.querySelector(`#${CSS.escape(node.id)}`);
    if (box && !box.disabled) box.checked = true;
  }
  for (const name of ["current"]) if (target.classList.contains(name)) fresh.classList.add(name);
  const active = document.activeElement;
  focused = active?.id && target.contains(active) ? active.id : "";
  const scrolled = [...target.querySelectorAll(".scroll")].map((node) => node.scrollLeft);
  if (scrolled.some(Boolean)) queueMicrotask(() => {
    document.getElementById(target.id)?.querySelectorAll(".scroll").forEach((node, i) => { node.scrollLeft = scrolled[i] ?? 0; });
  });
};
const afterSwap = () => {
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  focused = "";
};

if (refresh && socketElement) {
  body.addEventListener("htmx:wsOpen", () => { open = true; failed = -Infinity; delete body.dataset.socket; show(); want(); });
  body.addEventListener("htmx:wsClose", (event) => {
    open = false;
    if (++failed >= PATIENCE) body.dataset.socket = "none"; // it never opened: this server has no such route
    const { code } = event.detail.event;
    if (code >= 4400 && code < 4500) return deny();
    show();
    if (!OWN.includes(code)) setTimeout(() => event.detail.socketWrapper.reconnect(), 500 + Math.random() * 2000);
  });
  body.addEventListener("htmx:wsAfterMessage", () => want(Number(document.getElementById("tick")?.dataset.behind ?? 0)));
  body.addEventListener("htmx:afterRequest", done);
  body.addEventListener("htmx:oobBeforeSwap", beforeSwap);
  body.addEventListener("htmx:oobAfterSwap", afterSwap);
  body.addEventListener("outboard:want", () => want());
  body.addEventListener("outboard:pause", toggle);
  document.getElementById("pause")?.addEventListener("click", toggle);
  addEventListener("pointerdown", press, true);
  addEventListener("pointerup", release, true);
  addEventListener("pointercancel", release, true);
  document.addEventListener("visibilitychange", () => { show(); if (!document.hidden) want(); });
  addEventListener("pageshow", (event) => { if (event.persisted) want(); });
  setInterval(() => { if (!running && performance.now() - finished > NET) want(); }, 1000);
  show();
} else {
  document.querySelector(".live")?.setAttribute("hidden", "");
  document.getElementById("pause")?.setAttribute("hidden", "");
}
