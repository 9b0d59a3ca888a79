// The dialog that publishes a run: its model card to edit, then an upload to the Hugging Face Hub, or a zip.
(() => {
  const { el, ask, send, url, complaint, write } = Studio;
  const EVERY = 1000; // milliseconds
  const dialog = el("dialog", { class: "browse publish", "aria-label": "Publish" });
  let run, fields;

  const say = (...children) => fields.said.replaceChildren(...children);

  const follow = async (id) => {
    const told = await ask(`run/${id}/published`).catch((error) => ({ error: error.message }));
    if (id !== run || !dialog.open) return;
    if (told.running) return setTimeout(follow, EVERY, id);
    for (const button of fields.buttons) button.disabled = false;
    write(fields.status, "");
    if (told.error) return say(complaint(new Error(told.error)));
    if (told.url) say(el("p", {}, "Uploaded: ", el("a", { href: told.url, target: "_blank", rel: "noreferrer" }, told.url)));
    if (!told.zip) return;
    const link = el("a", { href: url(`run/${id}/published/zip`), download: true }, "Download the zip");
    say(el("p", {}, link));
    link.click();
  };

  const start = async (body, words) => {
    for (const button of fields.buttons) button.disabled = true;
    say();
    write(fields.status, words);
    try {
      await send(`run/${run}/publish`, { text: fields.text.value, ...body });
      follow(run);
    } catch (error) {
      write(fields.status, "");
      say(complaint(error));
      for (const button of fields.buttons) button.disabled = false;
    }
  };

  const upload = () =>
    start({ repo_id: fields.repo.value.trim(), public: fields.public.checked, token: fields.token.value }, "Uploading…");

  const draw = (told) => {
    const text = el("textarea", { rows: 18, class: "where", "aria-label": "Model card", spellcheck: "false" });
    text.value = told.text;
    const repo = el("input", { type: "text", class: "where", placeholder: "me/my-lora", "aria-label": "Repository" });
    const token = el("input", {
      type: "password",
      class: "where",
      autocomplete: "off",
      placeholder: "Token that may write; empty uses HF_TOKEN of the GUI or its login",
      "aria-label": "Hugging Face token",
    });
    const everyone = el("input", { type: "checkbox" });
    const button = (action, words, onclick, more = {}) =>
      el("button", { type: "button", "data-action": action, onclick, ...more }, words);
    const buttons = [
      button("upload", "Upload", upload, { class: "take" }),
      button("zip", "Download as a zip", () => start({ zip: true }, "Packing…")),
    ];
    const [status, said] = [el("p", { role: "status", class: "quiet" }), el("div")];
    fields = { text, repo, token, public: everyone, buttons, status, said };
    dialog.replaceChildren(
      el("h3", {}, "Publish"),
      el("p", {}, "The model card, which the Hub shows. Edit it first; it is saved beside the file."),
      text,
      el("p", {}, "Published:"),
      el("ul", { class: "quiet" }, ...Object.entries(told.sources).map(([name, path]) => el("li", {}, `${name}: ${path}`)), ...told.left_out.map((why) => el("li", {}, why))),
      el("label", {}, "Repository", repo),
      el("label", {}, "Hugging Face token", token),
      el("label", {}, everyone, " Make a new repository public"),
      said,
      status,
      el("div", { class: "ways" }, ...buttons, button("close", "Close", () => dialog.close())),
    );
    text.setSelectionRange(0, 0); // at its top
    text.focus();
  };

  Studio.publish = async (id) => {
    run = id;
    const told = await ask(`run/${id}/card`, { signal: AbortSignal.timeout(70000) });
    if (!dialog.isConnected) document.body.append(dialog);
    draw(told);
    if (!dialog.open) dialog.showModal();
  };
})();
