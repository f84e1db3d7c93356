// Connections of our own, with the settings of the user's client, but not its timeouts and retries.

import slotOf from "cluster-key-slot";
import { Cancelled, InvalidRequest, Misconfigured, Unavailable, refused } from "./errors.js";

export const ANSWER = 2000; // ms in which a healthy server answers
const MAX_WAITING = 100; // connections that wait in the server's queues, for each client
const MAX_OPENING = 10; // connections that attempts open at once: a busy machine opens a few soon

const nodeRedis = {
    isOpen: (client) => client.isOpen,
    isCluster: (client) => Array.isArray(client.masters),
    isSentinel: (client) => typeof client.acquire === "function",
    async connect(client, at, begun) {
        let base = client;
        if (this.isCluster(client)) base = await client.nodeClient(anyOf(client.masters));
        if (this.isSentinel(client)) base = await client._execute(false, async (master) => master);
        const socket = { ...base.options.socket, ...at, connectTimeout: ANSWER };
        const own = base.duplicate({
            url: undefined,
            socket: { ...socket, reconnectStrategy: false, socketTimeout: undefined },
            commandOptions: { timeout: undefined },
            pingInterval: undefined,
            disableOfflineQueue: true,
        });
        let [isConnected, isGivenUp] = [false, false];
        const destroy = () => {
            isGivenUp = true; // node-redis closes nothing before it is connected
            if (isConnected && own.isOpen) own.destroy();
        };
        own.on("connect", () => {
            isConnected = true;
            if (isGivenUp) destroy();
        });
        const connection = {
            call: (words) => own.sendCommand(words),
            isAlive: () => own.isReady,
            destroy,
            ref: () => own.ref(),
            unref: () => own.unref(),
        };
        begun(connection);
        await own.on("error", () => {}).connect();
        return connection;
    },
};

const ioredis = {
    isOpen: (client) => client.status !== "end",
    isCluster: (client) => Boolean(client.isCluster),
    isSentinel: (client) => Boolean(client.options.sentinels),
    async connect(client, at, begun) {
        if (this.isCluster(client) && client.status === "wait") await client.connect();
        const base = this.isCluster(client) ? anyOf(client.nodes("master")) : client;
        if (!base) throw new Error("no node of the cluster is known");
        const own = base.duplicate({
            ...at,
            lazyConnect: true,
            retryStrategy: null,
            sentinelRetryStrategy: null,
            reconnectOnError: null,
            maxRetriesPerRequest: 0,
            autoResendUnfulfilledCommands: false,
            enableOfflineQueue: false,
            enableReadyCheck: false,
            enableAutoPipelining: false,
            commandTimeout: undefined,
            blockingTimeout: undefined,
            socketTimeout: undefined,
            connectTimeout: ANSWER,
            stringNumbers: false,
            keyPrefix: "",
        });
        const connection = {
            call: ([name, ...words]) => own.call(name, ...words),
            isAlive: () => own.status === "ready" || own.status === "connect",
            destroy: () => own.disconnect(),
            ref: () => own.stream.ref(),
            unref: () => own.stream?.unref(), // there is none before it connects
        };
        begun(connection);
        await own.on("error", () => {}).connect();
        return connection;
    },
};

const anyOf = (nodes) => nodes[Math.floor(Math.random() * nodes.length)];

function adapterOf(client) {
    if (typeof client?.duplicate === "function") {
        if (typeof client.call === "function") return ioredis;
        if (typeof client.sendCommand === "function") return nodeRedis;
    }
    throw new InvalidRequest(
        "a client of node-redis (createClient, createSentinel, createCluster) or ioredis is needed",
    );
}

// A number of places, and a queue for them.
class Turns {
    #free;
    #full;
    #queue = [];

    constructor(places, full) {
        this.#free = places;
        this.#full = full;
    }

