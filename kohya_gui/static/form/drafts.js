// Keeps a draft of each form: shortly after a change, and at the latest when the page is left. A form is locked until its
// draft is restored, since earlier input would overwrite the draft.
var Drafts = (() => {
  const { el } = Studio;
  const PAUSE = 300; // ms
  const LONG = 30_000; // ms after which a restore has failed
  const kept = Object.keys(localStorage); // read before Gradio writes its defaults there
  const restored = new Set();
  const SCROLLED = "scrolled"; // how far the page was scrolled: its contents arrive too late for the browser to restore it
  const reloaded = performance.getEntriesByType("navigation")[0]?.type === "reload";
  addEventListener("pagehide", () => sessionStorage.setItem(SCROLLED, String(scrollY)));
  const paneOf = (tab) => document.querySelector(`#${tab}[role=tabpanel]`);

  const sign = el("div", { id: "studio-restoring", role: "status", hidden: true }, "Restoring your settings…");
  const locked = () => document.querySelectorAll("#tabs [role=tabpanel][inert]");

  const lock = () => {
    const opening = document.querySelector("[data-opens]")?.dataset.opens; // from the command line
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
  addEventListener("click", () => setTimeout(() => (lock(), offerOthers())), true); // another tab may be shown

  // Unsaved changes: what differs from the form as last opened, saved or set by a preset; Python stamps that baseline

  const sheet = Studio.styleSheet(); // a CSS rule, since a tab that was never shown has no elements yet
  const unsaved = new Set();
  const touched = new Set(); // tabs with changes by hand since their baseline, other than of the family
  const settings = (draft) =>
    JSON.stringify(Object.entries(draft).flatMap(([name, now]) => (name === "family" || name.startsWith("option:") ? [[name, String(now ?? "")]] : [])));
  /** The form of a fresh page, as the server sent it. */
  const ofNewPage = (tab, names) => {
    const sent = new Map(window.gradio_config.components.map(({ props }) => [props.elem_id, props.value]));
    return Object.fromEntries(names.map((name) => [name, sent.get(`${tab}-${name.replace("option:", "")}`)]));
  };
  /** Update the unsaved mark of a tab; returns the stamp of its baseline. */
  const compare = (tab, draft, stamp, restoring = false) => {
    const key = `${tab}-saved`;
    const now = settings(draft);
    let saved = JSON.parse(localStorage.getItem(key));
    // an unchanged value may return as 0.0001 for 1e-4, which is not a change
    if (!saved || (stamp && stamp !== saved.stamp) || (restoring && !saved.unsaved)) {
      const isNew = !saved && !stamp; // the user may have typed in the meantime
      touched.delete(tab);
      saved = { stamp, settings: isNew ? settings(ofNewPage(tab, Object.keys(draft))) : now };
    }
    saved.unsaved = saved.settings !== now;
    localStorage.setItem(key, JSON.stringify(saved));
    unsaved[saved.unsaved ? "add" : "delete"](tab);
    const mark = 'content: " ● Unsaved changes"; white-space: pre; font-weight: 400; color: var(--warn);';
    sheet.replaceSync([...unsaved].map((each) => `#${each}-file [data-testid="block-info"]::after { ${mark} }`).join("\n"));
    return saved.stamp;
  };
  // A printed command belongs to the settings at that time
  const latest = new Map(); // tab -> its settings
  const held = new Map(); // tab -> its draft
  const listeners = []; // called with the tab whenever its draft is taken
  const commands = new Map(); // tab -> the settings of its printed command
  const filled = new Set(); // tabs that another can copy from
  const offerOthers = () => {
    for (const tab of Forms.tabs())
      document.getElementById(`${tab}-others`)?.toggleAttribute("data-shown", [...filled].some((other) => other !== tab));
  };
  const note = (tab, draft) => {
    const copied = draft["option:pretrained_model_name_or_path"] || draft["option:train_data_dir"];
    filled[copied ? "add" : "delete"](tab);
    offerOthers();
    latest.set(tab, settings(draft));
    const outdated = commands.has(tab) && commands.get(tab) !== latest.get(tab);
    document.getElementById(`${tab}-command`)?.toggleAttribute("data-stale", outdated);
  };
  const printed = (tab) => {
    commands.set(tab, latest.get(tab));
    document.getElementById(`${tab}-command`)?.removeAttribute("data-stale");
  };
  const untouched = (tab) => !touched.has(tab) && !unsaved.has(tab) && !document.querySelector(`#${tab}-file input`)?.value;

  /** Read the values of a form, the last of which is its previous draft; returns its current draft. */
  const take = (tab, names, now, restoring = false) => {
    const draft = Object.fromEntries(names.map((name, i) => [name, now[i]]));
    Forms.held(tab, draft);
    Plans.changed(tab, draft);
    const saved = compare(tab, draft, now.at(-1)?.saved, restoring);
    note(tab, draft);
    held.set(tab, draft);
    listeners.forEach((listener) => listener(tab));
    return { ...draft, saved };
  };

  /** The new draft of a form. */
  const written = (tab, names, now, launch) => ({ ...take(tab, names, now), launch });

  /** Unlock a tab's form: its draft is restored, or there was none. */
  const release = (tab, names, now) => {
    take(tab, names, now, true);
    restored.add(tab);
    if (reloaded && paneOf(tab)?.offsetParent) requestAnimationFrame(() => scrollTo(0, Number(sessionStorage.getItem(SCROLLED))));
    paneOf(tab)?.removeAttribute("inert");
    if (Forms.tabs().every((each) => restored.has(each))) watch.disconnect();
    lock();
  };
  setTimeout(() => {
    if (locked().length) sign.textContent = "Your settings could not be restored. Reload the page.";
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
    if (type === "click" && target.closest("button:not(.reset-button)")) return; // the draft is saved with the server's answer
    const pane = target.closest("[role=tabpanel]");
    if (pane && target.closest(".option") && !pane.inert) touched.add(pane.id);
    const button = pane?.querySelector(".keep-draft");
    if (!button || pane.inert) return;
    if (due && due.button !== button) keep();
    clearTimeout(due?.timer);
    due = { button, timer: setTimeout(keep, PAUSE) };
  };
  for (const kind of ["input", "change", "click", "keyup"]) document.addEventListener(kind, changed, true);
  addEventListener("pagehide", keep);

  // Values from elsewhere than the form's own controls, whose panels may not be built

  const waiting = new Map(); // tab -> name in its draft -> the new value
  /** Write values by option into a form, as if somebody typed them there; returns whether its tab has been shown. */
  const put = (tab, values) => {
    const button = document.querySelector(`#${tab} .put-values`);
    const draft = held.get(tab);
    if (!button || !draft) return false;
    const named = Object.entries(values).map(([name, value]) => [name in draft ? name : `option:${name}`, value]);
    waiting.set(tab, { ...waiting.get(tab), ...Object.fromEntries(named) });
    touched.add(tab);
    named.forEach(([name, value]) => (draft[name] = value));
    button.click();
    // marks and messages about the field are outdated
    for (const name of Object.keys(values)) document.getElementById(`${tab}-${name}`)?.dispatchEvent(new Event("input", { bubbles: true }));
    return true;
  };
  /** The updates of a form's components after `put`; Gradio takes one for each. */
  const putting = (tab) => {
    const values = waiting.get(tab) ?? {};
    waiting.delete(tab);
    return Object.keys(held.get(tab) ?? {}).map((name) => (name in values ? values[name] : { __type__: "update" }));
  };
  /** A form's value of an option; undefined if it has none, or a secret one. */
  const value = (tab, name) => held.get(tab)?.[`option:${name}`];
  /** The values of a form as it was opened, saved or set by a preset, by option. */
  const baseline = (tab) => {
    const saved = JSON.parse(localStorage.getItem(`${tab}-saved`));
    return new Map(JSON.parse(saved?.settings ?? "[]").map(([name, text]) => [name.replace("option:", ""), text]));
  };
  /** The options of a form that differ from its baseline. */
  const changes = (tab) => [...baseline(tab)].filter(([name, text]) => name !== "family" && text !== String(value(tab, name) ?? "")).map(([name]) => name);
  const onChange = (listener) => listeners.push(listener);

  // Several tabs of one browser keep the same drafts

  let isTwin = false;
  const channel = new BroadcastChannel(`studio-drafts ${location.host}`);
  const warning = el(
    "p",
    { id: "studio-twin", role: "status" },
    "This page is also open in another tab of this browser. Both keep the same settings: the last change wins.",
  );
  const warn = () => (isTwin ? document.querySelector(".page-head")?.after(warning) : warning.remove());
  const askOthers = () => {
    isTwin = false;
    channel.postMessage("is anybody here?");
    setTimeout(warn, 1000);
  };
  channel.addEventListener("message", ({ data }) => {
    if (data === "gone") return askOthers();
    if (data !== "here") channel.postMessage("here");
    isTwin = true;
    warn();
  });
  setInterval(() => isTwin && askOthers(), 15_000); // one that crashed sent nothing
  askOthers();
  addEventListener("pagehide", () => channel.postMessage("gone"));

  const others = { put, putting, value, onChange, draft: (tab) => held.get(tab), baseline, changes };
  return { release, written, printed, untouched, restored: (tab) => restored.has(tab), ...others };
})();
