// The tab Machine: the compiler's files on disk, to be cleared, exported and imported.
(() => {
  const { ask, send, attempt, el, button, card, checkbox, write, url, when } = Studio;
  const LONGEST = 600000; // milliseconds that packing a large cache may take
  /** @type {Record<string, any>} */
  let home = null;

  const draw = ({ folder, chosen_by_user, held, oldest, newest, others }) => {
    const written = when(oldest) === when(newest) ? when(newest) : `${when(oldest)} – ${when(newest)}`;
    const row = (name, text) => [el("dt", {}, name), el("dd", {}, text)];
    home.facts.replaceChildren(
      ...row("Folder", chosen_by_user ? `${folder} (TORCHINDUCTOR_CACHE_DIR)` : folder),
      ...row("Holds", held || "Nothing yet: the next compiled run fills it"),
      ...(held ? row("Written", written) : []),
      ...(others ? row("Others", `${others} for other CPUs and versions of PyTorch`) : []),
    );
    home.others.hidden = !others;
    home.clear.disabled = !held && !others;
    home.export.disabled = !held;
  };

  const act = async (work) => {
    const enable = (on) => home.buttons.forEach((button) => (button.disabled = !on));
    /** @type {any} */
    let answer = null;
    enable(false);
    await attempt(home.said, async () => (answer = await work()));
    write(home.status, answer?.done ?? "");
    enable(true);
    if (answer) draw(answer);
    return answer;
  };

  const change = (what, body, meanwhile) =>
    act(() => {
      home.confirm.replaceChildren();
      write(home.status, meanwhile);
      return send(`compile-cache/${what}`, body, { signal: AbortSignal.timeout(LONGEST) });
    });

  /** Ask before something that cannot be undone; `more` is an element of the question, or null. */
  const confirm = (question, action, words, work, more = null) => {
    const yes = button(words, work, { "data-action": `confirm-${action}` });
    write(home.status, "");
    const no = button("Cancel", () => home.confirm.replaceChildren());
    home.confirm.replaceChildren(...[el("span", {}, question), more, yes, no].filter(Boolean));
    yes.focus();
  };

  const clear = () => {
    const box = checkbox(false, null, { id: "compile-cache-others" });
    const label = home.others.hidden ? null : el("label", {}, box, " also for other CPUs and versions of PyTorch");
    const work = () => change("clear", { others: box.checked }, "Clearing…");
    confirm("Clear the compiler cache? The next runs compile everything again.", "clear-compile-cache", "Clear", work, label);
  };

  const save = async () => {
    if (await change("export", {}, "Exporting…")) home.link.click();
  };

  const choose = () =>
    Studio.browse(home.file, "compile_cache", () => {
      const file = home.file.value;
      const question = `Import ${file}? It contains code that compiling executes: import only files that you trust.`;
      confirm(question, "import-compile-cache", "Import", () => change("import", { file }, "Importing…"));
    });

  const furnish = (element) => {
    const action = (name, words, onclick) => button(words, onclick, { "data-action": `${name}-compile-cache` });
    home = {
      element,
      export: action("export", "Export", save),
      import: action("import", "Import", choose),
      clear: action("clear", "Clear", clear),
      facts: el("dl", { class: "facts" }),
      others: el("span", { hidden: true }),
      status: el("p", { role: "status" }),
      said: el("div"),
      confirm: el("div", { class: "confirm", role: "alertdialog", "aria-label": "Compiler cache" }),
      file: el("input", { type: "text", hidden: true }),
      link: el("a", { href: url("compile-cache/file"), download: "", hidden: true }),
    };
    home.buttons = [home.export, home.import, home.clear];
    const { facts, buttons, file, link, confirm, status, said } = home;
    const about =
      "torch.compile keeps here what it has compiled, so that later runs start quickly. Export it as one file to " +
      "start quickly on another machine with the same GPU, CPU and version of PyTorch.";
    const actions = el("div", { class: "run-actions" }, ...buttons, file, link);
    const head = [el("h2", {}, "Compiler cache"), el("p", { class: "quiet" }, about)];
    element.className = "board";
    element.replaceChildren(card(...head, facts, actions, confirm, status, said));
    act(() => ask("compile-cache"));
  };

  /** Look when the tab is opened: counting the files of a large cache takes a moment. */
  const look = async (element) => {
    if (home?.element !== element) furnish(element);
    else if (!home.confirm.firstChild) act(() => ask("compile-cache"));
  };
  Studio.whileShown("#machine-compile-cache [data-compile-cache]", 500, look, () => !home); // if the page opens with this tab
})();
