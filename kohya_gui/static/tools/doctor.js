// The tab Machine: the checks, and the diagnostics for a bug report.
(() => {
  const { ask, send, el, write, url, complaint, when } = Studio;
  const EVERY = 500; // milliseconds
  const SIGNS = { ok: "✓", warning: "!", problem: "✕", skipped: "–" };
  const WORDS = { ok: "OK", warning: "Warning", problem: "Problem", skipped: "Skipped" };
  let home = null,
    told = null,
    asking = false,
    downloads = false; // whether this browser waits for the zip

  const row = ({ status, title, text, remedy }) =>
    el(
      "tr",
      { class: `finding-${status}` },
      el("td", {}, el("span", { class: "sign", title: WORDS[status], role: "img", "aria-label": WORDS[status] }, SIGNS[status])),
      el("th", { scope: "row" }, title),
      el("td", {}, text, remedy ? el("span", { class: "remedy" }, ` ${remedy}`) : null),
    );

  const counted = (status) => {
    const count = told.findings.filter((finding) => finding.status === status).length;
    return count ? [`${count} ${status}${count > 1 ? "s" : ""}`] : [];
  };

  const conclusion = () => {
    const { running, titles, findings, ended } = told;
    if (running) return titles[findings.length] ? `Checking: ${titles[findings.length]}…` : "Working…";
    if (!findings.length) return "";
    const found = [...counted("problem"), ...counted("warning")].join(" and ") || "No problems";
    return findings.length === titles.length ? `${found}. Checked ${when(ended, true)}` : "";
  };

  const draw = () => {
    const { running, titles, findings, error } = told;
    home.check.disabled = home.collect.disabled = running;
    home.cancel.hidden = home.bar.hidden = !running;
    home.bar.firstChild.style.width = `${(100 * findings.length) / (titles.length || 1)}%`;
    home.rows.replaceChildren(...findings.map(row));
    home.table.hidden = !findings.length;
    write(home.status, conclusion());
    home.said.replaceChildren(...(error ? [complaint(new Error(error))] : []));
    home.link.hidden = running || !told.zip;
    if (running || !downloads) return;
    downloads = false;
    if (told.zip) home.link.click();
  };

  const act = async (work) => {
    try {
      await work();
    } catch (error) {
      downloads = false;
      home.said.replaceChildren(complaint(error));
    }
    beat();
  };

  const collect = () =>
    act(async () => {
      await send("doctor", { zip: true, run: Number(home.runs.value) || null });
      downloads = true;
    });

  const listRuns = async () => {
    const { runs } = await ask("board?limit=20");
    const begun = runs.filter((run) => run.state !== "queued");
    const labels = Studio.labels(begun);
    const chosen = home.runs.value;
    home.runs.replaceChildren(
      el("option", { value: "" }, begun.length ? "The last 3 runs" : "No run"),
      ...begun.map((run) => el("option", { value: run.id }, labels.get(run.id))),
    );
    if ([...home.runs.options].some((option) => option.value === chosen)) home.runs.value = chosen;
  };

  const furnish = (element) => {
    const button = (action, words, onclick, more = {}) =>
      el("button", { type: "button", "data-action": action, onclick, ...more }, words);
    const check = button("check-machine", "Check this machine", () => act(() => send("doctor")));
    const cancel = button("cancel-check", "Cancel", () => act(() => send("doctor/cancel")), { hidden: true });
    const bar = el("span", { class: "bar", hidden: true }, el("i"));
    const status = el("p", { role: "status" });
    const rows = el("tbody");
    const table = el("table", { class: "findings", hidden: true }, rows);
    const said = el("div");
    const runs = el("select", { "aria-label": "Runs in the diagnostics" });
    const collectButton = button("download-diagnostics", "Download diagnostics", collect);
    const link = el("a", { href: url("doctor/zip"), download: "", hidden: true }, "Download again");
    element.className = "board";
    element.replaceChildren(
      el(
        "section",
        { class: "card" },
        el("div", { class: "section-head" }, el("h3", {}, "This machine"), cancel, check),
        el(
          "p",
          { class: "quiet" },
          "Checks Python and its packages, the GPU and its driver, the compiler, disks and memory, and computes a small " +
            "block in each way that training may use. It takes about a minute.",
        ),
        bar,
        status,
        said,
        table,
      ),
      el(
        "section",
        { class: "card" },
        el("h3", {}, "Diagnostics for a bug report"),
        el(
          "p",
          { class: "quiet" },
          "A zip with these checks, the versions of all packages, and settings, events and console output of runs. Keys " +
            "and tokens, home folders and the names of user and machine are removed. Look through it before you send it.",
        ),
        el("div", { class: "run-actions" }, runs, collectButton, link),
      ),
    );
    home = { element, check, cancel, bar, status, rows, table, said, runs, collect: collectButton, link };
    told = null;
    runs.addEventListener("focus", () => act(listRuns));
    listRuns().catch(() => {});
  };

  const beat = async () => {
    const element = document.querySelector("[data-doctor]");
    if (asking || document.hidden || !element || element.offsetParent === null) return;
    if (home?.element !== element) furnish(element);
    asking = true;
    try {
      const news = await ask(`doctor?known=${told?.known ?? ""}`);
      if (news) {
        told = news;
        draw();
      }
    } catch {
      // the live view says that the GUI does not respond
    }
    asking = false;
  };
  setInterval(() => (!told || told.running) && beat(), EVERY);
  document.addEventListener("click", (event) => event.target.closest?.("[role=tab]") && setTimeout(beat));
})();
