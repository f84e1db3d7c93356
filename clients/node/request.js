// A request, checked, and its commands.

import { existsSync, openSync, readSync } from "node:fs";
import { InvalidRequest } from "./errors.js";

// Leases run on while the host sleeps, so validity is checked by the time since the boot, which does
// so too on Linux. It has steps of 10 ms, and reading it is slow. stamp() is fast and never ahead.
// os.uptime() opens and closes this file at each call, and takes three times as long.
const UPTIME = "/proc/uptime";
const uptime = existsSync(UPTIME) ? openSync(UPTIME) : null;
const STEP = uptime === null ? 0 : 10;
const text = Buffer.alloc(64);
let offset = -Infinity;
export function now() {
    const time =
        uptime === null
            ? performance.now()
            : parseFloat(text.latin1Slice(0, readSync(uptime, text, 0, 64, 0))) * 1000;
    offset = time - performance.now();
    return time;
}
now();
export const stamp = () => performance.now() + offset;

// The lease began after the sending, so it does not end before this.
export const validUntil = (sent, ttl) => sent + ttl - ttl / 100 - 2 - STEP;

const isMs = (value, least, most) => typeof value === "number" && value >= least && value <= most;
const isName = (key) => typeof key === "string" && key.length > 0;

export function checked(name, options) {
    const { ttl = 10_000, wait = null, shared = false, limit, label } = options;
    const { renew = true, renewEvery } = options;
    const keys = Array.isArray(name) ? [...name] : [name];
    const wrong = [
        [!keys.every(isName), "the name of a lock is a string, or an array of strings"],
        [
            keys.length < 1 || keys.length > 1000 || new Set(keys).size < keys.length,
            "a lock has 1 to 1000 names, none twice",
        ],
        [!isMs(ttl, 10, 604_800_000), "ttl must be from 10 to 604800000 ms"],
        [wait !== null && !isMs(wait, 0, 1e12), "wait must be 0 (try once) or more ms, or null"],
        [
            limit !== undefined && !(shared && Number.isInteger(limit) && isMs(limit, 1, 1e6)),
            "limit must be from 1 to 1000000 and needs shared: true",
        ],
        [
            renewEvery !== undefined && !isMs(renewEvery, 1, ttl / 2),
            "renewEvery must be at least 1 ms and at most half of the ttl",
        ],
        [label !== undefined && typeof label !== "string", "label must be a string"],
    ].find(([isWrong]) => isWrong);
    if (wrong) throw new InvalidRequest(wrong[1]);
    const every = renew ? (renewEvery ?? ttl / 3) : null;
    return { ...options, keys, ttl, wait, shared, every };
}

// The replies for each key. A reply of another form has none of them.
export function each({ keys }, reply) {
    const replies = keys.length > 1 ? reply : [reply];
    const isRight = Array.isArray(replies) && replies.length === keys.length;
    return isRight ? replies : keys.map(() => null);
}

export function command(verb, { keys }, token, ...rest) {
    const head = keys.length > 1 ? [`LOCK.M${verb}`, `${keys.length}`] : [`LOCK.${verb}`];
    return [...head, ...keys, token, ...rest];
}

// `left`: ms to wait, null: until the lock is free.
export function acquireCommand(request, token, left) {
    const rest = [`${Math.round(request.ttl)}`, "ONCE"];
    if (request.shared) rest.push("SHARED");
    if (request.limit) rest.push("LIMIT", `${request.limit}`);
    if (request.label !== undefined) rest.push("OWNER", request.label);
    if (left === null) rest.push("BLOCK", "0");
    else if (left >= 1) rest.push("BLOCK", `${Math.floor(left)}`);
    return command("ACQUIRE", request, token, ...rest);
}
