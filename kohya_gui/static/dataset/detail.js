// One image of the dataset, large, with what training makes of it.
var ImageDetail = (() => {
  const { el, button, image: img, url } = Studio;

  const sides = (size) => (size ? `${size[0]} × ${size[1]}` : "");
  const percent = (share) => `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)} %`;
  const weight = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
  const thumbnail = ({ key }) => url(`dataset/thumbnail/${key}`);
  const preview = ({ key }) => url(`dataset/preview/${key}`);

  /** The frame that training cuts out of an image, over an element that the image fills. */
  const frame = ({ crop, varies }) => {
    if (!crop) return null;
    const [left, top, width, height] = crop.map((share) => `${(100 * share).toFixed(3)}%`);
    const isWhole = crop[2] > 0.9995 && crop[3] > 0.9995;
    const moves = varies.some((name) => name !== "color_aug");
    const element = el("div", { class: `crop-frame${isWhole ? " whole" : ""}${moves ? " varies" : ""}`, "aria-hidden": "true" });
    element.style.cssText = `left:${left};top:${top};width:${width};height:${height}`;
    return element;
  };

  /** The colour over what the mask of an image leaves out; null without a mask. */
  const tinted = ({ mask_key: key }) => {
    if (!key || key === "new") return null;
    const element = el("div", { class: "mask-tint", "aria-hidden": "true" });
    element.style.setProperty("--mask", `url("${url(`dataset/mask/${key}`)}")`);
    return element;
  };

  const ROLES = { trained: "", regularisation: "regularisation image", validation: "kept out for validation", "left out": "left out" };
  const scale = (image) => {
    const by = Marks.enlargement(image);
    if (by == null) return "";
    return by > 1.0001 ? `enlarged to ${Math.round(100 * by)} %` : by < 0.9999 ? `shrunk to ${Math.round(100 * by)} %` : "not resized";
  };
  const maskWords = ({ mask, mask_path: path, mask_problem: problem }) => {
    const faults = { differs: "has a different shape and is stretched", black: "is all black: nothing is trained", broken: "cannot be read" };
    const words = [path ? Studio.fileName(path) : "the image's transparency", faults[problem], mask ? "" : "not used: masked_loss or conditioning_data_dir is not set"];
    return words.filter(Boolean).join(", ");
  };
  const facesOf = (image) => `${image.measures.faces.length || "none"}${Marks.has(image, "faces") ? ", cut by the bucket" : ""}`;
  const facts = (image) => {
    const { measures, problem } = image;
    const measured = (text) => (measures ? text : problem ? "not measured: it cannot be read" : "not measured yet");
    const cut = Marks.lost(image);
    const where = cut ? `crops ${percent(cut)}` : "crops nothing";
    const bars = measures?.bars.map((share, side) => share && `${["left", "top", "right", "bottom"][side]} ${percent(share)}`).filter(Boolean);
    const rows = [
      ["Size", image.size ? `${sides(image.size)}${image.bytes ? `, ${weight(image.bytes)}` : ""}` : "not known"],
      image.bucket ? ["Bucket", `${image.bucket.replaceAll("x", " × ")}, ${scale(image)}, ${where}`] : ["Bucket", "none"],
      image.smaller ? ["At high noise", image.smaller.replaceAll("x", " × ")] : null,
      image.varies.length ? ["Varies", `${image.varies.join(", ")}: different in every step`] : null,
      ROLES[image.role] ? ["Use", ...(image.why ? [ROLES[image.role], ": ", image.why] : [ROLES[image.role]])] : null,
      image.role === "left out" ? null : ["Repeats", String(image.repeats)],
      image.frames ? ["Clip", `${image.frames} frames of it; the first is measured`] : null,
      image.mask || image.mask_key ? ["Mask", maskWords(image)] : null,
      image.controls ? ["Control images", String(image.controls)] : null,
      ["Latents", image.cached ? "a cache file is next to it; training checks whether it is valid" : "not cached on disk"],
      ["Sharpness", measured(measures?.sharpness.toFixed(0))],
      ["Black bars", measured(bars?.length ? bars.join(", ") : "none")],
      ["Faces", measured(measures?.faces ? facesOf(image) : "not measured: no face detector is on this machine")],
    ];
    return el("dl", {}, ...rows.filter(Boolean).flatMap(([name, ...texts]) => [el("dt", {}, name), el("dd", {}, ...texts)]));
  };
  const caption = (image) => {
    if (!image.captioned) {
      const instead = image.caption ? ` Training uses “${image.caption}”.` : "";
      return el("p", { class: "quiet" }, `No caption file.${instead}`);
    }
    return image.caption.trim() ? el("p", { class: "detail-caption" }, image.caption) : el("p", { class: "quiet" }, "The caption is empty.");
  };

  /** Show an image in a box; `large` also has its preview instead of the thumbnail. */
  const show = (box, image, { isLarge = false, ways = [] } = {}) => {
    if (!image) return box.replaceChildren(el("p", { class: "quiet" }, "Choose an image to see it here."));
    const marks = Marks.of(image).map((name) => el("span", { class: "mark" }, Marks.words(name)));
    const seen = el("div", { class: "detail-image" });
    if (image.size) {
      const picture = img(preview(image), Studio.fileName(image.path), { loading: "eager", translate: "no" });
      const inner = el("div", { class: "framed" }, picture, tinted(image), frame(image));
      inner.style.aspectRatio = `${image.size[0]} / ${image.size[1]}`;
      inner.style.setProperty("--ratio", String(image.size[0] / image.size[1]));
      seen.append(inner);
    } else seen.append(el("p", { class: "cell-broken" }, image.why || "It cannot be shown."));
    box.replaceChildren(
      el("div", { class: "detail-head" }, el("b", { translate: "no" }, Studio.fileName(image.path)), ...ways),
      seen,
      ...(marks.length ? [el("p", { class: "marks" }, ...marks)] : []),
      caption(image),
      ...(isLarge ? [] : [facts(image)]),
    );
  };

  /** The dialog with the active image of a grid; arrows show the others. */
  const dialog = (grid) => {
    const box = el("div", { class: "large-image" });
    const large = Studio.dialog({ class: "dataset-dialog", "aria-label": "Image" });
    large.append(Studio.closer(large), box);
    const draw = () => {
      const at = grid.activeIndex();
      const place = el("span", { class: "quiet" }, `${at + 1} of ${grid.items().length}`);
      const ways = [place, button("‹", () => step(-1), { "aria-label": "Previous image" }), button("›", () => step(1), { "aria-label": "Next image" })];
      show(box, grid.active(), { isLarge: true, ways });
    };
    const step = (by) => {
      grid.go(grid.activeIndex() + by, "move");
      draw();
    };
    Studio.onKeys(large, { ArrowLeft: () => step(-1), ArrowRight: () => step(1) });
    large.addEventListener("close", () => grid.box.focus());
    return () => {
      draw();
      Studio.show(large);
    };
  };

  return { show, dialog, frame, tinted, thumbnail, sides, percent };
})();
