// The Runs tab: the queue, past runs, and comparisons.
(() => {
  const { el, write, send, ask, board } = Studio;
  const ROWS = 25; // past runs that are shown at first, and more of them by each press
  const picked = new Set();
  let home = null,
    comparing = null,
    rowsShown = ROWS;

  // Update a table or list while keeping the elements of its rows, so that focus and hover are kept

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
    ["first", "⤒", "Move to front"],
    ["up", "↑", "Move up"],
    ["down", "↓", "Move down"],
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
          onclick: () => act(() => (action === "remove" ? Studio.removeQueued(run) : send(`run/${run.id}/${action}`))),
        },
        sign,
      );
    return el(
      "li",
      {},
      el("span", { class: "badge" }),
      el("button", { type: "button", class: "link run-link", onclick: () => choose(run.id) }),
      el("span", { class: "quiet gpus" }),
      el("span", { class: "bar" }, el("i")),
      el("span", { class: "order" }, ...ORDER.map(button)),
    );
  };

  const fillQueueRow = (row, run, label) => {
    const [badge, name, gpus, bar, order] = row.children;
    const waits = run.state === "queued";
    row.className = `run-${run.state}${run.id === Studio.shown() ? " chosen" : ""}`;
    write(badge, waits ? `${run.place}` : run.word);
    write(name, label);
    write(
      gpus,
      waits && run.error
        ? run.error
        : `${run.tab_title}${run.gpus === "all" || run.gpus === "cpu" ? "" : ` · GPU ${run.gpus}`}`,
    );
    bar.hidden = waits;
    bar.firstChild.style.width = `${100 * run.fraction}%`;
    order.hidden = !waits;
  };

  // Past runs

  const COLUMNS = ["Run", "State", "Steps", "Loss", "Duration", "Started"];

  const historyRow = (run) => {
    const box = el("input", { type: "checkbox" });
    box.addEventListener(
      "change",
      () => (box.checked ? picked.add(run.id) : picked.delete(run.id), drawPicked()),
    );
    box.addEventListener("click", (event) => event.stopPropagation());
    const small = () => el("span", { class: "row-small" });
    return el(
      "tr",
      { onclick: () => choose(run.id) },
      el("td", {}, box),
      el("td", {}, el("button", { type: "button", class: "link run-link" }), small()),
      el("td", {}, el("span", { class: "badge" }), small()),
      ...COLUMNS.slice(2).map(() => el("td")),
    );
  };

  const fillHistoryRow = (row, run) => {
    const [pick, name, state, ...cells] = row.children;
    row.className = `run-${run.state}${run.id === Studio.shown() ? " chosen" : ""}`;
    pick.firstChild.checked = picked.has(run.id);
    pick.firstChild.setAttribute("aria-label", `Select ${run.name}`);
    write(name.firstChild, run.name);
    name.firstChild.title = run.folder;
    const about = run.note.replaceAll("\n", " ") || [run.tab_title, run.family_title].filter(Boolean).join(" · ");
    write(name.lastChild, about);
    name.lastChild.title = [run.tab_title, run.family_title, run.result, run.note].filter(Boolean).join("\n");
    write(state.firstChild, run.word);
    state.firstChild.title = state.lastChild.title = run.error || "";
    write(state.lastChild, run.error || "");
    const steps = run.step === run.max_steps ? run.step : `${run.step} / ${run.max_steps}`;
    write(cells[0], run.max_steps ? steps : "");
    write(cells[1], run.loss == null ? "" : run.loss.toFixed(4));
    write(cells[2], run.started && run.ended ? Studio.duration(run.ended - run.started) : "");
    write(cells[3], Studio.when(run.started ?? run.created));
    cells[3].title = new Date((run.started ?? run.created) * 1000).toLocaleString();
  };

  const showMore = () => {
    rowsShown += ROWS;
    if (rowsShown > home.found) Studio.showOlder();
    drawBoard();
  };

  const choose = (id) => {
    closeComparison();
    Studio.choose(id);
    drawBoard();
    if (home.right.offsetTop > home.element.offsetTop + home.element.offsetHeight / 2)
      home.right.scrollIntoView({ behavior: "smooth" }); // it is below on narrow screens
  };

  // Actions on several runs

  const ended = (run) => run.state !== "queued" && !Studio.LIVING.includes(run.state);

  const drawPicked = () => {
    const known = board.runs.filter((run) => picked.has(run.id));
    const over = known.filter(ended);
    for (const id of [...picked]) if (!known.some((run) => run.id === id)) picked.delete(id);
    write(home.compare, known.length > 1 ? `Compare ${known.length} runs` : "Compare");
    home.compare.disabled = known.length < 2;
    home.compare.title = known.length < 2 ? "Select at least two runs" : "";
    home.remove.disabled = over.length === 0;
    write(home.remove, over.length > 1 ? `Remove ${over.length} runs` : "Remove");
    home.remove.title = over.length ? "" : "Select finished runs";
    const all = home.shown.filter(ended);
    home.all.checked = all.length > 0 && all.every((run) => picked.has(run.id));
    home.all.disabled = all.length === 0;
    if (home.confirm.firstChild && home.confirm.asked !== over.map((run) => run.id).join())
      home.confirm.replaceChildren(); // the selection has changed
  };

  const pickAll = () => {
    for (const run of home.shown.filter(ended)) home.all.checked ? picked.add(run.id) : picked.delete(run.id);
    drawBoard();
  };

  const askToRemove = () => {
    const ids = board.runs.filter((run) => picked.has(run.id) && ended(run)).map((run) => run.id);
    const away = () => home.confirm.replaceChildren();
    const remove = () =>
      act(async () => {
        await send("runs/forget", { ids });
        ids.forEach((id) => picked.delete(id));
        away();
      });
    const yes = el("button", { type: "button", "data-action": "confirm-remove", onclick: remove }, "Remove from list");
    const what = ids.length === 1 ? "this run" : `these ${ids.length} runs`;
    home.confirm.asked = ids.join();
    home.confirm.replaceChildren(
      el("span", {}, `Remove ${what} from the list? Folders and files are kept.`),
      yes,
      el("button", { type: "button", onclick: away }, "Cancel"),
    );
    yes.focus();
  };

  const compare = () =>
    act(async () => {
      const order = board.runs.filter((run) => picked.has(run.id)).map((run) => run.id);
      const told = await ask(`compare?ids=${order.reverse().join(",")}`);
      closeComparison();
      comparing = new StudioComparison(told, closeComparison);
      home.right.prepend(comparing.element);
      home.right.parentElement.classList.add("comparing");
      comparing.close.focus();
      comparing.element.scrollIntoView({ block: "nearest" });
      await drawComparison();
    });

  const drawComparison = async () =>
    comparing?.draw((run) => board.runs.find((each) => each.id === run.id)?.step ?? 0);

  const closeComparison = () => {
    if (!comparing) return;
    comparing.remove();
    home.right.parentElement.classList.remove("comparing");
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
      "No active or queued runs. Runs started in a training tab appear here.",
    );
    const find = el("input", { type: "search", placeholder: "Search runs", "aria-label": "Search runs" });
    find.addEventListener("input", () => drawBoard());
    const button = (action, words, onclick) =>
      el("button", { type: "button", class: "small", "data-action": action, disabled: true, onclick }, words);
    const compareButton = button("compare", "Compare", compare);
    const removeButton = button("remove-runs", "Remove", askToRemove);
    const confirm = el("div", { class: "confirm", role: "alertdialog", "aria-label": "Remove runs" });
    const all = el("input", { type: "checkbox", "aria-label": "Select all finished runs", onchange: pickAll });
    const notify = el("input", { type: "checkbox", role: "switch", "data-switch": "notify" });
    notify.checked = Studio.notifies();
    notify.addEventListener("change", () =>
      act(async () => {
        const refused = await Studio.setNotify(notify.checked);
        notify.checked = Studio.notifies();
        if (refused) throw new Error(refused);
      }),
    );
    const none = el("p", { class: "quiet", hidden: true });
    const rows = el("tbody");
    const older = el("button", { type: "button", class: "link", onclick: showMore }, "Show older runs");
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
          el("label", {}, goOn, "Continue after a failed run"),
        ),
        notice,
        queue,
        empty,
      ),
      el(
        "section",
        { class: "card" },
        el("div", { class: "section-head" }, el("h3", {}, "Runs"), find, compareButton, removeButton),
        confirm,
        el(
          "div",
          { class: "scroll past" },
          el(
            "table",
            { class: "history" },
            el("thead", {}, el("tr", {}, el("td", {}, all), ...COLUMNS.map((title) => el("th", { scope: "col" }, title)))),
            rows,
          ),
          none,
          older,
        ),
        el("label", { class: "quiet" }, notify, "Notify me in this browser when a run ends"),
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
      remove: removeButton,
      confirm,
      all,
      none,
      found: 0, // past runs that match the search, of those that are loaded
      shown: [],
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
    const labels = Studio.labels([...living, ...waiting]);
    keyed(home.queue, [...living, ...waiting], queueRow, (row, run) => fillQueueRow(row, run, labels.get(run.id)));
    home.empty.hidden = living.length + waiting.length > 0;
    const words = home.find.value.trim().toLowerCase().split(/\s+/);
    const text = (run) =>
      [run.name, run.tab_title, run.family_title, run.word, run.folder, run.note, run.error].join(" ").toLowerCase();
    const begun = board.runs.filter((run) => run.state !== "queued");
    const past = begun.filter((run) => words.every((word) => text(run).includes(word)));
    past.sort((a, b) => (b.started ?? b.created) - (a.started ?? a.created) || b.id - a.id);
    home.found = past.length;
    home.shown = past.slice(0, rowsShown);
    keyed(home.rows, home.shown, historyRow, fillHistoryRow);
    home.none.hidden = past.length > 0;
    write(home.none, begun.length ? `No runs match "${home.find.value.trim()}".` : "No runs yet.");
    home.older.hidden = past.length <= rowsShown && board.runs.length < board.limit;
    drawPicked();
    drawComparison().catch(() => {});
  };
  Studio.listeners.push(drawBoard);

  // Load a run's settings into the form of its tab

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
    setTimeout(() => button.click(), 150); // once Gradio has read the number
  };
})();
