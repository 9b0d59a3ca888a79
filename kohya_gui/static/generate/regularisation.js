// Regularisation images: the dialog that generates those a training needs, and the one that takes images of Generate.
(() => {
  const { ask, send, attempt, el, button, checkbox, select, complaint, duration, on } = Studio;
  const EVERY = 1000; // milliseconds
  const LONGEST = 310_000; // milliseconds, to read a large dataset
  const NUMBERS = ["steps", "scale", "guidance", "image_seed", "batch_size"];
  const MORE = [...NUMBERS, "sampler", "dtype", "negative_prompt", "compile"];
  const dialog = Studio.dialog({ class: "browse job-dialog regularisation", "aria-label": "Regularisation images" });
  let fields = null; // option -> label, help, choices, families
  let tab; // the training tab
  let needs = null; // the answer of dataset/regularisation
  let job = null;
  /** @type {Record<string, any>} */
  let parts = {};

  const number = (value) => value.toLocaleString("en-US");
  const images = (count) => `${number(count)} ${count === 1 ? "image" : "images"}`;
  const form = () => Plans.form(tab);

  // The form

  const field = (name, control, width = "") => {
    const { label, help } = fields[name];
    control.name = name;
    return el("label", { id: `regularisation-${name}`, class: width, title: help }, el("span", {}, label), control);
  };
  const tick = (name) => el("label", { id: `regularisation-${name}`, class: "tick", title: fields[name].help }, checkbox(false, null, { name }), fields[name].label);
  const control = (name) => {
    if (name === "compile") return tick(name);
    if (fields[name].choices.length) return field(name, select({}, [["", "As in the training"], ...fields[name].choices.map((each) => [each, each])]));
    const isNumber = NUMBERS.includes(name);
    return field(name, el("input", { type: isNumber ? "number" : "text", step: "any", placeholder: isNumber ? "default" : "" }), isNumber ? "" : "double");
  };
  const build = () => {
    const { family } = form();
    const again = () => plan();
    const prompt = el("textarea", { rows: 2, spellcheck: "false", onchange: again });
    const count = el("input", { type: "number", min: 1, step: 1, onchange: again });
    const folder = el("input", { type: "text", spellcheck: "false", onchange: again });
    const browse = button("Browse…", () => Studio.browse(folder, "reg_data_dir", again), { class: "link" });
    const more = MORE.filter((name) => fields[name].families.includes(family)).map(control);
    parts = {
      prompt,
      count,
      folder,
      needs: el("div", { role: "status" }),
      said: el("div", { role: "alert" }),
      run: el("div", { "aria-live": "polite" }),
      start: button("Generate", start, { class: "take", "data-action": "start-regularisation" }),
      stop: button("Stop", () => act("stop"), { hidden: true, "data-action": "stop-regularisation" }),
      resume: button("Resume", () => act("resume"), { hidden: true, "data-action": "resume-regularisation" }),
      see: button("See images", () => (dialog.close(), Studio.dataset.visit(folder.value, tab)), { hidden: true }),
      use: button("Use this folder", () => use(), { hidden: true, title: "Write it into the field Regularisation images" }),
    };
    const folderField = field("reg_data_dir", folder, "wide");
    folderField.firstChild.append(" ", browse);
    parts.form = el(
      "form",
      { class: "job-form", onsubmit: (event) => event.preventDefault() },
      field("prompt", prompt, "wide"),
      field("images", count),
      folderField,
      el("details", { class: "wide" }, el("summary", {}, "Sampling"), el("div", { class: "job-form" }, ...more)),
    );
    const about = "The base model draws the class, and training sees these images as often as yours. So it keeps its idea of the class while it is taught your subject.";
    dialog.replaceChildren(
      Studio.closer(dialog),
      el("h2", {}, "Regularisation images"),
      el("p", { class: "quiet" }, about),
      parts.form,
      parts.needs,
      parts.said,
      parts.run,
      el("div", { class: "ways" }, parts.start, parts.stop, parts.resume, parts.see, parts.use),
    );
  };

  const lines = () => parts.prompt.value.split("\n").map((line) => line.trim()).filter(Boolean);
  /** The class prompts that the form changed; none, if it left the folders' classes as they are. */
  const prompts = () => (parts.prompt.dataset.own === lines().join("\n") ? [] : lines());
  const wanted = () => (parts.count.value === "" ? null : Number(parts.count.value));

  /** Ask which images the training needs, and show it. */
  const plan = async () => {
    parts.needs.replaceChildren(el("p", { class: "quiet" }, "Reading the images…"));
    needs = null;
    const request = { ...form(), prompts: prompts(), images: wanted(), place: parts.folder.value.trim() };
    const ok = await attempt(parts.needs, async () => {
      needs = await send("dataset/regularisation", request, { signal: AbortSignal.timeout(LONGEST) });
      if (!parts.folder.value) parts.folder.value = needs.place;
      if (!lines().length) parts.prompt.value = parts.prompt.dataset.own = needs.classes.map(({ prompt }) => prompt).join("\n");
      parts.needs.replaceChildren(...described());
    });
    const total = ok ? sum("images") : 0;
    if (ok && wanted() == null) parts.count.placeholder = String(total);
    drawButtons();
  };
  const sum = (name) => needs.classes.reduce((all, each) => all + each[name], 0);
  const left = () => (needs ? needs.classes.reduce((all, each) => all + Math.max(0, each.images - each.here), 0) : 0);
  const described = () => {
    const row = ({ prompt, folder, images: many, here, sizes }) => {
      const all = Object.entries(sizes).sort((one, other) => other[1] - one[1]);
      const shown = all.slice(0, 4).map(([size, times]) => `${size.replaceAll("x", " × ")}${all.length > 1 ? ` (${number(times)})` : ""}`);
      const rest = all.length > 4 ? ` and ${all.length - 4} more` : "";
      const line = ` · ${images(many)} · ${here ? `${number(here)} there` : "none there"} · `;
      return el("li", {}, el("b", { translate: "no" }, prompt), line, el("span", { translate: "no" }, folder), el("div", { class: "quiet" }, `Sizes, as the training images: ${shown.join(", ")}${rest}`));
    };
    return [el("ul", {}, ...needs.classes.map(row)), needs.unused ? el("p", { class: "warn" }, needs.unused) : null].filter(Boolean);
  };

  // The job

  const filled = () => {
    const options = { prompt: prompts(), images: wanted(), reg_data_dir: parts.folder.value.trim() };
    for (const name of MORE) {
      const made = parts.form.elements[name];
      if (made?.type === "checkbox") options[name] = made.checked;
      else if (made?.value.trim()) options[name] = made.value.trim();
    }
    return options;
  };
  const act = async (what, body = {}) => {
    if (await attempt(parts.said, () => send(`regularisation/${what}`, body, { signal: AbortSignal.timeout(LONGEST) }))) isAwaited = what !== "stop";
    job = null;
    follow();
  };
  const start = () => act("start", { ...form(), options: filled() });

  let timer = null;
  let round = 0; // of asking: an answer that comes after the next question is dropped
  let isAwaited = false; // whether the end of a job is to be reported
  /** Follow the job, also while the dialog is closed. */
  const follow = async () => {
    clearTimeout(timer);
    const mine = ++round;
    const news = await ask(`regularisation?known=${job?.known ?? ""}`).catch(() => null); // the live view reports that the GUI does not respond
    if (mine !== round) return;
    if (news) {
      job = news;
      if (dialog.open) drawJob();
    }
    if (!job?.over) {
      isAwaited ||= Boolean(job);
      timer = setTimeout(follow, EVERY);
    } else if (isAwaited) {
      isAwaited = false;
      ended();
    }
  };
  const ended = async () => {
    if (dialog.open) await plan();
    if (job.state !== "finished") return;
    const { tab: of, place } = job;
    const isSet = document.querySelector(`#${of}-reg_data_dir :is(input, textarea)`)?.value.trim() === place;
    if (!isSet && !dialog.open) Studio.toast("The regularisation images are ready", "Use them", () => Fields.set(of, "reg_data_dir", place));
  };
  const drawJob = () => {
    const { state, over, error, done, total, warnings, waits_for: before, seconds } = job;
    const made = [];
    if (before) made.push(el("p", {}, `Starts when ${before} ends, before queued runs`));
    else if (state && !over) {
      const phase = job.doing ? Studio.capitalised(job.doing) : "Starting";
      const words = el("span", {}, total ? `${phase}: ${number(done)} of ${images(total)}` : `${phase}…`);
      made.push(el("div", { class: "checkpoints-job" }, words, Studio.progressBar(done, total)));
    } else if (state === "finished") made.push(el("p", {}, `The last job ended after ${duration(seconds)}`));
    else if (state === "stopped") made.push(el("p", {}, "Stopped. The images are kept, and Resume continues with the others."));
    else if (error) made.push(complaint(job));
    for (const text of warnings ?? []) made.push(el("p", { class: "warn" }, text));
    parts.run.replaceChildren(...made);
    drawButtons();
  };
  const drawButtons = () => {
    const over = !job || job.over;
    const missing = left();
    parts.start.textContent = missing ? `Generate ${images(missing)}` : "Generate";
    parts.start.disabled = !over || !missing;
    parts.stop.hidden = over;
    parts.stop.disabled = job?.state === "stopping";
    parts.resume.hidden = !over || !["stopped", "lost", "failed"].includes(job?.state);
    const here = needs ? sum("here") : 0;
    parts.see.hidden = !here;
    parts.use.hidden = !here;
    if (needs && !missing && here) parts.start.textContent = "All are there";
  };
  const use = async () => {
    dialog.close();
    await Fields.set(tab, "reg_data_dir", parts.folder.value.trim());
  };

  /** Open the dialog for the training of a tab. */
  const open = async (which) => {
    tab = which;
    fields ??= await ask("regularisation/fields");
    build();
    Studio.show(dialog);
    job = null;
    await Promise.all([plan(), follow()]);
  };
  on(
    "click",
    'a[href$="#make-images"]',
    (link, event) => {
      event.preventDefault();
      open(link.closest(".option[id]").id.replace(/-reg_data_dir$/, ""));
    },
    true,
  );
  // what was typed right before the dialog was opened is in the form a moment later
  document.addEventListener("form-changed", (/** @type {any} */ event) => dialog.open && event.detail.tab === tab && !needs && plan());
  on("focusin", 'a[href$="#make-images"]', (link) => link.removeAttribute("target"));

  // Images of the tab Generate

  const taking = Studio.dialog({ class: "browse job-dialog regularisation", "aria-label": "Use as regularisation images" });
  /** Ask for class and folder, and copy these images of a folder there. */
  Studio.useAsRegularisation = async (folder, names, prompt) => {
    fields ??= await ask("regularisation/fields");
    const training = select({ onchange: () => suggest() }, Forms.titled());
    const place = el("input", { type: "text", spellcheck: "false" });
    const kind = el("input", { type: "text", value: prompt });
    const said = el("div", { role: "alert" });
    const suggest = async () => {
      const answer = await send("dataset/regularisation", Plans.form(training.value), { signal: AbortSignal.timeout(LONGEST) }).catch(() => null);
      if (!answer) return;
      place.value ||= answer.place;
      if (answer.classes.length) kind.value = answer.classes[0].prompt;
    };
    const take = () =>
      attempt(said, async () => {
        const body = { ...Plans.form(training.value), image_dir: folder, names, reg_data_dir: place.value, class: kind.value };
        const answer = await send("regularisation/take", body, { signal: AbortSignal.timeout(LONGEST) });
        taking.close();
        await Fields.set(training.value, "reg_data_dir", answer.place);
      });
    taking.replaceChildren(
      Studio.closer(taking),
      el("h2", {}, `Use ${images(names.length)} as regularisation images`),
      el("p", { class: "quiet" }, "They are copied into a folder of the class, with their prompts as captions."),
      el(
        "form",
        { class: "job-form", onsubmit: (event) => (event.preventDefault(), take()) },
        el("label", {}, el("span", {}, "For the training in"), training),
        el("label", { class: "double" }, el("span", {}, "Class"), kind),
        el("label", { class: "wide" }, el("span", {}, fields.reg_data_dir.label), place),
        el("div", { class: "wide ways" }, button("Copy them", null, { type: "submit", class: "take" })),
      ),
      said,
    );
    Studio.show(taking);
    await suggest();
  };
})();
