// Shows what redlock serve sends. All texts are set as text, never as HTML.
"use strict";

const WINDOW_MS = 60000;
const RETRY_MS = 1500;
const find = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);
const wanted = {
  sort: asked.get("sort") || "wait",
  filter: asked.get("filter") || "",
  page: Number(asked.get("page")) || 0,
  lock: asked.get("lock"),
};
const rows = new Map();
let stream = null;
let last = null; // the last message, and when it arrived
let trouble = "";

// ---- words ------------------------------------------------------------------------------------

function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10000) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} min ${s % 60} s`;
  const h = Math.floor(m / 60);
  return h < 48 ? `${h} h ${m % 60} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
}

const counted = (number, one, many) => `${number} ${number === 1 ? one : many}`;

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/// A color that stays the same for the same holder.
function color(owner) {
  let hash = 7;
  for (const c of owner || "") hash = (hash * 31 + c.codePointAt(0)) % 9973;
  return `c${hash % 8}`;
}

// ---- the connection ---------------------------------------------------------------------------

function address() {
  const query = new URLSearchParams({ sort: wanted.sort, page: String(wanted.page) });
  if (wanted.filter) query.set("filter", wanted.filter);
  if (wanted.lock !== null) query.set("lock", wanted.lock);
  return query.toString();
}

/// Opens the stream of what this page shows, again and again.
async function open() {
  if (stream) stream.abort();
  const own = new AbortController();
  stream = own;
  history.replaceState(null, "", `?${address()}`);
  while (!own.signal.aborted && !document.hidden) {
    try {
      const reply = await fetch(`events?${address()}`, { signal: own.signal });
      if (reply.status === 401) return askForToken();
      if (!reply.ok) throw new Error(await reply.text());
      await read(reply.body.getReader());
      trouble = "redlock serve has closed the connection.";
    } catch (error) {
      if (own.signal.aborted) return;
      const silent = error instanceof TypeError;
      trouble = silent ? "redlock serve cannot be reached." : String(error.message);
    }
    await new Promise((later) => setTimeout(later, RETRY_MS));
  }
}

async function read(reader) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const parts = text.split("\n\n");
    text = parts.pop();
    // Only the newest one matters.
    const news = parts.filter((part) => part.startsWith("data: ")).pop();
    if (news) show(JSON.parse(news.slice(6)));
  }
}

function askForToken() {
  find("login").hidden = false;
  find("content").hidden = true;
  put(find("verdict"), "A token is required");
  find("token").focus();
}

async function login(event) {
  event.preventDefault();
  const reply = await fetch("login", { method: "POST", body: find("token").value });
  find("token").value = "";
  if (!reply.ok) return put(find("login-problem"), "Wrong token.");
  find("login").hidden = true;
  open();
}

// ---- what is shown ----------------------------------------------------------------------------

function show(news) {
  last = { news, at: performance.now() };
  trouble = "";
  document.body.dataset.round = news.overview.round;
  find("content").hidden = false;
  showVerdict(news.overview);
  showFigures(news);
  showNodes(news.nodes);
  showLocks(news);
  showNotes(news.notes);
  showDetail(news);
  checkAge();
}

function showVerdict(all) {
  put(find("verdict"), all.verdict);
  find("verdict").className = `verdict ${all.level}`;
  const mark = { good: "", warn: "(!) ", bad: "(!!) " }[all.level];
  document.title = `${mark}${all.waiters} waiting · redlock`;
}

/// The longest wait of this page; there may be longer ones on others, or among unknown locks.
function longestWait(longest, all) {
  if (!longest) return all.waiters ? "not known" : "none";
  const whole = wanted.sort === "wait" && wanted.page === 0 && !wanted.filter && !all.gaps;
  return whole ? span(longest) : `≥ ${span(longest)}`;
}

function showFigures(news) {
  const all = news.overview;
  const longest = Math.max(0, ...news.locks.map((lock) => lock.oldest_wait_ms || 0));
  const figures = [
    ["Locks held", String(Math.max(all.locks, all.told_locks))],
    ["Requests waiting", String(all.waiters)],
    ["Longest wait", longestWait(longest, all)],
    ["Grants per second", all.grants_per_s.toFixed(1)],
  ];
  const list = find("figures");
  while (list.children.length < figures.length) {
    const one = make("div");
    one.append(make("dt"), make("dd"));
    list.append(one);
  }
  figures.forEach(([name, value], place) => {
    const [dt, dd] = list.children[place].children;
    put(dt, name);
    put(dd, value);
  });
}

