// Locks of the redislock module for node-redis and ioredis. index.d.ts describes the interface.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { ANSWER, Link, cancelled, limited, sendingOf } from "./connections.js";
import { Busy, InvalidRequest, Lost, Misconfigured, Unavailable } from "./errors.js";
import { acquireCommand, checked, command, each, now, stamp, validUntil } from "./request.js";

export {
    Busy,
    Cancelled,
    InvalidRequest,
    LockError,
    Lost,
    Misconfigured,
    Quarantined,
    Unavailable,
} from "./errors.js";

const PATIENCE = 30_000; // ms without a server after which `wait: null` gives up

// Every entry of an owner is a Held, and is released once.
class Held {
    #hold;
    #isReleased = false;

    constructor(hold) {
        this.#hold = hold;
    }
    get fence() {
        return this.#hold.fence;
    }
    get signal() {
        return this.#hold.signal;
    }
    get lost() {
        return this.#hold.lost;
    }
    get validFor() {
        return this.#hold.validFor;
    }
    check() {
        this.#hold.check();
    }
    guard(...words) {
        return this.#hold.guard(...words);
    }
    async release() {
        if (this.#isReleased) return false;
        this.#isReleased = true;
        return this.#hold.leave();
    }

    static isReleased = (held) => held.#isReleased;
}

// What is known of a lock that is held, by the clock of this host.
class Hold {
    #link;
    #request;
    #token;
    #fence;
    #ttl;
    #sent = 0; // when the last confirmed command was sent
    #validUntil = 0;
    #entries = 1;
    #left = null; // at the end, by loss or release: ms of validity that were left
    #controller = null; // made when the holder asks for the signal
    #alarm;
    #renewal;

