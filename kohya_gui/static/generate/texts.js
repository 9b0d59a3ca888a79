// The texts in a generated PNG or MP4, which the server turns into a form. Of a clip only the header is read.
var StudioTexts = (() => {
  const LARGEST = 16 << 20; // bytes of a header
  const MOST = 1000; // boxes at the top of a file
  const latin = (bytes) => new TextDecoder("latin1").decode(bytes);
  const utf8 = (bytes) => new TextDecoder().decode(bytes);
  const viewOf = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

  const TEXT = new Set(["tEXt", "iTXt"]);
  const ofPng = async (file) => {
    const bytes = new Uint8Array(await file.arrayBuffer());
    const view = viewOf(bytes);
    const found = {};
    for (let at = 8; at + 12 <= bytes.length; ) {
      const length = view.getUint32(at);
      const kind = latin(bytes.subarray(at + 4, at + 8));
      const data = bytes.subarray(at + 8, at + 8 + length);
      if (TEXT.has(kind)) {
        const end = data.indexOf(0);
        const key = latin(data.subarray(0, end));
        if (kind === "tEXt") found[key] = latin(data.subarray(end + 1));
        else if (!data[end + 1]) {
          const tag = data.indexOf(0, data.indexOf(0, end + 3) + 1); // after language and translated keyword
          found[key] = utf8(data.subarray(tag + 1));
        }
      }
      at += length + 12;
    }
    return found;
  };

  /** Kind and content of each box in the content of an MP4's box. */
  const boxesIn = (bytes) => {
    const view = viewOf(bytes);
    const found = [];
    for (let at = 0; at + 8 <= bytes.length; ) {
      const size = view.getUint32(at);
      if (size < 8 || at + size > bytes.length) break;
      found.push({ kind: latin(bytes.subarray(at + 4, at + 8)), number: view.getUint32(at + 4), content: bytes.subarray(at + 8, at + size) });
      at += size;
    }
    return found;
  };
  const within = (bytes, kind) => boxesIn(bytes).find((box) => box.kind === kind)?.content ?? new Uint8Array();

  /** The content of the `moov` box of an MP4; empty if there is none. */
  const headerOf = async (file) => {
    for (let at = 0, count = 0; at + 16 <= file.size && count < MOST; count++) {
      const head = new Uint8Array(await file.slice(at, at + 16).arrayBuffer());
      const view = viewOf(head);
      const short = view.getUint32(0);
      const start = short === 1 ? 16 : 8;
      const size = short === 1 ? Number(view.getBigUint64(8)) : short || file.size - at;
      if (size < start) break;
      if (latin(head.subarray(4, 8)) === "moov")
        return size > LARGEST ? new Uint8Array() : new Uint8Array(await file.slice(at + start, at + size).arrayBuffer());
      at += size;
    }
    return new Uint8Array();
  };

  const ofMp4 = async (file) => {
    const meta = within(within(await headerOf(file), "udta"), "meta").subarray(4); // after version and flags
    const keys = boxesIn(within(meta, "keys").subarray(8)).map(({ content }) => utf8(content));
    const found = {};
    for (const { number, content } of boxesIn(within(meta, "ilst"))) {
      const data = within(content, "data");
      if (keys[number - 1] && data.length >= 8 && viewOf(data).getUint32(0) === 1) found[keys[number - 1]] ??= utf8(data.subarray(8));
    }
    return found;
  };

  const READERS = { png: ofPng, mp4: ofMp4 };
  /** The texts of a file by key. Throws an error, one sentence, for a file that has none. */
  return async (file) => {
    const read = READERS[file.name.toLowerCase().split(".").pop()];
    if (!read) throw new Error(`${file.name} is not a PNG or MP4; only these hold parameters`);
    return read(file);
  };
})();
