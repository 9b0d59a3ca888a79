// A list box of many cells; only those in sight are elements. Arrows move, Shift extends, Space and clicks
// select, as in file managers.
var ImageGrid = (() => {
  const { el } = Studio;
  const OVERSCAN = 2; // rows above and below those in sight
  const GAP = 10;

  /** `cell(item, width)` makes the content of a cell, whose text is its name; `changed()` is called when the active
   * item or the selection changes, `opened(item)` at a double click or Enter. */
  const make = ({ title, height, cell, changed, opened }) => {
    let items = [];
    let width = 160; // wanted width of a cell
    let active = -1;
    let anchor = -1; // where a range begins
    const chosen = new Set(); // items
    const drawn = new Map(); // index -> element
    let columns = 1;
    let cellWidth = width;
    const spacer = el("div", { class: "grid-space", role: "presentation" });
    const box = el("div", { class: "image-grid", role: "listbox", tabindex: 0, "aria-multiselectable": "true", "aria-label": title }, spacer);
    const id = (index) => `dataset-cell-${index}`;
    const rowHeight = () => height(cellWidth) + GAP;

    const layOut = () => {
      const room = box.clientWidth - GAP;
      columns = Math.max(1, Math.floor(room / (width + GAP)));
      cellWidth = Math.max(60, Math.floor(room / columns) - GAP);
      spacer.style.height = `${Math.ceil(items.length / columns) * rowHeight() + GAP}px`;
    };
    const range = () => {
      const first = Math.max(0, Math.floor(box.scrollTop / rowHeight()) - OVERSCAN);
      const last = Math.ceil((box.scrollTop + box.clientHeight) / rowHeight()) + OVERSCAN;
      return [first * columns, Math.min(items.length, last * columns)];
    };
    const mark = (element, index) => {
      const isChosen = chosen.has(items[index]);
      element.setAttribute("aria-selected", String(isChosen));
      element.classList.toggle("is-active", index === active);
    };
    const drawOne = (index) => {
      const item = items[index];
      const element = el(
        "div",
        { class: "image-cell", role: "option", id: id(index), "aria-posinset": index + 1, "aria-setsize": items.length },
        ...cell(item, cellWidth),
      );
      element.style.cssText = `width:${cellWidth}px;height:${rowHeight() - GAP}px;transform:translate(${GAP + (index % columns) * (cellWidth + GAP)}px,${GAP + Math.floor(index / columns) * rowHeight()}px)`;
      element.dataset.index = index;
      mark(element, index);
      return element;
    };
    const draw = (anew = false) => {
      if (!box.clientHeight) return;
      const [from, to] = range();
      for (const [index, element] of drawn)
        if (anew || index < from || index >= to) {
          element.remove();
          drawn.delete(index);
        }
      const fresh = [];
      for (let index = from; index < to; index++)
        if (!drawn.has(index)) {
          const element = drawOne(index);
          drawn.set(index, element);
          fresh.push(element);
        }
      spacer.append(...fresh);
      if (drawn.has(active)) box.setAttribute("aria-activedescendant", id(active));
      else box.removeAttribute("aria-activedescendant");
    };
    const redraw = () => {
      layOut();
      draw(true);
    };
    const remark = () => drawn.forEach(mark);

    const reveal = (index) => {
      const top = Math.floor(index / columns) * rowHeight();
      if (top < box.scrollTop) box.scrollTop = top;
      else if (top + rowHeight() + GAP > box.scrollTop + box.clientHeight) box.scrollTop = top + rowHeight() + GAP - box.clientHeight;
    };
    const choose = (from, to) => {
      for (let index = Math.min(from, to); index <= Math.max(from, to); index++) chosen.add(items[index]);
    };
    /** Make an item active; `how`: "move" selects it alone, "extend" all from the anchor on, "toggle" changes it. */
    const go = (index, how = "move") => {
      if (!items.length) return;
      index = Math.max(0, Math.min(items.length - 1, index));
      if (how === "toggle") {
        chosen[chosen.has(items[index]) ? "delete" : "add"](items[index]);
        anchor = index;
      } else if (how === "extend") {
        if (anchor < 0) anchor = Math.max(active, 0);
        chosen.clear();
        choose(anchor, index);
      } else if (how === "move") {
        chosen.clear();
        chosen.add(items[index]);
        anchor = index;
      }
      active = index;
      reveal(index);
      draw();
      remark();
      changed();
    };
    const all = () => {
      choose(0, items.length - 1);
      remark();
      changed();
    };
    const none = () => {
      chosen.clear();
      remark();
      changed();
    };

    box.addEventListener("keydown", (event) => {
      const page = Math.max(1, Math.floor(box.clientHeight / rowHeight())) * columns;
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -page, PageDown: page };
      const to = { Home: 0, End: items.length - 1 }[event.key] ?? (event.key in steps ? Math.max(active, 0) + (active < 0 ? 0 : steps[event.key]) : null);
      if (to != null) {
        const isBeyond = to < 0 || to >= items.length;
        const isRow = event.key === "ArrowUp" || event.key === "ArrowDown";
        if (!(isBeyond && isRow)) go(to, event.shiftKey ? "extend" : event.ctrlKey || event.metaKey ? "only" : "move");
      } else if (event.key === " ") go(Math.max(active, 0), "toggle");
      else if (event.key === "Enter" && items[active]) opened(items[active]);
      else if (event.key === "Escape") none();
      else if (event.key === "a" && (event.ctrlKey || event.metaKey)) all();
      else return;
      event.preventDefault();
    });
    box.addEventListener("focus", () => active < 0 && items.length && go(0, "only"));
    box.addEventListener("click", (event) => {
      const element = event.target.closest(".image-cell");
      if (!element) return;
      const how = event.shiftKey ? "extend" : event.ctrlKey || event.metaKey || event.target.closest(".cell-tick") ? "toggle" : "move";
      go(Number(element.dataset.index), how);
    });
    box.addEventListener("dblclick", (event) => event.target.closest(".image-cell") && items[active] && opened(items[active]));
    let asked = false;
    box.addEventListener("scroll", () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        draw();
      });
    });
    new ResizeObserver(() => box.clientWidth && redraw()).observe(box);

    return {
      box,
      all,
      none,
      go,
      /** Show these items; the active one and the selection stay, as far as they are among them. */
      show(shown, keepPlace = true) {
        const was = items[active];
        items = shown;
        const here = new Set(items);
        for (const item of chosen) if (!here.has(item)) chosen.delete(item);
        active = was ? items.indexOf(was) : -1;
        anchor = -1;
        if (!keepPlace) box.scrollTop = 0;
        redraw();
        changed();
      },
      resize(wanted) {
        const row = items.length ? Math.floor(box.scrollTop / rowHeight()) * columns : 0;
        width = wanted;
        layOut();
        box.scrollTop = Math.floor(row / columns) * rowHeight();
        draw(true);
      },
      redraw,
      /** Draw the cells of these items again. */
      refresh(some) {
        for (const [index, element] of [...drawn])
          if (some.has(items[index])) {
            const fresh = drawOne(index);
            element.replaceWith(fresh);
            drawn.set(index, fresh);
          }
      },
      /** Make the first of these items active, and leave the selection as it is. */
      activate(isIt) {
        const index = items.findIndex(isIt);
        if (index >= 0) go(index, "only");
      },
      select(some) {
        chosen.clear();
        some.forEach((item) => chosen.add(item));
        remark();
        changed();
      },
      active: () => items[active] ?? null,
      activeIndex: () => active,
      chosen: () => items.filter((item) => chosen.has(item)),
      inSight: () => [...drawn.keys()].sort((one, other) => one - other).map((index) => items[index]),
      items: () => items,
    };
  };

  return { make };
})();
