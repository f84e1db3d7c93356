// A request, checked, and the commands that it leads to.

import os from "node:os";
import { performance } from "node:perf_hooks";
import { InvalidRequest } from "./errors.js";

// Linux: time since the boot, which goes on while the host sleeps, in steps of 10 ms.
const sleeps = process.platform === "linux";
export const now = sleeps ? () => os.uptime() * 1000 : () => performance.now();
const STEP = sleeps ? 10 : 0;

const isMs = (value, least, most) => typeof value === "number" && value >= least && value <= most;

export function checked(name, options = {}) {
    const {
        ttl = 10_000,
        wait = null,
        shared = false,
        limit,
        renew = true,
        renewEvery,
        owner,
        label,
    } = options;
    const keys = Array.isArray(name) ? [...name] : [name];
    if (!keys.every((key) => (typeof key === "string" || Buffer.isBuffer(key)) && key.length > 0)) {
        throw new InvalidRequest(
            "the name of a lock is a string or Buffer that is not empty, or an array of them",
        );
    }
    if (keys.length < 1 || keys.length > 1000 || new Set(keys.map(String)).size < keys.length) {
        throw new InvalidRequest("a lock has 1 to 1000 names, none twice");
    }
    if (!isMs(ttl, 10, 604_800_000))
        throw new InvalidRequest("ttl must be from 10 to 604800000 ms");
    if (wait !== null && !isMs(wait, 0, 1e12)) {
        throw new InvalidRequest(
            "wait must be 0 (try once) or more ms, or null (until it is free)",
        );
    }
    if (limit !== undefined && !(shared && Number.isInteger(limit) && isMs(limit, 1, 1_000_000))) {
        throw new InvalidRequest("limit must be from 1 to 1000000 and needs shared: true");
    }
    if (renewEvery !== undefined && !isMs(renewEvery, 1, ttl / 2)) {
        throw new InvalidRequest("renewEvery must be at least 1 ms and at most half of the ttl");
    }
    return {
        keys,
        ttl,
        wait,
        shared,
        limit,
        every: renew ? (renewEvery ?? ttl / 3) : null,
        owner,
        label,
    };
}

function command(request, verb, token, ...rest) {
    const { keys } = request;
    const head =
        keys.length === 1
            ? [`LOCK.${verb}`, keys[0]]
            : [`LOCK.M${verb}`, `${keys.length}`, ...keys];
    return [...head, token, ...rest];
}
const ms = (value) => `${Math.max(1, Math.round(value))}`;

export function acquireCommand(request, token, left) {
    const options = ["ONCE"];
    if (request.shared)
        options.push("SHARED", ...(request.limit ? ["LIMIT", `${request.limit}`] : []));
    if (request.label !== undefined) options.push("OWNER", request.label);
    if (left === null || left >= 1)
        options.push("BLOCK", left === null ? "0" : `${Math.floor(left)}`);
    return command(request, "ACQUIRE", token, ms(request.ttl), ...options);
}
export const extendCommand = (request, token, ttl) => command(request, "EXTEND", token, ms(ttl));
export const releaseCommand = (request, token) => command(request, "RELEASE", token, "ALL");

export const isFence = (reply, fence) =>
    Array.isArray(reply) ? reply.every((one) => one === fence) : reply === fence;

// The lease began after the sending, so it does not end before this.
export const validUntil = (sent, ttl) => sent + ttl - ttl / 100 - 2 - STEP;
