/* One answer on the screen, while it streams and afterwards: reasoning folded, text, tool calls, figures. */
import {copyButton, count, duration, make} from "./dom.js";
import {show} from "./render.js";

function prettyArguments(text) {
    try {
        return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
        return text; /* still streaming, or not JSON: as it is */
    }
}

export class Answer {
    constructor(container) {
        this.content = "";
        this.reasoning = "";
        this.calls = [];      /* {id, name, arguments, node, result} */
        this.usage = null;
        this.finish = null;
        this.started = performance.now();
        this.firstToken = this.lastToken = this.thoughtEnd = 0;
        this.node = make("div", {className: "turn assistant"});
        this.words = make("div", {className: "words waiting"});
        this.node.append(this.words);
        container.append(this.node);
        this.frame = 0;
    }

    /* Takes one chunk of the stream. */
    take(chunk) {
        if (chunk.usage) this.usage = chunk.usage;
        const choice = chunk.choices?.[0];
        if (!choice) return;
        const delta = choice.delta ?? {};
        const thought = delta.reasoning_content ?? delta.reasoning ?? "";
        if (thought || delta.content || delta.tool_calls) {
            this.lastToken = performance.now();
            this.firstToken ||= this.lastToken;
        }
        this.reasoning += thought;
        if (delta.content || delta.tool_calls) this.thoughtEnd ||= this.lastToken;
        this.content += delta.content ?? "";
        for (const part of delta.tool_calls ?? []) this.takeCall(part);
        if (choice.finish_reason) this.finish = choice.finish_reason;
        this.frame ||= requestAnimationFrame(() => this.draw());
    }

    takeCall(part) {
        const call = (this.calls[part.index ?? 0] ??= {id: "", name: "", arguments: "", node: null, result: null});
        if (part.id) call.id = part.id;
        call.name += part.function?.name ?? "";
        call.arguments += part.function?.arguments ?? "";
    }

    draw() {
        this.frame = 0;
        if (this.reasoning) this.drawThoughts();
        show(this.words, this.content);
        for (const call of this.calls) if (call) this.drawCall(call);
        this.onDraw?.();
    }

    drawThoughts() {
        if (!this.thoughts) {
            this.summary = make("summary");
            this.thoughtWords = make("div", {className: "words"});
            this.thoughts = make("details", {className: "thoughts"}, this.summary, this.thoughtWords);
            this.node.prepend(this.thoughts);
        }
        show(this.thoughtWords, this.reasoning);
        if (this.thoughtEnd || this.done) {
            const seconds = ((this.thoughtEnd || this.lastToken) - this.firstToken) / 1000;
            this.summary.textContent = seconds < 0.1 ? "Thought briefly" : `Thought for ${duration(seconds).join(" ")}`;
        } else {
            const peek = this.reasoning.replace(/\s+/g, " ").slice(-60).replace(/^\S* /, "").trim();
            this.summary.replaceChildren("thinking … ", make("span", {className: "peek"}, peek));
        }
    }

    drawCall(call) {
        if (!call.node) {
            call.title = make("b");
            call.pre = make("pre");
            call.node = make("div", {className: "call"},
                make("div", {className: "call-head"}, make("span", {className: "tag"}, "tool call"), call.title), call.pre);
            this.node.append(call.node);
        }
        call.title.textContent = call.name;
        call.pre.textContent = prettyArguments(call.arguments);
    }

    /* The stream is over. problem: a sentence, or "". */
    end(problem, retry) {
        cancelAnimationFrame(this.frame);
        this.done = true;
        this.words.classList.remove("waiting");
        this.draw();
        if (problem) {
            const again = make("button", {type: "button"}, "Try again");
            again.addEventListener("click", retry);
            this.node.append(make("p", {className: "problem"}, problem, again));
        }
        if (this.content || this.reasoning || this.calls.length) this.node.append(this.figures());
    }

    /* Tokens per second after the first; of the whole request when the answer came in one burst, which says nothing about its making. */
    speed(tokens) {
        const after = (this.lastToken - this.firstToken) / 1000;
        if (tokens > 1 && after > 0.1) return (tokens - 1) / after;
        const all = (this.lastToken - this.started) / 1000;
        return all > 0 ? tokens / all : 0;
    }

    figures() {
        const parts = [];
        const u = this.usage;
        if (u) {
            const thinking = u.completion_tokens_details?.reasoning_tokens ?? u.reasoning_tokens;
            parts.push(`${count(u.completion_tokens)} tokens${thinking ? ` (${count(thinking)} thinking)` : ""}`);
            const speed = this.speed(u.completion_tokens);
            if (speed) parts.push(`${count(speed)} tok/s`);
        }
        if (this.firstToken) parts.push(`first after ${duration((this.firstToken - this.started) / 1000).join(" ")}`);
        if (u) {
            const cached = u.prompt_tokens_details?.cached_tokens ?? 0;
            parts.push(`prompt ${count(u.prompt_tokens)}${cached ? `, ${count(cached)} cached` : ""}`);
        }
        const ends = {length: "cut at the token limit", stopped: "stopped", abort: "aborted by the server", timeout: "out of time"};
        if (ends[this.finish]) parts.push(ends[this.finish]);
        const row = make("div", {className: "under"}, ...parts.map((p) => make("span", {}, p)));
        if (this.content) row.append(copyButton(() => this.content));
        return row;
    }

    /* As a message of the conversation. */
    message() {
        const m = {role: "assistant", content: this.content};
        if (this.reasoning) m.reasoning_content = this.reasoning;
        const calls = this.calls.filter((c) => c?.id && c.name);
        if (calls.length && this.finish === "tool_calls") {
            m.tool_calls = calls.map((c) => ({id: c.id, type: "function", function: {name: c.name, arguments: c.arguments || "{}"}}));
            if (!this.content) m.content = null;
        }
        return m;
    }

    /* After calls: fields for their results. goOn gets the tool messages. */
    askResults(goOn) {
        const calls = this.calls.filter((c) => c?.id && c.name);
        for (const call of calls) {
            call.field = make("textarea", {rows: 2, className: "code", spellcheck: false});
            call.label = make("label", {}, `Result of ${call.name}, as the tool would give it`, call.field);
            call.node.append(call.label);
        }
        const button = make("button", {type: "button", className: "solid go-on"}, calls.length > 1 ? "Send the results" : "Send the result");
        button.addEventListener("click", () => {
            button.remove();
            goOn(this.giveResults());
        });
        this.pending = button;
        this.node.querySelector(".under").before(button);
        calls[0].field.focus();
    }

    /* Takes what the result fields hold, and shows it as given. */
    giveResults() {
        this.pending.remove();
        this.pending = null;
        return this.calls.filter((c) => c?.field).map((call) => {
            const content = call.field.value;
            call.label.replaceWith(make("div", {className: "given"}, content || "(empty)"));
            call.field = null;
            return {role: "tool", tool_call_id: call.id, content};
        });
    }
}
