// The dialog in which masks are painted over images. Paint covers what is not trained; a mask is saved by itself when
// the image is left, as an edit of the dataset that can be undone.
var MaskEditor = (() => {
  const { el, button, url } = Studio;
  const { small, head, keyOf } = DrawingStage;
  const SIDE = 2048; // pixels of the longer side that is painted on
  const TINT = "dataset-mask-tint"; // the chosen colour
  const BRUSH = "dataset-mask-brush";
  const LARGEST = 512; // pixels of the brush
  const USUAL = { size: 80, hardness: 0.7, opacity: 1, weight: 0, erased: MaskPaint.FULL };

  let refs = null;
  let stage = null;
  let images = []; // that are painted, in their order
  let at = 0;
  let paint = null; // MaskPaint of the image that is shown
  let saved = null; // its mask as the server has it: {version, exists}
  let isDirty = false;
  let isChanged = false; // whether the grid shows masks as they were
  let isErasing = false;
  let cursor = [0, 0]; // of the keyboard and the mouse, in pixels of the mask
  let last = null; // where the stroke is
  let loading = 0;
  const brush = { ...USUAL, ...JSON.parse(localStorage.getItem(BRUSH) ?? "{}") };
  const tint = () => localStorage.getItem(TINT) ?? "#e11d48";
  const percent = (share) => `${Math.round(100 * share)} %`;
  const nameOf = () => Studio.fileName(images[at].path);
  const request = (body = {}) => ({ images: Captions.byFolder([images[at].path]), ...body });
  const say = (text) => Studio.write(refs.status, text);

  // Drawing

  let waiting = null; // the rectangle to be drawn with the next frame
  const draw = (rect) => {
    if (!rect) return;
    const isAsked = waiting !== null;
    waiting = MaskPaint.around(waiting, rect);
    if (!isAsked) requestAnimationFrame(render);
  };
  const render = () => {
    if (!waiting || !paint) return void (waiting = null);
    const [left, top, right, bottom] = waiting;
    waiting = null;
    const [red, green, blue] = [1, 3, 5].map((from) => parseInt(tint().slice(from, from + 2), 16));
    const part = new ImageData(right - left, bottom - top);
    for (let y = top, to = 0; y < bottom; y++)
      for (let x = left; x < right; x++, to += 4) {
        part.data[to] = red;
        part.data[to + 1] = green;
        part.data[to + 2] = blue;
        part.data[to + 3] = MaskPaint.FULL - paint.pixels[y * paint.width + x];
      }
    refs.canvas.getContext("2d").putImageData(part, left, top);
  };
  const all = () => paint && draw([0, 0, paint.width, paint.height]);
  const touched = (rect) => {
    if (!rect) return;
    isDirty = true;
    draw(rect);
    buttons();
    say("");
  };
  const weight = () => (isErasing ? brush.erased : brush.weight);
  /** The circle of the brush at the pointer, in pixels of the screen. */
  const ring = () => {
    if (!paint) return;
    const size = Math.max(2, brush.size * stage.view.scale);
    refs.ring.style.cssText = `width:${size}px;height:${size}px;left:${stage.view.x + cursor[0] * stage.view.scale - size / 2}px;top:${stage.view.y + cursor[1] * stage.view.scale - size / 2}px`;
  };
  const pressure = (event) => (event?.pointerType === "pen" && event.pressure ? Math.max(0.1, event.pressure) : 1);
  const tool = {
    down(point, event) {
      if (!paint) return;
      const wasErasing = isErasing;
      if (event.buttons & 32) isErasing = true; // the other end of a pen
      paint.begin({ ...brush, weight: weight() });
      isErasing = wasErasing;
      last = cursor = point;
      draw(paint.line(point, point, pressure(event)));
      ring();
    },
    move(points, event, isDrawing) {
      cursor = points.at(-1);
      if (isDrawing && paint && last)
        for (const point of points) {
          draw(paint.line(last, point, pressure(event)));
          last = point;
        }
      ring();
    },
    up() {
      if (!paint || !last) return;
      last = null;
      paint.end();
      touched([0, 0, 1, 1]);
    },
    cancel() {
      last = null;
      draw(paint?.cancel());
    },
  };
  const dab = () => {
    paint.begin({ ...brush, weight: weight() });
    draw(paint.line(cursor, cursor));
    paint.end();
    touched([0, 0, 1, 1]);
  };

  // Loading and saving

  const clear = () => {
    paint = saved = null;
    isDirty = false;
    refs.conflict.replaceChildren();
  };
  const show = async () => {
    const image = images[at];
    const number = ++loading;
    clear();
    refs.title.textContent = nameOf();
    refs.place.textContent = `${at + 1} of ${images.length}`;
    refs.picture.src = "";
    refs.canvas.width = refs.canvas.height = 1;
    buttons();
    say("Reading the mask…");
    await Studio.attempt(refs.problem, async () => {
      if (!image.size) throw new Error(`${nameOf()} cannot be read: ${image.why || image.problem || "no size is known"}`);
      const scale = Math.min(1, SIDE / Math.max(...image.size));
      const [width, height] = image.size.map((side) => Math.max(1, Math.round(side * scale)));
      refs.picture.src = url(`dataset/preview/${image.key}`);
      stage.resize(width, height);
      const { mask, version, file, root } = await Captions.ask("masks/read", request());
      const pixels = mask && MaskPaint.stretched(await MaskPaint.unpack(mask.pixels), [mask.width, mask.height], [width, height]);
      if (number !== loading) return;
      paint = MaskPaint.make(width, height, pixels ?? undefined);
      saved = { version, exists: Boolean(mask) };
      cursor = [width / 2, height / 2];
      [refs.canvas.width, refs.canvas.height] = [width, height];
      all();
      refs.file.textContent = mask ? file : `${file} does not exist yet`;
      refs.file.title = root;
      say(mask && image.mask_problem === "differs" ? "The mask had a different shape and is stretched, as training does" : "");
    });
    buttons();
  };
  /** Save the mask that is shown; returns whether there is nothing left to save. */
  const save = async ({ version = saved?.version, isRemoval = false } = {}) => {
    if (!paint || !(isDirty || isRemoval)) return !paint || !isDirty;
    if (refs.box.hasAttribute("aria-busy")) return false;
    refs.box.setAttribute("aria-busy", "true");
    say("Saving…");
    const mine = paint;
    const sent = isRemoval ? null : paint.pixels.slice();
    const isSaved = await Studio.attempt(refs.problem, async () => {
      const mask = sent && { width: mine.width, height: mine.height, pixels: await MaskPaint.pack(sent) };
      const answer = await Captions.ask("masks/write", request({ version, mask }));
      if (answer.refused) return conflict(answer, isRemoval);
      saved = { version: answer.version, exists: !isRemoval };
      isDirty = Boolean(sent) && sent.some((value, place) => value !== mine.pixels[place]); // painted in the meantime
      isChanged = true;
      refs.file.textContent = isRemoval ? `${answer.file} was removed` : answer.file;
      say(isRemoval ? "Removed: all of the image is trained" : "Saved");
      count(images[at], !isRemoval);
    });
    refs.box.removeAttribute("aria-busy");
    if (!isSaved) say("Not saved");
    buttons();
    return isSaved && !isDirty && !refs.conflict.hasChildNodes();
  };
  /** Somebody else has changed the mask: nothing was written, and the person chooses. */
  const conflict = ({ refused, version }, isRemoval) => {
    say("Not saved");
    const close = () => refs.conflict.replaceChildren();
    const theirs = () => (close(), show());
    const mine = () => (close(), save({ version, isRemoval }));
    refs.conflict.replaceChildren(
      Studio.alarm(el("p", {}, refused), el("p", { class: "ways" }, button("Keep theirs", theirs, { class: "small-button" }), button("Write mine", mine, { class: "small-button" }))),
    );
  };
  const go = async (by) => {
    const next = at + by;
    if (next < 0 || next >= images.length || !(await save())) return;
    at = next;
    stage.box.focus();
    await show();
  };
  const close = async () => {
    if (await save()) refs.dialog.close();
  };

  // Other images, and training

  const count = (image, has) => {
    image.mask_key = has ? image.mask_key || "new" : "";
    remarks();
  };
  const remarks = () => {
    const trained = Studio.dataset.images().filter(({ role, size }) => size && role !== "regularisation");
    const masked = trained.filter(({ mask_key: key }) => key);
    const bare = [...new Set(trained.filter(({ mask_key: key }) => !key).map(({ path }) => path))];
    const { tab = "", values = {} } = Studio.dataset.form() ?? {};
    const root = refs.file.title;
    const isUsed = !masked.length || values.dataset_config || (values.masked_loss && values.conditioning_data_dir);
    refs.others.replaceChildren(
      `${masked.length} of ${trained.length} images have a mask. `,
      ...(masked.length && bare.length ? ["Training wants one for each: ", button(`White masks for the other ${bare.length}`, () => fill(bare), { class: "small-button" }), " "] : []),
      ...(!isUsed && tab && root ? [el("span", { class: "unused" }, "The form does not use them yet: "), button("Use masks in training", () => use(tab, root), { class: "small-button", title: `masked_loss on, conditioning_data_dir = ${root}` })] : []),
    );
  };
  /** Set the form of a training to these masks, and show it. */
  const use = async (tab, root) => {
    if (!(await save())) return;
    refs.dialog.close();
    const wanted = { conditioning_data_dir: ["folders-and-dataset"], masked_loss: ["advanced-training", "augmentation-and-masks"] };
    for (const [name, panels] of Object.entries(wanted)) {
      const id = `${tab}-${name}`;
      await Fields.jump(id, panels.map((panel) => `${tab}-panel-${panel}`));
      const field = document.getElementById(id)?.querySelector("input, textarea");
      if (field?.type !== "checkbox") Fields.enter(field, root);
      else if (!field.checked) field.click();
    }
  };
  const fill = (paths) =>
    Studio.attempt(refs.problem, async () => {
      for (let left = paths; left.length; left = left.slice(200)) {
        say(`${paths.length - left.length} of ${paths.length} white masks`);
        await Captions.ask("masks/fill", { images: Captions.byFolder(left.slice(0, 200)) });
      }
      say(`${paths.length} white masks: these images are trained in full`);
      isChanged = true;
      const filled = new Set(paths);
      for (const image of Studio.dataset.images()) if (filled.has(image.path)) image.mask_key ||= "new";
      if (!isDirty && filled.has(images[at].path)) await show();
      remarks();
      stage.box.focus();
    });

  // Controls

  const buttons = () => {
    const [back, forth] = paint?.steps() ?? [0, 0];
    refs.undo.disabled = !back;
    refs.redo.disabled = !forth;
    refs.remove.disabled = !saved?.exists;
    refs.save.disabled = !isDirty;
    refs.brush.setAttribute("aria-pressed", String(!isErasing));
    refs.eraser.setAttribute("aria-pressed", String(isErasing));
    for (const [name, control] of Object.entries(refs.sliders)) {
      control.input.value = String(control.read());
      control.output.value = control.words();
      if (name === "size") control.input.setAttribute("aria-valuetext", `${Math.round(brush.size)} pixels`);
    }
    refs.swatch.style.background = `rgb(${weight()} ${weight()} ${weight()})`;
  };
  const changed = (change) => {
    change();
    const { size, hardness, opacity } = brush; // which of the two weights is where is easily forgotten
    localStorage.setItem(BRUSH, JSON.stringify({ size, hardness, opacity }));
    buttons();
    ring();
  };
  const resize = (by) => changed(() => (brush.size = Math.max(1, Math.min(LARGEST, by > 1 ? Math.max(brush.size + 1, brush.size * by) : Math.min(brush.size - 1, brush.size * by)))));
  const swap = () => changed(() => ([brush.weight, brush.erased] = [brush.erased, brush.weight]));
  const erase = (on) => changed(() => (isErasing = on));
  const act = (change) => paint && touched(change());
  const undo = () => act(() => paint.undo());
  const redo = () => act(() => paint.redo());
  const overlay = () => {
    refs.overlay.checked = !refs.overlay.checked;
    covered();
  };
  const covered = () => {
    refs.canvas.style.visibility = refs.overlay.checked ? "" : "hidden";
    refs.canvas.style.opacity = refs.strength.value;
  };
  /** A slider; `read` and `write` have its number, `words` shows it. */
  const slider = (name, words, limits, read, write, text) => {
    const output = el("output", {});
    const input = el("input", { type: "range", ...limits, "aria-label": words, oninput: ({ target }) => changed(() => write(Number(target.value))) });
    refs.sliders[name] = { input, output, read, words: text };
    return el("label", { class: "slider" }, el("span", {}, words), input, output);
  };
  const move = (x, y) => {
    cursor = [Math.max(0, Math.min(paint.width, cursor[0] + x)), Math.max(0, Math.min(paint.height, cursor[1] + y))];
    ring();
  };
  const KEYS = {
    "[": () => resize(1 / 1.15),
    "]": () => resize(1.15),
    b: () => erase(false),
    e: () => erase(true),
    x: swap,
    o: overlay,
    f: () => act(() => paint.fill(weight())),
    i: () => act(() => paint.invert()),
    PageUp: () => go(-1),
    PageDown: () => go(1),
    "+": () => stage.zoom(1.25),
    "=": () => stage.zoom(1.25),
    "-": () => stage.zoom(0.8),
    0: () => stage.fit(),
  };
  const STAGE_KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const keys = (event) => {
    const isTyped = event.target.matches?.("input:not([type=range], [type=checkbox])");
    const key = keyOf(event);
    const command = event.ctrlKey || event.metaKey;
    if (isTyped) return;
    if (command && key === "z") (event.shiftKey ? redo : undo)();
    else if (command && key === "y") redo();
    else if (command && key === "s") save();
    else if (command || event.altKey) return;
    else if (event.target === stage.box && paint && STAGE_KEYS[key]) {
      const step = event.shiftKey ? brush.size : Math.max(1, brush.size / 4);
      move(...STAGE_KEYS[key].map((share) => share * step));
    } else if (event.target === stage.box && paint && key === "Enter") dab();
    else if (KEYS[key] && !(event.target.matches?.("input[type=range]") && /^Page/.test(key))) KEYS[key]();
    else return;
    event.preventDefault();
  };

  const build = () => {
    refs = /** @type {any} */ ({ sliders: {} });
    refs.picture = el("img", { alt: "", draggable: "false" });
    refs.canvas = el("canvas", { class: "mask-canvas", "aria-hidden": "true" });
    refs.ring = el("div", { class: "brush-ring", "aria-hidden": "true" });
    stage = DrawingStage.make({ label: "Mask: arrows move the brush, Enter paints, square brackets change its size", tool, moved: ring });
    stage.content.append(refs.picture, refs.canvas);
    stage.box.append(refs.ring);
    refs.title = el("b", {});
    refs.place = el("span", { class: "quiet" });
    refs.file = el("span", { class: "quiet" });
    refs.status = el("span", { class: "quiet", role: "status" });
    refs.problem = el("div", { role: "alert" });
    refs.conflict = el("div", {});
    refs.others = el("p", { class: "quiet mask-count" });
    refs.swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    refs.brush = small("Brush", () => erase(false), "B", { "aria-keyshortcuts": "b" });
    refs.eraser = small("Eraser", () => erase(true), "E", { "aria-keyshortcuts": "e" });
    refs.undo = small("Undo", undo, "Ctrl+Z");
    refs.redo = small("Redo", redo, "Ctrl+Shift+Z");
    refs.remove = small("Remove mask", () => save({ isRemoval: true }).then((is) => is && show()), "Without a mask all of the image is trained");
    refs.save = small("Save", () => save(), "Ctrl+S; a mask is also saved when you leave it");
    refs.overlay = el("input", { type: "checkbox", checked: true, onchange: covered });
    refs.strength = el("input", { type: "range", min: 0.1, max: 1, step: 0.05, value: 0.6, "aria-label": "Strength of the colour", oninput: covered });
    refs.colour = el("input", { type: "color", value: tint(), "aria-label": "Colour of what is not trained" });
    refs.colour.addEventListener("input", () => (localStorage.setItem(TINT, refs.colour.value), Studio.dataset.tint?.(), all()));
    const parts = [
      el("div", { class: "drawing-tools", role: "group", "aria-label": "Tools" }, refs.brush, refs.eraser, refs.swatch, small("Exchange", swap, "X: exchange the weights of brush and eraser")),
      slider("size", "Size", { min: 1, max: LARGEST }, () => brush.size, (value) => (brush.size = value), () => `${Math.round(brush.size)} px`),
      slider("hardness", "Hardness", { min: 0, max: 1, step: 0.05 }, () => brush.hardness, (value) => (brush.hardness = value), () => percent(brush.hardness)),
      slider("opacity", "Opacity", { min: 0.05, max: 1, step: 0.05 }, () => brush.opacity, (value) => (brush.opacity = value), () => percent(brush.opacity)),
      slider("weight", "Weight", { min: 0, max: MaskPaint.FULL }, weight, (value) => (isErasing ? (brush.erased = value) : (brush.weight = value)), () => percent(weight() / MaskPaint.FULL)),
      el("p", { class: "quiet" }, "How much the painted area counts in the loss: 0 % is not trained, 100 % in full."),
      el("div", { class: "drawing-tools" }, refs.undo, refs.redo),
      el("div", { class: "drawing-tools" }, small("Fill", () => act(() => paint.fill(weight())), "F: all of it gets the weight"), small("Invert", () => act(() => paint.invert()), "I"), small("Clear", () => act(() => paint.fill(MaskPaint.FULL)), "All of the image is trained")),
      el("label", { class: "flag" }, refs.overlay, "Show the mask (O)"),
      el("label", { class: "slider" }, el("span", {}, "Colour"), refs.colour, refs.strength),
      el("div", { class: "drawing-tools" }, small("−", () => stage.zoom(0.8), "Zoom out", { "aria-label": "Zoom out" }), small("+", () => stage.zoom(1.25), "Zoom in", { "aria-label": "Zoom in" }), small("Fit", () => stage.fit(), "0")),
      el("div", { class: "drawing-tools" }, refs.save, refs.remove),
    ];
    refs.box = el(
      "div",
      { class: "drawing" },
      head(go, refs.title, refs.file, refs.place),
      el("div", { class: "drawing-body" }, stage.box, el("div", { class: "drawing-side" }, ...parts)),
      refs.problem,
      refs.conflict,
      el("p", { class: "drawing-foot" }, refs.status),
      refs.others,
    );
    refs.dialog = el("dialog", { class: "dataset-dialog drawing-dialog", "aria-label": "Mask" }, button("✕", close, { class: "close", "aria-label": "Close" }), refs.box);
    refs.dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      close();
    });
    refs.dialog.addEventListener("keydown", keys);
    refs.dialog.addEventListener("close", closed);
    addEventListener("beforeunload", (event) => refs.dialog.open && isDirty && event.preventDefault());
  };
  const closed = async () => {
    if (isDirty && !(await save())) return Studio.show(refs.dialog); // browsers close at a second Escape whatever a page wants
    clear();
    document.querySelector(".image-grid")?.focus();
    if (isChanged) await Studio.dataset.reload();
    isChanged = false;
  };

  /** Paint the masks of these images, beginning with one of them. */
  const open = async (some, first) => {
    if (!some.length) return;
    if (!refs) build();
    images = some;
    at = Math.max(0, some.indexOf(first));
    refs.colour.value = tint();
    Studio.show(refs.dialog);
    stage.box.focus();
    covered();
    await show();
    remarks();
  };

  return { open, tint };
})();
