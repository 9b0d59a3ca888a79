// The dialog "My LoRAs": those that runs trained and those in the folders of the tab Models, with preview and words.
(() => {
  const { ask, el, button, url, attempt, fileName } = Studio;
  const said = el("div", { role: "status" });
  const filter = el("input", { type: "search", placeholder: "Filter by name or trigger word", "aria-label": "Filter", oninput: () => narrow() });
  const list = el("ul", { class: "own-loras", "aria-label": "My LoRAs" });
  const dialog = Studio.dialog({ class: "presets", "aria-label": "My LoRAs" });
  dialog.append(el("div", { class: "preset-head" }, el("h2", {}, "My LoRAs"), filter, Studio.closer(dialog)), said, list);

  const card = ({ path, run, words }, add) => {
    const preview = el("img", { alt: "", loading: "lazy", src: `${url("generate/adapter-preview")}?poster=1&path=${encodeURIComponent(path)}` });
    preview.addEventListener("error", () => preview.remove());
    const name = fileName(path);
    const title = run && name === `${run}.safetensors` ? run : name;
    const parts = [el("span", { class: "own-lora-preview" }, preview), el("b", { translate: "no" }, title)];
    if (words) parts.push(el("span", { class: "adapter-words", translate: "no" }, words));
    if (run && title !== run) parts.push(el("span", { class: "quiet", translate: "no" }, run));
    const chosen = button(el("span", {}, ...parts), () => (dialog.close(), add(path)), { class: "own-lora", title: path, "data-text": `${name} ${run} ${words}`.toLowerCase() });
    return el("li", {}, chosen);
  };
  const narrow = () => {
    const typed = filter.value.trim().toLowerCase();
    for (const each of list.children) each.hidden = !each.firstChild.dataset.text.includes(typed);
  };

  /** Let the user choose one of their LoRAs of a family, whose path goes to `add`. */
  Studio.chooseLora = async (family, add) => {
    filter.value = "";
    list.replaceChildren();
    said.replaceChildren();
    Studio.show(dialog);
    await attempt(said, async () => {
      const found = await ask(`generate/adapters?family=${encodeURIComponent(family)}`);
      list.replaceChildren(...found.map((each) => card(each, add)));
      filter.hidden = found.length < 8;
      if (!found.length) said.append(el("p", { class: "quiet" }, "No LoRA of this model family yet: train one, or add its folder in the tab Models."));
    });
    (list.querySelector("button") ?? dialog).focus();
  };
})();
