// SPDX-License-Identifier: Apache-2.0
// The calendar: mouse or keys select a time span of a row and book it, or move the end of a bar; the line of the current time moves.
"use strict";

(() => {
  const MINUTE = 60000;
  let board, cursor, sheet, chosen = null; // {lane, start, end} or {bar, start, end}

  const number = (name) => Number(board.dataset[name]);
  const snapped = (ms) => Math.round(ms / number("snap")) * number("snap");
  const wire = (ms) => new Date(ms).toISOString().slice(0, 16).replace("T", " ");

  function time(lane, x) {
    const box = lane.getBoundingClientRect();
    const part = Math.min(Math.max((x - box.left) / box.width, 0), 1);
    return snapped(number("start") + part * (number("end") - number("start")));
  }

  function soonest() { return Math.ceil(Date.now() / MINUTE) * MINUTE; }

  function length(ms) {
    const minutes = Math.round(ms / MINUTE), hours = Math.floor(minutes / 60);
    if (hours >= 48) return `${Math.round(hours / 24)} days`;
    return hours ? `${hours} h${minutes % 60 ? ` ${minutes % 60} min` : ""}` : `${minutes} min`;
  }

  // draws the selection over its row, and announces it to screen readers
  function draw() {
    if (!chosen) { cursor.hidden = true; return; }
    const lane = chosen.lane, box = lane.getBoundingClientRect(), all = board.getBoundingClientRect();
    const width = number("end") - number("start");
    const place = (ms) => Math.min(Math.max((ms - number("start")) / width, 0), 1) * box.width;
    cursor.hidden = false;
    cursor.style.left = `${box.left - all.left + place(chosen.start)}px`;
    cursor.style.width = `${Math.max(place(chosen.end) - place(chosen.start), 3)}px`;
    cursor.style.top = `${box.top - all.top}px`;
    cursor.style.height = `${box.height}px`;
    const text = `${wire(chosen.start)} to ${wire(chosen.end)} UTC, ${length(chosen.end - chosen.start)}`;
    cursor.dataset.text = text;
    document.getElementById("cursor-text").textContent = `${chosen.name}: ${text}`;
  }

  function choose(lane, start, end, bar) {
    const least = number("snap");
    const from = bar ? start : Math.max(start, soonest());
    chosen = { lane, bar, name: (bar || lane).dataset.name, start: from, end: Math.max(end, from + (bar ? MINUTE : Math.min(least, end - start || least))) };
    draw();
  }

  function forget() { chosen = null; draw(); }

  async function open(address) {
    try {
      const answer = await Holdfast.get(address + (address.includes("?") ? "&" : "?") + "part=1");
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      sheet.replaceChildren(...page.body.childNodes);
      sheet.showModal();
      Leases.dress(sheet);
      const first = sheet.querySelector("[autofocus]");
      if (first) { first.focus(); first.select(); }
    } catch (error) { announce(error.message); }
  }

  function confirm() {
    if (!chosen) return;
    const { lane, bar, start, end } = chosen;
    const address = bar
      ? `/console/leases/${bar.dataset.lease}/dates?${new URLSearchParams({ end: wire(end) })}`
      : `/console/leases/new?${new URLSearchParams({ where: lane.dataset.where, start: wire(start), end: wire(end) })}`;
    open(address);
  }

  function announce(message) { document.getElementById("calendar-message").textContent = message; }

  // the click at the end of a drag must not open the lease; later clicks must
  function ignoreClick() {
    const stop = (click) => click.preventDefault();
    addEventListener("click", stop, { once: true, capture: true });
    setTimeout(() => removeEventListener("click", stop, { capture: true }));
  }

  function begin(event) {
    if (event.button !== 0 || event.pointerType === "touch" || board.dataset.books === undefined) return;
    const lane = event.target.closest(".lane"), bar = event.target.closest("a[data-lease]");
    if (!lane || (bar ? !event.target.closest(".grip") : lane.dataset.where === undefined)) return;
    event.preventDefault();
    const from = bar ? Number(bar.dataset.from) : time(lane, event.clientX);
    const moved = (to) => {
      const here = document.getElementById(lane.id); // a refresh may have replaced or removed the row
      if (!here) { forget(); return; }
      const at = time(here, to.clientX);
      if (bar) choose(here, from, at, bar);
      else choose(here, Math.min(from, at), Math.max(from, at));
    };
    const stop = (to) => {
      removeEventListener("pointermove", moved);
      removeEventListener("pointerup", stop);
      removeEventListener("pointercancel", stop);
      if (to.type === "pointercancel") { forget(); return; }
      if (bar) ignoreClick();
      if (!bar && Math.abs(to.clientX - event.clientX) < 4) { forget(); lane.focus(); return; }
      moved(to);
      confirm();
    };
    addEventListener("pointermove", moved);
    addEventListener("pointerup", stop);
    addEventListener("pointercancel", stop);
  }

  function onRow(event, lane) {
    const step = number("snap");
    const now = chosen && chosen.lane === lane && !chosen.bar ? chosen : null;
    const way = { ArrowLeft: -step, ArrowRight: step }[event.key];
    if (way !== undefined) {
      if (!now) {
        const first = snapped(Math.max(soonest() + step / 2, number("start")));
        choose(lane, first, first + step);
      }
      else if (event.shiftKey) choose(lane, now.start, Math.max(now.end + way, now.start + step));
      else choose(lane, now.start + way, now.end + way);
    } else if (event.key === "Enter" && now) confirm();
    else if (event.key === "Escape") forget();
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const lanes = [...board.querySelectorAll(".lane[tabindex]")];
      const next = lanes[lanes.indexOf(lane) + (event.key === "ArrowUp" ? -1 : 1)];
      if (!next) return;
      next.focus();
      if (now) choose(next, now.start, now.end);
    } else return;
    event.preventDefault();
  }

  function onBar(event, bar) {
    const now = chosen && chosen.bar && chosen.bar.id === bar.id ? chosen : null;
    const way = { "+": 1, "=": 1, "-": -1, "−": -1 }[event.key];
    if (way && bar.dataset.movable !== undefined) {
      choose(bar.closest(".lane"), Number(bar.dataset.from), (now ? now.end : Number(bar.dataset.to)) + way * number("snap"), bar);
    } else if (event.key === "Enter" && now) confirm();
    else if (event.key === "Escape") forget();
    else return;
    event.preventDefault();
  }

  function tick() {
    const part = (Date.now() - number("start")) / (number("end") - number("start"));
    const line = document.getElementById("now-line");
    line.setAttribute("visibility", part >= 0 && part < 1 ? "visible" : "hidden");
    for (const end of ["x1", "x2"]) line.setAttribute(end, `${Math.min(Math.max(part, 0), 1) * 100}%`);
  }

  document.addEventListener("DOMContentLoaded", () => {
    board = document.getElementById("board");
    cursor = document.getElementById("cursor");
    sheet = document.getElementById("sheet");
    board.addEventListener("pointerdown", begin);
    board.addEventListener("keydown", (event) => {
      if (event.target.matches("a[data-lease]")) onBar(event, event.target);
      else if (event.target.matches(".lane[tabindex]")) onRow(event, event.target);
    });
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[data-dialog], a.book");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      open(link.getAttribute("href"));
    });
    sheet.addEventListener("close", forget);
    document.addEventListener("refreshed", () => {
      if (!chosen) return;
      chosen.lane = document.getElementById(chosen.lane.id);
      if (chosen.lane) draw(); else forget();
    });
    document.addEventListener("lease-done", (event) => { announce(event.detail.message); Holdfast.refresh(document.getElementById("rows")); });
    addEventListener("resize", draw);
    tick();
    setInterval(tick, MINUTE / 6);
  });
})();
