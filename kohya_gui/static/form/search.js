// The search over all settings ("/" or Ctrl+K), the list of sections next to the form, and the keys under the labels.
(() => {
  const { ask, send, on, onKeys, el, button, select, show, closer, write } = Studio;
  const FILTERS = [
    ["changed", "Changed", "Differs from the settings as they were opened, saved or set by a preset"],
    ["set", "Not default", "Differs from the default: what Save writes"],
    ["idle", "No effect here", "Has no effect with the family and the other settings"],
    ["memory", "Memory", "Decides how much memory a run takes"],
    ["quality", "Quality", "Decides what the result looks like"],
  ];
  const PAGE = 8; // hits that Page Down moves
  const FRAMED = 4000; // milliseconds for which a setting that was found is framed

  /** @type {any} */
  let index = null;
  let tab = ""; // whose settings are searched
  let all = [];
  let hits = [];
  let active = 0;
  const wanted = new Set(); // filters that are on

  const text = (value) => String(value ?? "");
  const valueOf = (entry) => (entry.tab === tab ? Drafts.value(tab, entry.name) : undefined);
  const defaultOf = (entry) => entry.defaults?.[Drafts.draft(entry.tab)?.family] ?? entry.default;
  const isSet = (entry) => valueOf(entry) !== undefined && text(valueOf(entry)) !== text(defaultOf(entry));
  const obstacleOf = (entry) => (entry.tab === tab ? Forms.obstacle(tab, entry.name) : null);

  // The dialog: a combobox with a list of hits, and the setting that is chosen in it

  const input = el("input", {
    ...{ type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "search-hits", "aria-autocomplete": "list" },
    ...{ placeholder: "Search settings: label, key, name in kohya_ss or musubi-tuner, or a word of its help", "aria-label": "Search settings" },
    ...{ autocomplete: "off", spellcheck: "false", oninput: () => look(0) },
  });
  const filters = FILTERS.map(([name, words, about]) =>
    button(words, (event) => toggle(name, event.currentTarget), { "aria-pressed": "false", title: about }),
  );
  const toggle = (name, chip) => {
    wanted.has(name) ? wanted.delete(name) : wanted.add(name);
    chip.setAttribute("aria-pressed", String(wanted.has(name)));
    look(0);
  };
  const list = el("ul", { id: "search-hits", role: "listbox", "aria-label": "Settings" });
  const detail = el("section", { class: "search-detail", "aria-label": "Chosen setting" });
  const count = el("span", { role: "status" });
  const place = el("span", { class: "quiet" });
  const dialog = Studio.dialog({ id: "settings-search", "aria-label": "Search settings" });
  const keys = el("span", { class: "search-keys quiet" }, "↑↓ choose · Enter: show in the form · Tab: change it here");
  dialog.append(
    // Tab leads from the words to the chosen setting, so the filters below come before
    el("div", { class: "search-filters", role: "group", "aria-label": "Filters" }, ...filters, place),
    closer(dialog),
    input,
    el("div", { class: "search-body" }, list, detail),
    el("div", { class: "search-foot" }, count, keys),
  );

  const move = (by) => hits.length && choose(Math.min(Math.max(active + by, 0), hits.length - 1));
  onKeys(input, {
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    PageDown: () => move(PAGE),
    PageUp: () => move(-PAGE),
    Enter: () => hits[active] && showInForm(hits[active]),
  });
  detail.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault(); // back to the list rather than out of the dialog
    input.focus();
  });

  const passes = (entry) => {
    const has = { changed: changedNow.has(entry.name) && entry.tab === tab, set: isSet(entry), idle: Boolean(obstacleOf(entry)) };
    return [...wanted].every((name) => has[name] ?? entry.topics.includes(name));
  };
  let changedNow = new Set();

  /** Search again; `keep` is the hit to be chosen, by default the same as before. */
  const look = (keep = active) => {
    if (!index) return;
    changedNow = new Set(Drafts.changes(tab));
    const found = Ranking.find(all, input.value);
    // without words, the settings of other tabs are not asked for
    hits = found.filter((entry) => (input.value.trim() || entry.tab === tab) && passes(entry));
    list.replaceChildren(...hits.map(row));
    choose(Math.min(keep, Math.max(hits.length - 1, 0)));
    write(count, hits.length === 1 ? "1 setting" : `${hits.length} settings`);
    if (!hits.length) detail.replaceChildren(nothing());
  };
  const nothing = () => {
    const key = input.value.trim().toLowerCase().replace(/[\s-]+/g, "_");
    const why = index.without_effect[key];
    if (why) return el("p", {}, el("code", {}, key), `: ${why}`);
    return el("p", { class: "quiet" }, wanted.size ? "No setting passes these filters." : "No setting has these words. Try fewer of them.");
  };

  const shownValue = (entry) => {
    const value = valueOf(entry);
    if (value === undefined) return entry.tab === tab ? "" : `› ${index.tabs[entry.tab].title}`;
    if (entry.kind === "switch") return value ? "on" : "off";
    return text(value).replaceAll("\n", " ") || entry.unset || "empty";
  };
  const row = (entry, i) => {
    const elsewhere = entry.kohya.length ? el("span", { translate: "no" }, `kohya_ss: ${entry.kohya[0]}`) : entry.aliases.length ? `other trainers: ${entry.aliases[0]}` : null;
    const names = [el("code", {}, entry.name), entry.section, elsewhere];
    const small = el("small", {});
    names.filter(Boolean).forEach((name, at) => small.append(at ? " · " : "", name));
    const value = el("span", { class: isSet(entry) ? "search-value set" : "search-value" }, shownValue(entry));
    const classes = obstacleOf(entry) ? "idle" : null;
    return el(
      "li",
      { id: `search-hit-${i}`, role: "option", class: classes, "aria-selected": "false", onclick: () => choose(i), ondblclick: () => showInForm(entry) },
      el("span", { class: "search-label" }, entry.label),
      value,
      small,
    );
  };
  const choose = (i) => {
    list.children[active]?.setAttribute("aria-selected", "false");
    active = i;
    const chosen = list.children[i];
    if (!chosen) return input.removeAttribute("aria-activedescendant");
    chosen.setAttribute("aria-selected", "true");
    chosen.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", chosen.id);
    detail.replaceChildren(...about(hits[i]).filter(Boolean));
  };

  // The chosen setting: its value, and what its documentation says

  const prose = (words) => {
    const parts = words.split(/(\*[^*]+\*|`[^`]+`)/);
    return parts.map((part) =>
      part.startsWith("*") ? el("em", {}, part.slice(1, -1)) : part.startsWith("`") ? el("code", {}, part.slice(1, -1)) : part,
    );
  };
  const titles = (names, of) => names.map((name) => of[name]).join(", ");
  const setting = (name) => all.find((entry) => entry.name === name);

  const about = (entry) => {
    const key = el("code", { "data-copy": entry.name, title: "Copy the key" }, entry.name);
    const names = el("p", { class: "search-names" }, key);
    if (entry.kohya.length) names.append(" · ", el("span", { translate: "no" }, `kohya_ss: ${entry.kohya.join(", ")}`));
    if (entry.aliases.length) names.append(" · ", `other trainers: ${entry.aliases.join(", ")}`);
    const family = Drafts.draft(entry.tab)?.family;
    const notes = entry.help.filter(([families]) => !families || families.includes(family)).map(([, words]) => words);
    const note = entry.notes?.[index.tabs[entry.tab].method];
    const facts = [
      ["Value", entry.type, ...(entry.choices?.length ? [": ", el("span", { translate: "no" }, entry.choices.join(", "))] : [])],
      ["Default", text({ true: "on", false: "off" }[defaultOf(entry)] ?? defaultOf(entry)) || entry.unset || "empty"],
      ["Section", `${index.tabs[entry.tab].title} › ${entry.section}${entry.panels.at(-1).endsWith("-more") ? " › More" : ""}`],
    ];
    if (entry.methods) facts.push(["For", titles(entry.methods, index.methods)]);
    return [
      el("h3", {}, entry.label),
      names,
      editor(entry),
      idleWords(entry),
      el("p", {}, ...prose([...notes, note].filter(Boolean).join(" "))),
      el("dl", {}, ...facts.flatMap(([term, ...words]) => [el("dt", {}, term), el("dd", {}, ...words)])),
      button(entry.tab === tab ? "Show in the form" : `Show in ${index.tabs[entry.tab].title}`, () => showInForm(entry), { class: "search-show" }),
    ];
  };
  const idleWords = (entry) => {
    const why = obstacleOf(entry);
    if (!why) return null;
    const words = why.families
      ? `Only for ${titles(why.families, index.families)}.`
      : `Has an effect only with ${why.set.map(([name, value]) => `${setting(name)?.label ?? name}: ${value === true ? "on" : value}`).join(" or ")}.`;
    return el("p", { class: "search-idle" }, words);
  };

  const editor = (entry) => {
    const value = valueOf(entry);
    if (entry.tab !== tab || value === undefined)
      return entry.kind === "secret" ? el("p", { class: "quiet" }, "A secret: enter it in the form. It is never written to a file.") : null;
    const problem = el("p", { class: "search-problem", role: "alert" });
    const field = control(entry, value);
    field.setAttribute("aria-label", entry.label);
    const put = async (next) => {
      write(problem, "");
      if (typeof next === "string" && entry.kind !== "choice") {
        const family = Drafts.draft(tab)?.family;
        const answer = await send("field", { tab, family, name: entry.name, value: next }).catch((error) => ({ problem: error.message }));
        if (answer.problem) return write(problem, answer.problem);
      }
      if (!Drafts.put(tab, { [entry.name]: next })) return;
      refresh(entry);
      reset.hidden = !isSet(entry);
    };
    field.addEventListener("change", () => put(read(entry, field)));
    const isOneLine = field.matches("input:not([type=checkbox])");
    if (isOneLine) field.addEventListener("keydown", ({ key }) => key === "Enter" && input.focus()); // which commits it, too
    const reset = button("Reset", () => (enter(field, defaultOf(entry)), put(defaultOf(entry))), { title: "Set the default", hidden: !isSet(entry) });
    return el("div", { class: "search-edit" }, field, reset, problem);
  };
  /** Write the new value into the row of the hit. */
  const refresh = (entry) => {
    const at = hits.indexOf(entry);
    if (at < 0) return;
    const fresh = row(entry, at);
    fresh.setAttribute("aria-selected", String(at === active));
    list.children[at].replaceWith(fresh);
  };
  const enter = (field, value) => (field.type === "checkbox" ? (field.checked = value) : (field.value = text(value)));
  const control = (entry, value) => {
    if (entry.kind === "switch") return el("input", { type: "checkbox", checked: value });
    if (entry.kind === "choice") {
      const choices = [...(entry.unset ? [["", entry.unset]] : []), ...entry.choices.map((each) => [text(each), text(each)])];
      return Object.assign(select({}, choices), { value: text(value) });
    }
    if (entry.lines) return Object.assign(el("textarea", { rows: 3 }), { value: text(value) });
    if (entry.kind === "suggestion") {
      const id = "search-suggestions";
      document.getElementById(id)?.remove();
      dialog.append(el("datalist", { id }, ...entry.choices.map((each) => el("option", { value: each }))));
      return el("input", { type: "text", list: id, value: text(value) });
    }
    const [min, max] = entry.within ?? [];
    if (entry.within) return el("input", { type: "number", min, max, step: "any", value: text(value) });
    return el("input", { type: "text", value: text(value), placeholder: entry.unset || null });
  };
  const read = (entry, field) => {
    if (entry.kind === "switch") return field.checked;
    if (entry.kind === "choice") return entry.choices.find((each) => text(each) === field.value) ?? "";
    if (entry.kind === "slider" || entry.kind === "number") return field.value.trim() === "" || isNaN(Number(field.value)) ? field.value : Number(field.value);
    return field.value;
  };

  // Showing a setting in its form

  /** Frame a field for a moment, from when it has a place: Gradio may take seconds to unfold its panel. */
  const frame = (field) =>
    new ResizeObserver((_, unfolding) => {
      if (!field.offsetHeight) return;
      unfolding.disconnect();
      field.scrollIntoView({ block: "center" });
      field.classList.add("found-setting");
      setTimeout(() => field.classList.remove("found-setting"), FRAMED);
    }).observe(field);
  const showInForm = async (entry) => {
    dialog.close();
    const why = entry.tab === tab && !Forms.isShown(tab, entry.name) ? obstacleOf(entry) : null;
    const first = why?.set?.map(([name]) => setting(name)).find((each) => each && Forms.isShown(tab, each.name));
    const shown = why ? first : entry; // one that is hidden now is shown by another
    if (!shown) return open(entry.name);
    await Fields.jump(`${shown.tab}-${shown.name}`, shown.panels);
    const field = document.getElementById(`${shown.tab}-${shown.name}`);
    if (field) frame(field);
  };

  const currentTab = () => {
    const tabs = Forms.tabs();
    const visible = tabs.find((each) => document.querySelector(`#${each}[role=tabpanel]`)?.offsetParent);
    return visible ?? (tabs.includes(tab) ? tab : tabs[0]);
  };
  const open = async (words = "") => {
    const before = tab;
    tab = currentTab();
    if (tab !== before) all = [];
    input.value = words;
    show(dialog); // what is typed until the index is here counts
    input.focus();
    input.select();
    try {
      index ??= await ask("settings");
    } catch (error) {
      return detail.replaceChildren(Studio.complaint(error));
    }
    if (!all.length) all = Ranking.entries(index, tab, Language.text);
    const family = document.querySelector(`#${tab}-family input:checked`)?.closest("label")?.textContent.trim();
    write(place, [index.tabs[tab].title, family].filter(Boolean).join(" · "));
    look(0);
  };

  const isTyping = (target) => target.closest?.("input:not([type=checkbox], [type=radio], [type=button]), textarea, select, [contenteditable]");
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.isComposing || document.querySelector("dialog[open]")) return;
      const isSlash = event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !isTyping(event.target);
      const isK = event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey;
      const field = event.target.closest?.(".option[id]");
      if (isSlash || isK) open();
      else if (event.key === "F1" && field) open(keyOf(field));
      else return;
      event.preventDefault();
    },
    true,
  );
  on("click", "#search-settings", () => open());

  // The browser's own find does not see panels that are not built
  let isTold = false;
  document.addEventListener("keydown", (event) => {
    if (isTold || event.key.toLowerCase() !== "f" || !(event.ctrlKey || event.metaKey) || document.querySelector("dialog[open]")) return;
    isTold = true;
    Studio.toast("The browser's find does not see folded panels that were never opened.", "Search all settings ( / )", async () => open());
  });

  // A field's key copies itself, its question mark shows the documentation; F1 does so from the keyboard
  const keyOf = (field) => field.id.replace(/^[a-z_]+?-/, "");
  on("click", ".option[id] .info-text > code:first-child + code", (mark, event) => {
    event.preventDefault(); // it stands in the label of the field
    open(keyOf(mark.closest(".option")));
  });
  on("click", ".option[id] .info-text > code:first-child", (key, event) => {
    event.preventDefault();
    Studio.copy(key.textContent, key);
  });

  // The list of sections: a dot at those with changed settings; one stop for Tab, from where arrows move

  const dots = Studio.styleSheet();
  const changedIn = new Map(); // tab -> its changed settings
  const drawDots = (of) => {
    changedIn.set(of, Drafts.changes(of));
    const links = [...changedIn].flatMap(([each, names]) =>
      [...document.querySelectorAll(`#${each} .contents [data-names]`)].filter((link) => names.some((name) => link.dataset.names.split(" ").includes(name))),
    );
    dots.replaceSync(links.map((link) => `#${CSS.escape(link.parentElement.id)} > button::after { content: " ●"; color: var(--warn); }`).join("\n"));
  };
  Drafts.onChange(drawDots);
  on("click", ".contents button", async (link) => {
    await Fields.unfold(Fields.panelsOf(link));
    document.getElementById(link.dataset.section)?.scrollIntoView({ block: "start" });
  });
  on("keydown", ".contents button", (link, event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const links = [...link.closest(".contents").querySelectorAll("button")].filter((each) => each.offsetParent);
    const next = links[links.indexOf(link) + by];
    if (!next) return;
    link.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  Studio.searchSettings = open;
})();
