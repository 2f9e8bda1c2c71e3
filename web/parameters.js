/* The parameters panel. Values are kept for this tab; a field that is empty is not sent. */
import {byId} from "./dom.js";

const numbers = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const fields = [...numbers, "system", "thinking", "effort", "tools"];
const field = (name) => byId(`p-${name}`);

const exampleTool = [{
    type: "function",
    function: {
        name: "get_weather",
        description: "Get the current weather of a city.",
        parameters: {type: "object", properties: {city: {type: "string"}}, required: ["city"]},
    },
}];

function remember() {
    try {
        sessionStorage.setItem("parameters", JSON.stringify(Object.fromEntries(fields.map((f) => [f, field(f).value]))));
    } catch {
        /* storage may be forbidden; the fields then keep their values until the page is left */
    }
}

function recall() {
    try {
        const saved = JSON.parse(sessionStorage.getItem("parameters") ?? "{}");
        for (const f of fields) if (typeof saved[f] === "string") field(f).value = saved[f];
    } catch {
        /* nothing usable was saved */
    }
}

function toolsProblem(sentence) {
    byId("tools-problem").textContent = sentence;
    byId("tools-problem").hidden = !sentence;
}

/* The array of tools; null after an error has been shown; undefined without any. */
function tools() {
    const text = field("tools").value.trim();
    toolsProblem("");
    if (!text) return undefined;
    try {
        const value = JSON.parse(text);
        if (Array.isArray(value)) return value;
        toolsProblem("The tools must be a JSON array, as in [{\"type\": \"function\", ...}].");
    } catch (e) {
        toolsProblem(`The tools are not valid JSON: ${e.message}`);
    }
    return null;
}

export const systemPrompt = () => field("system").value.trim();

/* The fields of a request, or null when one of them is not usable; the panel is then open and says why. */
export function requestFields() {
    const out = {};
    for (const name of numbers) {
        if (!field(name).checkValidity()) {
            setOpen(true);
            field(name).reportValidity();
            return null;
        }
        if (field(name).value !== "") out[name] = field(name).valueAsNumber;
    }
    if (field("thinking").value) out.chat_template_kwargs = {enable_thinking: field("thinking").value === "on"};
    if (field("effort").value) out.reasoning_effort = field("effort").value;
    const given = tools();
    if (given === null) {
        setOpen(true);
        field("tools").focus();
        return null;
    }
    if (given) out.tools = given;
    return out;
}

export const isOpen = () => !byId("parameters").hidden;

export function setOpen(open) {
    byId("parameters").hidden = !open;
    byId("open-parameters").setAttribute("aria-expanded", String(open));
}

export function startParameters() {
    recall();
    byId("open-parameters").addEventListener("click", () => {
        setOpen(!isOpen());
        if (isOpen()) field("system").focus();
    });
    byId("close-parameters").addEventListener("click", () => {
        setOpen(false);
        byId("open-parameters").focus();
    });
    byId("example-tool").addEventListener("click", () => {
        field("tools").value = JSON.stringify(exampleTool, null, 2);
        tools();
        remember();
    });
    byId("parameters").addEventListener("input", remember);
    field("tools").addEventListener("change", tools);
}