function showNodes(nodes) {
  const list = find("nodes");
  while (list.children.length > nodes.length) list.lastChild.remove();
  nodes.forEach((node, place) => {
    let card = list.children[place];
    if (!card) {
      card = make("li");
      card.append(make("p", "name"), make("p", "state"), make("p", "more"));
      list.append(card);
    }
    const [name, line, more] = card.children;
    card.className = node.level;
    put(name, node.node);
    put(line, node.state);
    const facts = [];
    if (node.up) {
      facts.push(counted(node.locks, "lock", "locks"), `${node.waiters} waiting`);
      if (node.grants_per_s !== undefined) facts.push(`${node.grants_per_s.toFixed(1)} grants/s`);
      if (Math.abs(node.clock_lead_us) > 1e6) facts.push(`clock ${(node.clock_lead_us / 1e6).toFixed(1)} s off`);
      if (node.warnings.length) facts.push(counted(node.warnings.length, "warning", "warnings"));
      if (node.sweep_problem) facts.push(node.sweep_problem);
    }
    put(more, facts.join(" · "));
    card.title = node.warnings.join("\n");
  });
}

function holderText(lock) {
  if (!lock.holders || !lock.holders.length) return lock.state;
  const [first, ...rest] = lock.holders;
  const name = first.owner || "an unnamed client";
  return rest.length ? `${name} and ${rest.length} more` : name;
}

function facts(lock) {
  const first = (lock.holders || [])[0];
  const parts = [];
  if (first && lock.nodes > 1) parts.push(`${first.nodes} of ${lock.nodes} nodes`);
  if (lock.state !== "held" && first) parts.push(lock.state);
  if (lock.mode === "shared") parts.push("shared");
  if (lock.stale) parts.push(`seen ${span(lock.seen_ms)} ago`);
  return parts.join(" · ");
}

function newRow(id) {
  const item = make("li");
  const button = make("button", "lock");
  button.type = "button";
  button.addEventListener("click", () => select(String(id)));
  const key = make("span", "key");
  const who = make("span", "who");
  const lease = make("span", "lease");
  const wait = make("span", "wait");
  const line = make("span", "timeline");
  for (const part of [who, lease, wait]) part.append(make("span"), make("span", "sub"));
  button.append(key, who, lease, wait, line);
  item.append(button);
  return { item, button, key, who, lease, wait, line };
}

function showRow(row, lock, now) {
  const first = (lock.holders || [])[0];
  row.button.className = `lock${first || lock.waiters ? "" : " idle"}${lock.stale ? " stale" : ""}`;
  put(row.key, lock.key);
  put(row.who.children[0], holderText(lock));
  put(row.who.children[1], facts(lock));
  put(row.lease.children[0], first ? `${span(first.ttl_ms)} left` : "");
  put(row.lease.children[1], first ? `held ${span(first.age_ms)}` : "");
  put(row.wait.children[0], lock.waiters ? `${lock.waiters} waiting` : "");
  row.wait.children[0].className = lock.waiters ? "waiting" : "";
  put(row.wait.children[1], lock.waiters ? `for ${span(lock.oldest_wait_ms)}` : "");
  drawLine(row.line, lock, now - WINDOW_MS, now, false);
}

/// Draws holds and waits between two times.
function drawLine(line, lock, from, to, named) {
  const spans = [];
  for (const hold of lock.holds || []) spans.push([hold, color(hold.owner), hold.owner || "unnamed"]);
  for (const wait of lock.waits || []) spans.push([wait, "waits", `up to ${wait.most} waiting`]);
  while (line.children.length > spans.length) line.lastChild.remove();
  while (line.children.length < spans.length) line.append(make("i"));
  spans.forEach(([one, className, title], place) => {
    const mark = line.children[place];
    const start = Math.max(one.start, from);
    const end = Math.min(one.end === null ? to : one.end, to);
    mark.className = className;
    mark.title = title;
    mark.style.left = `${(100 * (start - from)) / (to - from)}%`;
    mark.style.width = `${(100 * Math.max(0, end - start)) / (to - from)}%`;
    put(mark, named && className !== "waits" ? title : "");
  });
}

