// Workers that compete for one lock: worker.js PEER PORTS WORKERS SECONDS (protocol: ../run.py)

import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import { createClient } from "redis";
import Redlock from "redlock";
import { withLock } from "redislock-client";

const [peer, list, ...numbers] = process.argv.slice(2);
const ports = list.split(",").map(Number);
const [workers, seconds] = numbers.map(Number);
const TTL = 30_000;
const MOST_WAITING = 100; // requests of one client that redislock lets wait at the server

// A lock that polls, as many programs write it by hand.
const RELEASE = 'if redis.call("GET",KEYS[1])==ARGV[1] then return redis.call("DEL",KEYS[1]) end';
// The script is sent once, as libraries do it.
async function onIoredis(client) {
    const release = await client.script("LOAD", RELEASE);
    return {
        take: (token) => client.set("bench", token, "PX", TTL, "NX"),
        release: (token) => client.evalsha(release, 1, "bench", token),
    };
}
async function onNodeRedis(client) {
    const release = await client.scriptLoad(RELEASE);
    return {
        take: (token) => client.set("bench", token, { PX: TTL, NX: true }),
        release: (token) => client.evalSha(release, { keys: ["bench"], arguments: [token] }),
    };
}
const polled = (lock) => async (work) => {
    const token = randomUUID();
    while (!(await lock.take(token))) await sleep(50 + Math.random() * 50);
    work();
    await lock.release(token);
};

// Runs work under a lock of redislock. The workers share as many clients as let all of them wait.
async function queued(connect) {
    const clients = [];
    for (let room = 0; room < workers; room += MOST_WAITING) clients.push(await connect());
    return (work, worker) =>
        withLock(clients[worker % clients.length], "bench", { ttl: TTL }, work);
}

async function locking() {
    const [port] = ports;
    if (peer === "redislock on node-redis")
        return queued(() => createClient({ socket: { port } }).connect());
    if (peer === "redislock on ioredis") return queued(() => new Redis({ port }));
    if (peer === "SET NX on node-redis")
        return polled(await onNodeRedis(await createClient({ socket: { port } }).connect()));
    const clients = ports.map((port) => new Redis({ port }));
    if (peer === "SET NX on ioredis") return polled(await onIoredis(clients[0]));
    const redlock = new Redlock(clients, { retryCount: -1 });
    return async (work) => {
        const lock = await redlock.acquire(["bench"], TTL);
        work();
        await lock.release();
    };
}

async function measure(withIt, length) {
    const end = performance.now() + length;
    const grants = Array(workers).fill(0);
    const waits = [];
    let handovers = 0;
    let last = null;
    const work = async (_, worker) => {
        for (let asked; (asked = performance.now()) < end;) {
            await withIt(() => {
                const now = performance.now();
                waits.push(Math.round((now - asked) * 1000));
                if (now >= end) return;
                grants[worker]++;
                if (last !== worker) handovers++;
                last = worker;
            }, worker);
        }
    };
    await Promise.all(grants.map(work));
    return { grants, waits, handovers };
}

process.on("uncaughtException", (error) => {
    console.error(error);
    console.error(`${error}`);
    process.exit(1);
});
const withIt = await locking();
await measure(withIt, 1000);
console.log("ready");
createInterface({ input: process.stdin }).once("line", async () => {
    process.stdout.write(`${JSON.stringify(await measure(withIt, seconds * 1000))}\n`, () =>
        process.exit(0),
    );
});
