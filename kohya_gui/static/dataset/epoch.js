// How the images become steps, as a sum and as a table of buckets; a row leads to its images.
var EpochSum = (() => {
  const { el, button } = Studio;
  const number = (value) => value.toLocaleString("en-US");
  const counted = (value, word, more = `${word}s`) => `${number(value)} ${value === 1 ? word : more}`;

  /** "58 images × 10 = 580 / batch 4 = 145 steps × 10 epochs = 1,450 steps", as far as it goes. */
  const line = ({ sum, buckets }) => {
    const parts = sum.concepts.map(({ images, repeats, is_reg: isReg }) => `${counted(images, isReg ? "regularisation image" : "image")} × ${number(repeats)}`);
    const size = sum.batch_sizes.length > 1 ? `batches of ${sum.batch_sizes.join(" and ")}` : `batch ${sum.batch_sizes[0]}`;
    const short = buckets.filter(({ rest }) => rest).length;
    const gather = [
      short ? `${counted(short, "bucket")} with a batch that is not full` : "",
      sum.processes > 1 ? `${sum.processes} GPUs` : "",
      sum.accumulation > 1 ? `${sum.accumulation} batches a step` : "",
    ].filter(Boolean);
    const shown = parts.length > 4 ? [...parts.slice(0, 4), `${parts.length - 4} more folders`] : parts;
    const steps = sum.steps_per_epoch ? `${counted(sum.steps_per_epoch, "step")}${gather.length ? ` (${gather.join(", ")})` : ""}` : "no full batch";
    const whole = sum.steps === sum.steps_per_epoch * sum.epochs;
    const run = !sum.steps ? "" : whole ? ` × ${counted(sum.epochs, "epoch")} = ${counted(sum.steps, "step")}` : `; ${counted(sum.steps, "step")} are ${Number((sum.steps / sum.steps_per_epoch).toPrecision(2))} epochs`;
    return `${shown.join(" + ")} = ${number(sum.per_epoch)} / ${size} = ${steps}${run}`;
  };

  const batches = ({ full, rest, batch_size: size, short_batches: how }) => {
    const whole = full ? `${number(full)} × ${size}` : "";
    if (!rest) return whole;
    const last = { keep: `1 × ${rest}`, fill: `1 × ${size}, ${size - rest} of them again`, drop: `${rest} left over are dropped` }[how];
    return [whole, last].filter(Boolean).join(" + ");
  };
  const table = (buckets, chosen, choose) => {
    const several = new Set(buckets.map(({ dataset }) => dataset)).size > 1;
    const row = (bucket) => {
      const isChosen = chosen && chosen.bucket === bucket.bucket && chosen.dataset === bucket.dataset;
      const way = button(bucket.bucket.replaceAll("x", " × "), () => choose(isChosen ? null : bucket), { class: "link", "aria-pressed": String(Boolean(isChosen)), title: "Show only the images of this bucket" });
      const cells = [several ? el("td", {}, String(bucket.dataset + 1)) : null, el("td", {}, way), ...[number(bucket.images), number(bucket.per_epoch), batches(bucket)].map((text) => el("td", {}, text))];
      return el("tr", isChosen ? { class: "is-chosen" } : {}, ...cells.filter(Boolean));
    };
    return Studio.table({ class: "bucket-table" }, [...(several ? ["Dataset"] : []), "Bucket", "Images", "Per epoch", "Batches"], buckets.map(row));
  };

  /** Show a dataset's sum in a box; `choose` is called with a row of the table, or null for all. */
  const show = (box, data, chosen, choose) => {
    if (!data.sum) return box.replaceChildren();
    const isOpen = box.querySelector("details")?.open;
    const words = el("summary", {}, el("b", {}, line(data)));
    box.replaceChildren(el("details", { open: Boolean(isOpen) }, words, table(data.buckets, chosen, choose)));
  };

  return { show, line };
})();