function showLocks(news) {
  const list = find("locks");
  const present = new Set(news.locks.map((lock) => lock.id));
  for (const [id, row] of rows) {
    if (!present.has(id)) {
      row.item.remove();
      rows.delete(id);
    }
  }
  news.locks.forEach((lock, place) => {
    if (!rows.has(lock.id)) rows.set(lock.id, newRow(lock.id));
    const row = rows.get(lock.id);
    showRow(row, lock, news.overview.time_ms);
    if (list.children[place] !== row.item) moveTo(list, row, place);
  });
  showPaging(news);
}

/// A row that is moved keeps the focus.
function moveTo(list, row, place) {
  const focused = document.activeElement === row.button;
  list.insertBefore(row.item, list.children[place] || null);
  if (focused) row.button.focus({ preventScroll: true });
}

function showPaging(news) {
  const all = news.overview;
  find("none").hidden = news.locks.length > 0;
  const empty = wanted.filter ? "No lock matches the filter." : "Nobody holds a lock, and nobody waits.";
  const looking = all.blind ? "Not known: too few nodes list their locks." : "Looking for locks…";
  put(find("none"), all.complete || (wanted.filter && !all.blind) ? empty : looking);
  find("paging").hidden = news.pages < 2 && news.page === 0;
  put(find("page"), `Page ${news.page + 1} of ${news.pages}, ${news.matching} locks`);
  find("previous").disabled = news.page === 0;
  find("next").disabled = news.page + 1 >= news.pages;
  const gaps = all.gaps || "";
  find("gaps").hidden = !gaps;
  const why = all.blind ? "The list may be old and incomplete" : "There are too many locks to query all of them at once";
  put(find("gaps"), gaps && `${why}: ${gaps}. The order and the filter use what is known.`);
  let title = "Locks";
  if (all.overflow) title += ` (only ${all.locks} of them are listed)`;
  if (all.too_long_names) title += " (names of more than 4096 bytes are not listed)";
  put(find("locks-title"), title);
}

function showNotes(notes) {
  const box = find("notes");
  box.hidden = notes.length === 0;
  const text = JSON.stringify(notes);
  if (box.dataset.shown === text) return;
  box.dataset.shown = text;
  const parts = [];
  for (const note of notes) {
    if (note.kind === "heading" || !parts.length) {
      parts.push(make("div"));
      if (note.kind === "heading") parts.at(-1).append(make("h2", "", note.text));
    }
    if (note.kind !== "heading") parts.at(-1).append(make("p", note.kind, note.text));
  }
  for (const part of parts) if (part.children.length > 6) part.className = "wide";
  box.replaceChildren(...parts);
}

// ---- one lock ---------------------------------------------------------------------------------

function select(id) {
  wanted.lock = id;
  open();
}

function showDetail(news) {
  const box = find("detail");
  const lock = news.detail;
  if (wanted.lock === null) return;
  if (!box.open) box.showModal();
  if (!lock) {
    put(find("detail-title"), "This lock is free, and nobody has used it for a while.");
    for (const id of ["detail-state", "detail-line", "detail-holders", "detail-queue", "detail-history"]) find(id).replaceChildren();
    return;
  }
  const now = news.overview.time_ms;
  put(find("detail-title"), lock.key);
  const queue = lock.waiters ? `${lock.waiters} waiting, the first for ${span(lock.oldest_wait_ms)}` : "nobody waits";
  const old = lock.stale ? ` · seen ${span(lock.seen_ms)} ago` : "";
  put(find("detail-state"), `${lock.state}${lock.mode ? `, ${lock.mode}` : ""} · ${queue}${old}`);
  drawLine(find("detail-line"), lock, now - WINDOW_MS, now, true);
  const holders = (lock.holders || []).map((one) => {
    const item = make("li");
    item.append(make("bdi", "", one.owner || "an unnamed client"),
      ` · lease ${span(one.ttl_ms)} left · held for ${span(one.age_ms)} · ${one.nodes} of ${lock.nodes} nodes · fence ${one.fence}`);
    return item;
  });
  if (!holders.length) holders.push(make("li", "faint", "none"));
  find("detail-holders").replaceChildren(...holders);
  find("detail-queue").replaceChildren(...queueOf(lock, news.overview.stale_ms));
  find("detail-history").replaceChildren(...pastOf(lock, now));
}

