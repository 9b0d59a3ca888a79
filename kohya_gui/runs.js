// The tab Runs: the queue to put in order, the runs there have been, and several of them side by side.
(() => {
  const { el, write, send, ask, board } = Studio;
  const picked = new Set();
  let home = null,
    comparing = null;

  // A table or list whose rows keep their elements, so that focus and pointer stay where they are

  const keyed = (parent, items, make, fill) => {
    const old = new Map([...parent.children].map((row) => [row.dataset.run, row]));
    const rows = items.map((item) => {
      const row = old.get(String(item.id)) ?? make(item);
      row.dataset.run = item.id;
      fill(row, item);
      return row;
    });
    if (rows.length !== parent.children.length || rows.some((row, i) => parent.children[i] !== row))
      parent.replaceChildren(...rows);
  };

  const act = async (work) => {
    try {
      await work();
      home.said.replaceChildren();
    } catch (error) {
      home.said.replaceChildren(Studio.complaint(error));
    }
    Studio.beat();
  };

  // The queue

  const ORDER = [
    ["first", "⤒", "First"],
    ["up", "↑", "Up"],
    ["down", "↓", "Down"],
    ["remove", "✕", "Remove"],
  ];

  const queueRow = (run) => {
    const button = ([action, sign, word]) =>
      el(
        "button",
        {
          type: "button",
          "data-action": action,
          title: word,
          "aria-label": `${word}: ${run.name}`,
          onclick: () => act(() => send(`run/${run.id}/${action}`)),
        },
        sign,
      );
    return el(
      "li",
      {},
      el("span", { class: "badge" }),
      el("button", { type: "button", class: "link run-link", onclick: () => choose(run.id) }),
      el("span", { class: "quiet cards" }),
      el("span", { class: "bar" }, el("i")),
      el("span", { class: "order" }, ...ORDER.map(button)),
    );
  };

  const fillQueueRow = (row, run) => {
    const [badge, name, cards, bar, order] = row.children;
    const waits = run.state === "queued";
    row.className = `run-${run.state}${run.id === Studio.shown() ? " chosen" : ""}`;
    write(badge, waits ? `${run.place}` : run.word);
    write(name, run.name);
    write(
      cards,
      waits && run.error
        ? run.error
        : `${run.tab_title}${run.gpus === "all" || run.gpus === "cpu" ? "" : ` · GPU ${run.gpus}`}`,
    );
    bar.hidden = waits;
    bar.firstChild.style.width = `${100 * run.fraction}%`;
    order.hidden = !waits;
  };

  // The runs there have been

  const COLUMNS = ["", "Run", "State", "Training", "Steps", "Loss", "Took", "Started", "Result"];

  const historyRow = (run) => {
    const box = el("input", { type: "checkbox", "aria-label": `Compare ${run.name}` });
    box.addEventListener(
      "change",
      () => (box.checked ? picked.add(run.id) : picked.delete(run.id), drawCompareButton()),
    );
    box.addEventListener("click", (event) => event.stopPropagation());
    const row = el(
      "tr",
      { onclick: () => choose(run.id) },
      el("td", {}, box),
      el("td", {}, el("button", { type: "button", class: "link run-link" })),
      el("td", {}, el("span", { class: "badge" })),
      ...COLUMNS.slice(3).map(() => el("td")),
    );
    return row;
  };

  const when = (seconds) => {
    if (!seconds) return "";
    const time = new Date(seconds * 1000);
    const today = time.toDateString() === new Date().toDateString();
    return today
      ? time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
      : time.toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" });
  };

  const fillHistoryRow = (row, run) => {
    const cells = [...row.children];
    row.className = `run-${run.state}${run.id === Studio.shown() ? " chosen" : ""}`;
    cells[0].firstChild.checked = picked.has(run.id);
    write(cells[1].firstChild, run.name);
    cells[1].firstChild.title = run.folder;
    write(cells[2].firstChild, run.word);
    cells[2].firstChild.title = run.error || "";
    write(cells[3], [run.tab_title, run.family_title].filter(Boolean).join(" · "));
    write(cells[4], !run.max_steps ? "" : run.step === run.max_steps ? run.step : `${run.step} / ${run.max_steps}`);
    write(cells[5], run.loss == null ? "" : run.loss.toFixed(4));
    write(cells[6], run.started && run.ended ? Studio.duration(run.ended - run.started) : "");
    write(cells[7], when(run.started ?? run.created));
    write(cells[8], run.result || "");
    cells[8].title = run.result || "";
  };

  const choose = (id) => {
    closeComparison();
    Studio.choose(id);
    drawBoard();
    if (home.right.offsetTop > home.element.offsetTop + home.element.offsetHeight / 2)
      home.right.scrollIntoView({ behavior: "smooth" }); // it stands below
  };

  // Several side by side

  const drawCompareButton = () => {
    const known = [...picked].filter((id) => board.runs.some((run) => run.id === id));
    write(home.compare, known.length > 1 ? `Compare ${known.length} runs` : "Compare");
    home.compare.disabled = known.length < 2;
    home.compare.title = known.length < 2 ? "Tick two runs or more" : "";
  };

  const compare = () =>
    act(async () => {
      const told = await ask(`compare?ids=${[...picked].join(",")}`);
      closeComparison();
      const chart = el("div", { class: "curves" });
      const differences = told.settings.length
        ? el(
            "div",
            { class: "scroll" },
            el(
              "table",
              { class: "differences" },
              el(
                "thead",
                {},
                el("tr", {}, el("th", {}, "Setting"), ...told.runs.map((run) => el("th", { scope: "col" }, run.name))),
              ),
              el(
                "tbody",
                {},
                ...told.settings.map((setting) =>
                  el(
                    "tr",
                    {},
                    el("th", { scope: "row", title: setting.option }, setting.label),
                    ...setting.values.map((value) => el("td", {}, value)),
                  ),
                ),
              ),
            ),
          )
        : el("p", { class: "quiet" }, "Their settings are the same");
      const close = el("button", { type: "button", class: "small", onclick: closeComparison }, "Close");
      const element = el(
        "section",
        { class: "comparison", "aria-label": "Comparison" },
        el("div", { class: "section-head" }, el("h3", {}, `${told.runs.length} runs side by side`), close),
        chart,
        el("h4", {}, "Settings that differ"),
        differences,
      );
      home.right.prepend(element);
      home.right.classList.add("comparing");
      comparing = { element, curves: new StudioCurves(chart, "Loss of each run"), runs: told.runs, close };
      close.focus();
      await drawComparison();
    });

  const drawComparison = async () => {
    if (!comparing) return;
    const { curves, runs } = comparing;
    const points = (run) => board.runs.find((each) => each.id === run.id)?.step ?? 0;
    await curves.show(runs.map((run) => ({ id: run.id, name: run.name, curves: points(run) })));
  };

  const closeComparison = () => {
    if (!comparing) return;
    comparing.curves.forget();
    comparing.element.remove();
    home.right.classList.remove("comparing");
    comparing = null;
    home.compare.focus();
  };

  // The tab

  const furnish = (element) => {
    const pause = el("input", { type: "checkbox", role: "switch", "data-switch": "paused" });
    pause.addEventListener("change", () => act(() => send("queue", { paused: pause.checked })));
    const goOn = el("input", { type: "checkbox", role: "switch", "data-switch": "after_failure" });
    goOn.addEventListener("change", () => act(() => send("queue", { after_failure: goOn.checked })));
    const queue = el("ul", { class: "queue", "aria-label": "Queue" });
    const notice = el("p", { class: "warn", role: "status" });
    const empty = el(
      "p",
      { class: "quiet" },
      "Nothing runs and nothing waits. What you start in a training tab comes here.",
    );
    const find = el("input", { type: "search", placeholder: "Find a run", "aria-label": "Find a run" });
    find.addEventListener("input", () => drawBoard());
    const compareButton = el(
      "button",
      { type: "button", class: "small", "data-action": "compare", disabled: true, onclick: compare },
      "Compare",
    );
    const rows = el("tbody");
    const older = el("button", { type: "button", class: "link", onclick: Studio.showOlder }, "Show older runs");
    const said = el("div");
    element.className = "board";
    element.replaceChildren(
      said,
      el(
        "section",
        { class: "card" },
        el(
          "div",
          { class: "section-head" },
          el("h3", {}, "Queue"),
          el("label", {}, pause, "Pause"),
          el("label", {}, goOn, "Go on after a failed run"),
        ),
        notice,
        queue,
        empty,
      ),
      el(
        "section",
        { class: "card" },
        el("div", { class: "section-head" }, el("h3", {}, "Runs"), find, compareButton),
        el(
          "div",
          { class: "scroll past" },
          el(
            "table",
            { class: "history" },
            el("thead", {}, el("tr", {}, ...COLUMNS.map((title) => el("th", { scope: "col" }, title)))),
            rows,
          ),
          older,
        ),
      ),
    );
    home = {
      element,
      said,
      notice,
      pause,
      goOn,
      queue,
      empty,
      find,
      compare: compareButton,
      rows,
      older,
      right: document.querySelector(".runs-right"),
    };
  };

  const drawBoard = () => {
    const element = document.querySelector("[data-board]");
    if (!element || element.offsetParent === null) return;
    if (home?.element !== element) furnish(element);
    home.pause.checked = board.paused;
    write(home.notice, board.notice || "");
    home.goOn.checked = board.after_failure;
    const living = board.runs.filter((run) => Studio.LIVING.includes(run.state)).sort((a, b) => a.started - b.started);
    const waiting = board.runs.filter((run) => run.state === "queued").sort((a, b) => a.place - b.place);
    keyed(home.queue, [...living, ...waiting], queueRow, fillQueueRow);
    home.empty.hidden = living.length + waiting.length > 0;
    const words = home.find.value.trim().toLowerCase().split(/\s+/);
    const text = (run) =>
      [run.name, run.tab_title, run.family_title, run.word, run.folder].join(" ").toLowerCase();
    const past = board.runs.filter((run) => run.state !== "queued" && words.every((word) => text(run).includes(word)));
    keyed(home.rows, past, historyRow, fillHistoryRow);
    home.older.hidden = board.runs.length < board.limit;
    drawCompareButton();
    drawComparison().catch(() => {});
  };
  Studio.listeners.push(drawBoard);

  // A run's settings into the form of its tab

  const until = async (look, tries = 60) => {
    for (; tries; tries--) {
      const found = look();
      if (found) return found;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    return null;
  };

  Studio.load = async (run) => {
    Studio.goTo(run.tab);
    const field = await until(() =>
      document.querySelector(`#${run.tab}-load-run input, #${run.tab}-load-run textarea`),
    );
    const button = await until(() => document.getElementById(`${run.tab}-load`));
    if (!field || !button) return;
    field.value = run.id;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    setTimeout(() => button.click(), 150); // once Gradio took the number
  };
})();
