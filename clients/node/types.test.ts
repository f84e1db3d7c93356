// Compiled by `npm run check`, never run: both clients fit, and the types are what a user expects.

import { Cluster, Redis } from "ioredis";
import { createClient, createCluster, createSentinel } from "redis";
import { acquire, Busy, close, Owner, withLock } from "./index.js";

const sentinel = createSentinel({ name: "main", sentinelRootNodes: [{ host: "h", port: 1 }] });
for (const client of [
    new Redis(),
    new Cluster([]),
    createClient(),
    sentinel,
    createCluster({ rootNodes: [] }),
]) {
    const held = await acquire(client, ["a", "b"], { ttl: 1000, wait: null, owner: new Owner() });
    const fence: number = held.fence;
    const value = await held.guard<string | null>("GET", "key");
    const result: string = await withLock(client, "a", { wait: 0 }, async ({ signal }) => {
        signal.throwIfAborted();
        return `${fence} ${value}`;
    });
    console.log(result, (await held.release()) satisfies boolean);
    close(client);
}
// @ts-expect-error a name is needed
await acquire(createClient()).catch((error: unknown) => error instanceof Busy);
