// What may be wrong with an image of a dataset. A mark is null where it was not measured: that is no "no".
var Marks = (() => {
  /** Limits that people may change: name -> [label, default, step].
   * @type {Record<string, [string, number, number]>} */
  const LIMITS = {
    enlarged: ["too small: enlarged more than", 1.5, 0.1],
    cropped: ["cropped: loses more than (%)", 20, 1],
    aspect: ["extreme aspect: longer than (to 1)", 2.5, 0.1],
    sharpness: ["blurred: sharpness below", 60, 5],
    distance: ["near duplicate: differing bits of 128, at most", 10, 1],
  };
  const KEPT = "dataset-limits"; // in this browser
  const kept = () => {
    try {
      return Object(JSON.parse(localStorage.getItem(KEPT)));
    } catch {
      return {};
    }
  };
  const known = (name, usual) => (Number.isFinite(kept()[name]) && kept()[name] >= 0 ? kept()[name] : usual);
  const limits = Object.fromEntries(Object.entries(LIMITS).map(([name, [, usual]]) => [name, known(name, usual)]));
  /** Change a limit, and remember it; null is the default. */
  const setLimit = (name, value) => {
    limits[name] = value ?? LIMITS[name][1];
    const own = Object.entries(limits).filter(([each, now]) => now !== LIMITS[each][1]);
    localStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(own)));
  };

  const enlargement = ({ size, resized }) => (size && resized ? Math.max(resized[0] / size[0], resized[1] / size[1]) : null);
  const lost = ({ crop }) => (crop ? 1 - crop[2] * crop[3] : null);
  const aspect = ({ size }) => (size ? Math.max(size[0] / size[1], size[1] / size[0]) : null);
  const WHOLE = 0.95; // of a face: boxes are not exact
  /** The share of a face that lies within the crop. */
  const shown = ([left, top, width, height], [x, y, wide, high]) => {
    const [across, down] = [Math.min(left + width, x + wide) - Math.max(left, x), Math.min(top + height, y + high) - Math.max(top, y)];
    return (Math.max(across, 0) * Math.max(down, 0)) / (width * height);
  };
  const over = (value, limit) => (value == null ? null : value > limit);
  const isRead = (image) => image.role !== "left out" || Boolean(image.size);

  /** Name of a mark -> [words, what it means, image -> whether it has it]. */
  const ALL = {
    leftout: ["left out", "Training does not read these", (image) => image.role === "left out"],
    foreign: ["other format", "Training does not read this kind of image; Image tools… converts copies", (image) => image.is_foreign],
    broken: ["broken", "Cannot be decoded", (image) => Boolean(image.problem) || (image.role === "left out" && !image.size && !image.is_foreign)],
    uncaptioned: ["no caption", "Without a caption file", (image) => isRead(image) && !image.captioned && image.role !== "regularisation"],
    empty: ["empty caption", "The caption file is empty", (image) => image.captioned && !image.caption.trim()],
    small: ["too small", "Enlarged a lot to fill the bucket", (image) => over(enlargement(image), limits.enlarged)],
    upscaled: ["upscaled", "Smaller than the bucket", (image) => over(enlargement(image), 1.0001)],
    cropped: ["cropped", "Loses much of its area to the bucket", (image) => over(lost(image), limits.cropped / 100)],
    aspect: ["extreme aspect", "Much longer than wide, or wider than long", (image) => image.is_elongated || over(aspect(image), limits.aspect)],
    twice: ["duplicate", "The same bytes as another image", (image) => image.measures && image.copies > 1],
    near: ["near duplicate", "Looks like another image", (image) => image.alike],
    blurred: ["blurred", "Nothing in it is sharp at 512 pixels", (image) => image.measures && image.measures.sharpness < limits.sharpness],
    bars: ["black bars", "Has black edges", (image) => image.measures && image.measures.bars.some((share) => share > 0)],
    faces: ["faces cut", "The bucket cuts off part of a face", (image) => image.measures?.faces && image.crop && image.measures.faces.some((face) => shown(face, image.crop) < WHOLE)],
    masked: ["mask", "Has a mask", (image) => Boolean(image.mask || image.mask_key)],
    unmasked: ["no mask", "Others have one, and training with masks wants one for each image", (image) => image.isUnmasked],
    stretched: ["mask differs", "The mask has a different shape than the image, and is stretched", (image) => image.mask_problem === "differs"],
    black: ["mask all black", "The mask leaves nothing to train", (image) => image.mask_problem === "black"],
    unreadable: ["mask broken", "The mask cannot be decoded", (image) => image.mask_problem === "broken"],
  };
  /** No faults, so that images are not marked with them. */
  const PLAIN = ["masked", "unmasked"];
  const MEASURED = ["twice", "near", "blurred", "bars", "faces"];
  const NO_DETECTOR = "Not measured: no face detector is on this machine. Image tools… › Crop downloads OpenCV's YuNet, 0.2 MB, licence MIT";

  const names = Object.keys(ALL);
  const words = (name) => ALL[name][0];
  const hint = (name) => ALL[name][1];
  /** Whether an image has a mark; null if that was not measured. */
  const has = (image, name) => {
    if ((image.problem || !image.size) && MEASURED.includes(name)) return false; // there is nothing to measure
    return ALL[name][2](image) ?? null;
  };
  const of = (image) => names.filter((name) => !PLAIN.includes(name) && has(image, name));
  const isMeasured = (name) => MEASURED.includes(name);

  /** Count each mark: name -> [images that have it, images that were not measured]. */
  const count = (images) => {
    const counts = Object.fromEntries(names.map((name) => [name, [0, 0]]));
    for (const image of images)
      for (const name of names) {
        const it = has(image, name);
        if (it) counts[name][0] += 1;
        else if (it === null) counts[name][1] += 1;
      }
    return counts;
  };

  /** Note which images lack a mask that others have. */
  const noteMasks = (images) => {
    const some = images.some((image) => image.mask_key);
    for (const image of images) image.isUnmasked = some && isRead(image) && !image.frames && image.role !== "regularisation" && !image.mask && !image.mask_key;
  };

  /** Note which images are exact copies of others. */
  const noteCopies = (images) => {
    const paths = new Map();
    for (const { measures, path } of images)
      if (measures) paths.set(measures.digest, (paths.get(measures.digest) ?? new Set()).add(path));
    for (const image of images) image.copies = image.measures ? paths.get(image.measures.digest).size : null;
  };

  return { LIMITS, NO_DETECTOR, limits, setLimit, names, words, hint, has, of, count, isMeasured, noteCopies, noteMasks, enlargement, lost, aspect };
})();
