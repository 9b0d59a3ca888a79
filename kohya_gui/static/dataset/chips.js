// The tags of a caption as chips: arrows move between them, Alt and arrows move a tag, Delete removes it, Enter edits
// it, and dragging reorders. Typing at the end adds tags, with suggestions from the folder.
var TagChips = (() => {
  const { el, button } = Studio;

  const split = (text, separator) => text.split(separator).map((tag) => tag.trim()).filter(Boolean);
  const join = (tags, separator) => tags.join(`${separator.trim()} `);

  /** `changed(tags)` is called after each change; `suggestions` is the id of a datalist. */
  const make = ({ changed, suggestions }) => {
    let tags = [];
    let separator = ",";
    let read = Infinity; // letters of the text that the model reads
    let dragged = -1;
    const list = el("ul", { class: "tag-chips", "aria-label": "Tags of the caption" });
    const spoken = el("p", { class: "unseen", role: "status" });
    const entry = el("input", { type: "text", list: suggestions, placeholder: "Add a tag", "aria-label": "Add a tag", autocomplete: "off" });
    const box = el("div", { class: "tag-editor" }, list, entry, spoken);
    const chips = () => [...list.querySelectorAll(".tag-chip")];

    const set = (next, words = "") => {
      tags = next;
      draw();
      spoken.textContent = words;
      changed(tags);
    };
    const focus = (index) => {
      const all = chips();
      if (!all.length) return entry.focus();
      const place = Math.max(0, Math.min(all.length - 1, index));
      all.forEach((chip, number) => (chip.tabIndex = number === place ? 0 : -1));
      all[place].focus();
    };
    const move = (from, to) => {
      if (to < 0 || to >= tags.length || from === to) return;
      const next = [...tags];
      next.splice(to, 0, ...next.splice(from, 1));
      set(next, `${tags[from]} is now tag ${to + 1} of ${tags.length}`);
      focus(to);
    };
    const remove = (index) => {
      set(tags.filter((_, number) => number !== index), `'${tags[index]}' removed`);
      focus(index);
    };
    const edit = (index) => {
      const field = el("input", { type: "text", value: tags[index], "aria-label": `Edit the tag ${tags[index]}`, list: suggestions });
      const done = (isKept) => {
        if (!field.isConnected) return;
        const next = isKept ? split(field.value, separator) : [tags[index]];
        field.onblur = null;
        set([...tags.slice(0, index), ...next, ...tags.slice(index + 1)]);
        focus(index);
      };
      field.onblur = () => done(true);
      field.addEventListener("keydown", (event) => {
        if (event.key === "Enter") done(true);
        else if (event.key === "Escape") done(false);
        else return;
        event.preventDefault();
        event.stopPropagation();
      });
      list.children[index].replaceChildren(field);
      field.focus();
      field.select();
    };

    const pressed = (event, index) => {
      const moves = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
      if (event.key in moves) {
        if (event.altKey) move(index, index + moves[event.key]);
        else if (index + moves[event.key] >= tags.length) entry.focus();
        else focus(index + moves[event.key]);
      } else if (event.key === "Home") event.altKey ? move(index, 0) : focus(0);
      else if (event.key === "End") event.altKey ? move(index, tags.length - 1) : focus(tags.length - 1);
      else if (event.key === "Delete" || event.key === "Backspace") remove(index);
      else if (event.key === "Enter" || event.key === "F2") edit(index);
      else return;
      event.preventDefault();
      event.stopPropagation();
    };

    const chip = (tag, index, start) => {
      const isCut = start + tag.length > read;
      const made = el(
        "span",
        {
          class: `tag-chip${isCut ? " is-cut" : ""}`,
          role: "button",
          tabindex: index ? -1 : 0,
          draggable: "true",
          title: isCut ? "The text encoder does not read this tag" : "Drag, or Alt and arrows, to move; Enter to edit; Delete to remove",
          "aria-label": `${tag}, tag ${index + 1} of ${tags.length}${isCut ? ", not read by the model" : ""}`,
        },
        tag,
      );
      made.addEventListener("keydown", (event) => pressed(event, index));
      made.addEventListener("dblclick", () => edit(index));
      made.addEventListener("dragstart", (event) => {
        dragged = index;
        event.dataTransfer.effectAllowed = "move";
        event.dataTransfer.setData("text/plain", tag);
      });
      made.addEventListener("dragend", () => (dragged = -1));
      const item = el("li", {}, made, button("×", () => remove(index), { class: "tag-remove", "aria-label": `Remove ${tag}`, tabindex: -1 }));
      item.addEventListener("dragover", (event) => dragged >= 0 && event.preventDefault());
      item.addEventListener("drop", (event) => {
        if (dragged < 0) return;
        event.preventDefault();
        event.stopPropagation();
        move(dragged, index);
      });
      return item;
    };
    const draw = () => {
      let start = 0;
      const items = tags.map((tag, index) => {
        const made = chip(tag, index, start);
        start += tag.length + separator.trim().length + 1;
        return made;
      });
      list.replaceChildren(...items);
    };

    const add = () => {
      const present = new Set(tags.map((tag) => tag.toLowerCase()));
      const next = split(entry.value, separator).filter((tag) => !present.has(tag.toLowerCase()));
      entry.value = "";
      if (next.length) set([...tags, ...next], `'${next.join(", ")}' added`);
    };
    entry.addEventListener("keydown", (event) => {
      if (event.key === "Enter") add();
      else if (event.key === "ArrowLeft" && !entry.value) focus(tags.length - 1);
      else if (event.key === "Backspace" && !entry.value) focus(tags.length - 1);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    entry.addEventListener("input", () => entry.value.includes(separator) && add());
    entry.addEventListener("blur", add);

    return {
      box,
      show: (text, by, letters = Infinity) => {
        separator = by;
        read = letters;
        tags = split(text, separator);
        draw();
      },
    };
  };
  return { make, split, join };
})();
