// SPDX-License-Identifier: Apache-2.0
// Arrow keys move through the hits.
"use strict";
document.addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const links = [...document.querySelectorAll(".hits a")];
  if (!steps || !links.length || event.target.closest("textarea, select")) return;
  const at = links.indexOf(document.activeElement);
  const next = links[at < 0 ? 0 : at + steps];
  if (next) { event.preventDefault(); next.focus(); }
});
