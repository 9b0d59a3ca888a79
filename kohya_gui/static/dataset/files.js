// The images of the dataset as files: move, remove and put back, repeats, upload, export, restore points. Loaded before
// captions.js, which puts the box in its place.
var DatasetFiles = (() => {
  const { el, button, select, send, url } = Studio;
  const TOGETHER = 3; // files that are sent at the same time
  let refs = null;
  let known = { folders: [], points: [], actions: [] };

  const attempt = (work) => Captions.attempt(work);
  const chosen = () => {
    const images = BulkEdits.chosen();
    if (!images.length) throw new Error("Select images first: click them, or press Space in the grid");
    return images;
  };
  const moved = async (answer) => {
    if (!Captions.taken(answer)) return;
    if (answer.reload) await Studio.dataset.reload();
    Captions.say(answer.done);
  };
  const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  const move = () => attempt(async () => moved(await Captions.ask("files/move", { images: Captions.byFolder(chosen()), target: refs.target.value })));
  /** Move images into the trash, those that are selected unless they are named. */
  const remove = (named = null) =>
    attempt(async () => {
      const images = named ?? chosen();
      await moved(await Captions.ask("files/remove", { images: Captions.byFolder(images) }));
      const { undo } = Captions.state();
      Studio.toast(`${many(images.length, "image")} in the trash`, "Undo", async () => {
        if (Captions.state().undo !== undo) throw new Error("Something else has changed since: use Undo or the trash");
        await moved(await Captions.ask("captions/undo"));
      });
    });
  const repeats = () => attempt(async () => moved(await Captions.ask("files/repeats", { folder: refs.target.value, repeats: Number(refs.repeats.value) })));
  const masks = () => attempt(async () => moved(await Captions.ask("files/masks", { folder: refs.target.value })));
  const exported = () =>
    attempt(async () => {
      const images = BulkEdits.chosen().length ? BulkEdits.chosen() : [...new Set(Studio.dataset.images().map(({ path }) => path))];
      const answer = await Captions.ask("export", { images: Captions.byFolder(images) });
      el("a", { href: url(answer.url), download: "dataset.zip" }).click();
      Captions.say(`${many(answer.files, "file")} in dataset.zip`);
    });

  // Trash and restore points, in dialogs

  const trash = () =>
    attempt(async () => {
      const box = Studio.dialog({ class: "dataset-dialog files-dialog", "aria-label": "Trash" });
      const draw = async () => {
        const { trash: images, count } = await Captions.ask("files/trash");
        const boxes = images.map(({ path, name, when }) => el("label", {}, el("input", { type: "checkbox", value: path }), ` ${name} `, el("span", { class: "quiet" }, when)));
        const back = () =>
          attempt(async () => {
            const paths = [...box.querySelectorAll("input:checked")].map(({ value }) => value);
            box.close();
            await moved(await Captions.ask("files/put-back", { paths }));
          });
        const sure = () => empty.replaceWith(button(`Delete ${many(count, "image")} for good`, gone, { class: "small-button danger" }));
        const gone = () =>
          attempt(async () => {
            box.close();
            Captions.say((await Captions.ask("files/empty-trash")).done);
          });
        const empty = button("Empty the trash…", sure, { class: "small-button" });
        box.replaceChildren(
          Studio.closer(box),
          el("b", {}, `Trash: ${many(count, "image")}`),
          el("p", { class: "quiet" }, "Removed images are in the folder .trash next to the others, with their captions, masks and caches."),
          el("div", { class: "trash-list" }, ...boxes),
          count ? el("p", { class: "ways" }, button("Put back", back, { class: "small-button" }), empty) : "",
        );
      };
      await draw();
      Studio.show(box);
      box.addEventListener("close", () => box.remove());
    });
  const history = () =>
    attempt(async () => {
      const box = Studio.dialog({ class: "dataset-dialog files-dialog", "aria-label": "History and restore points" });
      const name = el("input", { type: "text", "aria-label": "Name of the restore point", placeholder: "Before tagging", maxlength: 80 });
      const act = (route, body, isOver = false) =>
        attempt(async () => {
          const answer = await Captions.ask(route, body);
          show(answer);
          if (isOver) {
            box.close();
            await Captions.refresh();
            Captions.again();
          } else draw();
          if (answer.done) Captions.say(answer.done);
        });
      const point = ({ id, name: words, made, captions, masks }) =>
        el(
          "li",
          {},
          el("b", { translate: "no" }, words),
          el("span", { class: "quiet" }, ` ${Studio.when(made, true)}, ${many(captions, "caption")}${masks ? `, ${many(masks, "mask")}` : ""} `),
          button("Restore", () => act("captions/points/restore", { point: id }, true), { class: "small-button", "aria-label": `Restore '${words}'` }),
          button("Remove", () => act("captions/points/remove", { point: id }), { class: "small-button", "aria-label": `Remove '${words}'` }),
        );
      const draw = () =>
        box.replaceChildren(
          Studio.closer(box),
          el("b", {}, "Restore points"),
          el("p", { class: "quiet" }, "A restore point has all captions and masks of the dataset. Restoring one is an edit that can be undone."),
          el("p", { class: "ways" }, name, button("Make a restore point", () => act("captions/points/add", { name: name.value }), { class: "small-button" })),
          el("ul", { class: "points" }, ...known.points.map(point)),
          el("b", {}, "Last changes"),
          el("ol", { class: "points" }, ...known.actions.map(({ label, made, state }) => el("li", { class: state === "undone" ? "quiet" : "" }, `${label}${state === "undone" ? " (undone)" : ""} `, el("span", { class: "quiet" }, Studio.when(made, true))))),
        );
      show(await Captions.ask("captions/history"));
      draw();
      Studio.show(box);
      box.addEventListener("close", () => box.remove());
    });

  // Upload

  /** The files of a drop with their paths in the folders that were dropped. */
  const dropped = async (items) => {
    const files = [];
    const walk = async (entry, path) => {
      if (entry.isFile) return files.push([path + entry.name, await new Promise((done, fail) => entry.file(done, fail))]);
      const reader = entry.createReader();
      for (;;) {
        const some = await new Promise((done, fail) => reader.readEntries(done, fail)); // at most 100 at a time
        if (!some.length) return;
        for (const each of some) await walk(each, `${path}${entry.name}/`);
      }
    };
    const entries = items.map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile()); // before the first wait: a drop is read once
    for (const entry of entries.filter(Boolean))
      if (entry instanceof File) files.push([entry.name, entry]);
      else await walk(entry, "");
    return files;
  };
  const CAN_BE_SENT = /\.(png|jpe?g|jfif|webp|bmp|avif|jxl|gif|tiff?|heic|heif|hif|apng|jp2|mp4|webm|mov|mkv|avi|txt|caption|cap|tags|text|zip)$/i;
  const upload = (files) =>
    attempt(async () => {
      const seen = files.filter(([name]) => !name.split("/").some((part) => part.startsWith(".") || part === "__MACOSX"));
      const wanted = seen.filter(([name]) => CAN_BE_SENT.test(name));
      if (!wanted.length) throw new Error("None of these files is an image, a caption or a zip archive");
      const folder = refs.target.value;
      const { batch } = await Captions.ask("upload/begin", { folder });
      const opened = Studio.dataset.opened();
      const stop = new AbortController();
      let done = 0;
      const problems = seen.filter((each) => !wanted.includes(each)).map(([name]) => `${name}: training does not read this kind of file`);
      const report = () => refs.progress.replaceChildren(`Uploading ${done} of ${wanted.length} `, button("Cancel", () => stop.abort(), { class: "small-button" }));
      const waiting = [...wanted];
      const work = async () => {
        for (let next = waiting.shift(); next && !stop.signal.aborted; next = waiting.shift()) {
          const [name, file] = next;
          const query = new URLSearchParams({ place: Studio.dataset.folder(), folder, batch, name, extension: opened?.caption_extension || ".txt" });
          const answer = await fetch(url(`dataset/upload/file?${query}`), { method: "POST", headers: { "X-Studio": "1" }, body: file, signal: stop.signal });
          if (!answer.ok) problems.push((await answer.json().catch(() => ({}))).error || `${name}: the upload failed (${answer.status})`);
          done += 1;
          report();
        }
      };
      report();
      try {
        await Promise.all(Array.from({ length: TOGETHER }, work));
      } catch (error) {
        await send("dataset/upload/discard", { place: Studio.dataset.folder(), folder, batch }).catch(() => {});
        refs.progress.replaceChildren(stop.signal.aborted ? "The upload was cancelled; nothing was added" : "");
        if (!stop.signal.aborted) throw error;
        return;
      }
      const answer = await Captions.ask("upload/finish", { folder, batch }).finally(() => refs.progress.replaceChildren());
      const left = [...problems, ...answer.skipped, ...(answer.renamed.length ? [`Renamed, since the name was taken: ${answer.renamed.join(", ")}`] : [])];
      if (left.length) refs.progress.replaceChildren(el("details", { open: true }, el("summary", {}, `${answer.done}: notes`), el("ul", {}, ...left.slice(0, 30).map((words) => el("li", {}, words)))));
      await moved(answer);
      Captions.say(answer.done);
    });
  const listen = () => {
    const host = document.querySelector("[data-dataset]");
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    host.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      host.classList.add("is-target");
    });
    host.addEventListener("dragleave", (event) => !host.contains(event.relatedTarget) && host.classList.remove("is-target"));
    host.addEventListener("drop", async (event) => {
      host.classList.remove("is-target");
      if (!hasFiles(event)) return;
      event.preventDefault();
      upload(await dropped([...event.dataTransfer.items]));
    });
  };

  const box = () => {
    refs = /** @type {any} */ ({});
    refs.target = select({ "aria-label": "Folder", onchange: () => fill() }, []);
    refs.repeats = el("input", { type: "number", min: 1, max: 1000, "aria-label": "Repeats of the folder" });
    refs.masks = button("Train with the masks", masks, { class: "small-button", hidden: true, title: "Set conditioning_data_dir of the folder in the dataset file" });
    refs.progress = el("div", { class: "upload-progress", role: "status" });
    const taken = (files) => upload([...files].map((file) => [file.webkitRelativePath || file.name, file]));
    const files = Studio.upload("image/*,.txt,.caption,.zip,.jxl,.avif,.heic", taken, { multiple: true, "aria-label": "Files to upload" });
    const folder = Studio.upload("", taken, { webkitdirectory: true, multiple: true, "aria-label": "Folder to upload" });
    listen();
    refs.box = el(
      "details",
      { class: "side-part", open: true },
      el("summary", {}, "Images"),
      el(
        "div",
        { class: "files-form" },
        el("label", {}, el("span", {}, "Folder"), refs.target),
        el("p", { class: "ways" }, button("Move selected here", move, { class: "small-button" }), el("label", { class: "flag" }, "repeats ", refs.repeats), button("Set", repeats, { class: "small-button", "aria-label": "Set the repeats" }), refs.masks),
        el("p", { class: "ways" }, button("Upload files…", () => files.click(), { class: "small-button" }), button("Upload a folder…", () => folder.click(), { class: "small-button" }), files, folder),
        el("p", { class: "quiet" }, "or drop files, folders or a zip archive anywhere here"),
        refs.progress,
        el(
          "p",
          { class: "ways" },
          button("Remove selected", () => remove(), { class: "small-button", title: "Delete: into the trash of the folder", "aria-keyshortcuts": "Delete" }),
          button("Trash…", trash, { class: "small-button" }),
          button("Export as zip", exported, { class: "small-button" }),
          button("History…", history, { class: "small-button" }),
        ),
      ),
    );
    return refs.box;
  };
  const fill = () => {
    const folder = known.folders.find(({ path }) => path === refs.target.value);
    refs.repeats.value = folder?.repeats ?? "";
    refs.repeats.disabled = !folder;
    const within = Studio.dataset.images().filter(({ path }) => path.startsWith(refs.target.value) && !/[\\/]/.test(path.slice(refs.target.value.length + 1)));
    const canMask = /\.toml$/i.test(Studio.dataset.folder()) && within.length && within.every(({ mask_key: key }) => key);
    refs.masks.hidden = !canMask || within.every(({ mask }) => mask);
  };
  /** Show the folders of a dataset. */
  const show = (answer) => {
    const before = refs.target.value;
    known = answer;
    const named = known.folders.filter(({ repeats }) => repeats != null);
    const choices = named.length ? [...named, ...known.folders.filter(({ repeats }) => repeats == null)] : known.folders;
    refs.target.replaceChildren(...choices.map(({ path, name }) => el("option", { value: path, title: path }, name)));
    if (choices.some(({ path }) => path === before)) refs.target.value = before;
    fill();
  };
  return { box, show, remove };
})();
