// The dialog "Presets": those of a family, what fits this GPU marked and the recommended one first, and the user's own,
// which are saved, described and shared here.
(() => {
  const { ask, send, on, el, button, select, card, show, closer, write, attempt } = Studio;
  const GB = 1e9;
  let tab = "";
  let family = "";
  /** @type {any} */
  let known = { families: {}, presets: [] };
  /** @type {any} */
  let fit = null; // what the plan expects on this GPU; null: not known yet

  const said = el("div", { role: "status" });
  const families = select({ "aria-label": "Model family", onchange: ({ target }) => choose(target.value) }, []);
  const gpu = el("span", { class: "quiet" });
  const list = el("ul", { class: "preset-list", "aria-label": "Presets" });
  const name = el("input", { type: "text", placeholder: "Name", "aria-label": "Name of the preset", maxlength: 80 });
  const about = el("input", { type: "text", placeholder: "What it is good for, in a sentence", "aria-label": "Description", maxlength: 300 });
  const take = async (files) => {
    for (const file of files) await act(async () => changed(await send("presets/add", { tab, name: file.name.replace(/\.toml$/i, ""), text: await file.text() })));
  };
  const upload = Studio.upload(".toml", take, { "aria-label": "File of a preset" });
  const keep = el("form", { class: "preset-save", onsubmit: (event) => (event.preventDefault(), save()) });
  keep.append(name, about, el("button", { type: "submit" }, "Save as preset"), button("Add from a file…", () => upload.click()), upload);
  const dialog = Studio.dialog({ id: "presets", class: "presets", "aria-label": "Presets" });
  dialog.append(
    el("div", { class: "preset-head" }, el("h2", {}, "Presets"), families, gpu, closer(dialog)),
    said,
    list,
    card(el("h3", {}, "Your own"), el("p", { class: "quiet" }, "Saves how you train: the settings of the form without model, folders, names and secrets."), keep),
  );

  const act = (work) => attempt(said, work);
  const changed = async ({ name: saved }) => {
    await ready();
    draw();
    write(said, `Saved as ${saved}`);
  };
  let replacing = "";
  const save = () =>
    act(async () => {
      const { form } = Plans;
      const replace = replacing === name.value;
      replacing = name.value; // a second press replaces a preset of this name
      await changed(await send("presets/save", { ...form(tab), name: name.value, about: about.value, replace }));
      replacing = "";
    });

  const gigabytes = (bytes) => `${(bytes / GB).toFixed(bytes < 9.95 * GB ? 1 : 0)} GB`;
  const needed = (preset) => (preset.own || !fit ? null : fit.needed[preset.name]);
  const fits = (preset) => (fit?.usable && needed(preset) ? needed(preset) <= fit.usable : null);
  const facts = (preset) => {
    const { measured } = preset;
    const words = [];
    if (needed(preset)) words.push(`about ${gigabytes(needed(preset))} of GPU memory`);
    else if (measured) words.push(`${measured.gib} GiB of GPU memory`);
    if (measured) words.push(`${measured.ms} ms a step on an ${measured.gpu}`);
    return words.join(" · ");
  };
  const row = (preset) => {
    const isFirst = !preset.own && preset.name === fit?.recommended;
    const sign = isFirst ? "Recommended" : { true: "Fits", false: "Too large for this GPU" }[String(fits(preset))];
    const tone = isFirst ? "good" : fits(preset) === false ? "bad" : "plain";
    const source = preset.own ? `own-preset:${preset.name}` : `preset:${preset.name}`;
    const apply = () => (dialog.close(), Fields.submit(tab, "load-run", source, "load"));
    const link = Studio.url(`presets/file?tab=${tab}&name=${encodeURIComponent(preset.name)}`);
    const translate = preset.own ? "no" : null;
    return el(
      "li",
      { class: fits(preset) === false ? "preset unfit" : "preset" },
      el("div", {}, el("b", { translate }, preset.title), sign ? el("span", { class: `preset-sign ${tone}` }, sign) : null),
      el("p", { translate }, preset.about),
      el("p", { class: "quiet" }, facts(preset)),
      el("div", { class: "preset-ways" }, button("Use", apply, { "aria-label": preset.own ? `Use '${preset.title}'` : `Use ${preset.title}` }), el("a", { href: link, download: true, "aria-label": preset.own ? `Share '${preset.title}' as a file` : `Share ${preset.title} as a file` }, "Share as a file"), preset.own ? remover(preset) : null),
    );
  };
  const remover = (preset) =>
    button(
      "Remove",
      () =>
        act(async () => {
          const { text } = await send("presets/remove", { tab, name: preset.name });
          await ready();
          draw();
          Studio.toast(`Removed '${preset.title}'`, "Undo", async () => changed(await send("presets/add", { tab, name: preset.name, text })));
        }),
      { "aria-label": `Remove '${preset.title}'` },
    );

  const draw = () => {
    const own = known.presets.filter((preset) => preset.family === family);
    const rank = (preset) => [preset.own, preset.name === fit?.recommended ? 0 : 1, fits(preset) === false];
    const order = (a, b) => rank(a).map((part, i) => Number(part) - Number(rank(b)[i])).find(Boolean) ?? 0;
    list.replaceChildren(...own.sort(order).map(row));
    write(gpu, fit?.gpu && fit.bytes ? `${fit.gpu}, ${gigabytes(fit.bytes)}` : "");
  };
  const ready = async () => (known = await ask(`presets?tab=${tab}`));
  const choose = async (wanted) => {
    family = wanted;
    fit = null;
    draw();
    const answer = await send("train/fit", { tab, family: wanted }).catch(() => null); // the plan's sum takes a second
    if (family !== wanted || !answer) return;
    fit = answer;
    draw();
  };
  const open = (of) =>
    act(async () => {
      tab = of;
      show(dialog);
      await ready();
      families.replaceChildren(...Object.entries(known.families).map(([value, words]) => el("option", { value }, words)));
      families.value = Drafts.draft(tab).family;
      choose(families.value);
    });
  on("click", "[id$=-presets]", (pressed) => open(pressed.id.replace(/-presets$/, "")));
})();
