// Samples as a matrix: a row for each prompt (and run, if several) and a column for each step.
var StudioMatrix = (() => {
  const { el, button } = Studio;

  /** Prompts may repeat within a step: match the first with the first, the second with the second, and so on. */
  const keyed = (run) => {
    const seen = new Map();
    return run.samples.map((sample) => {
      const words = sample.prompt || `Prompt ${(sample.number ?? 0) + 1}`;
      const at = `${sample.step}|${words}`;
      seen.set(at, (seen.get(at) ?? -1) + 1);
      return { sample, words, key: `${words}|${seen.get(at)}` };
    });
  };

  /** A sample that a click enlarges. */
  const small = (sample, title, open) => {
    const { width, height } = sample.width && sample.height ? sample : {};
    const clip = Studio.isClip(sample.ending);
    const shown = Studio.media(Studio.url(sample.url), sample.prompt || "", { clip, width, height, translate: "no" });
    const lost = clip ? "Clip not found" : "Image not found";
    shown.addEventListener("error", () => shown.replaceWith(el("span", { class: "quiet" }, lost)));
    return button(shown, open, { class: "sample", title, translate: title === sample.prompt ? "no" : null });
  };
  const heading = (step) => (step ? `Step ${step}` : "Before training");

  const cell = (run, sample, step = false) => {
    if (!sample) return el("span", { class: "matrix-none" });
    const name = run.label ?? run.name;
    const made = small(sample, name ? `'${name}', step ${sample.step}` : heading(sample.step), () => run.open(sample));
    if (step) made.append(el("span", { class: "quiet" }, `step ${sample.step}`));
    return made;
  };

  const line = (run, samples, steps, several) => {
    const at = new Map(samples.map((sample) => [sample.step, sample]));
    return [
      several ? el("span", { class: "matrix-run", title: run.label ?? run.name }, run.label ?? run.name) : null,
      ...steps.map((step) => cell(run, at.get(step))),
    ].filter(Boolean);
  };

  /** `runs`: {name, label, samples, open(sample)}; `newest`: only the last sample of each run, side by side. */
  const matrix = (runs, { newest = false } = {}) => {
    const several = runs.length > 1;
    const entries = runs.map((run) => ({ run, samples: keyed(run) }));
    const prompts = new Map(entries.flatMap(({ samples }) => samples.map(({ key, words }) => [key, words])));
    const steps = [...new Set(runs.flatMap((run) => run.samples.map((sample) => sample.step)))].sort((a, b) => a - b);
    const of = (samples, key) => samples.filter((each) => each.key === key).map((each) => each.sample);
    const latest = (samples) => samples.reduce((a, b) => (!a || b.step > a.step ? b : a), null);
    const columns = newest ? runs.length : steps.length;
    const heads = newest ? runs.map((run) => run.label ?? run.name) : steps.map(heading);
    const grid = el("div", { class: `matrix${several && !newest ? " matrix-runs" : ""}` });
    grid.style.setProperty("--columns", columns);
    const head = several && !newest ? [el("span")] : [];
    const translate = newest ? "no" : null; // names of runs
    grid.append(...head, ...heads.map((words) => el("span", { class: "matrix-head", title: words, translate }, words)));
    for (const [key, words] of prompts) {
      grid.append(el("p", { class: "matrix-prompt" }, words));
      if (newest) grid.append(...entries.map(({ run, samples }) => cell(run, latest(of(samples, key)), true)));
      else for (const { run, samples } of entries) grid.append(...line(run, of(samples, key), steps, several));
    }
    return grid;
  };

  return Object.assign(matrix, { small, heading });
})();
