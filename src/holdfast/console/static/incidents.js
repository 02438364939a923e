// SPDX-License-Identifier: Apache-2.0
// An incident that is open: for how long, counted on.
"use strict";

(() => {
  const span = (s) => s < 60 ? s.toFixed(1) + " s" : s < 3600 ? Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s"
    : Math.floor(s / 3600) + " h " + Math.floor(s / 60 % 60) + " min";
  setInterval(() => {
    for (const one of document.querySelectorAll("[data-since]")) {
      one.textContent = span(Math.max(0, (Date.now() - Date.parse(one.dataset.since)) / 1000));
    }
  }, 1000);
})();
