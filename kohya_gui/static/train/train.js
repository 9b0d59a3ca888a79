// Train on one screen: the Simple view of a training tab. It shows and writes the settings of the tab's form and has none
// of its own; the form itself is "All settings". Start, the plan and the live run are the tab's.
var Train = (() => {
  const { el, on, button, send } = Studio;
  const VIEW = "train-view";
  const PAUSE = 250; // ms after a change until the server is asked what it means
  const ELSEWHERE = { sample_prompts: "prompts" }; // options that a field with a different name shows
  const TRIES = 5; // to write into a tab that is shown for the first time
  const PATIENCE = 4000; // ms that Start waits for what was just typed
  const root = document.documentElement;
  const looks = new Map(); // tab -> the answer about its settings
  const fits = new Map(); // tab and family -> which presets fit the GPU
  let tab = ""; // whose form is shown
  let isAsking = false;
  let hasStarted = false;
  let isPutting = false;
  let isPassed = false; // Start is pressed again, after it waited

  const isSimple = () => root.dataset.view === "simple";
  const paneOf = (name) => document.querySelector(`#${name}[role=tabpanel]`);
  const shownTab = () => Forms.tabs().find((name) => paneOf(name)?.offsetParent);
  const familiesOf = (name) => {
    const radio = window.gradio_config.components.find(({ props }) => props.elem_id === `${name}-family`);
    return radio.props.choices.map(([title, value]) => [value, title]);
  };

  // Writing: into the form, as if somebody typed it there

  const put = (values) => {
    isPutting = Drafts.put(tab, values);
    element.setAttribute("aria-busy", "true");
    render();
  };
  const load = (what) => Fields.submit(tab, "load-run", what, "load");
  const preset = (name) => load(`preset:${name}`);
  /** Choose a family. Settings that are a preset's become those of the family's own; others stay. */
  const family = async (name) => {
    const changed = looks.get(tab)?.changes.length;
    if (!changed) return preset(await firstPreset(name));
    document.querySelector(`#${tab}-family input[value="${name}"]`)?.click();
  };
  const fitOf = async (family) => {
    const key = `${tab} ${family}`;
    const fit = fits.get(key) ?? (await send("train/fit", { tab, family }).catch(() => null));
    if (fit) fits.set(key, fit);
    return fit;
  };
  const firstPreset = async (family) => (await fitOf(family))?.recommended || `${family}_safe_start`;
  /** Train something else: show its form, with the images, model and names of this one. */
  const method = async (name) => {
    const from = tab;
    const { family, ...draft } = Drafts.draft(from);
    const carried = [...(looks.get(from)?.carried ?? []), "caption_extension", "sample_every_n_epochs"];
    const names = ["prompts", "typed_prompts", ...carried.map((each) => `option:${each}`)];
    Studio.openTab(name);
    await Studio.until(() => document.querySelector(`#${name} .put-values`) && Drafts.draft(name));
    place();
    if (Drafts.draft(name).family !== family) {
      preset(await firstPreset(family));
      await Studio.until(() => Drafts.draft(name).family === family);
    }
    if (tab !== name) return; // somebody went on in the meantime
    const both = names.filter((each) => each in draft && each in Drafts.draft(name));
    const values = Object.fromEntries(both.map((each) => [each, draft[each]]));
    const has = () => both.every((each) => TrainParts.text(Drafts.draft(name)[each]) === TrainParts.text(values[each]));
    // Gradio loses values that come while it builds a tab
    for (let tries = 0; tries < TRIES && tab === name; tries++) {
      put(values);
      await Studio.until(() => !isPutting);
      await new Promise((done) => setTimeout(done, PAUSE));
      document.querySelector(`#${name} .keep-draft`).click(); // read again what the form has
      await new Promise((done) => setTimeout(done, PAUSE));
      if (has()) return;
    }
  };

  // Reading

  const state = () => {
    const draft = Drafts.draft(tab);
    const fit = fits.get(`${tab} ${draft.family}`);
    const value = (name) => draft[`option:${name}`];
    return { tab, draft, family: draft.family, look: looks.get(tab), fit, value, families: familiesOf(tab) };
  };
  const ask = async () => {
    if (isAsking || !isSimple() || !tab || !Drafts.draft(tab)) return;
    isAsking = true;
    const asked = tab;
    const known = JSON.stringify(Drafts.draft(asked));
    let isOfNow = false;
    try {
      const look = await send("train/look", { ...Plans.form(asked), preset: Drafts.draft(asked).preset });
      looks.set(asked, look);
      isOfNow = JSON.stringify(Drafts.draft(asked)) === known;
    } catch {
      looks.delete(asked); // the live view reports a GUI that does not answer
    }
    isAsking = false;
    if (asked === tab) {
      if (isOfNow) complete(); // not for settings that have changed since
      render();
      fitOf(Drafts.draft(tab).family).then(render);
    }
    if (JSON.stringify(Drafts.draft(tab)) !== known || asked !== tab) soon();
    else element.removeAttribute("aria-busy");
  };
  const askSoon = Studio.later(ask, PAUSE);
  const soon = () => {
    element.setAttribute("aria-busy", "true");
    askSoon();
  };
  /** Set what a folder without repeats in its name lacks, and, once, the files that lie next to a base model. */
  const complete = () => {
    const { look, value } = state();
    const values = look?.images?.flat && !value("num_repeats") ? { ...look.lengths.normal } : {};
    const base = `${tab} ${value("pretrained_model_name_or_path")}`;
    const found = (look?.files ?? []).filter(({ name, beside }) => beside && !value(name));
    if (found.length && !completed.has(base)) for (const { name, beside } of found) values[name] = beside;
    if (found.length) completed.add(base);
    if (Object.keys(values).length) put(values);
  };
  Drafts.onChange((changed) => {
    if (changed !== tab) return;
    isPutting = false;
    if (!isSimple()) return;
    render();
    soon();
  });

  // Start waits for what was typed in the field that had the focus
  const wait = async (start, event) => {
    if (!isSimple() || isPassed) return;
    hasStarted ||= cards.every((card) => card.isDone);
    if (hasStarted) cards.forEach((card) => (card.chosen = null));
    if (!isPutting) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    const late = Date.now() + PATIENCE;
    await Studio.until(() => !isPutting || Date.now() > late);
    isPassed = true;
    start.click();
    isPassed = false;
  };
  on("click", "[id$=-start]", wait, true);

  // The view

  const [images, model, how] = TrainCards.all({ put, preset, family, method, tab: () => tab, hasStarted: () => hasStarted });
  const cards = [images, model, how];
  const completed = new Set(); // base models, each with its tab, whose other files were looked for
  const chips = el("div", { class: "train-chips" });
  const add = () => (Studio.searchSettings ? Studio.searchSettings() : setView("all"));
  const press = (name) => () => document.getElementById(`${tab}-${name}`)?.click();
  const opened = el("input", {}); // the file that the dialog chooses
  const open = () =>
    Studio.browse(opened, "file", async () => {
      put({ file: opened.value });
      await Studio.until(() => !isPutting);
      press("open")();
    });
  const files = el(
    "p",
    { class: "train train-ways" },
    button("Open settings…", open, { class: "link", title: "A TOML file or a JSON file of kohya_ss" }),
    button("Save settings", press("save"), { class: "link" }),
  );
  const element = el("div", { class: "train" }, ...cards.map((card) => card.element), chips);
  const render = () => {
    if (!isSimple() || !tab || !Drafts.draft(tab)) return;
    const now = state();
    cards.forEach((card) => card.update(now));
    drawChips(now.look?.changes ?? []);
    watchHints();
    const actions = element.parentElement.querySelector(".running .actions"); // made later than the columns
    if (actions && files.previousElementSibling !== actions) actions.after(files);
  };
  const drawChips = (changes) => {
    const drawn = JSON.stringify(changes);
    if (chips.sent === drawn || chips.querySelector("input, select")) return;
    chips.sent = drawn;
    chips.replaceChildren(
      el("span", { class: "quiet" }, changes.length ? "Changed from the preset" : "Nothing is changed from the preset"),
      ...changes.map((change) => TrainParts.chip(change, put)),
      button("+ Add a setting", add, { class: "link", title: "Press / from anywhere", tabindex: -1 }), // "/" does the same, so it is no stop on the way to Start
    );
  };
  const watched = new WeakSet();
  const again = new MutationObserver(() => render());
  const watchHints = () => {
    for (const hint of paneOf(tab)?.querySelectorAll(".settings .found") ?? [])
      if (!watched.has(hint)) watched.add(hint), again.observe(hint, { childList: true, subtree: true });
  };

  /** Put the view into the tab that is shown. */
  const place = () => {
    const now = shownTab();
    if (!isSimple()) return element.remove(), files.remove();
    if (!now) return;
    const columns = paneOf(now).querySelector(".columns");
    if (!columns) return;
    root.dataset.train = now;
    if (element.parentElement !== columns) columns.prepend(element);
    if (now === tab) return;
    tab = now;
    render();
    soon();
  };
  on("click", "[role=tab]", () => setTimeout(place));
  new MutationObserver((_, observer) => {
    if (!Forms.tabs().length || !document.querySelector("#tabs .columns")) return;
    place();
    if (tab || !isSimple()) observer.disconnect();
  }).observe(document, { childList: true, subtree: true });

  const views = [
    ["simple", "Simple"],
    ["all", "All settings"],
  ].map(([name, words]) => {
    const input = el("input", { type: "radio", name: "train-view", value: name, onchange: () => setView(name) });
    return el("label", {}, input, el("span", {}, words));
  });
  const setView = (name) => {
    root.dataset.view = name;
    localStorage.setItem(VIEW, name);
    for (const label of views) label.firstChild.checked = label.firstChild.value === name;
    place();
    render();
    if (name === "simple") soon();
  };
  const choice = el("fieldset", { class: "train-view", "aria-label": "View" }, ...views);
  new MutationObserver((_, observer) => {
    const theme = document.getElementById("theme-switch");
    if (!theme) return;
    observer.disconnect();
    theme.before(choice);
  }).observe(document, { childList: true, subtree: true });
  setView(localStorage.getItem(VIEW) === "all" ? "all" : "simple");

  /** Show the field of an option, which may be one of the cards; returns whether it is. */
  const reveal = (id) => {
    if (!isSimple()) return false;
    const name = id.slice(tab.length + 1);
    const field = id.startsWith(`${tab}-`) && element.querySelector(`#train-${CSS.escape(ELSEWHERE[name] ?? name)}`);
    if (!field) {
      setView("all");
      return false;
    }
    const card = cards.find((each) => each.element.contains(field));
    card.chosen = true;
    card.fold();
    field.scrollIntoView({ block: "center" });
    field.focus({ preventScroll: true });
    return true;
  };
  /** Choose a family in the tab that is shown, as its control does. */
  const choose = async (name) => {
    if (isSimple()) return family(name);
    document.querySelector(`#${shownTab()}-family input[value="${name}"]`)?.click();
  };
  return { reveal, choose };
})();
