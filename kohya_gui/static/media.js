// Images and clips as the page shows them: a clip plays silently, again and again, while it is seen.
(() => {
  const { el, image } = Studio;
  const APART = 0.1; // seconds between clips that play together
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)"); // then a clip waits for its controls

  const isClip = (name) => /\.(mp4|m4v|webm|mov)$/i.test(name ?? ""); // formats that browsers play
  const posterOf = (src) => `${src}${src.includes("?") ? "&" : "?"}poster=1`;

  const watcher = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        const clip = /** @type {HTMLVideoElement} */ (target);
        if (!isIntersecting) clip.pause();
        else {
          clip.poster ||= clip.dataset.poster;
          if (!isCalm.matches) clip.play().catch(() => {}); // the browser may not let it; its poster stays
        }
      }
    },
    { rootMargin: "100px" },
  );

  const watch = (clip) => {
    clip.muted = true; // browsers let nothing else play by itself; the attribute has no effect on a new element
    watcher.observe(clip);
  };

  const player = (src, alt, attributes) => {
    const waits = { loop: true, playsinline: true, preload: "none", "data-poster": posterOf(src) };
    const made = el("video", { src, "aria-label": alt, ...waits, ...attributes });
    watch(made);
    return made;
  };

  /** An image, or with `clip` a clip. */
  const media = (src, alt, { clip = false, ...attributes } = {}) =>
    clip ? player(src, alt, attributes) : image(src, alt, attributes);

  /** Show a different file in place of an element; returns the element that shows it. An image stays until the next
   * one is loaded. */
  const turn = (old, src, alt, { clip = false, ...attributes } = {}) => {
    if (!clip && old.tagName === "IMG") return Object.assign(old, { src, alt });
    const made = media(src, alt, { clip, ...attributes });
    old.replaceWith(made);
    return made;
  };

  /** Keep clips of the same length in step with the first of them that plays. */
  const together = (clips) => {
    const follow = ({ target: leader }) => {
      if (leader !== clips.find((clip) => !clip.paused)) return;
      for (const other of clips) {
        const fits = other !== leader && other.readyState && !other.seeking;
        if (fits && Math.abs(other.duration - leader.duration) < APART && Math.abs(other.currentTime - leader.currentTime) > APART)
          other.currentTime = leader.currentTime;
      }
    };
    if (clips.length > 1) for (const clip of clips) clip.addEventListener("timeupdate", follow);
  };

  /** Play the clips in HTML from the server, those of a figure in step. */
  const watchIn = (element) => {
    for (const clip of element.querySelectorAll("video")) watch(clip);
    for (const figure of element.querySelectorAll("figure")) together([...figure.querySelectorAll("video")]);
  };

  /** The length of a clip in words. */
  const lengthOf = ({ frames, fps }) => (frames > 1 && fps ? `${frames} frames, ${(frames / fps).toFixed(1)} s` : "clip");

  Object.assign(Studio, { isClip, lengthOf, media, turn, together, watchIn });
})();
