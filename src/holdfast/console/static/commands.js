// SPDX-License-Identifier: Apache-2.0
// Forms whose command follows their fields; console/switches.py makes the first command.
//
//   <form data-does="holdfast recovery pause" data-shown="pause-command">
//   <select data-option="--for"><option value="3600" data-word="1h">       <input data-option="--reason" data-else="TEXT">
//   An empty field is left out, or its data-else is the value; a data-any field has a data-else only if all data-any fields are empty.
"use strict";

(() => {
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", `'"'"'`) + "'");

  function entered(field) {
    const chosen = field.selectedOptions && field.selectedOptions[0];
    return chosen ? chosen.dataset.word ?? chosen.value : field.value.trim();
  }

  function words(form) {
    const fields = [...form.querySelectorAll("[data-option]")];
    const named = fields.some((field) => field.dataset.any !== undefined && entered(field));
    return fields.flatMap((field) => {
      const value = entered(field) || (named && field.dataset.any !== undefined ? "" : field.dataset.else || "");
      if (!value) return [];
      return value.startsWith("-") ? [`${field.dataset.option}=${value}`] : [field.dataset.option, value];
    });
  }

  function show(form) {
    const code = document.querySelector(`#${form.dataset.shown} code`);
    if (code) code.textContent = [form.dataset.does, ...words(form).map(quoted)].join(" ");
  }

  const all = () => document.querySelectorAll("form[data-does]").forEach(show);
  document.addEventListener("input", (event) => { if (event.target.form && event.target.form.dataset.does) show(event.target.form); });
  document.addEventListener("refreshed", all);
  document.addEventListener("DOMContentLoaded", all); // a browser fills in again what was there before
})();
