// The console of a run, fetched only while open: its last lines, or those that match a search.
var StudioConsole = (() => {
  const { ask, el, checkbox, write } = Studio;

  class Console {
    constructor() {
      this.find = Studio.search("Search the console", Studio.later(() => this.again(), 250));
      this.follow = checkbox(true, () => this.scroll());
      this.text = el("pre", { class: "console", tabindex: "0", "aria-label": "Console" });
      this.count = el("span", { class: "quiet" });
      this.element = el(
        "details",
        { class: "console-box" },
        el("summary", {}, "Console"),
        el("div", { class: "console-tools" }, this.find, el("label", {}, this.follow, "Follow output"), this.count),
        this.text,
      );
      this.id = undefined;
      this.known = "";
      this.element.addEventListener("toggle", () => this.again());
      this.text.addEventListener("scroll", () => {
        const atEnd = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 30;
        if (!atEnd) this.follow.checked = false;
      });
    }

    scroll() {
      if (this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
    }

    again() {
      this.known = "";
      Studio.beat();
    }

    async ask(id) {
      if (!this.element.open || !this.element.isConnected) return;
      if (id !== this.id) [this.id, this.known] = [id, ""];
      const find = this.find.value.trim();
      const answer = await ask(`run/${id}/console?known=${this.known}&find=${encodeURIComponent(find)}`);
      if (!answer || id !== this.id) return;
      this.known = answer.known;
      this.text.replaceChildren(...answer.lines.flatMap(([number, line]) => this.line(number, line, find)));
      const { lines, total } = answer;
      const last = total > lines.length ? `last ${lines.length} lines` : "";
      write(this.count, find ? `${lines.length} of ${total} lines` : last);
      if (!lines.length) this.text.textContent = find ? "No matching lines" : "No output yet";
      this.scroll();
    }

    line(number, line, find) {
      if (!find) return [line + "\n"];
      const at = line.toLowerCase().indexOf(find.toLowerCase());
      const end = at + find.length;
      const marked = at < 0 ? [line] : [line.slice(0, at), el("mark", {}, line.slice(at, end)), line.slice(end)];
      return [el("i", {}, `${number} `), ...marked, "\n"];
    }
  }

  return Console;
})();
