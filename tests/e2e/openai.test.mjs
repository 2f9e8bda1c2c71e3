/* drawbridge serve as OpenAI's own client sees it. */
import assert from "node:assert/strict";
import {after, before, describe, it} from "node:test";
import OpenAI from "openai";
import {Server, sum, timer, weather} from "./server.mjs";

let server, client, model;
const tool = (t) => ({type: "function", function: t.tool});
const user = (content) => [{role: "user", content}];
const quiet = {chat_template_kwargs: {enable_thinking: false}};
const endless = {ignore_eos: true, max_tokens: 4000}; /* an answer that must be broken off */

before(async () => {
    server = await Server.start();
    client = new OpenAI({baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0});
    model = (await client.models.list()).data[0].id;
});
after(() => server?.stop());

const chat = (fields) => client.chat.completions.create({model, temperature: 0, ...fields});
const complete = (fields) => client.completions.create({model, temperature: 0, max_tokens: 8, ...fields});

/* The pieces of a stream, put together as a client would. */
async function collect(stream) {
    const out = {content: "", reasoning: "", calls: [], chunks: 0, roles: [], finish: null, usage: null};
    for await (const chunk of stream) {
        out.chunks++;
        assert.equal(chunk.object, "chat.completion.chunk");
        if (chunk.usage) out.usage = chunk.usage;
        const choice = chunk.choices[0];
        if (!choice) continue;
        if (choice.delta.role) out.roles.push(choice.delta.role);
        out.content += choice.delta.content ?? "";
        out.reasoning += choice.delta.reasoning_content ?? "";
        for (const part of choice.delta.tool_calls ?? []) {
            const call = (out.calls[part.index] ??= {id: "", name: "", arguments: ""});
            call.id += part.id ?? "";
            call.name += part.function?.name ?? "";
            call.arguments += part.function?.arguments ?? "";
        }
        if (choice.finish_reason) out.finish = choice.finish_reason;
    }
    return out;
}

async function refusal(promise) {
    const error = await promise.then(() => assert.fail("this should have been refused"), (e) => e);
    assert.ok(error instanceof OpenAI.APIError, String(error));
    return error;
}

describe("models", () => {
    it("lists the model, and gives it by name", async () => {
        const {data} = await client.models.list();
        assert.equal(data.length, 1);
        assert.equal(data[0].object, "model");
        assert.ok(data[0].max_model_len > 1000);
        assert.equal((await client.models.retrieve(model)).id, model);
        assert.equal((await refusal(client.models.retrieve("absent"))).status, 404);
    });
});

