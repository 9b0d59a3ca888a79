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
    const answer = await ask(`run/${id}/published`).catch((error) => ({ error: error.message }));
    if (id !== run || !dialog.open) return;
    if (answer.running) return setTimeout(follow, EVERY, id);
    wait("");
    if (answer.error) return say(complaint(Object.assign(new Error(answer.error), { html: answer.html })));
    if (answer.url) say(el("p", {}, "Uploaded: ", el("a", { href: answer.url, target: "_blank", rel: "noreferrer" }, answer.url)));
    if (!answer.zip) return;
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

  const draw = ({ fields: options, text: words, sources, left_out: omissions }) => {
    /** The control of an option; its id is what messages lead to. */
    const control = (name, tag, more) => {
      const { help: title, placeholder } = options[name];
      return el(tag, { id: `publish-${name}`, title, placeholder, ...more });
    };
    const labelled = (input) => el("label", {}, options[input.id.replace("publish-", "")].label, input);
    const { label, help } = options.text;
    const text = control("text", "textarea", { rows: 18, class: "where", "aria-label": label, spellcheck: "false" });
    text.value = words;
    const repo = control("repo_id", "input", { type: "text", class: "where" });
    const secret = { type: "password", class: "where", autocomplete: "off", placeholder: options.token.help };
    const token = control("token", "input", secret);
    const everyone = control("public", "input", { type: "checkbox" });
    const buttons = [
      button("Upload", upload, { class: "take", "data-action": "upload" }),
      button("Download as a zip", () => start({ zip: true }, "Packing…"), { "data-action": "zip" }),
    ];
    const status = el("p", { role: "status", class: "quiet" });
    const said = el("div");
    fields = { text, repo, token, public: everyone, buttons, status, said };
    const lines = [...Object.entries(sources).map(([name, path]) => `${name}: ${path}`), ...omissions];
    dialog.replaceChildren(
      el("h2", {}, "Publish"),
      el("p", {}, `${label}: ${help}`),
      text,
      el("p", {}, "Published:"),
      el("ul", { class: "quiet" }, ...lines.map((line) => el("li", {}, line))),
      labelled(repo),
      labelled(token),
      el("label", {}, everyone, ` ${options.public.label}`),
      said,
      status,
      el("div", { class: "ways" }, ...buttons, button("Close", () => dialog.close(), { "data-action": "close" })),
    );
    text.setSelectionRange(0, 0); // at its top
  };

  Studio.publish = async (id) => {
    run = id;
    const answer = await ask(`run/${id}/card`, { signal: AbortSignal.timeout(70000) });
    draw(answer);
    Studio.show(dialog);
    fields.text.focus();
  };
})();
