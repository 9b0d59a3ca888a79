// The dialog that publishes a run: its model card to edit, then an upload to the Hugging Face Hub, or a zip.
(() => {
  const { el, button, ask, send, attempt, url, complaint, write } = Studio;
  const EVERY = 1000; // milliseconds
  const dialog = el("dialog", { class: "browse publish", "aria-label": "Publish" });
  let run;
  let fields;

  const say = (...children) => fields.said.replaceChildren(...children);
  const wait = (words) => {
    for (const button of fields.buttons) button.disabled = Boolean(words);
    write(fields.status, words);
  };

  const follow = async (id) => {
    const told = await ask(`run/${id}/published`).catch((error) => ({ error: error.message }));
    if (id !== run || !dialog.open) return;
    if (told.running) return setTimeout(follow, EVERY, id);
    wait("");
    if (told.error) return say(complaint(Object.assign(new Error(told.error), { html: told.html })));
    if (told.url) say(el("p", {}, "Uploaded: ", el("a", { href: told.url, target: "_blank", rel: "noreferrer" }, told.url)));
    if (!told.zip) return;
    const link = el("a", { href: url(`run/${id}/published/zip`), download: true }, "Download the zip");
    say(el("p", {}, link));
    link.click();
  };

  const start = async (body, words) => {
    wait(words);
    const sent = await attempt(fields.said, () => send(`run/${run}/publish`, { text: fields.text.value, ...body }));
    sent ? follow(run) : wait("");
  };

  const upload = () =>
    start({ repo_id: fields.repo.value.trim(), public: fields.public.checked, token: fields.token.value }, "Uploading…");

  const draw = (told) => {
    /** The control of an option; its id is what messages lead to. */
    const control = (name, tag, more) =>
      el(tag, { id: `publish-${name}`, title: told.fields[name].help, placeholder: told.fields[name].placeholder, ...more });
    const labelled = (input) => el("label", {}, told.fields[input.id.replace("publish-", "")].label, input);
    const text = control("text", "textarea", { rows: 18, class: "where", "aria-label": told.fields.text.label, spellcheck: "false" });
    text.value = told.text;
    const repo = control("repo_id", "input", { type: "text", class: "where" });
    const token = control("token", "input", { type: "password", class: "where", autocomplete: "off", placeholder: told.fields.token.help });
    const everyone = control("public", "input", { type: "checkbox" });
    const buttons = [
      button("Upload", upload, { class: "take", "data-action": "upload" }),
      button("Download as a zip", () => start({ zip: true }, "Packing…"), { "data-action": "zip" }),
    ];
    const [status, said] = [el("p", { role: "status", class: "quiet" }), el("div")];
    fields = { text, repo, token, public: everyone, buttons, status, said };
    dialog.replaceChildren(
      el("h3", {}, "Publish"),
      el("p", {}, `${told.fields.text.label}: ${told.fields.text.help}`),
      text,
      el("p", {}, "Published:"),
      el("ul", { class: "quiet" }, ...Object.entries(told.sources).map(([name, path]) => el("li", {}, `${name}: ${path}`)), ...told.left_out.map((why) => el("li", {}, why))),
      labelled(repo),
      labelled(token),
      el("label", {}, everyone, ` ${told.fields.public.label}`),
      said,
      status,
      el("div", { class: "ways" }, ...buttons, button("Close", () => dialog.close(), { "data-action": "close" })),
    );
    text.setSelectionRange(0, 0); // at its top
  };

  Studio.publish = async (id) => {
    run = id;
    const told = await ask(`run/${id}/card`, { signal: AbortSignal.timeout(70000) });
    draw(told);
    Studio.show(dialog);
    fields.text.focus();
  };
})();