describe("chat", () => {
    it("answers with reasoning beside the content", async () => {
        const answer = await chat({messages: user(sum.question)});
        const {message, finish_reason: finish} = answer.choices[0];
        assert.equal(answer.object, "chat.completion");
        assert.equal(message.role, "assistant");
        assert.match(message.content, sum.answer);
        assert.ok(message.reasoning_content.length > 0);
        assert.equal(message.reasoning, message.reasoning_content);
        assert.equal(finish, "stop");
        const {usage} = answer;
        assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
        const reasoning = usage.completion_tokens_details.reasoning_tokens;
        assert.ok(reasoning > 0 && reasoning < usage.completion_tokens);
    });

    it("answers without reasoning when asked to", async () => {
        for (const off of [quiet, {reasoning_effort: "none"}]) {
            const {message} = (await chat({messages: user(sum.question), ...off})).choices[0];
            assert.match(message.content, sum.answer);
            assert.ok(!message.reasoning_content);
        }
    });

    it("streams the same bytes as it answers", async () => {
        const whole = (await chat({messages: user("Tell me a story."), max_tokens: 120})).choices[0];
        const parts = await collect(await chat({messages: user("Tell me a story."), max_tokens: 120, stream: true,
            stream_options: {include_usage: true}}));
        assert.equal(parts.content, whole.message.content);
        assert.equal(parts.reasoning, whole.message.reasoning_content);
        assert.equal(parts.finish, whole.finish_reason);
        assert.equal(parts.finish, "length");
        assert.deepEqual(parts.roles, ["assistant"]);
        assert.equal(parts.usage.completion_tokens, 120);
        assert.ok(parts.chunks > 20, `only ${parts.chunks} chunks: not streamed`);
    });

    it("gives no usage in a stream unless asked", async () => {
        assert.equal((await collect(await chat({messages: user("Hello"), stream: true}))).usage, null);
    });

    it("has a conversation, and finds what it computed before", async () => {
        const messages = user("Hello");
        const first = await chat({messages});
        messages.push(first.choices[0].message, ...user(sum.question));
        const second = await chat({messages});
        assert.match(second.choices[0].message.content, sum.answer);
        assert.ok(second.usage.prompt_tokens > first.usage.prompt_tokens);
        const again = await chat({messages});
        assert.equal(again.choices[0].message.content, second.choices[0].message.content);
        assert.ok(again.usage.prompt_tokens_details.cached_tokens > again.usage.prompt_tokens / 2);
    });

    it("gives n choices, in a stream too", async () => {
        const fields = {messages: user("Tell me a story."), n: 2, temperature: 1, seed: 5, max_tokens: 40};
        const {choices} = await chat(fields);
        assert.deepEqual(choices.map((c) => c.index), [0, 1]);
        const whole = choices.map((c) => (c.message.reasoning_content ?? "") + (c.message.content ?? ""));
        assert.notEqual(whole[0], whole[1]);
        const texts = ["", ""];
        for await (const chunk of await chat({...fields, stream: true}))
            for (const c of chunk.choices) texts[c.index] += (c.delta.reasoning_content ?? "") + (c.delta.content ?? "");
        assert.deepEqual(texts, whole);
    });

    it("repeats itself with a seed, and only then", async () => {
        const fields = {messages: user("Tell me a story."), temperature: 1.5, max_tokens: 60, ...quiet};
        const text = async (more) => (await chat({...fields, ...more})).choices[0].message.content;
        assert.equal(await text({seed: 1}), await text({seed: 1}));
        assert.notEqual(await text({seed: 1}), await text({seed: 2}));
        assert.notEqual(await text({}), await text({}));
    });

    it("gives log-probabilities", async () => {
        const {choices} = await chat({messages: user("Hello"), logprobs: true, top_logprobs: 3, ...quiet});
        const tokens = choices[0].logprobs.content; /* the end token is one of them */
        assert.equal(tokens.slice(0, -1).map((t) => t.token).join(""), choices[0].message.content);
        for (const t of tokens) {
            assert.ok(t.logprob <= 0);
            assert.equal(t.top_logprobs.length, 3);
            assert.equal(t.top_logprobs[0].token, t.token, "greedy takes the likeliest");
            assert.deepEqual(t.bytes, [...Buffer.from(t.token)]);
        }
    });

    it("ends at a stop string and at max_tokens", async () => {
        const fields = {messages: user("Tell me a story."), ...quiet, max_tokens: 60};
        const whole = (await chat(fields)).choices[0].message.content;
        const word = ` ${whole.split(" ")[6]}`;
        const cut = (await chat({...fields, stop: [word, "never to be seen"]})).choices[0];
        assert.equal(cut.finish_reason, "stop");
        assert.equal(cut.message.content, whole.slice(0, whole.indexOf(word)));
        const limited = await chat({messages: user("Tell me a story."), max_completion_tokens: 7});
        assert.equal(limited.choices[0].finish_reason, "length");
        assert.equal(limited.usage.completion_tokens, 7);
    });
});

describe("tools", () => {
    it("makes a round trip", async () => {
        const messages = user(weather.question);
        const tools = [tool(timer), tool(weather)];
        const first = (await chat({messages, tools})).choices[0];
        assert.equal(first.finish_reason, "tool_calls");
        assert.equal(first.message.tool_calls.length, 1);
        const call = first.message.tool_calls[0];
        assert.equal(call.type, "function");
        assert.equal(call.function.name, "get_weather");
        assert.deepEqual(JSON.parse(call.function.arguments), weather.arguments);
        messages.push(first.message, {role: "tool", tool_call_id: call.id, content: weather.result});
        const second = (await chat({messages, tools})).choices[0];
        assert.equal(second.finish_reason, "stop");
        assert.equal(second.message.content, weather.answer);
    });

    it("streams a call in pieces", async () => {
        const parts = await collect(await chat({messages: user(timer.question), tools: [tool(timer)], stream: true}));
        assert.equal(parts.finish, "tool_calls");
        assert.equal(parts.calls.length, 1);
        assert.ok(parts.calls[0].id.startsWith("call_"));
        assert.equal(parts.calls[0].name, "set_timer");
        assert.deepEqual(JSON.parse(parts.calls[0].arguments), timer.arguments);
    });

    it("works with the client's own tool runner", async () => {
        let asked = null;
        const runner = client.chat.completions.runTools({
            model, temperature: 0, messages: user(weather.question),
            tools: [{type: "function", function: {...weather.tool, parse: JSON.parse, function: (a) => ((asked = a), weather.result)}}],
        });
        assert.equal(await runner.finalContent(), weather.answer);
        assert.deepEqual(asked, weather.arguments);
    });

    it("obeys tool_choice", async () => {
        const tools = [tool(weather), tool(timer)];
        const required = (await chat({messages: user(timer.question), tools, tool_choice: "required"})).choices[0];
        assert.equal(required.message.tool_calls[0].function.name, "set_timer");
        const named = (await chat({messages: user(weather.question), tools, max_tokens: 60,
            tool_choice: {type: "function", function: {name: "set_timer"}}})).choices[0];
        assert.equal(named.message.tool_calls[0].function.name, "set_timer");
        const none = (await chat({messages: user(weather.question), tools, tool_choice: "none", max_tokens: 60})).choices[0];
        assert.ok(!none.message.tool_calls);
        const auto = (await chat({messages: user("Hello"), tools, tool_choice: "auto"})).choices[0];
        assert.ok(!auto.message.tool_calls);
    });

    it("ends after one call without parallel_tool_calls", async () => {
        const {choices} = await chat({messages: user(weather.question), tools: [tool(weather)], parallel_tool_calls: false});
        assert.equal(choices[0].message.tool_calls.length, 1);
        assert.equal(choices[0].finish_reason, "tool_calls");
    });
});

