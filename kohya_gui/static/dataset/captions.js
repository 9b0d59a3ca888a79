// The caption of the active image, edited in place: saved by itself, counted in tokens of the model, and never written
// over the change of somebody else. What is common to the editing scripts is in Captions.
var Captions = (() => {
  const { el, button, send } = Studio;
  const PAUSE = 800; // ms after the last key until a caption is saved
  const COUNTED_AFTER = 350; // ms
  const LONGEST = 120_000; // ms
  const AUTHORS = { hand: "written by hand", tagger: "written by a tagger", model: "written by a model", outside: "written outside this page" };
  const MODE = "dataset-caption-mode";
  const listeners = [];

  let state = { undo: null, redo: null };
  let path = null; // of the image whose caption is shown
  let seen = null; // its caption, as the server has it
  let isDirty = false;
  const saving = new Map(); // path -> the end of its saving
  const drafts = new Map(); // path -> a text that is not saved yet
  const contested = new Set(); // paths of captions that somebody else changed too, until a person has chosen a text
  let saveTimer = null;
  let refs = null;

  // Requests

  const split = (path) => {
    const at = Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\"));
    return [path.slice(0, at), path.slice(at + 1)];
  };
  /** Paths as a request has them: folder -> names. */
  const byFolder = (paths) => {
    const folders = {};
    for (const each of paths) {
      const [folder, name] = split(each);
      (folders[folder] ??= []).push(name);
    }
    return folders;
  };
  const separator = () => Studio.dataset.opened()?.caption_separator || ",";
  const place = () => {
    const { conditioning_data_dir: masks, control_directory: controls } = Studio.dataset.form()?.values ?? {};
    const extension = Studio.dataset.opened()?.caption_extension || ".txt";
    return { place: Studio.dataset.folder(), extension, mask_folder: masks, masks: [masks, controls].filter((path) => typeof path === "string" && path) };
  };
  /** Send a request about the dataset that is open, and note what can be undone since. */
  const ask = async (route, body = {}) => {
    const answer = await send(`dataset/${route}`, { ...place(), ...body }, { signal: AbortSignal.timeout(LONGEST) });
    if (answer && "undo" in answer) {
      state = { undo: answer.undo, redo: answer.redo };
      listeners.forEach((listen) => listen());
    }
    return answer;
  };
  const say = (text) => Studio.write(refs.status, text);
  const fail = (error) => refs.problem.replaceChildren(Studio.complaint(error));
  const attempt = (work) => Studio.attempt(refs.problem, work);

  /** Show captions in the grid, and the active one here. */
  const take = (captions) => {
    const changes = {};
    for (const [each, caption] of Object.entries(captions)) changes[each] = { caption: caption.text.trim().split("\n")[0], captioned: caption.captioned };
    if (path in captions && !contested.has(path)) {
      seen = captions[path];
      if (!isDirty) show({ isNew: seen.text !== text() }); // a tag may be being edited
    }
    Studio.dataset.update(changes);
  };
  /** Show an answer to a change: the captions, or why it was refused. */
  const taken = (answer) => {
    if (answer.refused) conflict(answer);
    if (answer.captions) take(answer.captions);
    if (answer.refused) say("Not saved");
    else if (answer.done) say(answer.done);
    return !answer.refused;
  };

  // The caption that is edited

  const text = () => refs.text.value;
  const isTags = () => localStorage.getItem(MODE) === "tags";
  const show = ({ isNew = true } = {}) => {
    isDirty = false;
    refs.text.value = seen.text;
    refs.text.disabled = Boolean(seen.problem);
    refs.problem.replaceChildren(...(seen.problem ? [Studio.complaint(new Error(seen.problem))] : []));
    describe();
    draw({ isNew });
    count();
  };
  const describe = () => {
    const shared = seen.shared ? `, shared by ${seen.shared + 1} images` : "";
    const author = seen.captioned && seen.text ? AUTHORS[seen.author] ?? "" : "";
    const about = seen.captioned ? [shared, author && " · ", author] : [" ", "does not exist yet"];
    refs.file.replaceChildren(el("span", { translate: "no" }, seen.file), ...about);
  };
  /** Show the caption as text or tags; `letters`: how many of it the model reads. Tags that are edited stay in place. */
  const draw = ({ letters = undefined, isNew = false } = {}) => {
    const lines = text().split("\n");
    const canBeTags = lines.length === 1 && !seen?.problem;
    const tags = isTags() && canBeTags;
    refs.text.hidden = tags;
    refs.chips.box.hidden = !tags;
    refs.mode.disabled = !canBeTags;
    refs.mode.setAttribute("aria-pressed", String(tags));
    refs.mode.title = canBeTags ? "Edit the caption as tags" : "A caption with several lines is edited as text";
    if (tags && (isNew || !refs.chips.box.contains(document.activeElement))) refs.chips.show(text(), separator(), letters);
  };
  const edited = () => {
    isDirty = true;
    say("");
    clearTimeout(saveTimer);
    saveTimer = setTimeout(save, PAUSE);
    count();
  };
  /** Save the caption that is shown. A different image may be shown before the answer comes: a disk can be slow. */
  const save = () => {
    clearTimeout(saveTimer);
    if (!isDirty || !path || !seen) return saving.get(path);
    if (contested.has(path)) {
      drafts.set(path, text());
      return say("Not saved: choose one of the two texts");
    }
    if (saving.has(path)) return saving.get(path).then(save);
    const mine = { path, text: text(), version: seen.version };
    drafts.set(mine.path, mine.text);
    const work = attempt(async () => {
      const answer = await ask("captions/write", { edits: { [mine.path]: { text: mine.text, version: mine.version } } });
      if (!answer.refused) {
        if (drafts.get(mine.path) === mine.text) drafts.delete(mine.path);
        answer.done = "Saved";
      }
      if (path === mine.path && text() === mine.text) isDirty = Boolean(answer.refused);
      taken(answer);
      if (path === mine.path && seen) describe();
    }).then(() => saving.delete(mine.path));
    saving.set(mine.path, work);
    return work;
  };

  /** Show both texts of captions that somebody else changed; nothing was written. */
  const conflict = ({ refused, conflicts, captions = {} }) => {
    const close = () => refs.conflict.replaceChildren();
    clearTimeout(saveTimer);
    const rows = conflicts.slice(0, 3).map(({ path: each, theirs, yours }) => {
      const now = captions[each];
      if (now) contested.add(each);
      const use = async (isTheirs) => {
        const wanted = each === path ? text() : yours;
        close();
        contested.delete(each);
        drafts.delete(each);
        if (each === path) {
          seen = now;
          isDirty = false;
        }
        if (isTheirs) return each === path ? show() : null;
        await attempt(async () => taken(await ask("captions/write", { edits: { [each]: { text: wanted, version: now.version } } })));
      };
      return el(
        "div",
        { class: "conflict-row" },
        el("b", {}, split(each)[1]),
        el("p", {}, el("span", { class: "quiet" }, "There now: "), theirs || "(empty)"),
        el("p", {}, el("span", { class: "quiet" }, "Yours: "), yours || "(empty)"),
        now ? el("p", { class: "ways" }, button("Keep theirs", () => use(true)), button("Write mine", () => use(false))) : null,
      );
    });
    const skip = Object.keys(captions).length ? null : button("Leave these, and undo what came before", () => attempt(async () => (close(), taken(await ask("captions/skip")))));
    refs.conflict.replaceChildren(
      Studio.alarm(el("p", {}, refused), ...rows, el("p", { class: "ways" }, skip ?? "", conflicts.some(({ path: each }) => captions[each]) ? "" : button("Close", close))),
    );
  };

  // Tokens

  let isCounting = false; // one request at a time: browsers send six to a server, and the first takes long
  const count = Studio.later(async () => {
    if (isCounting) return;
    const form = Studio.dataset.form();
    if (!form) return unmeasured("no settings of a training are open");
    isCounting = true;
    const counted = text();
    const answer = await send("dataset/tokens", { ...form, texts: [counted] }, { signal: AbortSignal.timeout(LONGEST) }).catch((error) => ({ unmeasured: error.message }));
    isCounting = false;
    if (counted === text()) showCount(answer, counted);
    else count();
  }, COUNTED_AFTER);
  const showCount = (answer, counted) => {
    if (answer.unmeasured) return unmeasured(answer.unmeasured);
    if (!answer.limit) return unmeasured("this model has no limit");
    const lines = answer.lines[0];
    const longest = lines.reduce((most, line) => (line.tokens > most.tokens ? line : most), lines[0]);
    const isCut = longest.tokens > answer.limit;
    refs.tokens.className = isCut ? "tokens is-cut" : "tokens";
    refs.tokens.title = "";
    Studio.write(refs.tokens, `${longest.tokens} / ${answer.limit} tokens`);
    const rest = counted.split("\n")[lines.indexOf(longest)].slice(longest.letters);
    refs.cut.hidden = !isCut;
    if (isCut) refs.cut.replaceChildren("Not read by the text encoder: ", el("del", {}, rest.trim()), answer.remedy ? ` Shorten it, or ${answer.remedy}.` : "");
    draw({ letters: isCut ? longest.letters : undefined });
  };
  const unmeasured = (why) => {
    refs.tokens.className = "tokens";
    refs.cut.hidden = true;
    refs.tokens.title = why;
    Studio.write(refs.tokens, "tokens: not measured");
  };

  // Which image

  let asked = 0;
  const open = async (image, isSame = false) => {
    if (!image || image.path === path) return;
    const number = ++asked;
    save();
    path = image.path;
    seen = null;
    isDirty = false;
    refs.conflict.replaceChildren();
    refs.box.hidden = false;
    refs.text.value = "";
    refs.text.disabled = true; // what is typed before the caption is there would be lost
    refs.chips.box.hidden = true;
    refs.file.textContent = "";
    refs.tokens.textContent = "";
    refs.cut.hidden = true;
    await attempt(async () => {
      const { captions } = await ask("captions/read", { images: byFolder([image.path]) });
      if (number !== asked) return;
      seen = captions[path];
      show();
      if (!isSame) say("");
      const draft = drafts.get(path);
      if (draft == null || saving.has(path) || draft === seen.text) return contested.delete(path);
      refs.text.value = draft; // it could not be saved before
      draw({ isNew: true });
      isDirty = true;
      if (contested.has(path)) conflict({ refused: "This caption was changed outside this page; nothing was written", conflicts: [{ path, theirs: seen.text, yours: draft }], captions });
      else edited();
    });
  };
  const leave = () => {
    save();
    path = null;
    refs.box.hidden = true;
  };
  /** Read the caption that is shown once more, under the hands of someone who may be typing. */
  const again = async () => {
    const image = Studio.dataset.active();
    if (image && image.path === path && seen) {
      if (isDirty) return; // it is saved with the version that was read
      await attempt(async () => {
        const { captions } = await ask("captions/read", { images: byFolder([image.path]) });
        if (image.path === path && !isDirty) take(captions);
      });
      return;
    }
    path = null;
    if (image) open(image, true);
    else refs.box.hidden = true;
  };
  /** Look whether somebody else has changed the caption that is shown. */
  const look = async () => {
    if (!path || !seen || saving.size || contested.has(path)) return;
    const mine = path;
    const answer = await ask("captions/changed", { images: byFolder([path]), versions: { [path]: seen.version } });
    if (!answer.captions || mine !== path || saving.size) return;
    const [theirs] = Object.values(answer.captions);
    if (isDirty && theirs.text !== seen.text) {
      clearTimeout(saveTimer);
      return conflict({ refused: "This caption was changed outside this page while you edit it", conflicts: [{ path, theirs: theirs.text, yours: text() }], captions: answer.captions });
    }
    take(answer.captions);
    say("Changed outside this page");
  };

  const turn = async (word) => {
    await save();
    await attempt(async () => {
      const answer = await ask(`captions/${word}`);
      if (!taken(answer)) return;
      if (answer.moved) await Studio.dataset.reload();
      else await refresh();
      again();
    });
  };
  /** Read all captions again, after an undo or a restore point. */
  const refresh = async () => take((await ask("captions/read")).captions);
  const tags = async () => {
    const { tags: counts } = await ask("captions/tags", { separator: separator() });
    refs.known.replaceChildren(...counts.slice(0, 1500).map(([tag, many]) => el("option", { value: tag }, String(many))));
  };

  const build = (side) => {
    refs = /** @type {any} */ ({});
    refs.text = el("textarea", { rows: 4, "aria-label": "Caption", spellcheck: "true", oninput: edited });
    refs.text.addEventListener("blur", save);
    refs.known = el("datalist", { id: "caption-tags" });
    refs.chips = TagChips.make({
      suggestions: "caption-tags",
      changed: (next) => {
        refs.text.value = TagChips.join(next, separator());
        edited();
      },
    });
    refs.mode = button("Tags", () => (localStorage.setItem(MODE, isTags() ? "text" : "tags"), draw(), count()), { class: "small-button", "aria-pressed": "false" });
    refs.tokens = el("span", { class: "tokens" }, "");
    refs.cut = el("p", { class: "cut", hidden: true });
    refs.file = el("span", { class: "quiet caption-file" }, "");
    refs.status = el("p", { class: "quiet", role: "status" });
    refs.problem = el("div", {});
    refs.conflict = el("div", {});
    refs.box = el(
      "div",
      { class: "caption-box", hidden: true },
      el("div", { class: "caption-head" }, el("b", {}, "Caption"), refs.tokens, refs.mode),
      refs.text,
      refs.chips.box,
      refs.cut,
      refs.file,
    );
    refs.undo = button("Undo", () => turn("undo"), { class: "small-button", disabled: true });
    refs.redo = button("Redo", () => turn("redo"), { class: "small-button", disabled: true });
    listeners.push(() => {
      for (const word of ["undo", "redo"]) {
        refs[word].disabled = !state[word];
        refs[word].title = state[word] ? `${word === "undo" ? "Undo" : "Redo"}: ${state[word]}` : `Nothing to ${word}`;
      }
    });
    side.replaceChildren(
      refs.known,
      refs.box,
      el("div", { class: "undo-row" }, refs.undo, refs.redo, refs.status),
      refs.problem,
      refs.conflict,
      BulkEdits.box(),
      DatasetFiles.box(),
    );
  };

  document.addEventListener("dataset-opened", async () => {
    const side = document.getElementById("dataset-side");
    if (!side) return;
    if (!refs) build(side);
    if (!Studio.dataset.images().some((image) => image.path === path)) path = null; // it is of the dataset before
    await attempt(async () => {
      DatasetFiles.show(await ask("captions/history"));
      await tags();
    });
    again();
  });
  document.addEventListener("dataset-selection", (event) => {
    if (!refs) return;
    const { selection, active } = /** @type {CustomEvent} */ (event).detail;
    BulkEdits.show(selection);
    if (active) open(active);
    else leave();
  });
  Studio.whileShown("#dataset-side", 3000, look, () => Boolean(refs));
  document.addEventListener("keydown", (event) => {
    const host = document.querySelector("[data-dataset]");
    if (!refs || !host?.offsetParent || document.querySelector("dialog[open]")) return;
    const inField = event.target.matches?.("input, textarea, select");
    const isUndo = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z";
    if (isUndo && !inField) turn(event.shiftKey ? "redo" : "undo");
    else if (event.key === "y" && (event.ctrlKey || event.metaKey) && !inField) turn("redo");
    else if (event.key === "e" && !inField && !event.ctrlKey && !event.metaKey && !event.altKey && path) (refs.text.hidden ? refs.chips.box.querySelector(".tag-chip, input") : refs.text).focus();
    else if (event.target === refs.text && event.key === "Escape") host.querySelector(".image-grid").focus();
    else if (event.target === refs.text && event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    else return;
    event.preventDefault();
  });
  addEventListener("beforeunload", (event) => (isDirty || saving.size) && event.preventDefault());

  return { state: () => state, ask, attempt, byFolder, split, separator, say, taken, again, refresh, fail, save: () => save(), tags };
})();
