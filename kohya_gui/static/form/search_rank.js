// Finds settings by their label, key, names in other trainers and help text. Works on the index alone (search_index.py).
var Ranking = (() => {
  const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  const squeezed = (text) => wordsOf(text).join("");
  /** Whether a word contains another: anywhere in Chinese, which has no spaces between words. */
  const HAN = /\p{Script=Han}/u;
  const isIn = (word, typed) => word.startsWith(typed) || (HAN.test(typed) && word.includes(typed));
  const plain = (text) => text.replace(/[*`]/g, "");

  /** The settings of a tab in the order of its form, then those that only other tabs have. They are found in English and
   * in the language into which `translated` brings a text. */
  const entries = (index, tab, translated = (text) => text) => {
    const inBoth = (texts) => [...new Set(texts.flatMap((text) => [text, translated(text)]))];
    const found = new Map();
    for (const place of [tab, ...Object.keys(index.tabs)])
      for (const { id, title, panels, names, more } of index.tabs[place].sections)
        for (const name of names) {
          if (found.has(name)) continue;
          const setting = index.settings[name];
          const around = more.includes(name) ? [...panels, `${id}-more`] : panels;
          const titles = [...inBoth([setting.label]), name, ...setting.kohya, ...setting.aliases];
          const note = setting.notes?.[index.tabs[place].method] ?? "";
          found.set(name, {
            ...setting,
            ...{ name, tab: place, section: title, sectionId: id, panels: around },
            names: titles.map((text) => ({ words: wordsOf(text), whole: squeezed(text) })),
            sectionWords: inBoth([title]).flatMap(wordsOf),
            texts: new Set(inBoth([...setting.help.map(([, text]) => text), note]).flatMap((text) => wordsOf(plain(text)))),
          });
        }
    return [...found.values()];
  };

  const inNames = (entry, word) => {
    let best = 0;
    for (const { words, whole } of entry.names) {
      if (words.includes(word)) return 10;
      if (words.some((each) => isIn(each, word))) best = Math.max(best, 8);
      else if (word.length > 2 && whole.includes(word)) best = Math.max(best, 6);
    }
    return best;
  };
  const inTexts = (entry, word) => {
    if (entry.sectionWords.some((each) => isIn(each, word))) return 2;
    return word.length > 1 && [...entry.texts].some((each) => isIn(each, word)) ? 1 : 0;
  };

  /** Whether two words differ by one letter that is missing, added, replaced or swapped with its neighbour. */
  const isNear = (typed, word) => {
    if (typed.length < 4 || Math.abs(typed.length - word.length) > 1) return false;
    let start = 0;
    while (start < typed.length && typed[start] === word[start]) start++;
    const [a, b] = [typed.slice(start), word.slice(start)];
    const isSwapped = a[0] === b[1] && a[1] === b[0] && a.slice(2) === b.slice(2);
    return isSwapped || a.slice(1) === b.slice(1) || a.slice(1) === b || a === b.slice(1);
  };
  const nearly = (entry, word) => (entry.names.some(({ words }) => words.some((each) => isNear(word, each))) ? 4 : 0);

  const score = (entry, typed, whole, looks) => {
    let sum = 0;
    for (const word of typed) {
      const best = Math.max(...looks.map((look) => look(entry, word)));
      if (!best) return 0;
      sum += best;
    }
    const names = entry.names.map((name) => name.whole);
    if (squeezed(entry.name) === whole) sum += 110; // another's name of one option can be the key of another
    else if (names.includes(whole)) sum += 100;
    else if (names.some((name) => name.startsWith(whole))) sum += 30;
    else if (names.some((name) => name.includes(whole))) sum += 15;
    const shortest = Math.min(...entry.names.map(({ words }) => words.length));
    return sum - shortest / 10;
  };

  /** The entries in which every typed word occurs, the best first; all of them without a word. If there are none, those
   * with a word that differs by one letter. */
  const find = (all, text) => {
    const typed = wordsOf(text);
    if (!typed.length) return all;
    const ranked = (looks) =>
      all
        .map((entry) => ({ entry, points: score(entry, typed, squeezed(text), looks) }))
        .filter(({ points }) => points > 0)
        .sort((a, b) => b.points - a.points)
        .map(({ entry }) => entry);
    const found = ranked([inNames, inTexts]);
    return found.length ? found : ranked([inNames, inTexts, nearly]);
  };

  return { entries, find };
})();
