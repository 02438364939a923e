// SPDX-License-Identifier: Apache-2.0
// Requests live metrics of the host from its agent, again and again while the page is visible.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const AGAIN_MS = 120000, FIRST_MS = [1500, 3000, 6000, 12000];
  const place = document.querySelector("[data-watch]");
  if (!place) return;
  let requested = -Infinity;
  const watch = async () => {
    if (document.visibilityState !== "visible" || performance.now() - requested < AGAIN_MS / 2) return;
    requested = performance.now();
    try { await Holdfast.post(place.dataset.watch, {}); } catch (error) { requested = -Infinity; Holdfast.say("live metrics not requested: " + error.message); return; }
    for (const wait of FIRST_MS) setTimeout(first, wait);
  };
  // the first metrics may have arrived before the page followed changes
  const first = () => { const region = document.getElementById("figures"); if (!region.querySelector(".spark")) Holdfast.refresh(region); };
  watch();
  setInterval(watch, AGAIN_MS);
  document.addEventListener("visibilitychange", watch);
});
