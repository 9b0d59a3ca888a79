// The tab Machine: the checks, and the diagnostics for a bug report.
(() => {
  const { ask, send, attempt, el, button, card, write, url, complaint, when } = Studio;
  const EVERY = 500; // milliseconds
  const SIGNS = { ok: "✓", warning: "!", problem: "✕", skipped: "–" };
  const WORDS = { ok: "OK", warning: "Warning", problem: "Problem", skipped: "Skipped" };
  /** @type {Record<string, any>} */
  let home = null;
  let answer = null;
  let downloads = false; // whether this browser waits for the zip

  const row = ({ status, title, text, remedy }) =>
    el(
      "tr",
      { class: `finding-${status}` },
      el("td", {}, el("span", { class: "sign", title: WORDS[status], role: "img", "aria-label": WORDS[status] }, SIGNS[status])),
      el("th", { scope: "row" }, title),
      el("td", {}, text, remedy ? el("span", { class: "remedy" }, ` ${remedy}`) : null),
    );

  const counted = (status) => {
    const count = answer.findings.filter((finding) => finding.status === status).length;
    return count ? [`${count} ${status}${count > 1 ? "s" : ""}`] : [];
  };

  const conclusion = () => {
    const { running, titles, findings, ended } = answer;
    if (running) return titles[findings.length] ? `Checking: ${titles[findings.length]}…` : "Working…";
    if (!findings.length) return "";
    const found = [...counted("problem"), ...counted("warning")].join(" and ") || "No problems";
    return findings.length === titles.length ? `${found}. Checked ${when(ended, true)}` : "";
  };

  const draw = () => {
    const { running, titles, findings, error } = answer;
    home.check.disabled = home.collect.disabled = running;
    home.cancel.hidden = home.bar.hidden = !running;
    home.bar.firstChild.style.width = `${(100 * findings.length) / (titles.length || 1)}%`;
    home.rows.replaceChildren(...findings.map(row));
    home.table.hidden = !findings.length;
    write(home.status, conclusion());
    home.said.replaceChildren(...(error ? [complaint(new Error(error))] : []));
    home.link.hidden = running || !answer.zip;
    if (running || !downloads) return;
    downloads = false;
    if (answer.zip) home.link.click();
  };

  const act = async (work) => {
    if (!(await attempt(home.said, work))) downloads = false;
    beat();
  };

  const collect = async () => {
    await send("doctor", { zip: true, run: Number(home.runs.value) || null });
    downloads = true;
  };

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
    const action = (name, words, work, more) => button(words, () => act(work), { "data-action": name, ...more });
    home = {
      element,
      check: action("check-machine", "Check this machine", () => send("doctor")),
      cancel: action("cancel-check", "Cancel", () => send("doctor/cancel"), { hidden: true }),
      collect: action("download-diagnostics", "Download diagnostics", collect),
      bar: el("span", { class: "bar", hidden: true }, el("i")),
      status: el("p", { role: "status" }),
      rows: el("tbody"),
      said: el("div"),
      runs: el("select", { "aria-label": "Runs in the diagnostics", onfocus: () => listRuns().catch(() => {}) }),
      link: el("a", { href: url("doctor/zip"), download: "", hidden: true }, "Download again"),
    };
    home.table = el("table", { class: "findings", hidden: true }, home.rows);
    const checks =
      "Checks Python and its packages, the GPU and its driver, the compiler, disks and memory, and computes a small " +
      "block in each way that training may use. It takes about a minute.";
    const diagnostics =
      "A zip with these checks, the versions of all packages, and settings, events and console output of runs. Keys " +
      "and tokens, home folders and the names of user and machine are removed. Look through it before you send it.";
    const head = el("div", { class: "section-head" }, el("h2", {}, "This machine"), home.cancel, home.check);
    element.className = "board";
    element.replaceChildren(
      card(head, el("p", { class: "quiet" }, checks), home.bar, home.status, home.said, home.table),
      card(
        el("h2", {}, "Diagnostics for a bug report"),
        el("p", { class: "quiet" }, diagnostics),
        el("div", { class: "run-actions" }, home.runs, home.collect, home.link),
      ),
    );
    answer = null;
    listRuns().catch(() => {});
  };

  const work = async (element) => {
    if (home?.element !== element) furnish(element);
    const news = await ask(`doctor?known=${answer?.known ?? ""}`);
    if (!news) return;
    answer = news;
    draw();
  };
  const beat = Studio.whileShown("#machine-checks [data-doctor]", EVERY, work, () => !answer || answer.running);
})();