    constructor(link, request, token, reply, sent) {
        this.#link = link;
        this.#request = request;
        this.#token = token;
        this.#ttl = request.ttl;
        const fences = each(request, reply);
        this.#fence = fences[0];
        if (!fences.every((one) => Number.isSafeInteger(one) && one === this.#fence))
            throw new Misconfigured(`the server's reply ${JSON.stringify(reply)} is not a fence`);
        this.#confirm(sent, request.ttl);
    }

    get fence() {
        return this.#fence;
    }
    get signal() {
        this.#controller ??= new AbortController();
        if (this.#left !== null) this.#abort();
        return this.#controller.signal;
    }
    get lost() {
        return this.#isLostAt(now());
    }
    get validFor() {
        return this.#left === null ? Math.max(0, this.#validUntil - now()) : 0;
    }
    check() {
        if (this.lost) throw new Lost("the lock is no longer held");
    }

    async guard(...words) {
        this.check();
        const key = this.#request.keys[0];
        const inner = words.map((word) => (typeof word === "number" ? `${word}` : word));
        if (!inner.every((word) => typeof word === "string" || Buffer.isBuffer(word)))
            throw new InvalidRequest("a command has strings, Buffers and numbers");
        try {
            return await this.#link.call(key, ["LOCK.GUARD", key, this.#token, ...inner]);
        } catch (error) {
            if (error instanceof Lost) this.#end();
            throw error;
        }
    }

    async leave() {
        const time = now();
        const wasHeld = !this.#isLostAt(time);
        if (--this.#entries > 0) return wasHeld;
        this.#end();
        const until = Math.max(time, this.#validUntil) + this.#ttl / 50;
        const released = releaseAll(this.#link, this.#request, this.#token, until, null);
        return wasHeld && (await limited(released, ANSWER).catch(() => null)) !== false;
    }

    // The loss is reported to the holder a little before validity ends.
    get #lossAt() {
        return this.#validUntil - this.#ttl / 10;
    }

    #isLostAt(time) {
        if (time >= this.#lossAt) this.#end(this.#validUntil - time);
        return this.#left !== null;
    }

    // `left`: ms of validity that are left. A loss is final.
    #end(left = 0) {
        if (this.#left !== null) return;
        clearTimeout(this.#alarm);
        clearTimeout(this.#renewal);
        this.#left = Math.max(0, left);
        if (this.#controller) this.#abort();
    }
    #abort() {
        const why = new Lost("the lock is no longer held");
        this.#controller.abort(Object.assign(why, { validFor: this.#left }));
    }

    #confirm(sent, ttl) {
        if (this.#left !== null) return;
        this.#sent = Math.max(this.#sent, sent);
        this.#validUntil = Math.max(this.#validUntil, validUntil(sent, ttl));
    }

    // Sends EXTEND and counts from there. Returns whether this hold is still there.
    async #extend(ttl, options) {
        const sent = stamp();
        const words = command("EXTEND", this.#request, this.#token, `${Math.round(ttl)}`);
        const reply = await this.#link.call(this.#request.keys[0], words, options);
        if (!each(this.#request, reply).every((fence) => fence === this.#fence)) return false;
        this.#confirm(sent, ttl);
        return true;
    }

    // Two timers, so that a renewal without an answer cannot delay the signal of the loss.
    #watch(time = now()) {
        if (this.#isLostAt(time)) return;
        const delay = Math.min(1000, this.#lossAt - time); // the host may sleep
        this.#alarm = setTimeout(() => this.#watch(), delay).unref();
    }
    #renewIn(delay) {
        if (this.#left !== null) return;
        this.#renewal = setTimeout(() => this.#renew(), Math.max(0, delay)).unref();
    }
    async #renew() {
        try {
            const limit = Math.min(ANSWER, Math.max(1, this.#lossAt - stamp()));
            if (!(await this.#extend(this.#ttl, { limit }))) return this.#end();
            this.#renewIn(this.#sent + this.#request.every - stamp());
        } catch {
            this.#renewIn(this.#ttl / 20);
        }
    }

    // After a wait, the reply does not say when the grant was made: a command that is sent now does.
    static async begin(held, signal) {
        let time = now();
        if (held.#validUntil - time < held.#ttl / 2) {
            if (!(await held.#extend(held.#ttl, { signal })))
                throw new Unavailable("the lease ended before the grant arrived");
            time = now();
        }
        if (signal?.aborted) throw cancelled(signal);
        if (held.#isLostAt(time)) throw new Unavailable("the reply took longer than the lease");
        held.#watch(time);
        const { every } = held.#request;
        if (every !== null) held.#renewIn(held.#sent + every - stamp());
        return held;
    }

    // What an owner holds of these keys with this client: all of them, or none (undefined).
    static covering(owner, link, request) {
        owner.holds = owner.holds.filter((held) => !held.lost);
        for (const held of owner.holds) {
            const mine = held.#request;
            const common = request.keys.filter((key) => mine.keys.includes(key)).length;
            if (held.#link !== link || common === 0) continue;
            if (common < request.keys.length)
                throw new InvalidRequest("the owner holds some of these keys: release them first");
            if (mine.shared && (!request.shared || mine.limit !== request.limit))
                throw new InvalidRequest("the owner holds this lock shared: release it first");
            return held;
        }
    }

    // The owner holds these keys already: make sure of it, and for long enough.
    static async enterAgain(held, request) {
        const ttl = Math.max(held.#ttl, request.ttl);
        if (!(await held.#extend(ttl, { signal: request.signal })) || held.#left !== null) {
            held.#end();
            throw new Lost("the owner's hold of this lock was lost");
        }
        held.#ttl = ttl;
        held.#entries++;
    }
}

// RELEASE ALL until it is done or the lease is over: was it held? null: not known.
// A request without an answer (`sending`, null after a grant) may still arrive, so null is not the
// end. But a wait that is released ends with null: once that is here, nothing can come any more.
async function releaseAll(link, request, token, until, sending) {
    const began = stamp();
    const words = command("RELEASE", request, token, "ALL");
    for (let pause = 50; ; pause = Math.min(1000, pause * 2)) {
        const reply = await link.call(request.keys[0], words).catch(() => undefined);
        const held = each(request, reply).every((count) => count > 0);
        const isDone = held || (reply !== undefined && !sending);
        const isOver = stamp() + pause > until;
        if (!isDone && !isOver) await sleep(pause);
        if (isDone || isOver || sending?.isRefused || stamp() - began > ANSWER) sending?.abandon();
        if (isDone || isOver || sending?.isRefused) return isDone ? held : null;
    }
}

// One request with a token of its own, which is never used again. Returns null if it is busy.
async function attempt(link, request, deadline) {
    const { signal, wait } = request;
    const token = randomUUID();
    const left = () => (deadline === null ? null : Math.max(0, deadline - performance.now()));
    let sent = null;
    const words = () => {
        sent = stamp();
        return acquireCommand(request, token, left());
    };
    const end = deadline === null ? null : deadline + ANSWER;
    const options = { signal, turn: left(), limit: null, end, isAttempt: true };
    const ask = wait === 0 ? link.ask : link.askWaiting;
    const reply = await ask.call(link, request.keys[0], words, options).catch((error) => {
        const sending = sendingOf(error);
        if (sending) releaseAll(link, request, token, stamp() + request.ttl, sending);
        throw error;
    });
    if (reply === null) return null;
    try {
        return await Hold.begin(new Hold(link, request, token, reply, sent), signal);
    } catch (error) {
        releaseAll(link, request, token, stamp() + request.ttl, null);
        throw error;
    }
}

// Attempt after attempt until the lock is granted or the wait is over.
async function granted(link, request) {
    const { signal, wait } = request;
    const deadline = wait === null ? null : performance.now() + wait;
    let troubleSince = null;
    let pause = 50;
    for (;;) {
        const began = performance.now();
        let trouble;
        try {
            link.checkOpen();
            const held = await attempt(link, request, deadline);
            if (held) return held;
            if (deadline !== null && performance.now() >= deadline - 2)
                throw new Busy(`another client holds the lock after a wait of ${wait} ms`);
            trouble = new Unavailable("the server ended the wait early"); // CLIENT UNBLOCK
        } catch (error) {
            if (!(error instanceof Unavailable)) throw error;
            trouble = error;
        }
        const ended = performance.now();
        const wasInQueue = ended - began > 3 * ANSWER;
        if (troubleSince === null || wasInQueue) [troubleSince, pause] = [ended, 50];
        const rest = trouble.retryAfter ?? pause * (0.5 + Math.random() / 2);
        const patient = Math.max(troubleSince, link.openedAt) + PATIENCE;
        if (ended + rest >= (deadline ?? patient)) throw trouble;
        pause = Math.min(1000, pause * 2);
        await sleep(rest, null, { signal }).catch(() => {
            throw cancelled(signal);
        });
    }
}

export class Owner {
    holds = [];
}

export async function acquire(client, name, options = {}) {
    const request = checked(name, options);
    const { owner, signal } = request;
    const link = Link.of(client);
    if (signal?.aborted) throw cancelled(signal);
    let hold = owner && Hold.covering(owner, link, request);
    if (hold) {
        await Hold.enterAgain(hold, request);
    } else {
        hold = await granted(link, request);
        owner?.holds.push(hold);
    }
    return new Held(hold);
}

export async function withLock(client, name, options, work) {
    const held = await acquire(client, name, options);
    const [done] = await Promise.allSettled([(async () => work(held))()]);
    const isFailed = done.status === "rejected";
    const wasHeld = Held.isReleased(held) || (await held.release()); // the work may have done it
    if (isFailed && (wasHeld || done.reason instanceof Lost)) throw done.reason;
    if (!wasHeld)
        throw new Lost("the lock was lost before it was released", { cause: done.reason });
    return done.value;
}

export function close(client) {
    Link.of(client).close();
}