    async take(limit, signal) {
        if (this.#free > 0) return void this.#free--;
        let go;
        const turn = new Promise((resolve) => this.#queue.push((go = resolve)));
        await limited(turn, limit, signal).catch((error) => {
            const place = this.#queue.indexOf(go);
            if (place >= 0) this.#queue.splice(place, 1);
            else this.end(); // it was this one's turn just now
            throw error instanceof Cancelled ? error : new Unavailable(this.#full);
        });
    }

    end() {
        if (this.#queue.length > 0) this.#queue.shift()();
        else this.#free++;
    }
}

export class Link {
    static #links = new WeakMap();
    static of(client) {
        if (!this.#links.has(client)) this.#links.set(client, new Link(client, adapterOf(client)));
        return this.#links.get(client);
    }

    #client;
    #adapter;
    #idle = new Map(); // by address
    #moved = new Map(); // where a slot is, if the cluster has redirected us
    #waiting = new Turns(MAX_WAITING, `${MAX_WAITING} requests of this client already wait`);
    #opening = new Turns(MAX_OPENING, "opening a connection takes too long");
    openedAt = performance.now(); // the last connection

    constructor(client, adapter) {
        this.#client = client;
        this.#adapter = adapter;
        this.isCluster = adapter.isCluster(client);
        this.followsMaster = this.isCluster || adapter.isSentinel(client);
    }

    checkOpen() {
        if (this.#adapter.isOpen(this.#client)) return;
        this.close();
        throw new Misconfigured("the client is closed: connect it before it is used for locks");
    }

    close() {
        for (const idle of this.#idle.values())
            for (const connection of idle.splice(0)) connection.destroy();
        this.#idle.clear();
    }

    // Sends one command, once, and returns the reply.
    async call(key, words, options) {
        try {
            return await this.ask(key, () => words, options);
        } catch (error) {
            sendingOf(error)?.abandon();
            throw error;
        }
    }

    // The same for a command that `words` builds just before the sending. The error of a command
    // without an answer has a sending, which is to be abandoned. An attempt may have to queue for a
    // connection, a renewal or a release never does. `limit`: for the answer; `end`: for the
    // connection, and for the answer if that leaves more than ANSWER.
    async ask(key, words, { limit = ANSWER, end = null, signal, isAttempt } = {}) {
        const left = () => (end === null ? limit : Math.max(0, end - performance.now()));
        const answer = () => (end === null ? limit : Math.max(ANSWER, left()));
        const step = () => Math.min(ANSWER, left() ?? ANSWER);
        const slot = this.isCluster ? slotOf(key) : null;
        for (let redirected = 0; ; redirected++) {
            const at = this.#moved.get(slot);
            const idle = this.#idleAt(at);
            let connection, reply;
            try {
                connection = popAlive(idle, isAttempt);
                connection ??= await this.#connect(idle, at, step, signal, isAttempt);
                reply = connection.call(words());
                const value = await limited(reply, answer(), signal);
                this.#putBack(idle, connection);
                return value;
            } catch (error) {
                if (!isErrorReply(error)) {
                    this.#moved.delete(slot);
                    const why = `no reply from the server: ${error.message}`;
                    const known = error instanceof Cancelled ? error : new Unavailable(why);
                    if (reply) sendings.set(known, sendingOn(connection, reply));
                    else connection?.destroy();
                    throw known;
                }
                if (this.followsMaster && error.message.startsWith("READONLY")) connection?.destroy();
                else if (connection) this.#putBack(idle, connection);
                const [, host, port] = /^MOVED \d+ (.*):(\d+)/.exec(error.message) ?? [];
                if (!port || !this.isCluster || redirected === 5)
                    throw refused(error.message, this.followsMaster);
                // A node that redirects has done nothing: ask the next one.
                this.#moved.set(slot, { host: host || at?.host, port: Number(port) });
            }
        }
    }

    async #connect(idle, at, step, signal, isAttempt) {
        if (!isAttempt) return this.#open(idle, at, step(), signal);
        await this.#opening.take(step(), signal);
        try {
            return popAlive(idle, true) ?? (await this.#open(idle, at, step(), signal));
        } finally {
            this.#opening.end();
        }
    }

    // One that is late is kept for the next attempt: opening another one takes as long.
    async #open(idle, at, limit, signal) {
        let begun;
        const giveUp = setTimeout(() => begun?.destroy(), 5 * ANSWER).unref(); // it may hang
        const made = this.#adapter.connect(this.#client, at, (own) => (begun = own));
        made.then(() => (this.openedAt = performance.now())).catch(() => {});
        const opened = made.finally(() => clearTimeout(giveUp));
        const keep = (late) => this.#putBack(idle, late);
        return limited(opened, limit, signal, keep).catch((error) => {
            if (signal?.aborted) begun?.destroy();
            else begun?.unref(); // nobody waits for it
            throw error;
        });
    }

    // The same on one of the connections that may wait. `turn`: ms to wait for one, null: no limit.
    async askWaiting(key, words, { turn, ...options }) {
        await this.#waiting.take(turn, options.signal);
        try {
            return await this.ask(key, words, options);
        } finally {
            this.#waiting.end();
        }
    }

    // What comes back after a close is not kept.
    #putBack(idle, connection) {
        const isClosed =
            !this.#adapter.isOpen(this.#client) || ![...this.#idle.values()].includes(idle);
        if (isClosed || idle.length >= MAX_WAITING) return connection.destroy();
        connection.unref(); // an idle connection does not keep the process running
        idle.push(connection);
    }

    #idleAt(at) {
        const where = at ? `${at.host}:${at.port}` : "";
        if (!this.#idle.has(where)) this.#idle.set(where, []);
        return this.#idle.get(where);
    }
}

// An attempt leaves one for a release: waiters must not take it from the holder.
function popAlive(idle, isAttempt) {
    while (idle.length > (isAttempt ? 1 : 0)) {
        const connection = idle.pop();
        if (connection.isAlive()) {
            connection.ref();
            return connection;
        }
        connection.destroy();
    }
}

// Error replies begin with a word in capitals; the errors of the clients do not.
const isErrorReply = (error) => /^[A-Z]{2,} /.test(error.message);

const sendings = new WeakMap(); // of errors
export const sendingOf = (error) => sendings.get(error);

function sendingOn(connection, reply) {
    let isAbandoned = false;
    const abandon = () => {
        if (!isAbandoned) connection.destroy();
        isAbandoned = true;
    };
    // The reply is here, and null or an error.
    const sending = { isRefused: false, abandon };
    const end = (isRefused) => (sending.isRefused = isRefused);
    reply.then(
        (value) => end(value === null),
        (error) => end(isErrorReply(error)),
    );
    return sending;
}

export const cancelled = (signal) =>
    new Cancelled("the acquire was cancelled", { cause: signal.reason });

// The promise, or an error after `limit` ms or at the signal. `late` gets what comes after that.
export function limited(promise, limit, signal, late = () => {}) {
    if (limit === null && !signal) return promise;
    return new Promise((resolve, reject) => {
        let timer;
        const end = (settle) => (value) => {
            clearTimeout(timer);
            signal?.removeEventListener("abort", cancel);
            settle(value);
        };
        const cancel = () => fail(cancelled(signal));
        const fail = (error) => {
            end(reject)(error);
            promise.then(late, () => {});
        };
        promise.then(end(resolve), end(reject));
        if (limit !== null)
            timer = setTimeout(
                () => fail(new Error("the server does not reply")),
                Math.min(Math.max(0, limit), 2 ** 31 - 1),
            );
        if (signal?.aborted) cancel();
        else signal?.addEventListener("abort", cancel);
    });
}
