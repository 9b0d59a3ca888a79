// Loss curves of one or several runs on a canvas: raw faint, smoothed strong, with zoom, log scale and a cursor that
// shows the values. `const chart = new StudioChart(element, {title, onZoom(first, last)})`, then chart.set(runs).
window.StudioChart = (() => {
  const KINDS = { raw: "raw", mean: "smoothed", validation: "validation", rate: "learning rate", seconds: "step time", marks: "compiler" };
  const RIGHT = ["rate", "seconds"]; // kinds on the right axis, of which at most one is shown
  const MARKS = { compiled: "mark", recompiled: "recompile", "graph break": "break", differs: "break" }; // colours of chart.css
  const NEAR = 6; // pixels from a mark within which the cursor goes to it
  const MARGIN = { left: 50, right: 12, rates: 56, top: 10, bottom: 22 };
  const COLOURS = 6; // --chart-1 to --chart-6 of chart.css
  const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]]; // tell the learning rate groups apart
  const WIDEST = 0.2; // the slider's end: smoothing over a fifth of the steps shown
  const SETTLED = 150; // milliseconds of quiet after which a zoom by wheel or key is reported
  const DRAG = 5; // pixels after which a click is a drag
  const finite = Number.isFinite;

  function make(tag, name, attributes = {}, ...children) {
    const element = Object.assign(document.createElement(tag), { className: name });
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // Debiased moving mean of bins; `reach` in steps, so that a curve looks as smooth at every level of bins.
  function smooth(bins, reach) {
    let [total, weight, before] = [0, 0, -Infinity];
    return bins.map(([step, , , mean]) => {
      if (!finite(mean)) return [step, NaN];
      const kept = reach > 0 ? Math.exp((before - step) / reach) : 0;
      [total, weight, before] = [total * kept + mean, weight * kept + 1, step];
      return [step, total / weight];
    });
  }

  // Index of the point nearest to `step`; points are in the order of their steps.
  function nearest(points, step) {
    let [low, high] = [0, points.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < step) low = middle + 1;
      else high = middle;
    }
    return low > 0 && step - points[low - 1][0] <= points[low][0] - step ? low - 1 : low;
  }

  // The points within first..last and one more on each side, so that lines go on to the edge.
  function within(points, [first, last]) {
    if (!points.length) return points;
    return points.slice(Math.max(nearest(points, first) - 1, 0), nearest(points, last) + 2);
  }

  function niceTicks(low, high, most) {
    const rough = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= rough * 0.999);
    const start = Math.ceil(low / step - 1e-9);
    const count = Math.floor(high / step + 1e-9) - start + 1;
    return Array.from({ length: Math.max(count, 0) }, (_, i) => Number(((start + i) * step).toPrecision(12)));
  }

  // 1, 2 and 5 of every power of ten, or fewer of them where those are many; within a narrow range plain ticks.
  function logTicks(low, high, most) {
    const powers = [];
    for (let n = Math.floor(Math.log10(low)); 10 ** n <= high; n++) powers.push(n);
    const every = Math.ceil(powers.length / most);
    const some = [[1, 2, 5], [1, 3], [1]].map((digits) =>
      powers.flatMap((n) => digits.map((digit) => Number(`${digit}e${n}`))).filter((t) => t >= low && t <= high),
    );
    const shown = some.find((ticks) => ticks.length <= most + 1) ?? some[2].filter((_, i) => i % every === 0);
    return shown.length > 2 ? shown : niceTicks(low, high, most);
  }

  const ticksOf = (axis, most) => (axis.log ? logTicks : niceTicks)(axis.low, axis.high, most);
  const whole = (step) => Math.round(step).toLocaleString("en");
  const short = (value) => (value && Math.abs(value) < 1e-3 ? value.toExponential() : `${value}`);
  const exact = (value) => (finite(value) ? short(Number(value.toPrecision(4))) : "none");

  // From values to pixels; on a log scale, values without a logarithm get none.
  function scale(low, high, from, to, log = false) {
    const turn = log ? Math.log : (value) => value;
    const [start, per] = [turn(low), (to - from) / (turn(high) - turn(low))];
    return Object.assign((value) => from + (turn(value) - start) * per, { low, high, log });
  }

  const usable = (values, log) => values.filter((value) => finite(value) && (!log || value > 0));

  // Low and high with a margin; null if there is nothing to show.
  function spread(values, log) {
    const shown = usable(values, log);
    if (!shown.length) return null;
    const [low, high] = [shown.reduce((a, b) => Math.min(a, b)), shown.reduce((a, b) => Math.max(a, b))];
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

  function trace(pen, points, x, y) {
    pen.beginPath();
    let open = false;
    for (const [step, value] of points) {
      const [across, down] = [x(step), finite(value) ? y(value) : NaN];
      if (!finite(down)) open = false;
      else if (open) pen.lineTo(across, down);
      else {
        pen.moveTo(across - 1, down); // so that a point between two gaps is visible
        pen.lineTo(across + 1, down);
        open = true;
      }
    }
    pen.stroke();
  }

  function fillBand(pen, bins, x, y, bottom) {
    let edge = [];
    const close = () => {
      if (edge.length > 1) {
        pen.beginPath();
        for (const [across, top] of edge) pen.lineTo(across, top);
        for (const [across, , low] of edge.reverse()) pen.lineTo(across, low);
        pen.fill();
      }
      edge = [];
    };
    for (const [step, low, high] of bins) {
      const top = finite(low) && finite(high) ? y(high) : NaN;
      const under = y(low);
      if (finite(top)) edge.push([x(step), top, finite(under) ? under : bottom]);
      else close();
    }
    close();
  }

  // A fingerprint that tells new data from old: a bin no longer changes once another one follows it.
  function signature(runs, maxSteps) {
    const ends = (points = []) => [points.length, points[0], points.at(-1)];
    const parts = runs.map((run) => [
      ...[run.id, run.name, run.color, run.level, ends(run.bins), ends(run.validation), run.marks?.length, ends(run.seconds)],
      Object.entries(run.rates ?? {}).map(([group, points]) => [group, ends(points)]),
    ]);
    return JSON.stringify([maxSteps, parts]);
  }

  return class StudioChart {
    constructor(element, { title = "Loss", onZoom = () => {} } = {}) {
      Object.assign(this, { title, onZoom, runs: [], maxSteps: 0, zoom: null, cursor: null, frame: 0, drawn: 0 });
      this.extent = [0, 1]; // first and last step of the whole run, in view or not
      this.hidden = new Set(RIGHT);
      this.smoothing = Number(localStorage.getItem("chart-smoothing") ?? 35);
      this.log = localStorage.getItem("chart-log") === "true";
      this.build(element);
      this.listen();
      this.told = "";
      this.set([]);
    }

    // Replace the data; zoom, cursor and choices stay. Unchanged data costs nothing.
    set(runs, { maxSteps = 0 } = {}) {
      const told = signature(runs, maxSteps);
      if (told === this.told) return;
      Object.assign(this, { told, maxSteps });
      this.runs = runs.map((run, i) => ({ validation: [], rates: {}, seconds: [], marks: [], ...run, key: `run-${run.id ?? i}` }));
      this.measure();
      this.showLegend();
      this.redraw();
    }

    destroy() {
      cancelAnimationFrame(this.frame);
      clearTimeout(this.telling);
      this.watches.forEach((watch) => watch.disconnect());
      this.figure.remove();
    }

    build(element) {
      this.canvas = make("canvas", "curves-canvas", { "aria-hidden": "true" });
      this.line = make("i", "curves-cursor", { hidden: "" });
      this.choice = make("i", "curves-choice", { hidden: "" });
      this.readout = make("output", "curves-readout", { hidden: "" });
      this.plot = make("div", "curves-plot", { tabindex: 0, role: "application", "aria-roledescription": "chart" });
      this.plot.append(this.canvas, this.choice, this.line, this.readout);
      this.legend = make("div", "curves-legend", { role: "group", "aria-label": "Curves shown" });
      this.slider = make("input", "curves-smoothing", { type: "range", min: 0, max: 100, value: this.smoothing });
      this.switch = make("input", "curves-log", { type: "checkbox" });
      this.switch.checked = this.log;
      this.reset = make("button", "curves-reset", { type: "button", hidden: "", title: "Escape" }, "Whole run");
      this.figure = make(
        "figure",
        "studio-chart",
        {},
        make("figcaption", "curves-head", {}, make("b", "", {}, this.title), this.legend),
        this.plot,
        make(
          "div",
          "curves-foot",
          {},
          make("label", "", {}, "Smoothing", this.slider),
          make("label", "", {}, this.switch, "Log scale"),
          make("span", "curves-hint", {}, "Drag to zoom"),
          this.reset,
        ),
      );
      element.append(this.figure);
    }

    listen() {
      const on = (target, kind, answer, how) => target.addEventListener(kind, answer.bind(this), how);
      on(this.slider, "input", () => this.choose("smoothing", Number(this.slider.value)));
      on(this.switch, "change", () => this.choose("log", this.switch.checked));
      on(this.reset, "click", () => this.zoomTo(null));
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

    // First and last step of all. The axis is the whole run, or a half, a quarter ... of it as long as that holds it.
    measure() {
      const ends = this.runs.flatMap((run) => [run.bins, run.validation].flatMap((p) => [p[0], p.at(-1)]));
      const steps = ends.filter(Boolean).map(([step]) => step);
      if (this.zoom) steps.push(...this.extent); // the data may be the zoomed part only
      if (!steps.length) return;
      let [first, last] = [Math.min(...steps), Math.max(...steps)];
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

    colourOf(run) {
      return run.color ?? `var(--chart-${(this.runs.indexOf(run) % COLOURS) + 1})`;
    }

    // ---- legend

    showLegend() {
      const has = (kind) => this.runs.some((run) => (kind === "rate" ? Object.keys(run.rates) : run[kind]).length);
      const kinds = Object.keys(KINDS).filter((kind) => kind === "raw" || kind === "mean" || has(kind));
      const several = this.runs.length > 1;
      const entries = several ? this.runs.map((run) => [run.key, run.name, this.colourOf(run)]) : [];
      entries.push(...kinds.map((kind) => [kind, KINDS[kind], several ? "" : `var(--chart-${kind})`]));
      const spelled = JSON.stringify(entries);
      if (spelled === this.spelled) return;
      this.spelled = spelled;
      const buttons = entries.map(([key, words, colour]) => {
        const attributes = { type: "button", "data-series": key, "aria-pressed": !this.hidden.has(key), title: words };
        const button = make("button", colour ? "" : "plain", attributes, make("span", "", {}, words));
        button.style.setProperty("--key", colour);
        return button;
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
      const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
      if (!width || !height) return; // hidden; a resize event follows when it is shown
      const began = performance.now();
      const pen = this.sheet(width, height);
      this.arrange(width, height);
      if (this.y) {
        this.drawGrid(pen);
        this.drawCurves(pen);
        this.marks.forEach((mark) => this.drawMark(pen, mark));
      } else this.drawNothing(pen, width, height);
      this.plot.setAttribute("aria-label", this.summary());
      this.point(this.cursor);
      this.drawn += 1;
      this.milliseconds = performance.now() - began;
    }

    // An empty canvas at the screen's resolution.
    sheet(width, height) {
      const density = devicePixelRatio || 1;
      const size = [Math.round(width * density), Math.round(height * density)];
      if (this.canvas.width !== size[0] || this.canvas.height !== size[1])
        [this.canvas.width, this.canvas.height] = size;
      const pen = this.canvas.getContext("2d");
      pen.setTransform(density, 0, 0, density, 0, 0);
      pen.clearRect(0, 0, width, height);
      pen.font = `11px ${getComputedStyle(this.plot).fontFamily}`;
      pen.lineJoin = pen.lineCap = "round";
      return pen;
    }

    // What is in view: means, ranges and axes.
    arrange(width, height) {
      const view = this.zoom ?? this.extent;
      const reach = (this.smoothing / 100) ** 2 * WIDEST * (view[1] - view[0]);
      for (const run of this.runs) run.mean = smooth(run.bins, reach);
      const shown = (kind) => !this.hidden.has(kind);
      const inside = (points) => points.filter(([step]) => step >= view[0] && step <= view[1]);
      const values = (points) => points.map(([, value]) => value);
      const wide = (run) => (shown("raw") ? inside(run.bins).map((bin) => bin[3]) : values(inside(run.mean)));
      const losses = this.shownRuns.flatMap((run) => [
        ...(shown("raw") || shown("mean") ? common(wide(run), this.log) : []),
        ...(shown("validation") ? values(inside(run.validation)) : []),
      ]);
      const rates = shown("rate") ? this.shownRuns.flatMap((run) => Object.values(run.rates).flatMap(inside)) : [];
      const times = shown("seconds") ? this.shownRuns.flatMap((run) => inside(run.seconds)) : [];
      const right = width - (rates.length || times.length ? MARGIN.rates : MARGIN.right);
      this.area = { left: MARGIN.left, right, top: MARGIN.top, bottom: height - MARGIN.bottom };
      const upright = (range, log) => range && scale(...range, this.area.bottom, this.area.top, log);
      this.x = scale(view[0], view[1], MARGIN.left, right);
      this.y = upright(spread(losses, this.log), this.log);
      this.rate = upright(rates.length ? spread([0, ...values(rates)], false) : null, false);
      this.time = upright(times.length ? spread([0, usual(values(times))], false) : null, false);
    }

    drawGrid(pen) {
      const { left, right, top, bottom } = this.area;
      const ink = this.colour("--chart-ink");
      Object.assign(pen, { strokeStyle: this.colour("--chart-grid"), fillStyle: ink, lineWidth: 1 });
      const label = (words, x, y, align) => {
        Object.assign(pen, { textAlign: align, textBaseline: align === "center" ? "top" : "middle" });
        const half = align === "center" ? pen.measureText(words).width / 2 : 0; // so that the last label is not cut off
        pen.fillText(words, half ? Math.min(x, pen.canvas.clientWidth - half) : x, y);
      };
      pen.beginPath();
      for (const tick of ticksOf(this.y, (bottom - top) / 38)) {
        const down = Math.round(this.y(tick)) + 0.5;
        pen.moveTo(left, down);
        pen.lineTo(right, down);
        label(short(tick), left - 8, down, "right");
      }
      pen.stroke();
      const steps = niceTicks(this.x.low, this.x.high, Math.max((right - left) / 80, 2)).filter(Number.isInteger);
      for (const tick of steps) label(whole(tick), Math.min(this.x(tick), right - 8), bottom + 8, "center");
      const [axis, kind, unit] = this.rate ? [this.rate, "rate", ""] : [this.time, "seconds", " s"];
      if (!axis) return;
      pen.fillStyle = this.colour(`--chart-${kind}`);
      for (const tick of niceTicks(Math.max(axis.low, 0), axis.high, 4))
        label(short(tick) + unit, right + 8, axis(tick), "left");
    }

    drawCurves(pen) {
      const { left, right, top, bottom } = this.area;
      pen.save();
      pen.beginPath();
      pen.rect(left - 3, top, right - left + 6, bottom - top);
      pen.clip();
      const layers = { raw: this.drawRaw, rate: this.drawRates, seconds: this.drawTimes, validation: this.drawValidation, mean: this.drawMean };
      for (const [kind, draw] of Object.entries(layers))
        if (!this.hidden.has(kind)) for (const run of this.shownRuns) draw.call(this, pen, run, this.paint(run, kind));
      pen.restore();
    }

    // One run has a colour for each kind of line, several have one for each run.
    paint(run, kind) {
      if (this.runs.length === 1) return (kind === "mean" && run.color) || this.colour(`--chart-${kind}`);
      return run.color ?? this.colour(`--chart-${(this.runs.indexOf(run) % COLOURS) + 1}`);
    }

    drawRaw(pen, run, colour) {
      const bins = within(run.bins, [this.x.low, this.x.high]);
      const alone = this.runs.length === 1;
      Object.assign(pen, { strokeStyle: colour, fillStyle: colour, lineWidth: 1 });
      pen.globalAlpha = alone ? 0.22 : 0;
      if (run.level > 0 && alone) fillBand(pen, bins, this.x, this.y, this.area.bottom);
      pen.globalAlpha = alone ? 0.75 : 0.25;
      trace(pen, bins.map(([step, , , mean]) => [step, mean]), this.x, this.y);
      pen.globalAlpha = 1;
    }

    drawMean(pen, run, colour) {
      Object.assign(pen, { strokeStyle: colour, lineWidth: 2 });
      trace(pen, within(run.mean, [this.x.low, this.x.high]), this.x, this.y);
    }

    drawValidation(pen, run, colour) {
      const points = within(run.validation, [this.x.low, this.x.high]);
      Object.assign(pen, { strokeStyle: colour, fillStyle: colour, lineWidth: 1.25 });
      trace(pen, points, this.x, this.y);
      pen.beginPath();
      for (const [step, value] of points) {
        const down = finite(value) ? this.y(value) : NaN;
        if (!finite(down)) continue;
        pen.moveTo(this.x(step) + 3, down);
        pen.arc(this.x(step), down, 3, 0, 2 * Math.PI);
      }
      pen.fill();
    }

    drawRates(pen, run, colour) {
      if (!this.rate) return;
      Object.assign(pen, { strokeStyle: colour, lineWidth: 1.25 });
      Object.values(run.rates).forEach((points, i) => {
        pen.setLineDash(this.runs.length > 1 ? [2, 3] : DASHES[i % DASHES.length]);
        trace(pen, within(points, [this.x.low, this.x.high]), this.x, this.rate);
      });
      pen.setLineDash([]);
    }

    drawTimes(pen, run, colour) {
      if (!this.time) return;
      Object.assign(pen, { strokeStyle: colour, lineWidth: 1.25 });
      trace(pen, within(run.seconds, [this.x.low, this.x.high]), this.x, this.time);
    }

    // What the compiler did, of a run that is drawn alone and has points to which the cursor can go.
    get marks() {
      const [run] = this.runs;
      const shown = this.runs.length === 1 && run.bins.length && !this.hidden.has("marks") && this.x;
      return shown ? run.marks.filter(({ step }) => step >= this.x.low && step <= this.x.high) : [];
    }

    drawMark(pen, { step, kind }) {
      const { top, bottom } = this.area;
      const across = this.x(step);
      pen.strokeStyle = pen.fillStyle = this.colour(`--chart-${MARKS[kind] ?? "mark"}`);
      Object.assign(pen, { lineWidth: 1, globalAlpha: 0.45 });
      pen.setLineDash([2, 3]);
      pen.beginPath();
      pen.moveTo(across, top);
      pen.lineTo(across, bottom);
      pen.stroke();
      pen.setLineDash([]);
      pen.globalAlpha = 1;
      pen.beginPath();
      for (const [x, y] of [[-5, 0], [5, 0], [0, 7]]) pen.lineTo(across + x, top - 2 + y);
      pen.fill();
    }

    drawNothing(pen, width, height) {
      const positive = this.log && this.runs.some((run) => run.bins.length) ? "No values above zero" : "";
      const hidden = this.runs.some((run) => run.bins.length) ? "Nothing to show in this range" : "";
      Object.assign(pen, { fillStyle: this.colour("--chart-ink"), textAlign: "center", textBaseline: "middle" });
      pen.fillText(positive || hidden || "The curve starts with the first step", width / 2, height / 2);
    }

    summary() {
      const told = this.runs.filter((run) => run.bins.length);
      if (!told.length) return `${this.title}: no data yet`;
      const last = (points) => points.findLast(([, value]) => finite(value)) ?? [0, NaN];
      const words = told.map((run) => {
        const kept = run.validation.length ? `, validation ${exact(last(run.validation)[1])}` : "";
        return `${run.name}: ${exact(last(run.mean)[1])} at step ${whole(run.bins.at(-1)[0])}${kept}`;
      });
      return `${this.title}, smoothed. ${words.join("; ")}. Arrow keys move the cursor, + and - zoom, Escape shows everything.`;
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
      const across = event.clientX - this.plot.getBoundingClientRect().left;
      const { left, right } = this.area;
      const { low, high } = this.x;
      return low + ((Math.min(Math.max(across, left), right) - left) / (right - left)) * (high - low);
    }

    grab(event) {
      if (event.button || !this.y) return;
      this.held = { from: event.clientX, step: this.stepAt(event) };
      this.plot.setPointerCapture(event.pointerId);
    }

    pull(event) {
      if (!this.y) return;
      const step = this.stepAt(event);
      const marked = this.marks.find((mark) => Math.abs(this.x(mark.step) - this.x(step)) <= NEAR);
      this.point(marked && !this.held ? marked.step : step);
      if (!this.held || Math.abs(event.clientX - this.held.from) < DRAG) return;
      const [from, to] = [this.x(this.held.step), this.x(step)].sort((a, b) => a - b);
      Object.assign(this.choice.style, { left: `${from}px`, width: `${to - from}px` });
      this.choice.hidden = false;
    }

    release(event) {
      const held = this.held;
      this.letGo();
      if (!held || Math.abs(event.clientX - held.from) < DRAG) return;
      this.zoomTo([held.step, this.stepAt(event)].sort((a, b) => a - b));
    }

    letGo() {
      this.held = null;
      this.choice.hidden = true;
    }

    turn(event) {
      if (!event.ctrlKey || !this.y) return;
      event.preventDefault();
      this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, this.stepAt(event));
    }

    press(event) {
      const answer = {
        ArrowLeft: () => this.walk(event.shiftKey ? -10 : -1),
        ArrowRight: () => this.walk(event.shiftKey ? 10 : 1),
        Home: () => this.point(this.x.low),
        End: () => this.point(this.x.high),
        "+": () => this.zoomBy(0.5, this.cursor ?? (this.x.low + this.x.high) / 2),
        "=": () => this.zoomBy(0.5, this.cursor ?? (this.x.low + this.x.high) / 2),
        "-": () => this.zoomBy(2, this.cursor ?? (this.x.low + this.x.high) / 2),
        Escape: () => (this.held ? this.letGo() : (this.point(null), this.zoomTo(null))),
      }[event.key];
      if (!answer || !this.y || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      answer();
    }

    // ---- cursor

    walk(bins) {
      const inside = ([step]) => step >= this.x.low && step <= this.x.high;
      const steps = this.shownRuns.flatMap((run) => run.bins.filter(inside).map(([step]) => [step]));
      if (!steps.length) return;
      steps.sort(([a], [b]) => a - b);
      const places = steps.filter(([step], i) => !i || step !== steps[i - 1][0]);
      if (this.cursor === null) return this.point(bins > 0 ? places[0][0] : places.at(-1)[0]);
      const place = nearest(places, this.cursor) + bins;
      this.point(places[Math.min(Math.max(place, 0), places.length - 1)][0]);
    }

    // Move the cursor to the point nearest to the step, or hide it.
    point(step) {
      const runs = step === null || !this.y ? [] : this.shownRuns.filter((run) => run.bins.length);
      const near = runs.map((run) => run.bins[nearest(run.bins, step)][0]);
      const at = near.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a), Infinity);
      const visible = at >= this.x?.low && at <= this.x?.high;
      this.cursor = visible ? at : null;
      this.line.hidden = this.readout.hidden = !visible;
      if (!visible) return;
      const across = this.x(at);
      this.line.style.left = `${across}px`;
      this.tell(runs, at);
      const after = across < this.plot.clientWidth / 2;
      Object.assign(this.readout.style, { left: after ? `${across + 10}px` : "", right: "" });
      if (!after) this.readout.style.right = `${this.plot.clientWidth - across + 10}px`;
    }

    tell(runs, step) {
      const rows = this.runs.length > 1 ? this.rowsOfSeveral(runs, step) : this.rowsOfOne(runs[0], step);
      const cells = rows.flatMap(([colour, words, value]) => {
        const key = make("i", "");
        key.style.background = colour;
        return [key, make("span", "", {}, words), make("b", "", {}, value)];
      });
      this.readout.replaceChildren(make("strong", "", {}, `step ${whole(step)}`), ...cells, ...this.notesAt(step));
    }

    // What the compiler did at the steps for which this one stands.
    notesAt(step) {
      const [{ bins }] = this.runs;
      const here = this.marks.filter((mark) => bins[nearest(bins, mark.step)][0] === step);
      return here.flatMap(({ kind, lines }) => {
        const key = make("i", "");
        key.style.background = `var(--chart-${MARKS[kind] ?? "mark"})`;
        return [key, make("p", "", {}, ...lines.map((line) => make("span", "", {}, line)))];
      });
    }

    rowsOfOne(run, step) {
      const place = nearest(run.bins, step);
      const [, low, high, mean] = run.bins[place];
      const rows = [["var(--chart-raw)", "raw", exact(mean)]];
      if (run.level > 0) rows.push(["", "within", `${exact(low)} to ${exact(high)}`]);
      rows.push(["var(--chart-mean)", "smoothed", exact(run.mean[place][1])]);
      const before = (points) => points.findLast(([at]) => at <= step);
      const kept = before(run.validation);
      if (kept) rows.push(["var(--chart-validation)", `validation at ${whole(kept[0])}`, exact(kept[1])]);
      for (const [group, points] of Object.entries(run.rates)) {
        const rate = points.length ? points[nearest(points, step)][1] : NaN;
        rows.push(["var(--chart-rate)", `rate ${group}`, exact(rate)]);
      }
      const { seconds } = run;
      if (seconds.length) rows.push(["var(--chart-seconds)", "step time", `${exact(seconds[nearest(seconds, step)][1])} s`]);
      return rows;
    }

    rowsOfSeveral(runs, step) {
      const there = runs.filter(({ bins }) => step >= bins[0][0] && step <= bins.at(-1)[0]);
      return there.map((run) => {
        const place = nearest(run.bins, step);
        return [this.colourOf(run), run.name, `${exact(run.mean[place][1])} (raw ${exact(run.bins[place][3])})`];
      });
    }
  };
})();
