// The page in Chinese. The code has its texts in English; this script translates them as they come into the page, with
// the catalogue in kohya_gui/languages. It replaces the data of text nodes only, so that Svelte keeps its nodes. An
// English page loads no catalogue and observes nothing.
//
// Gradio's own gr.I18n covers the labels of components only, follows the browser's language alone, and puts its marks
// into the configuration and the values that the server sends.
var Language = (() => {
  const { on, ask } = Studio;
  const COOKIE = "sd-scripts-language"; // the login page reads it, too
  const CHINESE = "zh-CN";
  const ATTRIBUTES = ["title", "placeholder", "aria-label", "alt", "label"];
  /** Names, captions, tags and prompts of users: their titles stay, too. */
  const OF_USERS = [
    ...[".run-name", ".run-link", ".matrix-run", ".entries", ".starts", ".cell-name", "[translate=no]"],
    ...[".request-prompt", ".sample-prompt", ".matrix-prompt", ".checkpoint-prompt > span:first-child"],
    ...[".tag-chips", ".detail-caption", ".step-caption", ".step-dropped s", ".step-tokens p", ".job-changes td"],
  ].join();
  const LEFT = `code, pre, textarea, script, style, [contenteditable], ${OF_USERS}`;
  const INLINE = "a, b, code, em, i, kbd, button.field-link, .note strong"; // part of the sentence around them
  const VALUE = /\{(\w+)([!?#]?)\}|`[^`]+`|\b[a-z0-9]+(?:_[a-z0-9]+)+\b/g; // {1}, {1!}, {1?}, {1#}, `code`, an option's key
  const VALUES = "((?:(?![.!?] [A-Z]).)+?)"; // a value ends with its sentence
  const FIRST = "((?:(?!; |[.!?] [A-Z]).)+?)"; // one at the beginning of a text ends with its part of a list, too
  const ELEMENT = "[\\uE000-\\uF8FF]"; // stands for an element within a sentence
  const LONGEST = 500; // characters of a text with values: matching takes long in a long text
  const MOST_PARTS = 20; // sentences, or parts of a list
  const KEYED = new RegExp(`^([\\w./\\[\\]-]+|(?:${ELEMENT}[ ,()]*)+): (.+)$`, "s");
  const KEY_FIRST = new RegExp(`^(?:[\\w./-]+|(?:${ELEMENT}[ ,()]*)+):(?: |$)`);
  const WORD = /[A-Za-z]{2,}/g;
  const ENTRY = "(?:'[^']*'|\\S+|[A-Z][\\w.-]*(?: [\\w.-]+){1,2})"; // a name may have spaces: FLUX.2 klein
  const LIST = new RegExp(`^(${ENTRY}(?:, ${ENTRY})*) (and|or) (${ENTRY})$`);
  const COUNT = /^[\d,.]+ \p{L}/u; // 12 images
  const NUMBER = /^[<>~≈+–-]*(?:[\d.]|nan\b|inf\b)/;
  const PROSE = /(?:^|\s)[A-Za-z][a-z]+ [a-z]{2,} [a-z]{2,}/; // words, not names or keys
  const WORDS = new RegExp(`^(?!s$)[a-z]+(?=[\\s),;:.]|$)| (?:for|from|in|of|with) |${PROSE.source}`);
  const OPEN = /(?:['"(]|: )$/; // before a value that may be prose: a prompt, or the words of another program
  const MAYBE = VALUES.replace("+?", "*?");
  const KEY = `(${ELEMENT}|\\*[^*]+\\*|\`[^\`]+\`|[\\w.-]*_[\\w.-]*)`; // in a text with elements, in one that becomes some, or plain
  const LEAD = new RegExp(`^(?:\\s*${ELEMENT}[,:.]?\\s*)+`);
  const TAIL = new RegExp(`(?:\\s*${ELEMENT}\\s*)+$`);
  const QUANTITY = /[\d.,]+ (?:[KMGTk]?i?B|m?s|min|h(?: \d+ min)?|W|%)/;
  const NAME = new RegExp(`^[^a-z]*$|^[A-Za-z]*[A-Z\\d][\\w.-]*$|^${QUANTITY.source}$`); // 1024, bf16, AdamW, 4.8 GiB
  const EXTENDED = new RegExp(`^(.+?)( ${QUANTITY.source}| \\([a-z\\d]+(?:_[a-z\\d]+)+\\))$`, "s");
  const COUNTED = /^ (byte|image|caption|tag|clip|frame|step|epoch|repeat|run|file|prompt|setting|problem|bucket|block|graph|group|crop|mask|token|layer|line|sample|size|state|tensor|video|warning)s\b/; // after a number
  /** Texts of style sheets: property -> words. */
  const IN_STYLES = {
    "--word-train": "Train",
    "--word-working": "Working…",
    "--word-stale": "The settings have changed since: print the command again",
  };

  const kept = new RegExp(`(?:^|; )${COOKIE}=([\\w-]+)`).exec(document.cookie)?.[1];
  const preferred = () => navigator.languages.find((each) => /^(zh|en)\b/i.test(each))?.toLowerCase() ?? "";
  const isChinese = kept ? kept === CHINESE : preferred().startsWith("zh");
  on("click", "#language-switch", () => {
    document.cookie = `${COOKIE}=${isChinese ? "en" : CHINESE}; max-age=31536000; samesite=lax`;
    location.reload();
  });
  if (!isChinese) return { text: (english) => english, english: (element) => element.textContent, visit: () => {} };
  const root = document.documentElement;
  root.dataset.language = CHINESE;
  root.lang = CHINESE;

  // From English to Chinese

  const texts = new Map(); // English -> Chinese, of texts without values
  const patterns = new Map(); // the word that the fewest texts with values have -> those with it; "" -> those without words
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  /** Words that a text must contain, which is quicker to see than a match. */
  const longest = (between) => between.filter((part) => !COUNTED.test(part)).reduce((one, other) => (other.length > one.length ? other : one), "");
  const pattern = (english, chinese) => {
    const names = [...english.matchAll(VALUE)].map(([name]) => name);
    const between = english.split(/\{\w+\}|`[^`]+`|\b[a-z0-9]+(?:_[a-z0-9]+)+\b/);
    const source = between.map((part, i) => {
      const isCount = names[i - 1]?.startsWith("{") && COUNTED.test(part); // 1 image
      const words = isCount ? escaped(part).replace(COUNTED, " $1s?") : escaped(part);
      const isJoined = (i > 1 || between[0]) && /^$|[^\s"'(:=]$/.test(between[i - 1]); // such as a plural "s", which may be missing
      const start = i > 1 && !between[i - 1] ? "(?<!\\d(?=\\d))" : ""; // a number ends before the next value
      const value = isCount ? "([\\d.,]+(?: to [\\d.,]+)?)" : names[i - 1]?.startsWith("{") ? (isJoined ? MAYBE : i === 1 && !between[0] ? FIRST : VALUES) : KEY;
      return i ? `${start}${value}${words}` : words;
    });
    return { regex: new RegExp(`^${source.join("")}$`, "su"), names, chinese, words: between.join("").length, longest: longest(between), own: between.flatMap(ownWords), open: between.map((part) => OPEN.test(part)), quoted: between.map((part) => part.endsWith("'")) };
  };
  /** The words of a part between two values; those next to a value may be half of a word, and a counted noun has no "s" after 1. */
  const ownWords = (part, i, { length }) => {
    const inner = part.replace(COUNTED, "");
    return [...inner.matchAll(WORD)].filter(({ index, 0: word }) => (index || !i) && (index + word.length < inner.length || i === length - 1)).map(([word]) => word);
  };
  /** A message is also known without the key of its option, which the page shows as a link to the field. */
  const learn = (catalogue) => {
    const found = [];
    const uses = new Map();
    for (const [english, chinese] of Object.entries(catalogue)) {
      const [, key, words] = /^([a-z\d_]+|\{1\}(?=: ')): (.+)$/s.exec(english) ?? [];
      const isKeyed = words && !catalogue[words] && chinese.startsWith(`${key}：`);
      for (const [from, to] of [[english, chinese], ...(isKeyed ? [[words, chinese.slice(key.length + 1)]] : [])])
        if (from.search(VALUE) < 0) texts.set(from, to);
        else found.push(pattern(from, to));
    }
    for (const { own } of found) for (const word of own) uses.set(word, (uses.get(word) ?? 0) + 1);
    for (const each of found) {
      const word = each.own.reduce((one, other) => (one && uses.get(one) <= uses.get(other) ? one : other), "");
      patterns.set(word, [...(patterns.get(word) ?? []), each]);
    }
  };
  /** The texts with values that have a word of this text, the most specific first. */
  const candidates = (english) =>
    ["", ...new Set(english.match(WORD))].flatMap((word) => patterns.get(word) ?? []).sort((a, b) => b.words - a.words);
  /** A value that stays: names, in a list such as 'a', 'b' and 7 more, or a place such as a.txt, line 2. */
  const left = (value) =>
    value
      .replace(/ and ([\d,]+) more$/, " 等，另有 $1 项")
      .replace(/ \(at line ([\d,]+), column ([\d,]+)\)/, "（第 $1 行，第 $2 列）")
      .replace(/^([\d.,]+ GiB) of (?=[\d.,]+ GiB$)/, "$1，共 ")
      .replace(/ \(at end of document\)/, "（文件末尾）")
      .replace(/,? \(?line (\d[\d,]*)\)?(?=$|: )/, "，第 $1 行")
      .replace(/ ?\((at least )?([\d,]+) tokens\)/g, (_, least, count) => `（${least ? "至少 " : ""}${count} 个 token）`)
      .replace(LIST, (_, names, word, last) => `${names} ${word === "and" ? "和" : "或"} ${last}`);
  const isProse = (value) => PROSE.test(value.replace(/'[^']*'/g, ""));
  /** The Chinese of a pattern with its values; null if one of them is a text that the catalogue does not have. */
  const filled = ({ names, chinese, open, quoted }, values) => {
    const unused = names.map((name, i) => ({ name, value: values[i], isOpen: open[i], isQuoted: quoted[i] }));
    let isWhole = true;
    const text = chinese.replace(VALUE, (name, number, kind, at, template) => {
      const place = unused.findIndex((each) => each.name === (kind ? `{${number}}` : name));
      if (place < 0) return name;
      const [{ value, isOpen, isQuoted }] = unused.splice(place, 1);
      if (isQuoted && !kind) return value; // a name of the user
      if (kind === "#") isWhole &&= NUMBER.test(value) && !/[:;,] /.test(value);
      if (kind && kind !== "#" && !value.trim()) return value; // a part that may be missing
      const [, comma, words] = /^(, )?(.*)$/s.exec(value.trim());
      const noun = words.replace(/^an? (?=[A-Z])/, "");
      const isText = kind === "!" || kind === "?" || COUNT.test(value);
      const known = isText ? (translated(value.trim()) ?? texts.get(Studio.capitalised(noun))) : texts.get(value.includes(" ") ? value : "");
      const joined = isText && known == null ? translated(noun) : null;
      const inner = known ?? (joined && comma ? `，${joined}` : joined);
      if (kind !== "!" && inner == null && /; (?:[a-z]+ |')/.test(value)) isWhole = false; // the value ends before it
      if (value.startsWith("; '") || (quoted[0] && value.includes("; '"))) isWhole = false; // a list of names with their values
      const isEquation = value.includes(" = ") && !(kind === "!" && inner);
      if (isEquation || / [·×] /.test(value) || value.split("(").length !== value.split(")").length) isWhole = false;
      if (!kind && value === values[0] && (KEY_FIRST.test(value) || value.endsWith(":"))) isWhole = false;
      if (isText) isWhole &&= inner != null || kind === "?" || !WORDS.test(noun);
      else isWhole &&= isOpen || inner != null || !isProse(value);
      const shown = inner ?? left(isText ? noun : value);
      return isText && /\p{Script=Han}$/u.test(template.slice(0, at)) && /^[A-Za-z\d]/.test(shown) ? ` ${shown}` : shown;
    });
    return isWhole ? text : null;
  };
  const whole = (english) => {
    const [, key, words] = KEYED.exec(english) ?? [];
    const same = texts.get(english) ?? (texts.has(words) && !texts.has(key) ? `${key}：${texts.get(words)}` : null);
    if (same != null) return same;
    const [, label, option] = /^(.+) \(([a-z\d_]+)\)$/.exec(english) ?? []; // Threshold (thresh)
    if (texts.has(label) && !texts.has(option)) return `${texts.get(label)} (${option})`;
    if (english.length > LONGEST) return null;
    for (const each of candidates(english)) {
      const match = english.includes(each.longest) ? each.regex.exec(english) : null;
      const chinese = match && filled(each, match.slice(1));
      if (chinese != null) return chinese;
    }
    return null;
  };
  const ended = (english) => {
    const chinese = whole(english) ?? (english.endsWith(".") ? whole(english.slice(0, -1)) : null);
    return chinese && english.endsWith(".") && !/[。！？.]$/.test(chinese) ? `${chinese}。` : chinese;
  };
  /** Several sentences, where each is known, alone or with those that follow. */
  const sentences = (english) => {
    const parts = english.split(/(?<=[.!?]) (?=\S)|\n/);
    if (parts.length > MOST_PARTS) return null;
    let chinese = "";
    for (let start = 0, end; start < parts.length; start = end) {
      for (end = parts.length; end > start; end--) {
        const known = end - start < parts.length && ended(parts.slice(start, end).join(" "));
        if (known) {
          chinese += known;
          break;
        }
      }
      if (end === start) return null;
    }
    return chinese;
  };
  /** Parts with dots between them, or a list whose parts are all known. */
  const listed = (english) => {
    const signs = /['";]/.test(english) ? [] : [" / ", " + "]; // of a sum
    const mark = [" · ", " › ", " = ", ...signs, " × "].find((each) => english.includes(each));
    if (!mark) return series(english, "; ", "；") ?? series(english, ", or ", "，或") ?? series(english, ", ", "，") ?? (COUNT.test(english) ? series(english, " and ", " 和 ") : null);
    const parts = english.split(mark);
    const known = parts.map((part) => translated(part));
    return known.some((each, i) => each != null && each !== parts[i]) ? parts.map((part, i) => known[i] ?? part).join(mark) : null;
  };
  const series = (english, mark, chinese) => {
    const parts = english.split(mark);
    if (parts.length < 2 || parts.length > MOST_PARTS) return null;
    const known = parts.map((part) => translated(part) ?? (isName(part) ? part : null));
    return known.includes(null) ? null : known.join(chinese);
  };
  /** Names only: bf16, FLUX.1 LoRA. */
  const isName = (words) => NAME.test(words) || words.split(" ").every((word) => NAME.test(word));
  /** A text with more of it in parentheses: 12 min (estimated: a run on this machine). */
  const bracketed = (english) => {
    const [, words, more] = /^([^(]+) \((.+)\)$/s.exec(english) ?? [];
    if (!more) return null;
    const known = [words, more].map((part) => translated(part) ?? (NAME.test(part) ? part : null));
    return known.includes(null) ? null : `${known[0]}（${known[1]}）`;
  };
  /** A message that begins with the key of an option, its label or the name of a model. */
  const keyed = (english) => {
    const isKey = KEYED.test(english);
    const [, key, words] = (isKey ? KEYED : /^([^:]+): (.+)$/s).exec(english) ?? [];
    const name = (/^[A-Z]/.test(key) && texts.get(key)) || (isKey ? key : null);
    const chinese = name && translated(words);
    return chinese ? `${name}：${chinese}` : null;
  };
  /** A text with a quantity or a key behind it: weights 4.8 GiB, Base model (vae). */
  const extended = (english) => {
    const [, words, more] = EXTENDED.exec(english) ?? [];
    const chinese = words && translated(words);
    return chinese ? `${chinese}${more}` : null;
  };
  /** A text with how far it is: sampling 2 of 5. */
  const progressed = (english) => {
    const [, words, done, all] = /^(?:((?:(?! · ).)+?):? )?([\d,.]+(?: [kMGT]?B| bytes)?) of ([\d,.]+(?: [kMGT]?B| bytes)?)$/s.exec(english) ?? [];
    if (done && !words) return `${done}/${all}`;
    const chinese = words && translated(words);
    return chinese ? `${chinese} ${done}/${all}` : null;
  };
  /** A number of what has a text of its own: 3 from the cache. */
  const numbered = (english) => {
    const [, count, words] = /^([\d,.]+) (.+)$/s.exec(english) ?? [];
    const chinese = texts.get(words) ?? texts.get(words?.replace(/s$/, ""));
    return chinese ? `${count} ${chinese}` : null;
  };
  /** What is being done: Generating… */
  const underway = (english) => {
    const chinese = english.endsWith("…") && translated(english.slice(0, -1));
    return chinese ? `${chinese}…` : null;
  };
  /** A message about a file whose name or path is right above. */
  const about = (english) => {
    const [, file, words] = /^(?:(This) (?:file )?(?=(?:is|has|contains|cannot) )|(?=cannot be read: ))(.+)$/s.exec(english) ?? [];
    const chinese = words && (translated(`'x' ${words}`) ?? translated(`x ${words}`));
    return chinese ? chinese.replace(/(?:“x”|'x'|\bx\b) ?/, file ? "此文件" : "") : null;
  };
  const answers = new Map(); // what was looked up before
  const MOST = 20_000;
  const translated = (english) => {
    if (!/[A-Za-z]/.test(english)) return null;
    if (answers.has(english)) return answers.get(english);
    const small = `${english.slice(0, 1).toLowerCase()}${english.slice(1)}`; // as in the middle of a sentence
    const chinese = texts.get(english) ?? about(english) ?? ended(english) ?? keyed(english) ?? progressed(english) ?? sentences(english) ?? listed(english) ?? extended(english) ?? bracketed(english) ?? numbered(english) ?? underway(english) ?? (small === english ? null : ended(small)) ?? texts.get(`a ${english}`) ?? null;
    if (answers.size > MOST) answers.clear();
    answers.set(english, chinese);
    return chinese;
  };
  /** The Chinese of a text, with the spaces around it; the text itself if the catalogue does not have it. */
  const text = (english) => {
    const [, before, words, after] = /^(\s*)(.*?)((?:\s*·)?\s*)$/s.exec(english);
    const chinese = translated(words.replace(/\s+/g, " "));
    return chinese == null ? english : `${before}${chinese}${after}`;
  };

  // In the page

  const written = new WeakMap(); // text node -> its English and its Chinese
  const attributes = new WeakMap(); // element -> name -> the same
  const source = (node) => (written.get(node)?.chinese === node.data ? written.get(node).english : node.data);
  const write = (node, chinese) => {
    const english = source(node);
    if (chinese === english) return;
    written.set(node, { english, chinese });
    if (node.data !== chinese) node.data = chinese;
  };
  /** The text of an element as the code wrote it. */
  const english = (element) => {
    const walk = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    let words = "";
    while (walk.nextNode()) words += source(walk.currentNode);
    return words;
  };

  const isInline = (node) => node.nodeType === Node.ELEMENT_NODE && node.matches(INLINE);
  const isPart = (node) => node && (node.nodeType === Node.TEXT_NODE || node.nodeType === Node.COMMENT_NODE || isInline(node));
  /** The text and the elements of the sentence to which a text node belongs. */
  const sentenceOf = (node) => {
    let first = node;
    while (isPart(first.previousSibling)) first = first.previousSibling;
    const nodes = [];
    for (let each = first; isPart(each); each = each.nextSibling) if (each.nodeType !== Node.COMMENT_NODE) nodes.push(each);
    return nodes;
  };
  /** A sentence with elements in it: before and after it there may be others, such as the field that it is about. */
  const around = (words) => {
    const lead = LEAD.exec(words)?.[0] ?? "";
    const tail = TAIL.exec(words.slice(lead.length))?.[0] ?? "";
    for (const [from, to] of [["", ""], [lead, ""], ["", tail], [lead, tail]]) {
      const inner = words.slice(from.length, words.length - to.length);
      const chinese = inner.trim() && text(inner);
      if (chinese && chinese !== inner) return `${from.replace(": ", "：")}${chinese}${to}`;
    }
    return null;
  };
  const rewrite = (nodes) => {
    const elements = nodes.filter((node) => node.nodeType === Node.ELEMENT_NODE);
    let i = 0;
    const words = nodes.map((node) => (node.nodeType === Node.TEXT_NODE ? source(node) : String.fromCharCode(0xe000 + i++))).join("");
    const chinese = around(words);
    if (chinese == null) return false;
    const parts = chinese.split(new RegExp(ELEMENT));
    const order = [...chinese.matchAll(new RegExp(ELEMENT, "g"))].map(([mark]) => elements[mark.charCodeAt(0) - 0xe000]);
    if (order.length !== elements.length) return false;
    const gaps = elements.map((each) => nodes.indexOf(each)); // where the text between two elements ends
    const isMoved = order.some((each, at) => each !== elements[at]);
    const { parentNode, nextSibling: end } = { parentNode: nodes[0].parentNode, nextSibling: nodes.at(-1).nextSibling };
    parts.forEach((part, at) => {
      const [own, ...others] = nodes.slice(at ? gaps[at - 1] + 1 : 0, gaps[at] ?? nodes.length);
      const here = own ?? document.createTextNode("");
      if (part || own) write(here, part);
      for (const each of others) write(each, "");
      const before = isMoved ? end : (elements[at] ?? end);
      if (part && (isMoved || !own)) parentNode.insertBefore(here, before);
      if (isMoved && order[at]) parentNode.insertBefore(order[at], end);
    });
    return true;
  };

  const translate = (node) => {
    const nodes = sentenceOf(node);
    if (nodes.length > 1 && nodes.some(isInline) && rewrite(nodes)) return;
    write(node, text(source(node)));
  };
  const translateAttributes = (element) => {
    const isOfUser = element.matches(OF_USERS);
    for (const name of ATTRIBUTES) {
      const words = element.getAttribute(name);
      if (!words || (isOfUser && name === "title")) continue;
      const before = attributes.get(element)?.[name];
      if (before === words) continue;
      const chinese = text(words);
      if (chinese === words) continue;
      attributes.set(element, { ...attributes.get(element), [name]: chinese });
      element.setAttribute(name, chinese);
    }
  };
  const NAMED = ATTRIBUTES.map((name) => `[${name}]`).join();
  const isLeft = (node) => (node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement)?.closest(LEFT);
  const reject = {
    acceptNode: (node) => {
      if (node.nodeType === Node.ELEMENT_NODE) return node.matches(LEFT) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP;
      return /[A-Za-z]/.test(node.data) ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_SKIP;
    },
  };
  /** Translate a part of the page. */
  const visit = (part) => {
    if (part.nodeType === Node.TEXT_NODE) {
      if (part.isConnected && written.get(part)?.chinese !== part.data && !isLeft(part)) translate(part);
      return;
    }
    if (part.nodeType === Node.ELEMENT_NODE) {
      if (part.parentElement?.closest("[translate=no]")) return;
      if (part.matches(NAMED)) translateAttributes(part);
    } else if (part.nodeType !== Node.DOCUMENT_FRAGMENT_NODE) return;
    for (const element of part.querySelectorAll(NAMED)) if (!element.closest("[translate=no]")) translateAttributes(element);
    if (part.nodeType === Node.ELEMENT_NODE && isLeft(part)) return;
    const walk = document.createTreeWalker(part, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT, reject);
    const nodes = [];
    while (walk.nextNode()) nodes.push(/** @type {Text} */ (walk.currentNode));
    for (const node of nodes) if (written.get(node)?.chinese !== node.data) translate(node);
  };
  const observer = new MutationObserver((records) => {
    for (const { type, target, addedNodes } of records) {
      if (type === "childList") for (const node of addedNodes) node.isConnected && visit(node);
      else if (type === "characterData") visit(target);
      else if (!(/** @type {Element} */ (target).closest("[translate=no]"))) translateAttributes(target);
    }
    if (root.lang !== CHINESE) root.lang = CHINESE; // Gradio sets the browser's
    observer.takeRecords(); // of what was written here
  });
  const start = async () => {
    learn(await ask(`language/${CHINESE}`));
    for (const [name, words] of Object.entries(IN_STYLES)) root.style.setProperty(name, `"${text(words)}"`);
    observer.observe(root, { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: [...ATTRIBUTES, "lang"] });
    visit(root);
  };
  start().catch(() => {}); // it stays English
  return { text, english, visit };
})();
