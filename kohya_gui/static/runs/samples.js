// Samples of a run: by step, newest first; as a matrix; and enlarged, with arrow keys for step and prompt.
var StudioSamples = (() => {
  const { el, button, write } = Studio;
  const FIRST = 3; // steps shown in the run view; the matrix has all

  return class StudioSamples {
    constructor() {
      this.samples = [];
      this.drawn = "";
      this.groups = el("div", { class: "sample-groups" });
      this.more = button("", () => this.openMatrix(), { class: "link" });
      this.element = el(
        "div",
        { class: "section samples", hidden: true },
        el("div", { class: "section-head" }, el("h3", {}, "Samples"), this.more),
        this.groups,
      );
      this.dialog = this.makeDialog();
      this.matrix = Studio.dialog({ class: "sample-matrix", "aria-label": "All samples" });
    }

    /** Show all samples, a row for each prompt and a column for each step. */
    openMatrix() {
      const matrix = StudioMatrix([{ name: "", samples: this.samples, open: (sample) => this.open(sample) }]);
      this.matrix.replaceChildren(Studio.closer(this.matrix), matrix);
      Studio.show(this.matrix);
      matrix.scrollLeft = matrix.scrollWidth; // the newest
    }

    /** Remove its dialogs. */
    destroy() {
      this.dialog.remove();
      this.matrix.remove();
    }

    makeDialog() {
      this.large = el("img", { alt: "", translate: "no" });
      this.words = el("p", { class: "sample-prompt" });
      this.place = el("span", { class: "quiet" });
      this.download = el("a", { class: "sample-download" }, "Download");
      const slide = () => this.open(this.series(this.shown)[Number(this.slider.value)]);
      this.slider = el("input", { type: "range", min: "0", "aria-label": "Training step", oninput: slide });
      const ownKeys = (event) => ["ArrowLeft", "ArrowRight"].includes(event.key) && event.stopPropagation();
      this.slider.addEventListener("keydown", ownKeys);
      const step = (by, sign, label) => button(sign, () => this.walk(by), { "aria-label": label });
      const before = step(-1, "←", "Earlier step");
      const after = step(1, "→", "Later step");
      const dialog = Studio.dialog({ class: "sample-large", "aria-label": "Sample" });
      dialog.append(
        Studio.closer(dialog),
        this.large,
        el(
          "div",
          { class: "sample-details" },
          el("div", { class: "sample-steps" }, before, this.slider, after),
          this.words,
          el("p", {}, this.place, " ", this.download),
        ),
      );
      Studio.onKeys(dialog, {
        ArrowLeft: () => this.walk(-1),
        ArrowRight: () => this.walk(1),
        ArrowUp: () => this.other(-1),
        ArrowDown: () => this.other(1),
      });
      return dialog;
    }

    /** Draw the samples; they are only ever added. */
    show(samples) {
      const key = samples.map((sample) => sample.url).join();
      if (key === this.drawn) return;
      this.samples = samples;
      this.drawn = key;
      this.draw();
      if (this.dialog.open && this.shown) this.details();
      if (this.matrix.open) this.openMatrix();
    }

    draw() {
      this.element.hidden = !this.samples.length;
      const steps = [...new Set(this.samples.map((sample) => sample.step))].sort((a, b) => b - a);
      const shown = steps.slice(0, FIRST);
      write(this.more, steps.length > shown.length ? `Show all ${steps.length} steps` : "Show as matrix");
      this.more.hidden = this.samples.length < 2;
      const old = new Map([...this.groups.children].map((group) => [group.dataset.key, group]));
      const group = (step) => {
        const samples = this.samples.filter((sample) => sample.step === step);
        const key = samples.map((sample) => sample.url).join();
        return old.get(key) ?? this.group(step, samples, key);
      };
      this.groups.replaceChildren(...shown.map(group));
    }

    group(step, samples, key) {
      const small = (sample) => StudioMatrix.small(sample, sample.prompt || "", () => this.open(sample));
      return el(
        "div",
        { class: "sample-group", "data-key": key, "data-step": step },
        el("h5", {}, StudioMatrix.heading(step)),
        el("div", { class: "sample-row" }, ...samples.map(small)),
      );
    }

    /** The samples of the same prompt over the training. */
    series(sample) {
      return this.samples.filter((other) => other.number === sample.number).sort((a, b) => a.step - b.step);
    }

    open(sample) {
      if (!sample) return;
      this.shown = sample;
      const clip = Studio.isClip(sample.ending);
      this.large = Studio.turn(this.large, Studio.url(sample.url), sample.prompt || "", { clip, controls: true, translate: "no" });
      this.details();
      Studio.show(this.dialog);
    }

    details() {
      const sample = this.shown;
      const series = this.series(sample);
      const at = series.findIndex((other) => other.url === sample.url);
      this.slider.max = series.length - 1;
      this.slider.value = at;
      this.slider.parentElement.hidden = series.length < 2;
      write(this.words, sample.prompt || "");
      const prompts = this.samples.filter((other) => other.step === sample.step);
      const which = prompts.length > 1 ? `, prompt ${prompts.indexOf(sample) + 1} of ${prompts.length}` : "";
      const facts = [
        `Step ${sample.step}`,
        sample.seed != null ? `seed ${sample.seed}` : "",
        sample.width && sample.height ? `${sample.width} × ${sample.height}` : "",
        sample.media === "clip" ? Studio.lengthOf(sample) : "",
        `sample ${at + 1} of ${series.length}${which}`,
      ];
      write(this.place, facts.filter(Boolean).join(" · "));
      this.download.href = Studio.url(sample.url);
      this.download.download = `step${sample.step}-prompt${(sample.number ?? 0) + 1}${sample.ending}`;
    }

    /** Show the sample at this distance from the current one among these. */
    move(samples, by) {
      this.open(samples[samples.findIndex((other) => other.url === this.shown.url) + by]);
    }

    walk(by) {
      this.move(this.series(this.shown), by);
    }

    other(by) {
      this.move(this.samples.filter((sample) => sample.step === this.shown.step), by);
    }
  };
})();
