// What Inspect found in a LoRA: facts, the norms of its blocks, its singular values, its strongest layers.
var StudioLoraReport = (() => {
  const { el, svg, table } = Studio;
  const WIDTH = 520; // units of a drawing, which is scaled to its place
  const MARGIN = { left: 40, right: 6, top: 8, bottom: 40 };

  const short = (value) => Number(value.toPrecision(3)).toString();
  const section = (title, ...children) => el("div", {}, el("h3", {}, title), ...children);
  const pairs = (rows) => el("dl", {}, ...rows.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));

  // Axis from 0 to `highest` with about four lines
  const frame = (height, highest, label) => {
    const bottom = height - MARGIN.bottom;
    const y = (value) => bottom - (value / (highest || 1)) * (bottom - MARGIN.top);
    const rough = highest / 4 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= rough * 0.999);
    const lines = [];
    for (let value = 0; value <= highest * 1.001; value += step)
      lines.push(
        svg("line", { class: "grid", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(value), y2: y(value) }),
        svg("text", { x: MARGIN.left - 5, y: y(value) + 3.5, "text-anchor": "end" }, short(value)),
      );
    const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label }, ...lines);
    return { drawing, y, bottom };
  };

  const blockChart = (blocks) => {
    const { drawing, y, bottom } = frame(190, Math.max(...blocks.map((each) => each.norm)), "Norm of each block");
    const step = (WIDTH - MARGIN.left - MARGIN.right) / blocks.length;
    const every = Math.ceil(11 / step); // so that names do not overlap
    blocks.forEach(({ block, norm, layers, text }, index) => {
      const x = MARGIN.left + index * step;
      const bar = svg(
        "rect",
        { class: text ? "bar-text" : "bar-rect", "data-block": block, x: x + step * 0.12, width: step * 0.76, y: y(norm), height: Math.max(bottom - y(norm), 0.5), rx: Math.min(2, step / 4) },
        svg("title", {}, `${block}: ${short(norm)} · ${layers} ${layers === 1 ? "layer" : "layers"}`),
      );
      drawing.append(bar);
      if (index % every) return;
      const [cx, cy] = [x + step / 2 + 3, bottom + 9];
      drawing.append(svg("text", { x: cx, y: cy, "text-anchor": "end", transform: `rotate(-60 ${cx} ${cy})` }, block));
    });
    return drawing;
  };

  const spectrumChart = ({ mean, low, high }) => {
    const { drawing, y, bottom } = frame(170, 1, "Singular values");
    const x = (place) => MARGIN.left + (place / Math.max(mean.length - 1, 1)) * (WIDTH - MARGIN.left - MARGIN.right);
    const line = (values) => values.map((value, place) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`);
    drawing.append(
      svg("polygon", { class: "band", points: [...line(high), ...line(low).reverse()].join(" ") }),
      svg("polyline", { class: "line", points: line(mean).join(" ") }),
    );
    const most = Math.min(mean.length, 8);
    const marks = new Set(Array.from({ length: most }, (_, i) => Math.round((i * (mean.length - 1)) / Math.max(most - 1, 1))));
    for (const place of marks) drawing.append(svg("text", { x: x(place), y: bottom + 14, "text-anchor": "middle" }, String(place + 1)));
    drawing.append(svg("text", { x: WIDTH / 2, y: bottom + 32, "text-anchor": "middle" }, "rank"));
    return drawing;
  };

  const layerTable = (layers) => {
    const row = ({ name, norm, rank, needed }) =>
      el("tr", {}, ...[name, short(norm), `${rank}`, needed ? `${needed}` : ""].map((words) => el("td", {}, words)));
    return table({}, ["Layer", "Norm", "Ranks", "For 95%"], layers.map(row));
  };

  return (report) => {
    const { facts, trained, blocks, spectrum, layers, tags, metadata } = report;
    const entries = Object.entries(metadata);
    const parts = [section(Studio.fileName(report.file), pairs(facts))];
    if (trained.length) parts.push(section("Trained with", pairs(trained.map(([name, text]) => [name[0].toUpperCase() + name.slice(1), text]))));
    if (blocks.length)
      parts.push(section("How much each block changes", blockChart(blocks), el("p", { class: "quiet" }, "Frobenius norm of the LoRA's change at strength 1. Text encoders have a lighter colour.")));
    if (spectrum.mean)
      parts.push(
        section("Singular values", spectrumChart(spectrum), el("p", { class: "quiet" }, "Of each layer, as a share of its largest: mean, and the range of 80% of the layers. Ranks near 0 can be resized away.")),
      );
    if (layers.length) parts.push(el("details", {}, el("summary", {}, `Strongest ${layers.length === 1 ? "layer" : `${layers.length} layers`}`), layerTable(layers)));
    if (tags.length) parts.push(el("details", {}, el("summary", {}, "Most frequent tags"), el("p", {}, tags.map(([tag, count]) => `${tag} (${count})`).join(", "))));
    if (entries.length) parts.push(el("details", {}, el("summary", {}, `Metadata, ${entries.length} entries`), pairs(entries.map(([key, text]) => [key, text.length > 300 ? `${text.slice(0, 300)}…` : text]))));
    return el("div", { class: "report" }, ...parts);
  };
})();
