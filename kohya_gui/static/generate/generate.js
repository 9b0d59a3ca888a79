// The tab Generate: its form, the progress of requests, and the images with their parameters.
(() => {
  const { ask, send, attempt, el, button, checkbox, select, upload, rendered } = Studio;
  const { write, url, complaint, duration } = Studio;
  const EVERY = 500; // milliseconds
  const IDLE_EVERY = 3000; // while no images are made
  const KEPT = "generate-form"; // in the browser
  const GRID = "-grid.png"; // end of the name of a comparison
  let families = null; // from the server
  let home = null; // the elements of the form and of the gallery
  let known = "";
  let state = null;
  let asked = 0; // when
  let images = [];
  let folder = ""; // in the form, whose images are shown
  let shown = null; // the image that is enlarged

  // The form

  const kept = () => {
    try {
      return JSON.parse(localStorage.getItem(KEPT)) ?? {};
    } catch {
      return {};
    }
  };
  const family = () => families.find((each) => each.name === home.family.value) ?? families[0];
  const controlOf = (name) => document.querySelector(`#generate-${name} :is(input, textarea, select)`);

  const control = (field) => {
    const common = { "aria-label": field.label, spellcheck: "false", oninput: changed, onchange: changed };
    if (field.kind === "switch") return checkbox(false, changed, common);
    if (field.kind === "choice") {
      const choices = [...(field.nullable ? [["", "not set"]] : []), ...field.choices.map((choice) => [choice, choice])];
      return select(common, choices);
    }
    if (field.kind === "lines") {
      const placeholder = field.name === "prompt" ? "a photo of sks cat on a chair --d 1\na drawing of sks cat --w 768" : "one per line";
      return el("textarea", { rows: field.name === "prompt" ? 4 : 2, placeholder, ...common });
    }
    const number = field.kind === "number" || field.kind === "slider";
    return el("input", { type: number ? "number" : "text", step: "any", placeholder: field.placeholder || (field.nullable ? "not set" : ""), ...common });
  };

  const previews = new WeakMap(); // control -> shows the file that it names

  /** The image or clip that a control names; nothing for a file that cannot be shown. */
  const previewOf = (file, kind) => {
    const box = el("span", { class: kind, hidden: true });
    const still = el("img", { alt: "" }); // of a clip its first frame: what has none is not shown
    const source = () => `${url("generate/control")}?path=${encodeURIComponent(file.value.trim())}`;
    still.addEventListener("error", () => (box.hidden = true));
    still.addEventListener("load", () => {
      const clip = Studio.isClip(file.value.trim());
      box.replaceChildren(clip ? Studio.media(source(), file.value.trim(), { clip, controls: true }) : still);
      box.hidden = false;
    });
    const show = () => {
      box.hidden = true;
      if (file.value.trim()) still.src = `${source()}&poster=1`;
      else box.replaceChildren();
    };
    file.addEventListener("change", show);
    previews.set(file, show);
    return box;
  };

  const fieldOf = (field) => {
    const made = control(field);
    const browse = field.path ? el("a", { href: "#browse", class: "link" }, "Browse…") : null;
    const label = el("span", { class: "generate-label" }, field.label, browse ? " " : null, browse);
    const wide = field.wide || field.kind === "lines" ? " wide" : "";
    const box = field.kind === "switch" ? [made, label] : [label, made];
    const words = Language.text(field.help).split(/(\S*--\S+)/); // a line may not end between -- and the letter of an option
    const hint = el("span", { class: "generate-hint" }, ...words.map((word, i) => (i % 2 ? el("span", { class: "flag" }, word) : word)));
    const preview = field.media ? previewOf(made, "media-preview") : null;
    return el("label", { id: `generate-${field.name}`, class: `option generate-field${wide} kind-${field.kind}` }, ...box, preview, hint);
  };

  const read = (name) => {
    const made = controlOf(name);
    return made?.type === "checkbox" ? made.checked : (made?.value ?? "");
  };
  const put = (name, value) => {
    const made = controlOf(name);
    if (!made) return;
    if (made.type === "checkbox") made.checked = Boolean(value);
    else made.value = value ?? "";
    previews.get(made)?.();
  };
  const fields = () => family().panels.flatMap((panel) => panel.fields);

  /** A row with a file that can be chosen and removed. */
  const fileRow = (kind, title, file, option, ...parts) => {
    const browse = button("Browse…", () => Studio.browse(file, option));
    const remove = button("✕", () => (row.remove(), changed()), { "aria-label": `Remove ${title}` });
    const row = el("div", { class: kind }, ...parts, browse, remove);
    return row;
  };
  const adapterRow = ({ path = "", strength = 1 } = {}) => {
    const words = button("", () => addToPrompts(words.dataset.words), { class: "adapter-words", title: "Put them into each prompt that lacks them", hidden: true });
    const typed = () => (showWords(file.value.trim(), words), changed());
    const file = el("input", { type: "text", class: "adapter-file", value: path, placeholder: "/models/lora.safetensors", "aria-label": "Adapter file", oninput: changed, onchange: typed });
    const by = el("input", { type: "number", class: "adapter-strength", step: "0.05", value: strength, "aria-label": "Strength", oninput: changed });
    showWords(path, words);
    const row = fileRow("adapter", "adapter", file, "lora_weights", file, by);
    row.append(words);
    return row;
  };
  /** Show the trigger words that a file's metadata has. */
  const showWords = async (path, shown) => {
    shown.dataset.path = path;
    const { words } = path ? await ask(`generate/trigger?path=${encodeURIComponent(path)}`).catch(() => ({ words: "" })) : { words: "" };
    if (shown.dataset.path !== path) return; // a different file was entered since
    shown.dataset.words = words;
    shown.textContent = `Trigger words: ${words}`;
    shown.hidden = !words;
  };
  const addToPrompts = (words) => {
    const lines = read("prompt").split("\n");
    const lacks = (line) => line.trim() && !line.trim().startsWith("#") && !line.toLowerCase().includes(words.toLowerCase());
    put("prompt", read("prompt").trim() ? lines.map((line) => (lacks(line) ? `${words}, ${line}` : line)).join("\n") : words);
    changed();
  };
  const addOwn = (path) => {
    home.adapters.append(adapterRow({ path }));
    changed();
  };
  const adapters = () =>
    [...home.adapters.querySelectorAll(".adapter")]
      .map((row) => ({ path: row.querySelector(".adapter-file").value.trim(), strength: Number(row.querySelector(".adapter-strength").value) }))
      .filter((each) => each.path);

  // Options whose values are compared

  const AXES = 2;
  const EXAMPLES = { lora_multiplier: "0.6, 0.8, 1", steps: "20, 30, 40", sampler: "euler_a, dpmsolver++", lora_weights: "/models/a.safetensors, /models/b.safetensors" };
  const sweepRow = ({ name = "", values = "" } = {}) => {
    const shape = () => {
      listed.placeholder = EXAMPLES[option.value] ?? "first, second";
      home.addSweep.hidden = home.sweeps.children.length >= AXES;
    };
    const option = select({ "aria-label": "Option to compare", onchange: () => (shape(), changed()) }, family().swept);
    const listed = el("input", { type: "text", value: values, spellcheck: "false", "aria-label": "Values, separated by commas", oninput: changed });
    const used = sweeps(true).map((each) => each.name);
    option.value = name || family().swept.find(([each]) => !used.includes(each))[0];
    const remove = button("✕", () => (row.remove(), shape(), changed()), { "aria-label": "Remove the comparison" });
    const row = el("div", { class: "sweep" }, option, listed, remove);
    setTimeout(shape);
    return row;
  };
  const sweeps = (unfilled = false) =>
    [...home.sweeps.children].map((row) => ({ name: row.querySelector("select").value, values: row.querySelector("input").value.trim() })).filter((each) => unfilled || each.values);

  // Control images, such as the image to edit

  const controlRow = (path = "") => {
    const typed = () => ((file.title = file.value.trim()), changed());
    const file = el("input", { type: "text", class: "control-file", value: path, title: path, placeholder: "/images/before.png", "aria-label": "Control image", onchange: typed });
    const preview = previewOf(file, "control-preview");
    previews.get(file)();
    return fileRow("control", "control image", file, "control_image_path", preview, file);
  };
  const controls = () => [...home.controls.querySelectorAll(".control-file")].map((file) => file.value.trim()).filter(Boolean);

  const addControls = async (files) => {
    home.said.replaceChildren();
    for (const file of files) {
      try {
        const where = `generate/control?name=${encodeURIComponent(file.name)}&image_dir=${encodeURIComponent(read("image_dir"))}`;
        const kept = await ask(where, { method: "POST", headers: { "X-Studio": "1" }, body: file });
        for (const row of [...home.controls.children]) if (!row.querySelector(".control-file").value.trim()) row.remove();
        home.controls.append(controlRow(kept.path));
      } catch (error) {
        home.said.append(complaint(error));
      }
    }
    changed();
  };

  /** The control images of a family that takes them: rows, and a place to drop files. */
  const controlBox = (paths) => {
    home.controls = el("div", { class: "controls" }, ...paths.map(controlRow));
    if (!family().controls) return null;
    const files = upload("image/*", addControls, { multiple: true, "aria-label": "Upload control images" });
    const buttons = el(
      "div",
      { class: "control-ways" },
      button("Upload…", () => files.click()),
      button("Add a path", () => home.controls.append(controlRow()), { "data-action": "add-control" }),
      el("span", { class: "quiet" }, "or drop images here"),
    );
    const title = el("span", { class: "generate-label" }, "Control images, such as the image to edit");
    const box = el("div", { class: "generate-controls" }, title, home.controls, buttons, files);
    const over = (event, on) => {
      event.preventDefault();
      event.stopPropagation();
      box.classList.toggle("drop-here", on);
    };
    for (const kind of ["dragenter", "dragover"]) box.addEventListener(kind, (event) => over(event, true));
    box.addEventListener("dragleave", (event) => over(event, false));
    box.addEventListener("drop", (event) => {
      over(event, false);
      addControls(event.dataTransfer.files);
    });
    return box;
  };

  const filled = () => Object.fromEntries(fields().map((field) => [field.name, read(field.name)]));

  function changed() {
    const all = kept();
    all.family = home.family.value;
    all[all.family] = { values: filled(), adapters: adapters(), controls: controls(), sweeps: sweeps() };
    localStorage.setItem(KEPT, JSON.stringify(all));
    asked = 0; // the folder may be a different one
    show();
  }

  /** Hide what its switch makes ineffective. */
  const show = () => {
    for (const field of fields())
      if (field.shown_when) document.getElementById(`generate-${field.name}`).hidden = !read(field.shown_when);
  };

  /** Draw the form of the chosen family with these values over the defaults. */
  const draw = ({ values = {}, adapters: files = [], controls: paths = [], sweeps: compared = [] } = {}) => {
    const panels = family().panels.map(({ title, open, fields: some }) => {
      const grid = el("div", { class: "generate-fields" }, ...some.map(fieldOf));
      if (!title) return grid;
      return el("details", { class: "generate-panel", open: open || kept()[`panel ${title}`] }, el("summary", {}, title), grid);
    });
    const [first, ...rest] = panels;
    home.adapters = el("div", { class: "adapters" }, ...files.map(adapterRow));
    const add = button("Add adapter", () => home.adapters.append(adapterRow()), { "data-action": "add-adapter" });
    const own = button("My LoRAs…", () => Studio.chooseLora(home.family.value, addOwn), { "data-action": "own-loras" });
    const ways = el("div", { class: "control-ways" }, add, own);
    const box = el("div", { class: "generate-adapters" }, el("span", { class: "generate-label" }, "LoRAs and other adapters"), home.adapters, ways);
    home.sweeps = el("div", { class: "sweeps" });
    home.addSweep = button("Compare values…", () => home.sweeps.append(sweepRow()), { "data-action": "add-sweep", title: "An image for each value of an option, or for each pair of values of two" });
    for (const each of compared) home.sweeps.append(sweepRow(each));
    const sweepBox = el("div", { class: "generate-adapters", id: "generate-sweep" }, home.sweeps, el("div", { class: "control-ways" }, home.addSweep));
    home.form.replaceChildren(...[controlBox(paths), first, box, sweepBox, ...rest].filter(Boolean));
    for (const field of fields()) put(field.name, values[field.name] ?? field.value);
    show();
  };

  /** Fill the form from an image or a run; values it does not have stay. */
  const fill = (answer) => {
    if (answer.family) home.family.value = answer.family;
    const before = kept()[home.family.value] ?? {};
    draw({ values: { ...before.values, ...answer.values }, adapters: answer.adapters ?? before.adapters, controls: answer.controls ?? before.controls, sweeps: before.sweeps });
    changed();
  };

  const generate = async () => {
    const files = adapters();
    /** @type {Record<string, any>} */
    const values = { ...filled(), lora_weights: files.map((each) => each.path).join("\n"), lora_multiplier: files.map((each) => each.strength).join(" ") };
    values.sweep = sweeps().map(({ name, values: listed }) => `${name}=${listed}`).join("\n");
    if (family().controls) values.control_image_path = controls().join("\n");
    await attempt(home.said, () => Studio.sendStart("generate", { family: home.family.value, values }));
    lookAgain();
  };
  const lookAgain = () => {
    known = "";
    beat();
  };
  /** Send something that needs no answer. */
  const tell = async (what, body) => {
    await send(`generate/${what}`, body).catch(() => {});
    lookAgain();
  };

  // Progress

  const doing = (request) => {
    if (request.state === "done") return `Done in ${duration(request.seconds)}`;
    if (request.state === "waiting") return state.waits_for ? `Starts when ${state.waits_for} ends` : "Waiting";
    const { image, last, images } = request;
    const which = last > image ? `, images ${image} to ${last} of ${images}` : `, image ${image} of ${images}`;
    const count = images > 1 ? which : "";
    return request.total ? `Step ${request.done} of ${request.total}${count}` : `${Studio.capitalised(request.phase)}…`;
  };

  const isOpen = (request) => ["waiting", "generating"].includes(request.state);

  const requestRow = (request) => {
    const open = isOpen(request);
    const images = Math.max(request.images, 1);
    const now = Math.max(request.last - request.image + 1, 1);
    const done = request.total ? (Math.max(request.image - 1, 0) + (now * request.done) / request.total) / images : 0;
    const cancel = () => tell("cancel", { id: request.id });
    const isStrip = ({ target }) => target.classList.toggle("strip", target.naturalWidth > 2 * target.naturalHeight); // frames of a clip
    const preview = open && request.preview ? el("img", { class: "request-preview", src: `${url("generate/preview")}?n=${request.preview}`, alt: "Preview", onload: isStrip }) : null;
    return el(
      "li",
      { class: `request request-${request.state}` },
      el("span", { class: "request-prompt", title: request.prompt }, request.prompt),
      open ? Studio.progressBar(done, request.total && 1) : null,
      request.state === "failed" ? rendered("span", { class: "request-doing bad" }, request.html) : el("span", { class: "request-doing" }, doing(request)),
      open ? button("Cancel", cancel, { class: "link", "data-action": "cancel-request" }) : null,
      preview,
    );
  };

  const drawState = () => {
    const { alive, requests, warnings } = state;
    const open = requests.filter(isOpen);
    const over = requests.filter((request) => !isOpen(request)).slice(0, 1);
    home.requests.replaceChildren(...[...open].reverse().map(requestRow), ...over.map(requestRow));
    home.free.hidden = !alive;
    write(home.process, alive ? (open.length ? "The model is generating" : "The model stays loaded") : "");
    home.warnings.replaceChildren(...warnings.map((html) => rendered("li", {}, html)));
  };

  // The gallery

  const line = (image) => {
    const { parameters: p = {} } = image;
    const facts = [`${image.width} × ${image.height}`];
    if (image.frames > 1) facts.push(Studio.lengthOf(image));
    if (p.steps) facts.push(`${p.steps} steps`);
    if (p.sampler) facts.push(p.sampler);
    if (p.scale != null) facts.push(`CFG ${p.scale}`);
    if (p.guidance != null) facts.push(`guidance ${p.guidance}`);
    if (p.seed != null) facts.push(`seed ${p.seed}`);
    return facts.join(" · ");
  };
  const ofFolder = (where) => `${where}?image_dir=${encodeURIComponent(folder)}`;
  const source = (image) => url(ofFolder(`generate/image/${encodeURIComponent(image.name)}`));

  const open = (image) => {
    if (!image) return;
    shown = image;
    const { parameters: p = {} } = image;
    const used = (p.adapters ?? []).map((each) => `${each.name} × ${each.strength}`).join(", ");
    const from = (p.control_images ?? []).map((each) => each.name).join(", ");
    const useForm = () => (home.dialog.close(), fill(image.form));
    const use = button("Use these settings", useForm, { "data-action": "use-parameters" });
    home.dialog.replaceChildren(
      Studio.closer(home.dialog),
      Studio.media(source(image), p.prompt ?? "", { clip: Studio.isClip(image.name), controls: Studio.isClip(image.name), translate: "no" }),
      el(
        "div",
        { class: "sample-details" },
        el("p", { class: "sample-prompt" }, p.prompt ?? "No parameters in this file"),
        p.negative_prompt ? el("p", { class: "quiet" }, `Not: ${p.negative_prompt}`) : null,
        el("p", { class: "quiet" }, line(image)),
        from ? el("p", { class: "quiet" }, `From ${from}`) : null,
        p.model ? el("p", { class: "quiet" }, used ? `${p.model}, adapters: ${used}` : p.model) : null,
        el("p", { class: "run-actions" }, image.form ? use : null, el("a", { href: source(image), download: image.name, class: "sample-download" }, "Download")),
      ),
    );
    Studio.show(home.dialog);
  };
  const walk = (by) => open(images[images.findIndex((image) => image.name === shown.name) + by]);

  const drawGallery = async () => {
    const same = folder === read("image_dir");
    folder = read("image_dir");
    const answer = await ask(ofFolder("generate/gallery"));
    images = answer.images;
    const old = new Map(same ? [...home.images.children].map((each) => [each.dataset.name, each]) : []);
    const small = (image) => {
      const { prompt } = image.parameters ?? {};
      const title = `${prompt ?? ""}\n${line(image)}`;
      const attributes = { class: "sample", "data-name": image.name, title, translate: prompt ? "no" : null };
      const label = image.parameters?.sweep ? labelOf(image) : image.name.endsWith(GRID) ? "grid" : "";
      const shape = Studio.isClip(image.name) ? { clip: true, width: image.width, height: image.height } : {};
      const made = button(Studio.media(source(image), prompt ?? image.name, { ...shape, translate: "no" }), () => open(image), attributes);
      if (label) made.append(el("span", { class: "sample-label" }, label));
      return made;
    };
    home.images.replaceChildren(...images.map((image) => old.get(image.name) ?? small(image)));
    write(home.folder, images.length ? `${answer.total > images.length ? `The newest ${images.length} of ${answer.total}` : answer.total} image${answer.total === 1 ? "" : "s"} in ${answer.folder}` : "");
    home.take.hidden = !images.length;
    home.rate.hidden = !Studio.canRate(compared().candidates);
    home.empty.hidden = images.length > 0 || state.requests.length > 0;
  };

  /** The values of a comparison that an image was made with: steps 20, scale 4. */
  const labelOf = (image) => image.parameters.sweep.map((pair) => pair.join(" ")).join(", ");

  /** The images of the newest comparison of values, by value, with a row for each prompt and seed. */
  const compared = () => {
    const optionsOf = ({ parameters: p }) => p.sweep.map(([option]) => option).join();
    const labelled = images.filter(({ name, parameters: p }) => p?.sweep && !name.endsWith(GRID));
    const own = labelled.filter((image) => optionsOf(image) === optionsOf(labelled[0]));
    const rowOf = ({ parameters: p }) => `${p.prompt} · seed ${p.seed}`;
    const rows = [...new Set(own.map(rowOf))];
    const byName = new Map(own.map((image) => [labelOf(image), rows.map(() => null)]));
    for (const each of own) byName.get(labelOf(each))[rows.indexOf(rowOf(each))] ??= source(each);
    return { candidates: [...byName].map(([name, made]) => ({ name, images: made })), rows };
  };
  const rate = () => Studio.rate(compared().candidates, compared().rows);

  const useAsRegularisation = () => Studio.useAsRegularisation(folder, images.map(({ name }) => name), images[0].parameters?.prompt ?? "");

  // An image or a clip dropped on the tab

  const readImage = (file) =>
    attempt(home.said, async () => {
      const answer = await send("generate/read", { chunks: await StudioTexts(file) });
      fill(answer);
      const model = !answer.family && answer.model ? ` It was made with ${answer.model}; choose its file below.` : "";
      home.said.replaceChildren(el("div", { class: "message message-ok" }, el("div", {}, el("p", {}, `Read the settings of '${file.name}'.${model}`))));
    });
  const visible = () => home?.element.offsetParent != null;
  document.addEventListener("drop", (event) => {
    const file = event.dataTransfer?.files[0];
    if (file && visible()) readImage(file);
  });

  /** Fill the form with a run's trained file, and show it. */
  Studio.tryRun = (run) => Studio.useInGenerate(`generate/run/${run.id}`);

  /** Fill the form with a route's answer, and show it. */
  Studio.useInGenerate = async (route) => {
    Studio.goTo("generate");
    const answer = await ask(route).catch((error) => error);
    await Studio.until(() => visible() || void beat());
    answer instanceof Error ? home.said.replaceChildren(complaint(answer)) : fill(answer);
  };

  // Layout

  const furnish = (element, side) => {
    const before = kept();
    const choice = select({ "aria-label": "Model family" }, families.map(({ name, title }) => [name, title]));
    if (families.some((each) => each.name === before.family)) choice.value = before.family;
    const file = upload("image/png,video/mp4", ([image]) => image && readImage(image));
    const from = button("From an image…", () => file.click());
    const start = button("Generate", generate, { id: "generate-go", class: "primary" });
    const dialog = Studio.dialog({ class: "sample-large", "aria-label": "Image" });
    Studio.onKeys(dialog, { ArrowLeft: () => walk(-1), ArrowRight: () => walk(1) });
    const hint =
      "Choose a model, write a prompt and press Generate. A PNG or MP4 dropped on the page fills the form with its settings.";
    home = {
      element,
      dialog,
      family: choice,
      form: el("div", { class: "generate-form" }),
      said: el("div", { class: "said" }),
      free: button("Free the model", () => tell("free"), { class: "link", "data-action": "free-model", hidden: true }),
      requests: el("ul", { class: "requests" }),
      warnings: el("ul", { class: "generate-warnings" }),
      process: el("span", { class: "quiet" }),
      folder: el("p", { class: "quiet where" }),
      images: el("div", { class: "generate-images" }),
      take: button("Use as regularisation images…", useAsRegularisation, { class: "link", hidden: true }),
      rate: button("Rate the compared images by eye…", rate, { class: "link", hidden: true, "data-action": "rate" }),
      empty: el("div", { class: "run-none" }, el("p", { class: "run-title" }, "No images yet"), el("p", {}, hint)),
    };
    const { form, said, free, requests, warnings, process, folder, images: grid, take, rate: rating, empty } = home;
    element.className = "board";
    const head = el("div", { class: "section-head" }, choice, from, file, start);
    element.replaceChildren(el("section", { class: "card generate-card" }, head, said, form));
    side.replaceChildren(el("div", { class: "generate-head" }, process, free), requests, warnings, empty, grid, folder, rating, take);
    choice.addEventListener("change", () => {
      draw(kept()[choice.value]);
      changed();
    });
    form.addEventListener("toggle", (event) => remember(event.target), true);
    draw(before[choice.value]);
    form.addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && generate());
  };
  const remember = (panel) => {
    const title = panel.querySelector("summary")?.textContent;
    if (title) localStorage.setItem(KEPT, JSON.stringify({ ...kept(), [`panel ${title}`]: panel.open }));
  };

  const work = async (element) => {
    const side = document.querySelector("[data-gallery]");
    if (!side) return;
    asked = Date.now();
    families ??= await ask("generate/form");
    const isNew = home?.element !== element;
    if (isNew) furnish(element, side);
    const news = await ask(`generate?known=${isNew ? "" : known}`);
    if (news) {
      known = news.known;
      state = news;
      drawState();
    }
    if (news || folder !== read("image_dir")) await drawGallery();
  };
  const isIdle = () => home && state && !state.requests.some(isOpen);
  const beat = Studio.whileShown("#generate-form [data-generate]", EVERY, work, () => !isIdle() || Date.now() >= asked + IDLE_EVERY);
})();
