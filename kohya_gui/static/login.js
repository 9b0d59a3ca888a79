// The login form: sends username and password, and reloads the page once they are right.
const form = document.querySelector("form");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const alert = /** @type {HTMLElement} */ (document.querySelector("[role=alert]"));
  const says = (text) => (alert.textContent = text);
  const where = location.pathname.replace(/\/$/, "") + "/login"; // also below a prefix
  try {
    const answer = await fetch(where, { method: "POST", body: new URLSearchParams(/** @type {any} */ (new FormData(form))) });
    if (answer.ok) return location.reload();
    says(answer.status === 400 ? alert.dataset.wrong : await answer.text());
  } catch {
    says(alert.dataset.silent);
  }
});
