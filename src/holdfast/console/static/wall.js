// SPDX-License-Identifier: Apache-2.0
// The wall: fetches the pieces that changed and replaces only these; arrow keys move between tiles.
"use strict";
(() => {
  const wall = document.getElementById("wall");
  if (!wall) return;
  const LEAST_MS = 500;
  let busy = false, again = false;

  const parse = (html) => new DOMParser().parseFromString(html, "text/html").body.firstElementChild;

  function replace(known, fresh) {
    const place = known.contains(document.activeElement) ? [...known.querySelectorAll("a")].indexOf(document.activeElement) : -1;
    known.replaceWith(fresh);
    if (place >= 0) (fresh.querySelectorAll("a")[place] || fresh.querySelector("a"))?.focus();
  }

  // a server process that does not know the shown version sends all pieces
  function same(known, fresh) {
    const bare = known.cloneNode(true);
    bare.classList.remove("fresh");
    return bare.isEqualNode(fresh);
  }

  // makes these ids the children of a list, in this order; moves as few as possible
  function order(list, ids, pieces) {
    const wanted = new Set(ids);
    for (const child of [...list.children]) if (!wanted.has(child.id)) child.remove();
    let place = list.firstElementChild;
    for (const id of ids) {
      const known = document.getElementById(id);
      if (known && known === place) { place = place.nextElementSibling; continue; }
      const child = known || (pieces[id] && parse(pieces[id]));
      if (child) list.insertBefore(child, place);
    }
  }

  function change(update) {
    const { lists, pieces } = update;
    let changed = 0;
    if (lists.groups) order(document.getElementById("groups"), lists.groups, pieces);
    for (const [id, html] of Object.entries(pieces)) {
      const known = document.getElementById(id);
      if (!known || known.tagName === "SECTION") continue;
      const fresh = parse(html);
      Holdfast.dress(fresh);
      if (same(known, fresh)) continue;
      if (known.tagName === "LI") fresh.classList.add("fresh");
      replace(known, fresh);
      changed += 1;
    }
    for (const [id, ids] of Object.entries(lists)) {
      const list = id !== "groups" && document.getElementById(id);
      if (list) order(list, ids, pieces);
    }
    wall.dataset.version = update.version;
    Holdfast.dress(wall);
    wall.dispatchEvent(new CustomEvent("changed", { detail: changed, bubbles: true }));
  }

  async function fetchChanges() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const mark = wall.dataset.fresh.includes("?") ? "&" : "?";
      const answer = await Holdfast.get(wall.dataset.fresh + mark + "since=" + wall.dataset.version);
      change(await answer.json());
    } catch (error) {
      Holdfast.say("refresh failed: " + error.message);
    } finally {
      setTimeout(() => { busy = false; if (again) { again = false; fetchChanges(); } }, LEAST_MS);
    }
  }

  const STEPS = { ArrowRight: 1, ArrowLeft: -1 };
  wall.addEventListener("keydown", (event) => {
    const tile = event.target.closest(".tile");
    if (!tile || !event.key.startsWith("Arrow")) return;
    const tiles = [...wall.querySelectorAll(".tile")];
    const at = tiles.indexOf(tile);
    let next = tiles[at + (STEPS[event.key] || 0)];
    if (event.key === "ArrowDown") next = tiles.slice(at + 1).find((other) => other.offsetTop > tile.offsetTop && other.offsetLeft >= tile.offsetLeft) || next;
    if (event.key === "ArrowUp") next = tiles.slice(0, at).reverse().find((other) => other.offsetTop < tile.offsetTop && other.offsetLeft <= tile.offsetLeft) || next;
    const link = next && next.querySelector("a");
    if (link) { event.preventDefault(); link.focus(); }
  });

  Holdfast.follow(["hosts", "networks", "leases", "incidents", "alarms", "switches"], fetchChanges);
})();
