// Comparison of several runs: curves, settings that differ, and samples.
var StudioComparison = class {
  constructor(answer, onClose) {
    const { el, button } = Studio;
    this.runs = answer.runs;
    const labels = this.name(answer);
    for (const run of this.runs) run.label = labels.get(run.id);
    this.chart = el("div", { class: "curves" });
    this.curves = new StudioCurves(this.chart, "Loss of each run");
    this.close = button("Close", onClose, { class: "small" });
    this.galleries = this.runs.map((run) => this.gallery(run));
    this.samples = el("div");
    this.element = el(
      "section",
      { class: "comparison", "aria-label": "Comparison" },
      el("div", { class: "section-head" }, el("h2", {}, `Comparing ${this.runs.length} runs`), this.close),
      this.chart,
      el("h3", {}, "Different settings"),
      this.differences(answer.settings),
      this.samplesSection(),
    );
  }

  /** Run -> its label: runs that share a name get the setting that distinguishes them, else their start time. */
  name(answer) {
    const named = Studio.labels(answer.runs);
    const names = answer.runs.map((run) => run.name);
    if (new Set(names).size === names.length) return named;
    const telling = answer.settings.find(
      ({ values }) => new Set(values).size === values.length && values.every((value) => value.length <= 12),
    );
    if (!telling) return named;
    return new Map(answer.runs.map((run, i) => [run.id, `${run.name} (${telling.label}: ${telling.values[i]})`]));
  }

  differences(settings) {
    const { el, table } = Studio;
    if (!settings.length) return el("p", { class: "quiet" }, "All settings are the same");
    const row = ({ option, label, values }) =>
      el("tr", {}, el("th", { scope: "row", title: option }, label), ...values.map((value) => el("td", { translate: "no" }, value)));
    const heads = ["Setting", ...this.runs.map((run) => el("span", { translate: "no" }, run.label))];
    return el("div", { class: "scroll" }, table({ class: "differences" }, heads, settings.map(row)));
  }

  gallery(run) {
    const gallery = new StudioSamples();
    gallery.show(run.samples);
    run.open = (sample) => gallery.open(sample);
    return gallery;
  }

  samplesSection() {
    const { el, checkbox } = Studio;
    if (!this.runs.some((run) => run.samples.length)) return el("p", { class: "quiet" }, "These runs have no samples");
    const every = checkbox(false, () => this.drawSamples(!every.checked));
    this.drawSamples(true);
    const head = el("div", { class: "section-head" }, el("h3", {}, "Samples"), el("label", {}, every, "All steps"));
    return el("div", { class: "comparison-samples" }, head, this.samples);
  }

  drawSamples(newest) {
    this.samples.replaceChildren(StudioMatrix(this.runs, { newest }));
  }

  /** Update the curves; `steps`: run -> its current step. */
  async draw(steps) {
    await this.curves.show(
      this.runs.map((run) => ({ id: run.id, name: run.label, curves: steps(run), joined: run.before > 0 })),
    );
  }

  remove() {
    this.curves.forget();
    for (const gallery of this.galleries) gallery.destroy();
    this.element.remove();
  }
};
