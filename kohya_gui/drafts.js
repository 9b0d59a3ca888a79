// Keeps what stands in a form, a moment after somebody changed it and at the latest when the page is left.
(() => {
  const PAUSE = 300; // ms
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
    const button = target.closest("[role=tabpanel]")?.querySelector(".keep-draft");
    if (!button) return;
    if (due && due.button !== button) keep();
    clearTimeout(due?.timer);
    due = { button, timer: setTimeout(keep, PAUSE) };
  };
  for (const kind of ["input", "change", "click", "keyup"]) document.addEventListener(kind, changed, true);
  addEventListener("pagehide", keep);
})();
