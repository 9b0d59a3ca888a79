// Samples as a matrix: a row for each prompt (and run, if several) and a column for each step.
window.StudioMatrix = (() => {
  const { el } = Studio;

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

  const cell = (run, sample, step = false) => {
    if (!sample) return el("span", { class: "matrix-none" });
    const image = el("img", { src: Studio.url(sample.url), alt: sample.prompt || "", loading: "lazy", decoding: "async" });
    image.addEventListener("error", () => image.replaceWith(el("span", { class: "quiet" }, "Image not found")));
    const title = `${run.label ?? run.name}, step ${sample.step}`;
    return el("button", { type: "button", class: "sample", title, onclick: () => run.open(sample) }, image, step ? el("span", { class: "quiet" }, `step ${sample.step}`) : null);
  };

  const line = (run, samples, steps, several) => {
    const at = new Map(samples.map((sample) => [sample.step, sample]));
    return [
      several ? el("span", { class: "matrix-run", title: run.label ?? run.name }, run.label ?? run.name) : null,
      ...steps.map((step) => cell(run, at.get(step))),
    ].filter(Boolean);
  };

  /** `runs`: {name, label, samples, open(sample)}; `newest`: only the last sample of each run, side by side. */
  return (runs, { newest = false } = {}) => {
    const several = runs.length > 1;
    const told = runs.map((run) => ({ run, samples: keyed(run) }));
    const prompts = new Map(told.flatMap(({ samples }) => samples.map(({ key, words }) => [key, words])));
    const steps = [...new Set(runs.flatMap((run) => run.samples.map((sample) => sample.step)))].sort((a, b) => a - b);
    const of = (samples, key) => samples.filter((each) => each.key === key).map((each) => each.sample);
    const latest = (samples) => samples.reduce((a, b) => (!a || b.step > a.step ? b : a), null);
    const columns = newest ? runs.length : steps.length;
    const heads = newest
      ? runs.map((run) => run.label ?? run.name)
      : steps.map((step) => (step ? `Step ${step}` : "Before training"));
    const grid = el("div", { class: `matrix${several && !newest ? " matrix-runs" : ""}` });
    grid.style.setProperty("--columns", columns);
    const head = several && !newest ? [el("span")] : [];
    grid.append(...head, ...heads.map((words) => el("span", { class: "matrix-head", title: words }, words)));
    for (const [key, words] of prompts) {
      grid.append(el("p", { class: "matrix-prompt" }, words));
      if (newest) grid.append(...told.map(({ run, samples }) => cell(run, latest(of(samples, key)), true)));
      else for (const { run, samples } of told) grid.append(...line(run, of(samples, key), steps, several));
    }
    return grid;
  };
})();
