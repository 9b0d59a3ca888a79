// The sample prompt editor: explains each prompt while typing, and appends options to the current line.
(() => {
  const { on } = Studio;
  const part = (tab, name) => document.querySelector(`#${tab}-${name}`);
  const chosen = (tab, name) => part(tab, name)?.querySelector("input, textarea")?.value ?? "";
  const familyOf = (tab) => part(tab, "family").querySelector("input:checked").value;
  const waiting = {};
  const ask = async (tab) => {
    const area = part(tab, "prompts")?.querySelector("textarea");
    if (!area) return;
    const text = area.value;
    const file = chosen(tab, "sample_prompts");
    const sampler = chosen(tab, "sample_sampler");
    const body = { tab, text, file, family: familyOf(tab), sampler, sample_model: chosen(tab, "sample_model") };
    const answer = await Studio.send("prompts", body).catch(() => null);
    if (!answer || area.value !== text) return; // the text has changed in the meantime
    const show = (place, html) => place && Studio.put(place, html);
    show(part(tab, "prompt-options")?.querySelector(".inserts"), answer.options);
    show(part(tab, "prompts-check")?.querySelector(".check"), answer.check);
  };
  const soon = (tab, pause = 300) => {
    clearTimeout(waiting[tab]);
    waiting[tab] = setTimeout(ask, pause, tab);
  };
  window.checkPrompts = (tab) => {
    soon(tab, 50);
    setTimeout(() => part(tab, "prompts")?.querySelector("textarea").focus(), 50);
  };
  on("input", ".prompt-editor", (editor) => soon(editor.id.replace("-prompt-editor", "")));
  on("change", "[id$=-family], [id$=-sample_prompts], [id$=-sample_sampler], [id$=-sample_model]", (of) => soon(of.id.split("-")[0]));
  on("click", "[data-insert]", (button) => {
    const { insert, value } = button.dataset;
    const area = button.closest(".prompt-editor").querySelector("textarea");
    const text = area.value;
    const start = text.lastIndexOf("\n", area.selectionStart - 1) + 1;
    const end = text.indexOf("\n", start) < 0 ? text.length : text.indexOf("\n", start);
    const there = text.slice(start, end).match(new RegExp(`^(.* --${insert} +)(.*?)(?= --|$)`, "i"));
    area.focus();
    if (there) return area.setSelectionRange(start + there[1].length, start + there[0].length); // select its value to be replaced
    const line = `${text.slice(start, end).trimEnd()} --${insert} ${value}`;
    area.setRangeText(line, start, end, "end");
    area.setSelectionRange(start + line.length - value.length, start + line.length);
    area.dispatchEvent(new Event("input", { bubbles: true }));
  });
})();
