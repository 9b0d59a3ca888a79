// What a step sees: its images after crop, flip and colour, its captions after shuffling and dropout.
var StepView = (() => {
  const { el, button, send, image: img } = Studio;
  const LONGEST = 310_000; // ms
  const HUES = 8; // colours of tags
  const TOKEN_HUES = 4; // colours of tokens, in turn
  const TOKENS = "step-tokens"; // whether tokens are shown, in this browser
  const LONGEST_TOKENS = 65_000; // ms

  /** A caption with its tags coloured by their place in the written one; what was dropped is struck out below. */
  const captionOf = ({ caption, written, separator }) => {
    const split = (text) => text.split(separator).map((tag) => tag.trim()).filter(Boolean);
    const before = split(written);
    const used = new Set();
    const tag = (text, number) => el("span", number < 0 ? { class: "tag" } : { class: "tag", "data-hue": number % HUES }, text);
    const now = split(caption).map((text) => {
      const at = before.findIndex((each, number) => each === text && !used.has(number));
      if (at >= 0) used.add(at);
      return tag(text, at);
    });
    const gone = before.filter((_, number) => !used.has(number));
    return [
      el("p", { class: "step-caption" }, ...(now.length ? now : [el("em", {}, "no caption in this step")])),
      ...(gone.length && caption !== written ? [el("p", { class: "step-dropped" }, "not in this step: ", el("s", {}, gone.join(`${separator} `)))] : []),
    ];
  };
  /** A caption with a colour for each token in turn, as each text encoder reads it; what is cut off is struck out. */
  const tokensOf = ({ encoders }, { text, tokens }) =>
    encoders.map(({ name, most }, place) => {
      const spans = tokens[place];
      const count = most == null ? spans.length : Math.min(spans.length, most);
      const parts = [];
      let at = 0; // one letter may be several tokens
      spans.forEach(([start, end], number) => {
        if (end <= at) return;
        if (start > at) parts.push(text.slice(at, start));
        const isCut = number >= count;
        parts.push(el("span", { class: isCut ? "token is-cut" : "token", "data-hue": number % TOKEN_HUES }, text.slice(Math.max(start, at), end)));
        at = end;
      });
      const encoder = `${name[0].toUpperCase()}${name.slice(1)}`;
      const title = most == null ? `${encoder}: ${spans.length} tokens` : `${encoder}: ${spans.length} of ${most} tokens`;
      const cut = spans.length - count;
      return el("div", { class: "step-tokens" }, el("b", {}, title, cut ? el("em", {}, `, ${cut} cut off`) : null), el("p", {}, ...(parts.length ? parts : [el("em", {}, "no text")])));
    });
  const sampleOf = (sample) => {
    const { image, mask, path, bucket, high_noise: isAtHighNoise, loss_weight: weight } = sample;
    const name = Studio.fileName(path);
    return el(
      "figure",
      {},
      image ? img(`data:image/png;base64,${image}`, `${name} as this step sees it`) : el("p", { class: "cell-broken" }, "It cannot be shown."),
      mask ? el("div", { class: "quiet" }, "Mask: white is trained", img(`data:image/png;base64,${mask}`, `Mask of ${name}`, { class: "step-mask" })) : null,
      el("figcaption", {}, el("b", {}, name), ` ${bucket}${isAtHighNoise ? " at high noise" : ""}${weight === 1 ? "" : `, loss weight ${weight}`}`),
      ...captionOf(sample),
      el("div", { "data-tokens": "" }),
    );
  };

  /** Return the function that opens the dialog; `request()` describes the dataset. */
  const make = (request) => {
    const number = el("input", { type: "number", min: 1, step: 1, value: 1, "aria-label": "Step" });
    const seed = el("input", { type: "number", min: 0, step: 1, placeholder: "from the form", "aria-label": "Seed" });
    const status = el("p", { role: "status", class: "quiet" });
    const problem = el("div", { role: "alert" });
    const samples = el("div", { class: "step-samples" });
    const box = Studio.dialog({ class: "dataset-dialog", "aria-label": "What a step sees" });
    const tokens = Studio.checkbox(localStorage.getItem(TOKENS) !== "off", () => {
      localStorage.setItem(TOKENS, tokens.checked ? "on" : "off");
      showTokens();
    });
    let shown = null; // the answer on the page
    let unmeasured = {}; // why there are no tokens, by family and model
    /** Show the tokens of the captions that are on the page. */
    const showTokens = async () => {
      const boxes = [...samples.querySelectorAll("[data-tokens]")];
      for (const box of boxes) box.replaceChildren();
      if (!tokens.checked || !shown?.samples.length) return;
      const answer = shown;
      const { family, tab, values } = request();
      const key = `${family} ${values.pretrained_model_name_or_path} ${values.tokenizer_cache_dir}`;
      const texts = answer.samples.map(({ caption }) => caption);
      const body = { family, tab, values, texts, spans: true };
      const timing = { signal: AbortSignal.timeout(LONGEST_TOKENS) };
      const read = unmeasured[key] ? { unmeasured: unmeasured[key] } : await send("dataset/tokens", body, timing).catch((error) => ({ unmeasured: error.message }));
      if (shown !== answer) return;
      if (read.unmeasured) unmeasured[key] = read.unmeasured;
      boxes.forEach((box, place) =>
        box.replaceChildren(...(read.unmeasured ? (place ? [] : [el("p", { class: "quiet" }, `Tokens: not measured. ${read.unmeasured}`)]) : tokensOf(read, read.texts[place]))),
      );
    };
    let asking = false;
    let again = false;
    const load = async () => {
      if (asking) return void (again = true);
      asking = true;
      status.textContent = "Reading the batch…";
      samples.setAttribute("aria-busy", "true");
      await Studio.attempt(problem, async () => {
        const body = { ...request(), step: Number(number.value), seed: seed.value === "" ? null : Number(seed.value) };
        const answer = await send("dataset/step", body, { signal: AbortSignal.timeout(LONGEST) });
        number.max = answer.steps;
        const from = answer.seed_is_set ? `seed ${answer.seed}` : "seed 0; the form sets none, so each run draws its own";
        status.textContent = `Step ${answer.step} of ${answer.steps} · epoch ${answer.epoch} · ${from}${answer.batches > 1 ? ` · ${answer.batches} batches` : ""}`;
        shown = answer;
        samples.replaceChildren(...answer.samples.map(sampleOf), ...answer.remarks.map((text) => el("p", { class: "cell-broken" }, text)));
      });
      if (problem.childNodes.length) {
        status.textContent = "";
        shown = null;
        samples.replaceChildren();
      }
      samples.removeAttribute("aria-busy");
      asking = false;
      showTokens();
      if (again) {
        again = false;
        load();
      }
    };
    const go = (by) => {
      number.value = String(Math.max(1, Number(number.value) + by));
      load();
    };
    number.addEventListener("change", load);
    seed.addEventListener("change", load);
    const row = el(
      "div",
      { class: "dataset-row" },
      el("b", {}, "What a step sees"),
      button("‹", () => go(-1), { "aria-label": "Previous step" }),
      el("label", {}, el("span", {}, "Step"), number),
      button("›", () => go(1), { "aria-label": "Next step" }),
      el("label", {}, el("span", {}, "Seed"), seed),
      el("label", {}, tokens, el("span", {}, "Tokens")),
    );
    box.append(Studio.closer(box), row, status, problem, samples);
    return () => {
      Studio.show(box);
      unmeasured = {};
      load();
    };
  };

  return { make };
})();
