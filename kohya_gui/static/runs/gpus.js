// The GPUs in the header: memory, ours and others', how busy and hot they are. Without an NVIDIA driver nothing is shown.
(() => {
  const { ask, el, write } = Studio;
  const BUSY_EVERY = 2000; // milliseconds between two readings while a run lives
  const IDLE_EVERY = 30_000;
  const GB = 1e9; // as the form and the plan count

  const gb = (bytes) => (bytes / GB).toFixed(bytes < 99.5 * GB ? 1 : 0);
  const percent = (share) => `${Math.round(100 * share)} %`;

  const meter = () => {
    const bar = el("span", { class: "gpu-bar" }, el("i", { class: "ours" }), el("i", { class: "others" }));
    const fields = ["memory", "busy", "celsius", "watts", "spilled"].map((name) => el("span", { class: `gpu-${name}` }));
    return el("button", { type: "button", class: "gpu", onclick: () => Studio.goTo("runs") }, el("span", { class: "gpu-name" }), bar, ...fields);
  };

  const fill = (chip, gpu, several) => {
    const [name, bar, memory, busy, celsius, watts, spilled] = chip.children;
    const ours = gpu.ours ?? 0;
    const widths = gpu.ours == null ? [gpu.used, 0] : [ours, Math.max(gpu.used - ours, 0)];
    [...bar.children].forEach((part, i) => (part.style.width = `${(100 * widths[i]) / gpu.total}%`));
    write(name, several ? `GPU ${gpu.number}` : "GPU");
    write(memory, `${gb(gpu.used)}/${gb(gpu.total)} GB`);
    write(busy, gpu.busy == null ? "" : percent(gpu.busy));
    write(celsius, gpu.celsius == null ? "" : `${Math.round(gpu.celsius)} °C`);
    write(watts, gpu.watts == null ? "" : `${Math.round(gpu.watts)} W`);
    write(spilled, gpu.spilled ? `${gb(gpu.spilled)} GB in RAM` : "");
    const lines = [
      gpu.name,
      gpu.ours == null ? "" : `This program ${gb(ours)} GB, others ${gb(Math.max(gpu.used - ours, 0))} GB`,
      gpu.watt_limit ? `Power limit ${Math.round(gpu.watt_limit)} W` : "",
      gpu.spilled ? "The driver has moved GPU memory to main memory: steps take several times as long" : "",
    ];
    chip.title = lines.filter(Boolean).join("\n");
    chip.setAttribute("aria-label", `${[...chip.children].map((each) => each.textContent).filter(Boolean).join(", ")}. ${lines.filter(Boolean).join(". ")}`);
  };

  const draw = (gpus) => {
    const box = document.getElementById("gpus");
    if (!box) return;
    box.hidden = !gpus.length;
    while (box.children.length < gpus.length) box.append(meter());
    while (box.children.length > gpus.length) box.lastChild.remove();
    gpus.forEach((gpu, i) => fill(box.children[i], gpu, gpus.length > 1));
    box.classList.toggle("quiet", !isLiving());
  };

  const isLiving = () => Boolean(Studio.board?.runs.some((run) => Studio.LIVING.includes(run.state)));
  let read = 0; // when the last reading was asked for
  let wasLiving = false;
  let isOver = false; // no GPU here
  const beat = async () => {
    const living = isLiving();
    const isDue = Date.now() - read >= (living ? BUSY_EVERY : IDLE_EVERY) || living !== wasLiving;
    if (isOver || document.hidden || !isDue) return;
    read = Date.now();
    wasLiving = living;
    const answer = await ask("gpus").catch(() => null);
    if (!answer) return; // the live view reports that the GUI does not respond
    isOver = !answer.gpus.length;
    draw(answer.gpus);
  };
  setInterval(beat, BUSY_EVERY);
})();
