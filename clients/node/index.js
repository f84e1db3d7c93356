// Locks of the redislock module for node-redis and ioredis. index.d.ts describes the interface.

import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { ANSWER, Link, limited } from "./connections.js";
import {
    Busy,
    Cancelled,
    InvalidRequest,
    LockError,
    Lost,
    Misconfigured,
    NoAnswer,
    Quarantined,
    Refused,
    Unavailable,
    explain,
} from "./errors.js";
import {
    acquireCommand,
    checked,
    extendCommand,
    isFence,
    now,
    releaseCommand,
    validUntil,
} from "./request.js";

export {
    Busy,
    Cancelled,
    InvalidRequest,
    LockError,
    Lost,
    Misconfigured,
    Quarantined,
    Unavailable,
};

const PATIENCE = 30_000; // ms without a server after which `wait: null` gives up
const command =
    (words, limit = ANSWER) =>
    () => [words, limit];

// A lock that was granted: what is known of it, by the clock of this host.
class Hold {
    entries = 1;
    #gone = new AbortController();

    constructor(link, request, token, fence, sent) {
        Object.assign(this, { link, request, token, fence, ttl: request.ttl, sent, validUntil: 0 });
        this.confirm(sent, request.ttl);
    }
    confirm(sent, ttl) {
        if (this.signal.aborted) return; // a loss is final
        this.sent = Math.max(this.sent, sent);
        this.validUntil = Math.max(this.validUntil, validUntil(sent, ttl));
    }
    // The holder is told of the loss a little before validity ends.
    get lossAt() {
        return this.validUntil - this.ttl / 10;
    }
    get isLost() {
        if (!this.signal.aborted && now() >= this.lossAt) this.lose(this.validUntil - now());
        return this.signal.aborted;
    }
    get signal() {
        return this.#gone.signal;
    }
    // `left`: ms of validity that are left, for whoever is to be told before the end.
    lose(left = 0) {
        this.#gone.abort(new Lost("the lock is not held any longer", left));
    }

    // Sends EXTEND and counts from there. Returns whether this hold is still there.
    async extend(ttl, limit = ANSWER) {
        const sent = now();
        const words = extendCommand(this.request, this.token, ttl);
        const reply = await this.link.ask(this.request.keys[0], command(words, limit), {
            patience: limit,
        });
        if (!isFence(reply, this.fence)) return false;
        this.confirm(sent, ttl);
        return true;
    }

    // Renews until the lock is lost or released.
    async keep() {
        const { every } = this.request;
        const pause = (until) =>
            sleep(Math.max(0, until - now()), null, { signal: this.signal, ref: false });
        try {
            while (!this.isLost) {
                await pause(
                    every === null ? this.lossAt : Math.min(this.sent + every, this.lossAt),
                );
                while (every !== null && !this.isLost) {
                    try {
                        if (!(await this.extend(this.ttl, Math.min(ANSWER, this.lossAt - now()))))
                            this.lose();
                        break;
                    } catch {
                        await pause(Math.min(now() + this.ttl / 20, this.lossAt));
                    }
                }
            }
            this.lose(this.validUntil - now());
        } catch {
            // the signal ended a pause: lost or released
        }
    }
}

class Held {
    #hold;
    #released = false;

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
        return this.#released || this.#hold.isLost;
    }
    get validFor() {
        return this.#released || this.signal.aborted
            ? 0
            : Math.max(0, this.#hold.validUntil - now());
    }
    check() {
        if (this.lost) throw new Lost("the lock is not held any longer");
    }

    async guard(...words) {
        this.check();
        const { link, request, token } = this.#hold;
        try {
            return await link.ask(
                request.keys[0],
                command(["LOCK.GUARD", request.keys[0], token, ...words.map(argument)]),
            );
        } catch (error) {
            const explained = explain(error, link.followsMaster);
            if (explained instanceof Lost) this.#hold.lose();
            throw explained;
        }
    }

    async release() {
        if (this.#released) return false;
        const hold = this.#hold;
        const wasHeld = !this.lost;
        this.#released = true;
        if (--hold.entries > 0) return wasHeld;
        hold.lose();
        const until = Math.max(now(), hold.validUntil) + hold.ttl / 50;
        const delivered = releaseAll(hold.link, hold.request, hold.token, until, true);
        const answer = await Promise.race([delivered, sleep(ANSWER, null, { ref: false })]);
        return wasHeld && answer !== false;
    }

    async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
        await this.release();
    }
    static hold(held) {
        return held.#hold;
    }
}

const argument = (word) => (typeof word === "number" ? `${word}` : word);

// RELEASE ALL until it is done or the lease is over: was it held? null: not known.
// After a request without an answer (not `granted`), null is not the end: it may still arrive.
async function releaseAll(link, request, token, until, granted) {
    for (let pause = 50; ; pause = Math.min(1000, pause * 2)) {
        try {
            const reply = await link.ask(request.keys[0], command(releaseCommand(request, token)));
            const held = (Array.isArray(reply) ? reply : [reply]).every((one) => one > 0);
            if (granted || held) return held;
        } catch (error) {
            if (explain(error, true) instanceof Misconfigured) return null;
        }
        if (now() + pause > until) return null;
        await sleep(pause);
    }
}

