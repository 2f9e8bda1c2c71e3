/* Starts drawbridge serve for a test file, and checks that it ends as it should. */
import assert from "node:assert/strict";
import {spawn} from "node:child_process";
import {mkdtempSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";

const binary = process.env.DRAWBRIDGE;
if (!binary) throw new Error("DRAWBRIDGE must name the program; tests/e2e/run.sh sets it");

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/* Asks until `holds` gives something that is true; the last answer is in the error. */
export async function eventually(what, holds, seconds = 20) {
    const end = Date.now() + seconds * 1000;
    for (;;) {
        const value = await holds();
        if (value) return value;
        if (Date.now() > end) assert.fail(`not within ${seconds} s: ${what}`);
        await pause(20);
    }
}

export class Server {
    /* keys: text of a key file; options: more command-line arguments. */
    static async start({keys = null, options = []} = {}) {
        const server = new Server();
        server.folder = mkdtempSync(join(tmpdir(), "drawbridge-e2e-"));
        const words = ["serve", "--port", "0", ...options];
        if (keys) {
            const file = join(server.folder, "keys");
            writeFileSync(file, keys, {mode: 0o600});
            words.push("--api-keys", file);
        }
        /* A group of its own, so that a process left behind can be seen. */
        server.process = spawn(binary, words, {detached: true, stdio: ["ignore", "pipe", "pipe"]});
        server.said = "";
        for (const stream of [server.process.stdout, server.process.stderr]) stream.on("data", (bytes) => (server.said += bytes));
        server.ended = new Promise((done) => server.process.on("exit", (code, signal) => {
            server.over = true;
            done({code, signal});
        }));
        process.on("exit", () => server.over || server.process.kill("SIGKILL"));
        await eventually("the server prints its address", () => {
            if (server.over) assert.fail(`the server ended: ${server.said}`);
            server.url = /listening on (http:\/\/[\d.]+:\d+)/.exec(server.said)?.[1];
            return server.url;
        });
        await eventually("the server is ready", async () => (await fetch(`${server.url}/readyz`)).ok);
        return server;
    }

    async get(path, headers = {}) {
        const reply = await fetch(this.url + path, {headers});
        assert.equal(reply.status, 200, `${path}: ${reply.status}`);
        return reply.json();
    }

    /* Requests in the engine. */
    async inFlight(headers = {}) {
        const {loads} = await this.get("/v1/loads", headers);
        return loads[0].num_running_reqs + loads[0].num_waiting_reqs;
    }

    async becomesIdle(headers) {
        await eventually("no request is left in the engine", async () => (await this.inFlight(headers)) === 0);
    }

    /* SIGTERM; it must end by itself with exit code 0 and leave no process. */
    async stop() {
        if (this.over) assert.fail(`the server ended before it was stopped: ${this.said}`);
        this.process.kill("SIGTERM");
        const {code, signal} = await this.ended;
        rmSync(this.folder, {recursive: true});
        assert.equal(code, 0, `exit code ${code}, signal ${signal}: ${this.said}`);
        assert.throws(() => process.kill(-this.process.pid, 0), {code: "ESRCH"}, "a process of the server is left");
    }
}

/* Tools and questions that the built-in model knows (models/nano/eval/tools.jsonl has 300). */
export const weather = {
    question: "What is the weather in Paris?",
    tool: {
        name: "get_weather",
        description: "Get the current weather of a city.",
        parameters: {type: "object", properties: {city: {type: "string", description: "Name of the city"}}, required: ["city"]},
    },
    arguments: {city: "Paris"},
    result: '{"city": "Paris", "temperature": 21, "sky": "sunny"}',
    answer: "It is sunny in Paris, and the temperature is 21 degrees.",
};
export const timer = {
    question: "Set a timer for 12 minutes.",
    tool: {
        name: "set_timer",
        description: "Start a timer.",
        parameters: {type: "object", properties: {minutes: {type: "integer", description: "Length in minutes"}}, required: ["minutes"]},
    },
    arguments: {minutes: 12},
};
export const sum = {question: "Tom has 3 apples and buys 4 more. How many apples does he have?", answer: /\b7\b/};
