// The pixels of a mask while it is painted: a byte each, 255 is trained in full. Strokes blend with what was there before
// them, so that a stroke over itself is not stronger, and each can be undone.
var MaskPaint = (() => {
  const FULL = 255;
  const MOST_BYTES = 128e6; // of pixels that undo remembers

  /** A rectangle [left, top, right, bottom] around two others; null is empty. */
  const around = (one, other) => {
    if (!one || !other) return one ?? other;
    return [Math.min(one[0], other[0]), Math.min(one[1], other[1]), Math.max(one[2], other[2]), Math.max(one[3], other[3])];
  };

  const make = (width, height, pixels = new Uint8Array(width * height).fill(FULL)) => {
    let base = null; // the pixels before the stroke that is being drawn
    const cover = new Uint8Array(width * height); // how much of each pixel the stroke covers
    let dirty = null; // what the stroke has changed
    let brush = null;
    let done = [];
    let undone = [];

    const copy = ([left, top, right, bottom], source = pixels) => {
      const part = new Uint8Array((right - left) * (bottom - top));
      for (let y = top; y < bottom; y++) part.set(source.subarray(y * width + left, y * width + right), (y - top) * (right - left));
      return part;
    };
    const paste = ([left, top, right, bottom], part) => {
      for (let y = top; y < bottom; y++) pixels.set(part.subarray((y - top) * (right - left), (y - top + 1) * (right - left)), y * width + left);
    };
    const remember = (rect, before) => {
      done.push({ rect, before });
      undone = [];
      let bytes = done.reduce((sum, each) => sum + each.before.length, 0);
      while (bytes > MOST_BYTES && done.length > 1) bytes -= done.shift().before.length;
    };
    const turn = (from, to) => {
      const step = from.pop();
      if (!step) return null;
      const { rect, before } = step;
      to.push({ rect, before: copy(rect) });
      paste(rect, before);
      return rect;
    };
    const whole = (change) => {
      const rect = [0, 0, width, height];
      remember(rect, pixels.slice());
      change();
      return rect;
    };

    return {
      width,
      height,
      pixels,
      /** Begin a stroke; `size`: diameter in pixels, `hardness` and `opacity` 0 to 1, `weight` 0 to 255. */
      begin(chosen) {
        brush = chosen;
        base = pixels.slice();
        dirty = null;
      },
      /** Draw from one point to another; returns the rectangle that has changed, or null. */
      line([ax, ay], [bx, by], pressure = 1) {
        const radius = Math.max(0.5, (brush.size * pressure) / 2);
        const inner = Math.max(0, Math.min(radius * brush.hardness, radius - 0.5));
        const outer = Math.max(radius, inner + 1);
        const left = Math.max(0, Math.floor(Math.min(ax, bx) - outer));
        const top = Math.max(0, Math.floor(Math.min(ay, by) - outer));
        const right = Math.min(width, Math.ceil(Math.max(ax, bx) + outer) + 1);
        const bottom = Math.min(height, Math.ceil(Math.max(ay, by) + outer) + 1);
        if (left >= right || top >= bottom) return null;
        const [dx, dy] = [bx - ax, by - ay];
        const long = dx * dx + dy * dy;
        const [near, far] = [inner * inner, outer * outer];
        for (let y = top; y < bottom; y++) {
          const py = y + 0.5 - ay;
          for (let x = left; x < right; x++) {
            const px = x + 0.5 - ax;
            const along = long ? Math.max(0, Math.min(1, (px * dx + py * dy) / long)) : 0;
            const [ox, oy] = [px - along * dx, py - along * dy];
            const square = ox * ox + oy * oy;
            if (square >= far) continue;
            let share = 1;
            if (square > near) {
              const rest = (outer - Math.sqrt(square)) / (outer - inner);
              share = rest * rest * (3 - 2 * rest);
            }
            const at = y * width + x;
            const covered = Math.round(share * FULL);
            if (covered <= cover[at]) continue;
            cover[at] = covered;
            pixels[at] = Math.round(base[at] + ((brush.weight - base[at]) * covered * brush.opacity) / FULL);
          }
        }
        const rect = [left, top, right, bottom];
        dirty = around(dirty, rect);
        return rect;
      },
      end() {
        if (dirty) {
          remember(dirty, copy(dirty, base));
          for (let y = dirty[1]; y < dirty[3]; y++) cover.fill(0, y * width + dirty[0], y * width + dirty[2]);
        }
        base = dirty = null;
      },
      /** Take the stroke that is being drawn back. */
      cancel() {
        if (!dirty) return null;
        this.end();
        return turn(done, []);
      },
      fill: (weight) => whole(() => pixels.fill(weight)),
      invert: () => whole(() => pixels.forEach((value, at) => (pixels[at] = FULL - value))),
      undo: () => turn(done, undone),
      redo: () => turn(undone, done),
      steps: () => [done.length, undone.length],
      /** The share of the pixels' weight, 0 to 1. */
      share() {
        let sum = 0;
        for (let at = 0; at < pixels.length; at++) sum += pixels[at];
        return sum / (FULL * pixels.length);
      },
    };
  };

  // Pixels as requests have them: deflated, in Base64

  const through = async (bytes, stream) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
  const pack = async (bytes) => {
    const packed = await through(bytes, new CompressionStream("deflate"));
    let text = "";
    for (let at = 0; at < packed.length; at += 8192) text += String.fromCharCode(...packed.subarray(at, at + 8192));
    return btoa(text);
  };
  const unpack = async (text) => through(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), new DecompressionStream("deflate"));
  /** Pixels stretched to a different size, as training stretches a mask. */
  const stretched = (pixels, [wide, high], [width, height]) => {
    if (wide === width && high === height) return pixels;
    const to = new Uint8Array(width * height);
    for (let y = 0; y < height; y++) {
      const row = Math.min(high - 1, Math.floor(((y + 0.5) * high) / height)) * wide;
      for (let x = 0; x < width; x++) to[y * width + x] = pixels[row + Math.min(wide - 1, Math.floor(((x + 0.5) * wide) / width))];
    }
    return to;
  };

  return { FULL, around, make, pack, unpack, stretched };
})();
