// The tab Models: what a family needs, downloads, and the model files on this machine.
var Models = (() => {
  const { ask, send, attempt, el, button, card, select, table, write, duration, on } = Studio;
  const EVERY = 1000; // ms between two looks at the downloads
  const PAUSE = 350; // ms in which Gradio takes a value
  const TRIES = 5; // to write into a tab that is shown for the first time
  const RUNNING = ["waiting", "downloading", "checking"];
  const patient = () => ({ signal: AbortSignal.timeout(60_000) }); // a site may answer late
  const STATES = { waiting: "Waiting", downloading: "Downloading", checking: "Comparing the checksum", paused: "Paused", failed: "Failed", done: "Done" };
  let home = null;
  let family = "";
  let data = null; // of the family and this machine
  let downloads = [];
  let wished = []; // requests that a site wants a token for
  let training = ""; // the training tab that was shown last

  const UNITS = ["bytes", "kB", "MB", "GB"];
  const size = (bytes) => {
    if (bytes == null) return "size not stated";
    const unit = Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(bytes, 1)) / 3));
    const value = bytes / 1000 ** unit;
    return `${value.toFixed(unit < 2 || value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${UNITS[unit]}`;
  };
  const link = (href, words) => el("a", { href, target: "_blank", rel: "noreferrer noopener" }, words);
  const spaced = (...parts) => parts.filter(Boolean).flatMap((part, i) => (i ? [" · ", part] : [part]));
  const act = (work) => attempt(home.said, work);

  // Using a file: in the form of the training tab that was shown last

  const pause = () => new Promise((done) => setTimeout(done, PAUSE));
  const formOf = () => (Forms.tabs().includes(training) ? training : Forms.tabs()[0]);
  /** Set options of a form, by name, and show it. */
  const use = async (name, values) => {
    const has = (tab) => document.querySelector(`#${tab}-family input[value="${name}"]`);
    Studio.goTo(formOf());
    await Studio.until(() => Drafts.draft(formOf()) && document.querySelector(`#${formOf()}-family`));
    const tab = has(formOf()) ? formOf() : Forms.tabs()[0];
    if (tab !== formOf()) Studio.goTo(tab);
    await Studio.until(() => Drafts.draft(tab));
    if (Drafts.draft(tab).family !== name) {
      await Train.choose(name);
      await Studio.until(() => Drafts.draft(tab).family === name);
    }
    const isSet = () => Object.entries(values).every(([option, path]) => Drafts.value(tab, option) === path);
    for (let tries = 0; tries < TRIES; tries++) {
      Drafts.put(tab, values);
      await pause();
      document.querySelector(`#${tab} .keep-draft`)?.click(); // read again what the form has
      await pause();
      if (isSet()) return;
    }
  };

  // Getting a file; the first one that needs a token asks for it

  const get = async (requests) => {
    home.token.replaceChildren();
    for (const [i, request] of requests.entries()) {
      const answer = await send("models/add", request, patient());
      if (!answer.refused) continue;
      wished = requests.slice(i);
      askForToken(home.token, answer, (token) => get([{ ...wished[0], token }, ...wished.slice(1)]));
      break;
    }
    await look();
  };
  /** Ask for a token, or for a consent that a site's page takes, and try again with it. */
  const askForToken = (place, { refused, site, page, token_page: tokens, needs_token: isNeeded }, again) => {
    const field = isNeeded ? el("input", { type: "password", autocomplete: "off", "aria-label": `Token for ${site}`, placeholder: site === "Civitai" ? "API key" : "hf_…" }) : null;
    const retry = () => attempt(said, () => again(field?.value.trim() ?? ""));
    const said = el("div", {});
    if (field) Studio.onKeys(field, { Enter: retry });
    const ways = el("div", { class: "models-token" }, page === tokens ? null : link(page, "Accept the terms"), isNeeded ? link(tokens, "Make a token") : null, field, button(field ? "Use this token" : "Try again", retry));
    const kept = field ? el("p", { class: "quiet" }, "It stays in the memory of the GUI until that ends. HF_TOKEN and hf auth login work, too.") : null;
    place.replaceChildren(Studio.alarm(el("p", {}, refused), ways, kept, said));
    field?.focus();
  };

  // What the family needs

  const onItsWay = (name) => downloads.find((each) => each.name === name && each.state !== "done");
  const listed = (file) => ({ family, repo: file.repo, file: file.file, folder: home.folder.value });
  const drawPart = (part) => {
    const here = (name) => part.here.find((each) => each.name === name);
    const used = ({ path, name }) => button("Use", () => use(family, { [part.option]: path }), { "aria-label": `Use '${name}' in training` });
    const offered = part.files.map((file) => {
      const found = here(file.name);
      const moving = onItsWay(file.name);
      const way = found ? used(found) : moving ? el("span", { class: "quiet" }, STATES[moving.state]) : button("Get", () => act(() => get([listed(file)])), { "aria-label": `Get '${file.name}'` });
      const about = spaced(size(file.gigabytes * 1e9), file.licence, link(file.page, file.repo), file.gated && "terms to accept on the Hub");
      return el("li", { class: found ? "models-here" : "" }, el("div", {}, el("b", {}, file.about), el("span", { class: "row-small" }, ...about)), way);
    });
    const names = part.files.map(({ name }) => name);
    const others = part.here.filter(({ name }) => !names.includes(name));
    const own = others.map((each) => el("li", { class: "models-here" }, el("div", {}, el("b", {}, each.name), el("span", { class: "row-small" }, "on this machine")), used(each)));
    const note = part.optional ? el("span", { class: "quiet" }, " only if you want it") : null;
    return el("section", {}, el("h3", {}, part.title, note), el("ul", {}, ...own, ...offered));
  };
  const drawNeeds = () => {
    const required = data.needs.filter((part) => !part.optional);
    const missing = required.filter((part) => !part.here.length && part.files.length && !part.files.some(({ name }) => onItsWay(name)));
    const gigabytes = missing.reduce((sum, part) => sum + part.files[0].gigabytes, 0);
    const all = required.every((part) => part.here.length);
    const values = Object.fromEntries(required.filter((part) => part.here.length).map((part) => [part.option, part.here[0].path]));
    const getAll = () => act(() => get(missing.map((part) => listed(part.files[0]))));
    home.needs.replaceChildren(...data.needs.map(drawPart));
    home.ways.replaceChildren(
      ...(missing.length ? [button(`Get the missing files, ${Number(gigabytes.toFixed(1))} GB`, getAll, { class: "start", "data-action": "get-missing" })] : []),
      ...(all ? [button("Use in training", () => use(family, values), { class: "start", "data-action": "use-all" })] : []),
    );
  };

  // A pasted address

  const lookAt = () =>
    act(async () => {
      const address = home.address.value.trim();
      home.found.replaceChildren(el("p", { class: "quiet" }, "Asking…"));
      const request = { address, folder: home.folder.value };
      const show = (answer) => {
        if (answer.refused) return askForToken(home.found, answer, async (token) => show(await send("models/look", { address, token })));
        const rows = answer.files.map((file) => {
          const about = spaced(file.parts && `diffusers folder of ${file.parts} files`, size(file.bytes), file.licence, link(file.page, "its page"));
          const take = button("Get", () => act(() => get([{ ...request, url: file.url }])), { "aria-label": `Get '${file.name}'` });
          return el("li", {}, el("div", {}, el("b", { translate: "no" }, file.name), el("span", { class: "row-small" }, ...about)), take);
        });
        home.found.replaceChildren(el("ul", {}, ...rows));
      };
      try {
        show(await send("models/look", { address }, patient()));
      } catch (error) {
        home.found.replaceChildren();
        throw error;
      }
    });

  // Downloads

  const drawn = new Map(); // id -> its elements
  const drawDownloads = () => {
    const gone = [...drawn.keys()].filter((id) => !downloads.some((each) => each.id === id));
    for (const id of gone) drawn.get(id).element.remove(), drawn.delete(id);
    home.none.hidden = downloads.length > 0;
    for (const download of downloads) {
      const row = drawn.get(download.id) ?? makeRow(download);
      updateRow(row, download);
    }
  };
  const makeRow = ({ id, name, target }) => {
    const press = (action) => () => act(() => send(`models/${action}`, { id }).then(look));
    const row = {
      state: "",
      bar: el("div", { class: "bar", role: "progressbar", "aria-label": `Progress of '${name}'`, "aria-valuemin": 0, "aria-valuemax": 100 }, el("i")),
      words: el("span", { class: "row-small" }),
      problem: el("div", {}),
      pause: button("Pause", press("pause"), { "aria-label": `Pause '${name}'` }),
      resume: button("Resume", press("resume"), { "aria-label": `Resume '${name}'` }),
      remove: button("Remove", press("remove"), { "aria-label": `Remove '${name}'` }),
    };
    row.element = el("li", { class: "models-download" }, el("div", {}, el("b", { title: target, translate: "no" }, name), row.bar, row.words, row.problem), row.pause, row.resume, row.remove);
    drawn.set(id, row);
    home.downloads.append(row.element);
    return row;
  };
  const updateRow = (row, download) => {
    const { id, state, bytes, total, speed, seconds, error } = download;
    const share = state === "done" ? 100 : total ? Math.floor((100 * bytes) / total) : null;
    row.bar.classList.toggle("bar-unknown", share == null && RUNNING.includes(state));
    row.bar.firstChild.style.width = `${share ?? 0}%`;
    row.bar.setAttribute("aria-valuenow", share ?? 0);
    row.bar.hidden = state === "done";
    write(row.remove, state === "done" ? "Clear" : "Remove");
    const amount = state === "done" ? download.folder : total ? `${size(bytes)} of ${size(total)}` : size(bytes);
    write(row.words, spaced(STATES[state], amount, speed > 0 && `${size(speed)}/s`, seconds != null && `${duration(seconds)} left`).join(""));
    row.pause.hidden = !RUNNING.includes(state);
    row.resume.hidden = !["paused", "failed"].includes(state);
    if (row.state === `${state} ${error}`) return;
    row.state = `${state} ${error}`;
    if (download.page) askForToken(row.problem, { refused: error, site: download.site, page: download.page, token_page: download.token_page, needs_token: download.needs_token }, (token) => send("models/resume", { id, token, site: download.site }).then(look));
    else row.problem.replaceChildren(...(error ? [el("p", { class: "bad" }, error)] : []));
  };

  // The library

  const usesOf = (file) => {
    const own = file.uses.find((each) => each.family === family) ?? file.uses[0];
    if (!own || file.problem) return null;
    const title = own.family === family ? "" : data.families[own.family];
    const about = title ? `Use '${file.name}' for ${title}` : `Use '${file.name}'`;
    return button(title ? `Use for ${title}` : "Use", () => use(own.family, { [own.option]: file.path }), { "aria-label": about });
  };
  const usedIn = (file) => {
    const tabs = Forms.tabs().filter((tab) => Object.values(Drafts.draft(tab) ?? {}).includes(file.path));
    const drafts = tabs.map((tab) => `set in ${document.getElementById(`${tab}-button`)?.textContent.trim() ?? tab}`);
    const runs = file.runs.slice(0, 3).map(({ id, name }) => button(el("span", { translate: "no" }, name), () => Studio.goTo("runs", id), { class: "link", title: "Show in the Runs tab" }));
    const more = file.runs.length > 3 ? `${file.runs.length - 3} more runs` : "";
    return el("td", {}, ...spaced(...drafts, ...runs, more));
  };
  const drawLibrary = () => {
    const words = home.filter.value.toLowerCase();
    const files = data.files.filter((file) => `${file.path} ${file.text}`.toLowerCase().includes(words));
    const row = (file) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", title: file.path, translate: "no" }, file.name, el("span", { class: "row-small" }, file.folder)),
        el("td", { class: file.problem ? "bad" : "" }, file.text),
        usedIn(file),
        el("td", {}, usesOf(file)),
      );
    home.folders.replaceChildren(
      ...data.folders.map((path, i) => {
        const others = data.folders.filter((each) => each !== path);
        const take = others.length ? button("Remove", () => setFolders(others), { "aria-label": `Remove '${path}'` }) : null;
        return el("li", {}, el("span", {}, path, i ? "" : el("span", { class: "quiet" }, " · downloads are saved here")), take);
      }),
    );
    const none = data.files.length ? "No file matches" : "No model files here yet";
    home.files.replaceChildren(files.length ? table({ class: "models-files" }, ["File", "What it is", "Used in", ""], files.map(row)) : el("p", { class: "quiet" }, none));
    write(home.more, data.more ? "There are more files than are listed; add a narrower folder" : "");
  };
  const setFolders = (folders) => act(() => send("models/folders", { folders }).then(load));

  // Reading

  const load = async () => {
    family ||= Drafts.draft(formOf())?.family ?? "sdxl";
    data = await ask(`models?family=${encodeURIComponent(family)}`, patient());
    if (!home.family.options.length) home.family.replaceChildren(...Object.entries(data.families).map(([value, words]) => el("option", { value }, words)));
    home.family.value = family;
    if (!home.folder.value) home.folder.value = data.folders[0] ?? "";
    drawNeeds();
    drawLibrary();
  };
  const look = async () => {
    const before = downloads.map(({ id, state }) => `${id} ${state}`).join();
    downloads = (await ask("models/downloads")).downloads;
    drawDownloads();
    if (!data || downloads.map(({ id, state }) => `${id} ${state}`).join() !== before) await load();
  };

  const furnish = (element) => {
    const browse = (input, then) => button("Browse…", () => Studio.browse(input, "folder", then), { "aria-label": "Browse for a folder" });
    const added = el("input", {});
    home = {
      element,
      said: el("div", {}),
      token: el("div", {}),
      family: select({ "aria-label": "Model family", onchange: () => ((family = home.family.value), act(load)) }, []),
      needs: el("div", { class: "models-needs" }),
      ways: el("div", { class: "models-ways" }),
      folder: el("input", { type: "text", id: "models-folder", spellcheck: "false", autocomplete: "off" }),
      address: el("input", { type: "text", id: "models-address", spellcheck: "false", autocomplete: "off", placeholder: "owner/name, or an address of huggingface.co or civitai.com" }),
      found: el("div", {}),
      downloads: el("ul", { class: "models-downloads", "aria-live": "off" }),
      none: el("p", { class: "quiet" }, "Nothing is being downloaded"),
      folders: el("ul", { class: "models-folders" }),
      filter: Studio.search("Filter", () => drawLibrary()),
      files: el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Model files" }),
      more: el("p", { class: "warn" }),
    };
    Studio.onKeys(home.address, { Enter: lookAt });
    const saved = el("div", { class: "models-saved" }, el("label", { for: "models-folder" }, "Save in"), el("div", { class: "models-row" }, home.folder, browse(home.folder)));
    const pasted = el("div", {}, el("label", { for: "models-address" }, "From an address"), el("div", { class: "models-row" }, home.address, button("Look", lookAt)), home.found);
    const add = button("Add a folder…", () => Studio.browse(added, "folder", () => setFolders([...data.folders, added.value])));
    element.replaceChildren(
      el(
        "div",
        { class: "models board" },
        card(el("div", { class: "models-head" }, el("h2", {}, "Needed for"), home.family), home.token, home.said, home.needs, home.ways, saved),
        el("div", { class: "models-side" }, card(el("h2", {}, "Downloads"), home.none, home.downloads), card(pasted)),
        card(el("div", { class: "models-head" }, el("h2", {}, "On this machine"), home.filter, button("Scan again", () => act(load))), home.folders, el("div", {}, add), home.files, home.more),
      ),
    );
  };
  const beat = Studio.whileShown(
    "#models-view [data-models]",
    EVERY,
    async (element) => {
      if (home?.element !== element) furnish(element);
      await act(look);
    },
    () => !data || downloads.some(({ state }) => RUNNING.includes(state)),
  );
  on("click", "[role=tab]", () => {
    const shown = Forms.tabs().find((tab) => document.querySelector(`#${tab}[role=tabpanel]`)?.offsetParent);
    if (shown) training = shown;
  }, true);

  /** Show what a family needs. */
  const visit = async (name) => {
    training = Forms.tabs().find((tab) => document.querySelector(`#${tab}[role=tabpanel]`)?.offsetParent) ?? training;
    family = name;
    data = null;
    Studio.goTo("models");
    await Studio.until(() => document.querySelector("[data-models]")?.offsetParent);
    await beat();
  };
  return { visit };
})();
