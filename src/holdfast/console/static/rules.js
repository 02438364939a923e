// SPDX-License-Identifier: Apache-2.0
// What the rules in the form would have said of the last hour: again shortly after somebody stops typing, and when numbers come.
// They are saved without leaving the page: if that cannot be (also because the session is over), what was written stays there.
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
      // the first numbers may have come before anybody listened
      if (place.querySelector(".asked") && again++ < MOST_AGAIN) setTimeout(() => { if (mine === number) preview(); }, AGAIN_MS);
    } catch (error) {
      if (mine === number) place.textContent = "no preview: " + error.message;
    } finally {
      if (mine === number) place.removeAttribute("aria-busy");
    }
  };

  // Who logged in again in another tab has another word for forms. Of another person it is not ours to use.
  const renew = async () => {
    const answer = await fetch("/console/rules/new", { credentials: "same-origin", redirect: "manual" });
    const page = parse(await answer.text()), name = "meta[name=form-token]";
    const who = (within) => (within.querySelector(".who") || {}).textContent;
    const word = page.querySelector(name);
    if (!word || who(page) !== who(document)) return false;
    document.querySelector(name).content = word.content;
    for (const one of document.querySelectorAll("input[name=form_token]")) one.value = word.content;
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
    if (button) button.disabled = true; // once is enough
    try {
      const answer = await send();
      if (answer.type === "opaqueredirect") { location.assign("/console/rules/of/" + encodeURIComponent(form.elements.name.value.trim())); return; }
      outcome.replaceChildren(...parse(await answer.text()).body.childNodes);
    } catch (error) {
      const said = document.createElement("p");
      said.className = "sheet note bad";
      said.textContent = "not saved: " + error.message + (error.status === 401 ? ". Log in in another tab, then save again: what you wrote stays here." : "");
      outcome.replaceChildren(said);
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
  // new numbers every ten seconds are no reason to move what somebody reads; that there are some at last is
  Holdfast.follow(["samples"], () => { if (!place.querySelector(".story") || place.querySelector(".asked")) soon(); });
  if (!place.querySelector(".story, .problems, .note")) preview();
});
