// The library behind the driver protocol (clients/README.md): on node-redis, --ioredis: on ioredis.

import { createInterface } from "node:readline";
import { Cluster, Redis } from "ioredis";
import { RESP_TYPES, createClient, createCluster, createSentinel } from "redis";
import * as locks from "./index.js";

const useIoredis = process.argv.includes("--ioredis");
const KINDS = [
    ["Cancelled", "cancelled"],
    ["Busy", "busy"],
    ["Lost", "lost"],
    ["Quarantined", "quarantined"],
    ["Unavailable", "unavailable"],
    ["Misconfigured", "misconfigured"],
    ["InvalidRequest", "invalid"],
];
const clients = new Map();
const helds = new Map();
const owners = new Map();
const cancels = new Map();

function openIoredis({ mode, addresses, master, username, password, timeout, unusual }) {
    const [[host, port]] = addresses;
    const odd = unusual && { stringNumbers: true, keyPrefix: "app:", enableAutoPipelining: true };
    const redisOptions = { username, password, commandTimeout: timeout, ...odd };
    if (mode === "cluster") return new Cluster([{ host, port }], { redisOptions });
    if (mode === "sentinel") {
        return new Redis({
            sentinels: addresses.map(([h, p]) => ({ host: h, port: p })),
            name: master,
            ...redisOptions,
        });
    }
    return new Redis({ host, port, ...redisOptions });
}

function openNodeRedis({ mode, addresses, master, username, password, timeout, unusual }) {
    const [[host, port]] = addresses;
    const pingInterval = timeout && timeout / 4; // an idle client would close itself
    const socket = { host, port, socketTimeout: timeout };
    const typeMapping = { [RESP_TYPES.NUMBER]: String, [RESP_TYPES.BLOB_STRING]: Buffer };
    const odd = unusual && { RESP: 2, commandOptions: { typeMapping } };
    const settings = { username, password, socket, pingInterval, ...odd };
    if (mode === "cluster") return createCluster({ rootNodes: [settings] });
    if (mode === "sentinel") {
        return createSentinel({
            name: master,
            sentinelRootNodes: addresses.map(([h, p]) => ({ host: h, port: p })),
        });
    }
    return createClient(settings);
}

class Work extends Error {}

function optionsOf(ask) {
    const { ttl, wait, shared, limit, renew, renew_every: renewEvery } = ask;
    const options = { ttl, wait, shared, limit, renew, renewEvery };
    if (ask.owner) {
        if (!owners.has(ask.owner)) owners.set(ask.owner, new locks.Owner());
        options.owner = owners.get(ask.owner);
    }
    return options;
}

const aborted = (signal) =>
    new Promise((resolve) => {
        if (signal.aborted) resolve();
        else signal.addEventListener("abort", resolve, { once: true });
    });

const operations = {
    async open(ask) {
        const client = useIoredis ? openIoredis(ask) : openNodeRedis(ask);
        client.on("error", () => {});
        if (useIoredis) await new Promise((resolve) => client.once("ready", resolve));
        else await client.connect();
        clients.set(ask.client, client);
        return {};
    },
    async acquire(ask) {
        const controller = new AbortController();
        cancels.set(ask.id, controller);
        const options = { ...optionsOf(ask), signal: controller.signal };
        const held = await locks.acquire(clients.get(ask.client), ask.name, options);
        helds.set(ask.held, held);
        return { fence: held.fence };
    },
    async cancel(ask) {
        cancels.get(ask.acquire)?.abort();
        return {};
    },
    async state(ask) {
        const held = helds.get(ask.held);
        return { valid_for: held.validFor, lost: held.lost };
    },
    async await_lost(ask) {
        const held = helds.get(ask.held);
        await aborted(held.signal);
        return { valid_for: held.signal.reason.validFor };
    },
    async run(ask) {
        const work = async (held) => {
            if (ask.work === "release") return held.release();
            while (ask.work === "guard") await held.guard("INCR", "n");
            await aborted(held.signal);
            throw new Work("of the work");
        };
        const client = clients.get(ask.client);
        const error = await locks.withLock(client, ask.name, optionsOf(ask), work).catch((e) => e);
        const all = [error, error?.cause];
        const shows = (kind) => all.some((one) => one instanceof kind);
        return { errors: [shows(locks.Lost) && "lost", shows(Work) && "work"].filter(Boolean) };
    },
    async release(ask) {
        return { held: await helds.get(ask.held).release() };
    },
    async guard(ask) {
        return { reply: await helds.get(ask.held).guard(...ask.command) };
    },
    async command(ask) {
        const client = clients.get(ask.client);
        const [name, ...rest] = ask.command;
        return {
            reply: await (useIoredis
                ? client.call(name, ...rest)
                : client.sendCommand(ask.command)),
        };
    },
    async close(ask) {
        const client = clients.get(ask.client);
        await (useIoredis ? client.quit() : client.close());
        return {};
    },
};

const answer = (id, fields) => process.stdout.write(`${JSON.stringify({ id, ...fields })}\n`);

createInterface({ input: process.stdin })
    .on("line", async (line) => {
        const ask = JSON.parse(line);
        if (!operations[ask.op]) return answer(ask.id, { skip: "not in this language" });
        try {
            answer(ask.id, { ok: await operations[ask.op](ask) });
        } catch (error) {
            const kind = KINDS.find(([name]) => error instanceof locks[name])?.[1] ?? error.name;
            answer(ask.id, {
                error: { kind, message: error.message, retry_after: error.retryAfter },
            });
        }
    })
    .on("close", () => process.exit(0));
