// The dialog for files and folders on the machine that runs the GUI, and settings files dropped on the page.
(() => {
  const { el, button, ask, on } = Studio;
  const LAST = "browse-folder"; // where something was chosen last: files of one model are in one folder
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
    Fields.enter(field.element, before ? `${before}\n${path}` : path);
    field.then?.();
  };
  const inside = (name) => (here.folder.endsWith(here.separator) ? here.folder + name : here.folder + here.separator + name);
  const entry = (name, sign, onclick) => button(`${sign} ${name}`, onclick, { class: "entry" });

  const draw = () => {
    const typed = el("input", { type: "text", value: here.folder, "aria-label": "Folder", class: "where" });
    typed.addEventListener("keydown", (event) => event.key === "Enter" && list(typed.value));
    const rows = [
      here.parent && entry("..", "↑", () => list(here.parent)),
      ...here.folders.map((name) => entry(name, "▸", () => list(inside(name)))),
      ...here.files.map((name) => entry(name, "·", () => choose(inside(name)))),
    ].filter(Boolean);
    const images = here.images ? el("p", { class: "quiet" }, `${here.images} images in this folder`) : null;
    const take = here.takes_folder ? button("Use this folder", () => choose(here.folder), { class: "take" }) : null;
    dialog.replaceChildren(
      el("div", { class: "starts" }, ...here.starts.map((path) => button(path, () => list(path)))),
      typed,
      el("div", { class: "entries" }, ...(rows.length ? rows : [el("p", { class: "quiet" }, "No matching files here")])),
      ...[images].filter(Boolean),
      el("div", { class: "ways" }, take, button("Cancel", () => dialog.close())),
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
  Studio.browse = (element, name, then) => {
    if (!element) return;
    field = { element, name, then };
    dialog.replaceChildren();
    Studio.show(dialog);
    list(element.value.split("\n").pop() || localStorage.getItem(LAST) || "");
  };

  dialog.addEventListener("keydown", (event) => {
    const rows = [...dialog.querySelectorAll(".entries button")];
    const at = rows.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (event.key === "Backspace" && at >= 0 && here.parent) return list(here.parent);
    if (to == null || at < 0) return;
    event.preventDefault();
    rows[to]?.focus();
  });
  const followLink = (link, event) => {
    const { id } = link.closest(".option[id]") ?? {};
    if (!id) return;
    event.preventDefault();
    Studio.browse(fieldOf(id), id.replace(/^[a-z_]+-/, ""));
  };
  on("click", LINK, followLink, true);
  const openFile = ({ id }, event) => {
    const tab = id.replace(/-browse$/, "");
    event.preventDefault();
    const opens = () => setTimeout(() => document.getElementById(`${tab}-open`).click(), 300);
    Studio.browse(fieldOf(`${tab}-file`), "file", opens);
  };
  on("click", "button[id$=-browse]", openFile, true);

  // Gradio's Markdown gives all these links one name, and a window of their own
  on("focusin", LINK, (link) => {
    const title = link.closest(".option[id]")?.querySelector('[data-testid="block-info"]');
    link.removeAttribute("target");
    if (title) link.setAttribute("aria-label", `Browse for ${title.textContent.trim()}`);
  });

  // A settings file dropped anywhere on a training tab is opened there

  const LARGEST = 4e6; // bytes
  const isFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const tabShown = () => [...document.querySelectorAll("[id$=-start]")].find((each) => each.offsetParent)?.id.split("-")[0];
  document.addEventListener("dragover", (event) => isFile(event) && event.preventDefault());
  document.addEventListener("drop", async (event) => {
    if (!isFile(event)) return;
    event.preventDefault(); // else the browser leaves the page to show the file
    const tab = tabShown();
    const [file] = event.dataTransfer.files;
    if (!tab || !file) return;
    if (file.size > LARGEST) return Studio.toast(`${file.name} is not opened: it has more than 4 MB, and settings files have less`, "OK", () => {});
    Fields.submit(tab, "dropped", JSON.stringify({ name: file.name, text: await file.text() }), "open");
  });
})();
