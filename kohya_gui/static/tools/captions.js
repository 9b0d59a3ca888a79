// The tab Captions: tag or caption a folder in a job, after a try on five images next to their existing captions.
(() => {
  const { send, el, button, select, url, image, table } = Studio;
  let keyField = null;

  const own = ({ MAKE, labelled, values, set, described }) => ({
    family: (field) => {
      const choices = [["", "not chosen"], ...described().families.map(([name, title, tags]) => [name, `${title} · ${tags ? "tags or prose" : "prose only"}`])];
      const list = select({ id: "caption-family", onchange: ({ target }) => set("family", target.value) }, choices);
      list.value = values().family ?? "";
      return labelled(field, list);
    },
    prompt: (field) => {
      const area = el("textarea", { id: "caption-prompt", rows: 3, oninput: ({ target }) => set("prompt", target.value) });
      area.value = values().prompt ?? "";
      return labelled(field, area, { wide: true });
    },
    endpoint: (field) => {
      const input = MAKE.text(field);
      input.className = "wide";
      keyField = el("input", { id: "caption-key", type: "password", autocomplete: "off", value: keyField?.value });
      const help = "Default: the variable OPENAI_API_KEY of the GUI. It is passed to the job and stored nowhere.";
      const key = el("div", { class: "wide" }, el("label", { class: "tool-label", for: "caption-key" }, "Key"), keyField, el("div", { class: "tool-help" }, help));
      return el("div", { class: "wide pair" }, input, key);
    },
  });

  const ways = ({ act, take }) => {
    const openSettings = ([file]) => act(async () => take((await send("captions/settings", null, { body: file, headers: { "X-Studio": "1" } })).values));
    const picker = Studio.upload(".toml", openSettings, { "aria-label": "Settings file" });
    return [button("Open settings", () => picker.click(), { title: "A TOML file of this command, or kohya_ss's config.toml" }), picker];
  };

  const result = ({ known, result: { captions, tried } }) => {
    if (!captions.length) return [];
    const row = ({ image: path, before, after, kept }, number) => {
      const picture = tried ? image(`${url(`captions/image/${number}`)}?job=${known}`, "", { width: 96 }) : null;
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, picture, el("span", { title: path }, Studio.fileName(path))),
        el("td", { class: before ? "" : "quiet" }, before || "none"),
        el("td", {}, after, kept ? el("p", { class: "quiet" }, kept) : null),
      );
    };
    const changes = table({ class: "job-changes" }, ["Image", "Before", tried ? "Would be" : "Now"], captions.slice(0, 50).map(row));
    return [el("div", { class: "job-scroll", tabindex: 0, role: "region", "aria-label": "Captions" }, changes)];
  };

  const tab = JobTab.make({
    route: "captions",
    prefix: "caption",
    choice: "method",
    choices: [
      ["tagger", "Tagger", "Booru tags, from WD14 and its successors. Computes on the CPU, also during a training."],
      ["captioner", "Captioner", "Sentences, from Florence-2, BLIP-2, Qwen-VL or a model like them. Waits for a run on the GPU."],
      ["endpoint", "Endpoint", "Sentences, from a server with OpenAI's interface, such as Ollama or LM Studio on this machine."],
    ],
    order: ["train_data_dir", "model", "endpoint", "download", "prompt"],
    own,
    ways,
    more: () => ({ key: keyField?.isConnected ? keyField.value : "" }),
    empty: "Try five images first: the results appear here next to the existing captions, and nothing is written.",
    stopped: ({ done, total }) => `Stopped after ${done} of ${total} images. Their captions are kept, and Resume continues with the others`,
    result,
  });

  /** Open the tab with a folder, or with some of its images, for other tabs of the page. */
  Studio.caption = (folder, images = []) => tab.open("captions", folder, images);
})();
