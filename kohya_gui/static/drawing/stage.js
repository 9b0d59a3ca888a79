// A surface on which something is drawn by mouse, pen and fingers: zoomed with the wheel or two fingers, moved with the
// middle button, Space or two fingers. Masks and crops are made on it.
var DrawingStage = (() => {
  const { el } = Studio;
  const MOST = 32; // times its size in pixels
  const MARGIN = 12;
  const WHEEL = 0.0015;

  /** `tool` has down(point, event), move(points, event), up() and cancel(), with points in pixels of the content;
   * `moved()` is called when the view has changed. */
  const make = ({ label, tool, moved = () => {} }) => {
    const content = el("div", { class: "stage-content" });
    const box = el("div", { class: "stage", tabindex: 0, role: "application", "aria-label": label }, content);
    const view = { x: 0, y: 0, scale: 1 };
    let [width, height] = [1, 1];
    let isFitted = true;
    let isSpace = false;
    const fingers = new Map(); // pointer -> where it is
    let drawing = null; // pointer that draws
    let panning = null; // pointer that moves the view
    let pinch = null;

    const fitScale = () => Math.min((box.clientWidth - 2 * MARGIN) / width, (box.clientHeight - 2 * MARGIN) / height);
    const place = () => {
      content.style.cssText = `width:${width}px;height:${height}px;transform:translate(${view.x}px,${view.y}px) scale(${view.scale})`;
      moved();
    };
    const fit = () => {
      if (!box.clientWidth) return;
      isFitted = true;
      view.scale = Math.max(fitScale(), 1e-3);
      view.x = (box.clientWidth - width * view.scale) / 2;
      view.y = (box.clientHeight - height * view.scale) / 2;
      place();
    };
    /** Zoom by a factor, so that a place on the screen stays where it is. */
    const zoom = (by, x = box.clientWidth / 2, y = box.clientHeight / 2) => {
      const scale = Math.max(Math.min(fitScale(), 1) / 4, Math.min(MOST, view.scale * by));
      view.x = x - ((x - view.x) * scale) / view.scale;
      view.y = y - ((y - view.y) * scale) / view.scale;
      view.scale = scale;
      isFitted = false;
      place();
    };
    const pan = (x, y) => {
      view.x += x;
      view.y += y;
      isFitted = false;
      place();
    };
    const onScreen = ({ clientX, clientY }) => {
      const { left, top } = box.getBoundingClientRect();
      return [clientX - left - box.clientLeft, clientY - top - box.clientTop];
    };
    const point = (event) => {
      const [x, y] = onScreen(event);
      return [(x - view.x) / view.scale, (y - view.y) / view.scale];
    };
    const pinched = () => {
      const [[ax, ay], [bx, by]] = [...fingers.values()];
      return { x: (ax + bx) / 2, y: (ay + by) / 2, apart: Math.hypot(ax - bx, ay - by) || 1 };
    };

    box.addEventListener("pointerdown", (event) => {
      if (event.target.closest("[data-no-stage]")) return;
      box.focus({ preventScroll: true });
      if (event.pointerType === "touch") {
        fingers.set(event.pointerId, onScreen(event));
        if (fingers.size === 2) {
          if (drawing !== null) tool.cancel();
          drawing = null;
          pinch = pinched();
        }
        if (fingers.size > 1) return;
      }
      box.setPointerCapture(event.pointerId);
      event.preventDefault();
      if (event.button === 1 || isSpace) panning = event.pointerId;
      else if (event.button === 0 || event.button === 5) {
        drawing = event.pointerId;
        tool.down(point(event), event);
      }
    });
    box.addEventListener("pointermove", (event) => {
      if (fingers.has(event.pointerId)) fingers.set(event.pointerId, onScreen(event));
      if (pinch && fingers.size === 2) {
        const now = pinched();
        pan(now.x - pinch.x, now.y - pinch.y);
        zoom(now.apart / pinch.apart, now.x, now.y);
        pinch = now;
      } else if (event.pointerId === panning) pan(event.movementX, event.movementY);
      else {
        const all = event.pointerId === drawing ? event.getCoalescedEvents?.() ?? [] : [];
        tool.move((all.length ? all : [event]).map(point), event, event.pointerId === drawing);
      }
    });
    const end = (event) => {
      fingers.delete(event.pointerId);
      if (fingers.size < 2) pinch = null;
      if (event.pointerId === panning) panning = null;
      if (event.pointerId !== drawing) return;
      drawing = null;
      if (event.type === "pointercancel") tool.cancel();
      else tool.up();
    };
    box.addEventListener("pointerup", end);
    box.addEventListener("pointercancel", end);
    box.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoom(Math.exp(-event.deltaY * WHEEL * (event.deltaMode ? 16 : 1)), ...onScreen(event));
    }, { passive: false });
    box.addEventListener("auxclick", (event) => event.preventDefault());
    box.addEventListener("keydown", (event) => event.key === " " && (isSpace = true, event.preventDefault()));
    box.addEventListener("keyup", (event) => event.key === " " && (isSpace = false));
    box.addEventListener("blur", () => (isSpace = false));
    new ResizeObserver(() => (isFitted ? fit() : moved())).observe(box);

    return {
      box,
      content,
      view,
      fit,
      zoom,
      resize(wide, high) {
        [width, height] = [wide, high];
        fit();
      },
    };
  };

  /** A small button of a dialog with a stage; its title names its key. */
  const small = (words, act, title, more = {}) => Studio.button(words, act, { class: "small-button", title, ...more });
  /** The head of such a dialog: parts about the image, and the ways to the previous and the next one. */
  const head = (go, ...parts) =>
    el("div", { class: "detail-head" }, ...parts, small("‹", () => go(-1), "Page Up", { "aria-label": "Previous image" }), small("›", () => go(1), "Page Down", { "aria-label": "Next image" }));
  /** The name of a pressed key; letters are small ones. */
  const keyOf = ({ key }) => (key.length === 1 ? key.toLowerCase() : key);

  return { make, small, head, keyOf };
})();
