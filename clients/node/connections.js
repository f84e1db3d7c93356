// Connections of our own, with the settings of the user's client, but not its timeouts and retries.

import { Cancelled, InvalidRequest, Misconfigured, NoAnswer, Refused } from "./errors.js";
import { now } from "./request.js";

export const ANSWER = 2000; // ms that a healthy server needs for an answer at most
const MAX_WAITING = 100; // connections that wait in the server's queues, for each client

// ---- the two clients ----

const nodeRedis = {
    isOpen: (client) => client.isOpen,
    isCluster: (client) => Array.isArray(client.masters),
    isSentinel: (client) => typeof client.acquire === "function",
    nodes: (client) => client.masters.map(({ host, port }) => ({ host, port })),
    async connect(client, at, patience) {
        let base = client;
        if (this.isCluster(client)) base = await client.nodeClient(client.masters[0]);
        if (this.isSentinel(client)) base = await client._execute(false, async (master) => master);
        const { socket, ...rest } = base.options;
        const own = base.duplicate({
            ...rest,
            url: undefined,
            socket: {
                ...socket,
                ...at,
                reconnectStrategy: false,
                socketTimeout: undefined,
                connectTimeout: patience,
            },
            commandOptions: undefined,
            pingInterval: undefined,
            disableOfflineQueue: true,
        });
        own.on("error", () => {});
        await own.connect();
        return {
            call: (args) => own.sendCommand(args),
            isAlive: () => own.isReady,
            destroy: () => own.isOpen && own.destroy(),
            ref: (on) => (on ? own.ref() : own.unref()),
        };
    },
};

const ioredis = {
    isOpen: (client) => client.status !== "end",
    isCluster: (client) => Boolean(client.isCluster),
    isSentinel: (client) => Boolean(client.options.sentinels),
    nodes: (client) =>
        client.nodes("master").map(({ options: { host, port } }) => ({ host, port })),
    async connect(client, at, patience) {
        if (this.isCluster(client) && client.status === "wait") await client.connect();
        const base = this.isCluster(client) ? client.nodes("master")[0] : client;
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
            connectTimeout: patience,
            stringNumbers: false,
            keyPrefix: "",
        });
        own.on("error", () => {});
        await own.connect();
        return {
            call: ([name, ...args]) => own.call(name, ...args),
            isAlive: () => own.status === "ready" || own.status === "connect",
            destroy: () => own.disconnect(),
            ref: (on) => (on ? own.stream.ref() : own.stream.unref()),
        };
    },
};

function adapterOf(client) {
    if (typeof client?.call === "function" && typeof client.duplicate === "function")
        return ioredis;
    if (typeof client?.sendCommand === "function" && typeof client.duplicate === "function")
        return nodeRedis;
    throw new InvalidRequest(
        "a client of node-redis (createClient, createSentinel, createCluster) or ioredis is needed",
    );
}

// ---- which node of a cluster ----

function slotOf(key) {
    const bytes = Buffer.from(key);
    const open = bytes.indexOf("{");
    const close = open < 0 ? -1 : bytes.indexOf("}", open + 1);
    let crc = 0;
    for (const byte of close > open + 1 ? bytes.subarray(open + 1, close) : bytes) {
        crc ^= byte << 8;
        for (let bit = 0; bit < 8; bit++)
            crc = crc & 0x8000 ? ((crc << 1) ^ 0x1021) & 0xffff : (crc << 1) & 0xffff;
    }
    return crc % 16384;
}

export class Link {
    static #links = new WeakMap();
    static of(client) {
        const link = this.#links.get(client) ?? new Link(client, adapterOf(client));
        this.#links.set(client, link);
        return link;
    }

    #client;
    #adapter;
    #idle = new Map(); // by address
    #moved = new Map(); // where a slot is, as the cluster has told
    #free = MAX_WAITING;
    #queue = []; // of requests that wait for one of the connections that may wait

    constructor(client, adapter) {
        this.#client = client;
        this.#adapter = adapter;
        this.followsMaster = adapter.isCluster(client) || adapter.isSentinel(client);
    }

