// SPDX-License-Identifier: Apache-2.0
// What the rules in the form would have said of the last hour: again shortly after somebody stops typing, and when numbers come.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const PAUSE_MS = 600, AGAIN_MS = 2500, MOST_AGAIN = 5;
  const form = document.getElementById("draft"), place = document.getElementById("preview");
  if (!form || !place) return;
  let number = 0, timer = 0, again = 0;
  const preview = async () => {
    const mine = ++number;
    place.setAttribute("aria-busy", "true");
    try {
      const fields = { ...Object.fromEntries(new FormData(form)), part: "1" };
      const text = await (await Holdfast.post(place.dataset.preview, fields)).text();
      if (mine !== number) return;
      const page = new DOMParser().parseFromString(text, "text/html");
      place.replaceChildren(...page.body.childNodes);
      Holdfast.dress(place);
      // the first numbers may have come before anybody listened
      if (place.querySelector(".asked") && again++ < MOST_AGAIN) setTimeout(() => { if (mine === number) preview(); }, AGAIN_MS);
    } catch (error) {
      if (mine === number) place.textContent = "no preview: " + error.message;
    } finally {
      if (mine === number) place.removeAttribute("aria-busy");
    }
  };
  const soon = () => { clearTimeout(timer); timer = setTimeout(preview, PAUSE_MS); };
  form.addEventListener("input", () => { again = 0; soon(); });
  form.addEventListener("submit", (event) => {
    if (!event.submitter || !event.submitter.hasAttribute("formaction")) return;
    event.preventDefault();
    clearTimeout(timer);
    preview();
  });
  // new numbers every ten seconds are no reason to move what somebody reads; that there are some at last is
  Holdfast.follow(["samples"], () => { if (!place.querySelector(".story") || place.querySelector(".asked")) soon(); });
  if (!place.querySelector(".story, .problems, .note")) preview();
});