describe("completions", () => {
    const prompt = "Question: What is 2 + 3?\nAnswer:";

    it("goes on with a text", async () => {
        const answer = await complete({prompt});
        assert.equal(answer.object, "text_completion");
        assert.equal(answer.usage.completion_tokens, 8);
        assert.ok(answer.choices[0].text.length > 0);
        let streamed = "";
        for await (const chunk of await complete({prompt, stream: true})) streamed += chunk.choices[0]?.text ?? "";
        assert.equal(streamed, answer.choices[0].text);
    });

    it("takes several prompts, and prompts of tokens", async () => {
        const alone = (await complete({prompt})).choices[0].text;
        const reply = await fetch(`${server.url}/tokenize`, {method: "POST", body: JSON.stringify({prompt})});
        const {tokens} = await reply.json();
        const both = await complete({prompt: [prompt, "Once upon a time"]});
        assert.deepEqual(both.choices.map((c) => c.index), [0, 1]);
        assert.equal(both.choices[0].text, alone);
        assert.equal((await complete({prompt: tokens})).choices[0].text, alone);
        assert.equal((await complete({prompt: [tokens, tokens]})).choices[1].text, alone);
    });

    it("echoes, and gives log-probabilities", async () => {
        const echoed = (await complete({prompt, echo: true})).choices[0].text;
        assert.ok(echoed.startsWith(prompt) && echoed.length > prompt.length);
        const {logprobs, text} = (await complete({prompt, logprobs: 2})).choices[0];
        assert.equal(logprobs.tokens.join(""), text);
        assert.equal(logprobs.token_logprobs.length, 8);
        assert.ok(Object.keys(logprobs.top_logprobs[0]).length >= 2);
        assert.equal(logprobs.text_offset[0], 0);
    });
});

describe("errors", () => {
    it("names the field that is wrong", async () => {
        for (const [param, fields] of Object.entries({
            temperature: {temperature: -1}, top_p: {top_p: 2}, n: {n: 1000}, max_tokens: {max_tokens: 0}, stop: {stop: [1]},
            messages: {messages: [{role: "nobody", content: "x"}]}, response_format: {response_format: {type: "json_object"}},
            no_such_field: {no_such_field: 1},
        })) {
            const error = await refusal(chat({messages: user("Hello"), ...fields}));
            assert.ok(error instanceof OpenAI.BadRequestError, `${param}: ${error.status}`);
            assert.equal(error.param, param);
            assert.equal(error.type, "invalid_request_error");
        }
    });

    it("says when a prompt is too long", async () => {
        const error = await refusal(chat({messages: user("word ".repeat(20000))}));
        assert.equal(error.status, 400);
        assert.match(error.message, /context|tokens/);
    });

    it("does not know other models", async () => {
        const error = await refusal(client.chat.completions.create({model: "gpt-0", messages: user("Hello")}));
        assert.ok(error instanceof OpenAI.NotFoundError);
        assert.equal(error.code, "model_not_found");
    });
});

describe("aborts", () => {
    it("frees a stream that the client leaves", async () => {
        const stream = await chat({messages: user("Tell me a story."), ...endless, stream: true});
        let seen = 0;
        for await (const chunk of stream) if (chunk.choices.length && ++seen === 5) break;
        assert.equal(seen, 5);
        await server.becomesIdle();
    });

    it("frees a request that the client gives up", async () => {
        const controller = new AbortController();
        const answer = client.chat.completions.create({model, messages: user("Tell me a story."), ...endless}, {signal: controller.signal});
        while ((await server.inFlight()) === 0);
        controller.abort();
        await assert.rejects(answer, OpenAI.APIUserAbortError);
        await server.becomesIdle();
    });
});

describe("keys", () => {
    it("lets in who has one", async () => {
        const locked = await Server.start({keys: "alice key-of-alice-0123456789\n"});
        try {
            const at = (apiKey) => new OpenAI({baseURL: `${locked.url}/v1`, apiKey, maxRetries: 0});
            const error = await refusal(at("wrong").models.list());
            assert.ok(error instanceof OpenAI.AuthenticationError);
            assert.equal((await at("key-of-alice-0123456789").models.list()).data[0].id, model);
        } finally {
            await locked.stop();
        }
    });
});