    checkOpen() {
        if (this.#adapter.isOpen(this.#client)) return;
        this.close();
        throw new Misconfigured("the client is closed: connect it before it is used for locks");
    }

    close() {
        for (const idle of this.#idle.values())
            idle.splice(0).forEach((connection) => connection.destroy());
    }

    // Carries out one command. `build` makes it just before it is sent: [command, limit or null].
    async ask(key, build, { patience = ANSWER, signal } = {}) {
        const slot = this.#adapter.isCluster(this.#client) ? slotOf(key) : null;
        for (let left = 5; ; left--) {
            try {
                return await this.#askOnce(slot, build, patience, signal);
            } catch (error) {
                // A node that redirects has done nothing.
                if (error.code !== "MOVED" || left === 0) throw error;
            }
        }
    }

    async #askOnce(slot, build, patience, signal) {
        const at = slot === null ? undefined : this.#moved.get(slot);
        let connection = null;
        let sent = false;
        try {
            connection = await limited(this.#connect(at, patience), patience, signal, (late) =>
                late.destroy(),
            );
            const [command, limit] = build();
            sent = true;
            const reply = await limited(connection.call(command), limit, signal);
            this.#putBack(at, connection);
            return reply;
        } catch (error) {
            if (connection && isReply(error)) {
                this.#putBack(at, connection);
                const [, where] = /^MOVED \d+ (\S+)/.exec(error.message) ?? [];
                if (where) this.#moved.set(slot, address(where, at));
                throw new Refused(error.message);
            }
            connection?.destroy();
            if (slot !== null) this.#moved.delete(slot);
            if (error instanceof Cancelled) throw error;
            if (isReply(error)) throw new Refused(error.message); // of the login
            throw new NoAnswer(error.message, sent);
        }
    }

    // The same on one of the connections that may wait. `deadline`: for getting one, null for none.
    async askWaiting(key, build, { deadline, signal }) {
        if (this.#free > 0) this.#free--;
        else await this.#turn(deadline, signal);
        try {
            return await this.ask(key, build, { signal });
        } finally {
            const next = this.#queue.shift();
            if (next) next();
            else this.#free++;
        }
    }

    async #turn(deadline, signal) {
        let go;
        const turn = new Promise((resolve) => this.#queue.push((go = resolve)));
        const limit = deadline === null ? null : deadline - now();
        await limited(turn, limit, signal).catch((error) => {
            const place = this.#queue.indexOf(go);
            if (place >= 0) this.#queue.splice(place, 1);
            else this.#queue.length ? this.#queue.shift()() : this.#free++;
            if (error instanceof Cancelled) throw error;
            throw new NoAnswer(`${MAX_WAITING} requests of this client wait already`, false);
        });
    }

    async #connect(at, patience) {
        const idle = this.#idleAt(at);
        while (idle.length > 0) {
            const connection = idle.pop();
            if (connection.isAlive()) {
                connection.ref(true);
                return connection;
            }
            connection.destroy();
        }
        return this.#adapter.connect(this.#client, at, Math.max(1, Math.ceil(patience)));
    }

    #idleAt(at) {
        const where = at ? `${at.host}:${at.port}` : "";
        if (!this.#idle.has(where)) this.#idle.set(where, []);
        return this.#idle.get(where);
    }

    #putBack(at, connection) {
        connection.ref(false); // an idle connection does not keep the process running
        this.#idleAt(at).push(connection);
    }
}

// The server's errors begin with a word in capitals; those of the clients do not.
const isReply = (error) => /^[A-Z]{2,} /.test(error.message);

function address(text, before) {
    const colon = text.lastIndexOf(":");
    return { host: text.slice(0, colon) || before?.host, port: Number(text.slice(colon + 1)) };
}

// The promise, or an error after `limit` ms or at the signal. `late` gets what comes after that.
export function limited(promise, limit, signal, late = () => {}) {
    return new Promise((resolve, reject) => {
        let over = false;
        const end = (settle) => (value) => {
            if (over) return settle === resolve && late(value);
            over = true;
            clearTimeout(timer);
            signal?.removeEventListener("abort", cancel);
            settle(value);
        };
        const cancel = () =>
            end(reject)(new Cancelled("the acquire was cancelled", { cause: signal.reason }));
        const fail = () => end(reject)(new Error("the server does not answer"));
        const timer =
            limit === null
                ? undefined
                : setTimeout(fail, Math.min(Math.max(0, limit), 2 ** 31 - 1));
        promise.then(end(resolve), end(reject));
        if (signal?.aborted) cancel();
        else signal?.addEventListener("abort", cancel);
    });
}
