// Shared helpers of the page: requests, elements, and HTML from the server.
window.Studio = (() => {
  // Talking to the server

  /** The URL of a route, also if a proxy serves the page below a path. */
  const url = (path) => {
    const root = new URL(window.gradio_config?.root || ".", location.href).pathname.replace(/\/$/, "");
    return `${location.origin}${root}/${path.startsWith("studio/") ? path : `studio/${path}`}`;
  };
  const REFUSED = "Your session has ended: reload the page and log in";
  const ask = async (path, options = {}) => {
    const answer = await fetch(url(path), { signal: AbortSignal.timeout(15000), ...options });
    if (answer.status === 204) return null;
    const told = await answer.json().catch((error) => {
      if (answer.ok) throw error; // cut off: half an answer is none
      return {};
    });
    if (answer.ok) return told;
    const why = answer.status === 401 ? REFUSED : `The request failed (${answer.status})`;
    throw Object.assign(new Error(told.error || why), { status: answer.status, html: told.html });
  };
  const send = (path, body) =>
    ask(path, {
      method: "POST",
      headers: { "X-Studio": "1", "Content-Type": "application/json" },
      body: JSON.stringify(body ?? {}),
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
  /** An element whose content is HTML from the server. */
  const rendered = (tag, attributes, html) => Object.assign(el(tag, attributes), { innerHTML: html });
  const write = (element, text) => {
    if (element.textContent !== String(text)) element.textContent = text;
  };

  /** Replace HTML from the server if it changed, keeping unfolded details, focus and scroll positions. */
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
    element.innerHTML = element.sent = html;
    for (const link of element.querySelectorAll('a[href^="studio/"]')) link.href = url(link.getAttribute("href"));
    for (const summary of element.querySelectorAll("summary"))
      if (unfolded.includes(name(summary))) summary.parentElement.open = true;
    [...element.querySelectorAll("pre, ul")].forEach((inner, i) => scrolled[i] && (inner.scrollTop = scrolled[i]));
    if (focused) [...element.querySelectorAll("button, a, summary")].find((inner) => name(inner) === focused)?.focus();
  };

  const duration = (seconds) => {
    if (seconds == null || !isFinite(seconds)) return "";
    const whole = Math.round(Math.max(seconds, 0));
    const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    const two = (number) => String(number).padStart(2, "0");
    return hours ? `${hours}:${two(minutes)}:${two(rest)}` : minutes ? `${minutes}:${two(rest)}` : `${rest} s`;
  };

  /** A time of day, or the date if it is not today. */
  const when = (seconds, exact = false) => {
    if (!seconds) return "";
    const time = new Date(seconds * 1000);
    const today = time.toDateString() === new Date().toDateString();
    const clock = { hour: "2-digit", minute: "2-digit", ...(exact ? { second: "2-digit" } : {}) };
    if (today) return time.toLocaleTimeString([], clock);
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
  const TOLD_FOR = 20000; // milliseconds
  const toast = (text, word, act) => {
    let box = document.getElementById("studio-toasts");
    if (!box) document.body.append((box = el("div", { id: "studio-toasts", role: "status" })));
    const close = () => told.remove();
    const button = el("button", { type: "button" }, word);
    const told = el("div", {}, el("span", {}, text), button);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await act();
        close();
      } catch (error) {
        told.replaceChildren(error.message);
      }
    });
    box.append(told);
    setTimeout(close, TOLD_FOR);
  };

  /** The box of an error: as the server rendered it, with links to the fields, or its plain text. */
  const complaint = (error) => {
    if (error.html) return rendered("div", {}, error.html);
    const lines = error.message.split("\n").map((line) => el("p", {}, line));
    return el("div", { class: "message message-error", role: "alert" }, el("span", { class: "sign" }, "✕"), el("div", {}, ...lines));
  };

  return { ask, send, url, el, rendered, write, put, duration, when, labels, toast, complaint };
})();
