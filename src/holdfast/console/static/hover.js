// SPDX-License-Identifier: Apache-2.0
// Pictures say times in their titles, in UTC: while somebody points at one, the local ones stand below. Times in text are console.js's.
"use strict";

(() => {
  const TIME = /(\d{4}-\d\d-\d\d) (\d\d:\d\d(?::\d\d)?)/g;
  let pointed = null; // {title, text}

  function local(text) {
    const found = [...text.matchAll(TIME)].map(([, day, time]) => new Date(`${day}T${time}Z`)).filter((at) => !isNaN(at));
    return found.map((at) => at.toLocaleString(undefined, { timeZoneName: "short" })).join(" to ");
  }

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
    const here = title && local(title.textContent);
    if (!here) return;
    pointed = { title, text: title.textContent };
    title.textContent += `\n${here}`;
  });
})();
