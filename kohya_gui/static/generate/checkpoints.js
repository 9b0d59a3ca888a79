// The dialog that compares the checkpoints of a run: its form, the progress of the job, losses and the grid of images.
(() => {
  const { el, rendered, ask, send, url, complaint, write } = Studio;
  const EVERY = 1000; // milliseconds
  const SVG = "http://www.w3.org/2000/svg";
  const [NARROWEST, HIGH, EDGE] = [280, 132, 12]; // pixels of the chart
  const dialog = el("dialog", { class: "browse checkpoints", "aria-label": "Compare checkpoints" });
  const large = el("dialog", { class: "sample-large checkpoint-large", "aria-label": "Image", tabindex: -1 });
  let run, offers, parts, told, known, shown, pinned;

  const svg = (tag, attributes = {}, ...children) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const numbers = (text) => text.split(/[\s;,]+/).filter(Boolean).map(Number);
  const button = (action, words, onclick, more = {}) =>
    el("button", { type: "button", "data-action": action, onclick, ...more }, words);

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
    const box = el("input", { type: "checkbox", name });
    return el("label", { id: `compare-${name}`, class: "tick", title: offers.fields[name].help }, box, offers.fields[name].label);
  };

  const boxes = () => {
    const all = offers.checkpoints.map(({ file, name, label }) => {
      const box = el("input", { type: "checkbox", value: file });
      box.checked = true;
      return el("label", { class: "tick", title: `${name}\n${file}` }, box, label);
    });
    const set = (on) => () => all.forEach((each) => (each.firstChild.checked = on));
    const links = [
      el("button", { type: "button", class: "link", onclick: set(true) }, "All"),
      el("button", { type: "button", class: "link", onclick: set(false) }, "None"),
    ];
    return el("fieldset", { id: "compare-checkpoints", class: "wide" }, el("legend", {}, "Checkpoints ", ...links), el("div", {}, ...all));
  };

  const rules = (value, empty) =>
    el(
      "select",
      {},
      ...(empty ? [el("option", { value: "" }, "Lowest validation loss, or the last without one")] : []),
      ...offers.rules.map((rule) => el("option", { value: rule.value, selected: rule.value === value }, rule.title)),
    );

  const choice = (name) => {
    const choices = offers.fields[name]?.choices ?? [];
    return field(name, el("select", {}, el("option", { value: "" }, "As in the run"), ...choices.map((each) => el("option", { value: each }, each))));
  };

  const drawForm = () => {
    const prompts = el("textarea", { rows: 3, placeholder: offers.sampled ? "The prompts of the run's samples. Or your own, one in each line" : "One in each line, such as: a photo of sks cat --w 1024 --h 1024" });
    const images = [
      offers.adapters ? field("strengths", input("1, or several: 0.6, 0.8, 1")) : null,
      field("seeds", input("of the prompts, else 1")),
      ...["width", "height", "steps", "scale", "guidance"].map((name) => field(name, number())),
      choice("sampler"),
      choice("dtype"),
      field("negative_prompt", input(), "wide"),
      tick("compile"),
      tick("no_images"),
    ];
    const held = offers.held_out ? "The images that validation_split held out of the run" : "No images were held out of the run: name a folder of others";
    const [rule, percent] = [rules("", true), field("within", number(String(offers.within)))];
    percent.hidden = true;
    rule.addEventListener("change", () => (percent.hidden = rule.value !== "earliest"));
    const losses = [
      field("validation_dir", input(held), "wide"),
      field("rule", rule, "double"),
      percent,
      tick("no_validation"),
    ];
    const form = el(
      "form",
      { class: "checkpoints-form", onsubmit: (event) => (event.preventDefault(), start()) },
      boxes(),
      field("prompt", prompts, "wide"),
      ...images.filter(Boolean),
      ...losses,
      el("div", { class: "wide ways" }, el("button", { type: "submit", class: "take", "data-action": "start-comparison" }, "Compare")),
    );
    const [noImages, noLosses] = ["no_images", "no_validation"].map((name) => form.elements[name]);
    for (const [one, other] of [[noImages, noLosses], [noLosses, noImages]])
      one.addEventListener("change", () => one.checked && (other.checked = false)); // one of them must remain
    return form;
  };

  /** The options that the form sets; what is empty is left out. */
  const filled = () => {
    const form = parts.form;
    const value = (name) => form.elements[name]?.value.trim() ?? "";
    const on = (name) => form.elements[name].checked;
    const chosen = [...form.querySelectorAll("fieldset input:checked")].map((box) => box.value);
    const lists = Object.fromEntries(["strengths", "seeds"].map((name) => [name, numbers(value(name))]));
    const single = ["width", "height", "steps", "scale", "guidance", "within", "negative_prompt", "validation_dir", "rule", "sampler", "dtype"];
    const set = Object.fromEntries(single.map((name) => [name, value(name)]).filter(([, each]) => each !== ""));
    const switches = Object.fromEntries(["compile", "no_images", "no_validation"].map((name) => [name, on(name)]));
    const prompt = value("prompt").split("\n").map((line) => line.trim()).filter(Boolean);
    return { checkpoints: chosen, ...lists, ...set, ...switches, prompt };
  };

  const start = async () => {
    parts.said.replaceChildren();
    try {
      await send(`run/${run.id}/comparison`, filled());
      parts.settings.open = false;
    } catch (error) {
      parts.said.replaceChildren(complaint(error));
    }
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
        [known, told] = [news.known, news];
        draw();
      }
    } catch {
      // the live view says that the GUI does not respond
    }
    clearTimeout(parts.timer);
    parts.timer = setTimeout(look, EVERY, id);
  };

  const drawJob = () => {
    const { job, result } = told;
    const living = job && !job.over;
    parts.job.hidden = !living;
    const cells = result?.cells ?? [];
    const made = cells.filter((cell) => cell.image).length;
    const count = cells.length ? ` · ${made} of ${cells.length} images` : "";
    parts.bar.firstChild.style.width = `${cells.length ? (100 * made) / cells.length : 0}%`;
    if (living) write(parts.doing, `${job.doing[0].toUpperCase()}${job.doing.slice(1)}${count}`);
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
      const title = svg("title");
      title.textContent = `${each.label}: ${each.loss.toFixed(5)}${isBest ? ", the best" : ""}`;
      return svg("circle", { cx: x(each.number), cy: y(each.loss), r: isBest ? 6 : 3.5, class: isBest ? "best" : "" }, title);
    });
    const text = (words, at) => {
      const made = svg("text", at);
      made.textContent = words;
      return made;
    };
    const marks = high > low ? [low, high] : [low];
    const scale = marks.map((loss) => text(loss.toFixed(4), { x: EDGE + 46, y: y(loss) + 4, "text-anchor": "end" }));
    const best = points.find((each) => each.number === result.best) ?? points[0];
    const near = x(best.number) < 120 ? "start" : x(best.number) > wide - 120 ? "end" : "middle";
    const label = text(best.label, { x: x(best.number), y: HIGH - 4, "text-anchor": near, class: "best" });
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
    return `${word}: ${best.label} (${best.name})${best.loss == null ? "" : `, validation loss ${best.loss.toFixed(4)}`}`;
  };

  // The grid

  const address = (image) => url(`run/${run.id}/comparison/image/${encodeURIComponent(image)}`);
  const columnsOf = (result) =>
    result.checkpoints.flatMap((checkpoint, number) =>
      result.strengths.map((strength, place) => ({ checkpoint, number, strength, place })),
    );
  const cellAt = (row, column) =>
    told.result.cells.find((cell) => cell.prompt === row && cell.checkpoint === column.number && cell.strength === column.place);
  const named = (row, column) => `${column.checkpoint.label} × ${column.strength}, ${told.result.prompts[row].prompt}, seed ${told.result.prompts[row].seed}`;

  const head = (column, result) => {
    const { checkpoint, number, strength } = column;
    const isBest = number === result.best && measured(result);
    return el(
      "div",
      { class: isBest ? "checkpoint-head best" : "checkpoint-head", title: checkpoint.name },
      el("b", {}, checkpoint.label),
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
        const image = cellAt(row, column)?.image;
        const open = () => show(row, columns.indexOf(column));
        grid.append(
          image
            ? el("button", { type: "button", class: "sample", title: named(row, column), onclick: open }, el("img", { src: address(image), alt: named(row, column), loading: "lazy", decoding: "async" }))
            : el("span", { class: "matrix-none" }),
        );
      }
    });
    return grid;
  };

  const draw = () => {
    drawJob();
    const { result } = told;
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
    parts.unfinished.hidden = result.complete || Boolean(told.job && !told.job.over);
    parts.download.hidden = !result.grid;
    if (result.grid) parts.download.href = address(result.grid);
  };

  // One image large, or two side by side

  const figure = (at, word) => {
    const column = columnsOf(told.result)[at.column];
    const image = el("img", { src: address(cellAt(at.row, column).image), alt: named(at.row, column) });
    const frame = el("div", { class: "zoom" }, image);
    image.addEventListener("click", () => {
      const on = !frame.classList.contains("zoomed");
      for (const each of large.querySelectorAll(".zoom")) each.classList.toggle("zoomed", on);
    });
    frame.addEventListener("scroll", () => {
      for (const other of large.querySelectorAll(".zoom"))
        if (other !== frame) [other.scrollLeft, other.scrollTop] = [frame.scrollLeft, frame.scrollTop];
    });
    const { checkpoint, strength } = column;
    const loss = checkpoint.loss == null ? "" : ` · loss ${checkpoint.loss.toFixed(4)}`;
    return el("figure", { class: word }, frame, el("figcaption", {}, `${checkpoint.label} × ${strength}${loss}`));
  };

  const show = (row, column) => {
    shown = { row, column };
    const { result } = told;
    const prompt = result.prompts[row];
    const image = cellAt(row, columnsOf(result)[column]).image;
    const pin = () => ((pinned = pinned ? null : { ...shown }), show(shown.row, shown.column));
    const use = () => (large.close(), dialog.close(), Studio.useInGenerate(`run/${run.id}/comparison/form/${encodeURIComponent(image)}`));
    large.replaceChildren(
      el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => large.close() }, "✕"),
      el("div", { class: "figures" }, pinned ? figure(pinned, "pinned") : null, figure(shown, "shown")),
      el(
        "div",
        { class: "sample-details" },
        el("p", { class: "sample-prompt" }, prompt.prompt),
        el("p", { class: "quiet" }, `seed ${prompt.seed} · ${prompt.width} × ${prompt.height} · ${prompt.steps} steps · ←→ checkpoints, ↑↓ prompts, click to zoom`),
        el(
          "p",
          { class: "run-actions" },
          button("pin", pinned ? "Show one image" : "Side by side", pin, { title: "Keep this image on the left, and walk on with the arrow keys" }),
          image.endsWith(".png") ? button("use", "Use in Generate", use) : null,
          el("a", { class: "sample-download", href: address(image), download: image }, "Download"),
        ),
      ),
    );
    if (!large.open) large.showModal();
    large.focus(); // what was focused is replaced
  };

  /** Go to the next cell in a direction that has an image. */
  const walk = (down, right) => {
    const columns = columnsOf(told.result);
    let [row, column] = [shown.row + down, shown.column + right];
    while (columns[column] && told.result.prompts[row]) {
      if (cellAt(row, columns[column])?.image) return show(row, column);
      [row, column] = [row + down, column + right];
    }
  };
  large.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!by) return;
    event.preventDefault();
    walk(...by);
  });
  large.addEventListener("click", (event) => event.target === large && large.close());
  large.addEventListener("close", () => (pinned = null));

  // The dialog

  const furnish = () => {
    const form = drawForm();
    const settings = el("details", { open: true }, el("summary", {}, "What to compare"), form);
    const bar = el("div", { class: "bar", role: "progressbar", "aria-label": "Progress" }, el("i"));
    const [doing, said, failed] = [el("span", { role: "status" }), el("div"), el("div")];
    const stop = button("stop-comparison", "Stop", () => send(`run/${run.id}/comparison/stop`).catch(() => {}));
    const job = el("div", { class: "checkpoints-job", hidden: true }, bar, doing, stop);
    const rule = rules("", false);
    rule.value = "";
    rule.dataset.rule = "";
    const within = number();
    const again = () => ((known = ""), look(run.id));
    for (const control of [rule, within]) control.addEventListener("change", again);
    const download = el("a", { class: "sample-download", download: `${run.name}-checkpoints.png`, hidden: true }, "Download as one image");
    const [best, losses, grid] = [el("b", { class: "verdict" }), el("div"), el("div", { class: "scroll" })];
    const choose = el("label", {}, "The best is the ", rule);
    const percent = el("label", { hidden: true }, "within ", within, " %");
    const unfinished = el("p", { class: "quiet", hidden: true }, "This comparison was not finished. Compare the same again to continue it: what is made stays.");
    const result = el("section", { hidden: true }, unfinished, el("div", { class: "checkpoints-verdict" }, best, choose, percent, download), losses, grid);
    const close = el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() }, "✕");
    dialog.replaceChildren(el("h3", {}, `Checkpoints of ${run.name}`), close, settings, said, job, failed, result);
    parts = { form, settings, bar, doing, said, failed, job, rule, within, best, losses, grid, result, download, unfinished };
  };

  new ResizeObserver(() => dialog.open && told && draw()).observe(dialog); // the chart is as wide as there is room

  /** Open the dialog for a run; `refuse` shows why it cannot be opened. */
  Studio.compareCheckpoints = async (of, refuse) => {
    try {
      offers = await ask(`run/${of.id}/checkpoints`);
    } catch (error) {
      return refuse(error);
    }
    [run, known, told] = [of, "", null];
    if (!dialog.isConnected) document.body.append(dialog, large);
    furnish();
    if (!dialog.open) dialog.showModal();
    await look(run.id);
    if (told?.result || (told?.job && !told.job.over)) parts.settings.open = false;
  };
})();
