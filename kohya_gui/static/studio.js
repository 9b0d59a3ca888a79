// Shared helpers of the page: requests, events, elements, and HTML from the server. Loaded first.
// What one script has for the others is a global `var`, which tsc knows in all of them.
var Studio = (() => {
  // Talking to the server

  /** The URL of a route, also if a proxy serves the page below a path. */
  const url = (path) => {
    const root = new URL(window.gradio_config?.root || ".", location.href).pathname.replace(/\/$/, "");
    return `${location.origin}${root}/${path.startsWith("studio/") ? path : `studio/${path}`}`;
  };
  const REFUSED = "Your session has ended: reload the page and log in";
  const SILENT = "The program has not answered: this machine may be busy. Try again in a moment";
  const ask = async (path, options = {}) => {
    const answer = await fetch(url(path), { signal: AbortSignal.timeout(15000), ...options }).catch((error) => {
      throw error.name === "TimeoutError" ? Object.assign(new Error(SILENT), { name: error.name }) : error; // the browser's is "signal timed out"
    });
    if (answer.status === 204) return null;
    const content = await answer.json().catch((error) => {
      if (answer.ok) throw error; // cut off: half an answer is none
      return {};
    });
    if (answer.ok) return content;
    const problem = answer.status === 401 ? REFUSED : `The request failed (${answer.status})`;
    throw Object.assign(new Error(content.error || problem), { status: answer.status, html: content.html });
  };
  const send = (path, body = {}, options = {}) =>
    ask(path, {
      method: "POST",
      headers: { "X-Studio": "1", "Content-Type": "application/json" },
      body: JSON.stringify(body),
      ...options,
    });
  const SLOWEST_START = 60000; // ms; starting a process may take a busy machine more than ten seconds
  /** Send what starts a job that the page follows. If the answer is late, the job may have started anyway: its state
   * shows whether it did. */
  const sendStart = (path, body) =>
    send(path, body, { signal: AbortSignal.timeout(SLOWEST_START) }).catch((error) => {
      if (error.name !== "TimeoutError") throw error;
    });

  /** Do `work`, whose error, if any, `place` shows; returns whether it succeeded. */
  const attempt = async (place, work) => {
    place.replaceChildren();
    try {
      await work();
      return true;
    } catch (error) {
      place.replaceChildren(complaint(error));
      return false;
    }
  };

  /** Return a function that does `work` once it has not been called for `wait` milliseconds. */
  const later = (work, wait) => {
    let timer;
    return () => (clearTimeout(timer), (timer = setTimeout(work, wait)));
  };

  /** Wait for some seconds for what `look` returns; null if it does not come. */
  const until = async (look) => {
    for (let tries = 120; tries; tries--) {
      const it = look();
      if (it) return it;
      await new Promise((done) => setTimeout(done, 50));
    }
    return null;
  };

  // Events

  /** Call `act(element, event)` for events in elements that match, those that are made later included. */
  const on = (kind, selector, act, capture = false) => {
    const find = (event) => {
      const element = event.target.closest?.(selector);
      if (element) act(element, event);
    };
    document.addEventListener(kind, find, capture);
  };

  /** Call `work(element)` while the element is shown: when a tab is opened, and every `every` milliseconds while it
   * `isDue()`; one call at a time. Returns the function that calls it now. A selector that begins with an id is looked
   * for below that element only: of all elements of the page, most are of tabs that are not shown. */
  const whileShown = (selector, every, work, isDue = () => true) => {
    let isWorking = false;
    const beat = async () => {
      const element = document.querySelector(selector);
      if (isWorking || document.hidden || !element || element.offsetParent === null) return;
      isWorking = true;
      await work(element).catch(() => {}); // the live view reports that the GUI does not respond
      isWorking = false;
    };
    setInterval(() => isDue() && beat(), every);
    on("click", "[role=tab]", () => setTimeout(beat));
    return beat;
  };

  /** Answer keys that are pressed in an element; `answers`: name of a key -> its action. */
  const onKeys = (element, answers) =>
    element.addEventListener("keydown", (event) => {
      if (!answers[event.key]) return;
      event.preventDefault();
      answers[event.key]();
    });

  // Making elements; text is never parsed as HTML here

  const el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value != null) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child != null));
    return made;
  };
  const button = (words, onclick, attributes = {}) => el("button", { type: "button", onclick, ...attributes }, words);
  const checkbox = (checked, onchange, attributes = {}) =>
    el("input", { type: "checkbox", checked, onchange, ...attributes });
  /** A list of choices, [value, words]. */
  const select = (attributes, choices) =>
    el("select", attributes, ...choices.map(([value, words]) => el("option", { value }, words)));
  /** A hidden control by which files are sent; its click opens the browser's dialog. */
  const upload = (accept, take, attributes = {}) => {
    const change = async ({ target }) => {
      await take(target.files);
      target.value = "";
    };
    return el("input", { type: "file", accept, hidden: true, onchange: change, ...attributes });
  };
  const image = (src, alt, attributes = {}) =>
    el("img", { src, alt, loading: "lazy", decoding: "async", ...attributes });
  const card = (...children) => el("section", { class: "card" }, ...children);
  const search = (words, oninput) => el("input", { type: "search", placeholder: words, "aria-label": words, oninput });
  const table = (attributes, heads, rows) =>
    el(
      "table",
      attributes,
      el("thead", {}, el("tr", {}, ...heads.map((words) => el("th", { scope: "col" }, words)))),
      el("tbody", {}, ...rows),
    );
  const SVG = "http://www.w3.org/2000/svg";
  const svg = (tag, attributes = {}, ...children) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };

  /** A dialog that a click outside closes; `show` puts it into the page, `closer` is a button in it. */
  const dialog = (attributes) =>
    el("dialog", { ...attributes, onclick: ({ target, currentTarget }) => target === currentTarget && target.close() });
  const show = (dialog) => {
    if (!dialog.isConnected) document.body.append(dialog);
    if (!dialog.open) dialog.showModal();
  };
  const closer = (dialog) => button("✕", () => dialog.close(), { class: "close", "aria-label": "Close" });

  /** An element whose content is HTML from the server. */
  const rendered = (tag, attributes, html) => Object.assign(el(tag, attributes), { innerHTML: html });
  const write = (element, text) => {
    if (Language.english(element) !== String(text)) element.textContent = text;
  };

  /** A note or a warning, with the sign of a warning. */
  const note = (kind, ...children) =>
    el("div", { class: `message message-${kind}` }, el("span", { class: "sign" }, "!"), el("div", {}, ...children));
  /** A warning that is read out. */
  const alarm = (...children) => Object.assign(note("warning", ...children), { role: "alert" });
  /** The bar of a job that has done a part of `total`; without a total it moves. */
  const progressBar = (done, total) => {
    const share = total ? Math.round((100 * done) / total) : null;
    const bar = el("div", { class: `bar${total ? "" : " bar-unknown"}`, role: "progressbar", "aria-label": "Progress", "aria-valuenow": share }, el("i"));
    bar.firstChild.style.width = `${share ?? 0}%`;
    return bar;
  };

  /** A style sheet of the page for rules about elements that Gradio has not made yet. */
  const styleSheet = () => {
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    return sheet;
  };

  /** Replace HTML from the server if it changed, keeping unfolded details, focus, scroll positions, a button at its end, and
   * images and clips as they are loaded and play. */
  const put = (element, html) => {
    if (element.sent === html) return;
    const chosen = getSelection();
    if (element.sent && !chosen.isCollapsed && element.contains(chosen.anchorNode)) return; // the user is selecting text in it
    const name = (inner) => {
      const { name, action, copy } = inner.dataset;
      return name || action || copy || inner.tagName + inner.textContent.slice(0, 24);
    };
    const focused = element.contains(document.activeElement) ? name(document.activeElement) : null;
    const unfolded = [...element.querySelectorAll("details[open] > summary")].map(name);
    const scrolled = [...element.querySelectorAll("pre, ul")].map((inner) => inner.scrollTop);
    const media = () => [...element.querySelectorAll("img, video")];
    const loaded = new Map(media().map((each) => [each.getAttribute("src"), each]));
    element.sent = html;
    const made = document.createElement("template");
    made.innerHTML = html;
    Language.visit(made.content); // to be compared with what is in the page
    // a button at the end stays if it is the same: a press would be lost with one that is replaced
    const last = element.lastElementChild;
    const kept = last?.matches("button") && made.content.lastElementChild?.isEqualNode(last) ? last : null;
    if (kept) made.content.lastElementChild.remove();
    for (const each of [...element.childNodes]) if (each !== kept) each.remove();
    element.prepend(made.content);
    for (const each of media()) {
      const src = each.getAttribute("src");
      if (loaded.has(src)) each.replaceWith(loaded.get(src));
      loaded.delete(src);
    }
    Studio.watchIn(element);
    for (const link of element.querySelectorAll('a[href^="studio/"]')) link.href = url(link.getAttribute("href"));
    for (const summary of element.querySelectorAll("summary"))
      if (unfolded.includes(name(summary))) summary.parentElement.open = true;
    [...element.querySelectorAll("pre, ul")].forEach((inner, i) => scrolled[i] && (inner.scrollTop = scrolled[i]));
    if (focused) [...element.querySelectorAll("button, a, summary")].find((inner) => name(inner) === focused)?.focus();
  };

  const fileName = (path) => path.split(/[/\\]/).pop();
  const capitalised = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

  const duration = (seconds) => {
    if (seconds == null || !isFinite(seconds)) return "";
    const whole = Math.round(Math.max(seconds, 0));
    const hours = Math.floor(whole / 3600);
    const minutes = Math.floor(whole / 60) % 60;
    const rest = whole % 60;
    const two = (number) => String(number).padStart(2, "0");
    if (hours) return `${hours}:${two(minutes)}:${two(rest)}`;
    return minutes ? `${minutes}:${two(rest)}` : `${rest} s`;
  };

  /** A time of day, or the date if it is not today. */
  const when = (seconds, exact = false) => {
    if (!seconds) return "";
    const time = new Date(seconds * 1000);
    const today = time.toDateString() === new Date().toDateString();
    /** @type {Intl.DateTimeFormatOptions} */
    const clock = { hour: "2-digit", minute: "2-digit", ...(exact ? { second: "2-digit" } : {}) };
    if (today) return time.toLocaleTimeString([], clock);
    /** @type {Intl.DateTimeFormatOptions} */
    const day = { day: "numeric", month: "short" };
    return exact ? time.toLocaleString([], { ...day, ...clock }) : time.toLocaleDateString([], { ...day, year: "numeric" });
  };

  /** Run -> its name, with its start time if several share the name. */
  const labels = (runs) => {
    const count = (name) => runs.filter((run) => run.name === name).length;
    return new Map(
      runs.map((run) => {
        const began = when(run.started ?? run.created, true);
        return [run.id, count(run.name) > 1 && began ? `${run.name} (${began})` : run.name];
      }),
    );
  };

  /** Show a message with an action at the foot of the page for a while. */
  const SHOWN_FOR = 20000; // milliseconds
  const toast = (text, word, act) => {
    let box = document.getElementById("studio-toasts");
    if (!box) document.body.append((box = el("div", { id: "studio-toasts", role: "status" })));
    const close = () => message.remove();
    const doing = button(word, async () => {
      doing.disabled = true;
      try {
        await act();
        close();
      } catch (error) {
        message.replaceChildren(error.message);
      }
    });
    const message = el("div", {}, el("span", {}, text), doing);
    box.append(message);
    setTimeout(close, SHOWN_FOR);
  };

  /** The box of an error: as the server rendered it, with links to the fields, or its plain text. */
  const complaint = (error) => {
    if (error.html) return rendered("div", {}, error.html);
    const lines = error.message.split("\n").map((line) => el("p", {}, line));
    return el("div", { class: "message message-error", role: "alert" }, el("span", { class: "sign" }, "✕"), el("div", {}, ...lines));
  };

  const requests = { ask, send, sendStart, url, attempt, later, until };
  const events = { on, whileShown, onKeys };
  const elements = { el, svg, image, card, table, button, checkbox, select, upload, search, dialog, show, closer };
  const content = { rendered, write, put, complaint, note, alarm, progressBar, toast, styleSheet, fileName, capitalised, duration, when, labels };
  const shared = { ...requests, ...events, ...elements, ...content };
  return /** @type {typeof shared & StudioOfLaterScripts} */ (shared);
})();
