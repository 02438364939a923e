// SPDX-License-Identifier: Apache-2.0
// Adds local times below the UTC times in the title of an SVG element, while the pointer is over it. console.js does the same for HTML.
"use strict";

(() => {
  let pointed = null; // {title, text}

  // restores the title, so that the element compares equal to the next version
  function leave() {
    if (pointed) pointed.title.textContent = pointed.text;
    pointed = null;
  }

  function titled(target) {
    for (let element = target; element && element.namespaceURI === "http://www.w3.org/2000/svg"; element = element.parentNode) {
      const title = [...element.children].find((child) => child.localName === "title");
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
