// Keeps the plan next to Start in step with the form: a while after its last change, the server is asked for it. One
// request at a time: who keeps typing sees the plan of a moment ago instead of none.
var Plans = (() => {
  const PAUSE = 300; // ms
  const LONGEST = 130_000; // ms, a little more than the server gives itself
  const drafts = new Map(); // tab -> its last draft
  const shown = new Map(); // tab -> the state whose plan is shown
  let version = 0; // of all that plans depend on besides the form
  let asking = false;

  const slotOf = (tab) => document.querySelector(`[data-plan="${tab}"]`);
  const visible = () => [...drafts.keys()].find((tab) => slotOf(tab)?.closest("[role=tabpanel]")?.offsetParent);

  /** A request's description of a tab's form. */
  const form = (tab) => {
    const { family, ...values } = JSON.parse(drafts.get(tab));
    return { tab, family, values };
  };

  const stateOf = (tab) => `${version} ${drafts.get(tab)}`;

  const ask = async () => {
    const tab = visible();
    if (!tab || asking || shown.get(tab) === stateOf(tab)) return;
    const slot = slotOf(tab);
    const state = stateOf(tab);
    asking = true;
    slot.dataset.busy = "";
    try {
      const answer = await Studio.send("plan", form(tab), { signal: AbortSignal.timeout(LONGEST) });
      shown.set(tab, state);
      Studio.put(slot, answer.html);
    } catch {
      Studio.put(slot, ""); // no plan is better than the plan of other settings
    }
    asking = false;
    slot.removeAttribute("data-busy");
    if (visible() !== tab || stateOf(tab) !== state) ask();
  };
  const soon = Studio.later(ask, PAUSE);

  /** The form of a tab is now this draft. */
  const changed = (tab, draft) => {
    const options = Object.entries(draft).filter(([name]) => name.startsWith("option:"));
    const values = Object.fromEntries(options.map(([name, value]) => [name.slice("option:".length), value]));
    drafts.set(tab, JSON.stringify({ family: draft.family, ...values }));
    document.dispatchEvent(new CustomEvent("form-changed", { detail: { tab } }));
    soon();
  };
  addEventListener("click", soon, true); // another tab may be shown
  addEventListener("focus", soon);

  /** The plans may be others now, though the forms are the same. */
  const refresh = () => {
    version += 1;
    soon();
  };

  // unfolded again, perhaps after a run that is remembered now; this event does not bubble
  document.addEventListener("toggle", (event) => event.target.matches?.(".plan[open]") && refresh(), true);

  return { changed, form, refresh };
})();
