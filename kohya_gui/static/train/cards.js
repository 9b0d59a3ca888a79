// The cards of the Simple view: images, model, how. Each shows what a form's settings say about it, and folds to a line
// when nothing is missing.
var TrainCards = (() => {
  const { el, button, select, send, url } = Studio;
  const { Field, Choices, text } = TrainParts;
  const LENGTHS = [
    ["quick", "Quick", "A first look: about 500 images, repeats included"],
    ["normal", "Normal", "About 1,500 images, repeats included: usual for a LoRA"],
    ["long", "Long", "About 3,000 images, repeats included"],
  ];
  const METHODS = [
    ["lora", "LoRA", "A small file that is loaded on top of the base model"],
    ["finetune", "Whole model", "All weights of the model: much memory, and a file as large as the base model's"],
    ["dreambooth", "DreamBooth folders", "All weights of the model, on a few concepts with a folder each"],
    ["textual_inversion", "Embedding", "A new word for the model: a file of a few kilobytes"],
  ];
  const STRIP = 12; // thumbnails in the first card
  const LONGEST = 310_000; // ms, a little more than the server gives itself
  const nameOf = (path) => text(path).split(/[\\/]/).filter(Boolean).pop() ?? "";
  const counted = (number, word) => `${Number(number).toLocaleString("en")} ${word}${Number(number) === 1 ? "" : "s"}`;

  /** A card with a title, a line that stands for it once it is folded, and what is missing in one sentence. */
  class Card {
    constructor(name, number, title) {
      this.name = name;
      this.chosen = null; // whether a person folded or unfolded it
      this.title = title;
      this.line = el("span", { class: "train-line" });
      const toggle = () => {
        this.chosen = !this.isOpen;
        this.fold();
      };
      this.head = button("", toggle, { class: "train-head", "aria-controls": `train-${name}` });
      this.head.append(el("i", { class: "train-sign", "aria-hidden": "true" }, String(number)), el("b", {}, title), this.line);
      this.missing = el("p", { class: "train-missing", role: "status" });
      this.body = el("div", { class: "train-body", id: `train-${name}` });
      this.element = el("section", { class: "train-card", "aria-label": title }, this.head, this.body, this.missing);
      this.number = number;
    }

    get isOpen() {
      if (this.chosen !== null) return this.chosen;
      return !this.isDone || this.staysOpen || this.element.contains(document.activeElement);
    }

    fold() {
      this.body.hidden = !this.isOpen;
      this.line.hidden = this.isOpen;
      this.head.setAttribute("aria-expanded", String(this.isOpen));
      this.head.tabIndex = this.isDone || this.chosen !== null ? 0 : -1; // nothing to fold yet
      this.element.toggleAttribute("data-done", this.isDone);
      Studio.write(this.head.firstChild, this.isDone ? "✓" : this.number);
    }

    update(state) {
      this.show(state);
      const problems = state.look?.problems[this.name] ?? [];
      const [first, ...others] = problems;
      const told = first && this.element.querySelector(`#train-${CSS.escape(first.name)}`)?.closest(".train-field")?.querySelector(".hint-bad");
      const more = others.length ? ` And ${counted(others.length, "more problem")}.` : "";
      Studio.write(this.missing, first && !told ? `${this.asks(first, state) ?? first.text}${more}` : "");
      this.isDone = Boolean(state.look) && !problems.length;
      Studio.write(this.line, this.summary(state));
      this.fold();
    }

    /** A sentence that asks for an option that has no value yet. */
    asks() {}
  }

  class ImagesCard extends Card {
    constructor(train) {
      super("images", 1, "Images");
      this.train = train;
      const browse = { browse: true, hint: true };
      this.folder = new Field("train_data_dir", "Folder with your images", (values) => train.put({ ...values, ...this.named(values) }), {
        ...browse,
        placeholder: "~/photos/cat",
      });
      this.controls = new Field("control_directory", "Folder with the control images", train.put, { browse: true });
      this.word = new Field("caption_prefix", "Word for your subject", train.put, { placeholder: "ohwx cat" });
      this.strip = el("div", { class: "train-strip" });
      this.see = button("See and edit them", () => Studio.dataset.visit(this.folder.input.value, train.tab()), { class: "link" });
      this.write = button("Write captions…", () => Studio.caption(this.folder.input.value), { class: "link" });
      this.ways = el("p", { class: "train-ways" }, this.see, this.write);
      this.body.append(this.folder.element, this.strip, this.ways, this.controls.element, this.word.element);
    }

    /** The name of the result, after the folder, if it has none yet. */
    named({ train_data_dir: folder }) {
      if (text(Drafts.value(this.train.tab(), "output_name"))) return {};
      const name = nameOf(folder).replace(/^\d+_/, "").trim().replace(/[^\p{L}\p{N}.-]+/gu, "_");
      return name ? { output_name: name } : {};
    }

    show({ tab, value, look }) {
      const from = ["dataset_config", "in_json"].find((name) => text(value(name)));
      this.folder.show(value("train_data_dir"));
      this.folder.showHint(tab);
      this.controls.element.hidden = !look?.controls;
      this.controls.show(value("control_directory"));
      this.word.element.hidden = tab === "textual_inversion";
      this.word.show(value("caption_prefix"));
      const count = look?.images?.count ?? 0;
      this.ways.hidden = !count;
      this.from = from && `Images from ${nameOf(value(from))}`;
      if (count) this.draw(tab, `${tab} ${value("train_data_dir")} ${count}`);
      else this.strip.replaceChildren((this.drawn = "") || "");
    }

    summary({ look, value }) {
      const images = look?.images;
      if (!images) return this.from ?? "";
      return `${counted(images.count, "image")} in ${nameOf(value("train_data_dir"))}`;
    }

    asks({ name }) {
      return name === "train_data_dir" && !this.folder.input.value ? "Choose the folder with your images." : null;
    }

    /** Show the first images, which the tab Dataset knows as well. */
    async draw(tab, key) {
      if (this.drawn === key || !this.strip.offsetParent) return;
      this.drawn = key;
      try {
        const form = { ...Plans.form(tab), folder: this.folder.input.value };
        const data = await send("dataset/open", form, { signal: AbortSignal.timeout(LONGEST) });
        const first = data.images.filter(({ size }) => size).slice(0, STRIP);
        const seen = new Set(Object.keys(data.measures));
        for (let tries = 0; tries < STRIP && first.some((image) => !seen.has(image.key)) && this.drawn === key; tries++) {
          const answer = await send("dataset/look", { view: data.view, first: first.map((image) => image.key) }, { signal: AbortSignal.timeout(LONGEST) });
          for (const each of [...Object.keys(answer.measures), ...Object.keys(answer.problems)]) seen.add(each);
        }
        if (this.drawn !== key) return; // another folder, in the meantime
        const images = first.map((image) => Studio.image(url(`dataset/thumbnail/${image.key}`), nameOf(image.path), { title: nameOf(image.path) }));
        const rest = data.images.length - images.length;
        this.strip.replaceChildren(...images, rest > 0 ? el("span", { class: "quiet" }, `+${rest}`) : "");
      } catch {
        this.strip.replaceChildren(); // the hint tells what is wrong with the folder
      }
    }
  }

  class ModelCard extends Card {
    constructor(train) {
      super("model", 2, "Model");
      this.train = train;
      this.family = new Choices("family", "Family", train.family);
      this.base = this.field("pretrained_model_name_or_path", "Base model", "a .safetensors file, a folder, or a Hugging Face id");
      this.parts = new Map(); // option -> its field
      this.others = el("div", { class: "train-parts" });
      this.body.append(this.family.element, this.base.element, this.others);
    }

    field(name, words, placeholder = "") {
      return new Field(name, words, this.train.put, { browse: true, hint: true, placeholder });
    }

    show({ tab, family, value, look, families }) {
      this.family.show(families, family);
      this.base.show(value("pretrained_model_name_or_path"));
      this.base.showHint(tab);
      for (const { name, title } of look?.files ?? []) {
        if (this.parts.has(name)) continue;
        const words = title.replace(/^the /, "");
        this.parts.set(name, this.field(name, words[0].toUpperCase() + words.slice(1)));
      }
      const shown = (look?.files ?? []).map(({ name }) => this.parts.get(name));
      const now = shown.map((field) => field.name).join(" ");
      if (this.sent !== now) this.others.replaceChildren(...shown.map((field) => field.element));
      this.sent = now;
      for (const field of shown) {
        field.show(value(field.name));
        field.showHint(tab);
      }
    }

    summary({ family, families, value }) {
      const title = families.find(([name]) => name === family)?.[1] ?? family;
      return `${title} · ${nameOf(value("pretrained_model_name_or_path"))}`;
    }

    asks({ name, unset }) {
      return name === "pretrained_model_name_or_path" && unset ? "Choose the file of the base model." : null;
    }
  }

  class HowCard extends Card {
    constructor(train) {
      super("how", 3, "How");
      this.train = train;
      this.method = new Choices("method", "What is trained", train.method);
      this.token = new Field("token_string", "New word", train.put, { placeholder: "<ohwx>" });
      this.start = new Field("init_word", "Begins as", train.put, { placeholder: "cat" });
      this.preset = select({ id: "train-preset", onchange: () => train.preset(this.preset.value) }, []);
      this.about = el("p", { class: "quiet" });
      this.length = new Choices("length", "Length", (name) => train.put(this.lengths[name]));
      this.passes = el("p", { class: "quiet" });
      this.name = new Field("output_name", "Name of the result", train.put, { placeholder: "mycat" });
      this.folder = new Field("output_dir", "Saved in", train.put, { browse: true });
      this.prompts = new Field("prompts", "Preview: a prompt per line, sampled after every epoch", (values) => train.put(this.sampled(values)), {
        lines: 2,
        placeholder: "a photo of ohwx cat on a beach",
      });
      this.file = el("p", { class: "quiet" });
      this.prompts.element.append(this.file);
      const fit = el("div", { class: "train-field" }, el("label", { for: "train-preset" }, "Fit"), this.preset, this.about);
      this.length.element.append(this.passes);
      this.body.append(
        this.method.element,
        el("div", { class: "train-pair" }, this.token.element, this.start.element),
        el("div", { class: "train-pair" }, fit, this.length.element),
        el("div", { class: "train-pair" }, this.name.element, this.folder.element),
        this.prompts.element,
      );
    }

    get staysOpen() {
      return !this.train.hasStarted();
    }

    /** The settings of these prompts: without an interval they would not be sampled. */
    sampled({ prompts }) {
      const tab = this.train.tab();
      const every = ["sample_every_n_epochs", "sample_every_n_steps"].filter((name) => text(Drafts.value(tab, name)));
      const values = { prompts, typed_prompts: prompts };
      if (prompts.trim() && !every.length) return { ...values, sample_every_n_epochs: "1" };
      return prompts.trim() ? values : { ...values, sample_every_n_epochs: "" };
    }

    show({ tab, draft, value, look }) {
      this.method.show(METHODS.filter(([name]) => look?.methods.includes(name) ?? name === tab), tab);
      this.token.element.parentElement.hidden = tab !== "textual_inversion";
      for (const field of [this.token, this.start, this.name, this.folder]) field.show(value(field.name));
      this.presets(look);
      this.lengths = look?.lengths ?? {};
      const isNow = (name) => Object.entries(this.lengths[name] ?? {}).every(([option, each]) => text(value(option)) === each);
      const length = LENGTHS.map(([name]) => name).find((name) => this.lengths[name] && isNow(name));
      this.length.element.disabled = !look?.images;
      this.length.show(LENGTHS, length);
      Studio.write(this.passes, this.told(value, look));
      const file = text(value("sample_prompts"));
      this.prompts.input.disabled = Boolean(file);
      this.prompts.show(file ? "" : draft.typed_prompts?.trim() || draft.prompts);
      Studio.write(this.file, file ? `The prompts are in ${nameOf(file)}, which All settings can edit.` : "");
    }

    presets(look) {
      const now = JSON.stringify(look?.presets ?? []);
      if (this.sent !== now) {
        this.sent = now;
        this.preset.replaceChildren(...(look?.presets ?? []).map(({ name, title }) => el("option", { value: name }, title)));
      }
      this.preset.value = look?.preset ?? "";
      Studio.write(this.about, look?.presets.find(({ name }) => name === look.preset)?.about ?? "");
    }

    told(value, look) {
      const images = look?.images;
      if (!images) return look && this.train.tab() ? "For the number of images, which are not chosen yet" : "";
      const [repeats, epochs, steps] = ["num_repeats", "max_train_epochs", "max_train_steps"].map((name) => text(value(name)));
      const passes = images.flat && Number(repeats) > 1 ? `, each ${repeats} times an epoch` : "";
      return epochs ? `${counted(epochs, "epoch")} of ${counted(images.count, "image")}${passes}` : `${counted(steps, "step")}${passes}`;
    }

    summary({ tab, value, look }) {
      const method = METHODS.find(([name]) => name === tab)?.[1];
      const preset = look?.presets.find(({ name }) => name === look.preset)?.title;
      return [method, preset, text(value("output_name"))].filter(Boolean).join(" · ");
    }
  }

  return { all: (train) => [new ImagesCard(train), new ModelCard(train), new HowCard(train)] };
})();
