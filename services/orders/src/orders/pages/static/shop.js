// What the pages do beyond links and forms: the remaining time runs down, an order's page changes by itself, and moments
// are told in the visitor's own time zone. Without this script everything else works.
"use strict";

const TICK_MS = 250;
const LOOK_MAX_MS = 10_000;
const RETRY_FIRST_MS = 1_000;
const RETRY_MAX_MS = 30_000;
const REJECTIONS = new Set([401, 403, 404]);
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

// What is shown stays until the server says something newer. An error answer says nothing about the order: it is asked
// for again, later and later, and the visitor is told that the page may be old.

let source = null;
let isLooking = false;
let mustLookOnceMore = false;
let again = null;
let failures = 0;
const trouble = { look: false, stream: false };

function tellTrouble(changes) {
  const offline = document.getElementById("offline");
  if (changes.look && !trouble.look) say(offline.textContent);
  Object.assign(trouble, changes);
  offline.hidden = !(trouble.look || trouble.stream);
}

function lookLater(delayMs) {
  clearTimeout(again);
  again = setTimeout(lookAgain, delayMs);
}

// Half of the delay is by chance, so that the pages of a server that comes back do not ask all at once.
function retryLater() {
  const delayMs = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** failures);
  failures += 1;
  lookLater(delayMs / 2 + Math.random() * delayMs / 2);
}

async function lookAgain() {
  if (isLooking) {
    mustLookOnceMore = true; // what changes now may be missing in the answer that is on its way
    return;
  }
  isLooking = true;
  clearTimeout(again);
  try {
    do {
      mustLookOnceMore = false;
      await look();
    } while (mustLookOnceMore);
  } finally {
    isLooking = false;
  }
}

async function look() {
  let answer = null;
  let text = "";
  try {
    const signal = AbortSignal.timeout(LOOK_MAX_MS);
    answer = await fetch(location.pathname, { headers: { Accept: "text/html" }, cache: "no-store", signal });
    text = await answer.text();
  } catch (error) {
    if (!(error instanceof TypeError) && error.name !== "TimeoutError") throw error;
    answer = null; // the network is away
  }
  const page = new DOMParser().parseFromString(text, "text/html");
  const fresh = page.getElementById("order");
  if (answer && answer.ok && fresh && !answer.redirected) {
    tellTrouble({ look: false, stream: trouble.stream && Boolean(fresh.dataset.events) });
    if (!trouble.stream) failures = 0;
    show(fresh, page.title);
  } else if (answer && (answer.redirected || (REJECTIONS.has(answer.status) && page.querySelector(".problem")))) {
    location.reload(); // signed out, or gone: the shop's own page says which
  } else {
    mustLookOnceMore = false;
    tellTrouble({ look: true });
    retryLater();
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
  source.addEventListener("open", () => {
    failures = 0;
    tellTrouble({ stream: false });
    if (trouble.look) lookAgain();
  });
  source.addEventListener("order", (event) => {
    const told = JSON.parse(event.data);
    learnServerTime(told.now_ms);
    if (FINAL.has(told.order.status)) stopFollowing();
    const shown = document.getElementById("order");
    if (isLooking || String(told.order.version) !== shown.dataset.version) lookAgain();
  });
  source.addEventListener("error", () => {
    tellTrouble({ stream: true });
    if (source && source.readyState === EventSource.CLOSED) {
      // Rejected, and the browser has given up: the server may only be busy.
      stopFollowing();
      retryLater();
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
  if (order.dataset.lookAgainMs) lookLater(Number(order.dataset.lookAgainMs));
}

tellOwnTime(document);
const order = document.getElementById("order");
if (order) {
  begin(order);
  setInterval(tick, TICK_MS);
  // A page that slept, or comes out of the browser's memory, may have missed everything.
  document.addEventListener("visibilitychange", () => { if (!document.hidden) lookAgain(); });
  window.addEventListener("online", lookAgain);
  window.addEventListener("pageshow", (event) => { if (event.persisted) lookAgain(); });
  window.addEventListener("pagehide", stopFollowing);
}
