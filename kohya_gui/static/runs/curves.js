// Loss curves of one or several runs: fetched once, then extended, and refetched finer when zoomed in.
var StudioCurves = (() => {
  const MOST_BINS = 1400; // of one curve, before coarser ones are fetched
  const { ask } = Studio;

  class Curve {
    constructor({ id, name, joined }) {
      this.id = id;
      this.name = name;
      this.joined = joined;
      this.level = 0;
      this.start = 0;
      this.count = -1;
      this.range = "";
      this.bins = [];
      this.validation = [];
      this.rates = {};
      this.seconds = [];
      this.gpu = {};
      this.marks = [];
    }

    /** Fetch new points; `count` is how many the server has. Returns whether any came. */
    async ask(count, zoom = null) {
      // include what smoothing looks back on, so that a zoomed curve starts as the whole one passes there
      const range = zoom ? `first=${Math.max(0, 2 * zoom[0] - zoom[1])}&last=${zoom[1]}` : "";
      if (count === this.count && range === this.range) return false;
      const onward = !zoom && range === this.range && this.bins.length > 0 && this.bins.length < MOST_BINS;
      const wanted = onward ? `level=${this.level}&after=${this.start + this.bins.length - 1}` : range;
      const mine = (this.asked = {});
      const known = `&marks=${this.marks.length}${this.joined ? "&joined=1" : ""}`;
      const sent = await ask(`run/${this.id}/curves?${wanted}${known}`);
      if (mine !== this.asked) return false; // a newer request was sent in the meantime
      const from = sent.start - this.start;
      const fits = onward && sent.level === this.level && from >= 0 && from <= this.bins.length;
      this.bins = fits ? [...this.bins.slice(0, from), ...sent.bins] : sent.bins;
      if (!fits) {
        this.level = sent.level;
        this.start = sent.start;
      }
      this.validation = sent.validation;
      this.rates = sent.rates;
      this.seconds = sent.seconds;
      this.gpu = sent.gpu;
      this.marks = sent.marks ?? this.marks;
      this.maxSteps = sent.max_steps;
      this.count = count;
      this.range = range;
      return true;
    }
  }

  /** Curves of one or several runs in one chart; zooming fetches them finer. */
  class Curves {
    constructor(element, title) {
      this.element = element;
      this.title = title;
      this.curves = [];
      this.zoom = null;
    }

    /** Draw these runs, {id, name, curves, joined}; `joined` includes the runs that they continue. */
    async show(runs) {
      const key = (each) => each.map(({ id, joined }) => `${id}${joined ? "+" : ""}`).join();
      if (key(runs) !== key(this.curves)) {
        this.forget();
        this.curves = runs.map((run) => new Curve(run));
      }
      const shown = this.curves;
      const came = await Promise.all(shown.map((curve, i) => curve.ask(runs[i].curves, this.zoom)));
      if (came.some(Boolean) && shown === this.curves) this.draw();
    }

    draw() {
      const points = Math.max(0, ...this.curves.map((curve) => curve.bins.length));
      this.element.hidden = points === 0;
      if (!points) return;
      this.chart ??= new StudioChart(this.element, { title: this.title, onZoom: (a, b) => this.zoomed(a, b) });
      const maxSteps = Math.max(1, ...this.curves.map((curve) => curve.maxSteps || 0));
      this.chart.set(this.curves, { maxSteps });
    }

    zoomed(first, last) {
      this.zoom = first == null || last == null ? null : [first, last];
      this.show(this.curves.map(({ id, name, count, joined }) => ({ id, name, curves: count, joined }))).catch(() => {});
    }

    forget() {
      this.chart?.destroy();
      this.chart = null;
      this.curves = [];
      this.zoom = null;
      this.element.hidden = true;
    }
  }

  return Curves;
})();
