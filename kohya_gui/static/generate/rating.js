// Rating by eye: pairs of images of one prompt without their names, and how often each of what is compared was preferred.
(() => {
  const { el, button, table } = Studio;
  const SAME = "same";
  const dialog = Studio.dialog({ class: "sample-large checkpoint-large rating", "aria-label": "Rate by eye", tabindex: -1 });
  /** @type {{ name: string, images: (string | null)[] }[]} */
  let candidates;
  /** @type {{ title: string, sides: { candidate: number, src: string }[] }[]} */
  let pairs;
  /** Of the first pairs: the place of the better side, or that both are equally good.
   * @type {(number | "same")[]} */
  let votes;

  const shuffled = (list) => {
    for (let at = list.length - 1; at > 0; at--) {
      const other = Math.floor(Math.random() * (at + 1));
      [list[at], list[other]] = [list[other], list[at]];
    }
    return list;
  };
  const paired = (titles) =>
    shuffled(
      titles.flatMap((title, row) => {
        const there = candidates.map(({ images }, candidate) => ({ candidate, src: images[row] })).filter(({ src }) => src);
        return there.flatMap((one, at) => there.slice(at + 1).map((other) => ({ title, sides: shuffled([one, other]) })));
      }),
    );

  const vote = (how) => {
    if (!dialog.querySelector(".figures")) return; // the result is shown: a key is about no pair
    votes.push(how);
    draw();
  };
  const back = () => {
    votes.pop();
    draw();
  };

  const drawPair = () => {
    const { title, sides } = pairs[votes.length];
    const side = ({ src }, place) => {
      const word = place ? "Right" : "Left";
      const shown = Studio.media(src, `${word} image`, { clip: Studio.isClip(src), loading: "eager" });
      return el("figure", {}, button(shown, () => vote(place), { class: "sample", "aria-label": `${word} is better` }));
    };
    const ways = [
      button("← Left is better", () => vote(0)),
      button("↓ Same", () => vote(SAME)),
      button("Right is better →", () => vote(1)),
      button("Undo", back, { disabled: !votes.length, title: "Backspace" }),
      votes.length ? button("Show the result", result) : null,
    ];
    dialog.replaceChildren(
      Studio.closer(dialog),
      el("p", { class: "sample-prompt", role: "status" }, `Which is better? ${votes.length + 1} of ${pairs.length}`),
      el("div", { class: "figures" }, ...sides.map(side)),
      el("div", { class: "sample-details" }, el("p", { class: "quiet" }, title), el("p", { class: "run-actions" }, ...ways.filter(Boolean))),
    );
    Studio.together([...dialog.querySelectorAll("video")]);
  };

  /** What was said of each candidate, the one preferred most often first; a pair of equals counts half. */
  const counted = () => {
    const counts = candidates.map(({ name }) => ({ name, better: 0, same: 0, worse: 0, share: 0 }));
    votes.forEach((how, number) => {
      pairs[number].sides.forEach(({ candidate }, place) => (counts[candidate][how === SAME ? SAME : how === place ? "better" : "worse"] += 1));
    });
    for (const each of counts) each.share = (each.better + each.same / 2) / (each.better + each.same + each.worse || 1);
    return counts.sort((one, other) => other.share - one.share);
  };
  const verdict = (counts) => {
    const best = counts.filter(({ share }) => share === counts[0].share);
    const seen = best[0].better + best[0].same + best[0].worse;
    return best.length > 1
      ? `No winner: ${best.map(({ name }) => name).join(" and ")} are equal`
      : `Preferred: ${best[0].name}, better in ${best[0].better} of ${seen}`;
  };
  const result = () => {
    const counts = counted();
    const row = ({ name, ...seen }) => el("tr", {}, el("th", { scope: "row" }, name), ...["better", SAME, "worse"].map((how) => el("td", {}, String(seen[how]))));
    dialog.replaceChildren(
      Studio.closer(dialog),
      el("p", { class: "sample-prompt", role: "status" }, verdict(counts)),
      table({ class: "rating-result" }, ["", "Better", "Same", "Worse"], counts.map(row)),
      el(
        "div",
        { class: "sample-details" },
        el("p", { class: "quiet" }, `After ${votes.length} of ${pairs.length} pairs, shown without their names and in random order.`),
        el("p", { class: "run-actions" }, votes.length < pairs.length ? button("Go on", draw) : button("Undo", back), button("Rate again", begin)),
      ),
    );
    dialog.focus();
  };

  let titlesNow;
  const begin = () => {
    pairs = paired(titlesNow);
    votes = [];
    draw();
  };
  const draw = () => {
    votes.length < pairs.length ? drawPair() : result();
    dialog.focus(); // the focused element is replaced
  };
  Studio.onKeys(dialog, { ArrowLeft: () => vote(0), ArrowRight: () => vote(1), ArrowDown: () => vote(SAME), Backspace: back });

  /** Whether there is a pair of images to rate. */
  const canRate = (all) => all.length > 1 && all[0].images.some((_, row) => all.filter(({ images }) => images[row]).length > 1);

  /** Rate candidates, each with an image, or none, for each of the rows that have these titles. */
  const rate = (all, titles) => {
    [candidates, titlesNow] = [all, titles];
    Studio.show(dialog);
    begin();
  };
  Object.assign(Studio, { canRate, rate });
})();
