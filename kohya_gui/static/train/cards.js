// The cards of the Simple view: images, model, how. Each shows its part of a form's settings, and folds to a line when
// nothing is missing.
var TrainCards = (() => {
  const { el, button, select, send, url } = Studio;
  const { Field, Choices, nameOf, text } = TrainParts;
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
  const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  const counted = (number, word) => `${Number(number).toLocaleString("en")} ${word}${Number(number) === 1 ? "" : "s"}`;

  /** A card with a title, a line that stands for it once it is folded, and a sentence about the first thing that is missing. */
  class Card {
    constructor(name, number, title) {
      this.name = name;
      this.isDone = this.staysOpen = false;
      this.chosen = null; // whether a person folded or unfolded it
      this.line = el("span", { class: "train-line" });
      const toggle = () => {
        this.chosen = this.body.hidden; // what is seen: the press has already moved the focus into the card
        this.fold();
      };
      this.sign = el("i", { class: "train-sign", "aria-hidden": "true" });
      const attributes = { type: "button", class: "train-head", "aria-controls": `train-${name}`, onclick: toggle };
      this.head = el("button", attributes, this.sign, el("b", {}, title), this.line);
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
      this.head.tabIndex = (this.isDone && !this.staysOpen) || this.chosen !== null ? 0 : -1; // nothing to fold yet
      this.element.toggleAttribute("data-done", this.isDone);
      this.folded(!this.isOpen);
      Studio.write(this.sign, this.isDone ? "✓" : this.number);
    }

    update(state) {
      this.show(state);
      const problems = state.look?.problems[this.name] ?? [];
      const [first, ...others] = problems;
      const told = first && this.element.querySelector(`#train-${CSS.escape(first.name)}`)?.closest(".train-field")?.querySelector(".hint-bad");
      const more = others.length ? ` ${others.length} more to do.` : "";
      Studio.write(this.missing, first && !told ? `${this.asks(first, state) ?? first.text}${more}` : "");
      this.isDone = Boolean(state.look) && !problems.length;
      Studio.write(this.line, this.summary(state));
      this.fold();
    }

    /** The card is folded now, or unfolded. */
    folded(isFolded) {}

    /** Show the settings in the fields. */
    show(state) {}

    /** The line of a folded card. */
    summary(state) {
      return "";
    }

    /** A sentence that asks for an option which has no value yet; null: the server's. */
    asks(problem, state) {
      return null;
    }
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
      const name = TrainParts.resultOf(folder);
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

    folded(isFolded) {
      if (isFolded) this.head.after(this.strip);
      else this.ways.before(this.strip);
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
      if (this.drawn === key || !this.element.offsetParent) return;
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
        const images = first.map((image) => Studio.image(url(`dataset/thumbnail/${image.key}`), nameOf(image.path), { title: nameOf(image.path), translate: "no" }));
        const rest = data.images.length - images.length;
        this.strip.replaceChildren(...images, rest > 0 ? el("span", { class: "quiet" }, `+${rest}`) : "");
      } catch {
        this.strip.replaceChildren(); // the hint reports the problem of the folder
      }
    }
  }

  class ModelCard extends Card {
    constructor(train) {
      super("model", 2, "Model");
      this.train = train;
      this.family = new Choices("family", "Family", train.family);
      this.base = this.field("pretrained_model_name_or_path", "Base model", "a .safetensors file, a folder, or a Hugging Face id");
      this.ways = el("p", { class: "train-ways" }, button("Get models…", () => Models.visit(this.shown), { class: "link" }));
      this.parts = new Map(); // option -> its field
      this.others = el("div", { class: "train-parts" });
      this.body.append(this.family.element, this.base.element, this.others, this.ways);
    }

    field(name, words, placeholder = "") {
      return new Field(name, words, this.train.put, { browse: true, hint: true, placeholder });
    }

    show({ tab, family, value, look, families }) {
      this.shown = family;
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

    asks({ name, unset }, { look }) {
      if (!unset) return null;
      const part = look.files.find((file) => file.name === name);
      if (part) return `Choose the file of ${part.title}.`;
      return name === "pretrained_model_name_or_path" ? "Choose the file of the base model." : null;
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
      this.proposal = el("p", { class: "warn" });
      this.length = new Choices("length", "Length", (name) => train.put(this.lengths[name]));
      this.passes = el("p", { class: "quiet" });
      this.name = new Field("output_name", "Name of the result", train.put, { placeholder: "mycat" });
      this.folder = new Field("output_dir", "Saved in", train.put, { browse: true });
      this.prompts = new Field("prompts", "Preview: one prompt per line", (values) => train.put(this.sampled(values)), {
        lines: 2,
        placeholder: "a photo of ohwx cat on a beach",
      });
      this.file = el("p", { class: "quiet" });
      this.prompts.element.append(this.file);
      const fit = el("div", { class: "train-field" }, el("label", { for: "train-preset" }, "Fit"), this.preset, this.about, this.proposal);
      this.length.element.append(this.passes);
      this.body.append(
        this.method.element,
        el("div", { class: "train-pair" }, this.token.element, this.start.element),
        el("div", { class: "train-pair" }, fit, this.length.element),
        el("div", { class: "train-pair" }, this.name.element, this.folder.element),
        this.prompts.element,
      );
    }

    /** The settings of these prompts: without an interval they would not be sampled. */
    sampled({ prompts }) {
      const tab = this.train.tab();
      const every = ["sample_every_n_epochs", "sample_every_n_steps"].filter((name) => text(Drafts.value(tab, name)));
      const values = { prompts, typed_prompts: "" }; // a file that is opened then has its own
      if (prompts.trim() && !every.length) return { ...values, sample_every_n_epochs: "1" };
      return prompts.trim() ? values : { ...values, sample_every_n_epochs: "" };
    }

    show({ tab, draft, value, look, fit }) {
      this.staysOpen = !this.train.hasStarted();
      this.method.show(METHODS.filter(([name]) => look?.methods.includes(name) ?? name === tab), tab);
      this.token.element.parentElement.hidden = tab !== "textual_inversion";
      for (const field of [this.token, this.start, this.name, this.folder]) field.show(value(field.name));
      this.presets(look, fit);
      this.lengths = look?.lengths ?? {};
      const isNow = (name) => Object.entries(this.lengths[name] ?? {}).every(([option, each]) => text(value(option)) === each);
      const length = LENGTHS.map(([name]) => name).find((name) => this.lengths[name] && isNow(name));
      this.length.element.disabled = !look?.images;
      this.length.show(LENGTHS, length);
      Studio.write(this.passes, this.told(value, look));
      const file = text(value("sample_prompts"));
      this.prompts.input.disabled = Boolean(file);
      this.prompts.show(file ? "" : draft.typed_prompts?.trim() || draft.prompts);
      const every = [["epochs", "Sampled every epoch. "], ["steps", "Sampled every step. "]]
        .map(([plural, each]) => [text(value(`sample_every_n_${plural}`)), plural, each])
        .filter(([number]) => number)
        .map(([number, plural, each]) => {
          const count = `${number} ${plural}`;
          return number === "1" ? each : `Sampled every ${count}. `;
        });
      const from = file ? `The prompts are in ${nameOf(file)}, which All settings can edit.` : "";
      Studio.write(this.file, file || this.prompts.input.value ? `${every[0] ?? ""}${from}` : "");
    }

    /** Show the presets, those that fit the GPU marked, and propose the one to begin with if the chosen one does not. */
    presets(look, fit) {
      const presets = look?.presets ?? [];
      const needed = fit?.needed ?? {};
      const tooLarge = (name) => Boolean(fit?.bytes && needed[name] > fit.usable);
      const words = ({ name, title }) =>
        [title, needed[name] && gib(needed[name]), tooLarge(name) ? "too large here" : fit?.bytes && name === fit.recommended && "recommended"].filter(Boolean).join(" · ");
      const now = JSON.stringify([presets, fit]);
      if (this.sent !== now) {
        this.sent = now;
        this.preset.replaceChildren(...presets.map((preset) => el("option", { value: preset.name }, words(preset))));
      }
      this.preset.value = look?.preset ?? "";
      Studio.write(this.about, presets.find(({ name }) => name === look.preset)?.about ?? "");
      const better = tooLarge(look?.preset) && fit.recommended !== look.preset && presets.find(({ name }) => name === fit.recommended);
      const said = better ? `About ${gib(needed[look.preset])} is too much for this GPU with ${gib(fit.bytes)}. ` : "";
      if (this.proposal.sent === said) return;
      this.proposal.sent = said;
      this.proposal.replaceChildren(said, better ? button(`Use ${better.title}`, () => this.train.preset(better.name), { class: "link" }) : "");
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

  /** @returns {[ImagesCard, ModelCard, HowCard]} */
  const all = (train) => [new ImagesCard(train), new ModelCard(train), new HowCard(train)];
  return { all };
})();