/// Who waits, in order of arrival.
function queueOf(lock, stale) {
  if (!lock.waiters) return [make("li", "faint", "nobody waits")];
  if (lock.queue === undefined) return [make("li", "faint", "loading the queue…")];
  if (lock.queue === null) return [make("li", "faint", "this version of the module does not report who waits")];
  const items = lock.queue.map((one) => {
    const item = make("li");
    const mode = one.mode === "shared" ? ", shared" : "";
    item.append(make("bdi", "", one.owner || "an unnamed client"), ` · waiting for ${span(one.wait_ms)}${mode}`);
    return item;
  });
  if (lock.waiters > items.length) items.push(make("li", "faint", `and ${lock.waiters - items.length} more`));
  if (lock.queue_seen_ms > stale) items.push(make("li", "faint", `seen ${span(lock.queue_seen_ms)} ago`));
  return items;
}

function pastOf(lock, now) {
  const items = (lock.holds || []).map((hold) => {
    const item = make("li");
    const length = (hold.end === null ? now : hold.end) - hold.start;
    const open = lock.stale || lock.state === "unknown" ? "held when last seen" : "holds it now";
    const when = hold.end === null ? open : `ended ${span(now - hold.end)} ago`;
    item.append(make("bdi", "", hold.owner || "an unnamed client"), ` · ${span(length)}, ${when} · fence ${hold.fence}`);
    return item;
  });
  if (!items.length) return [make("li", "faint", "nothing yet")];
  if (lock.holds_seen > items.length) items.push(make("li", "faint", `and ${lock.holds_seen - items.length} before`));
  return items;
}

function closeDetail() {
  if (wanted.lock === null) return;
  const row = rows.get(Number(wanted.lock));
  wanted.lock = null;
  open();
  if (row) row.button.focus();
}

// ---- age --------------------------------------------------------------------------------------

/// What is old is never shown as if it were new.
function checkAge() {
  const age = last ? performance.now() - last.at + last.news.overview.age_ms : 0;
  const old = last ? age > last.news.overview.stale_ms : trouble !== "";
  document.body.classList.toggle("old", old);
  find("stale").hidden = !old;
  if (old && last) put(find("stale"), `Old data: this was ${span(age)} ago. ${trouble}`);
  else if (old) put(find("stale"), trouble);
  if (last) put(find("live"), old ? "" : `live, asked every ${span(last.news.overview.interval_ms)}`);
}

// ---- keys and buttons -------------------------------------------------------------------------

function move(step) {
  const buttons = [...document.querySelectorAll(".lock")];
  const place = buttons.indexOf(document.activeElement);
  const next = place < 0 ? (step > 0 ? 0 : buttons.length - 1) : place + step;
  if (buttons[next]) buttons[next].focus();
}

function turn(step) {
  if (!last) return;
  const page = wanted.page + step;
  if (page < 0 || page >= last.news.pages) return;
  wanted.page = page;
  open();
}

function nextOrder() {
  const select = find("sort");
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.dispatchEvent(new Event("change"));
}

const KEYS = {
  "/": () => find("filter").focus(),
  ArrowDown: () => move(1),
  j: () => move(1),
  ArrowUp: () => move(-1),
  k: () => move(-1),
  s: nextOrder,
  n: () => turn(1),
  p: () => turn(-1),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || find("detail").open) return;
  const typing = event.target.matches("input, select");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (!KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
find("filter").value = wanted.filter;
find("filter").addEventListener("input", (event) => {
  wanted.filter = event.target.value;
  wanted.page = 0;
  open();
});
find("sort").value = wanted.sort;
find("sort").addEventListener("change", (event) => {
  wanted.sort = event.target.value;
  wanted.page = 0;
  open();
});
find("previous").addEventListener("click", () => turn(-1));
find("next").addEventListener("click", () => turn(1));
find("detail").addEventListener("close", closeDetail);
find("close").addEventListener("click", () => find("detail").close());
find("login").addEventListener("submit", login);
// A browser has few connections for one server: pages that nobody sees give theirs back.
document.addEventListener("visibilitychange", () => (document.hidden ? stream && stream.abort() : open()));
setInterval(checkAge, 250);
open();
