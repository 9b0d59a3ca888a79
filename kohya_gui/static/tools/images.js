// The tab Image tools: edit copies of a folder's images, or make masks, after a try on five, before and after side by side.
(() => {
  const { el, button, url, image, table } = Studio;
  const CHANGES = ["crop_to", "mask_from", "save_as"]; // options that decide which others have an effect
  const ONLY = {
    faces: ["crop_to", "faces"],
    square: ["crop_to", "faces"],
    min_kept: ["crop_to", "text_free"],
    colour: ["mask_from", "colour"],
    tolerance: ["mask_from", "colour"],
  }; // option -> the option and value with which it has an effect

  const own = ({ MAKE, labelled, values, set, described, draw }) => {
    const now = (name) => values()[name] ?? described().fields.find((field) => field.name === name).default;
    const choice = (field) => {
      const element = MAKE.choice(field);
      element.querySelector("select").addEventListener("change", draw);
      return element;
    };
    const dependent = (field) => {
      const [name, value] = ONLY[field.name];
      const element = field.name === "colour" ? colour(field) : MAKE[field.kind](field);
      element.hidden = now(name) !== value;
      return element;
    };
    const colour = (field) => {
      const input = el("input", { type: "color", id: "images-colour", value: values().colour || field.default, oninput: ({ target }) => set("colour", target.value) });
      return labelled(field, input);
    };
    const ofFaces = (field) => {
      const element = MAKE[field.kind](field);
      const isMask = values().task === "mask";
      element.hidden = now(isMask ? "mask_from" : "crop_to") !== "faces";
      return element;
    };
    return {
      ...Object.fromEntries(CHANGES.map((name) => [name, choice])),
      ...Object.fromEntries(Object.keys(ONLY).map((name) => [name, dependent])),
      margin: ofFaces,
      min_face: ofFaces,
    };
  };

  const see = (folder, words) => el("div", { class: "tool-actions" }, button(words, () => Studio.dataset.visit(folder), { "data-action": "see-copies" }));
  const result = ({ known, result: { images, tried, output, masks, folder } }) => {
    const shown = (number, when) => image(`${url(`images/image/${number}`)}?when=${when}&job=${known}`, when);
    const row = ({ image: path, before, after, note, results, number, is_changed: changed }) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, el("span", { title: path }, Studio.fileName(path))),
        el("td", {}, tried ? shown(number, "before") : null, before),
        el("td", {}, tried && results.length ? shown(number, "after") : null, results.length ? (changed ? after : "unchanged") : "no copy", note ? el("p", { class: "quiet" }, note) : null),
      );
    const parts = [];
    if (output) {
      const hasCopies = masks !== output;
      if (hasCopies) parts.push(el("p", {}, `Copies: ${output}`));
      if (masks) parts.push(el("p", {}, `Masks: ${masks}`), el("p", { class: "quiet" }, "To train with them, enter this folder as conditioning_data_dir, and turn on masked_loss"));
      parts.push(see(hasCopies ? output : folder, hasCopies ? "See the copies" : "See the images"));
    }
    if (images.length) {
      const changes = table({ class: `job-changes${tried ? " side-by-side" : ""}` }, ["Image", "Before", tried ? "Would be" : "Copy"], images.slice(0, 50).map(row));
      parts.push(el("div", { class: "job-scroll", tabindex: 0, role: "region", "aria-label": "Images" }, changes));
    }
    return parts;
  };

  const tab = JobTab.make({
    route: "images",
    prefix: "images",
    choice: "task",
    choices: [
      ["convert", "Convert", "HEIC, AVIF, TIFF, GIF, CMYK, 16 bit and animated files become images that training reads. What is fine is copied."],
      ["bars", "Remove bars", "Cuts off bars of one colour that end at an edge."],
      ["crop", "Crop", "To faces, or to the largest area without text."],
      ["resize", "Resize", "To the area of a square, as buckets have it, or by a side."],
      ["upscale", "Upscale", "Small images, with a model that spandrel reads. Waits for a run on the GPU."],
      ["mask", "Masks", "White is trained, black is left out: background, faces, a colour or transparency."],
    ],
    order: [
      ...["train_data_dir", "output_dir", "upscale_model", "crop_to", "mask_from", "faces", "min_kept", "colour", "tolerance"],
      ...["margin", "square", "resize_by", "size", "model", "download"],
    ],
    own,
    empty: "Try five images first: they appear here before and after, and nothing is written. Originals are never changed.",
    stopped: ({ done, total }) => `Stopped after ${done} of ${total} images. Resume continues with the others; the folder of copies appears at the end`,
    result,
  });

  /** Open the tab with a folder, or with some of its images, for other tabs of the page. */
  Studio.editImages = (folder, images = []) => tab.open("imagetools", folder, images);
})();
