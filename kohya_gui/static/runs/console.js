// The console of a run, fetched only while open: its last lines, or those that match a search.
window.StudioConsole = (() => {
  const { ask, el, write } = Studio;

  class Console {
    constructor() {
      this.find = el("input", {
        type: "search",
        placeholder: "Search the console",
        "aria-label": "Search the console",
      });
      this.follow = el("input", { type: "checkbox", checked: true });
      this.text = el("pre", { class: "console", tabindex: "0", "aria-label": "Console" });
      this.count = el("span", { class: "quiet" });
      this.element = el(
        "details",
        { class: "console-box" },
        el("summary", {}, "Console"),
        el("div", { class: "console-tools" }, this.find, el("label", {}, this.follow, "Follow output"), this.count),
        this.text,
      );
      this.known = "";
      this.element.addEventListener("toggle", () => this.again());
      this.find.addEventListener("input", () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.again(), 250);
      });
      this.text.addEventListener("scroll", () => {
        const atEnd = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 30;
        if (!atEnd) this.follow.checked = false;
      });
      this.follow.addEventListener(
        "change",
        () => this.follow.checked && (this.text.scrollTop = this.text.scrollHeight),
      );
    }

    again() {
      this.known = "";
      Studio.beat();
    }

    async ask(id) {
      if (!this.element.open || !this.element.isConnected) return;
      if (id !== this.id) [this.id, this.known] = [id, ""];
      const find = this.find.value.trim();
      const told = await ask(`run/${id}/console?known=${this.known}&find=${encodeURIComponent(find)}`);
      if (!told || id !== this.id) return;
      this.known = told.known;
      this.text.replaceChildren(...told.lines.flatMap(([number, line]) => this.line(number, line, find)));
      write(
        this.count,
        find
          ? `${told.lines.length} of ${told.total} lines`
          : told.total > told.lines.length
            ? `last ${told.lines.length} lines`
            : "",
      );
      if (!told.lines.length) this.text.textContent = find ? "No matching lines" : "No output yet";
      if (this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
    }

    line(number, line, find) {
      if (!find) return [line + "\n"];
      const at = line.toLowerCase().indexOf(find.toLowerCase());
      const marked =
        at < 0
          ? [line]
          : [line.slice(0, at), el("mark", {}, line.slice(at, at + find.length)), line.slice(at + find.length)];
      return [el("i", {}, `${number} `), ...marked, "\n"];
    }
  }

  return Console;
})();
