/* drawbridge serve as Anthropic's own client sees it. */
import assert from "node:assert/strict";
import {after, before, describe, it} from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import {Server, sum, timer, weather} from "./server.mjs";

let server, client, model;
const tool = ({tool: {name, description, parameters}}) => ({name, description, input_schema: parameters});
const user = (content) => [{role: "user", content}];
const enabled = {type: "enabled", budget_tokens: 1024}; /* the least the API takes */
const story = {messages: user("Tell me a story."), max_tokens: 120};

before(async () => {
    server = await Server.start();
    client = new Anthropic({baseURL: server.url, apiKey: "none", maxRetries: 0});
    model = (await server.get("/v1/models")).data[0].id;
});
after(() => server?.stop());

const ask = (fields) => client.messages.create({model, max_tokens: 400, temperature: 0, ...fields});
const stream = (fields) => client.messages.stream({model, max_tokens: 400, temperature: 0, ...fields});
const text = (message) => message.content.filter((b) => b.type === "text").map((b) => b.text).join("");

async function refusal(promise) {
    const error = await promise.then(() => assert.fail("this should have been refused"), (e) => e);
    assert.ok(error instanceof Anthropic.APIError, String(error));
    return error;
}

describe("messages", () => {
    it("answers", async () => {
        const message = await ask({messages: user(sum.question)});
        assert.equal(message.type, "message");
        assert.equal(message.role, "assistant");
        assert.equal(message.model, model);
        assert.equal(message.stop_reason, "end_turn");
        assert.match(text(message), sum.answer);
        assert.ok(message.usage.input_tokens + message.usage.cache_read_input_tokens > 10);
        assert.ok(message.usage.output_tokens > 5);
    });

    it("takes a system prompt and a conversation", async () => {
        const first = await ask({system: "You are helpful.", messages: user("Hello")});
        const messages = [...user("Hello"), {role: "assistant", content: first.content}, ...user(sum.question)];
        const second = await ask({system: [{type: "text", text: "You are helpful."}], messages});
        assert.match(text(second), sum.answer);
    });

    it("streams the same bytes as it answers", async () => {
        const whole = await ask(story);
        const heard = [];
        const running = stream(story).on("text", (delta) => heard.push(delta));
        const final = await running.finalMessage();
        assert.equal(text(final), text(whole));
        assert.equal(heard.join(""), text(whole));
        assert.ok(heard.length > 10, `only ${heard.length} pieces: not streamed`);
        assert.equal(final.stop_reason, "max_tokens");
        assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
    });

    it("sends the events in their order", async () => {
        const types = [];
        for await (const event of await ask({...story, stream: true})) if (types.at(-1) !== event.type) types.push(event.type);
        assert.deepEqual(types.filter((t) => t !== "ping"), ["message_start", "content_block_start", "content_block_delta",
            "content_block_stop", "message_delta", "message_stop"]);
    });

    it("ends at a stop sequence", async () => {
        const whole = text(await ask(story));
        const word = ` ${whole.split(" ")[6]}`;
        const cut = await ask({...story, stop_sequences: [word]});
        assert.equal(cut.stop_reason, "stop_sequence");
        assert.equal(cut.stop_sequence, word);
        assert.equal(text(cut), whole.slice(0, whole.indexOf(word)));
    });
});

describe("thinking", () => {
    it("comes as a block before the text", async () => {
        const message = await ask({messages: user(sum.question), max_tokens: 2048, thinking: enabled, temperature: 1, top_k: 1});
        assert.deepEqual(message.content.map((b) => b.type), ["thinking", "text"]);
        assert.ok(message.content[0].thinking.length > 0);
        assert.equal(typeof message.content[0].signature, "string");
        assert.match(text(message), sum.answer);
    });

    it("streams, and is taken back in the next turn", async () => {
        const fields = {max_tokens: 2048, thinking: enabled, temperature: 1, top_k: 1};
        let thought = "";
        const running = stream({messages: user("Hello"), ...fields}).on("thinking", (delta) => (thought += delta));
        const message = await running.finalMessage();
        assert.equal(thought, message.content[0].thinking);
        const messages = [...user("Hello"), {role: "assistant", content: message.content}, ...user(sum.question)];
        assert.match(text(await ask({messages, ...fields})), sum.answer);
    });

    it("is left out when disabled", async () => {
        const message = await ask({messages: user(sum.question), thinking: {type: "disabled"}});
        assert.deepEqual(message.content.map((b) => b.type), ["text"]);
    });
});

