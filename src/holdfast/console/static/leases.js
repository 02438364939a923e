// SPDX-License-Identifier: Apache-2.0
// Forms that book or change a lease: fields by resource kind, a dry run after each change, and the result below.
//
//   <form data-outcome="ID">                the element ID shows the answers, without a new page
//   <form data-outcome="ID" data-preview>   the script sends a dry run at once
"use strict";

const Leases = (() => {
  const PAUSE_MS = 450;
  const turns = {};
  const changing = new Set(); // a dry run must not replace the answer of a booking or change

  function kinds(form) {
    const kind = form.querySelector("[name=kind]");
    if (!kind) return;
    for (const field of form.querySelectorAll("[data-kinds]")) field.hidden = !field.dataset.kinds.split(" ").includes(kind.value);
  }

  async function send(form, verb) {
    const place = form.dataset.outcome;
    clearTimeout(form.wait);
    if (changing.has(place)) return;
    const changes = !verb.startsWith("check");
    if (changes) changing.add(place);
    const fields = { ...Object.fromEntries(new FormData(form)), do: verb, part: "1" };
    const turn = turns[place] = (turns[place] || 0) + 1;
    const show = (...nodes) => { // look the element up again: a refresh may have replaced the form
      const outcome = document.getElementById(place);
      if (outcome) { outcome.replaceChildren(...nodes); Holdfast.dress(outcome); }
    };
    try {
      const text = await (await Holdfast.post(form.getAttribute("action"), fields)).text();
      if (turn !== turns[place]) return; // a newer request is on its way
      const page = new DOMParser().parseFromString(text, "text/html");
      const done = page.querySelector("[data-done]"), end = page.querySelector("[data-end]");
      if (done) { finish(form, done.dataset.done, done.dataset.href); return; }
      const field = document.querySelector(`form[data-outcome="${place}"] [name=end]`);
      if (end && field && verb !== "check") field.value = end.dataset.end;
      show(...page.body.childNodes);
    } catch (error) {
      const refusal = document.createElement("p");
      refusal.className = "refused"; refusal.setAttribute("role", "alert"); refusal.textContent = error.message;
      show(refusal);
    } finally {
      if (changes) changing.delete(place);
    }
  }

  // closes the dialog of the calendar; on the form's own page opens the lease
  function finish(form, message, href) {
    const dialog = form.closest("dialog");
    if (!dialog) { Holdfast.sayNext(message); location.assign(href); return; }
    dialog.close();
    document.dispatchEvent(new CustomEvent("lease-done", { detail: { message, href } }));
  }

  function dress(within) {
    for (const form of within.querySelectorAll("form")) kinds(form);
    for (const form of within.querySelectorAll("form[data-preview]")) send(form, "check");
  }

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset.outcome) return;
    event.preventDefault();
    send(form, event.submitter && event.submitter.name === "do" ? event.submitter.value : "check");
  });
  document.addEventListener("input", (event) => {
    const form = event.target.form;
    if (!form) return;
    kinds(form);
    if (!form.dataset.outcome || form.dataset.preview === undefined) return;
    clearTimeout(form.wait);
    form.wait = setTimeout(() => send(form, "check"), PAUSE_MS);
  });
  document.addEventListener("DOMContentLoaded", () => dress(document));
  return { dress };
})();
