// What the parts of the page share: asking the server, making elements, putting in HTML that the server made.
window.Studio = (() => {
  // Talking to the server

  /** The address of a route, also where a proxy serves the page below a path. */
  const url = (path) => {
    const root = new URL(window.gradio_config?.root || ".", location.href).pathname.replace(/\/$/, "");
    return `${location.origin}${root}/${path.startsWith("studio/") ? path : `studio/${path}`}`;
  };
  const REFUSED = "The GUI does not let you in: load the page again and log in";
  const ask = async (path, options = {}) => {
    const answer = await fetch(url(path), { signal: AbortSignal.timeout(15000), ...options });
    if (answer.status === 204) return null;
    const told = await answer.json().catch(() => ({}));
    if (answer.ok) return told;
    const why = answer.status === 401 ? REFUSED : `The GUI could not answer (${answer.status})`;
    throw Object.assign(new Error(told.error || why), { status: answer.status });
  };
  const send = (path, body) =>
    ask(path, {
      method: "POST",
      headers: { "X-Studio": "1", "Content-Type": "application/json" },
      body: JSON.stringify(body ?? {}),
    });

  // Making elements: texts are never read as HTML here

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
  const write = (element, text) => {
    if (element.textContent !== String(text)) element.textContent = text;
  };

  /** Put in HTML that the server made, if it is another; what was unfolded, focused and scrolled stays so. */
  const put = (element, html) => {
    if (element.sent === html) return;
    const chosen = getSelection();
    if (element.sent && !chosen.isCollapsed && element.contains(chosen.anchorNode)) return; // somebody copies from it
    const name = (inner) =>
      inner.dataset.action || inner.dataset.copy || inner.tagName + inner.textContent.slice(0, 24);
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

  const complaint = (error) =>
    el(
      "div",
      { class: "message message-error", role: "alert" },
      el("span", { class: "sign" }, "✕"),
      el("div", {}, el("p", {}, error.message)),
    );

  return { ask, send, url, el, write, put, duration, complaint };
})();
