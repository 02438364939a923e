// SPDX-License-Identifier: Apache-2.0
// A link to a line of a text area (<a href="#text" data-line="3">) selects the line.
"use strict";

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-line]");
  const field = link && document.getElementById(link.hash.slice(1));
  if (!field) return;
  event.preventDefault();
  const lines = field.value.split("\n"), line = Math.min(Number(link.dataset.line), lines.length);
  const begin = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0);
  field.focus();
  field.setSelectionRange(begin, begin + lines[line - 1].length);
});