// One request with a token of its own, which is never used again. Returns a Hold, or null: busy.
async function attempt(link, request, token, deadline, signal, progress) {
    const key = request.keys[0];
    const build = () => {
        const left = deadline === null ? null : Math.max(0, deadline - now());
        progress.sent = now();
        return [acquireCommand(request, token, left), left === null ? null : left + ANSWER];
    };
    const waits = request.wait !== 0;
    const reply = await (waits
        ? link.askWaiting(key, build, { deadline, signal })
        : link.ask(key, build, { signal }));
    if (reply === null) return null;
    progress.granted = true;
    const fence = Array.isArray(reply) ? reply[0] : reply;
    const hold = new Hold(link, request, token, fence, progress.sent);
    if (hold.validUntil - now() < request.ttl / 2) {
        // The reply does not say when the grant was made: let a command that is sent now tell.
        if (!(await limited(hold.extend(request.ttl), null, signal))) {
            throw new NoAnswer("the lease ended before the grant arrived", true);
        }
    }
    if (signal?.aborted) throw new Cancelled("the acquire was cancelled", { cause: signal.reason });
    if (hold.isLost) throw new NoAnswer("the answer took longer than the lease", true);
    return hold;
}

// Attempt after attempt until the lock is granted or the wait is over.
async function granted(link, request, signal) {
    const deadline = request.wait === null ? null : now() + request.wait;
    let troubleSince = null;
    let pause = 50;
    for (;;) {
        link.checkOpen();
        const token = randomBytes(16).toString("hex");
        const progress = { sent: null, granted: false };
        const began = now();
        let error;
        try {
            const hold = await attempt(link, request, token, deadline, signal, progress);
            if (hold) return hold;
            if (deadline !== null && now() >= deadline - 20) {
                throw new Busy(`somebody else holds the lock after a wait of ${request.wait} ms`);
            }
            error = new Unavailable("the server ended the wait early"); // CLIENT UNBLOCK
        } catch (caught) {
            const known = caught instanceof Refused || caught instanceof Busy;
            if (progress.granted || (progress.sent !== null && !known && caught.sent !== false)) {
                releaseAll(link, request, token, now() + request.ttl, false);
            }
            error = explain(caught, link.followsMaster);
        }
        if (!(error instanceof Unavailable)) throw error;
        if (troubleSince === null || now() - began > 1000) {
            troubleSince = now();
            pause = 50;
        }
        const rest = error.retryAfter ?? pause * (0.5 + Math.random() / 2);
        if (now() + rest >= (deadline ?? troubleSince + PATIENCE)) throw error;
        pause = Math.min(1000, pause * 2);
        await sleep(rest, null, { signal }).catch((cause) => {
            throw new Cancelled("the acquire was cancelled", { cause });
        });
    }
}

export class Owner {
    #holds = [];

    // The hold that covers the request; undefined if the owner holds none of its keys.
    static covering(owner, request) {
        owner.#holds = owner.#holds.filter((hold) => !hold.isLost);
        for (const hold of owner.#holds) {
            const mine = hold.request;
            const shared = request.keys.filter((key) => mine.keys.includes(key));
            if (shared.length === request.keys.length) {
                if (mine.shared && (!request.shared || mine.limit !== request.limit)) {
                    throw new InvalidRequest(
                        "the owner holds this lock shared: release it before using another mode",
                    );
                }
                return hold;
            }
            if (shared.length > 0) {
                throw new InvalidRequest(
                    "the owner holds some of these keys: release them, or ask for all at once",
                );
            }
        }
    }
    static add(owner, hold) {
        owner.#holds.push(hold);
    }
}

export async function acquire(client, name, options = {}) {
    const request = checked(name, options);
    const { signal } = options;
    const link = Link.of(client);
    if (signal?.aborted) throw new Cancelled("the acquire was cancelled", { cause: signal.reason });
    const outer = request.owner && Owner.covering(request.owner, request);
    if (outer) return enterAgain(outer, request);
    const hold = await granted(link, request, signal);
    hold.keep();
    if (request.owner) Owner.add(request.owner, hold);
    return new Held(hold);
}

// The owner holds these keys already: make sure of it, and for long enough.
async function enterAgain(hold, request) {
    const ttl = Math.max(hold.ttl, request.ttl);
    const there = await hold.extend(ttl).catch((error) => {
        throw explain(error, hold.link.followsMaster);
    });
    if (!there || hold.signal.aborted) {
        hold.lose();
        throw new Lost("the owner's hold of this lock was lost");
    }
    hold.ttl = ttl;
    hold.entries++;
    return new Held(hold);
}

export async function withLock(client, name, options, work) {
    const held = await acquire(client, name, options);
    let result;
    try {
        result = await work(held);
    } catch (error) {
        await held.release();
        throw error;
    }
    if (!(await held.release())) throw new Lost("the lock was lost before it was released");
    return result;
}

export function close(client) {
    Link.of(client).close();
}
