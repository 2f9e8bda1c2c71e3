/* Talking to the server: the API key, errors as the server's own sentence, and server-sent events. */

let keyWanted = () => {};
let key = "";
try {
    key = sessionStorage.getItem("api-key") ?? "";
} catch {
    /* storage may be forbidden; the key then lives as long as the page */
}

export const onKeyWanted = (f) => (keyWanted = f);

export function setKey(value) {
    key = value;
    try {
        sessionStorage.setItem("api-key", value);
    } catch {
        /* as above */
    }
}

/* An error whose message is meant for the reader. */
export class ServerError extends Error {}

async function sentence(response) {
    const text = await response.text();
    try {
        const body = JSON.parse(text);
        return body.error?.message ?? body.message ?? text;
    } catch {
        return text || `The server answered with status ${response.status}.`;
    }
}

/* fetch that throws a ServerError for anything but success; an abort is passed on as it is. */
export async function ask(path, options = {}) {
    const headers = {...options.headers};
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
        response = await fetch(path, {...options, headers});
    } catch (e) {
        if (e.name === "AbortError") throw e;
        throw new ServerError("The server cannot be reached. Is it still running?");
    }
    if (response.ok) return response;
    if (response.status === 401) keyWanted();
    throw new ServerError(await sentence(response));
}

/* The data of each event. Lines end with LF or CRLF; comments and other fields are skipped. */
export async function* events(response) {
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let buffer = "";
    let data = [];
    for (;;) {
        const {done, value} = await reader.read();
        buffer += done ? decoder.decode() : decoder.decode(value, {stream: true});
        const lines = buffer.split("\n");
        buffer = lines.pop();
        for (const raw of lines) {
            const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
            if (line === "") {
                if (data.length) yield data.join("\n");
                data = [];
            } else if (line.startsWith("data:")) {
                data.push(line.slice(line[5] === " " ? 6 : 5));
            }
        }
        if (done) return;
    }
}
