// The dialog for files and folders on the machine that runs the GUI, and settings files dropped on the page.
(() => {
  const { el, ask } = Studio;
  const LAST = "browse-folder"; // where something was chosen last: files of one model lie together
  const LINK = 'a[href$="#browse"]';
  const fieldOf = (id) => document.getElementById(id)?.querySelector("input, textarea");

  const dialog = el("dialog", { class: "browse", "aria-label": "Choose a file or folder" });
  let field, here;

  const choose = (path) => {
    dialog.close();
    localStorage.setItem(LAST, here.folder);
    const several = field.element.tagName === "TEXTAREA" && field.element.rows > 1;
    const before = several ? field.element.value.trimEnd() : "";
    field.element.focus();
    field.element.value = before ? `${before}\n${path}` : path;
    for (const kind of ["input", "change"]) field.element.dispatchEvent(new Event(kind, { bubbles: true }));
    if (field.element.role === "combobox" || field.element.getAttribute("role") === "listbox")
      field.element.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
    field.then?.();
  };
  const inside = (name) => (here.folder.endsWith(here.separator) ? here.folder + name : here.folder + here.separator + name);
  const entry = (name, sign, onclick) => el("button", { type: "button", class: "entry", onclick }, `${sign} ${name}`);

  const draw = () => {
    const typed = el("input", { type: "text", value: here.folder, "aria-label": "Folder", class: "where" });
    typed.addEventListener("keydown", (event) => event.key === "Enter" && list(typed.value));
    const rows = [
      here.parent && entry("..", "↑", () => list(here.parent)),
      ...here.folders.map((name) => entry(name, "▸", () => list(inside(name)))),
      ...here.files.map((name) => entry(name, "·", () => choose(inside(name)))),
    ].filter(Boolean);
    const images = here.images ? el("p", { class: "quiet" }, `${here.images} images in this folder`) : null;
    const take = el("button", { type: "button", class: "take", onclick: () => choose(here.folder) }, "Use this folder");
    dialog.replaceChildren(
      el("div", { class: "starts" }, ...here.starts.map((path) => el("button", { type: "button", onclick: () => list(path) }, path))),
      typed,
      el("div", { class: "entries" }, ...(rows.length ? rows : [el("p", { class: "quiet" }, "No matching files here")])),
      ...(images ? [images] : []),
      el("div", { class: "ways" }, ...(here.takes_folder ? [take] : []), el("button", { type: "button", onclick: () => dialog.close() }, "Cancel")),
    );
    (dialog.querySelector(".entries button") ?? typed).focus();
  };
  const list = async (path) => {
    try {
      here = await ask(`files?path=${encodeURIComponent(path)}&field=${field.name}`);
      draw();
    } catch (error) {
      dialog.querySelector(".message")?.remove();
      dialog.prepend(Studio.complaint(error));
    }
  };
  const open = (element, name, then) => {
    if (!element) return;
    field = { element, name, then };
    if (!dialog.isConnected) document.body.append(dialog);
    dialog.replaceChildren();
    dialog.showModal();
    list(element.value.split("\n").pop() || localStorage.getItem(LAST) || "");
  };

  Studio.browse = open;

  dialog.addEventListener("keydown", (event) => {
    const rows = [...dialog.querySelectorAll(".entries button")];
    const at = rows.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (event.key === "Backspace" && at >= 0 && here.parent) return list(here.parent);
    if (to == null || at < 0) return;
    event.preventDefault();
    rows[to]?.focus();
  });
  document.addEventListener(
    "click",
    (event) => {
      const link = event.target.closest?.(LINK);
      const id = link ? link.closest(".option[id]")?.id : null;
      const [, tab] = event.target.closest?.("button[id$=-browse]")?.id.match(/^([a-z_]+)-browse$/) ?? [];
      if (!id && !tab) return;
      event.preventDefault();
      if (id) return open(fieldOf(id), id.replace(/^[a-z_]+-/, ""));
      open(fieldOf(`${tab}-file`), "file", () => setTimeout(() => document.getElementById(`${tab}-open`).click(), 300));
    },
    true,
  );

  // Gradio's Markdown gives all these links one name, and a window of their own
  document.addEventListener("focusin", ({ target }) => {
    const field = target.matches?.(LINK) && target.closest(".option[id]");
    if (!field) return;
    target.removeAttribute("target");
    target.setAttribute("aria-label", `Browse for ${field.querySelector('[data-testid="block-info"]')?.textContent.trim()}`);
  });

  // A settings file dropped anywhere on a training tab is opened there

  const LARGEST = 4e6; // bytes
  const isFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const tabShown = () => [...document.querySelectorAll("[id$=-start]")].find((each) => each.offsetParent)?.id.split("-")[0];
  document.addEventListener("dragover", (event) => isFile(event) && event.preventDefault());
  document.addEventListener("drop", async (event) => {
    if (!isFile(event)) return;
    event.preventDefault(); // else the browser leaves the page to show the file
    const [tab, file] = [tabShown(), event.dataTransfer.files[0]];
    const into = tab && document.querySelector(`#${tab}-dropped :is(input, textarea)`);
    if (!into || !file) return;
    if (file.size > LARGEST) return Studio.toast(`${file.name} is not opened: it has more than 4 MB, and settings files have less`, "OK", () => {});
    into.value = JSON.stringify({ name: file.name, text: await file.text() });
    into.dispatchEvent(new Event("input", { bubbles: true }));
    setTimeout(() => document.getElementById(`${tab}-open`).click(), 150); // once Gradio has read it
  });
})();
