// SPDX-License-Identifier: Apache-2.0
// Previews the rules in the form on the last hour: shortly after the user stops typing, and when metrics arrive.
// The script saves the rules without leaving the page. If saving fails, also because the session ended, the text stays in the form.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const PAUSE_MS = 600, AGAIN_MS = 2500, MOST_AGAIN = 5;
  const form = document.getElementById("draft"), place = document.getElementById("preview");
  if (!form || !place) return;
  let number = 0, timer = 0, again = 0;
  const filled = () => ({ ...Object.fromEntries(new FormData(form)), part: "1" });
  const parse = (text) => new DOMParser().parseFromString(text, "text/html");
  const preview = async () => {
    const mine = ++number;
    place.setAttribute("aria-busy", "true");
    try {
      const text = await (await Holdfast.post(place.dataset.preview, filled())).text();
      if (mine !== number) return;
      place.replaceChildren(...parse(text).body.childNodes);
      Holdfast.dress(place);
      // the first metrics may have arrived before the page followed changes
      if (place.querySelector(".requested") && again++ < MOST_AGAIN) setTimeout(() => { if (mine === number) preview(); }, AGAIN_MS);
    } catch (error) {
      if (mine === number) place.textContent = "no preview: " + error.message;
    } finally {
      if (mine === number) place.removeAttribute("aria-busy");
    }
  };

  // After a login in another tab the form token differs. The script takes the new token only if the user is the same.
  const renew = async () => {
    const answer = await fetch("/console/rules/new", { credentials: "same-origin", redirect: "manual" });
    const page = parse(await answer.text()), name = "meta[name=form-token]";
    const user = (within) => (within.querySelector(".who") || {}).textContent;
    const token = page.querySelector(name);
    if (!token || user(page) !== user(document)) return false;
    document.querySelector(name).content = token.content;
    for (const field of document.querySelectorAll("input[name=form_token]")) field.value = token.content;
    return true;
  };
  const send = async () => {
    const path = form.getAttribute("action");
    try { return await Holdfast.post(path, filled()); }
    catch (error) {
      if (![401, 403].includes(error.status) || !(await renew())) throw error;
      return Holdfast.post(path, filled());
    }
  };
  const outcome = document.getElementById("saved");
  const save = async (button) => {
    clearTimeout(timer);
    if (button) button.disabled = true; // one save at a time
    try {
      const answer = await send();
      if (answer.type === "opaqueredirect") { location.assign("/console/rules/of/" + encodeURIComponent(form.elements.name.value.trim())); return; }
      outcome.replaceChildren(...parse(await answer.text()).body.childNodes);
    } catch (error) {
      const refusal = document.createElement("p");
      refusal.className = "sheet note bad";
      refusal.textContent = "not saved: " + error.message + (error.status === 401 ? ". Log in in another tab, then save again: your text stays here." : "");
      outcome.replaceChildren(refusal);
    }
    if (button) { button.disabled = false; button.focus(); }
  };
  const soon = () => { clearTimeout(timer); timer = setTimeout(preview, PAUSE_MS); };
  form.addEventListener("input", () => { again = 0; soon(); });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!event.submitter || !event.submitter.hasAttribute("formaction")) { save(event.submitter); return; }
    clearTimeout(timer);
    preview();
  });
  // metrics arrive every 10 s; the preview moves only when the first ones arrive
  Holdfast.follow(["samples"], () => { if (!place.querySelector(".story") || place.querySelector(".requested")) soon(); });
  if (!place.querySelector(".story, .problems, .note")) preview();
});
