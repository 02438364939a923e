// SPDX-License-Identifier: Apache-2.0
// Forms that book or change a lease: fields by kind, a dry run whenever something is filled in, and its outcome below.
//
//   <form data-outcome="ID">            its answers come without a new page
//   <form data-outcome="ID" data-preview>   and one is asked for at once
"use strict";

const Leases = (() => {
  const PAUSE_MS = 450;
  const turns = {};
  const deeds = new Set(); // what is being done is not superseded by a dry run: its answer is the one that counts

  function kinds(form) {
    const kind = form.querySelector("[name=kind]");
    if (!kind) return;
    for (const one of form.querySelectorAll("[data-kinds]")) one.hidden = !one.dataset.kinds.split(" ").includes(kind.value);
  }

  async function send(form, verb) {
    const place = form.dataset.outcome;
    clearTimeout(form.wait);
    if (deeds.has(place)) return;
    const deed = !verb.startsWith("check");
    if (deed) deeds.add(place);
    const fields = { ...Object.fromEntries(new FormData(form)), do: verb, part: "1" };
    const turn = turns[place] = (turns[place] || 0) + 1;
    const show = (...nodes) => { // where it is now: the form may have been drawn anew
      const outcome = document.getElementById(place);
      if (outcome) { outcome.replaceChildren(...nodes); Holdfast.dress(outcome); }
    };
    try {
      const text = await (await Holdfast.post(form.getAttribute("action"), fields)).text();
      if (turn !== turns[place]) return; // something else was asked meanwhile
      const page = new DOMParser().parseFromString(text, "text/html");
      const done = page.querySelector("[data-done]"), end = page.querySelector("[data-end]");
      if (done) { over(form, done.dataset.done, done.dataset.href); return; }
      const field = document.querySelector(`form[data-outcome="${place}"] [name=end]`);
      if (end && field && verb !== "check") field.value = end.dataset.end;
      show(...page.body.childNodes);
    } catch (error) {
      const said = document.createElement("p");
      said.className = "refused"; said.setAttribute("role", "alert"); said.textContent = error.message;
      show(said);
    } finally {
      if (deed) deeds.delete(place);
    }
  }

  // in a dialog the page below goes on; elsewhere the lease is shown
  function over(form, said, href) {
    const dialog = form.closest("dialog");
    if (!dialog) { Holdfast.say_next(said); location.assign(href); return; }
    dialog.close();
    document.dispatchEvent(new CustomEvent("lease-done", { detail: { said, href } }));
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
