// Fields of the training tabs: links to them, error marks, and a busy sign while waiting for an answer.
(() => {
  const { on, until } = Studio;
  const wrong = new Map(); // tab -> its marked fields by id, each with its error
  const sheet = Studio.styleSheet(); // a CSS rule, since a folded panel has no elements yet
  const OUTLINE = "outline: 2px solid var(--bad); outline-offset: 3px; border-radius: 4px;";
  const mark = () => {
    const marked = [...wrong.values()].flatMap((fields) => [...fields]);
    const rules = marked.map(([id, why]) => `#${CSS.escape(id)} { ${OUTLINE} }\n#${CSS.escape(id)}::after { content: ${JSON.stringify(why)}; }`);
    sheet.replaceSync(rules.join("\n"));
    const named = marked.map(([id]) => `#${CSS.escape(id)}::after`).join(", ");
    if (named) sheet.insertRule(`${named} { display: block; color: var(--bad); font-size: 12px; line-height: 1.4; margin-top: 4px; }`);
  };
  /** The sentences of a message; whyOf returns a field's sentence, without the field's name. */
  const sentences = (message) => [...message.querySelectorAll("li")].concat(message.querySelector("li") ? [] : [...message.querySelectorAll("p")]);
  const leadsTo = (sentence, id) => [...sentence.querySelectorAll("[data-field]")].some((link) => link.dataset.field === id);
  const whyOf = (message, id) => {
    const said = sentences(message).find((each) => leadsTo(each, id))?.textContent ?? "";
    return said.slice(said.indexOf("): ") + 1).replace(/^: /, "");
  };
  const panelsOf = (element) => (element.dataset.panels || "").split(" ").filter(Boolean);
  const unfold = async (panels) => {
    const heads = [];
    const open = () => heads.forEach((head) => head?.classList.contains("open") || head?.click());
    for (const panel of panels) {
      heads.push(await until(() => document.querySelector(`#${CSS.escape(panel)} > .label-wrap`)));
      open();
    }
    keepOpen(open);
  };
  /** Open panels again for half a second: Gradio folds one once more that it has just made. */
  const keepOpen = async (open) => {
    for (let frames = 30; frames; frames--) {
      await new Promise(requestAnimationFrame);
      open();
    }
  };
  /** Show the tab of a field, open the panels around it and focus it. */
  const jump = async (id, panels) => {
    if (Train.reveal(id)) return;
    const form = id.split("-")[0];
    const pane = document.querySelector(`#${form}[role=tabpanel]`);
    if (!pane?.offsetParent) Studio.openTab(form);
    await unfold(panels);
    const inputs = "input, textarea, select, button";
    const inputOf = (field) => (field?.matches(inputs) ? field : field?.querySelector(inputs));
    const input = await until(() => inputOf(document.getElementById(id))); // Gradio makes the field before what is in it
    if (!input) return;
    for (let around = input; (around = around.parentElement?.closest("details")); ) around.open = true;
    document.getElementById(id).scrollIntoView({ block: "center" });
    const before = document.activeElement;
    for (let frames = 60; frames; frames--) {
      const now = inputOf(document.getElementById(id));
      // a field that Gradio has just made may still be hidden, or be built a second time
      if ([before, document.body].includes(document.activeElement)) now?.focus({ preventScroll: true });
      await new Promise(requestAnimationFrame);
      if (frames < 57 && document.activeElement === now) break;
    }
  };

  // Gradio opens a list again at Tab, and then leaves it open for good: it sees Escape instead, which closes it
  const closeList = (input, event) => {
    if (event.key !== "Tab") return;
    event.stopImmediatePropagation();
    input.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  };
  on("keydown", "input[role=combobox]", closeList, true);

  const asked = new Map(); // tab -> whether the answer to Start may jump to a field
  const boxOf = (tab) => document.getElementById(`${tab}-message`);
  const look = (tab) => {
    const message = boxOf(tab)?.querySelector(".message");
    const ids = (message?.dataset.wrong || "").split(" ").filter(Boolean);
    wrong.set(tab, new Map(ids.map((id) => [id, whyOf(message, id)])));
    mark();
    if (!asked.get(tab)) return;
    const { question, go } = message?.dataset ?? {};
    if (question == null && go == null) return; // such as the answer to Print, which was pressed just before
    asked.set(tab, false);
    if (question != null) message.querySelector("[data-answer]").focus();
    if (go == null) return;
    const first = message.querySelector("[data-field]");
    if (first) jump(first.dataset.field, panelsOf(first));
  };
  const watched = new WeakSet();
  const watch = (tab) => {
    const box = boxOf(tab);
    if (!box || watched.has(box)) return;
    watched.add(box);
    const answered = () => {
      if (waits.get(tab)?.asker.id === `${tab}-print`) Drafts.printed(tab);
      busy(tab, null);
      look(tab);
      useOffer(tab);
      Studio.beat(); // a run may have started
    };
    // the same answer as before differs by an attribute only
    const seen = { childList: true, subtree: true, characterData: true, attributeFilter: ["data-at"] };
    new MutationObserver(answered).observe(box, seen);
  };
  const ASKING = ["start", "print", "open", "save", "save-new"];
  const PATIENCE = 60_000; // ms after which no answer is expected any more
  const waits = new Map(); // tab -> the button pressed, and its timers
  /** Show the busy sign at `asker` and the message box; `null` removes it. */
  const busy = (tab, asker) => {
    const { timers = [], asker: former } = waits.get(tab) ?? {};
    timers.forEach(clearTimeout);
    const show = (on, at) => [boxOf(tab), at].forEach((each) => each?.toggleAttribute("data-busy", on));
    show(false, former);
    if (!asker) return waits.delete(tab);
    watch(tab);
    const soon = setTimeout(show, 150, true, asker); // a fast answer needs no sign
    waits.set(tab, { asker, timers: [soon, setTimeout(busy, PATIENCE, tab, null)] });
  };
  const tabOf = (element) => element.closest("[role=tabpanel]")?.id;

  const ask = (button) => {
    const [tab, ...rest] = button.id.split("-");
    const action = rest.join("-");
    if (!ASKING.includes(action) || !Forms.tabs().includes(tab)) return; // other tabs have an Open of their own
    asked.set(tab, action === "start");
    boxOf(tab)?.querySelector(".message-error")?.classList.add("stale"); // about the previous request
    busy(tab, button);
  };
  on("click", "button[id]", ask, true);
  // a preset is chosen by mouse or Enter while its list is open
  const chosen = (preset, event) => {
    const byKey = event.key === "Enter" && preset.querySelector("[role=listbox]");
    if (byKey || event.target.closest("[role=option]")) busy(tabOf(preset), preset);
  };
  for (const kind of ["mousedown", "keydown"]) on(kind, '[id$="-preset"]', chosen, true);
  /** Write into a field as if somebody typed it, for Gradio to see. */
  const enter = (field, value) => {
    if (field.role === "combobox") field.focus();
    field.value = value;
    for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
    // a list accepts typed values, besides its own, with Enter
    if (field.role === "combobox") field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  };
  const fill = (id, value) => {
    const field = document.getElementById(id)?.querySelector("input, textarea");
    if (field) enter(field, value);
    return Boolean(field);
  };
  /** Fill a field of a form and press a button of it, with which Gradio sends it; returns whether both are there. */
  const submit = (tab, name, value, action) => {
    const button = document.getElementById(`${tab}-${action}`);
    if (!button || !fill(`${tab}-${name}`, value)) return false;
    setTimeout(() => button.click(), 150); // once Gradio took the value
    return true;
  };
  on("click", "[data-set]", async (button) => {
    const { set, value } = button.dataset;
    if (!fill(set, value)) await unfold(panelsOf(button));
    if (await until(() => fill(set, value))) button.hidden = true; // its offer has been applied
  });
  // the answer to Start's question is sent to the server with the form
  on("click", "[data-answer]", (button) =>
    submit(button.closest("[id$=-message]").id.split("-")[0], "answer", button.dataset.answer, "start"),
  );
  on("click", "[data-load]", (button) => {
    const tab = tabOf(button);
    if (tab && submit(tab, "load-run", button.dataset.load, "load")) busy(tab, button);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    const start = [...document.querySelectorAll("[id$=-start]")].find((each) => each.offsetParent);
    if (!start) return;
    event.preventDefault();
    document.activeElement?.blur(); // commit the text being typed
    setTimeout(() => start.click(), 60);
  });
  on("click", "[data-field]", (link) => link.dataset.action !== "load" && jump(link.dataset.field, panelsOf(link)));
  on("input", ".option[id]", (field) => {
    for (const fields of wrong.values()) if (fields.delete(field.id)) mark();
    // a message about a field is outdated once its value changes, an error about none once anything does
    const message = boxOf(field.id.split("-")[0])?.querySelector(".message-error, .message-warning");
    if (!message) return;
    const isLinked = message.querySelector("[data-field]");
    if (!isLinked && message.matches(".message-error")) message.classList.add("stale");
    if (!isLinked) return;
    for (const sentence of sentences(message)) if (leadsTo(sentence, field.id)) sentence.classList.add("stale");
    if (sentences(message).every((each) => each.classList.contains("stale"))) message.classList.add("stale");
  });
  /** The folded panels around a field, outermost first, as the server sent the page. */
  const panelsAround = (id) => {
    const { components, layout } = window.gradio_config;
    const known = new Map(components.map((each) => [each.id, each]));
    const search = (node, around) => {
      const { type, props } = known.get(node.id) ?? {};
      if (props?.elem_id === id) return around;
      const inner = type === "accordion" && props.elem_id ? [...around, props.elem_id] : around;
      for (const child of node.children ?? []) {
        const panels = search(child, inner);
        if (panels) return panels;
      }
      return null;
    };
    return search(layout, []) ?? [];
  };
  /** Show the field of an option and write a value into it; returns whether there is such a field. */
  const set = async (tab, name, value) => {
    const id = `${tab}-${name}`;
    await jump(id, panelsAround(id));
    return Boolean(await until(() => fill(id, value)));
  };
  window.Fields = { jump, unfold, panelsOf, enter, submit, set };

  // Typed text is checked when the field is left, by the rules of Start
  document.addEventListener("focusout", async ({ target }) => {
    const field = target.matches?.("input:not([type=checkbox], [type=radio], [type=password]), textarea") && target.closest(".option[id]");
    const [, tab, name] = (field && field.id.match(/^([a-z_]+)-(\w+)$/)) || [];
    if (!tab || !Forms.tabs().includes(tab)) return;
    const { value } = target;
    const family = document.querySelector(`#${tab}-family input:checked`)?.value;
    const answer = await Studio.send("field", { tab, family, name, value }).catch(() => null);
    if (!answer || target.value !== value) return;
    const typed = wrong.get(`${tab} typed`) ?? new Map();
    wrong.set(`${tab} typed`, typed);
    if (!answer.problem && !typed.delete(field.id)) return;
    if (answer.problem) typed.set(field.id, answer.problem);
    mark();
  });

  // On an untouched form a family comes with its recommended settings
  const pristine = new Map(); // tab -> whether the form was untouched when its family was chosen
  const choosing = (choice, { target }) => {
    if (target.type !== "radio") return;
    const tab = choice.id.replace(/-family$/, "");
    pristine.set(tab, Drafts.untouched(tab));
    watch(tab);
  };
  on("change", "[id$=-family]", choosing, true);
  const useOffer = (tab) => {
    const offer = boxOf(tab)?.querySelector('[data-load^="preset:"]');
    if (offer && pristine.get(tab)) setTimeout(() => offer.click());
    pristine.delete(tab);
  };
})();
