// Images of the dataset that look alike, in groups, the best of each proposed; the others go into the trash.
var Duplicates = (() => {
  const { el, button, image: img } = Studio;
  const SHOWN = 200; // groups in the dialog
  const ALMOST = 1.05; // areas and sharpness that differ by less are equal

  const area = ({ size }) => (size ? size[0] * size[1] : 0);
  /** The order of one group, the best first: more pixels, then sharper, then with the longer caption, then the larger file. */
  const better = (one, other) => {
    for (const value of [area, ({ measures }) => measures.sharpness + 1]) {
      const [a, b] = [value(one), value(other)];
      if (Math.max(a, b) > ALMOST * Math.min(a, b)) return b - a;
    }
    return other.caption.length - one.caption.length || other.bytes - one.bytes || one.number - other.number;
  };
  /** The groups of images that look alike, each with the best first, larger groups first. */
  const groups = (images) => {
    const found = new Map();
    const paths = new Set();
    for (const image of images) {
      if (!image.alike || !image.measures || paths.has(image.path)) continue; // of several datasets, once
      paths.add(image.path);
      found.set(image.alike, [...(found.get(image.alike) ?? []), image]);
    }
    return [...found.values()]
      .filter((group) => group.length > 1)
      .map((group) => group.sort(better))
      .sort((one, other) => other.length - one.length || one[0].number - other[0].number);
  };
  /** What is better about the first image of a group than about this one. */
  const compared = (image, best) => {
    if (image.measures.digest === best.measures.digest) return "the same file";
    if (area(best) > ALMOST * area(image)) return "fewer pixels";
    if (area(image) > ALMOST * area(best)) return "more pixels";
    if (best.measures.sharpness > ALMOST * image.measures.sharpness) return "less sharp";
    return image.caption.length < best.caption.length ? "shorter caption" : "equal";
  };

  const open = () => {
    const images = Studio.dataset.images();
    const left = images.filter(({ size, measures, problem }) => size && !measures && !problem).length;
    const found = groups(images);
    const dialog = Studio.dialog({ class: "dataset-dialog report-dialog", "aria-label": "Duplicates" });
    const going = new Set(found.flatMap((group) => group.slice(1).map(({ path }) => path)));
    const action = button("", () => (dialog.close(), DatasetFiles.remove([...going])), { class: "small-button", "data-action": "remove-duplicates" });
    const choose = button("Select them instead", () => (dialog.close(), Studio.dataset.select([...going])), { class: "small-button" });
    const count = () => {
      Studio.write(action, `Move ${going.size === 1 ? "1 image" : `${going.size} images`} to the trash`);
      action.disabled = choose.disabled = !going.size;
    };
    const figure = (image, best) => {
      const box = el("input", {
        type: "checkbox",
        checked: !going.has(image.path),
        onchange: ({ target }) => {
          going[target.checked ? "delete" : "add"](image.path);
          count();
        },
      });
      const name = Studio.fileName(image.path);
      const why = image === best ? el("b", {}, "Best") : compared(image, best);
      return el(
        "figure",
        {},
        el("label", {}, img(ImageDetail.thumbnail(image), name, { translate: "no" }), el("span", { class: "flag" }, box, "Keep")),
        el("figcaption", {}, el("span", { title: image.path, translate: "no" }, name), el("span", { class: "quiet" }, `${ImageDetail.sides(image.size)}, sharpness ${image.measures.sharpness.toFixed(0)}`), el("span", {}, why), el("span", { class: "quiet cell-caption", translate: image.caption ? "no" : null }, image.caption || "no caption")),
      );
    };
    const words = found.length
      ? `${found.length === 1 ? "1 group" : `${found.length} groups`} of images that look alike, at most ${Marks.limits.distance} of 128 bits apart (Limits of the marks). Untick what you do not need; images are only moved to the trash.`
      : "No two images look alike.";
    dialog.append(
      Studio.closer(dialog),
      el("b", {}, "Duplicates"),
      el("p", { class: "quiet" }, left ? `${left} of ${images.length} images have not been looked at yet; open this again when they have.` : words),
      ...found.slice(0, SHOWN).map((group) => el("div", { class: "duplicate-group", role: "group", "aria-label": `${group.length} images like ${Studio.fileName(group[0].path)}` }, ...group.map((image) => figure(image, group[0])))),
      found.length > SHOWN ? el("p", { class: "quiet" }, `and ${found.length - SHOWN} groups more, whose others are moved too`) : "",
      el("p", { class: "ways report-foot" }, action, choose),
    );
    count();
    Studio.show(dialog);
    dialog.addEventListener("close", () => dialog.remove());
  };

  return { open, groups };
})();
