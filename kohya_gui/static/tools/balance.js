// How the dataset is balanced: images by folder, shape, size, and by what captions say; and what no caption says.
var Balance = (() => {
  const { el, button } = Studio;
  const TAGS = 40; // most common tags that are listed

  /** Subject -> what an image may show -> words of captions that say so. */
  const SUBJECTS = {
    Framing: {
      "close-up": ["close-up", "close up", "closeup", "extreme close-up"],
      portrait: ["portrait", "headshot", "head shot", "head and shoulders"],
      "upper body": ["upper body", "bust", "half-length", "waist up", "waist-up"],
      "to the knees": ["cowboy shot", "three-quarter", "knees up", "knee-up"],
      "full body": ["full body", "full-body", "full length", "full-length", "head to toe"],
      "wide shot": ["wide shot", "long shot", "wide-angle shot", "in the distance", "far away"],
    },
    "Seen from": {
      "the front": ["from front", "front view", "facing viewer", "looking at viewer", "facing the camera", "looking at the camera"],
      "the side": ["from side", "side view", "profile", "from the side"],
      behind: ["from behind", "back view", "rear view"],
      above: ["from above", "overhead", "bird's-eye", "top-down", "high angle", "high-angle"],
      below: ["from below", "low angle", "low-angle"],
    },
    Pose: {
      standing: ["standing", "stands"],
      sitting: ["sitting", "sits", "seated", "kneeling"],
      lying: ["lying", "lies on", "reclining"],
      "in motion": ["walking", "walks", "running", "runs", "jumping", "jumps", "dancing"],
    },
    Expression: {
      smiling: ["smile", "smiles", "smiling", "grin", "laughing"],
      serious: ["serious", "expressionless", "neutral expression", "frown"],
      "eyes closed": ["closed eyes", "eyes closed"],
      "mouth open": ["open mouth", "mouth open"],
    },
    Place: {
      indoors: ["indoors", "indoor", "interior", "inside", "room"],
      outdoors: ["outdoors", "outdoor", "outside", "street", "forest", "beach", "garden", "park"],
      "plain background": ["simple background", "white background", "grey background", "gray background", "plain background", "studio"],
    },
    Light: {
      day: ["day", "daylight", "sunlight", "sunny"],
      night: ["night", "dark room", "nighttime", "moonlight"],
      "sunset or sunrise": ["sunset", "sunrise", "dusk", "dawn", "golden hour"],
      backlight: ["backlighting", "backlit", "backlight", "silhouette"],
    },
  };
  /** @type {[string, (ratio: number) => boolean][]} */
  const SHAPES = [
    ["wide (2:1 and more)", (ratio) => ratio >= 2],
    ["landscape", (ratio) => ratio > 1.15],
    ["square", (ratio) => ratio >= 1 / 1.15],
    ["upright", (ratio) => ratio > 0.5],
    ["tall (1:2 and more)", () => true],
  ];
  /** Name and upper limit in pixels. @type {[string, number][]} */
  const SIZES = [
    ["below 0.25 megapixels", 0.25e6],
    ["0.25 to 0.5", 0.5e6],
    ["0.5 to 1", 1e6],
    ["1 to 2", 2e6],
    ["2 to 8", 8e6],
    ["8 and more", Infinity],
  ];

  const escaped = (word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const pattern = (words) => new RegExp(`(?<![\\w-])(?:${words.map(escaped).join("|")})(?![\\w-])`);
  /** @type {[string, [string, RegExp][]][]} */
  const PATTERNS = Object.entries(SUBJECTS).map(([subject, kinds]) => [subject, Object.entries(kinds).map(([kind, words]) => [kind, pattern(words)])]);

  /** Rows of one section: name -> images, from a function that names the row of an image. */
  const tally = (names, images, rowOf) => {
    const rows = new Map(names.map((name) => [name, []]));
    for (const image of images) {
      const name = rowOf(image);
      if (name != null) rows.get(name)?.push(image) ?? rows.set(name, [image]);
    }
    return [...rows].filter(([, found]) => found.length);
  };

  /**
   * Report on images that are trained: `sections`, [title, remark, [[row, images], ...]], and `never`, what no caption says
   * of subjects that some captions mention.
   */
  const of = (images, separator) => {
    const trained = [...new Map(images.filter(({ role, size }) => role === "trained" && size).map((image) => [image.path, image])).values()];
    const total = trained.length;
    const sections = [];
    const folder = ({ path }) => path.split(/[/\\]/).slice(-2, -1)[0] ?? "";
    const seen = trained.reduce((sum, { repeats }) => sum + repeats, 0) || 1;
    const concepts = tally([], trained, folder).map(([name, found]) => {
      const share = (100 * found.reduce((sum, { repeats }) => sum + repeats, 0)) / seen;
      return [`${name}: ${share.toFixed(0)} % of an epoch`, found];
    });
    sections.push(["Folders", "", concepts]);
    sections.push(["Shape", "", tally(SHAPES.map(([name]) => name), trained, ({ size }) => SHAPES.find(([, fits]) => fits(size[0] / size[1]))[0])]);
    sections.push(["Size", "", tally(SIZES.map(([name]) => name), trained, ({ size }) => SIZES.find(([, below]) => size[0] * size[1] < below)[0])]);
    const captions = trained.map((image) => [image, image.caption.toLowerCase().replaceAll("_", " ")]);
    const never = [];
    for (const [subject, kinds] of PATTERNS) {
      const rows = kinds.map(([kind, words]) => [kind, captions.filter(([, text]) => words.test(text)).map(([image]) => image)]);
      const said = new Set(rows.flatMap(([, found]) => found));
      if (!said.size) continue;
      const silent = total - said.size;
      sections.push([subject, silent ? `${silent} of ${total} captions do not say` : "", rows.filter(([, found]) => found.length)]);
      const unsaid = rows.filter(([, found]) => !found.length).map(([kind]) => kind);
      if (unsaid.length) never.push(`${Language.text(subject).toLowerCase()}: ${unsaid.map(Language.text).join(", ")}`);
    }
    const tags = new Map();
    for (const image of trained) for (const tag of new Set(image.caption.split(separator || ",").map((each) => each.trim()).filter(Boolean))) tags.set(tag, (tags.get(tag) ?? []).concat(image));
    const common = [...tags].sort((one, other) => other[1].length - one[1].length);
    const once = common.filter(([, found]) => found.length === 1).length;
    const always = common.filter(([, found]) => found.length > 0.95 * total).length;
    if (common.length > 1 && once < common.length) {
      sections.push(["Tags", `${common.length} different ones, ${always} in nearly all captions, ${once} in a single one`, common.slice(0, TAGS).filter(([, found]) => found.length > 1)]);
    }
    return { total, sections, never };
  };

  const open = () => {
    const opened = Studio.dataset.opened();
    const { total, sections, never } = of(Studio.dataset.images(), opened?.caption_separator);
    const dialog = Studio.dialog({ class: "dataset-dialog report-dialog", "aria-label": "Balance" });
    const row = ([name, found]) => {
      const select = () => (dialog.close(), Studio.dataset.select(found.map(({ path }) => path)));
      const bar = el("i", {});
      bar.style.width = `${(100 * found.length) / total}%`;
      return el("li", {}, button(name, select, { class: "link", title: "Select these images" }), el("span", { class: "share", "aria-hidden": "true" }, bar), el("span", {}, String(found.length)));
    };
    const section = ([title, remark, rows]) => el("section", {}, el("h3", {}, title), remark ? el("p", { class: "quiet" }, remark) : "", el("ul", { translate: title === "Tags" ? "no" : null }, ...rows.map(row)));
    const missing = never.length ? `No caption mentions ${never.join("; ")}. A model learns least about what it never sees.` : "";
    dialog.append(
      Studio.closer(dialog),
      el("b", {}, `Balance of ${total === 1 ? "1 image" : `${total} images`}`),
      el("p", { class: "quiet" }, "Folder, shape and size are measured; all else is read from English captions. The images are not looked at."),
      missing ? el("p", { class: "never" }, missing) : "",
      el("div", { class: "balance" }, ...sections.map(section)),
    );
    Studio.show(dialog);
    dialog.addEventListener("close", () => dialog.remove());
  };

  return { open, of };
})();
