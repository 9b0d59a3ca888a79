// Measuring the gain of torch.compile: its button is in the plan, its progress and result below it.
(() => {
  const EVERY = 700; // ms
  let known = "";
  let over = false; // whether there is nothing to follow
  let asking = false;

  const slotOf = (tab) => document.querySelector(`[data-measured="${tab}"]`);
  const look = async () => {
    if (asking || document.hidden || over) return;
    asking = true;
    try {
      const news = await Studio.ask(`measure?known=${known}`);
      if (news) {
        known = news.known;
        over = news.over;
        for (const slot of document.querySelectorAll("[data-measured]"))
          Studio.put(slot, slot.dataset.measured === news.tab ? news.html : "");
        if (news.tab && !slotOf(news.tab)) known = ""; // that tab was never shown
        if (over) Plans.refresh();
      }
    } catch {
      // the live view reports that the GUI does not respond
    }
    asking = false;
  };
  setInterval(look, EVERY);

  Studio.on("click", "[data-measure]", async (button) => {
    const tab = button.closest("[role=tabpanel]").id;
    button.disabled = true;
    try {
      await (button.dataset.measure === "stop" ? Studio.send("measure/stop") : Studio.sendStart("measure", Plans.form(tab)));
    } catch (error) {
      slotOf(tab).replaceChildren(Studio.complaint(error));
      slotOf(tab).sent = null;
    }
    button.disabled = false;
    known = "";
    over = false;
  });
})();
