// A tab whose tool works on a folder of images in a job: the form, a try on five images, the queue, stop and resume.
var JobTab = (() => {
  const { ask, send, attempt, later, el, button, card, checkbox, select, write, complaint, note, progressBar, capitalised } = Studio;
  const EVERY = 500; // milliseconds between two looks at a running job
  const QUIET = 350; // milliseconds after typing before the folder is looked at

  const progress = ({ doing, done, total, waits_for: before }) => {
    if (before) return note("note", el("p", {}, `Starts when ${before} ends, before queued runs`));
    const words = doing ? capitalised(doing) : "Starting";
    return el("div", { class: "run" }, progressBar(done, total), el("div", { class: "run-phase" }, total ? `${words}: ${done} of ${total}` : words));
  };

  /** @type {(element: HTMLElement, hint: { text: string, good?: boolean }) => void} */
  const showHint = (element, { text, good }) => {
    write(element, text);
    element.className = `file-hint${good === true ? " good" : good === false ? " bad" : ""}`;
  };

  /**
   * Make such a tab. `route` names its routes, storage and slot, `prefix` the ids of its controls; `choice` is the option
   * that decides which others are shown, `choices` its values with titles and descriptions; `order` the options that
   * come first. `own(kit)` returns builders of fields by name, `ways(kit)` more buttons; `more()` is added to requests
   * that start a job. `empty` is shown before the first job, `stopped(job)` after a stop; `result(job)` returns elements.
   */
  const make = ({ route, prefix, choice, choices, order, own, ways = (_) => [], more = () => ({}), empty, stopped, result: shown }) => {
    let home = null;
    let described = null;
    let job = null;
    let values = JSON.parse(sessionStorage.getItem(route) || "{}");
    let chosen = []; // images of the tab Dataset; empty: all of the folder
    let missing = false; // whether the model has to be downloaded
    let finds = ""; // what the model does, where that depends on more than the choice
    const keep = () => sessionStorage.setItem(route, JSON.stringify(values));
    const method = () => values[choice] ?? choices[0][0];
    const set = (name, value) => ((values[name] = value), keep(), look());

    // Fields

    const idOf = (field) => `${prefix}-${field.name}`;
    const labelled = (field, control, { wide = false, more: others = [] } = {}) =>
      el(
        "div",
        { class: wide ? "wide" : "" },
        el("label", { class: "tool-label", for: idOf(field) }, field.label),
        control,
        ...others,
        el("div", { class: "tool-help" }, field.help),
      );
    const typed = (field, attributes) =>
      el("input", { id: idOf(field), value: values[field.name], oninput: ({ target }) => set(field.name, target.value), ...attributes });
    const hintOf = (field) => el("div", { class: "file-hint", "data-hint": field.name, role: "status" });
    const MAKE = {
      folder: (field) => {
        const input = typed(field, { type: "text", spellcheck: "false", autocomplete: "off", placeholder: field.placeholder });
        const picker = el("div", { class: "picker" }, input, button("Browse", () => Studio.browse(input, field.name)));
        if (field.name !== "train_data_dir") return labelled(field, picker, { wide: true });
        input.addEventListener("input", () => chooseImages([]));
        return labelled(field, picker, { wide: true, more: [hintOf(field)] });
      },
      number: (field) => {
        const [min, max] = field.within ?? [];
        const value = values[field.name] ?? field.default;
        return labelled(field, typed(field, { type: "number", value, min, max, step: field.whole ? 1 : "any", placeholder: field.placeholder }));
      },
      choice: (field) => {
        const list = select({ id: idOf(field), onchange: ({ target }) => set(field.name, target.value) }, field.choices.map((each) => [each, each.replaceAll("_", " ")]));
        list.value = values[field.name] ?? field.default;
        return labelled(field, list);
      },
      switch: (field) => {
        const wide = field.name === "download" ? "wide" : "";
        const box = checkbox(values[field.name] ?? field.default, ({ target }) => set(field.name, target.checked), { id: idOf(field) });
        return el("div", { class: wide }, el("label", { class: "tool-switch" }, box, field.label), el("div", { class: "tool-help" }, field.help));
      },
      text: (field) => labelled(field, typed(field, { type: "text", value: values[field.name] ?? field.default, placeholder: field.placeholder })),
    };
    const model = (field) => {
      const names = described.models.filter((each) => each.method === (finds || method()));
      const list = el("datalist", { id: `${prefix}-models` }, ...names.map(({ repo, about }) => el("option", { value: repo }, about)));
      const input = typed(field, { type: "text", list: `${prefix}-models`, spellcheck: "false", placeholder: names[0]?.repo ?? "" });
      const picker = el("div", { class: "picker" }, input, button("Browse", () => Studio.browse(input, "model_folder")), list);
      return labelled(field, picker, { wide: true, more: [hintOf(field)] });
    };
    const act = (work) => attempt(home.said, work);
    const kit = {
      MAKE,
      labelled,
      act,
      set,
      values: () => values,
      described: () => described,
      draw: () => draw(),
      /** Fill in the values of a settings file. */
      take: (fresh) => {
        values = { train_data_dir: values.train_data_dir, ...fresh };
        keep();
        draw();
      },
    };
    const OWN = { model, ...own(kit) };
    const build = (field) => (OWN[field.name] ?? MAKE[field.kind])(field);

    const draw = () => {
      const now = method();
      for (const each of home.methods.children) each.setAttribute("aria-pressed", each.dataset.method === now);
      write(home.about, choices.find(([name]) => name === now)[2]);
      const fields = described.fields.filter((field) => field.name !== choice && (!field.methods.length || field.methods.includes(now)));
      const [first, others] = [true, false].map((flag) => fields.filter((field) => field.first === flag));
      const place = (field) => (order.includes(field.name) ? order.indexOf(field.name) : order.length);
      home.form.replaceChildren(...[...first].sort((one, other) => place(one) - place(other)).map(build));
      home.more.replaceChildren(...others.map(build));
      look();
    };
    const choose = (name) => {
      if (name !== method()) values.model = ""; // of a different kind
      values[choice] = name;
      keep();
      home.said.replaceChildren();
      draw();
    };
    const chooseImages = (images) => {
      chosen = images;
      home.all.hidden = !images.length;
    };
    const request = () => ({ values: { ...values, [choice]: method() }, images: chosen });

    // Hints

    const look = later(async () => {
      try {
        const answer = await send(`${route}/look`, request());
        missing = answer.missing;
        if ((answer.finds ?? "") !== finds) {
          finds = answer.finds;
          const old = home.element.querySelector(`[data-hint="model"]`)?.parentElement;
          old?.replaceWith(build(described.fields.find(({ name }) => name === "model")));
        }
        for (const name of ["train_data_dir", "model"]) {
          const place = home.element.querySelector(`[data-hint="${name}"]`);
          if (!place) continue;
          showHint(place, answer[name]);
        }
        const download = home.form.querySelector(`#${prefix}-download`);
        if (download) download.closest(".wide").hidden = !missing;
        if (answer.finds === "") for (const part of home.element.querySelectorAll(`[data-hint="model"]`)) part.parentElement.hidden = true;
      } catch {
        // the live view reports that the GUI does not respond
      }
    }, QUIET);

    // The job

    const begin = (path, body) => act(() => Studio.sendStart(path, body).finally(() => ((job = null), beat())));
    const start = (others = {}) => begin(`${route}/start`, { ...request(), ...more(), ...others });

    const drawResult = () => {
      const { state, over, error, warnings, result } = job;
      home.try.disabled = !over;
      write(home.start, over ? "Start" : "Add to the queue");
      home.stop.hidden = over;
      home.stop.disabled = state === "stopping";
      home.resume.hidden = state !== "stopped" && state !== "lost" && state !== "failed";
      const parts = [el("h2", {}, result?.tried ? "Tried on five images" : "Result")];
      if (!state) parts.push(el("p", { class: "quiet" }, empty));
      else if (!over) parts.push(progress(job));
      else if (state === "stopped") parts.push(note("warning", el("p", {}, stopped(job))));
      else if (error) parts.push(complaint(job));
      if (result) parts.push(el("p", {}, `${result.sentence}. Took ${Studio.duration(job.seconds)}`));
      for (const text of warnings ?? []) parts.push(note("warning", el("p", {}, text)));
      if (result) parts.push(...shown(job));
      if (job.waiting.length) parts.push(el("h3", {}, "Waiting"), el("ul", { class: "job-queue" }, ...job.waiting.map(waitingJob)));
      home.result.replaceChildren(...parts);
    };
    const waitingJob = ({ id, folder, images, method: by }) =>
      el(
        "li",
        {},
        el("span", {}, `${folder}${images ? ` (${images} chosen)` : ""}, ${by}`),
        button("Remove", () => act(() => send(`${route}/remove`, { id }).then(beat)), { "aria-label": `Remove ${folder}` }),
      );

    const furnish = async (element) => {
      described = await ask(route);
      const action = (name) => ({ "data-action": `${name}-${route}` });
      home = {
        element,
        methods: el("div", { class: "methods", role: "group", "aria-label": choice === "task" ? "Task" : "Method" }, ...choices.map(([name, title]) => button(title, () => choose(name), { "data-method": name }))),
        about: el("p", { class: "quiet" }),
        form: el("div", { class: "tool-fields" }),
        more: el("div", { class: "tool-fields" }),
        start: button("Start", () => start(), { class: "start", ...action("start") }),
        try: button("Try on five images", () => start({ try: true }), action("try")),
        stop: button("Stop", () => act(() => send(`${route}/stop`)), { ...action("stop"), hidden: true }),
        resume: button("Resume", () => begin(`${route}/resume`, more()), { ...action("resume"), hidden: true }),
        all: button("All images of the folder", () => (chooseImages([]), look()), { hidden: true }),
        said: el("div"),
        result: el("section", { class: "card result-panel", "aria-live": "polite" }),
      };
      const actions = el("div", { class: "tool-actions" }, home.start, home.try, home.stop, home.resume, home.all, ...ways(kit));
      const unfolded = el("details", {}, el("summary", {}, "More options"), home.more);
      element.className = `lora-tools job-tab ${route}`;
      element.replaceChildren(card(home.methods, home.about, home.form, unfolded, actions, home.said), home.result);
      job = null;
      draw();
    };

    const work = async (element) => {
      if (home?.element !== element) await furnish(element);
      const news = await ask(`${route}/job?known=${job?.known ?? ""}`);
      if (!news) return;
      job = news;
      drawResult();
      if (job.over) look();
    };
    const beat = Studio.whileShown(`#${route}-form [data-${route}]`, EVERY, work, () => !job || !job.over || job.waiting.length > 0);

    /** Open the tab with a folder, or with some of its images. */
    const open = async (tab, folder, images) => {
      values.train_data_dir = folder;
      keep();
      Studio.goTo(tab);
      const element = await Studio.until(() => document.querySelector(`[data-${route}]`));
      if (home?.element !== element) await furnish(element);
      chooseImages(images);
      draw();
    };
    return { open };
  };

  return { make, progress, showHint };
})();
