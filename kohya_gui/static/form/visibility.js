// Shows and hides controls, panels and parts of help texts by the rules that the server put into the page
// (visibility.py). CSS rules do it, because the contents of a folded panel have no elements before it is opened.
var Forms = (() => {
  const sheet = Studio.styleSheet();
  let forms = {};
  let drawn = "";

  const shows = (form, name) => {
    const { families, masters, offeredWith, shownFor, default: usual } = form.options[name];
    if (!families.includes(form.family)) return false;
    if (offeredWith && !form.values[offeredWith] && !form.values[name]) return false;
    if (shownFor && !shownFor[1].includes(form.values[shownFor[0]])) {
      const own = form.values[name];
      if (own === usual || (!own && usual === null)) return false; // options that are set are never hidden
    }
    return !masters.length || masters.some((master) => form.values[master] && shows(form, master));
  };
  const isIdle = (form, name) => {
    const { activeWith, default: usual } = form.options[name];
    return activeWith && form.values[activeWith[0]] !== activeWith[1] && form.values[name] === usual;
  };
  const draw = () => {
    const hidden = [];
    const idle = [];
    const unsaid = []; // parts of help texts that are about other families
    for (const [tab, form] of Object.entries(forms)) {
      const names = Object.keys(form.options);
      const unseen = new Set(names.filter((name) => !shows(form, name)));
      for (const name of unseen) hidden.push(`${tab}-${name}`, `${tab}-${name}-hint`);
      for (const [panel, inside] of Object.entries(form.panels))
        if (inside.every((name) => unseen.has(name))) hidden.push(panel, `${panel}-link`);
      for (const [row, family] of Object.entries(form.advice)) if (family !== form.family) hidden.push(row);
      for (const name of names) if (isIdle(form, name)) idle.push(`${tab}-${name}`);
      for (const name of names)
        form.options[name].noted.forEach((families, i) => {
          if (families.includes(form.family)) return;
          unsaid.push(`#${CSS.escape(`${tab}-${name}`)} .info-text strong:nth-of-type(${i + 1})`);
        });
    }
    const rule = (ids, style) => (ids.length ? `${ids.map((id) => `#${CSS.escape(id)}`).join(", ")} { ${style} }\n` : "");
    const rules =
      rule(hidden, "display: none !important") +
      rule(idle, "opacity: .5; pointer-events: none") +
      (unsaid.length ? `${unsaid.join(", ")} { display: none }` : "");
    if (rules !== drawn) sheet.replaceSync((drawn = rules)); // each change costs a new layout
  };

  const read = new MutationObserver(() => {
    const element = document.querySelector("[data-forms]");
    if (!element) return;
    read.disconnect();
    forms = JSON.parse(element.dataset.forms);
    draw();
  });
  read.observe(document, { childList: true, subtree: true });

  /** Take the current values of a form; Gradio calls it whenever one of them changes. */
  const now = (tab, family, ...values) => {
    const form = forms[tab];
    form.family = family;
    form.watched.forEach((name, i) => (form.values[name] = values[i]));
    draw();
  };

  /** Take the values of a form by name, after something other than a click wrote them. */
  const held = (tab, values) => {
    const form = forms[tab];
    now(tab, values.family, ...form.watched.map((name) => values[`option:${name}`]));
  };

  /** Why an option has no effect with the current settings: `{families}` that have it, or the options to be set, each
   * `[name, value]`; null if it has an effect. */
  const obstacle = (tab, name) => {
    const form = forms[tab];
    const option = form.options[name];
    if (!option) return null;
    if (!option.families.includes(form.family)) return { families: option.families };
    const { masters, shownFor, activeWith } = option;
    if (masters.length && !masters.some((master) => form.values[master] && shows(form, master)))
      return { set: masters.map((master) => [master, true]) };
    if (!shows(form, name) && shownFor) return { set: shownFor[1].map((value) => [shownFor[0], value]) };
    if (isIdle(form, name)) return { set: [activeWith] };
    return null;
  };
  /** Whether a control is on the page with the current settings. */
  const isShown = (tab, name) => shows(forms[tab], name);

  // Apply a click immediately, before Gradio processes it
  document.addEventListener(
    "change",
    ({ target }) => {
      if (!["checkbox", "radio"].includes(target.type)) return;
      const [, tab, name] = target.closest(".block")?.id.match(/^([a-z_]+)-(\w+)$/) ?? [];
      const form = forms[tab];
      if (name === "family" && form) form.family = target.value;
      else if (form?.watched.includes(name)) form.values[name] = target.checked;
      else return;
      draw();
    },
    true,
  );

  const tabs = () => Object.keys(forms);
  /** The tabs of trainings, [name, words on the tab]. */
  const titled = () => tabs().map((tab) => [tab, document.querySelector(`#tabs [role=tab][aria-controls="${tab}"]`)?.textContent.trim() || tab]);

  return { now, held, obstacle, isShown, tabs, titled };
})();
