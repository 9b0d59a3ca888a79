// Conveniences without the server: copying a path, light and dark, and returning to the last tab.
(() => {
  const { on } = Studio;

  // Gradio 6 marks the inputs of each event that was answered, and afterwards looks up and updates all marked ones
  // at every event: seconds, once a whole form was sent. Only inputs of streams need a mark, and the page has none.
  for (const { show_progress_on: targets } of window.gradio_config?.dependencies ?? []) {
    if (targets) targets.concat = () => [...targets];
  }

  const kept = localStorage.getItem("theme");
  const dark = kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const set = (on) => document.body.classList.toggle("dark", on);
  addEventListener("DOMContentLoaded", () => set(dark));
  on("click", "#theme-switch", () => {
    set(!document.body.classList.contains("dark"));
    localStorage.setItem("theme", document.body.classList.contains("dark") ? "dark" : "light");
  });
  const tabOf = () => `tab-${document.querySelector("[data-launch]").dataset.launch}`; // a new launch may open a file in another tab
  on("click", "#tabs > .tab-wrapper [role=tab][id]", (tab) => sessionStorage.setItem(tabOf(), tab.id));
  new MutationObserver((_, observer) => {
    if (!document.querySelector("#tabs .configuration") || !document.querySelector("[data-launch]")) return;
    observer.disconnect();
    rove();
    setTimeout(() => document.getElementById(sessionStorage.getItem(tabOf()))?.click()); // once Gradio is ready
  }).observe(document, { childList: true, subtree: true });

  // The tabs are one stop of the Tab key, and arrows move among them (WAI-ARIA's pattern); Gradio makes each a stop
  const tabs = () => [...document.querySelectorAll("#tabs > .tab-wrapper [role=tab]")].filter((tab) => tab.offsetParent);
  const rove = () => {
    const shown = tabs();
    const stop = shown.find((tab) => tab.ariaSelected === "true") ?? shown[0];
    for (const tab of shown) tab.tabIndex = tab === stop ? 0 : -1;
  };
  new MutationObserver(() => requestAnimationFrame(rove)).observe(document, { attributes: true, attributeFilter: ["aria-selected", "data-view"], subtree: true });
  on("keydown", "#tabs > .tab-wrapper [role=tab]", (tab, event) => {
    const shown = tabs();
    const at = shown.indexOf(tab);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    if (to == null || at < 0) return;
    event.preventDefault();
    const next = shown.at(to % shown.length);
    next.click();
    next.focus();
  });
  /** Show a tab, by its name: in the row of tabs or, where that is too narrow, in Gradio's menu of the others. */
  Studio.openTab = (name) => {
    const { label } = window.gradio_config.components.find(({ props }) => props.elem_id === name)?.props ?? {};
    const others = [...document.querySelectorAll("#tabs > .tab-wrapper .overflow-dropdown button")];
    (document.getElementById(`${name}-button`) ?? others.find((each) => Language.english(each).trim() === label))?.click();
  };
  const copy = (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = document.body.appendChild(document.createElement("textarea")); // no clipboard API without HTTPS
    field.value = text;
    field.select();
    document.execCommand("copy");
    field.remove();
  };
  /** Copy a text, as `element` says for a while. */
  Studio.copy = async (text, element) => {
    await copy(text);
    const words = Language.english(element);
    if (words === "Copied") return;
    element.textContent = "Copied";
    setTimeout(() => (element.textContent = words), 1500);
  };
  on("click", "[data-copy]", (element) => Studio.copy(element.dataset.copy, element));
  on("click", "[data-choose]", (button) => {
    const [choice, value] = button.dataset.choose.split(":");
    document.querySelector(`#${choice} input[value="${value}"]`)?.click();
  });
})();
