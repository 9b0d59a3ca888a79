// Fields of the training tabs: the links that lead to them, the marks of those that are wrong, the key of each, and a
// busy sign while an answer is on its way.
(() => {
  const wrong = new Map(); // tab -> ids of its fields that are marked
  const sheet = new CSSStyleSheet(); // a rule, since a folded panel has no elements yet
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const mark = () => {
    const ids = [...wrong.values()].flatMap((each) => [...each]).map((id) => `#${CSS.escape(id)}`);
    sheet.replaceSync(ids.length ? `:is(${ids.join(", ")}) { outline: 2px solid var(--bad); outline-offset: 3px; border-radius: 4px; }` : "");
  };
  const found = (look, left = 60) =>
    new Promise((done) => {
      const now = () => {
        const it = look();
        it || !left-- ? done(it) : setTimeout(now, 50);
      };
      now();
    });

  const panelsOf = (element) => (element.dataset.panels || "").split(" ").filter(Boolean);
  const unfold = async (panels) => {
    for (const panel of panels) {
      const head = await found(() => document.querySelector(`#${CSS.escape(panel)} > .label-wrap`));
      if (head && !head.classList.contains("open")) head.click();
    }
  };
  /** Open the panels around a field, and go to it. */
  const jump = async (id, panels) => {
    await unfold(panels);
    const field = await found(() => document.getElementById(id));
    if (!field) return;
    field.scrollIntoView({ block: "center" });
    field.querySelector("input, textarea, button")?.focus({ preventScroll: true });
  };

  const asked = new Map(); // tab -> whether the answer to Start may lead to a field
  const boxOf = (tab) => document.getElementById(`${tab}-message`);
  const look = (tab) => {
    const told = boxOf(tab)?.querySelector(".message");
    wrong.set(tab, new Set((told?.dataset.wrong || "").split(" ").filter(Boolean)));
    mark();
    if (!asked.get(tab)) return;
    if (told && "question" in told.dataset) told.querySelector("[data-answer]").focus();
    asked.set(tab, false);
    if (!told || !("go" in told.dataset)) return;
    const first = told.querySelector("[data-field]");
    if (first) jump(first.dataset.field, panelsOf(first));
  };
  const watched = new WeakSet();
  const watch = (tab) => {
    const box = boxOf(tab);
    if (!box || watched.has(box)) return;
    watched.add(box);
    const answered = () => {
      clearTimeout(waits[tab]);
      busy(tab, false);
      look(tab);
    };
    new MutationObserver(answered).observe(box, { childList: true, subtree: true, characterData: true });
  };
  const ASKING = ["start", "print", "open", "save", "save-new", "go-on"];
  const busy = (tab, on) => boxOf(tab)?.toggleAttribute("data-busy", on);
  const waits = {};

  document.addEventListener(
    "click",
    (event) => {
      const button = event.target.closest?.("button[id]");
      const [tab, ...rest] = button?.id.split("-") ?? [];
      if (!tab || !ASKING.includes(rest.join("-"))) return;
      watch(tab);
      asked.set(tab, ["start", "go-on"].includes(rest.join("-")));
      clearTimeout(waits[tab]);
      waits[tab] = setTimeout(busy, 150, tab, true); // an answer at once needs no sign
    },
    true,
  );
  /** Write into a field as if somebody typed it, for Gradio to see. */
  const fill = (id, value) => {
    const field = document.getElementById(id)?.querySelector("input, textarea");
    if (!field) return false;
    field.value = value;
    for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
    return true;
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-set]");
    if (!button) return;
    const { set, value } = button.dataset;
    if (!fill(set, value)) await unfold(panelsOf(button));
    await found(() => fill(set, value));
  });
  // the answer to what Start asked: Gradio hands it to the server with the form
  document.addEventListener("click", (event) => {
    const { answer } = event.target.closest?.("[data-answer]")?.dataset ?? {};
    const tab = answer && event.target.closest("[id$=-message]").id.split("-")[0];
    if (!tab || !fill(`${tab}-answer`, answer)) return;
    setTimeout(() => document.getElementById(`${tab}-go-on`).click(), 150); // once Gradio took it
  });
  document.addEventListener("click", (event) => {
    const { load } = event.target.closest?.("[data-load]")?.dataset ?? {};
    const tab = load && event.target.closest("[role=tabpanel]").id;
    if (!tab || !fill(`${tab}-load-run`, load)) return;
    setTimeout(() => document.getElementById(`${tab}-load`).click(), 150); // once Gradio took it
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    const start = [...document.querySelectorAll("[id$=-start]")].find((each) => each.offsetParent);
    if (!start) return;
    event.preventDefault();
    document.activeElement?.blur(); // what is typed counts
    setTimeout(() => start.click(), 60);
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("[data-field]");
    if (link) jump(link.dataset.field, panelsOf(link));
  });
  document.addEventListener("input", (event) => {
    const field = event.target.closest?.(".option[id]");
    for (const ids of field ? wrong.values() : []) if (ids.delete(field.id)) mark();
  });
  // the key of a field, where the mouse rests on its name
  document.addEventListener("mouseover", (event) => {
    const name = event.target.closest?.('.option[id] :is([data-testid="block-info"], label > span, .label-text)');
    if (name && !name.title) name.title = name.closest(".option[id]").id.replace(/^[a-z]+-/, "");
  });
})();
