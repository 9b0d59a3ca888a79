// The Runs tab: the queue, past runs, and comparisons.
(() => {
  const { attempt, el, button, card, checkbox, table, write, send, ask, board } = Studio;
  const ROWS = 25; // past runs that are shown at first, and more of them by each press
  const picked = new Set();
  /** @type {Record<string, any>} */
  let home = null;
  let comparing = null;
  let rowsShown = ROWS;

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
    await attempt(home.said, work);
    Studio.beat();
  };

  // The queue

  /** @type {[string, string, string, (name: string) => string][]} */
  const ORDER = [
    ["first", "⤒", "Move to front", (name) => `Move '${name}' to front`],
    ["up", "↑", "Move up", (name) => `Move '${name}' up`],
    ["down", "↓", "Move down", (name) => `Move '${name}' down`],
    ["remove", "✕", "Remove", (name) => `Remove '${name}' from the queue`],
  ];

  const queueRow = (run) => {
    const change = (action) => (action === "remove" ? Studio.removeQueued(run) : send(`run/${run.id}/${action}`));
    const order = ORDER.map(([action, sign, word, about]) => {
      const names = { "data-action": action, title: word, "aria-label": about(run.name) };
      return button(sign, () => act(() => change(action)), names);
    });
    return el(
      "li",
      {},
      el("span", { class: "badge" }),
      button("", () => choose(run.id), { class: "link run-link" }),
      el("span", { class: "quiet gpus" }),
      el("span", { class: "bar" }, el("i")),
      el("span", { class: "order" }, ...order),
    );
  };

  const fillQueueRow = (row, run, label) => {
    const [badge, name, gpus, bar, order] = row.children;
    const waits = run.state === "queued";
    row.className = `run-${run.state}${run.id === Studio.shown() ? " chosen" : ""}`;
    write(badge, waits ? `${run.place}` : run.word);
    write(name, label);
    const places = { all: "", cpu: "", slurm: "Slurm" };
    const about = [run.tab_title, places[run.gpus] ?? `GPU ${run.gpus}`];
    write(gpus, (waits && run.error) || about.filter(Boolean).join(" · "));
    bar.hidden = waits;
    bar.firstChild.style.width = `${100 * run.fraction}%`;
    order.hidden = !waits;
  };

  // Past runs

  const COLUMNS = ["Run", "State", "Steps", "Loss", "Duration", "Started"];

  const historyRow = (run) => {
    const pick = ({ target }) => (target.checked ? picked.add(run.id) : picked.delete(run.id), drawPicked());
    const box = checkbox(false, pick, { onclick: (event) => event.stopPropagation() });
    const small = () => el("span", { class: "row-small" });
    return el(
      "tr",
      { onclick: () => choose(run.id) },
      el("td", {}, box),
      el("td", {}, button("", null, { class: "link run-link" }), small()),
      el("td", {}, el("span", { class: "badge" }), small()),
      ...COLUMNS.slice(2).map(() => el("td")),
    );
  };

  const fillHistoryRow = (row, run) => {
    const [pick, name, state, ...cells] = row.children;
    row.className = `run-${run.state}${run.id === Studio.shown() ? " chosen" : ""}`;
    pick.firstChild.checked = picked.has(run.id);
    pick.firstChild.setAttribute("aria-label", `Select '${run.name}'`);
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
    const yes = button("Remove from list", remove, { "data-action": "confirm-remove" });
    const what = ids.length === 1 ? "this run" : `these ${ids.length} runs`;
    home.confirm.asked = ids.join();
    home.confirm.replaceChildren(
      el("span", {}, `Remove ${what} from the list? Folders and files are kept.`),
      yes,
      button("Cancel", away),
    );
    yes.focus();
  };

  const compare = () =>
    act(async () => {
      const order = board.runs.filter((run) => picked.has(run.id)).map((run) => run.id);
      const answer = await ask(`compare?ids=${order.reverse().join(",")}`);
      closeComparison();
      comparing = new StudioComparison(answer, closeComparison);
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
    const toggle = (name, act, on = false) => checkbox(on, act, { role: "switch", "data-switch": name });
    const setQueue = (name) => toggle(name, ({ target }) => act(() => send("queue", { [name]: target.checked })));
    const notifyOrSayWhyNot = async () => {
      const refused = await Studio.setNotify(notify.checked);
      notify.checked = Studio.notifies();
      if (refused) throw new Error(refused);
    };
    const notify = toggle("notify", () => act(notifyOrSayWhyNot), Studio.notifies());
    const action = (name, words, work) => button(words, work, { class: "small", "data-action": name, disabled: true });
    home = {
      element,
      said: el("div"),
      pause: setQueue("paused"),
      goOn: setQueue("after_failure"),
      notice: el("p", { class: "warn", role: "status" }),
      queue: el("ul", { class: "queue", "aria-label": "Queue" }),
      empty: el("p", { class: "quiet" }, "No active or queued runs. Runs started in a training tab appear here."),
      find: Studio.search("Search runs", () => drawBoard()),
      compare: action("compare", "Compare", compare),
      remove: action("remove-runs", "Remove", askToRemove),
      confirm: el("div", { class: "confirm", role: "alertdialog", "aria-label": "Remove runs" }),
      all: checkbox(false, pickAll, { "aria-label": "Select all finished runs" }),
      none: el("p", { class: "quiet", hidden: true }),
      older: button("Show older runs", showMore, { class: "link" }),
      found: 0, // past runs that match the search, of those that are loaded
      shown: [],
      right: document.querySelector(".runs-right"),
    };
    const history = table({ class: "history" }, COLUMNS, []);
    history.tHead.rows[0].prepend(el("td", {}, home.all));
    home.rows = history.tBodies[0];
    const { pause, goOn } = home;
    const switches = [el("label", {}, pause, "Pause"), el("label", {}, goOn, "Continue after a failed run")];
    const queueHead = el("div", { class: "section-head" }, el("h2", {}, "Queue"), ...switches);
    element.className = "board";
    element.replaceChildren(
      home.said,
      card(queueHead, home.notice, home.queue, home.empty),
      card(
        el("div", { class: "section-head" }, el("h2", {}, "Runs"), home.find, home.compare, home.remove),
        home.confirm,
        el("div", { class: "scroll past" }, history, home.none, home.older),
        el("label", { class: "quiet" }, notify, "Notify me in this browser when a run ends"),
      ),
    );
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

  Studio.load = async (run) => {
    Studio.goTo(run.tab);
    await Studio.until(() => Fields.submit(run.tab, "load-run", run.id, "load"));
  };
})();
