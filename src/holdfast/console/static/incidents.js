// SPDX-License-Identifier: Apache-2.0
// Counts the duration of an open incident.
"use strict";

(() => {
  const span = (s) => s < 60 ? s.toFixed(1) + " s" : s < 3600 ? Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s"
    : Math.floor(s / 3600) + " h " + Math.floor(s / 60 % 60) + " min";
  setInterval(() => {
    for (const element of document.querySelectorAll("[data-since]")) {
      element.textContent = span(Math.max(0, (Date.now() - Date.parse(element.dataset.since)) / 1000));
    }
  }, 1000);
})();
