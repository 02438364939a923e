// SPDX-License-Identifier: Apache-2.0
// Somebody looks at a host: its agent is told so, again and again while the page is seen, and at no other time.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const AGAIN_MS = 120000, FIRST_MS = [1500, 3000, 6000, 12000];
  const place = document.querySelector("[data-look]");
  if (!place) return;
  let said = -Infinity;
  const look = async () => {
    if (document.visibilityState !== "visible" || performance.now() - said < AGAIN_MS / 2) return;
    said = performance.now();
    try { await Holdfast.post(place.dataset.look, {}); } catch (error) { said = -Infinity; Holdfast.say("cannot look: " + error.message); return; }
    for (const wait of FIRST_MS) setTimeout(first, wait);
  };
  // the first numbers may have come before anybody listened
  const first = () => { const region = document.getElementById("figures"); if (!region.querySelector(".spark")) Holdfast.refresh(region); };
  look();
  setInterval(look, AGAIN_MS);
  document.addEventListener("visibilitychange", look);
});
