// The live view of a run: a single view, moved into the column of the tab being shown and drawn from /studio/...
// It polls the server once a second and redraws only what changed.
(() => {
  const { ask, send, attempt, on, el, button, checkbox, write, put } = Studio;
  const NO_RUN = [
    "No run yet",
    "Choose a model and an image folder, then press Start. The loss, samples and files of the run appear here.",
  ];
  const LIVING = ["starting", "running", "stopping"];
  const SEEN_EVERY = 1000; // milliseconds between two polls
  const IDLE_EVERY = 3000; // while nothing runs or waits
  const HIDDEN_EVERY = 5000;
  const SOON = 100; // while Gradio builds the page
  const TAKEN = 300; // until the GUI has processed a command to a run
  const STARTS = ".running button[id$='-start']";
  const FEW = 20; // runs that a training tab requests
  const MANY = 200; // runs that the Runs tab requests at first

  // The view of one run

  class LiveView {
    constructor() {
      this.sections = {};
      const section = (name) => (this.sections[name] = el("div", { "data-section": name }));
      this.waiting = el("div", { class: "waiting", hidden: true });
      this.said = el("div", { class: "said" });
      this.about = el("div", { class: "run-about" });
      this.chart = el("div", { class: "curves", hidden: true });
      const join = () => {
        localStorage.setItem("chart-joined", this.join.checked);
        beat();
      };
      this.join = checkbox(localStorage.getItem("chart-joined") !== "false", join);
      this.joined = el("label", { class: "run-joined", hidden: true }, this.join, el("span"));
      this.curves = new StudioCurves(this.chart, "Loss");
      this.samples = new StudioSamples();
      this.console = new StudioConsole();
      this.status = el("p", { class: "unseen", role: "status", "aria-live": "polite" });
      this.none = el("div", { class: "run-none" });
      this.run = el(
        "div",
        { class: "run", hidden: true },
        section("head"),
        this.about,
        ...["progress", "controls", "failure", "result", "before_after", "tiles"].map(section),
        this.said,
        this.chart,
        this.joined,
        this.samples.element,
        ...["files", "warnings", "compile"].map(section),
        this.console.element,
        section("where"),
      );
      this.title = el("h3", { class: "live-title", hidden: true });
      this.element = el("div", { class: "live" }, this.waiting, this.title, this.none, this.run, this.status);
      this.element.addEventListener("click", (event) => this.clicked(event));
      this.nothing(...NO_RUN);
    }

    nothing(title, text) {
      this.run.hidden = this.title.hidden = true;
      this.none.hidden = false;
      this.none.replaceChildren(el("p", { class: "run-title" }, title), el("p", {}, text));
    }

    /** Show a different run; null shows none. */
    show(id) {
      if (id === this.id) return;
      this.id = id;
      this.known = "";
      this.answer = null;
      this.run.hidden = this.none.hidden = true; // until its own sections arrive
      this.curves.forget();
      this.samples.show([]);
      this.said.replaceChildren();
      this.about.replaceChildren();
      this.joined.hidden = true;
      for (const section of Object.values(this.sections)) put(section, "");
    }

    async ask() {
      const id = this.id;
      if (id == null) return;
      let answer;
      try {
        const samples = this.known ? this.samples.samples.length : -1;
        answer = await ask(`run/${id}?known=${encodeURIComponent(this.known)}&samples=${samples}`);
      } catch (error) {
        if (error.status !== 404) throw error;
        if (id === this.id) this.nothing("Run not found", error.message);
        return;
      }
      if (id !== this.id) return; // another run was chosen in the meantime
      if (answer) this.draw(answer);
      if (this.answer)
        await Promise.all([
          this.curves.show([{ id, name: this.answer.name, curves: this.answer.curves, joined: this.isJoined }]),
          this.console.ask(id),
        ]);
    }

    draw(answer) {
      if (this.answer?.state !== answer.state) write(this.status, `${answer.name}: ${answer.word}`);
      this.answer = answer;
      this.known = answer.known;
      this.behind = answer.now - Date.now() / 1000; // the server's clock may differ
      this.none.hidden = true;
      this.run.hidden = false;
      this.entitle();
      this.run.className = `run run-${answer.state}`;
      this.run.dataset.run = answer.id;
      for (const [name, section] of Object.entries(this.sections)) put(section, answer.sections[name] || "");
      if (answer.samples) this.samples.show(answer.samples);
      this.joined.hidden = !answer.before;
      write(this.joined.lastChild, `Include ${answer.before === 1 ? "the previous run" : `the ${answer.before} previous runs`}`);
      this.tick();
    }

    /** Part the run from the plan of the next run above it, which the tab Runs does not have. */
    entitle() {
      this.title.hidden = slot === "runs" || this.run.hidden || this.answer.state === "queued";
      write(this.title, this.answer?.over ? "Last run" : "Current run");
    }

    /** Whether the curve includes the runs that this one continues. */
    get isJoined() {
      return this.answer.before > 0 && this.join.checked;
    }

    /** Let the user rename the run and add a note. */
    describe() {
      if (this.about.firstChild) return this.about.replaceChildren();
      const { id, name, note } = this.answer;
      const called = el("input", { type: "text", maxlength: 200, "aria-label": "Run name" });
      const noted = el("textarea", { rows: 3, maxlength: 4000, "aria-label": "Note", placeholder: "Note" });
      [called.value, noted.value] = [name, note];
      const save = async (event) => {
        event.preventDefault();
        await attempt(this.said, async () => {
          await send(`run/${id}/describe`, { name: called.value, note: noted.value });
          this.about.replaceChildren();
        });
        this.known = "";
        beat();
      };
      const cancel = button("Cancel", () => this.about.replaceChildren());
      const buttons = el("div", { class: "run-actions" }, el("button", { type: "submit" }, "Save"), cancel);
      this.about.replaceChildren(el("form", { onsubmit: save }, called, noted, buttons));
      called.focus();
    }

    /** Update the elapsed times: a phase that takes minutes reports nothing during it. */
    tick() {
      const now = Date.now() / 1000 + (this.behind ?? 0);
      for (const element of document.querySelectorAll(".running [data-since]"))
        write(element, Studio.duration(now - Number(element.dataset.since)));
    }

    async clicked(event) {
      if (event.target.closest("[data-describe]")) return this.describe();
      const button = event.target.closest("[data-action]");
      if (!button || this.id == null) return;
      const action = button.dataset.action;
      if (action === "load") {
        const { field } = button.dataset;
        return Studio.load(this.answer).then(() => field && Fields.jump(field, Fields.panelsOf(button)));
      }
      if (action === "try") return Studio.tryRun(this.answer);
      if (action === "checkpoints") return attempt(this.said, () => Studio.compareCheckpoints(this.answer));
      button.disabled = true;
      if (action === "publish") {
        await attempt(this.said, () => Studio.publish(this.id));
        return void (button.disabled = false);
      }
      if (["save", "sample", "stop"].includes(action)) button.textContent = "Requested…";
      await this.act(this.id, action);
    }

    async act(id, action) {
      await attempt(this.said, async () => {
        const answer = action === "remove" ? await removeQueued(this.answer) : await send(`run/${id}/${action}`);
        if (answer.id) choose(answer.id);
        if (["remove", "forget"].includes(action)) choose(null);
      });
      this.sections.controls.sent = null; // redraw its buttons, whatever the answer
      this.known = "";
      setTimeout(beat, TAKEN);
    }
  }

  // Where the view is placed, and which run it shows

  const board = { runs: [], known: "", limit: 0, paused: false, after_failure: true };
  const listeners = []; // called on every change of the board
  let view;
  let chosen = null;
  let slot = null;
  let many = MANY;

  const livingRuns = () => board.runs.filter((run) => LIVING.includes(run.state));
  const columns = document.getElementsByClassName("running"); // the browser remembers this list, not what a selector finds
  const inColumns = (selector) => [...columns].flatMap((column) => [...column.querySelectorAll(selector)]);
  const shownSlot = () => inColumns("[data-live]").find((each) => each.offsetParent !== null);

  /** The run that a training tab shows: the active one of any tab, else of its own the one that ended last, else the
   * next. The Runs tab shows the runs of all tabs. */
  const followed = () => {
    const latest = (runs, when) => runs.reduce((a, b) => (!a || when(b) > when(a) ? b : a), null);
    const living = latest(livingRuns(), (run) => run.started);
    const own = board.runs.filter((run) => slot === "runs" || !run.tab || run.tab === slot);
    const over = latest(
      own.filter((run) => run.state !== "queued" && !LIVING.includes(run.state)),
      (run) => run.ended ?? Infinity, // it is just ending, and the list does not have the time yet
    );
    return (living ?? over ?? latest(own, (run) => -run.place))?.id ?? null;
  };

  const shown = () => (slot === "runs" && chosen != null ? chosen : followed());

  const place = () => {
    const found = shownSlot();
    if (!found) return false;
    view ??= new LiveView();
    if (view.element.parentElement === found) return true;
    found.replaceChildren(view.element);
    slot = found.dataset.live;
    view.entitle();
    return true;
  };

  const choose = (id) => {
    chosen = id;
    sessionStorage.setItem("chosen-run", id ?? "");
    beat();
  };

  /** Remove a run from the queue; for a while this can be undone. */
  const removeQueued = async (run) => {
    const answer = await send(`run/${run.id}/remove`);
    Studio.toast(`Removed '${run.name}' from the queue`, "Undo", async () => {
      await send(`run/${run.id}/put_back`);
      beat();
    });
    return answer;
  };

  const showOlder = () => {
    many += MANY;
    beat();
  };

  const askBoard = async () => {
    const limit = slot === "runs" ? many : FEW;
    const answer = await ask(`board?limit=${limit}&known=${limit === board.limit ? board.known : ""}`);
    if (!answer) return;
    const begun = board.launch && board.launch !== answer.launch;
    const states = new Map(board.runs.map((run) => [run.id, run.state]));
    Object.assign(board, answer, { known: answer.version, limit });
    for (const run of board.runs) if (isOn({ state: states.get(run.id) }) && !isOn(run)) ended(run);
    if (begun) document.body.dataset.restarted = "true";
    drawWaiting();
    for (const listener of listeners) listener(board);
  };

  const drawWaiting = () => {
    const waiting = board.runs.filter((run) => run.state === "queued").sort((a, b) => a.place - b.place);
    const strip = view.waiting;
    strip.hidden = slot === "runs" || (!waiting.length && !board.paused);
    const named = Studio.labels(waiting);
    const key = JSON.stringify([[...named], board.paused]);
    if (strip.key === key) return;
    strip.key = key;
    const link = (words, act, more) => button(words, act, { class: "link", ...more });
    const links = waiting.slice(0, 4).map(({ id }) =>
      link(named.get(id), () => goTo("runs", id), { title: "Show in the Runs tab" }),
    );
    strip.replaceChildren(
      el("b", {}, waiting.length ? `${waiting.length} queued` : "No runs queued"),
      ...links,
      board.paused ? el("span", { class: "warn" }, "the queue is paused") : "",
      link("All runs", () => goTo("runs"), { class: "link all" }),
    );
  };

  // The page title, and notifications when a run ends

  const isOn = (run) => run.state === "queued" || LIVING.includes(run.state);
  const title = document.title || "SD Scripts Studio";
  let news = ""; // what ended while the page was hidden

  const nameTab = () => {
    const [living] = livingRuns().sort((a, b) => b.started - a.started);
    if (!document.hidden) news = "";
    const on = living && `${living.max_steps ? `${Math.floor(100 * living.fraction)} % ` : ""}${living.name}`;
    const words = [news || on, title].filter(Boolean).join(" - ");
    if (document.title !== words) document.title = words;
  };

  const NOTIFY = "notify-at-end";
  const notifies = () => localStorage.getItem(NOTIFY) === "true" && window.Notification?.permission === "granted";

  /** Switch notifications on or off; returns a sentence if the browser does not allow them. */
  const setNotify = async (on) => {
    localStorage.setItem(NOTIFY, String(on));
    if (!on || notifies()) return "";
    const allowed = await window.Notification?.requestPermission();
    if (allowed === "granted") return "";
    localStorage.setItem(NOTIFY, "false");
    return window.isSecureContext
      ? "The browser blocks notifications for this page; allow them in its site settings"
      : "Browsers allow notifications only over HTTPS or on localhost";
  };

  const ended = (run) => {
    Plans.refresh(); // its times are remembered now
    if (document.hidden) news = `${run.word}: ${run.name}`;
    if (!notifies()) return;
    try {
      new Notification(`${run.word}: ${run.name}`, { body: run.error || run.result || "", tag: `run-${run.id}` });
    } catch {
      // on some phones only a service worker may notify
    }
  };

  /** Label Start by its effect: if the GPUs are busy, the run is queued. */
  const nameStart = () => {
    for (const button of document.querySelectorAll(STARTS)) {
      const field = (name) => document.querySelector(`#${button.id.replace(/-start$/, `-${name}`)} input`)?.value;
      const gpus = field("where") === "Slurm" ? SLURM : field("gpu_ids")?.replace(/\s/g, "") || "all";
      const isBusy = board.paused || board.runs.some((run) => isOn(run) && shares(run.gpus, gpus));
      const text = [...button.childNodes].find((node) => node.nodeType === Node.TEXT_NODE && node.nodeValue.trim());
      const words = isBusy ? "Add to queue" : "Start training";
      if (text && text.nodeValue.trim() !== words) text.nodeValue = words;
      const waits = "A run is active; this one starts automatically when its GPUs are free";
      const reason = board.paused ? "The queue is paused" : waits;
      const title = isBusy ? reason : "";
      if (button.title !== title) button.title = title;
    }
  };
  /** Hide the sentences of a list that are among the `others`, and the list once all of its are. */
  const hideRepeated = (list, others) => {
    const own = [...list.querySelectorAll("li")];
    for (const one of own) one.hidden = others.some((other) => other.textContent.startsWith(one.textContent));
    list.hidden = own.every((one) => one.hidden);
  };

  /** Hide Start's message about a queued run once that run has started, its notes where the plan or the run shows them,
   * too, and the run's warnings that an unfolded plan above them lists. */
  const hideOldAnswers = () => {
    for (const said of inColumns("[data-waits]")) {
      const run = board.runs.find((each) => each.id === Number(said.dataset.waits));
      const over = Boolean(run) && run.state !== "queued";
      if (said.hidden !== over) said.hidden = over;
    }
    for (const column of columns) {
      const planned = [...column.querySelectorAll(".plan[open] > ul > li")];
      const warned = [...column.querySelectorAll(".section-warning li")];
      for (const warnings of column.querySelectorAll(".section-warning")) hideRepeated(warnings, planned);
      for (const said of column.querySelectorAll("[data-started]")) hideRepeated(said, [...planned, ...warned]);
    }
  };
  /** What stands for the GPUs of a run that Slurm starts, which shares them out. */
  const SLURM = "slurm";
  const shares = (some, others) =>
    ![some, others].includes(SLURM) &&
    (["cpu", "all"].includes(some) || others === "all" || some.split(",").some((gpu) => others.split(",").includes(gpu)));

  const goTo = (tab, run) => {
    if (run != null) choose(run);
    Studio.openTab(tab);
  };

  // Polling

  let timer = null;
  let isBeating = false;
  let again = false;
  let failures = 0;

  const beat = async () => {
    if (isBeating) return void (again = true);
    clearTimeout(timer);
    isBeating = true;
    again = false;
    try {
      if (place()) {
        await askBoard();
        nameStart();
        nameTab();
        view.show(shown());
        await view.ask();
        hideOldAnswers();
        if (view.id == null) view.nothing(...NO_RUN);
      }
      answered(null);
    } catch (error) {
      answered(error);
    }
    isBeating = false;
    const idle = !failures && board.known && !board.runs.some(isOn);
    timer = setTimeout(beat, again ? 0 : !view ? SOON : document.hidden ? HIDDEN_EVERY : idle ? IDLE_EVERY : SEEN_EVERY);
  };

  /** Show a banner when the GUI is not responding; training continues without it. */
  const answered = (error) => {
    failures = error ? failures + 1 : 0;
    let banner = document.getElementById("studio-banner");
    if (!banner) {
      banner = el(
        "div",
        { id: "studio-banner", role: "status", "aria-live": "polite", hidden: true },
        el("span"),
        button("Reload page", () => location.reload()),
      );
      document.body.append(banner);
    }
    const refused = error?.status && error.status !== 404; // a missing run is reported in its place
    const gone = refused || (failures > 1 && !error.status);
    const restarted = !gone && document.body.dataset.restarted;
    if (error && !(error instanceof TypeError) && !error.status && error.name !== "TimeoutError") console.error(error);
    banner.hidden = !gone && !restarted;
    banner.dataset.state = gone ? "gone" : "restarted";
    const words = refused ? error.message : "The GUI is not responding. Training continues";
    write(banner.firstChild, gone ? words : "The GUI was restarted. Your settings are kept");
    banner.lastChild.hidden = Boolean(gone && !refused);
  };

  setInterval(() => !document.hidden && view?.tick(), 1000);

  const closeMenus = (event) => {
    for (const menu of document.querySelectorAll(".live .menu[open]"))
      if (event.key === "Escape" || (!event.key && !menu.contains(event.target))) menu.open = false;
  };
  // the plan is folded; this event does not bubble
  document.addEventListener("toggle", (event) => event.target.matches?.(".plan") && hideOldAnswers(), true);
  document.addEventListener("click", closeMenus);
  document.addEventListener("keydown", closeMenus);
  document.addEventListener("visibilitychange", () => document.hidden || beat());
  on("click", "[role=tab]", () => setTimeout(beat)); // another tab's column is shown
  on("click", STARTS, () => setTimeout(beat, 700));
  const begin = () => {
    chosen = Number(sessionStorage.getItem("chosen-run")) || null;
    beat(); // repeats until there is a slot for the view
  };
  document.readyState === "loading" ? addEventListener("DOMContentLoaded", begin) : setTimeout(begin);

  Object.assign(Studio, { board, listeners, choose, shown, showOlder, goTo, beat, LIVING });
  Object.assign(Studio, { removeQueued, notifies, setNotify });
})();
