/* The conversation: what was said, sending, streaming, stopping. */
import {ask, events, ServerError} from "./api.js";
import {Answer} from "./answer.js";
import {byId, make} from "./dom.js";
import {isOpen, requestFields, setOpen, startParameters, systemPrompt} from "./parameters.js";
import {show} from "./render.js";

const starters = [
    "Hello! What can you do?",
    "What is 17 + 25?",
    "Sort these numbers from small to large: 9, 4, 7, 1",
    "Tell me a short story about a cat.",
];

let messages = [];  /* the conversation without the system prompt, in OpenAI's form */
let running = null; /* AbortController of the answer that streams */
let newest = null;  /* the latest Answer */

const log = () => byId("log");
const nearEnd = () => log().scrollHeight - log().scrollTop - log().clientHeight < 80;
const toEnd = () => (log().scrollTop = log().scrollHeight);
const say = (sentence) => (byId("status").textContent = sentence);

function setRunning(controller) {
    running = controller;
    byId("send").hidden = Boolean(controller);
    byId("stop").hidden = !controller;
}

/* Streams into the answer until its end. Returns a sentence when something went wrong, else "". */
async function stream(answer, body, signal) {
    const response = await ask("/v1/chat/completions", {
        method: "POST", signal, headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
    });
    for await (const data of events(response)) {
        if (data === "[DONE]") return "";
        const chunk = JSON.parse(data);
        if (chunk.error) return chunk.error.message ?? String(chunk.error);
        answer.take(chunk);
    }
    return answer.finish ? "" : "The connection ended before the answer did.";
}

function requestBody(fields) {
    const system = systemPrompt();
    const all = system ? [{role: "system", content: system}, ...messages] : messages;
    return {messages: all, stream: true, stream_options: {include_usage: true}, ...fields};
}

function reasonOf(e, answer) {
    if (e.name === "AbortError") {
        answer.finish = "stopped";
        return "";
    }
    return e instanceof ServerError ? e.message : `The answer could not be read: ${e.message}`;
}

/* Asks for the next answer to the conversation as it is. */
async function proceed() {
    const fields = requestFields();
    if (!fields || running) return;
    const controller = new AbortController();
    const answer = (newest = new Answer(log()));
    let follow = true;
    answer.onDraw = () => follow && toEnd();
    const watch = () => (follow = nearEnd());
    log().addEventListener("scroll", watch);
    setRunning(controller);
    toEnd();
    say("The model is answering.");
    let problem;
    try {
        problem = await stream(answer, requestBody(fields), controller.signal);
    } catch (e) {
        problem = reasonOf(e, answer);
    }
    log().removeEventListener("scroll", watch);
    if (newest !== answer) return; /* the conversation was cleared meanwhile */
    setRunning(null);
    finish(answer, problem);
    if (follow) toEnd();
}

function finish(answer, problem) {
    answer.end(problem, () => {
        if (running) return;
        answer.node.remove();
        if (messages.at(-1) === answer.kept) messages.pop();
        proceed();
    });
    say(problem || "The answer is complete.");
    if (!answer.content && !answer.reasoning && !answer.calls.length) {
        if (!problem) answer.node.append(make("p", {className: "quiet"}, answer.finish === "stopped" ? "Stopped." : "(an empty answer)"));
        return;
    }
    answer.kept = answer.message();
    messages.push(answer.kept);
    if (answer.kept.tool_calls) {
        answer.askResults((results) => {
            messages.push(...results);
            proceed();
        });
    } else {
        byId("entry").focus({preventScroll: true});
    }
}

function send(text) {
    if (!text.trim() || running || !requestFields()) return false;
    if (newest?.pending) messages.push(...newest.giveResults()); /* every call needs an answer before the next turn */
    byId("welcome").hidden = true;
    for (const old of log().querySelectorAll(".problem button")) old.remove(); /* the conversation goes on, what failed stays failed */
    messages.push({role: "user", content: text});
    const words = make("div", {className: "words"});
    show(words, text);
    log().append(make("div", {className: "turn user"}, words));
    proceed();
    return true;
}

function clear() {
    running?.abort();
    setRunning(null);
    newest = null;
    messages = [];
    log().replaceChildren(byId("welcome"));
    byId("welcome").hidden = false;
    byId("entry").focus();
    say("The conversation is empty.");
}

function grow() {
    const entry = byId("entry");
    entry.style.height = "auto";
    entry.style.height = `${entry.scrollHeight}px`;
}

function onKey(e) {
    if (e.key !== "Escape") return;
    if (running) running.abort();
    else if (isOpen()) setOpen(false);
}

export function startChat() {
    const entry = byId("entry");
    const submit = () => {
        if (!send(entry.value)) return;
        entry.value = "";
        grow();
    };
    startParameters();
    byId("composer").addEventListener("submit", (e) => {
        e.preventDefault();
        submit();
    });
    entry.addEventListener("keydown", (e) => {
        if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
        e.preventDefault();
        submit();
    });
    entry.addEventListener("input", grow);
    byId("stop").addEventListener("click", () => {
        running?.abort();
        entry.focus();
    });
    byId("clear").addEventListener("click", clear);
    document.addEventListener("keydown", onKey);
    for (const words of starters) {
        const button = make("button", {type: "button"}, words);
        button.addEventListener("click", () => send(words));
        byId("starters").append(button);
    }
}
