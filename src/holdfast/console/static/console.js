// SPDX-License-Identifier: Apache-2.0
// All pages: live updates, local times on hover, keys, copied commands, confirmation of actions.
//
//   <div id="tiles" data-refresh="/console/wall/tiles" data-on="hosts incidents">   the script fetches it again when one of these topics changes
//   Inside, the script replaces elements with an id one by one, only if they differ. Input stays, and so does the content
//   of <div id="…" data-own>, which belongs to the script.
//   Holdfast.refresh(element), Holdfast.post(path, {name: value}), Holdfast.get(path), Holdfast.follow(topics, function),
//   Holdfast.local(text)
"use strict";

const Holdfast = (() => {
  const SCRIPT = { "X-Holdfast-Script": "1" };
  const POLL_MS = 4000, AGAIN_MS = 60000, LEAST_MS = 700;
  const followers = [];
  let at = "";

  async function get(path) {
    const answer = await fetch(path, { headers: SCRIPT, credentials: "same-origin" });
    if (answer.status === 401) leave();
    if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
    return answer;
  }

  // the session ended: reload to the login, unless the user has entered something
  function leave() {
    const written = [...document.querySelectorAll("#main input, #main textarea")].some((field) => field.value !== field.defaultValue && !ticked(field));
    if (!written) location.reload();
    throw new Error("you are logged out; your input is still here: copy it, then reload the page");
  }

  async function post(path, fields) {
    const token = document.querySelector("meta[name=form-token]").content;
    const answer = await fetch(path, {
      method: "POST", credentials: "same-origin", redirect: "manual",
      headers: { ...SCRIPT, "X-Form-Token": token, "Content-Type": "application/x-www-form-urlencoded" },
      body: new URLSearchParams(fields).toString(),
    });
    if (!answer.ok && answer.type !== "opaqueredirect") {
      throw Object.assign(new Error((await answer.text()) || answer.statusText), { status: answer.status });
    }
    return answer;
  }

  // replaces what differs; equal elements stay, with focus and scroll position
  function morph(old, fresh) {
    const has = new Map();
    for (const element of old.children) if (element.id) has.set(element.id, element);
    if (!has.size && ![...fresh.children].some((element) => element.id)) {
      carry(old, fresh);
      if (old.innerHTML !== fresh.innerHTML) old.replaceChildren(...fresh.childNodes);
      return;
    }
    const unnamed = [...old.children].filter((element) => !element.id);
    let place = old.firstElementChild;
    for (const element of [...fresh.children]) {
      const known = element.id && has.get(element.id);
      if (!known) { old.insertBefore(element, place); continue; }
      has.delete(element.id);
      if (known !== place) old.insertBefore(known, place);
      else place = place.nextElementSibling;
      carry(known, element);
      if (known.outerHTML === element.outerHTML || known.contains(document.activeElement) && known.querySelector("form :focus")) continue;
      if (known.dataset.keep !== undefined && element.querySelector("[id]")) { morph(known, element); continue; }
      if (known === document.activeElement || known.contains(document.activeElement)) {
        const path = document.activeElement.id;
        known.replaceWith(element);
        (path && document.getElementById(path) || element).focus();
      } else known.replaceWith(element);
      if (element.dataset.quiet === undefined) flash(element);
    }
    for (const gone of has.values()) gone.remove();
    // elements without id were inserted again above
    for (const gone of unnamed) gone.remove();
  }

  // keeps what the server does not send: opened details, input, and content of data-own
  function carry(old, fresh) {
    for (const element of fresh.querySelectorAll("[data-own][id]")) {
      const was = old.querySelector("#" + CSS.escape(element.id));
      if (was) element.replaceChildren(...was.cloneNode(true).childNodes);
    }
    const was = old.querySelectorAll("details");
    fresh.querySelectorAll("details").forEach((element, at) => { if (was[at] && was[at].open) element.open = true; });
    for (const field of fresh.querySelectorAll("input, textarea, select")) {
      const filled = same(old, field);
      if (filled) fill(field, filled);
    }
  }

  const ticked = (field) => field.type === "checkbox" || field.type === "radio";

  // finds the same field by id, or by name in the form with the same action
  function same(old, field) {
    if (field.id) return old.querySelector("#" + CSS.escape(field.id));
    if (!field.name) return null;
    const goes = (form) => form && form.getAttribute("action");
    return [...old.querySelectorAll("input, textarea, select")].find((was) =>
      was.name === field.name && was.type === field.type && goes(was.form) === goes(field.form) && (!ticked(field) || was.value === field.value));
  }

  function fill(field, was) {
    if (ticked(field)) { if (was.checked !== was.defaultChecked) field.checked = was.checked; return; }
    if (!was.options) { if (was.value !== was.defaultValue) field.value = was.value; return; }
    const chosen = was.selectedOptions[0], first = [...was.options].find((option) => option.defaultSelected) || was.options[0];
    if (!chosen || chosen === first) return;
    field.value = chosen.value;
    // the option is gone: keep the user's choice, and let the server refuse it
    if (field.selectedIndex < 0) field.add(new Option(chosen.text, chosen.value, false, true));
  }

  // removed after 1.7 s, so that the element compares equal to the next version
  function flash(element) {
    element.classList.add("fresh");
    setTimeout(() => { element.classList.remove("fresh"); if (!element.getAttribute("class")) element.removeAttribute("class"); }, 1700);
  }

  async function refresh(region) {
    if (region.dataset.busy) { region.dataset.again = "1"; return; }
    region.dataset.busy = "1";
    try {
      const answer = await get(region.dataset.refresh);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      dress(page.body);
      morph(region, page.body);
      region.dispatchEvent(new CustomEvent("refreshed", { bubbles: true }));
    } catch (error) {
      say("refresh failed: " + error.message);
    } finally {
      setTimeout(() => {
        delete region.dataset.busy;
        if (region.dataset.again) { delete region.dataset.again; refresh(region); }
      }, LEAST_MS);
    }
  }

  function notify(topics) {
    const hit = (wanted) => topics.includes("*") || wanted.some((topic) => topics.includes(topic));
    for (const region of document.querySelectorAll("[data-refresh]")) {
      if (hit((region.dataset.on || "").split(" "))) refresh(region);
    }
    for (const [wanted, call] of followers) if (hit(wanted)) call(topics);
  }

  const follow = (topics, call) => followers.push([topics, call]);

  function say(text, on) {
    const live = document.getElementById("live");
    if (live && live.textContent !== text) { live.textContent = text; live.classList.toggle("on", Boolean(on)); }
  }

  // the next page of this tab takes over the stream slot of this page
  function tab() {
    try { return sessionStorage.tab ||= crypto.getRandomValues(new Uint32Array(2)).join("-"); } catch { return ""; }
  }

  // a stream only while the page is visible: a browser has few connections for all its tabs
  let stream = null, asking = 0, again = 0;

  function disconnect() {
    if (stream) stream.close();
    clearInterval(asking); clearTimeout(again);
    stream = null;
  }

  function forgetTab() { try { delete sessionStorage.tab; } catch { /* no storage: no tab id */ } }

  function connect() {
    const { live, changes } = document.body.dataset;
    disconnect();
    if (!live || document.hidden) return;
    at = at || document.body.dataset.at;  // also reports changes between rendering and now
    stream = new EventSource(live + "?tab=" + tab() + "&since=" + encodeURIComponent(at));
    stream.addEventListener("change", (event) => {
      at = event.lastEventId;
      say("live", true);
      if (event.data) notify(event.data.split(" "));
    });
    // a duplicated tab: the other one has the tab id now
    stream.addEventListener("moved", () => { forgetTab(); connect(); });
    stream.onerror = () => {
      if (!stream) return;
      if (stream.readyState !== EventSource.CLOSED) { say("reconnecting"); return; }
      disconnect();
      say("live (polling)", true);
      asking = setInterval(() => poll(changes), POLL_MS);
      again = setTimeout(connect, AGAIN_MS);
      poll(changes);
    };
  }

  async function poll(changes) {
    try {
      const answer = await (await get(changes + "?since=" + encodeURIComponent(at))).json();
      at = answer.at;
      say("live (polling)", true);
      if (answer.topics.length) notify(answer.topics);
    } catch (error) { say("no live updates: " + error.message); }
  }

  // a message for the next page
  const sayNext = (text) => { try { sessionStorage.message = text; } catch { /* no storage: no message */ } };

  function showMessage() {
    let text = "";
    try { text = sessionStorage.message || ""; delete sessionStorage.message; } catch { return; }
    if (!text) return;
    const banner = document.createElement("p");
    banner.className = "banner said"; banner.setAttribute("role", "status"); banner.textContent = text;
    document.getElementById("main").before(banner);
  }

  const there = (at) => at.toLocaleString(undefined, { timeZoneName: "short" });

  // the UTC times of a text, in local time
  function local(text) {
    const times = [...text.matchAll(/(\d{4}-\d\d-\d\d) (\d\d:\d\d(?::\d\d)?)/g)];
    return times.map(([, day, time]) => new Date(`${day}T${time}Z`)).filter((at) => !isNaN(at)).map(there).join(" to ");
  }

  // adds local times; twice the same result, so that old and new elements compare equal
  function dress(within) {
    for (const element of within.querySelectorAll("time[datetime]:not([title])")) element.title = there(new Date(element.dateTime));
    for (const element of within.querySelectorAll('[title*=" UTC"]:not(time, [data-dressed])')) {
      const here = local(element.title);
      if (here) { element.title += `\n${here}`; element.dataset.dressed = ""; }
    }
  }

  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });
  document.addEventListener("click", async (event) => {
    const copied = event.target.closest("[data-copy]");
    if (!copied) return;
    try { await navigator.clipboard.writeText(copied.textContent); copied.title = "copied"; }
    catch { getSelection().selectAllChildren(copied); }
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    const search = document.getElementById("search");
    if (event.key === "/" && !typing && search && !event.ctrlKey && !event.metaKey) { event.preventDefault(); search.focus(); }
    if (event.key === "Escape" && event.target === search) search.blur();
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  document.addEventListener("DOMContentLoaded", () => { dress(document); showMessage(); connect(); });
  return { get, post, refresh, follow, say, sayNext, dress, local };
})();
window.Holdfast = Holdfast;
