// Keeps what stands in a form, a moment after somebody changed it and at the latest when the page is left. Until what
// the browser kept of a form is back in it, nobody can use the form: what is typed earlier would be kept in its place.
window.Drafts = (() => {
  const PAUSE = 300; // ms
  const LONG = 30_000; // ms after which a form that does not come back will not come by itself
  const kept = Object.keys(localStorage); // before Gradio writes its defaults there
  const restored = new Set();
  const paneOf = (tab) => document.querySelector(`#${tab}[role=tabpanel]`);

  const sign = document.createElement("div");
  sign.id = "studio-restoring";
  sign.setAttribute("role", "status");
  sign.textContent = "Restoring your settings …";
  sign.hidden = true;
  const locked = () => document.querySelectorAll("#tabs [role=tabpanel][inert]");

  const lock = () => {
    const opening = document.querySelector("[data-opens]")?.dataset.opens; // by the command line
    for (const tab of Forms.tabs()) {
      const pane = paneOf(tab);
      if (!pane || pane.inert || restored.has(tab)) continue;
      if (opening === tab || kept.includes(`${tab}-draft`)) pane.inert = true;
    }
    if (!sign.isConnected) document.body?.append(sign);
    sign.hidden = ![...locked()].some((pane) => pane.offsetParent);
  };
  const watch = new MutationObserver(lock);
  watch.observe(document, { childList: true, subtree: true });
  addEventListener("click", () => setTimeout(lock), true); // another tab may be looked at

  /** What stood in the form of a tab is back, or nothing had to come back. */
  const release = (tab) => {
    restored.add(tab);
    paneOf(tab)?.removeAttribute("inert");
    if (Forms.tabs().every((each) => restored.has(each))) watch.disconnect();
    lock();
  };
  setTimeout(() => {
    if (locked().length) sign.textContent = "Your settings could not be restored. Load the page again.";
  }, LONG);

  let due = null;
  const keep = () => {
    clearTimeout(due?.timer);
    const { button } = due ?? {};
    due = null;
    button?.click();
  };
  const changed = ({ type, target }) => {
    if (!target.closest?.(".configuration, .settings")) return;
    if (type === "click" && target.closest("button:not(.reset-button)")) return; // what the server answers is kept then
    const pane = target.closest("[role=tabpanel]");
    const button = pane?.querySelector(".keep-draft");
    if (!button || pane.inert) return;
    if (due && due.button !== button) keep();
    clearTimeout(due?.timer);
    due = { button, timer: setTimeout(keep, PAUSE) };
  };
  for (const kind of ["input", "change", "click", "keyup"]) document.addEventListener(kind, changed, true);
  addEventListener("pagehide", keep);

  return { release, restored: (tab) => restored.has(tab) };
})();
