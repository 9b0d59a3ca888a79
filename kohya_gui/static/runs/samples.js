// Samples of a run: by step, newest first; as a matrix; and enlarged, with arrow keys for step and prompt.
window.StudioSamples = class {
  static FIRST = 3; // steps shown in the run view; the matrix has all

  constructor() {
    const { el } = Studio;
    [this.samples, this.drawn] = [[], ""];
    this.groups = el("div", { class: "sample-groups" });
    this.more = el("button", { type: "button", class: "link", onclick: () => this.openMatrix() });
    this.head = el("h4", {}, "Samples");
    this.element = el(
      "div",
      { class: "section samples", hidden: true },
      el("div", { class: "section-head" }, this.head, this.more),
      this.groups,
    );
    this.dialog = this.makeDialog();
    this.matrix = el("dialog", { class: "sample-matrix", "aria-label": "All samples" });
    this.matrix.addEventListener("click", (event) => event.target === this.matrix && this.matrix.close());
    document.body.append(this.matrix, this.dialog);
  }

  /** Show all samples, a row for each prompt and a column for each step. */
  openMatrix() {
    const { el } = Studio;
    const close = el(
      "button",
      { type: "button", class: "close", "aria-label": "Close", onclick: () => this.matrix.close() },
      "✕",
    );
    const shown = StudioMatrix([{ name: "", samples: this.samples, open: (sample) => this.open(sample) }]);
    this.matrix.replaceChildren(close, shown);
    if (!this.matrix.open) this.matrix.showModal();
    shown.scrollLeft = shown.scrollWidth; // the newest
  }

  /** Remove its dialogs. */
  destroy() {
    this.dialog.remove();
    this.matrix.remove();
  }

  makeDialog() {
    const { el } = Studio;
    this.large = el("img", { alt: "" });
    this.words = el("p", { class: "sample-prompt" });
    this.place = el("span", { class: "quiet" });
    this.download = el("a", { class: "sample-download" }, "Download");
    this.slider = el("input", { type: "range", min: "0", "aria-label": "Training step" });
    this.slider.addEventListener("input", () => this.open(this.series(this.shown)[Number(this.slider.value)]));
    const close = el(
      "button",
      { type: "button", class: "close", "aria-label": "Close", onclick: () => this.dialog.close() },
      "✕",
    );
    const step = (by, sign, label) =>
      el("button", { type: "button", "aria-label": label, onclick: () => this.walk(by) }, sign);
    const dialog = el(
      "dialog",
      { class: "sample-large", "aria-label": "Sample" },
      close,
      this.large,
      el(
        "div",
        { class: "sample-details" },
        el("div", { class: "sample-steps" }, step(-1, "←", "Earlier step"), this.slider, step(1, "→", "Later step")),
        this.words,
        el("p", {}, this.place, " ", this.download),
      ),
    );
    dialog.addEventListener("keydown", (event) => {
      if (
        event.target === this.slider &&
        event.key.startsWith("Arrow") &&
        ["ArrowLeft", "ArrowRight"].includes(event.key)
      )
        return;
      const act = {
        ArrowLeft: () => this.walk(-1),
        ArrowRight: () => this.walk(1),
        ArrowUp: () => this.other(-1),
        ArrowDown: () => this.other(1),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    return dialog;
  }

  /** Draw the samples; they are only ever added. */
  show(samples) {
    const key = samples.map((sample) => sample.url).join();
    if (key === this.drawn) return;
    [this.samples, this.drawn] = [samples, key];
    this.draw();
    if (this.dialog.open && this.shown) this.details();
    if (this.matrix.open) this.openMatrix();
  }

  draw() {
    const { el, write } = Studio;
    this.element.hidden = !this.samples.length;
    const steps = [...new Set(this.samples.map((sample) => sample.step))].sort((a, b) => b - a);
    const shown = steps.slice(0, this.constructor.FIRST);
    write(this.more, steps.length > shown.length ? `Show all ${steps.length} steps` : "Show as matrix");
    this.more.hidden = this.samples.length < 2;
    const old = new Map([...this.groups.children].map((group) => [group.dataset.key, group]));
    this.groups.replaceChildren(
      ...shown.map((step) => {
        const samples = this.samples.filter((sample) => sample.step === step);
        const key = samples.map((sample) => sample.url).join();
        return (
          old.get(key) ??
          el(
            "div",
            { class: "sample-group", "data-key": key, "data-step": step },
            el("h5", {}, step ? `Step ${step}` : "Before training"),
            el("div", { class: "sample-row" }, ...samples.map((sample) => this.small(sample))),
          )
        );
      }),
    );
  }

  small(sample) {
    const { el } = Studio;
    const size = sample.width && sample.height ? { width: sample.width, height: sample.height } : {};
    const image = el("img", {
      src: Studio.url(sample.url),
      alt: sample.prompt || "",
      loading: "lazy",
      decoding: "async",
      ...size,
    });
    image.addEventListener("error", () =>
      image.replaceWith(el("span", { class: "quiet" }, "Image not found")),
    );
    return el(
      "button",
      { type: "button", class: "sample", title: sample.prompt || "", onclick: () => this.open(sample) },
      image,
    );
  }

  /** The samples of the same prompt over the training. */
  series(sample) {
    return this.samples.filter((other) => other.number === sample.number).sort((a, b) => a.step - b.step);
  }

  open(sample) {
    if (!sample) return;
    this.shown = sample;
    this.large.src = Studio.url(sample.url);
    this.details();
    if (!this.dialog.open) this.dialog.showModal();
  }

  details() {
    const { write } = Studio;
    const sample = this.shown;
    const series = this.series(sample);
    const at = series.findIndex((other) => other.url === sample.url);
    this.slider.max = series.length - 1;
    this.slider.value = at;
    this.slider.parentElement.hidden = series.length < 2;
    this.large.alt = sample.prompt || "";
    write(this.words, sample.prompt || "");
    const seed = sample.seed != null ? ` · seed ${sample.seed}` : "";
    const size = sample.width && sample.height ? ` · ${sample.width} × ${sample.height}` : "";
    const prompts = this.samples.filter((other) => other.step === sample.step);
    const clip = sample.media === "clip" ? " · clip" : "";
    const which = prompts.length > 1 ? `, prompt ${prompts.indexOf(sample) + 1} of ${prompts.length}` : "";
    const steps = `sample ${at + 1} of ${series.length}`;
    write(this.place, `Step ${sample.step}${seed}${size}${clip} · ${steps}${which}`);
    this.download.href = Studio.url(sample.url);
    this.download.download = `step${sample.step}-prompt${(sample.number ?? 0) + 1}${sample.ending}`;
  }

  walk(by) {
    const series = this.series(this.shown);
    this.open(series[series.findIndex((other) => other.url === this.shown.url) + by]);
  }

  other(by) {
    const here = this.samples.filter((sample) => sample.step === this.shown.step);
    this.open(here[here.findIndex((other) => other.url === this.shown.url) + by]);
  }
};