describe("tools", () => {
    it("make a round trip", async () => {
        const tools = [tool(timer), tool(weather)];
        const messages = user(weather.question);
        const first = await ask({messages, tools});
        assert.equal(first.stop_reason, "tool_use");
        const call = first.content.find((b) => b.type === "tool_use");
        assert.equal(call.name, "get_weather");
        assert.deepEqual(call.input, weather.arguments);
        messages.push({role: "assistant", content: first.content},
            {role: "user", content: [{type: "tool_result", tool_use_id: call.id, content: weather.result}]});
        const second = await ask({messages, tools});
        assert.equal(second.stop_reason, "end_turn");
        assert.equal(text(second), weather.answer);
    });

    it("stream their input", async () => {
        let json = "";
        const running = stream({messages: user(timer.question), tools: [tool(timer)]}).on("inputJson", (delta) => (json += delta));
        const message = await running.finalMessage();
        assert.equal(message.stop_reason, "tool_use");
        assert.deepEqual(message.content.find((b) => b.type === "tool_use").input, timer.arguments);
        assert.deepEqual(JSON.parse(json), timer.arguments);
    });

    it("are chosen by tool_choice", async () => {
        const tools = [tool(weather), tool(timer)];
        const names = (m) => m.content.filter((b) => b.type === "tool_use").map((b) => b.name);
        const fields = {messages: user(weather.question), tools, max_tokens: 60};
        const chosen = async (choice) => names(await ask({...fields, tool_choice: choice}));
        assert.deepEqual(await chosen({type: "any"}), ["get_weather"]);
        assert.equal((await chosen({type: "tool", name: "set_timer"}))[0], "set_timer");
        assert.deepEqual(await chosen({type: "none"}), []);
        assert.deepEqual(await chosen({type: "auto", disable_parallel_tool_use: true}), ["get_weather"]);
    });
});

describe("counting", () => {
    it("agrees with what a message uses", async () => {
        for (const fields of [{messages: user("Hello")}, {messages: user(weather.question), system: "Be brief.", tools: [tool(weather)]}]) {
            const {input_tokens: counted} = await client.messages.countTokens({model, ...fields});
            const {usage} = await ask({...fields, max_tokens: 1});
            assert.equal(counted, usage.input_tokens + usage.cache_read_input_tokens + (usage.cache_creation_input_tokens ?? 0));
        }
    });
});

describe("errors", () => {
    it("name the field that is wrong", async () => {
        for (const [name, fields] of Object.entries({
            max_tokens: {max_tokens: 0}, temperature: {temperature: -1}, messages: {messages: []}, no_such_field: {no_such_field: 1},
            container: {container: "x"},
        })) {
            const error = await refusal(ask({messages: user("Hello"), ...fields}));
            assert.ok(error instanceof Anthropic.BadRequestError, `${name}: ${error.status}`);
            assert.equal(error.error.type, "error");
            assert.equal(error.error.error.type, "invalid_request_error");
            assert.ok(error.error.error.message.includes(name), error.message);
        }
    });

    it("do not know other models", async () => {
        const error = await refusal(client.messages.create({model: "claude-0", max_tokens: 10, messages: user("Hello")}));
        assert.ok(error instanceof Anthropic.NotFoundError);
        assert.equal(error.error.error.type, "not_found_error");
    });

    it("ask for a key where there are keys", async () => {
        const locked = await Server.start({keys: "alice key-of-alice-0123456789\n"});
        try {
            const at = (apiKey) => new Anthropic({baseURL: locked.url, apiKey, maxRetries: 0}).messages.create(
                {model, max_tokens: 5, messages: user("Hello")});
            const error = await refusal(at("wrong"));
            assert.ok(error instanceof Anthropic.AuthenticationError);
            assert.equal(error.error.error.type, "authentication_error");
            assert.equal((await at("key-of-alice-0123456789")).type, "message");
        } finally {
            await locked.stop();
        }
    });
});

describe("aborts", () => {
    it("free a stream that the client leaves", async () => {
        const running = stream({messages: user("Tell me a story."), max_tokens: 4000});
        running.once("text", () => running.abort());
        await assert.rejects(running.finalMessage(), Anthropic.APIUserAbortError);
        await server.becomesIdle();
    });
});
