// The tab Machine: what the compiler keeps on disk, to be cleared, exported and imported.
(() => {
  const { ask, el, write, url, complaint, when } = Studio;
  const LONGEST = 600000; // milliseconds that packing a large cache may take
  let home = null;

  const draw = ({ folder, chosen_by_user, held, oldest, newest, others }) => {
    const written = when(oldest) === when(newest) ? when(newest) : `${when(oldest)} to ${when(newest)}`;
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
    home.said.replaceChildren();
    home.buttons.forEach((button) => (button.disabled = true));
    let told = null;
    try {
      told = await work();
      write(home.status, told.done ?? "");
    } catch (error) {
      write(home.status, "");
      home.said.replaceChildren(complaint(error));
    }
    home.buttons.forEach((button) => (button.disabled = false));
    if (told) draw(told);
    return told;
  };

  const change = (what, body, meanwhile) =>
    act(() => {
      home.confirm.replaceChildren();
      write(home.status, meanwhile);
      return ask(`compile-cache/${what}`, {
        method: "POST",
        headers: { "X-Studio": "1", "Content-Type": "application/json" },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(LONGEST),
      });
    });

  /** Ask before something that cannot be undone; `more` is an element of the question, or null. */
  const confirm = (question, action, words, work, more = null) => {
    const yes = el("button", { type: "button", "data-action": `confirm-${action}`, onclick: work }, words);
    write(home.status, "");
    const no = el("button", { type: "button", onclick: () => home.confirm.replaceChildren() }, "Cancel");
    home.confirm.replaceChildren(...[el("span", {}, question), more, yes, no].filter(Boolean));
    yes.focus();
  };

  const clear = () => {
    const box = el("input", { type: "checkbox", id: "compile-cache-others" });
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
    const button = (action, words, onclick) =>
      el("button", { type: "button", "data-action": `${action}-compile-cache`, onclick }, words);
    const buttons = [button("export", "Export", save), button("import", "Import", choose), button("clear", "Clear", clear)];
    const facts = el("dl", { class: "facts" });
    const others = el("span", { hidden: true });
    const [status, said] = [el("p", { role: "status" }), el("div")];
    const confirmation = el("div", { class: "confirm", role: "alertdialog", "aria-label": "Compiler cache" });
    const file = el("input", { type: "text", hidden: true });
    const link = el("a", { href: url("compile-cache/file"), download: "", hidden: true });
    element.className = "board";
    element.replaceChildren(
      el(
        "section",
        { class: "card" },
        el("h3", {}, "Compiler cache"),
        el(
          "p",
          { class: "quiet" },
          "torch.compile keeps here what it has compiled, so that later runs start quickly. Export it as one file to " +
            "start quickly on another machine with the same GPU, CPU and version of PyTorch.",
        ),
        facts,
        el("div", { class: "run-actions" }, ...buttons, file, link),
        confirmation,
        status,
        said,
      ),
    );
    home = { element, facts, others, status, said, confirm: confirmation, file, link, buttons };
    [home.export, home.import, home.clear] = buttons;
    act(() => ask("compile-cache"));
  };

  /** Look when the tab is opened: counting the files of a large cache takes a moment. */
  const look = () => {
    const element = document.querySelector("[data-compile-cache]");
    if (document.hidden || !element || element.offsetParent === null) return;
    if (home?.element !== element) furnish(element);
    else if (!home.confirm.firstChild) act(() => ask("compile-cache"));
  };
  document.addEventListener("click", (event) => event.target.closest?.("[role=tab]") && setTimeout(look, 50));
  const first = setInterval(() => (look(), home && clearInterval(first)), 500); // if the page opens with this tab
})();
