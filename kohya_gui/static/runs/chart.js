// Loss curves of one or several runs: raw faint, smoothed strong, with zoom, log scale and a cursor that shows the
// values. uPlot draws lines, spreads and axes. `const chart = new StudioChart(element, {title, onZoom(first, last)})`,
// then chart.set(runs).
var StudioChart = (() => {
  const { el, button } = Studio;
  const KINDS = {
    raw: "raw",
    mean: "smoothed",
    validation: "validation",
    rate: "learning rate",
    seconds: "step time",
    gpu: "GPU",
    marks: "compiler",
  };
  const LAYERS = ["raw", "gpu", "rate", "seconds", "validation", "mean"]; // the last is drawn on top
  const RIGHT = ["rate", "seconds", "gpu"]; // kinds on the right axis, at most one of which is shown
  const GROUPED = { rate: "rates", gpu: "gpu" }; // kinds with several lines of a run, by name
  const GPU = { use: ["GPU use", "%"], memory: ["GPU memory", "%"], power: ["power", "%"], temperature: ["temperature", "°C"], spilled: ["in RAM", "%"] };
  const MARKS = { compiled: "mark", recompiled: "recompile", "graph break": "break", differs: "break" }; // colours
  const NEAR = 6; // pixels from a mark within which the cursor snaps to it
  const COLOURS = 6; // --chart-1 to --chart-6 of chart.css
  const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]]; // distinguish the learning rate groups
  const WIDEST = 0.2; // the slider's end: smoothing over a fifth of the steps shown
  const SETTLED = 150; // milliseconds of quiet after which a zoom by wheel or key is reported
  const DRAG = 5; // pixels after which a click is a drag
  const POWERS = Array.from({ length: 22 }, (_, i) => i - 12);
  const BETWEEN = POWERS.flatMap((n) => [1, 2, 5].map((digit) => Number(`${digit}e${n}`))); // two ticks
  const SPACE = 38; // pixels between ticks of the loss
  const WIDE_GAPS = 2; // of uPlot.join: a gap reaches to the next points of its own line
  const TINY = 1e-300; // lower edge of a spread that reaches below zero on a log scale
  const finite = Number.isFinite;

  // Debiased moving mean of bins; `reach` in steps, so that a curve looks as smooth at every level of bins.
  function smooth(bins, reach) {
    let total = 0;
    let weight = 0;
    let before = -Infinity;
    return bins.map(([step, , , mean]) => {
      if (!finite(mean)) return [step, NaN];
      const kept = reach > 0 ? Math.exp((before - step) / reach) : 0;
      total = total * kept + mean;
      weight = weight * kept + 1;
      before = step;
      return [step, total / weight];
    });
  }

  // Index of the point nearest to `step`; points are in the order of their steps.
  function nearest(points, step) {
    let low = 0;
    let high = points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < step) low = middle + 1;
      else high = middle;
    }
    return low > 0 && step - points[low - 1][0] <= points[low][0] - step ? low - 1 : low;
  }

  // Ticks of uPlot's log axis, whose own begin at the lowest value: 1, 2 and 5 of every power of ten, or fewer of them
  // where those are many; within a narrow range evenly spaced.
  function logTicks(chart, axis, low, high, increment) {
    const most = chart.height / SPACE - 1;
    const powers = [];
    for (let n = Math.floor(Math.log10(low)); 10 ** n <= high; n++) powers.push(n);
    const ticks = (digits) => powers.flatMap((n) => digits.map((digit) => Number(`${digit}e${n}`)));
    const some = [[1, 2, 5], [1, 3], [1]].map((digits) => ticks(digits).filter((tick) => tick >= low && tick <= high));
    const every = Math.ceil(powers.length / most);
    const shown = some.find(({ length }) => length <= most + 1) ?? some[2].filter((_, i) => i % every === 0);
    if (shown.length > 2) return shown;
    const first = Math.ceil(low / increment);
    const count = Math.floor(high / increment) - first + 1;
    return Array.from({ length: count }, (_, i) => Number(((first + i) * increment).toPrecision(12)));
  }

  const whole = (step) => Math.round(step).toLocaleString("en");
  const short = (value) => (value && Math.abs(value) < 1e-3 ? value.toExponential() : `${value}`);
  const exact = (value) => (finite(value) ? short(Number(value.toPrecision(4))) : "–");

  const usable = (values, log) => values.filter((value) => finite(value) && (!log || value > 0));

  // Low and high with a margin; null if there is nothing to show.
  function spread(values, log) {
    const shown = usable(values, log);
    if (!shown.length) return null;
    const low = shown.reduce((a, b) => Math.min(a, b));
    const high = shown.reduce((a, b) => Math.max(a, b));
    if (log) return high > low ? [low * (low / high) ** 0.06, high * (high / low) ** 0.06] : [low / 1.5, high * 1.5];
    const air = high > low ? 0.06 * (high - low) : 0.1 * Math.abs(high) || 1;
    return [low - air, high + air];
  }

  // All but the lowest and the highest hundredth, so that one spike does not flatten the rest.
  function common(values, log) {
    const ranked = usable(values, log).sort((a, b) => a - b);
    const cut = Math.floor(ranked.length / 100);
    return ranked.length ? [ranked[cut], ranked[ranked.length - 1 - cut]] : [];
  }

  // The largest step time to show: steps that compile go beyond the top, so that they do not flatten the others.
  function usual(seconds) {
    const ranked = [...seconds].sort((a, b) => a - b);
    return Math.min(ranked.at(-1), 3 * ranked[ranked.length >> 1]);
  }

  const colourOfMark = (kind) => `var(--chart-${MARKS[kind] ?? "mark"})`;

  // The coloured dash before a row of the readout.
  function key(colour) {
    const dash = el("i");
    dash.style.background = colour;
    return dash;
  }

  // Points between two gaps, which uPlot's lines leave out; undefined is a step of a different line.
  function isolated(chart, line) {
    const places = [...chart.data[line].keys()].filter((place) => chart.data[line][place] !== undefined);
    const value = (i) => chart.data[line][places[i]] ?? null;
    return places.filter((_, i) => value(i) !== null && value(i - 1) === null && value(i + 1) === null);
  }

  return class StudioChart {
    constructor(element, { title = "Loss", onZoom = () => {} } = {}) {
      this.title = title;
      /** @type {(...range: (number | null)[]) => void} */
      this.onZoom = onZoom;
      this.runs = [];
      this.maxSteps = 0;
      this.zoom = null;
      this.cursor = null;
      this.frame = 0;
      this.extent = [0, 1]; // first and last step of the whole run, in view or not
      this.hidden = new Set(RIGHT);
      this.smoothing = Number(localStorage.getItem("chart-smoothing") ?? 35);
      this.log = localStorage.getItem("chart-log") === "true";
      this.build(element);
      this.listen();
      this.set([]);
    }

    // Replace the data; zoom, cursor and choices stay.
    set(runs, { maxSteps = 0 } = {}) {
      const nothing = { validation: [], rates: {}, seconds: [], gpu: {}, marks: [] };
      this.runs = runs.map((run, i) => ({ ...nothing, ...run, key: `run-${run.id ?? i}` }));
      this.maxSteps = maxSteps;
      this.measure();
      this.showLegend();
      this.redraw();
    }

    destroy() {
      cancelAnimationFrame(this.frame);
      clearTimeout(this.telling);
      this.watches.forEach((watch) => watch.disconnect());
      this.uplot?.destroy();
      this.figure.remove();
    }

    build(element) {
      this.line = el("i", { class: "curves-cursor", hidden: true });
      this.readout = el("output", { class: "curves-readout", hidden: true });
      this.nothing = el("p", { class: "curves-nothing" });
      const role = { tabindex: 0, role: "application", "aria-roledescription": "chart" };
      this.plot = el("div", { class: "curves-plot", ...role }, this.nothing, this.line, this.readout);
      this.legend = el("div", { class: "curves-legend", role: "group", "aria-label": "Curves shown" });
      this.slider = el("input", { class: "curves-smoothing", type: "range", min: 0, max: 100, value: this.smoothing });
      this.switch = el("input", { class: "curves-log", type: "checkbox", checked: this.log });
      const hint = { class: "curves-reset", hidden: true, title: "Escape" };
      this.reset = button("Whole run", () => this.zoomTo(null), hint);
      this.figure = el(
        "figure",
        { class: "studio-chart" },
        el("figcaption", { class: "curves-head" }, el("b", {}, this.title), this.legend),
        this.plot,
        el(
          "div",
          { class: "curves-foot" },
          el("label", {}, "Smoothing", this.slider),
          el("label", {}, this.switch, "Log scale"),
          el("span", { class: "curves-hint" }, "Drag to zoom"),
          this.reset,
        ),
      );
      element.append(this.figure);
    }

    listen() {
      const on = (target, kind, answer, how) => target.addEventListener(kind, answer.bind(this), how);
      on(this.slider, "input", () => this.choose("smoothing", Number(this.slider.value)));
      on(this.switch, "change", () => this.choose("log", this.switch.checked));
      on(this.legend, "click", this.toggle);
      on(this.plot, "pointerdown", this.grab);
      on(this.plot, "pointermove", this.pull);
      on(this.plot, "pointerup", this.release);
      on(this.plot, "pointercancel", this.letGo);
      on(this.plot, "pointerleave", () => this.point(null));
      on(this.plot, "blur", () => this.point(null));
      on(this.plot, "dblclick", () => this.zoomTo(null));
      on(this.plot, "wheel", this.turn, { passive: false });
      on(this.plot, "keydown", this.press);
      const resized = new ResizeObserver(() => this.redraw());
      resized.observe(this.plot);
      const themed = new MutationObserver(() => this.redraw());
      themed.observe(document.body, { attributes: true, attributeFilter: ["class"] });
      this.watches = [resized, themed];
    }

    choose(name, value) {
      this[name] = value;
      localStorage.setItem(`chart-${name}`, value);
      this.redraw();
    }

    // First and last step of all. The axis is the whole run, or a half, a quarter ... of it as long as it fits.
    measure() {
      const steps = this.runs.flatMap(({ bins, validation }) => [...bins, ...validation].map(([step]) => step));
      if (this.zoom) steps.push(...this.extent); // the data may be the zoomed part only
      if (!steps.length) return;
      const first = steps.reduce((a, b) => Math.min(a, b));
      let last = steps.reduce((a, b) => Math.max(a, b));
      let end = this.maxSteps;
      while (end / 2 >= last && end > 2) end /= 2;
      last = Math.max(last, end);
      this.extent = [first, last > first ? last : first + 1];
    }

    get shownRuns() {
      return this.runs.filter((run) => !this.hidden.has(run.key));
    }

    colour(name) {
      return getComputedStyle(this.figure).getPropertyValue(name).trim();
    }

    // One run has a colour for each kind of line, several have one for each run.
    colourOf(run, kind) {
      return `--chart-${this.runs.length === 1 ? kind : (this.runs.indexOf(run) % COLOURS) + 1}`;
    }

    // ---- legend

    showLegend() {
      const has = (kind) => this.runs.some((run) => (kind in GROUPED ? Object.keys(run[GROUPED[kind]]) : run[kind]).length);
      const kinds = Object.keys(KINDS).filter((kind) => kind === "raw" || kind === "mean" || has(kind));
      const several = this.runs.length > 1;
      const entries = several ? this.runs.map((run) => [run.key, run.name, `var(${this.colourOf(run)})`, "no"]) : [];
      entries.push(...kinds.map((kind) => [kind, KINDS[kind], several ? "" : `var(--chart-${kind})`]));
      const spelled = JSON.stringify(entries);
      if (spelled === this.spelled) return;
      this.spelled = spelled;
      const buttons = entries.map(([key, words, colour, translate = null]) => {
        const state = { translate, "data-series": key, "aria-pressed": `${!this.hidden.has(key)}` };
        const made = button(el("span", {}, words), null, { class: colour ? "" : "plain", title: words, ...state });
        made.style.setProperty("--key", colour);
        return made;
      });
      this.legend.replaceChildren(...buttons);
    }

    toggle(event) {
      const button = event.target.closest("button");
      if (!button) return;
      const key = button.dataset.series;
      if (!this.hidden.delete(key)) this.hidden.add(key);
      else if (RIGHT.includes(key)) for (const other of RIGHT) if (other !== key) this.hidden.add(other);
      for (const each of this.legend.children) each.setAttribute("aria-pressed", !this.hidden.has(each.dataset.series));
      this.redraw();
    }

    // ---- drawing

    redraw() {
      this.frame ||= requestAnimationFrame(() => this.draw());
    }

    draw() {
      this.frame = 0;
      const width = this.plot.clientWidth;
      const height = this.plot.clientHeight;
      if (!width || !height) return; // hidden; a resize event follows when it is shown
      this.arrange();
      this.nothing.textContent = this.losses ? "" : this.reason();
      if (this.losses) {
        this.fit();
        this.uplot.batch((chart) => {
          chart.setSize({ width, height });
          const tables = this.lines.map((line) => this.table(line));
          chart.setData(uPlot.join(tables, tables.map(() => [0, WIDE_GAPS])), false);
          chart.setScale("x", { min: this.view[0], max: this.view[1] });
        });
        this.flags.replaceChildren(...this.marks.map((mark) => this.flag(mark)));
      } else this.forget();
      this.plot.setAttribute("aria-label", this.summary());
      this.point(this.cursor);
    }

    // The visible part: lines and ranges of the axes.
    arrange() {
      const view = this.zoom ?? this.extent;
      const reach = (this.smoothing / 100) ** 2 * WIDEST * (view[1] - view[0]);
      for (const run of this.runs) run.mean = smooth(run.bins, reach);
      this.view = view;
      this.lines = this.shownLines();
      const inside = ({ points }) => points.filter(([step]) => this.isInView(step)).map(([, value]) => value);
      const values = (kind) => this.lines.filter((line) => line.kind === kind && !line.edge).map(inside);
      const losses = values(this.hidden.has("raw") ? "mean" : "raw").flatMap((each) => common(each, this.log));
      const rates = values("rate").flat();
      const times = values("seconds").flat();
      this.losses = spread([...losses, ...values("validation").flat()], this.log);
      const gpu = values("gpu").flat();
      this.right = rates.length ? spread([0, ...rates]) : times.length ? spread([0, usual(times)]) : gpu.length ? spread([0, 100, ...gpu]) : null;
    }

    isInView(step) {
      return step >= this.view?.[0] && step <= this.view[1];
    }

    // The lines shown, the last on top: the points of each, and how it looks.
    /** @returns {any[]} */
    shownLines() {
      const alone = this.runs.length === 1;
      const lines = this.shownRuns.flatMap((run) => {
        const column = (place) => run.bins.map((bin) => [bin[0], bin[place]]);
        const low = run.bins.map((bin) => [bin[0], this.log && bin[1] <= 0 ? TINY : bin[1]]);
        const edges = [column(2), low].map((points) => ({ kind: "raw", points, edge: true, width: 0, alpha: 0.22 }));
        const dash = (i) => DASHES[alone ? i % DASHES.length : 2];
        const grouped = Object.entries(GROUPED).flatMap(([kind, group]) =>
          Object.values(run[group]).map((points, i) => ({ kind, points, dash: dash(i) })),
        );
        return [
          ...(alone && run.level > 0 ? edges : []), // first: the band of uPlot is between series 1 and 2
          { kind: "raw", points: column(3), width: 1, alpha: alone ? 0.75 : 0.25 },
          ...grouped,
          { kind: "seconds", points: run.seconds },
          { kind: "validation", points: run.validation, dots: 6 },
          { kind: "mean", points: run.mean, width: 2 },
        ].map((line) => ({ ...line, colour: this.colourOf(run, line.kind) }));
      });
      const shown = lines.filter(({ kind, points }) => points.length && !this.hidden.has(kind));
      return shown.sort((a, b) => LAYERS.indexOf(a.kind) - LAYERS.indexOf(b.kind));
    }

    // A line for uPlot: values that have no place on the axis are gaps.
    table({ kind, points }) {
      const isLog = this.log && !RIGHT.includes(kind);
      const value = (each) => (finite(each) && (!isLog || each > 0) ? each : null);
      return [points.map(([step]) => step), points.map((point) => value(point[1]))];
    }

    // A chart with a series for each line; drawn into again as long as they look the same.
    fit() {
      const looks = JSON.stringify([this.log, this.lines.map(({ points, ...look }) => look)]);
      if (looks === this.looks) return;
      this.forget();
      this.looks = looks;
      const [first] = this.lines;
      const options = {
        width: 0,
        height: 0,
        legend: { show: false },
        cursor: { show: false },
        padding: [10, (chart, side, [, right]) => (right ? 0 : 22), 0, 0],
        series: [{}, ...this.lines.map((line) => this.series(line))],
        bands: first.edge ? [{ series: [1, 2], fill: () => this.colour(first.colour) }] : [],
        scales: {
          x: { time: false, range: () => this.view },
          y: { distr: this.log ? 3 : 1, range: () => this.losses },
          right: { range: () => this.right ?? [null, null] },
        },
        axes: this.axes(),
      };
      this.uplot = new uPlot(options, [[]], this.plot);
      this.flags = this.uplot.over.appendChild(el("div"));
    }

    series({ kind, colour, width = 1.25, alpha = 1, dash = [], dots = 0 }) {
      const stroke = () => this.colour(colour);
      const points = { show: dots > 0, size: dots || 3, fill: stroke, filter: dots ? null : isolated };
      return { scale: RIGHT.includes(kind) ? "right" : "y", stroke, width, alpha, dash, cap: "round", points };
    }

    axes() {
      const font = `11px ${getComputedStyle(this.plot).fontFamily}`;
      const axis = (colour, words, more) => {
        const values = (chart, ticks) => ticks.map(words);
        const plain = { font, gap: 8, incrs: BETWEEN, ticks: { show: false }, grid: { show: false } };
        return { ...plain, stroke: () => this.colour(colour), values, ...more };
      };
      const grid = { stroke: () => this.colour("--chart-grid"), width: 1 };
      const log = this.log && { splits: logTicks, filter: (chart, ticks) => ticks };
      const right = { scale: "right", side: 1, size: 56, space: 50 };
      return [
        axis("--chart-ink", whole, { size: 22, space: 80, incrs: BETWEEN.filter(Number.isInteger) }),
        axis("--chart-ink", short, { size: 50, space: SPACE, grid, ...log }),
        ...(this.hidden.has("rate") ? [] : [axis("--chart-rate", short, right)]),
        ...(this.hidden.has("gpu") ? [] : [axis("--chart-gpu", (tick) => `${short(tick)} %`, right)]),
        ...(this.hidden.has("seconds") ? [] : [axis("--chart-seconds", (tick) => `${short(tick)} s`, right)]),
      ];
    }

    forget() {
      this.uplot?.destroy();
      this.uplot = this.looks = null;
    }

    // Compiler events of a run that is drawn alone and has points to which the cursor can go.
    get marks() {
      const [run] = this.runs;
      const shown = this.runs.length === 1 && run.bins.length && !this.hidden.has("marks") && this.losses;
      return shown ? run.marks.filter(({ step }) => this.isInView(step)) : [];
    }

    flag({ step, kind }) {
      const flag = el("i", { class: "curves-mark" });
      flag.style.left = `${this.uplot.valToPos(step, "x")}px`;
      flag.style.setProperty("--key", colourOfMark(kind));
      return flag;
    }

    // Why there is nothing to show.
    reason() {
      if (!this.runs.some((run) => run.bins.length)) return "The curve starts with the first step";
      return this.log ? "No values above zero" : "Nothing to show in this range";
    }

    summary() {
      const runs = this.runs.filter((run) => run.bins.length);
      if (!runs.length) return `${this.title}: no data yet`;
      const last = (points) => points.findLast(([, value]) => finite(value)) ?? [0, NaN];
      const words = runs.map((run) => {
        const words = `'${run.name}': ${exact(last(run.mean)[1])} at step ${whole(run.bins.at(-1)[0])}`;
        return run.validation.length ? `${words}, validation ${exact(last(run.validation)[1])}` : words;
      });
      const keys = "Arrow keys move the cursor, + and - zoom, Escape shows everything.";
      return `${this.title}, smoothed. ${words.join("; ")}. ${keys}`;
    }

    // ---- zoom

    zoomTo(view, wait = 0) {
      clearTimeout(this.telling);
      const before = `${this.zoom}`;
      this.zoom = view && this.bounded(view);
      if (`${this.zoom}` === before) return;
      this.reset.hidden = !this.zoom;
      this.redraw();
      const tell = () => this.onZoom(...(this.zoom ?? [null, null]));
      if (wait) this.telling = setTimeout(tell, wait);
      else tell();
    }

    // Whole steps within the run, at least a few; null for all of it.
    bounded([first, last]) {
      const [start, end] = this.extent;
      const most = Math.min(end - start, 4);
      first = Math.min(Math.max(Math.round(first), start), end - most);
      last = Math.max(Math.min(Math.round(last), end), first + most);
      return first <= start && last >= end ? null : [first, last];
    }

    zoomBy(factor, around) {
      const [first, last] = this.zoom ?? this.extent;
      this.zoomTo([around - (around - first) * factor, around + (last - around) * factor], SETTLED);
    }

    stepAt(event) {
      const { left, width } = this.uplot.over.getBoundingClientRect();
      return this.uplot.posToVal(Math.min(Math.max(event.clientX - left, 0), width), "x");
    }

    grab(event) {
      if (event.button || !this.uplot) return;
      this.held = { from: event.clientX, step: this.stepAt(event) };
      this.plot.setPointerCapture(event.pointerId);
    }

    pull(event) {
      if (!this.uplot) return;
      const step = this.stepAt(event);
      const across = (at) => this.uplot.valToPos(at, "x");
      const marked = this.marks.find((mark) => Math.abs(across(mark.step) - across(step)) <= NEAR);
      this.point(marked && !this.held ? marked.step : step);
      if (!this.isDrag(event)) return;
      const [from, to] = [across(this.held.step), across(step)].sort((a, b) => a - b);
      this.uplot.setSelect({ left: from, width: to - from, height: this.uplot.over.clientHeight });
    }

    isDrag(event) {
      return this.uplot && this.held && Math.abs(event.clientX - this.held.from) >= DRAG;
    }

    release(event) {
      const steps = this.isDrag(event) ? [this.held.step, this.stepAt(event)] : null;
      this.letGo();
      if (steps) this.zoomTo(steps.sort((a, b) => a - b));
    }

    letGo() {
      this.held = null;
      this.uplot?.setSelect({ width: 0 });
    }

    turn(event) {
      if (!event.ctrlKey || !this.uplot) return;
      event.preventDefault();
      this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, this.stepAt(event));
    }

    press(event) {
      if (!this.uplot || event.ctrlKey || event.metaKey || event.altKey) return;
      const [first, last] = this.view;
      const centre = this.cursor ?? (first + last) / 2;
      const answer = {
        ArrowLeft: () => this.walk(event.shiftKey ? -10 : -1),
        ArrowRight: () => this.walk(event.shiftKey ? 10 : 1),
        Home: () => this.point(first),
        End: () => this.point(last),
        "+": () => this.zoomBy(0.5, centre),
        "=": () => this.zoomBy(0.5, centre),
        "-": () => this.zoomBy(2, centre),
        Escape: () => (this.held ? this.letGo() : (this.point(null), this.zoomTo(null))),
      }[event.key];
      if (!answer) return;
      event.preventDefault();
      answer();
    }

    // ---- cursor

    walk(by) {
      const bins = this.shownRuns.flatMap((run) => run.bins).filter(([step]) => this.isInView(step));
      if (!bins.length) return;
      bins.sort(([a], [b]) => a - b);
      const steps = bins.filter(([step], i) => !i || step !== bins[i - 1][0]);
      if (this.cursor === null) return this.point(steps.at(by > 0 ? 0 : -1)[0]);
      const place = nearest(steps, this.cursor) + by;
      this.point(steps[Math.min(Math.max(place, 0), steps.length - 1)][0]);
    }

    // Move the cursor to the point nearest to the step, or hide it.
    point(step) {
      const runs = step === null || !this.uplot ? [] : this.shownRuns.filter((run) => run.bins.length);
      const near = runs.map((run) => run.bins[nearest(run.bins, step)][0]);
      const at = near.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a), Infinity);
      const visible = this.isInView(at);
      this.cursor = visible ? at : null;
      this.line.hidden = this.readout.hidden = !visible;
      if (!visible) return;
      const across = this.uplot.over.offsetLeft + this.uplot.valToPos(at, "x");
      this.line.style.left = `${across}px`;
      this.tell(runs, at);
      const width = this.plot.clientWidth;
      this.readout.style.left = across < width / 2 ? `${across + 10}px` : "";
      this.readout.style.right = across < width / 2 ? "" : `${width - across + 10}px`;
    }

    tell(runs, step) {
      const rows = this.runs.length > 1 ? this.rowsOfSeveral(runs, step) : this.rowsOfOne(runs[0], step);
      const cells = rows.flatMap(([colour, words, value]) => [key(colour), el("span", {}, words), el("b", {}, value)]);
      this.readout.replaceChildren(el("strong", {}, `step ${whole(step)}`), ...cells, ...this.notesAt(step));
    }

    // Compiler events at the steps that this one represents.
    notesAt(step) {
      const [{ bins }] = this.runs;
      const here = this.marks.filter((mark) => bins[nearest(bins, mark.step)][0] === step);
      const note = (lines) => el("p", {}, ...lines.map((line) => el("span", {}, line)));
      return here.flatMap(({ kind, lines }) => [key(colourOfMark(kind)), note(lines)]);
    }

    rowsOfOne(run, step) {
      const place = nearest(run.bins, step);
      const [, low, high, mean] = run.bins[place];
      const near = (points) => exact(points.length ? points[nearest(points, step)][1] : NaN);
      const validation = run.validation.findLast(([at]) => at <= step);
      const rows = [
        ["raw", "raw", exact(mean)],
        run.level > 0 ? ["", "within", `${exact(low)}–${exact(high)}`] : null,
        ["mean", "smoothed", exact(run.mean[place][1])],
        validation ? ["validation", `validation at ${whole(validation[0])}`, exact(validation[1])] : null,
        ...Object.entries(run.rates).map(([group, points]) => ["rate", `rate ${group}`, near(points)]),
        run.seconds.length ? ["seconds", "step time", `${near(run.seconds)} s`] : null,
        ...Object.entries(run.gpu).map(([name, points]) => ["gpu", GPU[name]?.[0] ?? name, `${near(points)} ${GPU[name]?.[1] ?? ""}`]),
      ];
      return rows.filter(Boolean).map(([kind, ...words]) => [kind && `var(--chart-${kind})`, ...words]);
    }

    rowsOfSeveral(runs, step) {
      const there = runs.filter(({ bins }) => step >= bins[0][0] && step <= bins.at(-1)[0]);
      return there.map((run) => {
        const place = nearest(run.bins, step);
        const value = `${exact(run.mean[place][1])} (raw ${exact(run.bins[place][3])})`;
        return [`var(${this.colourOf(run)})`, run.name, value];
      });
    }
  };
})();
