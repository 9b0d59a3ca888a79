// The tab Dataset: the images of a training as it will read them. What others need is in Studio.dataset.
Studio.dataset = (() => {
  const { el, button, send, on, attempt, select, search } = Studio;
  const PLACE = "dataset-place"; // the folder and training tab that were shown last
  const LONGEST = 310_000; // ms, a little more than the server gives itself
  const SIZES = [110, 320];
  const HIDDEN = "dataset-masks-hidden";

  let place = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
  let data = null; // the answer of dataset/open, with measurements in its images
  let waiting = 0; // images that were not looked at yet
  let areKept = true; // whether thumbnails could be written to disk
  const marked = new Set(); // names of marks that are shown alone
  let bucket = null; // row of the bucket table that is shown alone
  let grid, host, refs;

  // What is open

  const key = ({ path, dataset }) => `${dataset} ${path}`;
  /** The form whose settings decide buckets, repeats and captions. */
  const form = (tab) => {
    try {
      return Plans.form(tab);
    } catch {
      return null; // it has no values yet
    }
  };
  let opening = ""; // what is being read
  const open = async (folder, tab = place.tab) => {
    const asked = JSON.stringify([folder, tab]);
    if (opening === asked) return;
    opening = asked;
    try {
      await read(folder, tab);
    } finally {
      opening = "";
    }
  };
  const read = async (folder, tab) => {
    const tabs = Forms.tabs();
    const drafts = Object.fromEntries(tabs.map((each) => [each, form(each)]));
    const used = drafts[tab] ? tab : tabs.find((each) => drafts[each]);
    if (!used) return;
    place = { folder: folder.trim(), tab: used };
    localStorage.setItem(PLACE, JSON.stringify(place));
    draw();
    if (!place.folder) return;
    refs.place.value = place.folder;
    refs.tab.value = used;
    host.setAttribute("aria-busy", "true");
    refs.status.textContent = "Reading the images…";
    const before = new Map((data?.images ?? []).map((image) => [key(image), image]));
    const chosen = new Set(grid.chosen().map(key));
    const active = grid.active() && key(grid.active());
    await attempt(refs.problem, async () => {
      const answer = await send("dataset/open", { ...drafts[used], folder: place.folder }, { signal: AbortSignal.timeout(LONGEST) });
      data = answer;
      data.images.forEach((image, number) => Object.assign(image, { number, measures: answer.measures[image.key] ?? null, problem: "", alike: null, copies: null }));
      waiting = answer.waiting;
      Marks.noteCopies(data.images);
      Marks.noteMasks(data.images);
      document.dispatchEvent(new CustomEvent("dataset-opened", { detail: { folder: place.folder } }));
      const isSame = before.size && data.images.some((image) => before.has(key(image)));
      if (!isSame) bucket = null;
      if (isSame) forget();
      tags();
      arrange(isSame);
      if (chosen.size) grid.select(data.images.filter((image) => chosen.has(key(image))));
      if (active) grid.activate((image) => key(image) === active);
      look();
    });
    host.removeAttribute("aria-busy");
    report();
  };

  /** Show all images again after the last ones with a mark were removed or mended. */
  const forget = () => {
    const counts = Marks.count(data.images);
    for (const name of marked) if (!counts[name].some(Boolean)) marked.delete(name);
  };

  // Looking at the images, some at a time, while the tab is shown

  let looking = false;
  const look = async () => {
    if (looking) return;
    looking = true;
    const view = data.view;
    try {
      while (waiting && data.view === view && host.offsetParent && !document.hidden) {
        const first = grid.inSight().filter((image) => !image.measures && !image.problem).map((image) => image.key);
        const answer = await send("dataset/look", { view, first }, { signal: AbortSignal.timeout(LONGEST) });
        if (data.view === view) learn(answer);
      }
      if (!waiting && data.view === view) await compare();
    } catch (error) {
      if (error.status === 404) {
        looking = false;
        return open(place.folder); // the GUI was restarted
      }
      refs.problem.replaceChildren(Studio.complaint(error));
    }
    looking = false;
    if (data.view !== view) look();
  };
  const learn = ({ measures, problems, waiting: left, stored = true }) => {
    areKept &&= stored;
    const fresh = new Set();
    for (const image of data.images) {
      if (measures[image.key]) image.measures = measures[image.key];
      else if (problems[image.key]) image.problem = problems[image.key];
      else continue;
      fresh.add(image);
    }
    waiting = left;
    Marks.noteCopies(data.images);
    if ([...marked].some(Marks.isMeasured)) arrange(true);
    grid.refresh(fresh);
    if (fresh.has(grid.active())) detail();
    report();
  };
  /** Find images that look alike, once all were looked at. */
  const compare = async () => {
    const seen = data.images.filter(({ measures }) => measures);
    const view = data.view;
    const answer = await send("dataset/alike", { view, distance: Marks.limits.distance }, { signal: AbortSignal.timeout(LONGEST) });
    if (data.view !== view) return;
    const group = new Map(answer.groups.flatMap((keys, number) => keys.map((each) => [each, number + 1])));
    for (const image of seen) image.alike = group.get(image.key) ?? 0;
    arrange(true);
    report();
  };

  // Which images are shown, and in which order

  const tagsOf = (image) => (image.tags ??= image.caption.split(data.caption_separator || ",").map((tag) => tag.trim()).filter(Boolean));
  const ORDERS = {
    trained: ["as trained", (image) => image.number],
    name: ["name", (image) => Studio.fileName(image.path).toLowerCase()],
    size: ["size", (image) => (image.size ? image.size[0] * image.size[1] : 0)],
    bucket: ["bucket", (image) => image.bucket],
    cropped: ["cropped", (image) => -(Marks.lost(image) ?? -1)],
    enlarged: ["enlarged", (image) => -(Marks.enlargement(image) ?? 0)],
    sharpness: ["sharpness", (image) => image.measures?.sharpness ?? Infinity],
    caption: ["caption length", (image) => image.caption.length],
    repeats: ["repeats", (image) => -image.repeats],
    alike: ["alike", (image) => (image.alike ? image.alike : Infinity)],
  };
  const filtered = () => {
    const words = refs.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const tag = refs.tag.value.trim();
    return data.images.filter((image) => {
      if (bucket && (image.bucket !== bucket.bucket || image.dataset !== bucket.dataset || image.role === "left out" || image.role === "validation")) return false;
      if (marked.size && ![...marked].some((name) => Marks.has(image, name))) return false;
      if (tag && !tagsOf(image).includes(tag)) return false;
      const text = `${Studio.fileName(image.path)} ${image.caption}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  };
  const arrange = (keepPlace = false) => {
    if (!data) return;
    const order = ORDERS[refs.order.value][1];
    const rank = new Map(data.images.map((image) => [image, order(image)]));
    const down = refs.reverse.getAttribute("aria-pressed") === "true" ? -1 : 1;
    const compareRanks = (one, other) => {
      const [a, b] = [rank.get(one), rank.get(other)];
      return a < b ? -down : a > b ? down : one.number - other.number;
    };
    grid.show(filtered().sort(compareRanks), keepPlace);
    report();
  };

  // Drawing

  const cell = (image, width) => {
    const side = width - 2;
    const ratio = image.size ? image.size[0] / image.size[1] : 1;
    const inner = el("div", { class: "framed" });
    inner.style.cssText = `width:${Math.round(ratio >= 1 ? side : side * ratio)}px;height:${Math.round(ratio >= 1 ? side / ratio : side)}px`;
    if (image.measures) inner.append(el("img", { src: ImageDetail.thumbnail(image), alt: "", decoding: "async", draggable: "false" }));
    else if (!image.size || image.problem) inner.append(el("span", { class: "cell-broken" }, "✕"));
    const frame = image.measures && ImageDetail.frame(image);
    const tint = image.measures && ImageDetail.tinted(image);
    if (tint) inner.append(tint);
    if (frame) inner.append(frame);
    const view = el("div", { class: "cell-image" }, inner, el("span", { class: "cell-tick", "aria-hidden": "true" }, "✓"));
    view.style.height = `${side}px`;
    const marks = Marks.of(image);
    const bucketText = image.bucket ? `→ ${image.bucket}` : image.role === "left out" ? "left out" : "";
    const repeats = image.repeats ? ` ×${image.repeats}` : "";
    return [
      view,
      el("div", { class: "cell-line" }, el("span", { class: "cell-name", title: image.path }, Studio.fileName(image.path)), el("span", { class: "cell-facts" }, `${image.size ? image.size.join("x") : "?"} ${bucketText}${repeats}${image.mask_key ? " · mask" : ""}${image.cached ? " · cached" : ""}`)),
      el("div", { class: "cell-caption" }, marks.length ? el("span", { class: "cell-marks" }, `${marks.map(Marks.words).join(", ")} `) : null, el("span", { translate: "no" }, image.caption)),
    ];
  };
  const detail = () => ImageDetail.show(refs.detail, grid.active(), { ways: grid.active() ? ways() : [] });
  const ways = () => [
    button("Mask…", () => drawOn(MaskEditor), { class: "quiet-button", title: "M: paint what is not trained", "aria-keyshortcuts": "m" }),
    button("Crop…", () => drawOn(CropEditor), { class: "quiet-button", title: "C: cut images by hand", "aria-keyshortcuts": "c" }),
    button("Enlarge", refs.enlarge, { class: "quiet-button" }),
  ];
  /** Paint on or cut the selected images if there are several, else all that are shown, from the active one on. */
  const drawOn = (editor) => {
    const chosen = grid.chosen();
    const some = chosen.length > 1 ? chosen : grid.items();
    const paths = new Set(); // an image of several datasets is drawn on once
    const once = some.filter(({ path, frames }) => !frames && !paths.has(path) && paths.add(path));
    editor.open(once, grid.active() ?? once[0]);
  };

  const chips = () => {
    const counts = Marks.count(data.images);
    const chip = (name) => {
      const [many, unknown] = counts[name];
      if (!many && !(unknown && Marks.isMeasured(name)) && !marked.has(name)) return null;
      return button(`${Marks.words(name)} `, () => toggle(name), {
        class: "chip",
        title: `${Marks.hint(name)}. Show only these ${many}`,
        "aria-pressed": String(marked.has(name)),
        "data-mark": name,
        disabled: !many && !marked.has(name),
      });
    };
    const toggle = (name) => {
      marked[marked.has(name) ? "delete" : "add"](name);
      arrange();
    };
    const made = Marks.names.filter((name) => name !== "faces" || data.finds_faces).map((name) => {
      const it = chip(name);
      const [many, unknown] = counts[name];
      it?.append(el("b", {}, String(many)), ...(unknown && Marks.isMeasured(name) ? [el("small", {}, ` of ${data.images.length - unknown} measured`)] : []));
      return it;
    });
    const absent = data.finds_faces ? [] : [el("span", { class: "chip absent", title: Marks.NO_DETECTOR, "data-mark": "faces" }, `${Marks.words("faces")}: not measured`)];
    const focused = /** @type {HTMLElement} */ (document.activeElement)?.dataset?.mark;
    refs.chips.replaceChildren(...made.filter(Boolean), ...absent);
    if (focused) refs.chips.querySelector(`[data-mark="${focused}"]`)?.focus();
  };
  const tags = () => {
    const counts = new Map();
    for (const image of data.images) for (const tag of new Set(tagsOf(image))) counts.set(tag, (counts.get(tag) ?? 0) + 1);
    const most = [...counts].sort((one, other) => other[1] - one[1]).slice(0, 400);
    refs.tags.replaceChildren(...most.map(([tag, many]) => el("option", { value: tag }, `${many} images`)));
  };
  const report = () => {
    if (!data) return;
    chips();
    EpochSum.show(refs.sum, data, bucket, (row) => {
      bucket = row;
      arrange();
    });
    const shown = grid.items().length;
    const chosen = grid.chosen().length;
    const parts = [
      shown === data.images.length ? `${shown} images` : `${shown} of ${data.images.length} images`,
      chosen ? `${chosen} selected` : "",
      areKept ? "" : "thumbnails cannot be kept on disk, which may be full; images are shown all the same",
      waiting ? `looking at the images: ${data.images.length - waiting} of ${data.images.length}` : "",
    ];
    refs.status.textContent = parts.filter(Boolean).join(" · ");
    refs.train.hidden = !data.images.length;
    refs.empty.hidden = Boolean(data.images.length);
    refs.notes.hidden = !data.warnings.length && !data.refused.length;
    Studio.put(refs.notes, "");
    refs.notes.replaceChildren(
      ...data.refused.slice(0, 4).map((text) => el("p", { class: "refused" }, `Training would refuse this: ${text}`)),
      ...(data.warnings.length ? [el("details", {}, el("summary", {}, `${data.warnings.length} notes`), el("ul", {}, ...data.warnings.map((text) => el("li", {}, text))))] : []),
    );
  };

  const limits = () =>
    Object.entries(Marks.LIMITS).map(([name, [words, , step]]) =>
      el(
        "label",
        {},
        el("span", {}, words),
        el("input", {
          type: "number",
          value: Marks.limits[name],
          min: 0,
          step,
          onchange: ({ target }) => {
            Marks.setLimit(name, target.value === "" ? null : Number(target.value));
            target.value = Marks.limits[name];
            if (!data) return;
            arrange(true);
            grid.redraw();
            if (name === "distance" && !waiting) compare();
          },
        }),
      ),
    );

  const build = () => {
    host = document.querySelector("[data-dataset]");
    if (!host || refs) return Boolean(refs);
    refs = /** @type {any} */ ({});
    refs.place = el("input", { type: "text", "aria-label": "Folder or dataset file", placeholder: "/data/cats, with 10_cat inside", spellcheck: "false" });
    refs.place.addEventListener("keydown", (event) => event.key === "Enter" && open(refs.place.value));
    const browse = () => Studio.browse(refs.place, "dataset", () => open(refs.place.value));
    refs.tab = select({ "aria-label": "Settings of the tab", onchange: () => open(refs.place.value, refs.tab.value) }, Forms.titled());
    refs.problem = el("div", { role: "alert" });
    refs.empty = el("p", { class: "grid-empty", hidden: true }, "No images here yet. Drop images, folders or a zip archive anywhere here.");
    refs.train = button("Train on these images", () => train(), { class: "quiet-button", id: "dataset-train", hidden: true, title: "Set them in the training form, and go to its Start button" });
    refs.status = el("p", { class: "dataset-status", role: "status" });
    refs.notes = el("div", { class: "dataset-notes", hidden: true });
    refs.sum = el("div", { class: "dataset-sum" });
    refs.chips = el("div", { class: "chips", role: "group", "aria-label": "Marks" });
    refs.words = search("Words in name or caption", () => arrange());
    refs.tags = el("datalist", { id: "dataset-tags" });
    refs.tag = el("input", { type: "search", list: "dataset-tags", placeholder: "Tag", "aria-label": "Tag", oninput: () => arrange() });
    refs.order = select({ "aria-label": "Order", onchange: () => arrange() }, Object.entries(ORDERS).map(([name, [words]]) => [name, words]));
    refs.reverse = button("↓", reverse, { class: "quiet-button turning", "aria-pressed": "false", "aria-label": "Reverse the order" });
    refs.size = el("input", { type: "range", min: SIZES[0], max: SIZES[1], value: localStorage.getItem("dataset-size") ?? 160, "aria-label": "Size of the thumbnails", oninput: resize });
    refs.masks = button("Masks", showMasks, { class: "quiet-button", "aria-pressed": String(!localStorage.getItem(HIDDEN)), title: "Colour what masks leave out" });
    refs.detail = el("section", { class: "dataset-detail", "aria-label": "Image" });
    refs.side = el("aside", { id: "dataset-side", "aria-label": "Captions" });
    grid = ImageGrid.make({ title: "Images", height: (width) => width + 44, cell, changed, opened: () => refs.enlarge() });
    refs.enlarge = ImageDetail.dialog(grid);
    host.replaceChildren(
      el(
        "div",
        { class: "dataset-head" },
        el(
          "div",
          { class: "dataset-row" },
          refs.place,
          button("Browse…", browse, { class: "quiet-button" }),
          el("label", {}, el("span", {}, "as trained in"), refs.tab),
          button("Open", () => open(refs.place.value), { class: "quiet-button", id: "dataset-open" }),
          refs.train,
        ),
        refs.problem,
        refs.notes,
        refs.sum,
        refs.chips,
        el(
          "div",
          { class: "dataset-row tools" },
          refs.words,
          refs.tag,
          refs.tags,
          el("label", {}, el("span", {}, "by"), refs.order),
          refs.reverse,
          button("Select all", () => grid.all(), { class: "quiet-button" }),
          button("None", () => grid.none(), { class: "quiet-button" }),
          button("Caption…", caption, { class: "quiet-button", id: "dataset-caption", title: "Tag or caption the selected images, or all" }),
          button("Image tools…", edit, { class: "quiet-button", id: "dataset-images", title: "Convert, crop, resize or mask copies of the selected images, or of all" }),
          button("Duplicates…", () => data && Duplicates.open(), { class: "quiet-button", id: "dataset-duplicates" }),
          button("Balance…", () => data && Balance.open(), { class: "quiet-button", id: "dataset-balance" }),
          refs.size,
          refs.masks,
          button("What a step sees…", StepView.make(() => ({ ...form(place.tab), folder: place.folder })), { class: "quiet-button" }),
          el("details", { class: "limits" }, el("summary", {}, "Limits of the marks"), el("div", {}, ...limits())),
        ),
        refs.status,
      ),
      el("div", { class: "dataset-body" }, el("div", { class: "grid-place" }, grid.box, refs.empty), el("div", { class: "dataset-right" }, refs.detail, refs.side)),
    );
    grid.resize(Number(refs.size.value));
    grid.box.addEventListener("keydown", (event) => {
      const act = { m: () => drawOn(MaskEditor), c: () => drawOn(CropEditor), Delete: () => DatasetFiles.remove() }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    tint();
    detail();
    return true;
  };
  /** Set the training form to this dataset, and lead to Start. */
  const train = async () => {
    const { tab } = place;
    const values = Object.fromEntries(Object.entries(data.train).map(([name, value]) => [name, typeof value === "number" ? String(value) : value ?? ""]));
    const name = TrainParts.resultOf(place.folder);
    if (!TrainParts.text(Drafts.value(tab, "output_name")) && name) values.output_name = name;
    Studio.goTo(tab);
    await Studio.until(() => !Object.keys(values).length || Drafts.put(tab, values));
    const start = await Studio.until(() => document.querySelector(`#${tab}-start`));
    start?.scrollIntoView({ block: "center" });
    start?.focus({ preventScroll: true });
  };
  const caption = () => {
    const chosen = new Set(selection());
    const readable = (data?.images ?? []).filter(({ path, size }) => size && (!chosen.size || chosen.has(path)));
    Studio.caption(place.folder, [...new Set(readable.map(({ path }) => path))]);
  };
  const showMasks = () => {
    if (localStorage.getItem(HIDDEN)) localStorage.removeItem(HIDDEN);
    else localStorage.setItem(HIDDEN, "1");
    tint();
  };
  const tint = () => {
    const isHidden = Boolean(localStorage.getItem(HIDDEN));
    refs.masks.setAttribute("aria-pressed", String(!isHidden));
    host.classList.toggle("masks-hidden", isHidden);
    host.style.setProperty("--mask-tint", MaskEditor.tint());
  };
  const edit = () => Studio.editImages(place.folder, selection());
  const reverse = () => {
    refs.reverse.setAttribute("aria-pressed", String(refs.reverse.getAttribute("aria-pressed") !== "true"));
    arrange();
  };
  const resize = () => {
    localStorage.setItem("dataset-size", refs.size.value);
    grid.resize(Number(refs.size.value));
  };
  const changed = () => {
    if (!refs) return;
    detail();
    report();
    document.dispatchEvent(new CustomEvent("dataset-selection", { detail: { selection: selection(), active: grid.active() } }));
  };
  const draw = () => {
    if (build() && data) report();
  };

  // Others

  /** The paths of the selected images, each once, in the order of the page. */
  const selection = () => [...new Set((grid?.chosen() ?? []).map(({ path }) => path))];
  /** Change what is shown of images whose captions were changed: path -> {caption, captioned}. */
  const update = (changes) => {
    const some = new Set((data?.images ?? []).filter(({ path }) => changes[path]));
    for (const image of some) Object.assign(image, changes[image.path], { tags: undefined });
    if (!some.size) return;
    grid.refresh(some);
    tags();
    detail();
    report();
  };

  const shown = () => {
    if (!build()) return;
    if (!refs.place.value && place.folder) refs.place.value = place.folder;
    if (data) return waiting ? look() : null;
    if (place.folder) return open(place.folder);
    const tab = place.tab && form(place.tab) ? place.tab : Forms.tabs().find((each) => form(each)?.values.train_data_dir);
    const folder = tab && form(tab).values.train_data_dir;
    if (folder) open(folder, tab);
  };
  Studio.whileShown("#dataset-view [data-dataset]", 1000, async () => shown(), () => !refs || Boolean(waiting && !looking));
  /** Show the images of a folder as the training of this tab reads them. */
  const visit = async (folder, tab) => {
    place = { folder, tab };
    data = bucket = null;
    marked.clear();
    if (refs) {
      refs.words.value = refs.tag.value = "";
      grid.show([], false); // before the tab is shown, which reads the images and keeps the selection
    }
    Studio.goTo("dataset");
    await Studio.until(() => document.querySelector("[data-dataset]")?.offsetParent && build());
    await open(folder, tab);
  };
  const SEE = 'a[href$="#see-images"]';
  on(
    "click",
    SEE,
    (link, event) => {
      const { id } = link.closest(".option[id]") ?? {};
      event.preventDefault();
      const value = document.getElementById(id)?.querySelector("input, textarea")?.value ?? "";
      if (value.trim()) visit(value, id.replace(/-[^-]*$/, ""));
    },
    true,
  );
  on("focusin", SEE, (link) => {
    const title = link.closest(".option[id]")?.querySelector('[data-testid="block-info"]');
    link.removeAttribute("target");
    if (title) link.ariaLabel = `See the images of ${title.textContent.trim()}`;
  });

  return {
    selection,
    update,
    visit,
    tint,
    active: () => grid?.active() ?? null,
    images: () => data?.images ?? [],
    folder: () => place.folder,
    form: () => form(place.tab),
    opened: () => data,
    select: (paths) => grid.select(data.images.filter(({ path }) => paths.includes(path))),
    reload: () => open(place.folder),
  };
})();
