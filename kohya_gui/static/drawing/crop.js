// The dialog in which images are cut by hand: a frame with the shape of a bucket, or any, over the image. The cut takes
// the place of the image, which goes to the trash.
var CropEditor = (() => {
  const { el, button, select, send, url } = Studio;
  const { small, head, keyOf } = DrawingStage;
  const SMALLEST = 16; // pixels of a side
  const ASKED_AFTER = 80; // ms
  const HANDLES = ["nw", "n", "ne", "e", "se", "s", "sw", "w"];

  let refs = null;
  let stage = null;
  let images = [];
  let at = 0;
  let box = null; // left, top, width and height in pixels of the image
  let ratio = null; // width by height; null is free
  let drag = null;
  let isBusy = false;
  let isChanged = false;
  const moved = new Map(); // path of an image that was cut -> path of the cut

  const image = () => images[at];
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const say = (text) => Studio.write(refs.status, text);

  // The frame

  /** A frame of the chosen shape around a point, as large as this and the image allow. */
  const shaped = ([width, height], [x, y] = [box[0] + box[2] / 2, box[1] + box[3] / 2]) => {
    const [wide, high] = image().size;
    if (ratio) height = width / ratio;
    const by = Math.min(1, wide / width, high / height);
    width = clamp(Math.round(width * by), Math.min(SMALLEST, wide), wide);
    height = clamp(ratio ? Math.round(width / ratio) : Math.round(height * by), Math.min(SMALLEST, high), high);
    return [clamp(Math.round(x - width / 2), 0, wide - width), clamp(Math.round(y - height / 2), 0, high - height), width, height];
  };
  const largest = () => {
    const [wide, high] = image().size;
    if (!ratio) return [0, 0, wide, high];
    return shaped([Math.min(wide, high * ratio), 0]);
  };
  const put = (next) => {
    box = next;
    draw();
    describeSoon();
  };
  const shift = (x, y) => put([clamp(box[0] + x, 0, image().size[0] - box[2]), clamp(box[1] + y, 0, image().size[1] - box[3]), box[2], box[3]]);
  const scale = (by) => put(shaped([box[2] * by, box[3] * by]));
  const draw = () => {
    if (!box || !stage) return;
    const { x, y, scale: by } = stage.view;
    const unit = by * (stage.unit ?? 1);
    refs.frame.style.cssText = `left:${x + box[0] * unit}px;top:${y + box[1] * unit}px;width:${box[2] * unit}px;height:${box[3] * unit}px`;
  };
  const describeSoon = Studio.later(() => describe(), ASKED_AFTER);
  const describe = async () => {
    if (!box) return;
    const asked = box;
    const [left, top, width, height] = box;
    const base = `${width} × ${height} pixels at ${left}, ${top}`;
    Studio.write(refs.facts, base);
    const form = Studio.dataset.form();
    const answer = form && (await send("dataset/fits", { ...form, folder: Studio.dataset.folder(), dataset: image().dataset, sizes: [[width, height]] }).catch(() => null));
    if (asked !== box) return;
    const fit = answer?.fits[0];
    refs.frame.classList.toggle("is-small", Boolean(fit && fit.resized[0] > width));
    if (!answer) return Studio.write(refs.facts, `${base} → bucket not known: training would refuse this dataset`);
    if (!fit) return Studio.write(refs.facts, `${base} → smaller than the smallest bucket`);
    const by = fit.resized[0] / width;
    const how = by > 1.0001 ? `upscaled to ${Math.round(100 * by)} %` : by < 0.9999 ? `shrunk to ${Math.round(100 * by)} %` : "not resized";
    const [wide, high] = refs.shape.value.split("x").map(Number);
    const isKeptSmall = by < 1.0001 && fit.bucket[0] <= wide && fit.bucket[1] <= high && fit.bucket[0] * fit.bucket[1] < wide * high;
    const why = isKeptSmall ? `not enlarged to ${wide} × ${high}, since bucket_no_upscale is on` : "";
    const cut = fit.cropped > 0.0005 ? `crops ${ImageDetail.percent(fit.cropped)} more` : "crops nothing more";
    const bucket = `bucket ${fit.bucket[0]} × ${fit.bucket[1]}`;
    Studio.write(refs.facts, [base, bucket, how, cut, why].filter(Boolean).join(" · "));
  };

  // Mouse, pen and fingers

  /** The frame after a side or corner was dragged to a point. */
  const stretched = (start, handle, [x, y]) => {
    const [wide, high] = image().size;
    let [left, top, right, bottom] = [start[0], start[1], start[0] + start[2], start[1] + start[3]];
    if (handle.includes("w")) left = clamp(x, 0, right - SMALLEST);
    if (handle.includes("e")) right = clamp(x, left + SMALLEST, wide);
    if (handle.includes("n")) top = clamp(y, 0, bottom - SMALLEST);
    if (handle.includes("s")) bottom = clamp(y, top + SMALLEST, high);
    if (ratio) {
      const room = [handle.includes("w") ? right : wide - left, handle.includes("n") ? bottom : high - top];
      const wanted = handle === "n" || handle === "s" ? (bottom - top) * ratio : handle === "e" || handle === "w" ? right - left : Math.max(right - left, (bottom - top) * ratio);
      const width = Math.min(wanted, room[0], room[1] * ratio);
      if (handle.includes("w")) left = right - width;
      else right = left + width;
      if (handle.includes("n")) top = bottom - width / ratio;
      else bottom = top + width / ratio;
    }
    const sides = [Math.round(right - left), Math.round(bottom - top)];
    return [clamp(Math.round(left), 0, wide - sides[0]), clamp(Math.round(top), 0, high - sides[1]), ...sides];
  };
  const inImage = ([x, y]) => [x / (stage.unit ?? 1), y / (stage.unit ?? 1)];
  const tool = {
    down(point, event) {
      if (!box) return;
      const handle = event.target.closest?.("[data-handle]")?.dataset.handle ?? "";
      drag = { handle, from: inImage(point), start: box };
    },
    move(points, event, isDrawing) {
      if (!isDrawing || !drag) return;
      const [x, y] = inImage(points.at(-1));
      const { handle, from, start } = drag;
      if (handle) return put(stretched(start, handle, [x, y]));
      put([clamp(Math.round(start[0] + x - from[0]), 0, image().size[0] - start[2]), clamp(Math.round(start[1] + y - from[1]), 0, image().size[1] - start[3]), start[2], start[3]]);
    },
    up: () => (drag = null),
    cancel() {
      if (drag) put(drag.start);
      drag = null;
    },
  };

  // Images

  const shapes = () => {
    const frames = Studio.dataset.opened()?.frames[image().dataset] ?? [];
    const own = image().bucket.split("x").map(Number);
    const near = ([width, height]) => Math.abs(Math.log(width / height / (image().size[0] / image().size[1])));
    const sorted = [...frames].sort((one, other) => near(one) - near(other));
    const first = sorted.find((each) => each[0] === own[0] && each[1] === own[1]) ?? sorted[0];
    return [first, ...sorted.filter((each) => each !== first)].filter(Boolean);
  };
  /** Read the images again, with those that were cut at their new paths; returns all of the dataset by path. */
  const reload = async () => {
    await Studio.dataset.reload();
    const byPath = new Map(Studio.dataset.images().map((each) => [each.path, each]));
    images = images.map((each) => byPath.get(moved.get(each.path) ?? each.path) ?? each);
    moved.clear();
    return byPath;
  };
  const show = async () => {
    box = null;
    if (moved.has(image().path)) await reload();
    const { path, size, key, why, problem } = image();
    refs.title.textContent = Studio.fileName(path);
    refs.place.textContent = `${at + 1} of ${images.length}`;
    refs.frame.hidden = !size;
    refs.problem.replaceChildren();
    refs.picture.src = "";
    say("");
    if (!size) return refs.problem.replaceChildren(Studio.complaint(new Error(`It cannot be cut: ${why || problem}`)));
    refs.picture.src = url(`dataset/preview/${key}`);
    const chosen = refs.shape.value;
    const choices = shapes().map(([wide, high]) => [`${wide}x${high}`, `${wide} × ${high}`]);
    refs.shape.replaceChildren(...[["", "Any shape"], ...choices].map(([value, words]) => el("option", { value }, words)));
    refs.shape.value = chosen === "" && refs.isChosen ? "" : choices.some(([value]) => value === chosen) && refs.isChosen ? chosen : choices[0]?.[0] ?? "";
    const fitted = Math.min(1, 2048 / Math.max(...size));
    stage.unit = fitted;
    stage.resize(...size.map((side) => side * fitted));
    box = [0, 0, ...size];
    reshape();
  };
  const reshape = () => {
    const [wide, high] = refs.shape.value.split("x").map(Number);
    ratio = wide ? wide / high : null;
    refs.frame.classList.toggle("is-free", !ratio);
    put(largest());
  };
  const turn = () => {
    const turned = refs.shape.value.split("x").reverse().join("x");
    if ([...refs.shape.options].some(({ value }) => value === turned)) refs.shape.value = turned;
    refs.isChosen = true;
    reshape();
  };
  const go = async (by) => {
    if (isBusy || at + by < 0 || at + by >= images.length) return;
    at += by;
    await show();
    stage.box.focus();
  };
  const cut = async () => {
    if (!box || isBusy) return;
    isBusy = true;
    say("Cutting…");
    const { path, key } = image();
    const isDone = await Studio.attempt(refs.problem, async () => {
      const answer = await Captions.ask("crop", { images: Captions.byFolder([path]), box, key });
      moved.set(path, answer.path);
      isChanged = true;
      const left = answer.left.length ? ` Not cropped, since their shape is different: ${answer.left.join(", ")}.` : "";
      refs.done = `${Studio.fileName(path)} was cropped; the original is in the trash.${left}`;
    });
    isBusy = false;
    if (!isDone) return say("");
    if (at + 1 < images.length) await go(1);
    else await show();
    say(refs.done);
    refs.undo.disabled = false;
  };
  const undo = async () => {
    if (isBusy || refs.undo.disabled) return;
    isBusy = true;
    await Studio.attempt(refs.problem, async () => {
      const answer = await Captions.ask("captions/undo");
      if (answer.refused) throw new Error(answer.refused);
      const path = [...moved.keys()].pop();
      const before = images.map((each) => each.path);
      moved.delete(path);
      const byPath = await reload();
      if (byPath.has(path)) at = Math.max(0, before.indexOf(path));
      refs.undo.disabled = true;
      await show();
      say(answer.done);
    });
    isBusy = false;
  };

  const KEYS = {
    Enter: cut,
    PageUp: () => go(-1),
    PageDown: () => go(1),
    "+": () => scale(1.02),
    "=": () => scale(1.02),
    "-": () => scale(1 / 1.02),
    f: () => put(largest()),
    r: turn,
    0: () => stage.fit(),
  };
  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const keys = (event) => {
    const key = keyOf(event);
    if ((event.ctrlKey || event.metaKey) && key === "z") undo();
    else if (event.ctrlKey || event.metaKey || event.altKey) return;
    else if (event.target.matches?.("select, button") && !/^Page/.test(key)) return;
    else if (box && ARROWS[key]) shift(...ARROWS[key].map((each) => each * (event.shiftKey ? 10 : 1)));
    else if (KEYS[key] && (box || /^Page/.test(key))) KEYS[key]();
    else return;
    event.preventDefault();
  };

  const build = () => {
    refs = /** @type {any} */ ({ isChosen: false });
    refs.picture = el("img", { alt: "", draggable: "false" });
    refs.frame = el("div", { class: "cut-frame" }, ...HANDLES.map((name) => el("span", { class: `handle handle-${name}`, "data-handle": name })));
    stage = DrawingStage.make({ label: "Frame: arrows move it, plus and minus change its size, Enter cuts", tool, moved: draw });
    stage.content.append(refs.picture);
    stage.box.append(refs.frame);
    refs.title = el("b", {});
    refs.place = el("span", { class: "quiet" });
    refs.facts = el("p", { class: "cut-facts", role: "status" });
    refs.status = el("span", { class: "quiet", role: "status" });
    refs.problem = el("div", { role: "alert" });
    refs.shape = select({ "aria-label": "Shape of the frame", onchange: () => ((refs.isChosen = true), reshape()) }, []);
    refs.undo = small("Undo", undo, "Ctrl+Z", { disabled: true });
    const box = el(
      "div",
      { class: "drawing" },
      head(go, refs.title, refs.place),
      el(
        "div",
        { class: "drawing-tools" },
        el("label", { class: "flag" }, "Bucket ", refs.shape),
        small("Turn", turn, "R: upright or across"),
        small("Largest", () => put(largest()), "F"),
        small("Smaller", () => scale(1 / 1.1), "−"),
        small("Larger", () => scale(1.1), "+"),
        small("Fit", () => stage.fit(), "0"),
        refs.undo,
        button("Crop", cut, { class: "take-button", title: "Enter" }),
      ),
      stage.box,
      refs.facts,
      refs.problem,
      el("p", { class: "drawing-foot" }, refs.status),
      el("p", { class: "quiet" }, "Pixels are not resampled. The original goes to the trash; caption, mask and control images come along. Undo brings all back."),
    );
    refs.dialog = Studio.dialog({ class: "dataset-dialog drawing-dialog", "aria-label": "Crop" });
    refs.dialog.append(Studio.closer(refs.dialog), box);
    refs.dialog.addEventListener("keydown", keys);
    refs.dialog.addEventListener("close", async () => {
      document.querySelector(".image-grid")?.focus();
      if (isChanged) await Studio.dataset.reload();
      isChanged = false;
      moved.clear();
    });
  };

  /** Cut these images, beginning with one of them. */
  const open = async (some, first) => {
    if (!some.length) return;
    if (!refs) build();
    images = some;
    at = Math.max(0, some.indexOf(first));
    refs.undo.disabled = true;
    refs.isChosen = false;
    Studio.show(refs.dialog);
    await show();
    stage.box.focus();
  };

  return { open };
})();
