// The tab LoRA tools: a form for each tool, hints about its files, one job at a time, and its result.
(() => {
  const { ask, send, attempt, later, el, button, card, checkbox, select, write, url, complaint, note } = Studio;
  const EVERY = 500; // milliseconds between two looks at a running job
  const QUIET = 350; // milliseconds after typing before files are looked at
  const KEPT = "lora-tools"; // the filled-in values, by tool, for this browser window
  /** @type {[string, string][]} */
  const EDITED = [
    ["modelspec.title", "Title"],
    ["modelspec.author", "Author"],
    ["modelspec.description", "Description"],
    ["modelspec.trigger_phrase", "Trigger phrase"],
    ["modelspec.tags", "Tags"],
    ["modelspec.license", "Licence"],
    ["modelspec.usage_hint", "Usage hint"],
    ["ss_training_comment", "Comment"],
  ];
  const UNDONE = { stopped: "Stopped. No file was written", lost: "The tool ended without a result" };
  let home = null;
  let tools = [];
  let tool = null; // the one shown
  let job = null;
  const kept = JSON.parse(sessionStorage.getItem(KEPT) || "{}");
  const keep = () => sessionStorage.setItem(KEPT, JSON.stringify({ ...kept, shown: tool?.name }));
  const valuesOf = (name) => (kept[name] ??= {});

  // Fields

  const labelled = (field, control, { wide = false, hint = null } = {}) =>
    el(
      "div",
      { class: wide ? "wide" : "" },
      el("label", { class: "tool-label", for: `tool-${field.name}` }, field.label),
      control,
      hint,
      field.help ? el("div", { class: "tool-help" }, field.help) : null,
    );

  const browse = (input, name, chosen) => button("Browse", () => Studio.browse(input, name, chosen));

  /** The input of a field, which keeps its text. */
  const typed = (field, value, attributes) => {
    const oninput = ({ target }) => set(field.name, target.value);
    return el("input", { id: `tool-${field.name}`, value, oninput, ...attributes });
  };
  const PATH = { type: "text", spellcheck: "false", autocomplete: "off" };
  const hintOf = (field) => el("div", { class: "file-hint", "data-hint": field.name });

  const file = (field, values) => {
    const input = typed(field, values[field.name], PATH);
    const picker = el("div", { class: "picker" }, input, browse(input, field.name));
    return labelled(field, picker, { wide: true, hint: hintOf(field) });
  };

  // The output: a folder is chosen, the name stays. Until somebody changes it, it follows the input.
  const output = (field, values) => {
    const folder = el("input", { type: "text", hidden: true });
    const take = () => {
      const sign = folder.value.includes("\\") ? "\\" : "/";
      const name = Studio.fileName(input.value) || "lora.safetensors";
      input.value = folder.value.replace(/[/\\]$/, "") + sign + name;
      input.dispatchEvent(new Event("input"));
    };
    const open = () => {
      folder.value = input.value.replace(/[^/\\]*$/, "");
      Studio.browse(folder, "folder", take);
    };
    const change = () => {
      values.ownOutput = Boolean(input.value);
      set(field.name, input.value);
    };
    const input = typed(field, values[field.name], { ...PATH, oninput: change });
    const hint = hintOf(field);
    home.output = { input, hint, name: field.name };
    return labelled(field, el("div", { class: "picker" }, input, button("Folder", open), folder), { wide: true, hint });
  };

  const number = (field, values) => {
    const [min, max] = field.within ?? [];
    const step = field.whole ? 1 : "any";
    const placeholder = field.nullable ? "unset" : null;
    const value = values[field.name] ?? field.default;
    return labelled(field, typed(field, value, { type: "number", min, max, step, placeholder }));
  };

  const choice = (field, values) => {
    const options = [...(field.nullable ? [["", "unchanged"]] : []), ...field.choices.map((each) => [each, each])];
    if (field.name === "dynamic_method") options[0][1] = "fixed rank";
    const onchange = ({ target }) => set(field.name, target.value);
    const list = select({ id: `tool-${field.name}`, onchange }, options);
    list.value = values[field.name] ?? field.default ?? "";
    return labelled(field, list);
  };

  const toggle = (field, values) => {
    const change = ({ target }) => set(field.name, target.checked);
    const box = checkbox(values[field.name] ?? field.default, change, { id: `tool-${field.name}` });
    const label = el("label", { class: "tool-switch" }, box, field.label);
    return el("div", {}, label, el("div", { class: "tool-help" }, field.help));
  };

  const text = (field, values) => labelled(field, typed(field, values[field.name], { type: "text" }));

  // A row for each LoRA: file, strength, and block weights if they are wanted
  const loraRows = (values) => {
    const rows = (values.rows ??= [{ path: "", ratio: 1 }]);
    const box = el("div", { class: "rows" });
    const changed = () => set("rows", rows);
    const line = (row, index) => {
      const keepsIn = (name) => ({ target }) => ((row[name] = target.value), changed());
      const file = { value: row.path, placeholder: "LoRA file", "aria-label": `LoRA ${index + 1}` };
      const path = el("input", { ...PATH, ...file, oninput: keepsIn("path") });
      const strength = el("input", { type: "number", value: row.ratio, step: "any", "aria-label": `Strength of LoRA ${index + 1}` });
      const slider = el("input", { type: "range", min: -1, max: 2, step: 0.05, value: row.ratio, "aria-hidden": "true", tabindex: -1 });
      const weigh = (from, to) => () => ((to.value = from.value), (row.ratio = from.value), changed());
      strength.addEventListener("input", weigh(strength, slider));
      slider.addEventListener("input", weigh(slider, strength));
      const remove = () => (rows.splice(index, 1), rows.length || rows.push({ path: "", ratio: 1 }), draw(), changed());
      const placeholder = "Block weights: IN=0, MID=0.5 or [1,0,0,...]; empty is 1";
      const names = { class: "blocks", placeholder, "aria-label": `Block weights of LoRA ${index + 1}` };
      const weights = () => el("input", { type: "text", value: row.lbw, ...names, oninput: keepsIn("lbw") });
      return el(
        "div",
        { class: "lora-row" },
        el("div", { class: "picker" }, path, browse(path, "models")),
        el("div", { class: "ratio", title: "Strength" }, slider, strength),
        button("✕", remove, { title: "Remove", "aria-label": `Remove LoRA ${index + 1}` }),
        el("div", { class: "file-hint", "data-hint": "models", "data-row": index }),
        values.blocks ? weights() : null,
      );
    };
    const addRow = () => (rows.push({ path: "", ratio: 1 }), draw(), changed());
    const add = button("Add LoRA", addRow, { "data-action": "add-lora" });
    const shown = checkbox(Boolean(values.blocks), () => ((values.blocks = shown.checked), draw(), changed()));
    const foot = el("div", { class: "rows-foot" }, add, el("label", {}, shown, "Block weights"));
    const draw = () => box.replaceChildren(...rows.map(line));
    draw();
    return el("div", { class: "wide", id: "tool-models" }, el("div", { class: "tool-label" }, "LoRAs"), box, foot);
  };

  // Metadata: the usual entries first, then every entry, each of which can be removed
  const metadata = (values) => {
    const box = el("div", { class: "wide" });
    const draw = (entries) => {
      const changes = (values.changes = {});
      const row = (key, words, now) => {
        const long = now.length > 70 || now.includes("\n");
        const input = el(long ? "textarea" : "input", long ? { rows: 2 } : { type: "text", value: now, placeholder: "not set" });
        if (long) input.value = now;
        input.setAttribute("aria-label", words);
        const line = el("div", { class: "entry-row" }, words === key ? el("code", { title: key }, key) : el("span", { title: key }, words), input);
        const note = () => {
          if (input.value === now) delete changes[key];
          else changes[key] = input.value;
          keep();
        };
        input.addEventListener("input", note);
        const toggleEntry = () => {
          const gone = line.classList.toggle("removed");
          if (gone) changes[key] = null;
          else note();
          remove.textContent = gone ? "Keep" : "Remove";
        };
        const remove = button("Remove", toggleEntry, { title: `Remove ${key}` });
        line.append(key in entries ? remove : el("span"));
        return line;
      };
      const common = new Map(EDITED);
      const others = Object.keys(entries).filter((key) => !common.has(key)).sort();
      box.replaceChildren(
        el("div", { class: "entries-list" }, ...EDITED.map(([key, words]) => row(key, words, entries[key] ?? ""))),
        el(
          "details",
          { open: others.length > 0 && others.length < 8 },
          el("summary", {}, others.length === 1 ? "1 other entry" : `${others.length} other entries`),
          el("div", { class: "entries-list" }, ...others.map((key) => row(key, key, entries[key]))),
        ),
      );
    };
    home.showEntries = async () => {
      const path = values.model;
      if (path === home.entriesOf) return;
      home.entriesOf = path;
      values.changes = {};
      try {
        const answer = path ? await send("lora-tools/metadata", { path }) : null;
        if (home.entriesOf === path) answer ? draw(answer.entries) : box.replaceChildren();
      } catch {
        box.replaceChildren(); // the hint names the problem of the file
      }
    };
    home.entriesOf = null;
    return box;
  };

  const MAKE = { file, output, number, choice, switch: toggle, text };

  const set = (name, value) => {
    valuesOf(tool.name)[name] = value;
    keep();
    look();
  };

  // The values of a request for this tool: options with a control, and suggestions if nothing else was chosen
  const sent = (whole = false) => {
    const values = valuesOf(tool.name);
    const given = { ...(whole ? values.suggested : {}), rows: values.rows };
    for (const field of tool.fields) if (values[field.name] !== undefined) given[field.name] = values[field.name];
    if (tool.name === "metadata") {
      const changes = Object.entries(values.changes ?? {});
      given.set = changes.filter(([, text]) => text !== null && text !== "").map(([key, text]) => `${key}=${text}`);
      given.remove = changes.filter(([, text]) => text === null || text === "").map(([key]) => key);
    }
    return { tool: tool.name, values: given };
  };

  // Hints

  const look = later(async () => {
    const asked = tool;
    try {
      const answer = await send("lora-tools/look", sent());
      if (asked === tool) showHints(answer);
    } catch {
      // the live view reports that the GUI does not respond
    }
  }, QUIET);

  const showHints = ({ hints, output, suggested, replaces }) => {
    const values = valuesOf(tool.name);
    values.suggested = suggested;
    for (const [name, value] of Object.entries(suggested)) {
      const input = home.form.querySelector(`#tool-${name}`);
      if (input && document.activeElement !== input) input.value = value;
    }
    for (const [name, found] of Object.entries(hints)) {
      if (name !== "models") {
        const element = home.form.querySelector(`[data-hint="${name}"]`);
        if (element) JobTab.showHint(element, found[0] ?? { text: "" });
        continue;
      }
      const filled = [...home.form.querySelectorAll('[data-hint="models"]')];
      const named = (values.rows ?? []).map((row, index) => [row, index]).filter(([row]) => row.path.trim());
      filled.forEach((element) => JobTab.showHint(element, { text: "" }));
      named.forEach(([, index], place) => filled[index] && JobTab.showHint(filled[index], found[place] ?? { text: "" }));
    }
    if (home.output && !values.ownOutput) {
      home.output.input.value = output;
      values[home.output.name] = output;
    }
    if (home.output) {
      write(home.output.hint, replaces && values.ownOutput ? "This file exists and will be replaced" : "");
      home.output.hint.className = "file-hint warn";
    }
    home.showEntries?.();
  };

  // Forms

  const show = (name) => {
    tool = tools.find((each) => each.name === name) ?? tools[0];
    keep();
    const values = valuesOf(tool.name);
    home.output = home.showEntries = null;
    for (const button of home.nav.children) button.setAttribute("aria-current", button.dataset.tool === tool.name);
    const fields = tool.fields.filter((field) => field.kind !== "rows");
    const isFile = (field) => ["file", "output"].includes(field.kind);
    const make = (field) => MAKE[field.kind](field, values);
    const parts = [
      ...fields.filter((field) => field.kind === "file").map(make),
      ...(tool.fields.some((field) => field.kind === "rows") ? [loraRows(values)] : []),
      ...(tool.name === "metadata" ? [metadata(values)] : []),
      ...fields.filter((field) => !isFile(field)).map(make),
      ...fields.filter((field) => field.kind === "output").map(make),
    ];
    home.form.replaceChildren(...parts);
    write(home.title, tool.title);
    write(home.about, tool.about);
    write(home.start, tool.output ? "Start" : "Inspect");
    home.said.replaceChildren();
    look();
  };

  const act = (work) => attempt(home.said, work);

  const start = () =>
    act(async () => {
      await Studio.sendStart("lora-tools/start", sent(true));
      if (home.output) valuesOf(tool.name).ownOutput = false; // the next one gets a free name
      job = null;
      beat();
    });

  // The job

  const drawResult = () => {
    const { state, error, warnings, saved, report, title, seconds, over } = job;
    home.start.disabled = !over;
    home.stop.hidden = over;
    home.stop.disabled = state === "stopping";
    const parts = [el("h2", {}, job.tool ? title : "Result")];
    if (!job.tool) parts.push(el("p", { class: "quiet" }, "Choose files and press Start. Tools compute on the CPU, alongside a training."));
    else if (!over) parts.push(JobTab.progress(job));
    else if (state === "finished") parts.push(...saved.map(resultFile));
    else if (error) parts.push(complaint(job));
    else parts.push(note("warning", el("p", {}, UNDONE[state] ?? state)));
    for (const text of job.tool ? warnings : []) parts.push(note("warning", el("p", {}, text)));
    if (report?.note) parts.push(el("p", {}, report.note));
    if (report?.facts) parts.push(StudioLoraReport(report));
    else if (over && state === "finished") parts.push(el("p", { class: "quiet" }, `Took ${Studio.duration(seconds)}`));
    home.result.replaceChildren(...parts);
  };

  const use = (path, name) => {
    const next = tools.find((each) => each.name === name);
    const values = valuesOf(name);
    values[next.inputs[0]] = path;
    values.ownOutput = false;
    show(name);
  };

  const resultFile = ({ path, name, size, there }) => {
    const ours = !there ? [el("span", { class: "quiet" }, "no longer there")] : [
      el("a", { href: url("lora-tools/file"), download: name }, "Download"),
      button("Copy path", null, { "data-copy": path }),
      ...(job.tool === "merge-model" ? [] : [button("Inspect", () => use(path, "inspect"))]),
    ];
    return el(
      "div",
      { class: "result-file" },
      el("div", {}, el("code", { title: path }, path), " ", el("span", { class: "quiet" }, size)),
      el("div", { class: "result-actions" }, ...ours),
    );
  };

  const furnish = async (element) => {
    tools = (await ask("lora-tools")).tools;
    const links = tools.map(({ name, title }) => button(title, () => show(name), { "data-tool": name }));
    home = {
      element,
      nav: el("nav", { class: "tools", "aria-label": "LoRA tools" }, ...links),
      title: el("h2"),
      about: el("p", { class: "quiet" }),
      form: el("div", { class: "tool-fields" }),
      start: button("Start", start, { class: "start", "data-action": "start-tool" }),
      stop: button("Stop", () => act(() => send("lora-tools/stop")), { "data-action": "stop-tool", hidden: true }),
      said: el("div"),
      result: el("section", { class: "card result-panel", "aria-live": "polite" }),
    };
    const { nav, title, about, form, said, result } = home;
    element.className = "lora-tools";
    const actions = el("div", { class: "tool-actions" }, home.start, home.stop);
    element.replaceChildren(nav, card(title, about, form, actions, said), result);
    job = null;
    show(kept.shown);
  };

  const work = async (element) => {
    if (home?.element !== element) await furnish(element);
    const news = await ask(`lora-tools/job?known=${job?.known ?? ""}`);
    if (!news) return;
    job = news;
    drawResult();
    if (job.over) look();
  };
  const beat = Studio.whileShown("#lora-tools [data-lora-tools]", EVERY, work, () => !job || !job.over);
})();
