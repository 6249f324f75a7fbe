// What the pages do beyond links and forms: the remaining time runs down, an order's page changes by itself, and moments
// are told in the visitor's own time zone. Without this script everything else works.
"use strict";

const TICK_MS = 250;
const RECONNECT_MS = 3000;
const FINAL = new Set(["COMPLETED", "CLOSED"]);
const language = document.documentElement.lang;

function say(sentence) {
  const announcer = document.getElementById("announcer");
  if (announcer && announcer.textContent !== sentence) announcer.textContent = sentence;
}

function tellOwnTime(root) {
  const format = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium" });
  for (const time of root.querySelectorAll("time[data-ms]")) {
    time.textContent = format.format(new Date(Number(time.dataset.ms)));
  }
}

// ------------------------------------------------------------------------------------------------ the remaining time

// How far the server's clock is ahead of this one; corrected whenever the server says what time it has.
let serverAheadMs = 0;

function learnServerTime(nowMs) {
  serverAheadMs = nowMs - Date.now();
}

function clockText(seconds) {
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(seconds / 60);
  const text = two(minutes % 60) + ":" + two(seconds % 60);
  return minutes < 60 ? two(minutes) + ":" + two(seconds % 60) : Math.floor(minutes / 60) + ":" + text;
}

let shownSeconds = null;

function tick() {
  const timer = document.getElementById("remaining");
  if (!timer) return;
  const leftMs = Number(timer.dataset.expiresMs) - (Date.now() + serverAheadMs);
  const seconds = Math.max(0, Math.ceil(leftMs / 1000));
  if (seconds === shownSeconds) return;
  timer.textContent = clockText(seconds);
  timer.parentElement.classList.toggle("urgent", seconds <= 60);
  const isOver = seconds === 0;
  document.getElementById("time-over").hidden = !isOver;
  for (const button of document.querySelectorAll("form.pay button")) button.disabled = isOver;
  if (shownSeconds !== null && shownSeconds > 60 && seconds <= 60) say(timer.dataset.oneMinute);
  if (shownSeconds !== 0 && isOver) say(timer.dataset.timeOver);
  shownSeconds = seconds;
}

// ------------------------------------------------------------------------------------- the page that changes by itself

let source = null;
let isLooking = false;
let again = null;

async function lookAgain() {
  if (isLooking) return;
  isLooking = true;
  clearTimeout(again);
  try {
    const answer = await fetch(location.pathname, { headers: { Accept: "text/html" }, cache: "no-store" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("order");
    if (answer.ok && fresh && !answer.redirected) {
      show(fresh, page.title);
    } else {
      location.reload(); // signed out, or gone: the server's own page says which
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    again = setTimeout(lookAgain, RECONNECT_MS); // the network is away
  } finally {
    isLooking = false;
  }
}

function show(fresh, title) {
  const old = document.getElementById("order");
  const hasChanged = old.dataset.status !== fresh.dataset.status;
  const hadFocus = old.contains(document.activeElement);
  old.replaceWith(fresh);
  document.title = title;
  shownSeconds = null;
  begin(fresh);
  if (hasChanged) say(fresh.dataset.announcement);
  if (hadFocus) fresh.querySelector("h1").focus();
}

function follow(order) {
  if (source || !order.dataset.events) return;
  source = new EventSource(order.dataset.events);
  const offline = document.getElementById("offline");
  source.addEventListener("open", () => { offline.hidden = true; });
  source.addEventListener("order", (event) => {
    const told = JSON.parse(event.data);
    learnServerTime(told.now_ms);
    if (FINAL.has(told.order.status)) stopFollowing();
    const shown = document.getElementById("order");
    if (String(told.order.version) !== shown.dataset.version) lookAgain();
  });
  source.addEventListener("error", () => {
    offline.hidden = false;
    if (source && source.readyState === EventSource.CLOSED) {
      // Refused, and the browser has given up: the server may only be busy.
      stopFollowing();
      setTimeout(lookAgain, RECONNECT_MS);
    }
  });
}

function stopFollowing() {
  if (source) source.close();
  source = null;
}

function begin(order) {
  tellOwnTime(order);
  const timer = document.getElementById("remaining");
  if (timer) learnServerTime(Number(timer.dataset.nowMs));
  tick();
  follow(order);
  if (order.dataset.lookAgainMs) again = setTimeout(lookAgain, Number(order.dataset.lookAgainMs));
}

tellOwnTime(document);
const order = document.getElementById("order");
if (order) {
  begin(order);
  setInterval(tick, TICK_MS);
  // A page that slept, or comes out of the browser's memory, may have missed everything.
  document.addEventListener("visibilitychange", () => { if (!document.hidden) lookAgain(); });
  window.addEventListener("pageshow", (event) => { if (event.persisted) lookAgain(); });
  window.addEventListener("pagehide", stopFollowing);
}
