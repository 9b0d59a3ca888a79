// Keeps the plan beside Start in step with the form: a while after its last change, the server is asked for it.
window.Plans = (() => {
  const PAUSE = 500; // ms
  const LONGEST = 130_000; // ms, a little more than the server gives itself
  const page = crypto.getRandomValues(new Uint32Array(2)).join("-");
  const drafts = new Map(); // tab -> its last draft
  const shown = new Map(); // tab -> the draft whose plan is shown
  let timer = null;
  let asking = null;

  const slotOf = (tab) => document.querySelector(`[data-plan="${tab}"]`);
  const visible = () => [...drafts.keys()].find((tab) => slotOf(tab)?.closest("[role=tabpanel]")?.offsetParent);

  /** What a request says of the form of a tab. */
  const form = (tab) => {
    const { family, ...values } = JSON.parse(drafts.get(tab));
    return { tab, family, values };
  };

  const ask = async () => {
    const tab = visible();
    const draft = drafts.get(tab);
    if (!tab || shown.get(tab) === draft) return;
    asking?.abort();
    const own = (asking = new AbortController());
    const slot = slotOf(tab);
    slot.dataset.busy = "";
    try {
      const answer = await Studio.ask("plan", {
        method: "POST",
        headers: { "X-Studio": "1", "Content-Type": "application/json" },
        body: JSON.stringify({ page, ...form(tab) }),
        signal: AbortSignal.any([own.signal, AbortSignal.timeout(LONGEST)]),
      });
      if (!answer) return;
      shown.set(tab, draft);
      Studio.put(slot, answer.html);
    } catch (error) {
      if (!own.signal.aborted) Studio.write(slot, ""); // no plan is better than that of other settings
    } finally {
      if (asking === own) slotOf(tab)?.removeAttribute("data-busy");
    }
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE);
  };

  /** The form of a tab is now this draft. */
  const changed = (tab, draft) => {
    const options = Object.entries(draft).filter(([name]) => name.startsWith("option:"));
    const values = Object.fromEntries(options.map(([name, value]) => [name.slice("option:".length), value]));
    drafts.set(tab, JSON.stringify({ family: draft.family, ...values }));
    soon();
  };
  addEventListener("click", soon, true); // another tab may be shown
  addEventListener("focus", soon);

  /** The plans may be others now, though the forms are the same. */
  const refresh = () => {
    shown.clear();
    soon();
  };

  // unfolded again, perhaps after a run that is remembered now; this event does not bubble
  document.addEventListener("toggle", (event) => event.target.matches?.(".plan[open]") && refresh(), true);

  return { changed, form, refresh };
})();
