// Parts of the Simple view: fields bound to the settings of a form, rows of choices, hints, and chips.
var TrainParts = (() => {
  const { el, button, select } = Studio;
  const text = (value) => String(value ?? "");
  const nameOf = (path) => text(path).split(/[\\/]/).filter(Boolean).pop() ?? "";
  /** The name of what is trained on a folder: the folder's, without its repeats. */
  const resultOf = (folder) => nameOf(folder).replace(/^\d+_/, "").replace(/\.(toml|jsonl?)$/i, "").trim().replace(/[^\p{L}\p{N}.-]+/gu, "_");

  /** A text field of an option. It shows the form's value unless somebody is typing in it. */
  class Field {
    constructor(name, words, put, { browse = false, lines = 1, placeholder = "", hint = false } = {}) {
      this.name = name;
      const attributes = { id: `train-${name}`, placeholder, autocomplete: "off", spellcheck: "false" };
      this.input = lines > 1 ? el("textarea", { ...attributes, rows: lines }) : el("input", { ...attributes, type: "text" });
      this.input.addEventListener("change", () => put({ [name]: this.input.value }));
      this.input.addEventListener("input", () => (this.isDirty = true));
      this.hint = hint ? el("div", { class: "found", "aria-live": "polite" }) : null;
      const look = () => Studio.browse(this.input, name);
      const row = el("div", { class: "train-input" }, this.input, browse ? button("Browse…", look, { "aria-label": `Browse for ${words.toLowerCase()}` }) : null);
      this.label = el("label", { for: attributes.id }, words);
      this.element = el("div", { class: "train-field" }, this.label, row, this.hint);
    }

    show(value) {
      if (document.activeElement === this.input && this.isDirty && this.input.value !== text(value)) return;
      this.isDirty = false;
      if (this.input.value !== text(value)) this.input.value = text(value);
    }

    /** Show the form's own hint below the field, with its buttons. */
    showHint(tab) {
      const hint = document.querySelector(`#${tab}-${this.name}-hint .hint`);
      const copy = hint?.cloneNode(true);
      for (const offer of copy?.querySelectorAll("[data-set]") ?? []) if (Drafts.value(tab, offer.dataset.set.slice(tab.length + 1))) offer.remove();
      const now = copy?.outerHTML ?? "";
      if (this.hint.sent === now) return;
      this.hint.sent = now;
      this.hint.replaceChildren(...(copy ? [copy] : []));
    }
  }

  /** One of a few choices, `[value, words, title]`, as radio buttons: one stop of the Tab key. */
  class Choices {
    constructor(name, legend, choose) {
      this.name = name;
      this.choose = choose;
      this.row = el("div", { class: "train-choices" });
      this.element = el("fieldset", { class: "train-field" }, el("legend", {}, legend), this.row);
    }

    show(choices, value) {
      const now = JSON.stringify(choices);
      if (this.sent !== now) {
        this.sent = now;
        this.row.replaceChildren(
          ...choices.map(([each, words, title]) => {
            const input = el("input", { type: "radio", name: `train-${this.name}`, value: each, onchange: () => this.choose(each) });
            return el("label", { title }, input, el("span", {}, words));
          }),
        );
      }
      for (const input of this.row.querySelectorAll("input")) input.checked = input.value === value;
    }
  }

  /** A setting that differs from the preset; it can be edited and reset. */
  const chip = (change, put) => {
    const { name, label, value, preset, kind, choices } = change;
    const words = (each) => (kind === "switch" ? (each ? "on" : "off") : text(each).replaceAll("\n", " ") || "not set");
    const element = el("span", { class: "train-chip", "data-name": name });
    const edit = () => {
      if (kind === "switch") return put({ [name]: !value });
      const attributes = { "aria-label": label, value: text(value) };
      const fixed = kind === "choice" && choices.length;
      const input = fixed ? select(attributes, choices.map((each) => [each, each])) : el("input", { type: "text", ...attributes });
      if (fixed) input.value = text(value);
      const done = (keep) => {
        if (!input.isConnected) return;
        draw();
        element.querySelector("button").focus();
        if (keep && input.value !== text(value)) put({ [name]: kind === "number" || kind === "slider" ? Number(input.value) : input.value });
      };
      input.addEventListener("change", () => done(true));
      input.addEventListener("blur", () => done(true));
      Studio.onKeys(input, { Escape: () => done(false), Enter: () => done(true) });
      element.replaceChildren(el("span", {}, label), input);
      input.focus();
      if (!fixed) input.select();
    };
    const draw = () => {
      const title = `${name}: ${words(value)}, in the preset ${words(preset)}. Press to change it`;
      const change = el("button", { type: "button", onclick: edit, title }, el("span", {}, label), el("b", {}, words(value)));
      const reset = { "aria-label": `Reset ${label} to ${words(preset)}`, title: `Reset to ${words(preset)}` };
      element.replaceChildren(change, button("×", () => put({ [name]: preset }), reset));
    };
    draw();
    return element;
  };

  return { Field, Choices, chip, nameOf, resultOf, text };
})();
