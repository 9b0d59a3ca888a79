// The dialog that compares the checkpoints of a run: its form, the progress of the job, losses and the grid of images.
(() => {
  const { el, svg, button, checkbox, select, rendered, ask, send, attempt, url, complaint, write } = Studio;
  const EVERY = 1000; // milliseconds
  const [NARROWEST, HIGH, EDGE] = [280, 132, 12]; // pixels of the chart
  const UNFINISHED = "This comparison was not finished. Compare the same again to continue it: finished results stay.";
  const dialog = el("dialog", { class: "browse job-dialog", "aria-label": "Compare checkpoints" });
  const large = Studio.dialog({ class: "sample-large checkpoint-large", "aria-label": "Image", tabindex: -1 });
  let run;
  let offers;
  /** @type {Record<string, any>} */
  let parts;
  /** @type {Record<string, any>} */
  let answer;
  let known;
  let shown;
  let pinned;

  const numbers = (text) => text.split(/[\s;,]+/).filter(Boolean).map(Number);

  // The form

  const field = (name, control, width = "") => {
    if (!offers.fields[name]) return null; // of other families
    const { label, help } = offers.fields[name];
    control.name = name;
    return el("label", { id: `compare-${name}`, class: width, title: help }, el("span", {}, label), control);
  };
  const input = (placeholder = "") => el("input", { type: "text", placeholder });
  const number = (placeholder = "") => el("input", { type: "number", placeholder, step: "any" });
  const tick = (name) => {
    const { label, help } = offers.fields[name];
    return el("label", { id: `compare-${name}`, class: "tick", title: help }, checkbox(false, null, { name }), label);
  };

  const boxes = () => {
    const all = offers.checkpoints.map(({ file, name, label }) => {
      const box = checkbox(true, null, { name: "checkpoints", value: file });
      return el("label", { class: "tick", title: `${name}\n${file}`, translate: "no" }, box, label);
    });
    const set = (on) => () => all.forEach((each) => (each.firstChild.checked = on));
    const links = [button("All", set(true), { class: "link" }), button("None", set(false), { class: "link" })];
    return el("fieldset", { id: "compare-checkpoints", class: "wide" }, el("legend", {}, "Checkpoints ", ...links), el("div", {}, ...all));
  };

  const PIN = "Keep this image on the left, and move on with the arrow keys";
  const LAST = ["", "Lowest validation loss, or the last without one"];
  const rules = (...first) => select({}, [...first, ...offers.rules.map(({ value, title }) => [value, title])]);

  const choice = (name) => {
    const choices = offers.fields[name]?.choices ?? [];
    return field(name, select({}, [["", "As in the run"], ...choices.map((each) => [each, each])]));
  };

  const drawForm = () => {
    const own = "One in each line, such as: a photo of sks cat --w 1024 --h 1024";
    const placeholder = offers.sampled ? "The prompts of the run's samples. Or your own, one in each line" : own;
    const prompts = el("textarea", { rows: 3, placeholder });
    const images = [
      offers.adapters ? field("strengths", input("1, or several: 0.6, 0.8, 1")) : null,
      field("seeds", input("of the prompts, else 1")),
      ...["width", "height", "frames", "fps", "steps", "scale", "guidance"].map((name) => field(name, number())),
      choice("sampler"),
      choice("dtype"),
      field("negative_prompt", input(), "wide"),
      tick("compile"),
      tick("no_images"),
    ];
    const none = "No images were held out of the run: name a folder of others";
    const held = offers.held_out ? "The images that validation_split held out of the run" : none;
    const rule = rules(LAST);
    const percent = field("within", number(String(offers.within)));
    percent.hidden = true;
    rule.addEventListener("change", () => (percent.hidden = rule.value !== "earliest"));
    const folder = field("validation_dir", input(held), "wide");
    const losses = [folder, field("rule", rule, "double"), percent, tick("no_validation")];
    const submit = button("Compare", null, { type: "submit", class: "take", "data-action": "start-comparison" });
    const form = el(
      "form",
      { class: "job-form", onsubmit: (event) => (event.preventDefault(), start()) },
      boxes(),
      field("prompt", prompts, "wide"),
      ...images.filter(Boolean),
      ...losses,
      el("div", { class: "wide ways" }, submit),
    );
    const [noImages, noLosses] = ["no_images", "no_validation"].map((name) => form.elements[name]);
    for (const [one, other] of [[noImages, noLosses], [noLosses, noImages]])
      one.addEventListener("change", () => one.checked && (other.checked = false)); // one of them must remain
    return form;
  };

  /** The options that the form sets, without empty ones. */
  const filled = () => {
    const data = new FormData(parts.form);
    const text = (name) => String(data.get(name) ?? ""); // strengths are of adapters only
    const prompt = text("prompt").split("\n").map((line) => line.trim()).filter(Boolean);
    const lists = { prompt, strengths: numbers(text("strengths")), seeds: numbers(text("seeds")) };
    const isOn = (name) => [name, data.has(name)];
    const switches = Object.fromEntries(["compile", "no_images", "no_validation"].map(isOn));
    const values = [...data].map(([name, value]) => [name, String(value).trim()]).filter(([, value]) => value !== "");
    return { ...Object.fromEntries(values), ...switches, ...lists, checkpoints: data.getAll("checkpoints") };
  };

  const start = async () => {
    const began = () => Studio.sendStart(`run/${run.id}/comparison`, filled());
    if (await attempt(parts.said, began)) parts.settings.open = false;
    known = "";
    look(run.id);
  };

  // The job

  const look = async (id) => {
    if (id !== run?.id || !dialog.open) return;
    clearTimeout(parts.timer);
    const { value: rule } = parts.rule;
    try {
      const news = await ask(`run/${id}/comparison?known=${known}&rule=${rule}&within=${parts.within.value}`);
      if (id !== run?.id || !dialog.open) return;
      if (news) {
        known = news.known;
        answer = news;
        draw();
      }
    } catch {
      // the live view reports that the GUI does not respond
    }
    clearTimeout(parts.timer);
    parts.timer = setTimeout(look, EVERY, id);
  };

  const drawJob = () => {
    const { job, result } = answer;
    const living = job && !job.over;
    parts.job.hidden = !living;
    const cells = result?.cells ?? [];
    const made = cells.filter((cell) => cell.image).length;
    const count = cells.length ? ` · ${made} of ${cells.length} images` : "";
    parts.bar.firstChild.style.width = `${cells.length ? (100 * made) / cells.length : 0}%`;
    if (living) write(parts.doing, `${Studio.capitalised(job.doing)}${count}`);
    parts.form.querySelector("[type=submit]").disabled = living;
    const failed = job?.over && job.error ? [complaint({ html: job.html })] : [];
    const warned = (job?.warnings ?? []).map((html) => rendered("p", { class: "warn" }, html));
    parts.failed.replaceChildren(...failed, ...warned);
  };

  // Losses

  /** A curve of the losses, with the best marked; EMA files are a curve of their own. */
  const chart = (result, wide) => {
    const points = result.checkpoints.map((each, number) => ({ ...each, number })).filter((each) => each.loss != null);
    if (!points.length) return null;
    const losses = points.map((each) => each.loss);
    const [low, high] = [Math.min(...losses), Math.max(...losses)];
    const last = Math.max(result.checkpoints.length - 1, 1);
    const x = (number) => EDGE + 60 + ((wide - 2 * EDGE - 60) * number) / last;
    const y = (loss) => HIGH - 26 - ((HIGH - 26 - EDGE - 8) * (loss - low)) / (high - low || 1);
    const lines = [false, true].map((ema) => {
      const own = points.filter((each) => each.ema === ema);
      const path = own.map((each) => `${x(each.number)},${y(each.loss)}`).join(" ");
      return svg("polyline", { points: path, class: ema ? "loss-line ema" : "loss-line" });
    });
    const dots = points.map((each) => {
      const isBest = each.number === result.best;
      const title = svg("title", {}, [each.label, each.loss.toFixed(5), isBest ? "the best" : ""].filter(Boolean).join(" · "));
      return svg("circle", { cx: x(each.number), cy: y(each.loss), r: isBest ? 6 : 3.5, class: isBest ? "best" : "" }, title);
    });
    const marks = high > low ? [low, high] : [low];
    const left = { x: EDGE + 46, "text-anchor": "end" };
    const scale = marks.map((loss) => svg("text", { ...left, y: y(loss) + 4 }, loss.toFixed(4)));
    const best = points.find((each) => each.number === result.best) ?? points[0];
    const near = x(best.number) < 120 ? "start" : x(best.number) > wide - 120 ? "end" : "middle";
    const label = svg("text", { x: x(best.number), y: HIGH - 4, "text-anchor": near, class: "best" }, best.label);
    const about = `Validation loss of ${points.length} checkpoints; the best is ${best.label}`;
    return svg("svg", { viewBox: `0 0 ${wide} ${HIGH}`, class: "losses", role: "img", "aria-label": about }, ...lines, ...dots, ...scale, label);
  };

  /** Whether there are losses by which a checkpoint can be the best. */
  const measured = (result) => result.checkpoints.some((each) => each.loss != null);

  const conclusion = (result) => {
    const best = result.checkpoints[result.best];
    if (!best) return "No checkpoint has a loss yet";
    if (!measured(result)) return `Last: ${best.label} (${best.name}); no losses were measured`;
    const word = result.complete ? "Best" : "Best so far";
    const loss = best.loss == null ? [] : [`validation loss ${best.loss.toFixed(4)}`];
    return [`${word}: ${best.label} (${best.name})`, ...loss].join(" · ");
  };

  // The grid

  const address = (image) => url(`run/${run.id}/comparison/image/${encodeURIComponent(image)}`);
  const columnsOf = (result) =>
    result.checkpoints.flatMap((checkpoint, number) =>
      result.strengths.map((strength, place) => ({ checkpoint, number, strength, place })),
    );
  const cellAt = (row, column) =>
    answer.result.cells.find((cell) => cell.prompt === row && cell.checkpoint === column.number && cell.strength === column.place);
  const named = (row, column) => `${column.checkpoint.label} × ${column.strength} · ${answer.result.prompts[row].prompt} · seed ${answer.result.prompts[row].seed}`;

  const head = (column, result) => {
    const { checkpoint, number, strength } = column;
    const isBest = number === result.best && measured(result);
    return el(
      "div",
      { class: isBest ? "checkpoint-head best" : "checkpoint-head" },
      el("b", { title: checkpoint.name, translate: "no" }, checkpoint.label),
      result.strengths.length > 1 || strength !== 1 ? el("span", {}, `strength ${strength}`) : null,
      checkpoint.loss == null ? null : el("span", {}, `loss ${checkpoint.loss.toFixed(4)}`),
      isBest ? el("span", { class: "badge" }, "best") : null,
    );
  };

  const drawGrid = (result) => {
    const columns = columnsOf(result);
    const grid = el("div", { class: "checkpoint-grid" });
    grid.style.setProperty("--columns", columns.length);
    grid.append(el("span", { class: "corner" }), ...columns.map((column) => head(column, result)));
    result.prompts.forEach((prompt, row) => {
      grid.append(el("div", { class: "checkpoint-prompt" }, el("span", { title: prompt.prompt }, prompt.prompt), el("span", { class: "quiet" }, `seed ${prompt.seed}`)));
      for (const column of columns) {
        const cell = cellAt(row, column);
        const open = () => show(row, columns.indexOf(column));
        const title = named(row, column);
        const shape = Studio.isClip(cell?.image) ? { clip: true, width: prompt.width, height: prompt.height } : {};
        const small = () => Studio.media(address(cell.image), title, shape);
        const made = cell?.image && button(small(), open, { class: "sample", title, "data-row": row });
        grid.append(made || el("span", { class: "matrix-none" }));
      }
      Studio.together([...grid.querySelectorAll(`[data-row="${row}"] video`)]);
    });
    return grid;
  };

  const draw = () => {
    drawJob();
    const { result } = answer;
    parts.result.hidden = !result;
    if (!result) return;
    if (!parts.rule.value) [parts.rule.value, parts.within.value] = [result.rule, result.within];
    parts.within.parentElement.hidden = parts.rule.value !== "earliest";
    const wide = Math.max(parts.result.clientWidth, NARROWEST);
    const key = JSON.stringify([result.checkpoints, result.cells, result.best, wide]);
    if (parts.drawn !== key) {
      const [left, top] = [parts.grid.scrollLeft, dialog.scrollTop];
      parts.drawn = key;
      parts.losses.replaceChildren(...[chart(result, wide)].filter(Boolean));
      parts.grid.replaceChildren(drawGrid(result));
      [parts.grid.scrollLeft, dialog.scrollTop] = [left, top];
    }
    write(parts.best, conclusion(result));
    parts.unfinished.hidden = result.complete || Boolean(answer.job && !answer.job.over);
    for (const [link, file] of [[parts.download, result.grid], [parts.playable, result.grid_clip]]) {
      link.hidden = !file;
      if (file) link.href = address(file);
    }
    write(parts.apart, result.no_grid_clip ?? "");
    parts.rate.hidden = !Studio.canRate(candidates());
  };

  const candidates = () =>
    columnsOf(answer.result).map((column) => {
      const images = answer.result.prompts.map((_, row) => cellAt(row, column)?.image).map((file) => (file ? address(file) : null));
      const { strengths } = answer.result;
      return { name: `${column.checkpoint.label}${strengths.length > 1 ? ` × ${column.strength}` : ""}`, images };
    });
  const rate = () => Studio.rate(candidates(), answer.result.prompts.map(({ prompt, seed }) => `${prompt} · seed ${seed}`));

  // One image large, or two side by side

  const figure = (at, word) => {
    const column = columnsOf(answer.result)[at.column];
    const frames = () => [...large.querySelectorAll(".zoom")];
    const zoom = () => {
      const on = !frame.classList.contains("zoomed");
      for (const each of frames()) each.classList.toggle("zoomed", on);
    };
    const follow = () => {
      for (const other of frames()) if (other !== frame) other.scrollTo(frame.scrollLeft, frame.scrollTop);
    };
    const file = cellAt(at.row, column).image;
    const clip = Studio.isClip(file); // a click is for its controls
    const shows = clip ? { clip, controls: true } : { onclick: zoom, loading: "eager" };
    const frame = el("div", { class: "zoom", onscroll: follow }, Studio.media(address(file), named(at.row, column), shows));
    const { checkpoint, strength } = column;
    const loss = checkpoint.loss == null ? "" : ` · loss ${checkpoint.loss.toFixed(4)}`;
    return el("figure", { class: word }, frame, el("figcaption", {}, `${checkpoint.label} × ${strength}${loss}`));
  };

  const show = (row, column) => {
    shown = { row, column };
    const { result } = answer;
    const prompt = result.prompts[row];
    const file = cellAt(row, columnsOf(result)[column]).image;
    const isClip = Studio.isClip(file);
    const length = isClip ? ` · ${prompt.frames} frames` : "";
    const keys = ["←→ checkpoints", "↑↓ prompts", ...(isClip ? [] : ["click to zoom"])].join(" · ");
    const pin = () => ((pinned = pinned ? null : { ...shown }), show(shown.row, shown.column));
    const use = () => {
      large.close();
      dialog.close();
      Studio.useInGenerate(`run/${run.id}/comparison/form/${encodeURIComponent(file)}`);
    };
    large.replaceChildren(
      Studio.closer(large),
      el("div", { class: "figures" }, pinned ? figure(pinned, "pinned") : null, figure(shown, "shown")),
      el(
        "div",
        { class: "sample-details" },
        el("p", { class: "sample-prompt" }, prompt.prompt),
        el("p", { class: "quiet" }, `seed ${prompt.seed} · ${prompt.width} × ${prompt.height}${length} · ${prompt.steps} steps · ${keys}`),
        el(
          "p",
          { class: "run-actions" },
          button(pinned ? "Show one image" : "Side by side", pin, { "data-action": "pin", title: PIN }),
          file.endsWith(".png") || isClip ? button("Use in Generate", use, { "data-action": "use" }) : null,
          el("a", { class: "sample-download", href: address(file), download: file }, "Download"),
        ),
      ),
    );
    Studio.together([...large.querySelectorAll("video")]);
    Studio.show(large);
    large.focus(); // the focused element is replaced
  };

  /** Go to the next cell in a direction that has an image. */
  const walk = (down, right) => {
    const columns = columnsOf(answer.result);
    let [row, column] = [shown.row + down, shown.column + right];
    while (columns[column] && answer.result.prompts[row]) {
      if (cellAt(row, columns[column])?.image) return show(row, column);
      [row, column] = [row + down, column + right];
    }
  };
  Studio.onKeys(large, {
    ArrowLeft: () => walk(0, -1),
    ArrowRight: () => walk(0, 1),
    ArrowUp: () => walk(-1, 0),
    ArrowDown: () => walk(1, 0),
  });
  large.addEventListener("close", () => (pinned = null));

  // The dialog

  const furnish = () => {
    const again = () => ((known = ""), look(run.id));
    const form = drawForm();
    const rule = rules();
    rule.value = "";
    rule.dataset.rule = "";
    const within = number();
    for (const control of [rule, within]) control.addEventListener("change", again);
    const stop = () => send(`run/${run.id}/comparison/stop`).catch(() => {});
    const download = `${run.name}-checkpoints.png`;
    parts = {
      form,
      rule,
      within,
      settings: el("details", { open: true }, el("summary", {}, "What to compare"), form),
      bar: el("div", { class: "bar", role: "progressbar", "aria-label": "Progress" }, el("i")),
      doing: el("span", { role: "status" }),
      said: el("div"),
      failed: el("div"),
      best: el("b", { class: "verdict" }),
      losses: el("div"),
      grid: el("div", { class: "scroll" }),
      unfinished: el("p", { class: "quiet", hidden: true }, UNFINISHED),
      download: el("a", { class: "sample-download", download, hidden: true }, "Download as one image"),
      playable: el("a", { class: "sample-download", download: `${run.name}-checkpoints.mp4`, hidden: true }, "Download as one clip"),
      apart: el("span", { class: "quiet" }),
      rate: button("Rate by eye…", rate, { class: "quiet-button", hidden: true, "data-action": "rate", title: "Choose the better of two images without their names" }),
    };
    const { settings, said, failed, bar, doing, best, unfinished, losses, grid } = parts;
    const choose = el("label", {}, "The best is the ", rule);
    const percent = el("label", { hidden: true }, "within ", within, " %");
    const stopping = button("Stop", stop, { "data-action": "stop-comparison" });
    parts.job = el("div", { class: "checkpoints-job", hidden: true }, bar, doing, stopping);
    const verdict = el("div", { class: "checkpoints-verdict" }, best, choose, percent, parts.rate, parts.download, parts.playable, parts.apart);
    parts.result = el("section", { hidden: true }, unfinished, verdict, losses, grid);
    const title = el("h2", {}, `Checkpoints of ${run.name}`);
    dialog.replaceChildren(title, Studio.closer(dialog), settings, said, parts.job, failed, parts.result);
  };

  new ResizeObserver(() => dialog.open && answer && draw()).observe(dialog); // the chart is as wide as there is room

  /** Open the dialog for a run. */
  Studio.compareCheckpoints = async (of) => {
    offers = await ask(`run/${of.id}/checkpoints`);
    run = of;
    known = "";
    answer = null;
    furnish();
    Studio.show(dialog);
    await look(run.id);
    if (answer?.result || (answer?.job && !answer.job.over)) parts.settings.open = false;
  };
})();
