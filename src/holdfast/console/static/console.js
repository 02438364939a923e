// SPDX-License-Identifier: Apache-2.0
// All pages: they follow what changes, times have their local one on hover, keys, copies, questions before deeds.
//
//   <div id="tiles" data-refresh="/console/wall/tiles" data-on="hosts incidents">   is fetched anew when one of these changes
//   Inside it, elements with an id are replaced one by one, only where they differ; what is filled in stays, and what
//   stands in <div id="…" data-own>: that is the script's, and no concern of the server.
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

  // the session is over: to the login, unless somebody is in the middle of writing something
  function leave() {
    const written = [...document.querySelectorAll("#main input, #main textarea")].some((one) => one.value !== one.defaultValue && !ticked(one));
    if (!written) location.reload();
    throw new Error("you are logged out; what you wrote is still here: copy it, then load the page anew");
  }

  async function post(path, fields) {
    const word = document.querySelector("meta[name=form-token]").content;
    const answer = await fetch(path, {
      method: "POST", credentials: "same-origin", redirect: "manual",
      headers: { ...SCRIPT, "X-Form-Token": word, "Content-Type": "application/x-www-form-urlencoded" },
      body: new URLSearchParams(fields).toString(),
    });
    if (!answer.ok && answer.type !== "opaqueredirect") {
      throw Object.assign(new Error((await answer.text()) || answer.statusText), { status: answer.status });
    }
    return answer;
  }

  // what is new goes where it belongs; what is the same stays, with its focus and its scroll
  function morph(old, fresh) {
    const has = new Map();
    for (const one of old.children) if (one.id) has.set(one.id, one);
    if (!has.size && ![...fresh.children].some((one) => one.id)) {
      carry(old, fresh);
      if (old.innerHTML !== fresh.innerHTML) old.replaceChildren(...fresh.childNodes);
      return;
    }
    const unnamed = [...old.children].filter((one) => !one.id);
    let place = old.firstElementChild;
    for (const one of [...fresh.children]) {
      const known = one.id && has.get(one.id);
      if (!known) { old.insertBefore(one, place); continue; }
      has.delete(one.id);
      if (known !== place) old.insertBefore(known, place);
      else place = place.nextElementSibling;
      carry(known, one);
      if (known.outerHTML === one.outerHTML || known.contains(document.activeElement) && known.querySelector("form :focus")) continue;
      if (known.dataset.keep !== undefined && one.querySelector("[id]")) { morph(known, one); continue; }
      if (known === document.activeElement || known.contains(document.activeElement)) {
        const path = document.activeElement.id;
        known.replaceWith(one);
        (path && document.getElementById(path) || one).focus();
      } else known.replaceWith(one);
      if (one.dataset.quiet === undefined) flash(one);
    }
    for (const gone of has.values()) gone.remove();
    // what has no id was put in anew above
    for (const gone of unnamed) gone.remove();
  }

  // what somebody opened, typed, chose or had worked out is not in what the server sends
  function carry(old, fresh) {
    for (const one of fresh.querySelectorAll("[data-own][id]")) {
      const was = old.querySelector("#" + CSS.escape(one.id));
      if (was) one.replaceChildren(...was.cloneNode(true).childNodes);
    }
    const was = old.querySelectorAll("details");
    fresh.querySelectorAll("details").forEach((one, at) => { if (was[at] && was[at].open) one.open = true; });
    for (const one of fresh.querySelectorAll("input, textarea, select")) {
      const filled = same(old, one);
      if (filled) fill(one, filled);
    }
  }

  const ticked = (one) => one.type === "checkbox" || one.type === "radio";

  // by its id; without one, by its name in the form that goes to the same place
  function same(old, one) {
    if (one.id) return old.querySelector("#" + CSS.escape(one.id));
    if (!one.name) return null;
    const goes = (form) => form && form.getAttribute("action");
    return [...old.querySelectorAll("input, textarea, select")].find((was) =>
      was.name === one.name && was.type === one.type && goes(was.form) === goes(one.form) && (!ticked(one) || was.value === one.value));
  }

  function fill(one, was) {
    if (ticked(one)) { if (was.checked !== was.defaultChecked) one.checked = was.checked; return; }
    if (!was.options) { if (was.value !== was.defaultValue) one.value = was.value; return; }
    const chosen = was.selectedOptions[0], first = [...was.options].find((option) => option.defaultSelected) || was.options[0];
    if (!chosen || chosen === first) return;
    one.value = chosen.value;
    // it is not offered any more: who has the say refuses it; another choice would not be theirs
    if (one.selectedIndex < 0) one.add(new Option(chosen.text, chosen.value, false, true));
  }

  // for a moment only: what was marked must compare equal to what comes next
  function flash(one) {
    one.classList.add("fresh");
    setTimeout(() => { one.classList.remove("fresh"); if (!one.getAttribute("class")) one.removeAttribute("class"); }, 1700);
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
      say("cannot be refreshed: " + error.message);
    } finally {
      setTimeout(() => {
        delete region.dataset.busy;
        if (region.dataset.again) { delete region.dataset.again; refresh(region); }
      }, LEAST_MS);
    }
  }

  function heard(topics) {
    const hit = (wanted) => topics.includes("*") || wanted.some((one) => topics.includes(one));
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

  // the next page of this tab takes the place of this one's stream
  function tab() {
    try { return sessionStorage.tab ||= crypto.getRandomValues(new Uint32Array(2)).join("-"); } catch { return ""; }
  }

  // only while somebody looks: a browser has few connections to us for all its tabs
  let stream = null, asking = 0, again = 0;

  function disconnect() {
    if (stream) stream.close();
    clearInterval(asking); clearTimeout(again);
    stream = null;
  }

  function forget_tab() { try { delete sessionStorage.tab; } catch { /* then there was none */ } }

  function connect() {
    const { live, changes } = document.body.dataset;
    disconnect();
    if (!live || document.hidden) return;
    at = at || document.body.dataset.at;  // what changed while the page was on its way is heard of as well
    stream = new EventSource(live + "?tab=" + tab() + "&since=" + encodeURIComponent(at));
    stream.addEventListener("change", (event) => {
      at = event.lastEventId;
      say("live", true);
      if (event.data) heard(event.data.split(" "));
    });
    // a tab that was duplicated: the other one has the name now
    stream.addEventListener("moved", () => { forget_tab(); connect(); });
    stream.onerror = () => {
      if (!stream) return;
      if (stream.readyState !== EventSource.CLOSED) { say("reconnecting"); return; }
      disconnect();
      say("live, by asking", true);
      asking = setInterval(() => poll(changes), POLL_MS);
      again = setTimeout(connect, AGAIN_MS);
      poll(changes);
    };
  }

  async function poll(changes) {
    try {
      const found = await (await get(changes + "?since=" + encodeURIComponent(at))).json();
      at = found.at;
      say("live, by asking", true);
      if (found.topics.length) heard(found.topics);
    } catch (error) { say("not followed: " + error.message); }
  }

  // a sentence for the page that comes next
  const say_next = (text) => { try { sessionStorage.said = text; } catch { /* then it goes unsaid */ } };

  function say_what_was_left() {
    let text = "";
    try { text = sessionStorage.said || ""; delete sessionStorage.said; } catch { return; }
    if (!text) return;
    const banner = document.createElement("p");
    banner.className = "banner said"; banner.setAttribute("role", "status"); banner.textContent = text;
    document.getElementById("main").before(banner);
  }

  const there = (at) => at.toLocaleString(undefined, { timeZoneName: "short" });

  // the times that a text says in UTC, as they are here
  function local(text) {
    const said = [...text.matchAll(/(\d{4}-\d\d-\d\d) (\d\d:\d\d(?::\d\d)?)/g)];
    return said.map(([, day, time]) => new Date(`${day}T${time}Z`)).filter((at) => !isNaN(at)).map(there).join(" to ");
  }

  // the same every time: what is dressed compares equal to what comes next, dressed as well
  function dress(within) {
    for (const one of within.querySelectorAll("time[datetime]:not([title])")) one.title = there(new Date(one.dateTime));
    for (const one of within.querySelectorAll('[title*=" UTC"]:not(time, [data-dressed])')) {
      const here = local(one.title);
      if (here) { one.title += `\n${here}`; one.dataset.dressed = ""; }
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
  document.addEventListener("DOMContentLoaded", () => { dress(document); say_what_was_left(); connect(); });
  return { get, post, refresh, follow, say, say_next, dress, local };
})();
window.Holdfast = Holdfast;
