// The tab Generate: its form, the progress of requests, and the images with their parameters.
(() => {
  const { ask, send, el, rendered, write, url, complaint, duration } = Studio;
  const EVERY = 500; // milliseconds
  const IDLE_EVERY = 3000; // while no images are made
  const KEPT = "generate-form"; // in the browser
  let families = null; // from the server
  let home = null; // the elements of the form and of the gallery
  let known = "";
  let state = null;
  let asking = false;
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
    if (field.kind === "switch") return el("input", { type: "checkbox", ...common });
    if (field.kind === "choice") {
      const choices = [...(field.nullable ? [["", "not set"]] : []), ...field.choices.map((choice) => [choice, choice])];
      return el("select", common, ...choices.map(([value, words]) => el("option", { value }, words)));
    }
    if (field.kind === "lines") {
      const placeholder = field.name === "prompt" ? "a photo of sks cat on a chair --d 1\na drawing of sks cat --w 768" : "one per line";
      return el("textarea", { rows: field.name === "prompt" ? 4 : 2, placeholder, ...common });
    }
    const number = field.kind === "number" || field.kind === "slider";
    return el("input", { type: number ? "number" : "text", step: "any", placeholder: field.placeholder || (field.nullable ? "not set" : ""), ...common });
  };

  const fieldOf = (field) => {
    const made = control(field);
    const browse = field.path ? el("a", { href: "#browse", class: "link" }, "Browse…") : null;
    const label = el("span", { class: "generate-label" }, field.label, browse ? " " : null, browse);
    const wide = field.wide || field.kind === "lines" ? " wide" : "";
    const box = field.kind === "switch" ? [made, label] : [label, made];
    const words = field.help.split(/(\S*--\S+)/); // a line may not end between -- and the letter of an option
    const hint = el("span", { class: "generate-hint" }, ...words.map((word, i) => (i % 2 ? el("span", { class: "flag" }, word) : word)));
    return el("label", { id: `generate-${field.name}`, class: `option generate-field${wide} kind-${field.kind}` }, ...box, hint);
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
  };
  const fields = () => family().panels.flatMap((panel) => panel.fields);

  const adapterRow = ({ path = "", strength = 1 } = {}) => {
    const file = el("input", { type: "text", class: "adapter-file", value: path, placeholder: "/models/lora.safetensors", "aria-label": "Adapter file", oninput: changed });
    const by = el("input", { type: "number", class: "adapter-strength", step: "0.05", value: strength, "aria-label": "Strength", oninput: changed });
    const browse = el("button", { type: "button", onclick: () => Studio.browse(file, "lora_weights") }, "Browse…");
    const drop = el("button", { type: "button", "aria-label": "Remove adapter", onclick: () => (row.remove(), changed()) }, "✕");
    const row = el("div", { class: "adapter" }, file, by, browse, drop);
    return row;
  };
  /** Offer what the runs of this family trained. */
  const offerAdapters = async () => {
    const found = await ask(`generate/adapters?family=${home.family.value}`).catch(() => []);
    const name = (path) => path.split(/[/\\]/).pop();
    const option = ({ path, run }) => el("option", { value: path, title: path }, name(path) === `${run}.safetensors` ? run : `${run}: ${name(path)}`);
    home.trained.replaceChildren(el("option", { value: "" }, "Add one of my runs…"), ...found.map(option));
    home.trained.hidden = !found.length;
  };
  const addTrained = () => {
    home.adapters.append(adapterRow({ path: home.trained.value }));
    home.trained.value = "";
    changed();
  };
  const adapters = () =>
    [...home.adapters.querySelectorAll(".adapter")]
      .map((row) => ({ path: row.querySelector(".adapter-file").value.trim(), strength: Number(row.querySelector(".adapter-strength").value) }))
      .filter((each) => each.path);

  // Control images, such as the image to edit

  const controlRow = (path = "") => {
    const preview = el("img", { class: "control-preview", alt: "", loading: "lazy" });
    const show = () => {
      const name = file.value.trim();
      preview.hidden = !name;
      file.title = name;
      if (name) preview.src = `${url("generate/control")}?path=${encodeURIComponent(name)}`;
    };
    const typed = () => (show(), changed());
    const file = el("input", { type: "text", class: "control-file", value: path, placeholder: "/images/before.png", "aria-label": "Control image", onchange: typed });
    preview.addEventListener("error", () => (preview.hidden = true));
    const browse = el("button", { type: "button", onclick: () => Studio.browse(file, "control_image_path") }, "Browse…");
    const drop = el("button", { type: "button", "aria-label": "Remove control image", onclick: () => (row.remove(), changed()) }, "✕");
    const row = el("div", { class: "control" }, preview, file, browse, drop);
    show();
    return row;
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
    const upload = el("input", { type: "file", accept: "image/*", multiple: true, hidden: true, "aria-label": "Upload control images" });
    upload.addEventListener("change", async () => {
      await addControls(upload.files);
      upload.value = "";
    });
    const buttons = el(
      "div",
      { class: "control-ways" },
      el("button", { type: "button", onclick: () => upload.click() }, "Upload…"),
      el("button", { type: "button", "data-action": "add-control", onclick: () => home.controls.append(controlRow()) }, "Add a path"),
      el("span", { class: "quiet" }, "or drop images here"),
    );
    const box = el("div", { class: "generate-controls" }, el("span", { class: "generate-label" }, "Control images, such as the image to edit"), home.controls, buttons, upload);
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
    all[all.family] = { values: filled(), adapters: adapters(), controls: controls() };
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
  const draw = ({ values = {}, adapters: files = [], controls: paths = [] } = {}) => {
    const panels = family().panels.map(({ title, open, fields: some }) => {
      const grid = el("div", { class: "generate-fields" }, ...some.map(fieldOf));
      if (!title) return grid;
      return el("details", { class: "generate-panel", open: open || kept()[`panel ${title}`] }, el("summary", {}, title), grid);
    });
    const [first, ...rest] = panels;
    home.adapters = el("div", { class: "adapters" }, ...files.map(adapterRow));
    const add = el("button", { type: "button", "data-action": "add-adapter", onclick: () => home.adapters.append(adapterRow()) }, "Add adapter");
    home.trained = el("select", { class: "adapters-of-runs", "aria-label": "Adapters of my runs", hidden: true, onchange: addTrained });
    const ways = el("div", { class: "control-ways" }, add, home.trained);
    const box = el("div", { class: "generate-adapters" }, el("span", { class: "generate-label" }, "LoRAs and other adapters"), home.adapters, ways);
    home.form.replaceChildren(...[controlBox(paths), first, box, ...rest].filter(Boolean));
    offerAdapters();
    for (const field of fields()) put(field.name, values[field.name] ?? field.value);
    show();
  };

  /** Fill the form with what an image or a run says; what it does not say stays. */
  const fill = (told) => {
    if (told.family) home.family.value = told.family;
    const before = kept()[home.family.value] ?? {};
    draw({ values: { ...before.values, ...told.values }, adapters: told.adapters ?? before.adapters, controls: told.controls ?? before.controls });
    changed();
  };

  const generate = async () => {
    home.said.replaceChildren();
    const files = adapters();
    const values = { ...filled(), lora_weights: files.map((each) => each.path).join("\n"), lora_multiplier: files.map((each) => each.strength).join(" ") };
    if (family().controls) values.control_image_path = controls().join("\n");
    try {
      await send("generate", { family: home.family.value, values });
    } catch (error) {
      home.said.append(complaint(error));
    }
    known = "";
    beat();
  };

  // Progress

  const doing = (request) => {
    if (request.state === "done") return `Done in ${duration(request.seconds)}`;
    if (request.state === "waiting") return state.waits_for ? `Starts when ${state.waits_for} ends` : "Waiting";
    const which = request.last > request.image ? `images ${request.image} to ${request.last}` : `image ${request.image}`;
    const count = request.images > 1 ? `, ${which} of ${request.images}` : "";
    return request.total ? `Step ${request.done} of ${request.total}${count}` : `${request.phase[0].toUpperCase()}${request.phase.slice(1)}…`;
  };

  const requestRow = (request) => {
    const open = ["waiting", "generating"].includes(request.state);
    const images = Math.max(request.images, 1);
    const now = Math.max(request.last - request.image + 1, 1);
    const done = request.total ? (Math.max(request.image - 1, 0) + (now * request.done) / request.total) / images : 0;
    const bar = el("div", { class: `bar${open && !request.total ? " bar-unknown" : ""}`, role: "progressbar", "aria-label": "Progress" }, el("i"));
    bar.firstChild.style.width = `${100 * done}%`;
    const cancel = async () => {
      await send("generate/cancel", { id: request.id }).catch(() => {});
      known = "";
      beat();
    };
    const preview = open && request.preview ? el("img", { class: "request-preview", src: `${url("generate/preview")}?n=${request.preview}`, alt: "Preview" }) : null;
    return el(
      "li",
      { class: `request request-${request.state}` },
      el("span", { class: "request-prompt", title: request.prompt }, request.prompt),
      open ? bar : null,
      request.state === "failed" ? rendered("span", { class: "request-doing bad" }, request.html) : el("span", { class: "request-doing" }, doing(request)),
      open ? el("button", { type: "button", class: "link", "data-action": "cancel-request", onclick: cancel }, "Cancel") : null,
      preview,
    );
  };

  const drawState = () => {
    const { alive, requests, warnings } = state;
    const open = requests.filter((request) => ["waiting", "generating"].includes(request.state));
    const over = requests.filter((request) => !open.includes(request)).slice(0, 1);
    home.requests.replaceChildren(...[...open].reverse().map(requestRow), ...over.map(requestRow));
    home.free.hidden = !alive;
    write(home.process, alive ? (open.length ? "The model is generating" : "The model stays loaded") : "");
    home.warnings.replaceChildren(...warnings.map((html) => rendered("li", {}, html)));
  };

  // The gallery

  const line = (image) => {
    const { parameters: p = {} } = image;
    const facts = [`${image.width} × ${image.height}`];
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
    const close = el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => home.dialog.close() }, "✕");
    const use = el("button", { type: "button", "data-action": "use-parameters", onclick: () => (home.dialog.close(), fill(image.form)) }, "Use these settings");
    home.dialog.replaceChildren(
      close,
      el("img", { src: source(image), alt: p.prompt ?? "" }),
      el(
        "div",
        { class: "sample-details" },
        el("p", { class: "sample-prompt" }, p.prompt ?? "No parameters in this image"),
        p.negative_prompt ? el("p", { class: "quiet" }, `Not: ${p.negative_prompt}`) : null,
        el("p", { class: "quiet" }, line(image)),
        from ? el("p", { class: "quiet" }, `From ${from}`) : null,
        p.model ? el("p", { class: "quiet" }, `${p.model}${used ? ` with ${used}` : ""}`) : null,
        el("p", { class: "run-actions" }, image.form ? use : null, el("a", { href: source(image), download: image.name, class: "sample-download" }, "Download")),
      ),
    );
    if (!home.dialog.open) home.dialog.showModal();
  };
  const walk = (by) => open(images[images.findIndex((image) => image.name === shown.name) + by]);

  const drawGallery = async () => {
    const same = folder === read("image_dir");
    folder = read("image_dir");
    const told = await ask(ofFolder("generate/gallery"));
    images = told.images;
    const old = new Map(same ? [...home.images.children].map((each) => [each.dataset.name, each]) : []);
    const small = (image) => {
      const picture = el("img", { src: source(image), alt: image.parameters?.prompt ?? image.name, loading: "lazy", decoding: "async" });
      return el("button", { type: "button", class: "sample", "data-name": image.name, title: `${image.parameters?.prompt ?? ""}\n${line(image)}`, onclick: () => open(image) }, picture);
    };
    home.images.replaceChildren(...images.map((image) => old.get(image.name) ?? small(image)));
    write(home.folder, images.length ? `${told.total > images.length ? `The newest ${images.length} of ${told.total}` : told.total} images in ${told.folder}` : "");
    home.empty.hidden = images.length > 0 || state.requests.length > 0;
  };

  // An image dropped on the tab: its text chunks, of which the server makes a form

  const TEXT = new Set(["tEXt", "iTXt"]);
  const chunksOf = async (file) => {
    const bytes = new Uint8Array(await file.arrayBuffer());
    const view = new DataView(bytes.buffer);
    const latin = (some) => new TextDecoder("latin1").decode(some);
    const found = {};
    for (let at = 8; at + 12 <= bytes.length; ) {
      const length = view.getUint32(at);
      const kind = latin(bytes.subarray(at + 4, at + 8));
      const data = bytes.subarray(at + 8, at + 8 + length);
      if (TEXT.has(kind)) {
        const end = data.indexOf(0);
        const key = latin(data.subarray(0, end));
        if (kind === "tEXt") found[key] = latin(data.subarray(end + 1));
        else if (!data[end + 1]) {
          const tag = data.indexOf(0, data.indexOf(0, end + 3) + 1); // after language and translated keyword
          found[key] = new TextDecoder().decode(data.subarray(tag + 1));
        }
      }
      at += length + 12;
    }
    return found;
  };

  const readImage = async (file) => {
    home.said.replaceChildren();
    try {
      if (!file.name.toLowerCase().endsWith(".png")) throw new Error(`${file.name} is not a PNG; only these hold parameters`);
      const told = await send("generate/read", { chunks: await chunksOf(file) });
      fill(told);
      const model = !told.family && told.model ? ` It was made with ${told.model}; choose its file below.` : "";
      home.said.replaceChildren(el("div", { class: "message message-ok" }, el("div", {}, el("p", {}, `Read the settings of ${file.name}.${model}`))));
    } catch (error) {
      home.said.replaceChildren(complaint(error));
    }
  };
  const visible = () => home?.element.offsetParent != null;
  document.addEventListener("drop", (event) => {
    const file = event.dataTransfer?.files[0];
    if (file && visible()) readImage(file);
  });

  /** Fill the form with what a run trained, and show it. */
  Studio.tryRun = (run) => Studio.useInGenerate(`generate/run/${run.id}`);

  /** Fill the form with what a route answers, and show it. */
  Studio.useInGenerate = async (route) => {
    Studio.goTo("generate");
    try {
      const told = await ask(route);
      await ready();
      fill(told);
    } catch (error) {
      await ready();
      home.said.replaceChildren(complaint(error));
    }
  };

  // Layout

  const furnish = (element, side) => {
    const before = kept();
    const choice = el("select", { "aria-label": "Model family" }, ...families.map((each) => el("option", { value: each.name }, each.title)));
    if (families.some((each) => each.name === before.family)) choice.value = before.family;
    const form = el("div", { class: "generate-form" });
    const button = el("button", { type: "button", id: "generate-go", class: "primary", onclick: generate }, "Generate");
    const said = el("div", { class: "said" });
    const upload = el("input", { type: "file", accept: "image/png", hidden: true });
    const from = el("button", { type: "button", onclick: () => upload.click() }, "From an image…");
    upload.addEventListener("change", () => upload.files[0] && readImage(upload.files[0]));
    element.className = "board";
    element.replaceChildren(
      el("section", { class: "card generate-card" }, el("div", { class: "section-head" }, choice, from, upload, button), said, form),
    );
    const free = el("button", { type: "button", class: "link", "data-action": "free-model", hidden: true }, "Free the model");
    free.addEventListener("click", async () => {
      await send("generate/free").catch(() => {});
      known = "";
      beat();
    });
    const [requests, warnings] = [el("ul", { class: "requests" }), el("ul", { class: "generate-warnings" })];
    const [process, folder] = [el("span", { class: "quiet" }), el("p", { class: "quiet where" })];
    const grid = el("div", { class: "generate-images" });
    const empty = el("div", { class: "run-none" }, el("p", { class: "run-title" }, "No images yet"), el("p", {}, "Choose a model, write a prompt and press Generate. A PNG dropped on the page fills the form with its settings."));
    const dialog = el("dialog", { class: "sample-large", "aria-label": "Image" });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      walk(by);
    });
    document.body.append(dialog);
    side.replaceChildren(el("div", { class: "generate-head" }, process, free), requests, warnings, empty, grid, folder);
    home = { element, form, family: choice, said, free, requests, warnings, process, folder, images: grid, empty, dialog };
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

  /** Wait until the tab is drawn. */
  const ready = async () => {
    for (let tries = 0; tries < 200 && !visible(); tries++) {
      await beat();
      await new Promise((done) => setTimeout(done, 50));
    }
  };

  const beat = async () => {
    const [element, side] = [document.querySelector("[data-generate]"), document.querySelector("[data-gallery]")];
    if (asking || document.hidden || !element || !side || element.offsetParent === null) return;
    asking = true;
    asked = Date.now();
    try {
      families ??= await ask("generate/form");
      const fresh = home?.element !== element;
      if (fresh) furnish(element, side);
      const news = await ask(`generate?known=${fresh ? "" : known}`);
      if (news) {
        known = news.known;
        state = news;
        drawState();
      }
      if (news || folder !== read("image_dir")) await drawGallery();
    } catch {
      // the live view says that the GUI does not respond
    }
    asking = false;
  };
  const isIdle = () => home && state && !state.requests.some((request) => ["waiting", "generating"].includes(request.state));
  setInterval(() => (isIdle() && Date.now() < asked + IDLE_EVERY) || beat(), EVERY);
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("[role=tab]")) return;
    setTimeout(beat);
    setTimeout(() => visible() && offerAdapters()); // a run may have ended since
  });
})();
