// SPDX-License-Identifier: Apache-2.0
// Pictures say times in their titles, in UTC: while somebody points at one, the local ones stand below. Times in text, and in titles of text, are console.js's.
"use strict";

(() => {
  let pointed = null; // {title, text}

  // what was added must not be found to differ from what comes next
  function leave() {
    if (pointed) pointed.title.textContent = pointed.text;
    pointed = null;
  }

  function titled(target) {
    for (let one = target; one && one.namespaceURI === "http://www.w3.org/2000/svg"; one = one.parentNode) {
      const title = [...one.children].find((child) => child.localName === "title");
      if (title) return title;
    }
    return null;
  }

  document.addEventListener("pointerover", (event) => {
    leave();
    const title = titled(event.target);
    const here = title && Holdfast.local(title.textContent);
    if (!here) return;
    pointed = { title, text: title.textContent };
    title.textContent += `\n${here}`;
  });
})();
