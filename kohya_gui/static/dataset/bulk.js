// The same change for many captions, with a preview of each. Loaded before captions.js, which puts the box in its place.
var BulkEdits = (() => {
  const { el, button, select, checkbox } = Studio;
  /** Kind -> [words, its fields]. */
  const KINDS = {
    replace: ["Find and replace", ["find", "text", "regex", "match_case", "whole_words"]],
    add: ["Add tags", ["text", "at_end"]],
    remove: ["Remove tags", ["find"]],
    trigger: ["Put the trigger word first", ["text"]],
    sort: ["Sort tags", ["keep"]],
    dedupe: ["Remove repeated tags", []],
    spaces: ["Underscores to spaces", []],
  };
  const WORDS = { find: "Find", text: "Replace with", regex: "regular expression", match_case: "match case", whole_words: "whole words", at_end: "at the end", keep: "Tags at the start to leave in place" };
  let chosen = [];
  let refs = null;
  let digest = null;

  const edit = () => {
    const kind = refs.kind.value;
    const values = { kind, separator: Captions.separator() };
    for (const name of KINDS[kind][1]) {
      const field = refs[name];
      values[name] = field.type === "checkbox" ? field.checked : name === "keep" ? Number(field.value) || 0 : field.value;
    }
    return values;
  };
  const images = () => (chosen.length ? Captions.byFolder(chosen) : null);
  const stale = () => {
    digest = null;
    refs.preview.replaceChildren();
    refs.apply.hidden = true;
  };
  const fields = () => {
    const [, names] = KINDS[refs.kind.value];
    for (const name of Object.keys(WORDS)) refs[name].closest("label").hidden = !names.includes(name);
    refs.text.closest("label").firstChild.textContent = refs.kind.value === "replace" ? WORDS.text : refs.kind.value === "trigger" ? "Trigger word" : "Tags";
    refs.find.closest("label").firstChild.textContent = refs.kind.value === "remove" ? "Tags" : WORDS.find;
    stale();
  };
  /** What two texts have in common at both ends, and what differs between. */
  const difference = (before, after) => {
    let start = 0;
    while (start < Math.min(before.length, after.length) && before[start] === after[start]) start++;
    let end = 0;
    while (end < Math.min(before.length, after.length) - start && before.at(-1 - end) === after.at(-1 - end)) end++;
    return [before.slice(0, start), before.slice(start, before.length - end), after.slice(start, after.length - end), before.slice(before.length - end)];
  };
  const row = ({ path, before, after }) => {
    const [head, gone, made, tail] = difference(before, after);
    return el("li", { translate: "no" }, el("b", {}, Captions.split(path)[1]), " ", head, gone ? el("del", {}, gone) : null, made ? el("ins", {}, made) : null, tail);
  };
  const preview = () =>
    Captions.attempt(async () => {
      stale();
      await Captions.save();
      const answer = await Captions.ask("captions/preview", { images: images(), edit: edit() });
      const more = answer.count - answer.changes.length;
      refs.preview.replaceChildren(
        el("p", { role: "status" }, answer.count ? `${answer.count} of ${answer.of} captions change:` : `None of ${answer.of} captions would change.`),
        el("ul", { tabindex: 0, "aria-label": "Changes" }, ...answer.changes.map(row)),
        more > 0 ? el("p", { class: "quiet" }, `and ${more} more`) : "",
      );
      digest = answer.digest;
      refs.apply.hidden = !answer.count;
      refs.apply.textContent = `Change ${answer.count} caption${answer.count === 1 ? "" : "s"}`;
    });
  const apply = () =>
    Captions.attempt(async () => {
      const answer = await Captions.ask("captions/bulk", { images: images(), edit: edit(), digest });
      stale();
      if (Captions.taken(answer)) await Captions.tags();
    });

  const field = (name) => {
    const isFlag = !["find", "text", "keep"].includes(name);
    refs[name] = isFlag ? checkbox(false, stale) : el("input", { type: name === "keep" ? "number" : "text", min: 0, value: name === "keep" ? 1 : "", oninput: stale, list: "caption-tags", autocomplete: "off" });
    return isFlag ? el("label", { class: "flag" }, refs[name], ` ${WORDS[name]}`) : el("label", {}, el("span", {}, WORDS[name]), refs[name]);
  };
  const box = () => {
    refs = /** @type {any} */ ({});
    refs.kind = select({ "aria-label": "Change of captions", onchange: fields }, Object.entries(KINDS).map(([name, [words]]) => [name, words]));
    refs.count = el("span", { class: "quiet" }, "");
    refs.preview = el("div", { class: "bulk-preview" });
    refs.apply = button("", apply, { class: "take-button", hidden: true });
    const form = el(
      "form",
      { class: "bulk-form" },
      refs.kind,
      ...Object.keys(WORDS).map(field),
      el("p", { class: "ways" }, el("button", { type: "submit", class: "small-button" }, "Preview"), refs.apply),
      refs.preview,
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      preview();
    });
    refs.box = el("details", { class: "side-part", open: true }, el("summary", {}, "Change captions ", refs.count), form);
    fields();
    show([]);
    return refs.box;
  };
  const show = (selection) => {
    const isSame = selection.length === chosen.length && selection.every((path, i) => path === chosen[i]);
    chosen = selection;
    if (!refs) return;
    refs.count.textContent = chosen.length ? `of ${chosen.length} selected` : "of all images";
    if (digest && !isSame) stale(); // a preview stays when the grid is drawn again
  };
  return { box, show, chosen: () => chosen };
})();
