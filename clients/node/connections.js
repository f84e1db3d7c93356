// Connections of our own, with the settings of the user's client, but not its timeouts and retries.

import slotOf from "cluster-key-slot";
import { Cancelled, InvalidRequest, Misconfigured, Unavailable, refused } from "./errors.js";

export const ANSWER = 2000; // ms in which a healthy server answers
const MAX_WAITING = 100; // connections that wait in the server's queues, for each client

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
            unref: () => own.stream.unref(),
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
    #waiting = 0;
    #queue = []; // of requests for one of the connections that may wait

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
    }

    // Sends one command, once, and returns the reply.
    async tell(key, words, options) {
        try {
            return await this.ask(key, () => words, options);
        } catch (error) {
            sendingOf(error)?.abandon();
            throw error;
        }
    }

    // The same for a command that `words` builds just before the sending. The error of a command
    // without an answer has a sending, which is to be abandoned.
    async ask(key, words, { limit = ANSWER, signal } = {}) {
        const slot = this.isCluster ? slotOf(key) : null;
        for (let redirected = 0; ; redirected++) {
            const at = this.#moved.get(slot);
            const idle = this.#idleAt(at);
            let connection, reply;
            try {
                connection = popAlive(idle) ?? (await this.#connect(at, signal));
                reply = connection.call(words());
                const value = await limited(reply, limit, signal);
                putBack(idle, connection);
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
                if (connection) putBack(idle, connection);
                const [, host, port] = /^MOVED \d+ (.*):(\d+)/.exec(error.message) ?? [];
                if (!port || !this.isCluster || redirected === 5)
                    throw refused(error.message, this.followsMaster);
                // A node that redirects has done nothing: ask the next one.
                this.#moved.set(slot, { host: host || at?.host, port: Number(port) });
            }
        }
    }

    async #connect(at, signal) {
        let begun;
        const made = this.#adapter.connect(this.#client, at, (own) => (begun = own));
        try {
            return await limited(made, ANSWER, signal, (late) => late.destroy());
        } catch (error) {
            begun?.destroy(); // it may hang
            throw error;
        }
    }

    // The same on one of the connections that may wait. `turn`: ms to wait for one, null: no limit.
    async askWaiting(key, words, { turn, ...options }) {
        if (this.#waiting < MAX_WAITING) this.#waiting++;
        else await this.#turn(turn, options.signal);
        try {
            return await this.ask(key, words, options);
        } finally {
            this.#next();
        }
    }

    async #turn(limit, signal) {
        let go;
        const turn = new Promise((resolve) => this.#queue.push((go = resolve)));
        await limited(turn, limit, signal).catch((error) => {
            const place = this.#queue.indexOf(go);
            if (place >= 0) this.#queue.splice(place, 1);
            else this.#next(); // it was this one's turn just now
            if (error instanceof Cancelled) throw error;
            throw new Unavailable(`${MAX_WAITING} requests of this client already wait`);
        });
    }

    #next() {
        if (this.#queue.length > 0) this.#queue.shift()();
        else this.#waiting--;
    }

    #idleAt(at) {
        const where = at ? `${at.host}:${at.port}` : "";
        if (!this.#idle.has(where)) this.#idle.set(where, []);
        return this.#idle.get(where);
    }
}

function popAlive(idle) {
    for (let connection; (connection = idle.pop()); connection.destroy()) {
        if (!connection.isAlive()) continue;
        connection.ref();
        return connection;
    }
}

function putBack(idle, connection) {
    if (idle.length >= MAX_WAITING) return connection.destroy();
    connection.unref(); // an idle connection does not keep the process running
    idle.push(connection);
}

// Error replies begin with a word in capitals; the errors of the clients do not.
const isErrorReply = (error) => /^[A-Z]{2,} /.test(error.message);

const sendings = new WeakMap(); // of errors
export const sendingOf = (error) => sendings.get(error);

function sendingOn(connection, reply) {
    // The reply is here, and null or an error.
    const sending = { isRefused: false, abandon: () => connection.destroy() };
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
