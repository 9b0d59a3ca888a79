// The tab Captions: tag or caption a folder in a job, after a try on five images next to their existing captions.
(() => {
  const { ask, send, attempt, el, button, card, checkbox, select, write, url, complaint, image, table } = Studio;
  const EVERY = 500; // milliseconds between two looks at a running job
  const QUIET = 350; // milliseconds after typing before the folder is looked at
  const KEPT = "captions"; // the filled-in values, for this browser window
  const METHODS = [
    ["tagger", "Tagger", "Booru tags, from WD14 and its successors. Computes on the CPU, also during a training."],
    ["captioner", "Captioner", "Sentences, from Florence-2, BLIP-2, Qwen-VL or a model like them. Waits for a run on the GPU."],
    ["endpoint", "Endpoint", "Sentences, from a server with OpenAI's interface, such as Ollama or LM Studio on this machine."],
  ];
  let home = null;
  let described = null;
  let job = null;
  let values = JSON.parse(sessionStorage.getItem(KEPT) || "{}");
  let chosen = []; // images of the tab Dataset; empty: all of the folder
  let missing = false; // whether the model has to be downloaded
  const keep = () => sessionStorage.setItem(KEPT, JSON.stringify(values));
  const method = () => values.method ?? "tagger";
  const later = (work, wait) => {
    let timer;
    return () => (clearTimeout(timer), (timer = setTimeout(work, wait)));
  };
  const set = (name, value) => ((values[name] = value), keep(), look());

  // Fields

  const labelled = (field, control, { wide = false, more = [] } = {}) =>
    el(
      "div",
      { class: wide ? "wide" : "" },
      el("label", { class: "tool-label", for: `caption-${field.name}` }, field.label),
      control,
      ...more,
      el("div", { class: "tool-help" }, field.help),
    );
  const typed = (field, attributes) =>
    el("input", { id: `caption-${field.name}`, value: values[field.name], oninput: ({ target }) => set(field.name, target.value), ...attributes });
  const hintOf = (field) => el("div", { class: "file-hint", "data-hint": field.name, role: "status" });
  const MAKE = {
    folder: (field) => {
      const input = typed(field, { type: "text", spellcheck: "false", autocomplete: "off" });
      const picker = el("div", { class: "picker" }, input, button("Browse", () => Studio.browse(input, field.name)));
      if (field.name !== "train_data_dir") return labelled(field, picker, { wide: true });
      input.addEventListener("input", () => chooseImages([]));
      return labelled(field, picker, { wide: true, more: [hintOf(field)] });
    },
    number: (field) => {
      const [min, max] = field.within ?? [];
      const placeholder = field.nullable ? "as Threshold" : null;
      const value = values[field.name] ?? field.default;
      return labelled(field, typed(field, { type: "number", value, min, max, step: field.whole ? 1 : "any", placeholder }));
    },
    choice: (field) => {
      const list = select({ id: `caption-${field.name}`, onchange: ({ target }) => set(field.name, target.value) }, field.choices.map((each) => [each, each]));
      list.value = values[field.name] ?? field.default;
      return labelled(field, list);
    },
    switch: (field) => {
      const wide = field.name === "download" ? "wide" : "";
      const box = checkbox(values[field.name] ?? field.default, ({ target }) => set(field.name, target.checked), { id: `caption-${field.name}` });
      return el("div", { class: wide }, el("label", { class: "tool-switch" }, box, field.label), el("div", { class: "tool-help" }, field.help));
    },
    text: (field) => labelled(field, typed(field, { type: "text", value: values[field.name] ?? field.default, placeholder: field.placeholder })),
  };

  const OWN = {
    model: (field) => {
      const names = described.models.filter((each) => each.method === method());
      const list = el("datalist", { id: "caption-models" }, ...names.map(({ repo, about }) => el("option", { value: repo }, about)));
      const placeholder = names[0]?.repo ?? "";
      const input = typed(field, { type: "text", list: "caption-models", spellcheck: "false", placeholder });
      const picker = el("div", { class: "picker" }, input, button("Browse", () => Studio.browse(input, "model_folder")), list);
      return labelled(field, picker, { wide: true, more: [hintOf(field)] });
    },
    family: (field) => {
      const choices = [["", "not chosen"], ...described.families.map(([name, title, tags]) => [name, `${title}: ${tags ? "tags or prose" : "prose"}`])];
      const list = select({ id: "caption-family", onchange: ({ target }) => set("family", target.value) }, choices);
      list.value = values.family ?? "";
      return labelled(field, list);
    },
    prompt: (field) => {
      const area = el("textarea", { id: "caption-prompt", rows: 3, oninput: ({ target }) => set("prompt", target.value) });
      area.value = values.prompt ?? "";
      return labelled(field, area, { wide: true });
    },
    endpoint: (field) => {
      const input = MAKE.text(field);
      input.className = "wide";
      home.key = el("input", { id: "caption-key", type: "password", autocomplete: "off", value: home.key?.value });
      const help = "Default: the variable OPENAI_API_KEY of the GUI. It is passed to the job and stored nowhere.";
      const key = el("div", { class: "wide" }, el("label", { class: "tool-label", for: "caption-key" }, "Key"), home.key, el("div", { class: "tool-help" }, help));
      return el("div", { class: "wide pair" }, input, key);
    },
  };
  const make = (field) => (OWN[field.name] ?? MAKE[field.kind])(field);

  const draw = () => {
    const now = method();
    for (const each of home.methods.children) each.setAttribute("aria-pressed", each.dataset.method === now);
    write(home.about, METHODS.find(([name]) => name === now)[2]);
    const shown = described.fields.filter((field) => field.name !== "method" && (!field.methods.length || field.methods.includes(now)));
    const [first, others] = [true, false].map((flag) => shown.filter((field) => field.first === flag));
    const order = ["train_data_dir", "model", "endpoint", "download", "prompt"];
    const place = (field) => (order.includes(field.name) ? order.indexOf(field.name) : order.length);
    home.form.replaceChildren(...[...first].sort((one, other) => place(one) - place(other)).map(make));
    home.more.replaceChildren(...others.map(make));
    look();
  };
  const chooseMethod = (name) => {
    if (name !== method()) values.model = ""; // of a different kind
    values.method = name;
    keep();
    home.said.replaceChildren();
    draw();
  };
  const chooseImages = (images) => {
    chosen = images;
    home.all.hidden = !images.length;
  };

  const request = (more = {}) => ({ values: { ...values, method: method() }, images: chosen, key: home.key?.isConnected ? home.key.value : "", ...more });

  // Hints

  const look = later(async () => {
    try {
      const { key, ...asked } = request();
      const answer = await send("captions/look", asked);
      missing = answer.missing;
      for (const name of ["train_data_dir", "model"]) {
        const place = home.element.querySelector(`[data-hint="${name}"]`);
        if (!place) continue;
        const { text, good } = answer[name];
        write(place, text);
        place.className = `file-hint${good === true ? " good" : good === false ? " bad" : ""}`;
      }
      const download = home.form.querySelector("#caption-download");
      if (download) download.closest(".wide").hidden = !missing;
    } catch {
      // the live view reports that the GUI does not respond
    }
  }, QUIET);

  // The job

  const act = (work) => attempt(home.said, work);
  // A busy server may answer too late and start the job anyway: its state shows whether it did.
  const unlessLate = (error) => {
    if (error.name !== "TimeoutError") throw error;
  };
  const begin = (path, body) => act(() => send(path, body).catch(unlessLate).finally(() => ((job = null), beat())));
  const start = (more) => begin("captions/start", request(more));
  const resume = () => begin("captions/resume", { key: home.key?.value ?? "" });
  const note = (kind, words) =>
    el("div", { class: `message message-${kind}` }, el("span", { class: "sign" }, "!"), el("div", {}, el("p", {}, words)));

  const progress = ({ doing, done, total, waits_for: before }) => {
    if (before) return note("note", `Starts when ${before} ends, before queued runs`);
    const share = total ? Math.round((100 * done) / total) : null;
    const bar = el("div", { class: `bar${total ? "" : " bar-unknown"}`, role: "progressbar", "aria-label": "Progress", "aria-valuenow": share }, el("i"));
    bar.firstChild.style.width = `${share ?? 0}%`;
    const words = doing ? doing[0].toUpperCase() + doing.slice(1) : "Starting";
    return el("div", { class: "run" }, bar, el("div", { class: "run-phase" }, total ? `${words}: ${done} of ${total}` : words));
  };

  const nameOf = (path) => path.split(/[/\\]/).pop();
  const changes = ({ captions, tried }) => {
    const row = ({ image: path, before, after, kept }, number) => {
      const picture = tried ? image(`${url(`captions/image/${number}`)}?job=${job.known}`, "", { width: 96 }) : null;
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, picture, el("span", { title: path }, nameOf(path))),
        el("td", { class: before ? "" : "quiet" }, before || "none"),
        el("td", {}, after, kept ? el("p", { class: "quiet" }, kept) : null),
      );
    };
    return table({ class: "caption-changes" }, ["Image", "Before", tried ? "Would be" : "Now"], captions.slice(0, 50).map(row));
  };

  const drawResult = () => {
    const { state, over, error, warnings, result } = job;
    home.try.disabled = !over;
    write(home.start, over ? "Start" : "Add to the queue");
    home.stop.hidden = over;
    home.stop.disabled = state === "stopping";
    home.resume.hidden = state !== "stopped" && state !== "lost" && state !== "failed";
    const parts = [el("h3", {}, result?.tried ? "Tried on five images" : "Result")];
    if (!state) parts.push(el("p", { class: "quiet" }, "Try five images first: the results appear here next to the existing captions, and nothing is written."));
    else if (!over) parts.push(progress(job));
    else if (state === "stopped") parts.push(note("warning", `Stopped after ${job.done} of ${job.total} images. Their captions are kept, and Resume continues with the others`));
    else if (error) parts.push(complaint(job));
    if (result) parts.push(el("p", {}, `${result.sentence}. Took ${Studio.duration(job.seconds)}`));
    for (const text of warnings ?? []) parts.push(note("warning", text));
    if (result?.captions.length) parts.push(el("div", { class: "caption-scroll", tabindex: 0, role: "region", "aria-label": "Captions" }, changes(result)));
    if (job.waiting.length) parts.push(el("h4", {}, "Waiting"), el("ul", { class: "caption-queue" }, ...job.waiting.map(waitingJob)));
    home.result.replaceChildren(...parts);
  };
  const waitingJob = ({ id, folder, images, method: by }) =>
    el(
      "li",
      {},
      el("span", {}, `${folder}${images ? ` (${images} chosen)` : ""}, ${by}`),
      button("Remove", () => act(() => send("captions/remove", { id }).then(beat)), { "aria-label": `Remove ${folder}` }),
    );

  // Settings files

  const openSettings = ([file]) =>
    act(async () => {
      const answer = await send("captions/settings", null, { body: file, headers: { "X-Studio": "1" } });
      values = { train_data_dir: values.train_data_dir, ...answer.values };
      keep();
      draw();
    });

  const furnish = async (element) => {
    described = await ask("captions");
    const picker = Studio.upload(".toml", openSettings, { "aria-label": "Settings file" });
    home = {
      element,
      methods: el("div", { class: "methods", role: "group", "aria-label": "Method" }, ...METHODS.map(([name, title]) => button(title, () => chooseMethod(name), { "data-method": name }))),
      about: el("p", { class: "quiet" }),
      form: el("div", { class: "tool-fields" }),
      more: el("div", { class: "tool-fields" }),
      start: button("Start", () => start(), { class: "start", "data-action": "start-captions" }),
      try: button("Try on five images", () => start({ try: true }), { "data-action": "try-captions" }),
      stop: button("Stop", () => act(() => send("captions/stop")), { "data-action": "stop-captions", hidden: true }),
      resume: button("Resume", resume, { "data-action": "resume-captions", hidden: true }),
      all: button("All images of the folder", () => (chooseImages([]), look()), { hidden: true }),
      said: el("div"),
      result: el("section", { class: "card result-panel", "aria-live": "polite" }),
    };
    const open = button("Open settings", () => picker.click(), { title: "A TOML file of this command, or kohya_ss's config.toml" });
    const actions = el("div", { class: "tool-actions" }, home.start, home.try, home.stop, home.resume, home.all, open, picker);
    const more = el("details", {}, el("summary", {}, "More options"), home.more);
    element.className = "lora-tools captions";
    element.replaceChildren(card(home.methods, home.about, home.form, more, actions, home.said), home.result);
    job = null;
    draw();
  };

  const work = async (element) => {
    if (home?.element !== element) await furnish(element);
    const news = await ask(`captions/job?known=${job?.known ?? ""}`);
    if (!news) return;
    job = news;
    drawResult();
    if (job.over) look();
  };
  const beat = Studio.whileShown("[data-captions]", EVERY, work, () => !job || !job.over || job.waiting.length > 0);

  /** Open the tab with a folder, or with some of its images, for other tabs of the page. */
  Studio.caption = async (folder, images = []) => {
    values.train_data_dir = folder;
    keep();
    Studio.goTo("captions");
    const element = await Studio.until(() => document.querySelector("[data-captions]"));
    if (home?.element !== element) await furnish(element);
    chooseImages(images);
    draw();
  };
})();
